"""The scheduling queue: the next pod, the events that wake a pod, the length of back-off."""

from typing import Any

import pytest

from gpushare_localcluster.scheduler.cluster_events import (
    FORCE_ACTIVATE,
    Action,
    Change,
    Resource,
)
from gpushare_localcluster.scheduler.objects import PodView, read_pod
from gpushare_localcluster.scheduler.plugins.registry import SchedulingGates
from gpushare_localcluster.scheduler.queue import QueuedPod, SchedulingQueue, backoff

FIT = frozenset({"NodeResourcesFit"})
EXTENDER = frozenset({"Extender"})


POD_GONE = Change(Resource.ASSIGNED_POD, Action.DELETE)
NODE_GONE = Change(Resource.NODE, Action.DELETE)
NODE_CHANGED = Change(Resource.NODE, Action.UPDATE_NODE_LABEL)


def is_worth_requeuing(_pod: PodView, plugins: frozenset[str], change: Change) -> bool:
    """A pod rejected by NodeResourcesFit waits for the end of a pod, or its own change."""
    return plugins != FIT or change in (POD_GONE, FORCE_ACTIVATE) or change.new_pod is not None


def pod(name: str, *, priority: int = 0, **spec: Any) -> PodView:
    return read_pod(
        {"metadata": {"name": name, "uid": name}, "spec": {"priority": priority, **spec}}
    )


@pytest.fixture
def queue() -> SchedulingQueue:
    return SchedulingQueue(is_worth_requeuing, pre_enqueue=SchedulingGates().pre_enqueue)


def popped(queue: SchedulingQueue, now: float) -> QueuedPod:
    entry = queue.pop(now)
    assert entry is not None
    return entry


def test_higher_priority_goes_first_then_the_longest_waiting(queue: SchedulingQueue) -> None:
    for moment, (name, priority) in enumerate([("a", 0), ("b", 5), ("c", 5), ("d", 0)]):
        queue.add(pod(name, priority=priority), float(moment))
    assert [popped(queue, 9.0).uid for _ in range(4)] == ["b", "c", "a", "d"]
    assert queue.pop(9.0) is None


def test_a_pod_comes_out_once(queue: SchedulingQueue) -> None:
    queue.add(pod("a"), 0.0)
    queue.add(pod("a"), 1.0)
    popped(queue, 2.0)
    queue.add(pod("a"), 3.0)
    assert queue.pop(4.0) is None


def test_a_gated_pod_stays_out_until_its_gate_opens(queue: SchedulingQueue) -> None:
    queue.add(pod("a", schedulingGates=[{"name": "wait"}]), 0.0)
    assert queue.pop(1.0) is None
    queue.update(pod("a"), 2.0)
    assert popped(queue, 2.0).uid == "a"


@pytest.mark.parametrize(
    ("tries", "seconds"), [(0, 0), (1, 1), (2, 2), (3, 4), (4, 8), (5, 10), (500, 10)]
)
def test_backoff_doubles_up_to_ten_seconds(tries: int, seconds: int) -> None:
    assert backoff(tries) == seconds


def test_a_rejected_pod_waits_for_an_event_it_cares_for(queue: SchedulingQueue) -> None:
    queue.add(pod("a"), 0.0)
    queue.reject(popped(queue, 0.0), FIT, 0.0)
    queue.move(NODE_GONE, 50.0)
    assert queue.pop(50.0) is None
    queue.move(POD_GONE, 51.0)
    assert popped(queue, 51.0).uid == "a"


def test_an_event_does_not_shorten_the_backoff(queue: SchedulingQueue) -> None:
    queue.add(pod("a"), 0.0)
    queue.reject(popped(queue, 0.0), FIT, 0.0)
    queue.move(POD_GONE, 0.2)
    assert queue.places() == {"a": "backoff"}
    assert queue.next_change() == 1.0
    assert queue.pop(0.9) is None
    assert popped(queue, 1.0).uid == "a"


def test_an_event_during_the_decision_is_not_lost(queue: SchedulingQueue) -> None:
    queue.add(pod("a"), 0.0)
    entry = popped(queue, 0.0)
    queue.move(POD_GONE, 0.1)
    queue.reject(entry, FIT, 0.2)
    assert queue.places() == {"a": "backoff"}


def test_an_event_during_the_decision_that_cannot_help_is_dropped(
    queue: SchedulingQueue,
) -> None:
    queue.add(pod("a"), 0.0)
    entry = popped(queue, 0.0)
    queue.move(NODE_GONE, 0.1)
    queue.reject(entry, FIT, 0.2)
    assert queue.places() == {"a": "unschedulable"}


def test_a_failed_pod_comes_back_by_time_alone(queue: SchedulingQueue) -> None:
    queue.add(pod("a"), 0.0)
    queue.fail(popped(queue, 0.0), 0.0)
    assert queue.pop(0.5) is None
    queue.fail(popped(queue, 1.0), 1.0)
    assert queue.next_change() == 3.0


def test_errors_and_rejections_are_counted_apart(queue: SchedulingQueue) -> None:
    queue.add(pod("a"), 0.0)
    queue.fail(popped(queue, 0.0), 0.0)
    queue.fail(popped(queue, 1.0), 1.0)
    queue.reject(popped(queue, 3.0), FIT, 3.0)
    queue.move(POD_GONE, 3.0)
    assert queue.next_change() == 4.0


def test_after_five_minutes_a_pod_is_tried_again_whatever_happened(
    queue: SchedulingQueue,
) -> None:
    queue.add(pod("a"), 0.0)
    queue.reject(popped(queue, 0.0), FIT, 0.0)
    assert queue.pop(300.0) is None
    assert popped(queue, 300.1).uid == "a"


def test_a_slower_rejecter_is_asked_once_more_and_not_for_ever(queue: SchedulingQueue) -> None:
    queue.add(pod("a"), 0.0)
    queue.reject(popped(queue, 0.0), EXTENDER, 0.0, look_again=True)
    assert queue.places() == {"a": "backoff"}
    queue.reject(popped(queue, 1.0), EXTENDER, 1.0, look_again=True)
    assert queue.places() == {"a": "unschedulable"}
    queue.move(NODE_CHANGED, 20.0)
    queue.reject(popped(queue, 20.0), EXTENDER, 20.0, look_again=True)
    assert queue.places() == {"a": "backoff"}


def test_a_removed_pod_does_not_come_back(queue: SchedulingQueue) -> None:
    for name in ("a", "b", "c"):
        queue.add(pod(name), 0.0)
    entry = popped(queue, 0.0)
    queue.remove("a")
    queue.remove("b")
    queue.reject(entry, FIT, 0.0)
    queue.fail(entry, 0.0)
    assert queue.places() == {"c": "active"}
    queue.done(popped(queue, 0.0).uid)
    assert queue.places() == {}


def test_a_change_of_status_alone_does_not_wake_a_pod(queue: SchedulingQueue) -> None:
    first = pod("a")
    queue.add(first, 0.0)
    queue.reject(popped(queue, 0.0), FIT, 0.0)
    queue.update(read_pod({**first.raw, "status": {"phase": "Pending"}}), 5.0)
    assert queue.places() == {"a": "unschedulable"}
    labelled = {**first.raw, "metadata": {**first.raw["metadata"], "labels": {"x": "y"}}}
    queue.update(read_pod(labelled), 5.0)
    assert queue.places() == {"a": "active"}
