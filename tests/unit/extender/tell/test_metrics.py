"""Prometheus is told the figures of the books."""

import threading
import time
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gpushare import __version__
from gpushare.core.amounts import compute
from gpushare.core.model import Allocation, ObservedPod, PodRef, Reason, Request
from gpushare.core.trial import Choice
from gpushare.extender.managed_resources import ManagedResources
from gpushare.extender.tell.metrics import Metrics
from gpushare.wire.annotations import ALIYUN
from tests.unit.core.clusters import node as make_node
from tests.unit.extender.kit import NPU, managed_resources

GIB = 2**30
GPU = ALIYUN.resource

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


@pytest.fixture
def resources() -> Iterator[ManagedResources]:
    created = managed_resources(ALIYUN, NPU)
    gpus = created.resources[0].ledger
    gpus.node_changed(make_node("a", 16, 8, unhealthy=[1]))
    gpus.node_changed(make_node("b", 4, closed=Reason.UNEVEN))
    gpus.node_changed(make_node("none"))
    created.resources[1].ledger.node_changed(make_node("n", 2))
    gpus.assume(_ref("one"), Request(4, 1), Allocation("a", ((0, 4),)), 0.0)
    gpus.assume(_ref("two"), Request(3, 1), Allocation("a", ((0, 3),)), 0.0)
    gpus.doubt("uid-two", 1.0)
    gpus.pod_changed(ObservedPod(_ref("lost"), Request(2, 1), "a"))
    gpus.pod_changed(ObservedPod(_ref("plain"), Request(cpu=100), "a"))
    gpus.pod_changed(ObservedPod(_ref("later"), Request(1, 1)))
    yield created
    gpus.check()


def _ref(name: str) -> PodRef:
    return PodRef("team", name, f"uid-{name}")


@pytest.fixture
def metrics(resources: ManagedResources) -> Metrics:
    state = {"ready": True, "pods_age_seconds": 1.5}
    return Metrics(resources, GIB, lambda: state, standing)


def standing() -> float:
    """A clock that stands still, so that each text is made anew."""
    return 0.0


def samples(metrics: Metrics) -> Samples:
    return {
        (sample.name, frozenset(sample.labels.items())): float(sample.value)
        for family in text_string_to_metric_families(metrics.text().decode())
        for sample in family.samples
    }


def of(found: Samples, name: str, **labels: str) -> float | None:
    return found.get((f"gpushare_{name}", frozenset(labels.items())))


def test_devices_are_told_in_bytes_as_the_books_have_them(metrics: Metrics) -> None:
    result = samples(metrics)
    expected = {("a", "0"): (16, 9, 1), ("a", "1"): (8, 2, 0), ("b", "0"): (4, 0, 0)}
    for (node, device), (capacity, used, healthy) in expected.items():
        place = {"resource": GPU, "node": node, "device": device}
        assert of(result, "device_memory_bytes", **place) == capacity * GIB
        assert of(result, "device_memory_allocated_bytes", **place) == used * GIB
        assert of(result, "device_healthy", **place) == healthy
    npu = {"resource": NPU.resource, "node": "n", "device": "0"}
    assert of(result, "device_memory_bytes", **npu) == 2 * GIB
    devices = [labels for name, labels in result if name == "gpushare_device_memory_bytes"]
    assert len(devices) == 4


def test_pods_are_counted_by_state_and_never_named(
    metrics: Metrics, resources: ManagedResources
) -> None:
    result = samples(metrics)
    expected = {"assumed": 2, "in_doubt": 1, "bound": 1, "unplaced": 1, "plain": 1, "waiting": 1}
    for state, count in expected.items():
        assert of(result, "pods", resource=GPU, state=state) == count
    for kind in ("placement_edited", "bound_by_another", "binding_lost"):
        assert of(result, "alarms_total", resource=GPU, kind=kind) == 0
    assert of(result, "pods", resource=GPU, state="nodes") is None
    assert "uid-" not in metrics.text().decode()
    assert "team" not in metrics.text().decode()
    known_items = set(expected) | {"nodes", "placement_edited", "bound_by_another", "binding_lost"}
    assert known_items <= set(resources.resources[0].ledger.counts())


