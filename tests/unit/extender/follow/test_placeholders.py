"""Placeholders come for pods that need a node, once each, and none is left behind.

Those of groups: test_placeholder_groups.py.
"""

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from gpushare.errors import ApiError
from gpushare.explain.pod import NodeAsk
from gpushare.extender.follow.placeholders import AFTER_JOIN, MOST, PATIENCE, WAITING
from gpushare.wire.codec import WatchEvent
from gpushare.wire.placeholders import FOR
from tests.unit.extender.follow.placeholders_world import CUT, OURS, REFUSED, World, why_not
from tests.unit.extender.kit import NO_RIGHT, pod_json, read_pod, refusal


def asked() -> World:
    """One pod that fits by the sum alone has its placeholder."""
    world = World()
    world.waits("web", 8)
    assert world.later()
    assert world.asking == ["uid-web"]
    return world


def test_a_pod_that_waits_long_enough_has_one_placeholder() -> None:
    world = World()
    world.waits("web", 8)
    world.now = 10_000.0 + AFTER_JOIN
    world.later(0.0)
    assert world.asking == ["uid-web"]
    world.calls.clear()
    assert world.later()
    assert world.calls == []


def test_one_that_has_just_come_waits() -> None:
    world = World()
    world.waits("web", 8)
    world.pods["team/web"]["metadata"]["creationTimestamp"] = "2027-01-15T10:49:35Z"
    world.shown()
    world.later(20.0)
    assert world.asking == []
    world.later(10.0)
    assert world.asking == ["uid-web"]


@pytest.mark.parametrize(
    "change",
    [
        {"nominatedNodeName": "a"},
        {"conditions": []},
        {"conditions": [{**REFUSED, "reason": "SchedulerError"}]},
    ],
)
def test_who_is_not_found_unschedulable_has_none(change: dict[str, Any]) -> None:
    world = World()
    world.waits("web", 8, **change)
    assert world.later()
    assert world.asking == []


def test_it_ends_when_its_pod_is_bound_gone_or_has_room() -> None:
    asked_result = asked()
    asked_result.node("b")
    asked_result.runs("web", 8, "b", 0)
    asked_result.later(0.0)
    assert asked_result.asking == []
    deleted = asked()
    deleted.gone("team/web")
    deleted.later(0.0)
    assert deleted.asking == []
    fits = asked()
    fits.gone("team/ten-0")
    fits.later(0.0)
    assert fits.asking == []


def test_a_node_that_came_has_time_to_start() -> None:
    world = asked()
    world.node("b")
    world.runs("most", 9, "b", 0)
    world.runs("more", 9, "b", 1)
    world.waits("late", 8)
    world.later(0.0)
    world.later(0.0)
    # The placeholder did not leave out b, where sums would let it in: so it was made again, no new
    # one.
    assert world.asking == ["uid-web"]
    assert next(iter(world.known.all().values())).nodes == {"a", "b"}
    world.later(AFTER_JOIN - 1)
    assert world.asking == ["uid-web"]
    world.later(1.0)
    assert world.asking == ["uid-late", "uid-web"]


def test_a_process_that_begins_to_lead_does_not_know_when_nodes_came() -> None:
    world = World()
    world.waits("web", 8)
    world.start("asks")
    world.later()
    assert world.asking == []
    world.later(AFTER_JOIN)
    assert world.asking == ["uid-web"]


def test_there_are_never_more_than_ten() -> None:
    world = World()
    for number in range(MOST + 3):
        world.waits(f"web-{number:02}", 7)
    world.later()
    assert len(world.asking) == MOST
    world.later()
    assert len(world.asking) == MOST


@pytest.mark.parametrize("landed", [True, False])
def test_a_create_without_an_answer_makes_no_second_one(landed: bool) -> None:
    world = World()
    world.waits("web", 8)
    world.faults = [("POST", landed, CUT)]
    world.now += WAITING
    assert not world.under_test.round()
    assert world.asking == (["uid-web untold"] if landed else [])
    world.under_test.round()  # the watch is behind
    world.shown()
    assert world.later(0.0)
    assert world.asking == ["uid-web"]


def test_who_dies_between_create_and_status_leaves_it_to_the_next() -> None:
    world = World()
    world.waits("web", 8)
    world.faults = [("PATCH", False, CUT)]
    assert not world.later()
    assert world.asking == ["uid-web untold"]
    world.start("asks")
    assert world.later(0.0)
    assert world.asking == ["uid-web"]


