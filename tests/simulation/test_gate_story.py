"""Stories of groups that wait at the gate, and mutants that these must find."""

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from gpushare.extender.follow.group_members import GroupMembers
from gpushare.extender.verbs.bind.binder import Binder
from gpushare.extender.verbs.bind.gate import Gate, Verdict
from gpushare.extender.verbs.bind.transaction import BindResult, BindTransaction, WaitAtGate
from gpushare.extender.verbs.group_room import GroupRoom
from tests.simulation.chance import Chance, numbers
from tests.simulation.gate_story import NODES, GateStory
from tests.simulation.oracle import Violation

SEEDS, STEPS = 40, 160
MUTANT_SEEDS = 120


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
    # The stories exercise the subject.
    assert min(total["whole"], total["waited"], total["bound"], total["refused"]) > 10 * SEEDS
    rare = ("bind refused", "killed with waits", "lead lost with waits", "woken")
    assert min(total[event] for event in (*rare, "refused by the API server")) > SEEDS / 10


def compete() -> GateStory:
    """Five groups of three pods come at once, the oldest first, and there is room for two."""
    story = GateStory()
    for number in range(5):
        story.make_group(f"g{number}", 3, 0, 0)
    for _ in range(60):
        story.catch_up()
        queue = story.queue()
        # The first pod of each group, then the second of each: all begin, and none is whole.
        queue.sort(key=lambda name: (_place_in_group(story, name), name))
        for name in queue:
            story.try_pod(name)
            story.catch_up()
        story.pass_time(0.5)
        story.judge()
    return story


def _place_in_group(story: GateStory, name: str) -> int:
    return story.members_of(story.groups[name.partition("-")[0]]).index(name)


def whole(story: GateStory) -> list[str]:
    return [
        name
        for name, group in story.groups.items()
        if all(story.pods[pod]["spec"]["nodeName"] for pod in story.members_of(group))
    ]


def test_of_five_groups_on_room_for_two_the_oldest_two_are_bound() -> None:
    assert sum(NODES.values()) == 6
    assert whole(compete()) == ["g0", "g1"]


def test_without_a_rule_for_competition_younger_groups_are_bound_or_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Gate, "rivals", lambda *_: [])
    monkeypatch.setattr(GroupRoom, "fits", lambda *_: True)
    assert whole(compete()) != ["g0", "g1"]


def _nobody_waits(original: Any) -> Any:
    del original
    return lambda self, group: False


def _one_less_is_enough(original: Any) -> Any:
    return lambda self, group, size: original(self, group, size - 1)


def _deleted_pods_count(original: Any) -> Any:
    del original
    return lambda self, uid, deleted: None


def _groups_are_there_already(original: Any) -> Any:
    del original
    return lambda self, group_key: True


def _pods_pass_before_they_are_shown(original: Any) -> Any:
    del original

    def judge(self: Any, attempt: Any) -> None:
        if self._is_complete(attempt.group, self.size_of(attempt.group)):
            arrivals = tuple(attempt.arrivals.values())
            attempt.sent_uids.update(attempt.arrivals)
            attempt.arrivals.clear()
            self._add(Verdict(attempt.group.key, arrivals))

    return judge


def _charges_stay(original: Any) -> Any:
    del original
    return lambda self, refusal, reason: BindResult(refusal, reason)


def _time_is_never_over(original: Any) -> Any:
    return lambda self, now: original(self, -math.inf)


def _stops_without_an_answer(original: Any) -> Any:
    del original
    return lambda self: None


def _binds_whether_it_leads_or_not(original: Any) -> Any:
    def init(
        self: Any, api: Any, resources: Any, leads_until: Any, *more: Any, **kwargs: Any
    ) -> None:
        original(self, api, resources, lambda: math.inf, *more, **kwargs)

    return init


def _lists_end_nothing(original: Any) -> Any:
    del original
    return lambda self, uids: None


def _a_refusal_stands_whatever_changes(original: Any) -> Any:
    refusals: dict[str, bool] = {}

    def fits(self: Any, pod: Any, *more: Any) -> bool:
        key = f"{id(self)} {pod.group.key}"
        if key not in refusals:
            if original(self, pod, *more):
                return True
            refusals[key] = True
        return False

    return fits


def _members_are_charged_behind_the_gate(original: Any) -> Any:
    def send(self: Any, now: float, leads_until: float) -> Any:
        if self.resources.gate.holds_back(self.group) and not self.is_at_gate:
            self.is_at_gate = True
            return WaitAtGate(self.group)
        return original(self, now, leads_until)

    return send


def _needs_no_charge(original: Any) -> Any:
    return lambda self: self.resource_request is not None or original(self)


def _sends_what_was_never_charged(original: Any) -> Any:
    del original

    def let_through(self: Any, now: float) -> Any:
        group, self.group = self.group, type(self.group)()
        try:
            return self._send(now, math.inf)
        finally:
            self.group = group

    return let_through


@pytest.mark.parametrize(
    "changes",
    [
        [(Gate, "holds_back", _nobody_waits)],
        [(Gate, "_is_complete", _one_less_is_enough)],
        [(Gate, "gone", _deleted_pods_count)],
        [(GroupMembers, "may_have_ended", _groups_are_there_already)],
        [(Gate, "_judge", _pods_pass_before_they_are_shown)],
        [(BindTransaction, "turned_back", _charges_stay)],
        [(Gate, "take", _time_is_never_over)],
        [(Gate, "stop", _stops_without_an_answer)],
        [(Binder, "__init__", _binds_whether_it_leads_or_not)],
        [(Gate, "listed", _lists_end_nothing)],
        [(GroupRoom, "fits", _a_refusal_stands_whatever_changes)],
        [
            (BindTransaction, "_send", _members_are_charged_behind_the_gate),
            (BindTransaction, "has_place", _needs_no_charge),
            (BindTransaction, "let_through", _sends_what_was_never_charged),
        ],
    ],
    ids=lambda changes: changes[0][2].__name__,
)
def test_each_mutant_is_found(
    changes: list[tuple[Any, str, Callable[[Any], Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for owner, name, mutate in changes:
        monkeypatch.setattr(owner, name, mutate(getattr(owner, name)))
    with pytest.raises(Violation):
        all(tell(seed) for seed in range(MUTANT_SEEDS))