def test_the_policy_that_ranks_is_told_and_what_each_allocated_in_its_trial(
    metrics: Metrics, resources: ManagedResources
) -> None:
    allocates, refuses = {"binpack": 81.5, "spread": 80.0}, {"binpack": 9.0, "spread": 10.5}
    resources.resources[0].choice = Choice(
        "binpack", 1.5e9, "spread", 1.5, 0.25, allocates, refuses
    )
    result = samples(metrics)
    for resource in (GPU, NPU.resource):
        assert of(result, "ranking_policy", resource=resource, policy="device-bestfit") == 1
    allocated = {"resource": GPU, "policy": "binpack"}
    assert of(result, "trial_allocated_percent", **allocated) == 81.5
    assert of(result, "trial_refused_percent", **allocated) == 9
    assert of(result, "trial_allocated_percent", resource=GPU, policy="spread") == 80
    assert of(result, "ranking_policy_chosen_timestamp_seconds", **allocated) == 1.5e9
    assert of(result, "trial_lead_percent", **allocated, second="spread") == 1.5
    assert of(result, "trial_lead_error_percent", **allocated) == 0.25
    assert sum(name == "gpushare_ranking_policy" for name, _ in result) == 2


def test_free_and_stranded_memory_are_told_by_device(
    metrics: Metrics, resources: ManagedResources
) -> None:
    gpus = resources.resources[0].ledger
    gpus.node_changed(make_node("c", 16, 3, 2))
    result = samples(metrics)
    # Asked for on each device: 4, 3, 2 and 1, each once: the smallest counts, so nothing strands.
    assert of(result, "typical_request_bytes", resource=GPU) == 1 * GIB
    for more in ("x", "y"):
        gpus.pod_changed(ObservedPod(_ref(more), Request(3, 1)))
    result = samples(metrics)
    assert of(result, "typical_request_bytes", resource=GPU) == 3 * GIB
    expected = {("a", "0"): (7, 0), ("a", "1"): (0, 0), ("b", "0"): (0, 0)}
    expected |= {("c", "0"): (16, 0), ("c", "1"): (3, 0), ("c", "2"): (2, 2)}
    for (node, device), (free, stranded) in expected.items():
        place = {"resource": GPU, "node": node, "device": device}
        assert of(result, "device_memory_free_bytes", **place) == free * GIB
        assert of(result, "device_memory_stranded_bytes", **place) == stranded * GIB


def test_compute_is_told_where_a_pod_has_some(
    metrics: Metrics, resources: ManagedResources
) -> None:
    """And memory is not free where it is all given, but stranded by compute."""
    before = metrics.text().decode()
    assert "compute" not in before
    gpus = resources.resources[0].ledger
    gpus.node_changed(make_node("c", 16, 16, 16, unhealthy=[2]))
    for device, cores in enumerate((30, 100, 100)):
        request = Request(4, 1, percents=compute(cores))
        gpus.pod_changed(ObservedPod(_ref(f"c{device}"), request, "c", ((device, 4),)))
    result = samples(metrics)
    for device, (cores, free, stranded) in enumerate([(30, 12, 0), (100, 0, 12), (100, 0, 0)]):
        place = {"resource": GPU, "node": "c", "device": str(device)}
        assert of(result, "device_compute_allocated_percent", **place) == cores
        assert of(result, "device_memory_free_bytes", **place) == free * GIB
        assert of(result, "device_memory_stranded_bytes", **place) == 0
        assert of(result, "device_memory_stranded_by_compute_bytes", **place) == stranded * GIB
    results = [labels for name, labels in result if "_compute_" in name]
    assert len(results) == 2 * 6  # of the first resource each device, of the other none
    for device in range(3):
        gpus.pod_gone(f"uid-c{device}")
    gpus.node_gone("c")
    assert (
        metrics.text().decode().split("gpushare_pods", 1)[0] == before.split("gpushare_pods", 1)[0]
    )


def test_nodes_that_filter_refuses_are_counted_by_reason(metrics: Metrics) -> None:
    metrics.rejected({"full": 2, "closed": 1})
    metrics.rejected({"full": 1})
    result = samples(metrics)
    assert of(result, "filter_rejected_nodes_total", reason="full") == 3
    assert of(result, "filter_rejected_nodes_total", reason="closed") == 1


