"""Stories of groups that wait at the gate, and mutants that they must find."""

from collections import Counter

import pytest

from tests.simulation.chance import Chance, numbers
from tests.simulation.gate_story import GateStory
from tests.simulation.oracle import Violation

SEEDS, STEPS = 60, 200


def tell(seed: int) -> GateStory:
    story = GateStory()
    for number in numbers(seed, STEPS):
        story.step(Chance(number))
    story.judge_end()
    return story


def test_stories_keep_every_promise() -> None:
    total: Counter[str] = Counter()
    for seed in range(SEEDS):
        try:
            total.update(tell(seed).counts)
        except Violation as error:
            pytest.fail(f"seed {seed}: {error}")
    print(total)
