"""kube-scheduler is woken for room that no object tells it of, and only where a pod waits."""

from typing import Any

import pytest

from gpushare.core.model import NodeSpec, ObservedPod, PodRef, Request
from gpushare.core.selectors import Demands
from gpushare.errors import ApiError, ApiUnavailable
from gpushare.extender.follow.wake import AFTER_START, EVERY, KEY, SchedulerWaker
from gpushare.extender.follow.watch_handlers import UnhealthyEventHandler
from gpushare.wire.codec import WatchEvent
from gpushare.wire.objects import ConfigMap, Metadata
from tests.support.scripted_api import ScriptedApi
from tests.unit.core.clusters import node, state_of
from tests.unit.extender.kit import make_library

NODE = node("gpu-1", 16, 16)
ABOVE = node("gpu-2", 16)


class World:
    """A waker, its books, and an API server that notes what is written."""

    def __init__(self, *nodes: NodeSpec) -> None:
        self.api = ScriptedApi()
        self.library = make_library()
        (self.managed,) = self.library
        self.annotates = True
        self.waker = SchedulerWaker(
            self.api, self.library, lambda: self.annotates, self.api.clock, lambda: 1_700_000_000.9
        )
        for spec in nodes or (NODE,):
            self.managed.ledger.node_changed(spec)
            self.library.node_states.put(state_of(spec))

    def waits(self, units: int, **more: Any) -> None:
        ref = PodRef("team", f"p{units}", f"uid-{units}")
        made = ObservedPod(ref, Request(units, 1))._replace(**more)
        self.managed.ledger.pod_changed(made)

    def later(self, seconds: float = 1.0, *, ready: bool = True) -> list[str]:
        """The nodes that are written on at a tick so much later."""
        self.api.now += seconds
        before = len(self.api.calls)
        self.waker.tick(ready)
        return [call.path.rpartition("/")[2] for call in self.api.calls[before:]]


def started(*nodes: NodeSpec) -> World:
    """A world whose process has answered for long."""
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
    world.library.node_states.put(state_of(NODE, cordoned=True))
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
    ("error", "again"), [(ApiError("forbidden", 403), 600.0), (ApiUnavailable("down", 0), EVERY)]
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
    handler = UnhealthyEventHandler(world.library, world.waker.room_on)
    closing = ConfigMap(Metadata(name="unhealthy-gpu-gpu-2"), {"gpus": "0"})
    handler.apply(WatchEvent("ADDED", closing))
    world.waits(8)
    assert world.later() == []
    handler.apply(WatchEvent("DELETED", closing))
    assert world.later() == ["gpu-2"]