def test_what_is_called_total_is_a_counter_and_nothing_else_is(resources: ManagedResources) -> None:
    metrics = Metrics(resources, GIB, lambda: {"bind_conflicts_total": 2.0, "ready": 1.0})
    metrics.observe("filter", "fit", 0.1)
    text = metrics.text().decode()
    kinds = dict(line.split()[2:4] for line in text.splitlines() if line.startswith("# TYPE"))
    assert kinds["gpushare_bind_conflicts_total"] == "counter"
    assert kinds["gpushare_alarms_total"] == "counter"
    assert {name.endswith("_total") for name in kinds if kinds[name] == "counter"} == {True}
    assert not [name for name in kinds if kinds[name] == "gauge" and name.endswith("_total")]
    assert of(samples(metrics), "bind_conflicts_total") == 2


def test_the_state_of_the_process_is_read_at_each_scrape(resources: ManagedResources) -> None:
    state = {"ready": 0.0}
    metrics = Metrics(resources, GIB, lambda: state, standing)
    assert of(samples(metrics), "ready") == 0
    state["ready"] = 1.0
    assert of(samples(metrics), "ready") == 1
    assert of(samples(metrics), "build_info", version=__version__) == 1


class Slow:
    """The state of a process, and its clock; telling the state takes so many seconds."""

    def __init__(self, seconds: float = 1.0) -> None:
        self.now = 0.0
        self.told = 0
        self._seconds = seconds

    def clock(self) -> float:
        return self.now

    def state(self) -> dict[str, float]:
        time.sleep(0.02)
        self.now += self._seconds
        self.told += 1
        return {"told": self.told}


def test_a_text_is_handed_out_again_for_29_times_as_long_as_it_took(
    resources: ManagedResources,
) -> None:
    slow = Slow(0.5)
    metrics = Metrics(resources, GIB, slow.state, slow.clock)
    assert of(samples(metrics), "told") == 1
    slow.now += 14.4
    assert of(samples(metrics), "told") == 1
    slow.now += 0.2
    assert of(samples(metrics), "told") == 2


def test_a_text_is_soon_made_anew_after_the_process_stood_still(
    resources: ManagedResources,
) -> None:
    slow = Slow(3600.0)
    metrics = Metrics(resources, GIB, slow.state, slow.clock)
    assert of(samples(metrics), "told") == 1
    slow.now += 15.1
    assert of(samples(metrics), "told") == 2


def test_who_asks_while_a_text_is_made_gets_that_one(resources: ManagedResources) -> None:
    slow = Slow()
    metrics = Metrics(resources, GIB, slow.state, slow.clock)
    threads = [threading.Thread(target=metrics.text) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert slow.told == 1


def test_a_name_cannot_break_out_of_its_label(resources: ManagedResources) -> None:
    name = 'a"} 1\\\n'
    resources.resources[0].ledger.node_changed(make_node(name, 16))
    result = samples(Metrics(resources, GIB, dict))
    assert of(result, "device_memory_bytes", resource=GPU, node=name, device="0") == 16 * GIB


def test_calls_are_counted_by_verb_and_outcome_and_timed(metrics: Metrics) -> None:
    metrics.observe("filter", "fit", 0.002)
    metrics.observe("filter", "fit", 0.3)
    metrics.observe("bind", "bound", 9.0)
    result = samples(metrics)
    assert of(result, "requests_total", verb="filter", outcome="fit") == 2
    assert of(result, "requests_total", verb="bind", outcome="bound") == 1
    timed = "request_duration_seconds"
    assert of(result, f"{timed}_count", verb="filter") == 2
    assert of(result, f"{timed}_sum", verb="filter") == pytest.approx(0.302)
    assert of(result, f"{timed}_bucket", verb="filter", le="0.0025") == 1
    assert of(result, f"{timed}_bucket", verb="bind", le="5.0") == 0
    assert of(result, f"{timed}_bucket", verb="bind", le="+Inf") == 1


def test_two_processes_metrics_do_not_meet(resources: ManagedResources) -> None:
    first, second = (Metrics(resources, GIB, dict) for _ in range(2))
    first.observe("filter", "fit", 0.1)
    assert of(samples(second), "requests_total", verb="filter", outcome="fit") is None


def test_every_metric_says_what_it_is_and_belongs_to_us(metrics: Metrics) -> None:
    metrics.observe("filter", "fit", 0.1)
    families = list(text_string_to_metric_families(metrics.text().decode()))
    assert families
    for family in families:
        assert family.name.startswith("gpushare_")
        assert family.documentation
        assert family.type in ("gauge", "counter", "histogram")
