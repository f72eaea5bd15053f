"""Lets each mutant loose until a story finds it."""

from dataclasses import dataclass
from itertools import chain

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


class MutantIsBroken(Exception):
    """The mutant's own code does not fit the code that it changes: what it shows says nothing."""


@dataclass(frozen=True, slots=True)
class Found:
    """How a mutant was found: by which seed (None: by none), by which promise it broke."""

    mutant: Mutant
    seed: int | None
    error: str


def hunt(mutant: Mutant, steps: int, seeds: int = SEEDS, known: int | None = None) -> Found:
    """Return how the mutant is found, by a story that keeps every promise without it.

    known: the seed that found it before, which is tried first. Raises MutantIsBroken.
    """
    others = (seed for seed in range(seeds) if seed != known)
    for seed in others if known is None else chain([known], others):
        story = of_seed(seed, steps)
        with mutant.at_large():
            told = tell(story)
        if told.error and not tell(story).error:
            if "AttributeError" in told.error:
                raise MutantIsBroken(f"{mutant.name}: seed {seed}: {told.error}")
            return Found(mutant, seed, told.error)
    return Found(mutant, None, "")


def all_mutants() -> list[Mutant]:
    """Everything on show."""
    return list(MUSEUM)