def test_who_dies_after_its_pod_was_bound_leaves_it_to_the_next() -> None:
    world = asked()
    world.gone("team/web")
    world.start("asks")
    world.later(0.0)
    assert world.asking == []


@pytest.mark.parametrize("landed", [True, False])
def test_a_delete_without_an_answer_is_repeated(landed: bool) -> None:
    world = asked()
    world.gone("team/web")
    world.faults = [("DELETE", landed, CUT)]
    assert not world.under_test.round()
    assert world.under_test.round()
    assert world.asking == []


def test_switched_off_it_takes_away_all_that_are_left() -> None:
    world = asked()
    world.start("")
    world.calls.clear()
    assert world.later(0.0)
    assert world.asking == []
    assert world.calls == [("DELETE", f"{OURS}/for-uid-web")]
    world.calls.clear()
    world.later()
    assert world.calls == []


def test_only_the_leader_acts() -> None:
    world = World()
    world.waits("web", 8)
    world.why_not = "another process leads"
    world.calls.clear()
    assert not world.later()
    assert world.calls == []


def test_who_loses_the_lead_in_a_round_stops_in_it() -> None:
    world = World()
    world.waits("web-0", 8)
    world.waits("web-1", 8)
    answered = world.request

    def losing(method: str, *args: Any, **more: Any) -> bytes:
        if method == "POST":
            world.why_not = "another process leads"
        return answered(method, *args, **more)

    world.request = losing  # type: ignore[method-assign]
    world.later()
    assert world.asking == ["uid-web-0 untold"]
    world.request = answered  # type: ignore[method-assign]
    world.why_not = ""
    world.start("asks")
    world.later(AFTER_JOIN)
    world.later(AFTER_JOIN)
    assert world.asking == ["uid-web-0", "uid-web-1"]


def test_without_the_right_it_rests() -> None:
    world = World()
    world.waits("web", 8)
    world.waits("ml", 8)
    world.faults = [("POST", False, NO_RIGHT)]
    assert not world.later()
    assert len([method for method, _ in world.calls if method == "POST"]) == 1
    world.calls.clear()
    assert world.later(599.0)
    assert world.calls == []
    world.later(2.0)
    assert world.asking == ["uid-ml", "uid-web"]


def test_a_quota_that_refuses_one_leaves_the_others_alone() -> None:
    world = World()
    world.waits("big", 12)
    world.waits("web", 8)
    quota = "exceeded quota: gpus, requested: requests.aliyun.com/gpu-mem=12, used: ..., limited: 9"
    refusal_result = refusal(f'pods "for-uid-big" is forbidden: {quota}')
    world.faults = [("POST", False, refusal_result)]
    assert not world.later()
    assert world.asking == ["uid-web"]
    assert world.later(0.0)
    assert why_not(world, "big") == f"it was refused: {refusal_result}"
    world.faults = [("POST", False, refusal_result)]
    world.later(10.0)
    assert world.faults == []
    world.later(19.0)
    assert world.asking == ["uid-web"]
    world.later(1.0)
    assert world.asking == ["uid-big", "uid-web"]


def test_a_status_or_an_end_that_is_refused_rests_alone() -> None:
    world = World()
    world.waits("web", 8)
    refusal_result = refusal('admission webhook "policy.example.com" denied the request: not now')
    world.faults = [("PATCH", False, refusal_result)]
    assert not world.later()
    world.calls.clear()
    world.waits("ml", 8)
    assert world.later(9.0)
    assert world.asking == ["uid-ml", "uid-web untold"]
    world.later(1.0)
    assert world.asking == ["uid-ml", "uid-web"]
    world.gone("team/web")
    world.faults = [("DELETE", False, refusal_result)]
    assert not world.later()
    assert world.later(9.0)
    assert world.asking == ["uid-ml", "uid-web"]
    world.later(1.0)
    assert world.asking == ["uid-ml"]


def numbers(world: World) -> list[float]:
    return [world.under_test.counts()["asks"], *world.under_test.state().values()]


