"""kube-scheduler is woken for room that no object tells of, and only where a pod waits."""

import json
from functools import partial
from typing import Any

import pytest

from gpushare.core.model import Allocation, NodeSpec, ObservedPod, PodRef, Request
from gpushare.core.selectors import Demands
from gpushare.errors import ApiError, ApiUnavailable
from gpushare.extender.follow.wake import AFTER_START, EVERY, KEY, SchedulerWaker
from gpushare.extender.follow.watch_handlers import UnhealthyEventHandler
from gpushare.extender.verbs.filter import FilterOptions, FilterVerb
from gpushare.extender.verbs.offers import Offers
from gpushare.extender.verbs.tickets import BindSlots, Tickets
from gpushare.wire.codec import WatchEvent
from gpushare.wire.extender import NameLists
from gpushare.wire.objects import ConfigMap, Metadata
from gpushare.wire.pods import claimant
from tests.support.scripted_api import ScriptedApi
from tests.unit.core.clusters import node, state_of
from tests.unit.extender.kit import NO_RIGHT, managed_resources, pod_json, read_pod
from tests.unit.extender.scripted_extender import request

NODE = node("gpu-1", 16, 16)
ABOVE = node("gpu-2", 16)


class World:
    """A waker, its books, and an API server that notes the writes."""

    def __init__(self, *nodes: NodeSpec) -> None:
        self.api = ScriptedApi()
        self.resources = managed_resources()
        (self.managed,) = self.resources
        self.annotates = True
        self.waker = SchedulerWaker(
            self.api,
            self.resources,
            lambda: self.annotates,
            self.api.clock,
            lambda: 1_700_000_000.9,
        )
        for spec in nodes or (NODE,):
            self.managed.ledger.node_changed(spec)
            self.resources.node_states.put(state_of(spec))

    def waits(self, units: int, **more: Any) -> None:
        ref = PodRef("team", f"p{units}", f"uid-{units}")
        created = ObservedPod(ref, Request(units, 1))._replace(**more)
        self.managed.ledger.pod_changed(created)

    def asks(self, name: str, units: int, **more: Any) -> list[str]:
        """The nodes that filter offers to a pod of one container."""
        pod = pod_json(name, units, uid=f"uid-{units}")
        pod["metadata"]["labels"] = more.pop("labels", {})
        pod["spec"] |= more
        verb = FilterVerb(
            self.resources,
            Tickets(),
            FilterOptions(best_only=True),
            not_ready=str,
            bind_slots=BindSlots(8),
            lists=NameLists(),
            clock=self.api.clock,
        )
        names = list(self.managed.ledger.snapshot().row)
        return list(json.loads(verb.answer(request(pod, names)).body)["NodeNames"] or ())

    def later(self, seconds: float = 1.0, *, ready: bool = True) -> list[str]:
        """The nodes that are written on at a tick so much later."""
        self.api.now += seconds
        before = len(self.api.calls)
        self.waker.tick(ready)
        return [call.path.rpartition("/")[2] for call in self.api.calls[before:]]


def started(*nodes: NodeSpec) -> World:
    """A world with a process that has answered for long."""
    world = World(*nodes)
    world.later()
    assert world.later(AFTER_START) == []
    return world


def test_a_node_with_room_for_a_pod_that_waits_is_written_on_once() -> None:
    world = started()
    world.waits(8, gated=True)
    assert world.later() == []
    world.waker.room_on("gpu-1")
    assert world.later() == ["gpu-1"]
    (call,) = world.api.calls
    assert (call.method, call.content_type) == ("PATCH", "application/merge-patch+json")
    assert call.document == {"metadata": {"annotations": {KEY: "1700000000"}}}
    assert world.later(60) == []
    assert world.waker.state() == {"scheduler_wakes_total": 1}


def test_before_1_30_it_is_a_label() -> None:
    world = started()
    world.annotates = False
    world.waits(8)
    world.waker.room_on("gpu-1")
    world.later()
    assert world.api.calls[0].document == {"metadata": {"labels": {KEY: "1700000000"}}}


