"""Stories of pods that wait between filter and bind, and mutants that these must find."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from gpushare.core.model import PodRef, Request
from gpushare.extender.verbs import offers
from gpushare.extender.verbs.bind.binder import Binder
from gpushare.extender.verbs.bind.transaction import BindResult
from gpushare.extender.verbs.holds import Holds
from gpushare.wire.pods import Claimant
from tests.simulation.chance import Chance, numbers
from tests.simulation.held_story import UNITS, HeldStory
from tests.simulation.oracle import Violation

SEEDS, STEPS = 60, 200


def tell(seed: int) -> HeldStory:
    story = HeldStory(nominates=bool(seed % 2))
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
    # The stories exercise the subject.
    assert total["bound"] > 8 * SEEDS
    assert min(total["refused"], total["given up"], total["refused bind"]) > SEEDS / 10


def _never_ends(original: Any) -> Any:
    del original
    return lambda self, hold: float("inf")


def _blocks_its_own_pod(original: Any) -> Any:
    return lambda hold, pod: hold.pod.ref.uid == pod.ref.uid or original(hold, pod)


def _counts_in_bind(original: Any) -> Any:
    def bind(self: Any, ref: Any, node: str, *args: Any, **more: Any) -> Any:
        (resource,) = self._resources
        stranger = Claimant(PodRef("team", "stranger", "uid-stranger"), Request(UNITS, 1))
        books = resource.ledger.snapshot()
        view = offers.offers_of(resource).to(stranger, books, self._clock())
        if not (view.free[view.row[node]] >= UNITS).any():
            return BindResult("it is held", "held")
        return original(self, ref, node, *args, **more)

    return bind


def _holds_nothing(original: Any) -> Any:
    del original
    return lambda self, pod, node, now: None


def _forgets_nominations(original: Any) -> Any:
    del original
    return lambda self, pod, nominated, now: None


def _wakes_nobody(original: Any) -> Any:
    del original
    return lambda self, pod, version: None


def _is_never_outwaited(original: Any) -> Any:
    del original
    return lambda self, pod, now: ()


@pytest.mark.parametrize(
    ("owner", "name", "mutate"),
    [
        (Holds, "_ends_at", _never_ends),
        (offers, "counts_against", _blocks_its_own_pod),
        (Binder, "bind", _counts_in_bind),
        (Holds, "offered", _holds_nothing),
        (Holds, "turned_away", _wakes_nobody),
        (Holds, "shown", _forgets_nominations),
        (Holds, "outwaited", _is_never_outwaited),
    ],
    ids=lambda each: getattr(each, "__name__", None),
)
def test_each_mutant_is_found(
    owner: Any, name: str, mutate: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, name, mutate(getattr(owner, name)))
    with pytest.raises(Violation):
        all(tell(seed) for seed in range(SEEDS))
