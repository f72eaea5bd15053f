"""How long pods wait that nobody asks us about."""

import pytest
from msgspec import Raw

from gpushare.core.model import ObservedPod, PodRef, Request
from gpushare.extender.managed_resources import ManagedResources
from gpushare.extender.tell.events.overdue_pods import pending_without_call
from gpushare.wire.annotations import ALIYUN
from gpushare.wire.pods import observe_pod
from tests.unit.core.clusters import node as make_node
from tests.unit.core.clusters import state_of
from tests.unit.extender.kit import managed_resources, pod_json, read_pod

NOW = 10_000.0


def resources(*waiting: tuple[str, int, float]) -> ManagedResources:
    managed = managed_resources()
    ledger = managed.resources[0].ledger
    ledger.node_changed(make_node("a", 16))
    for name, units, created in waiting:
        request = Request(units, 1 if units else 0)
        ledger.pod_changed(ObservedPod(PodRef("team", name, name), request, created=created))
    return managed


def test_the_oldest_pod_that_fits_and_was_never_asked_about_counts() -> None:
    books = resources(
        ("new", 4, 9_900.0), ("old", 4, 9_000.0), ("huge", 99, 100.0), ("cpu", 0, 1.0)
    )
    assert pending_without_call(books, lambda _: False, 0.0, NOW) == 1000
    assert pending_without_call(books, {"old"}.__contains__, 0.0, NOW) == 100
    assert pending_without_call(books, lambda _: True, 0.0, NOW) == 0


def test_time_before_we_listened_does_not_count() -> None:
    books = resources(("old", 4, 9_000.0), ("undated", 4, 0.0))
    assert pending_without_call(books, lambda _: False, 9_990.0, NOW) == 10
    assert pending_without_call(books, lambda _: False, 10_001.0, NOW) == 0


def test_a_full_cluster_is_no_sign_of_wrong_wiring() -> None:
    books = resources(("old", 4, 9_000.0))
    full = ObservedPod(PodRef("team", "x", "x"), Request(14, 1), "a", ((0, 14),))
    books.resources[0].ledger.pod_changed(full)
    assert pending_without_call(books, lambda _: False, 0.0, NOW) == 0


def test_a_node_that_kube_scheduler_leaves_out_is_no_sign_of_wrong_wiring() -> None:
    books = resources(("old", 4, 9_000.0))
    books.node_states.put(state_of(make_node("a", 16), cordoned=True))
    assert pending_without_call(books, lambda _: False, 0.0, NOW) == 0
    books.node_states.put(state_of(make_node("a", 16)))
    assert pending_without_call(books, lambda _: False, 0.0, NOW) == 1000


@pytest.mark.parametrize("asked", [Request(4, 1, cpu=3000), Request(4, 1, memory=2**31)])
def test_a_pod_that_no_node_has_the_cpu_or_memory_for_is_no_sign_of_wrong_wiring(
    asked: Request,
) -> None:
    books = resources()
    ledger = books.resources[0].ledger
    ledger.node_changed(make_node("a", 16, cpu=4000, memory=2**32))
    ledger.pod_changed(ObservedPod(PodRef("team", "web", "web"), asked, created=9_000.0))
    assert pending_without_call(books, lambda _: False, 0.0, NOW) == 1000
    request = Request(0, 0, cpu=2000, memory=2**32)
    ledger.pod_changed(ObservedPod(PodRef("team", "x", "x"), request, "a"))
    assert pending_without_call(books, lambda _: False, 0.0, NOW) == 0


def test_a_pod_held_back_by_a_gate_is_not_waiting_for_us() -> None:
    books = resources()
    gated = read_pod(pod_json("held", 4))
    assert gated.spec is not None
    gated.spec.scheduling_gates = [Raw(b'{"name":"example.com/queue"}')]
    ledger = books.resources[0].ledger
    ledger.pod_changed(observe_pod(gated, ALIYUN))
    assert pending_without_call(books, lambda _: False, 0.0, NOW) == 0
    gated.spec.scheduling_gates = None
    ledger.pod_changed(observe_pod(gated, ALIYUN))
    assert pending_without_call(books, lambda _: False, 0.0, NOW) == NOW


@pytest.mark.parametrize(
    ("status", "reason", "seconds"),
    [("False", "Unschedulable", 0), ("False", "SchedulerError", NOW), ("True", None, NOW)],
)
def test_a_pod_that_kube_schedulers_own_plug_ins_find_no_node_for_is_no_sign_of_wrong_wiring(
    status: str, reason: str | None, seconds: float
) -> None:
    """By its node selector, say, or a taint: then no extender is called."""
    books = resources()
    pod = pod_json("picky", 4)
    result = {"type": "PodScheduled", "status": status, "reason": reason}
    pod["status"] = {"conditions": [{"type": "Ready", "status": "False"}, result]}
    books.resources[0].ledger.pod_changed(observe_pod(read_pod(pod), ALIYUN))
    assert pending_without_call(books, lambda _: False, 0.0, NOW) == seconds


def test_nobody_waits() -> None:
    assert pending_without_call(resources(), lambda _: False, 0.0, NOW) == 0


def test_pods_of_one_namespace_hide_none_of_another() -> None:
    books = managed_resources()
    ledger = books.resources[0].ledger
    ledger.node_changed(make_node("a", 16))
    for number in range(300):
        odd = Request(1, 1, cpu=10**6 + number)
        ref = PodRef("greedy", str(number), str(number))
        ledger.pod_changed(ObservedPod(ref, odd, created=10.0))
    ledger.pod_changed(ObservedPod(PodRef("team", "x", "x"), Request(4, 1), created=9_000.0))
    ledger.node_changed(make_node("a", 16, cpu=8000, memory=2**36))
    assert pending_without_call(books, lambda _: False, 0.0, NOW) == 1000