def test_metrics_count_what_is_there_and_what_was_done() -> None:
    world = World()
    world.waits("web", 8)
    api_error = ApiError("refused", 500)
    counts = []
    for method in ("POST", "PATCH", ""):
        world.faults = [(method, False, api_error)]
        world.later()
        counts.append(numbers(world))
    world.gone("team/web")
    for method in ("DELETE", ""):
        world.faults = [(method, False, api_error)]
        world.later()
        counts.append(numbers(world))
    assert [*world.under_test.state()] == [
        "placeholders_created_total",
        "placeholders_deleted_total",
        "placeholders_failed_writes_total",
    ]
    assert counts == [[0, 0, 0, 1], [1, 1, 0, 2], [1, 1, 0, 2], [1, 1, 0, 3], [0, 1, 1, 3]]


def test_metrics_tell_nothing_while_it_is_off() -> None:
    world = asked()
    world.start("")
    assert world.under_test.state() == {}
    assert world.under_test.counts() == {}


def test_pods_of_others_are_left_alone() -> None:
    world = asked()
    theirs = json.loads(json.dumps(world.pods["asks/for-uid-web"]))
    theirs["metadata"] |= {"namespace": "team", "name": "hers", "uid": "hers"}
    world.put(theirs)
    plain = pod_json("plain", 0)
    plain["metadata"] |= {"namespace": "asks", "labels": {FOR: "x"}}
    plain["spec"]["schedulerName"] = "default-scheduler"
    world.handler.apply(WatchEvent("ADDED", object=read_pod(plain)))
    world.gone("team/web")
    world.calls.clear()
    world.later(0.0)
    assert world.calls == [("DELETE", f"{OURS}/for-uid-web")]


def test_a_placeholder_asks_nothing_of_the_books() -> None:
    world = asked()
    (resources,) = world.resources
    assert [pod.ref.name for pod in resources.ledger.waiting()] == ["web"]
    resources.ledger.check()


def test_it_says_when_a_node_was_asked_for_and_tells_the_pod_once() -> None:
    world = World()
    world.waits("web", 8)
    world.faults = [("PATCH", False, CUT)]
    world.later()
    # No autoscaler counts it yet.
    assert world.under_test.ask_for("uid-web") is None
    world.later()
    ask = world.under_test.ask_for("uid-web")
    assert ask == NodeAsk(datetime(2027, 1, 15, 12, 3, tzinfo=UTC).timestamp())
    assert [name for name, entry in world.told if entry.asked_at] == ["web"]
    world.start("")
    assert world.under_test.ask_for("uid-web") is None


def test_one_with_a_gate_asks_nobody() -> None:
    world = asked()
    (created,) = [pod for pod in world.pods.values() if pod["metadata"]["namespace"] == "asks"]
    created["spec"]["schedulingGates"] = [{"name": "kueue.x-k8s.io/admission"}]
    world.shown()
    name = created["metadata"]["name"]
    assert f"its placeholder asks/{name} has a scheduling gate" in why_not(world, "web")


def test_it_says_why_none_was_asked_for() -> None:
    world = World()
    world.waits("early", 8)
    world.start("asks")
    world.round()
    assert "may yet help" in why_not(world, "early")
    world.now += AFTER_JOIN
    world.waits("odd", 8, conditions=[])
    world.waits("never", 17)
    world.waits("young", 8)
    world.pods["team/young"]["metadata"]["creationTimestamp"] = "2027-01-15T10:52:55Z"
    world.shown()
    world.round()
    assert world.asking == ["uid-early"]
    assert "less than 30 s" in why_not(world, "young")
    assert "not found it unschedulable" in why_not(world, "odd")
    assert "by sum" in why_not(world, "never")
    assert world.under_test.ask_for("uid-ten-0") is None


def test_it_says_that_the_cap_is_reached_and_that_a_group_needs_more() -> None:
    world = World()
    for number in range(MOST - 2):
        world.waits(f"web-{number}", 7)
    world.later()
    for number in range(3):
        world.waits(f"gang-{number}", 7, group="g")
    world.later()
    assert "its group needs more" in why_not(world, "gang-0")
    for number in range(3):
        world.waits(f"more-{number}", 7)
    world.later()
    assert why_not(world, "more-2") == f"there are {MOST} placeholders already"


def test_a_refusal_is_told_once_for_each_reason() -> None:
    world = World()
    world.waits("web", 8)
    for _ in range(2):
        world.faults = [("POST", False, ApiError("exceeded quota: gpus", 500))]
        world.later()
    assert world.told == [("web", NodeAsk(why_not="it was refused: exceeded quota: gpus"))]
    assert why_not(world, "web") == "it was refused: exceeded quota: gpus"
    world.later()
    assert world.asking == ["uid-web"]