@pytest.mark.parametrize(
    "pod",
    [{"units": 17}, {"units": 8, "demands": Demands(gated=True)}, {"units": 8, "served": False}],
)
def test_no_pod_that_could_use_it_is_no_reason(pod: dict[str, Any]) -> None:
    world = started()
    world.waits(**pod)
    world.waker.room_on("gpu-1")
    assert world.later() == []


def test_a_node_that_kube_scheduler_leaves_out_is_no_reason() -> None:
    world = started()
    world.waits(8)
    world.resources.node_states.put(state_of(NODE, cordoned=True))
    world.waker.room_on("gpu-1")
    world.waker.room_on("gone")
    assert world.later() == []


def test_a_node_is_written_on_once_in_a_while_and_one_after_the_other() -> None:
    world = started(NODE, ABOVE)
    world.waits(8)
    for name in ("gpu-1", "gpu-2"):
        world.waker.room_on(name)
    assert (world.later(), world.later()) == (["gpu-1"], ["gpu-2"])
    world.waker.room_on("gpu-1")
    assert world.later() == []
    assert world.later(EVERY) == ["gpu-1"]


def test_a_process_that_has_begun_to_answer_looks_once() -> None:
    world = World()
    world.waits(8)
    assert world.later(ready=False) == []
    assert world.later() == []
    assert world.later(AFTER_START) == ["gpu-1"]
    assert world.later(AFTER_START) == []
    assert world.later(ready=False) == []
    assert world.later() == []
    assert world.later(AFTER_START) == ["gpu-1"]


@pytest.mark.parametrize(
    ("error", "again"), [(NO_RIGHT, 600.0), (ApiUnavailable("down", 0), EVERY)]
)
def test_a_write_that_is_refused_is_not_repeated_at_once(error: ApiError, again: float) -> None:
    world = started(NODE, ABOVE)
    world.waits(8)
    world.api.forever = error
    world.waker.room_on("gpu-1")
    assert world.later() == ["gpu-1"]
    world.waker.room_on("gpu-2")
    assert world.later() == []
    world.later(again)
    world.waker.room_on("gpu-2")
    assert world.later() == ["gpu-2"]
    assert world.waker.state() == {"scheduler_wakes_total": 0}


def test_a_config_map_that_goes_wakes_the_scheduler() -> None:
    world = started(ABOVE)
    handler = UnhealthyEventHandler(world.resources, world.waker.room_on)
    closing = ConfigMap(Metadata(name="unhealthy-gpu-gpu-2"), {"gpus": "0"})
    handler.apply(WatchEvent("ADDED", closing))
    world.waits(8)
    assert world.later() == []
    handler.apply(WatchEvent("DELETED", closing))
    assert world.later() == ["gpu-2"]


def test_a_pod_that_was_refused_for_a_hold_is_woken_once_when_the_hold_lapses() -> None:
    world = started(ABOVE)
    world.waits(12)
    assert world.asks("first", 10) == ["gpu-2"]
    assert world.asks("second", 12) == []
    assert world.later() == []
    assert world.later(4.0) == ["gpu-2"]
    assert [world.later(EVERY) for _ in range(3)] == [[], [], []]


def test_a_hold_that_kept_nobody_away_wakes_nobody() -> None:
    world = started(NODE, ABOVE)
    world.waits(12)
    assert world.asks("first", 10) == ["gpu-1"]
    assert world.asks("second", 12) != []
    assert [world.later(10.0) for _ in range(3)] == [[], [], []]


def test_a_pod_that_was_asked_about_again_is_not_woken() -> None:
    world = started(ABOVE)
    world.waits(12)
    world.asks("first", 10)
    world.asks("second", 12)
    world.api.now += 5.0
    assert world.asks("second", 12) == ["gpu-2"]
    assert [world.later() for _ in range(8)] == [[]] * 8


@pytest.mark.parametrize("end", ["gone", "bind"])
def test_a_pod_that_waits_no_longer_is_not_woken(end: str) -> None:
    world = started(ABOVE)
    world.asks("first", 10)
    world.waits(12)
    world.asks("second", 12)
    if end == "gone":
        world.managed.ledger.pod_gone("uid-12")
        world.managed.holds.gone("uid-12")
    else:
        world.managed.holds.end_after_bind("uid-10")
        first = PodRef("team", "first", "uid-10")
        world.managed.ledger.assume(first, Request(10, 1), Allocation("gpu-2", ((0, 10),)), 0.0)
    assert [world.later() for _ in range(8)] == [[]] * 8


