"""Lets each mutant loose, and counts the seeds until the simulation finds it."""

from dataclasses import dataclass

from tests.simulation.mutants import (
    answers,
    auditing,
    binding,
    cards,
    input,  # noqa: A004 -- a hall
    leading,
    nodes,
    serving,
    watching,
)
from tests.simulation.mutants.museum import MUSEUM, SEEDS, Mutant
from tests.simulation.story import of_seed, tell

HALLS = (answers, auditing, binding, cards, input, leading, nodes, serving, watching)
"""Each module puts its mutants on show when it is imported."""


@dataclass(frozen=True, slots=True)
class Found:
    """How a mutant was found: after so many seeds (None: not at all), by which promise it broke."""

    mutant: Mutant
    seeds: int | None
    error: str


def hunt(mutant: Mutant, steps: int, seeds: int = SEEDS) -> Found:
    """How soon the mutant is found, by a story that keeps every promise without it."""
    for seed in range(mutant.first, seeds):
        story = of_seed(seed, steps)
        with mutant.at_large():
            told = tell(story)
        if told.error and not tell(story).error:
            return Found(mutant, seed + 1, told.error)
    return Found(mutant, None, "")


def all_mutants() -> list[Mutant]:
    """Everything on show."""
    return list(MUSEUM)
