"""Stories of claims keep every promise, and find what they must find."""

from collections import Counter

import pytest

from tests.simulation.claims.mutants import MUTANTS
from tests.simulation.claims.proof import hunt
from tests.simulation.claims.story import tell
from tests.simulation.mutants.museum import Mutant

SEEDS = 200
AT_LEAST = {"lost", "late", "never", "too late", "killed after", "killed, late", "refused"} | {
    "gang bound"
}
"""Faults that so many stories must have had, and what must have come of gangs."""


def test_stories_of_claims_keep_every_promise() -> None:
    fired, landed = Counter[str](), 0
    for seed in range(SEEDS):
        told = tell(seed)
        assert not told.error, f"seed {seed}"
        fired += Counter(told.fired)
        landed += told.landed
    assert landed > 2 * SEEDS
    assert fired.keys() >= AT_LEAST


def test_a_seed_tells_the_same_story_of_claims_each_time() -> None:
    lines: list[str] = []
    again: list[str] = []
    tell(5, say=lines.append)
    tell(5, say=again.append)
    assert lines == again


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_each_mutant_of_claims_is_found(mutant: Mutant) -> None:
    seed, error = hunt(mutant)
    assert seed is not None
    assert error[0] in "DX"