class Dying:
    """A world whose process dies at its write of this number; the write lands or not.

    Another one goes on, which has the option or not.
    """

    class Dies(BaseException):
        """It is gone in the middle of its round."""

    def __init__(self, crash: int, *, landed: bool, next_namespace: str = "asks") -> None:
        self.world = World()
        self.writes = 0
        self._crash = crash
        self._landed = landed
        self._next = next_namespace
        self._answered = self.world.request
        self.world.request = self._request  # type: ignore[method-assign]

    def _request(self, method: str, *args: Any, **more: Any) -> bytes:
        self.writes += method != "GET"
        dies = method != "GET" and self.writes == self._crash
        answer = b"" if dies and not self._landed else self._answered(method, *args, **more)
        asked_uids = [uid.removesuffix(" untold") for uid in self.world.asking]
        assert len(asked_uids) == len({*asked_uids})
        if dies:
            raise self.Dies
        return answer

    def rounds(self) -> list[str]:
        """The pods with placeholders after some rounds."""
        for _ in range(4):
            try:
                self.world.later(AFTER_JOIN)
            except self.Dies:
                self.world.start(self._next)
        return self.world.asking


@pytest.mark.parametrize("landed", [True, False])
@pytest.mark.parametrize("crash", range(1, 7))
def test_wherever_its_process_dies_another_goes_on(crash: int, landed: bool) -> None:
    """The story has a create and a status, then a delete, for each of two pods."""
    story = Dying(crash, landed=landed)
    story.world.waits("web-0", 8)
    story.world.waits("web-1", 8)
    assert story.rounds() == ["uid-web-0", "uid-web-1"]
    story.world.node("b")
    for device in (0, 1):
        story.world.runs(f"web-{device}", 8, "b", device)
    assert story.rounds() == []
    assert story.writes >= crash


@pytest.mark.parametrize("landed", [True, False])
@pytest.mark.parametrize("crash", range(1, 7))
def test_wherever_its_process_dies_one_without_the_option_leaves_nothing(
    crash: int, landed: bool
) -> None:
    """The process dies at a create or a status, or the next at a delete, and a third goes on."""
    story = Dying(crash, landed=landed, next_namespace="")
    story.world.waits("web-0", 8)
    story.world.waits("web-1", 8)
    if crash > 4:
        assert story.rounds() == ["uid-web-0", "uid-web-1"]
        story.world.start("")
    assert story.rounds() == []
    assert story.writes >= crash


@pytest.mark.parametrize("landed", [True, False])
@pytest.mark.parametrize("crash", range(1, 7))
def test_wherever_its_process_dies_a_group_has_all(crash: int, landed: bool) -> None:
    story = Dying(crash, landed=landed)
    for number in range(3):
        story.world.waits(f"gang-{number}", 8, group="g")
    assert story.rounds() == [f"uid-gang-{number}" for number in range(3)]
    assert story.writes >= crash


def test_a_namespace_that_takes_all_places_gives_some_to_others() -> None:
    world = World()
    for number in range(2 * MOST + 1):
        world.waits(f"web-{number:02}", 7, namespace="greedy")
    world.later()
    assert len(world.asking) == MOST
    world.waits("late", 8, namespace="modest")
    assert not world.later()
    assert world.later(0.0)
    assert "uid-late" in world.asking
    assert len(world.asking) == MOST
    world.calls.clear()
    assert world.later()
    assert {method for method, _ in world.calls} <= {"GET"}


def test_a_pod_for_which_no_node_comes_gives_its_turn_to_others() -> None:
    world = World()
    for number in range(MOST + 1):
        world.waits(f"web-{number:02}", 7)
    world.later()
    last = f"uid-web-{MOST:02}"
    world.later(PATIENCE - 1)
    assert last not in world.asking
    world.later(1.0)
    world.later(0.0)
    assert last in world.asking
    assert len(world.asking) == MOST
    # It has its time too; the others do not take its place meanwhile.
    world.later(PATIENCE - 1)
    assert last in world.asking


def test_a_group_comes_when_its_namespace_has_had_as_many_turns() -> None:
    world = World()
    for number in range(MOST):
        world.waits(f"gang-{number}", 7, group="g", namespace="greedy")
    world.waits("late", 8, namespace="modest")
    world.later()
    assert world.asking == ["uid-late"]
    assert not world.later(PATIENCE)
    assert world.later(0.0)
    assert len(world.asking) == MOST
    assert "uid-late" not in world.asking
