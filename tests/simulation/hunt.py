"""Runs each mutant until a story finds the mutant, or runs the test that the mutant names.

`python -m tests.simulation.hunt NAME` runs the test of that mutant, with the mutant active.
"""

import re
import subprocess
import sys
from dataclasses import dataclass
from itertools import chain

from tests.simulation.mutants import (
    answers,
    apart,
    auditing,
    binding,
    cards,
    compute,
    costs,
    input,  # noqa: A004 -- a hall
    leading,
    limits,
    moving,
    nodes,
    preempting,
    serving,
    shares,
    tenants,
    watching,
)
from tests.simulation.mutants.museum import MUSEUM, SEEDS, Mutant
from tests.simulation.story import of_seed, tell

HALLS = (
    *(answers, apart, auditing, binding, cards, compute, costs, input, leading),
    *(limits, moving, nodes, preempting, serving, shares, tenants, watching),
)
"""Each module registers its mutants at import."""


_MISFIT = re.compile(r"AttributeError|TypeError: \w+\.<locals>")
"""The error of a mutant that uses missing names, or does not match the call."""


class MutantIsBroken(Exception):
    """The mutant's own code does not fit the changed code: the result means nothing."""


@dataclass(frozen=True, slots=True)
class HuntResult:
    """How a mutant was found: the seed or test (None: not found), and the broken promise."""

    mutant: Mutant
    by: int | str | None
    error: str


def hunt(
    mutant: Mutant, steps: int, seeds: int = SEEDS, last_seed: int | None = None
) -> HuntResult:
    """Return how the mutant is found, by a story that keeps every promise without the mutant.

    last_seed: the seed of the last find, tried first. Raises MutantIsBroken.
    """
    if mutant.test:
        return _hunt_by_test(mutant)
    other_seeds = (seed for seed in range(seeds) if seed != last_seed)
    for seed in other_seeds if last_seed is None else chain([last_seed], other_seeds):
        story = of_seed(seed, steps)
        with mutant.at_large():
            outcome = tell(story)
        if outcome.error and not tell(story).error:
            if _MISFIT.search(outcome.error):
                raise MutantIsBroken(f"{mutant.name}: seed {seed}: {outcome.error}")
            return HuntResult(mutant, seed, outcome.error)
    return HuntResult(mutant, None, "")


def _hunt_by_test(mutant: Mutant) -> HuntResult:
    """Return how the mutant is found by a test that passes without the mutant.

    In separate processes: a module that a test imports keeps its own imports.
    """
    python, pytest = [sys.executable, "-m"], ["pytest", "-q", "-x", "-p", "no:cacheprovider"]
    commands = [[*python, "tests.simulation.hunt", mutant.name], [*python, *pytest, mutant.test]]
    loose, tame = (
        subprocess.run(command, capture_output=True, text=True, check=False) for command in commands
    )
    for run, broken in ((tame, tame.returncode != 0), (loose, _MISFIT.search(loose.stdout))):
        if broken:
            raise MutantIsBroken(f"{mutant.name}: {mutant.test}: {run.stdout}{run.stderr}")
    # 1: tests were run, and some have failed.
    is_found = loose.returncode == 1
    return HuntResult(
        mutant, mutant.test if is_found else None, loose.stdout.strip().split("\n")[-1]
    )


def all_mutants() -> list[Mutant]:
    """Everything on show."""
    return list(MUSEUM)


if __name__ == "__main__":
    import pytest

    loose = next(one for one in all_mutants() if one.name == sys.argv[1])
    with loose.at_large():
        sys.exit(pytest.main(["-q", "-x", "-p", "no:cacheprovider", loose.test]))
