"""Lets each mutant loose until a story finds it, or the test that it names.

`python -m tests.simulation.hunt NAME` runs the test of that mutant, with it at large.
"""

import re
import subprocess
import sys
from dataclasses import dataclass
from itertools import chain

from tests.simulation.mutants import (
    answers,
    auditing,
    binding,
    cards,
    compute,
    costs,
    input,  # noqa: A004 -- a hall
    leading,
    moving,
    nodes,
    preempting,
    serving,
    tenants,
    watching,
)
from tests.simulation.mutants.museum import MUSEUM, SEEDS, Mutant
from tests.simulation.story import of_seed, tell

HALLS = (
    *(answers, auditing, binding, cards, compute, costs, input, leading),
    *(moving, nodes, preempting, serving, tenants, watching),
)
"""Each module puts its mutants on show when it is imported."""


_MISFIT = re.compile(r"AttributeError|TypeError: \w+\.<locals>")
"""The error of a mutant that uses what is not there, or is called as it does not expect."""


class MutantIsBroken(Exception):
    """The mutant's own code does not fit the code that it changes: what it shows says nothing."""


@dataclass(frozen=True, slots=True)
class Found:
    """How a mutant was found: by which seed or test (None: by none), by which promise it broke."""

    mutant: Mutant
    by: int | str | None
    error: str


def hunt(mutant: Mutant, steps: int, seeds: int = SEEDS, known_seed: int | None = None) -> Found:
    """Return how the mutant is found, by a story that keeps every promise without it.

    known_seed: the seed that found it before, which is tried first. Raises MutantIsBroken.
    """
    if mutant.test:
        return _hunt_by_test(mutant)
    remaining_items = (seed for seed in range(seeds) if seed != known_seed)
    for seed in remaining_items if known_seed is None else chain([known_seed], remaining_items):
        story = of_seed(seed, steps)
        with mutant.at_large():
            tell_result = tell(story)
        if tell_result.error and not tell(story).error:
            if _MISFIT.search(tell_result.error):
                raise MutantIsBroken(f"{mutant.name}: seed {seed}: {tell_result.error}")
            return Found(mutant, seed, tell_result.error)
    return Found(mutant, None, "")


def _hunt_by_test(mutant: Mutant) -> Found:
    """Return how the mutant is found by its test, which passes without it.

    In processes of their own: a module that a test imports keeps what it has imported.
    """
    command, pytest = [sys.executable, "-m"], ["pytest", "-q", "-x", "-p", "no:cacheprovider"]
    commands = [
        [*command, "tests.simulation.hunt", mutant.name],
        [*command, *pytest, mutant.test],
    ]
    loose, tame = (
        subprocess.run(command, capture_output=True, text=True, check=False) for command in commands
    )
    for run, broken in ((tame, tame.returncode != 0), (loose, _MISFIT.search(loose.stdout))):
        if broken:
            raise MutantIsBroken(f"{mutant.name}: {mutant.test}: {run.stdout}{run.stderr}")
    # 1: tests were run, and some have failed.
    result = loose.returncode == 1
    return Found(mutant, mutant.test if result else None, loose.stdout.strip().split("\n")[-1])


def all_mutants() -> list[Mutant]:
    """Everything on show."""
    return list(MUSEUM)


if __name__ == "__main__":
    import pytest

    loose = next(mutant for mutant in all_mutants() if mutant.name == sys.argv[1])
    with loose.at_large():
        sys.exit(pytest.main(["-q", "-x", "-p", "no:cacheprovider", loose.test]))
