"""The simulation runs, keeps the promises, replays, and finds the mutants."""

import inspect
import json
from pathlib import Path
from typing import Any

import pytest

from gpushare.device_plugin.allocator import CandidateFinder
from tests.simulation.chance import Chance, Weighted
from tests.simulation.figures import last_found
from tests.simulation.hunt import MutantIsBroken, all_mutants, hunt
from tests.simulation.mutants.museum import SEEDS, Mutant
from tests.simulation.story import of_seed, replay, shrink, tell

STEPS = 200
RUNS = json.loads(Path(__file__).with_name("runs.json").read_text(encoding="utf-8"))
ONCE_BROKEN = {int(seed): run["steps"] for run in RUNS for seed in run["violations"]}


@pytest.mark.parametrize("seed", range(8))
def test_a_story_keeps_every_promise(seed: int) -> None:
    outcome = tell(of_seed(seed, STEPS))
    assert not outcome.error
    assert outcome.fired


@pytest.mark.parametrize(("seed", "steps"), sorted(ONCE_BROKEN.items()))
def test_a_story_that_once_broke_a_promise_keeps_it(seed: int, steps: int) -> None:
    assert not tell(of_seed(seed, steps)).error


def test_a_seed_tells_the_same_story_each_time() -> None:
    story = of_seed(3, STEPS)
    assert replay(story) == replay(story)


def test_a_failing_story_is_made_short_and_fails_the_same_way() -> None:
    mutant = next(one for one in all_mutants() if one.name == "frees_what_has_landed")
    with mutant.at_large():
        seed = next(seed for seed in range(50) if tell(of_seed(seed, STEPS)).error)
        story = of_seed(seed, STEPS)
        error = tell(story).error
        short = shrink(story, error)
        assert len(short) < 40
        assert tell(short).error[:2] == error[:2]
    assert not tell(short).error


@pytest.mark.parametrize(
    "name",
    [
        "charges_after_success",
        "answers_before_it_is_synced",
        "takes_any_2xx_for_done",
        "believes_a_proxys_404",
        "forgets_the_other_nodes",
        "believes_the_map_alone",
        "leaves_the_owners_uuids",
    ],
)
def test_a_mutant_is_found(name: str) -> None:
    mutant = next(one for one in all_mutants() if one.name == name)
    last_seed = last_found(RUNS)[name]
    assert isinstance(last_seed, int)
    assert hunt(mutant, STEPS, SEEDS, last_seed).by is not None


def test_a_mutant_whose_own_code_is_broken_does_not_count_as_found() -> None:
    def asks_for_what_is_not_there(self: Any, *of: Any) -> Any:
        return self.no_such_attribute

    def is_called_with_more() -> None:
        """Expect nothing."""

    for find, error in (
        (asks_for_what_is_not_there, "no_such_attribute"),
        (is_called_with_more, "takes 0 positional arguments"),
    ):
        patch = (CandidateFinder, "find", lambda _, find=find: find)
        with pytest.raises(MutantIsBroken, match=error):
            hunt(Mutant("C8", "broken", "nobody", (patch,)), STEPS, 100)


@pytest.mark.parametrize("mutant", all_mutants(), ids=lambda mutant: mutant.name)
def test_every_mutant_changes_something_that_is_there(mutant: Mutant) -> None:
    before = [vars(home)[attribute] for home, attribute, _ in mutant.patches]
    with mutant.at_large():
        patched = [vars(home)[attribute] for home, attribute, _ in mutant.patches]
    for one, two in zip(before, patched, strict=True):
        assert one is not two
        if inspect.isfunction(one) and inspect.isfunction(two):
            # A caller that survives any error would hide a wrong signature.
            parameters = inspect.signature(one).parameters.values()
            by_name = {
                one_mutant.name: None
                for one_mutant in parameters
                if one_mutant.kind is one_mutant.KEYWORD_ONLY
            }
            inspect.signature(two).bind(*[None] * (len(parameters) - len(by_name)), **by_name)


def test_the_museum_has_every_mutant_once() -> None:
    names = [mutant.name for mutant in all_mutants()]
    assert len(names) == len(set(names))
    assert len(names) >= 25


def test_the_number_0_draws_the_first_of_everything() -> None:
    chance = Chance(0)
    assert [chance.below(7), chance.pick("ab"), chance.once_in(9)] == [0, "a", False]
    assert Weighted({"never": 0, "first": 2, "second": 1}).draw(chance) == "first"
    assert Weighted({}).draw(chance) == ""