def test_a_hold_that_ends_by_a_refused_bind_or_a_deletion_wakes_too() -> None:
    world = started(ABOVE)
    holds = world.managed.holds
    for units, end in ((12, partial(holds.end_after_bind, is_refused=True)), (13, holds.gone)):
        world.waits(units)
        world.asks("first", 10)
        assert world.asks("second", units) == []
        end("uid-10")
        assert world.later(EVERY) == ["gpu-2"]


def test_one_hold_of_two_that_ends_is_no_room() -> None:
    world = started(ABOVE)
    world.waits(12)
    world.waits(3)
    assert world.asks("first", 6) == world.asks("other", 5) == ["gpu-2"]
    assert world.asks("second", 12) == []
    world.managed.holds.gone("uid-6")
    assert world.later() == []
    assert world.later(5.0) == ["gpu-2"]


def test_of_many_nodes_one_is_written_on_for_a_pod() -> None:
    world = started(*(node(f"n{number}", 16) for number in range(5)))
    world.waits(12)
    for number in range(5):
        first = claimant(read_pod(pod_json("first", 10, uid=f"uid-{number}")), Request(10, 1))
        world.managed.holds.offered(first, f"n{number}", world.api.now + number)
    assert world.asks("second", 12) == []
    world.api.now += 4.0
    assert [len(world.later()) for _ in range(6)] == [1, 0, 0, 0, 0, 0]


def test_a_node_that_kube_scheduler_leaves_out_is_not_written_on_for_a_hold() -> None:
    world = started(ABOVE)
    world.waits(12)
    world.asks("first", 10)
    world.asks("second", 12)
    world.resources.node_states.put(state_of(ABOVE, cordoned=True))
    assert world.later(5.0) == []


def test_another_node_is_written_on_where_kube_scheduler_leaves_one_out() -> None:
    world = started(*(node(f"n{number}", 16) for number in range(3)))
    world.waits(12)
    for number in range(3):
        first = claimant(read_pod(pod_json("first", 10, uid=f"uid-{number}")), Request(10, 1))
        world.managed.holds.offered(first, f"n{number}", world.api.now)
    assert world.asks("second", 12) == []
    for number in (0, 1):
        world.resources.node_states.put(state_of(node(f"n{number}", 16), cordoned=True))
    assert world.later(5.0) == ["n2"]


def test_a_hold_that_ends_between_the_look_and_the_refusal_is_not_missed() -> None:
    world = started(ABOVE)
    world.waits(12)
    world.asks("first", 10)
    pod = claimant(read_pod(pod_json("second", 12, uid="uid-12")), Request(12, 1))
    version = world.managed.holds.version
    world.managed.holds.gone("uid-10")
    world.managed.holds.turned_away(pod, version)
    assert world.later() == ["gpu-2"]


def test_a_hold_that_ends_while_filter_looks_is_not_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    world = started(ABOVE)
    world.waits(12)
    world.asks("first", 10)
    look = Offers.look

    def slow(self: Offers, *given: Any) -> Any:
        look_result = look(self, *given)
        world.managed.holds.gone("uid-10")
        return look_result

    monkeypatch.setattr(Offers, "look", slow)
    assert world.asks("second", 12) == []
    monkeypatch.undo()
    assert world.later() == ["gpu-2"]


def test_a_group_that_was_refused_whole_is_woken_when_what_others_held_is_free() -> None:
    world = started(NODE)
    world.waits(12)
    train = {"labels": _TRAIN}
    assert world.asks("first", 10) == ["gpu-1"]
    assert world.asks("train-0", 12, **train) == []
    assert world.later(5.0) == ["gpu-1"]


def test_a_group_that_fits_nowhere_is_not_woken() -> None:
    world = started(ABOVE)
    world.waits(12)
    assert world.asks("first", 10) == ["gpu-2"]
    assert world.asks("train-0", 12, labels=_TRAIN) == []
    assert world.later(5.0) == []


_TRAIN = {
    "scheduling.x-k8s.io/pod-group": "train",
    "pod-group.scheduling.sigs.k8s.io/min-available": "2",
}
