"""The counters of GPU-seconds are the integral of the books, in a bounded number of series."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gpushare.core.model import Allocation, ObservedPod, PodRef, Reason, Request, Shares
from gpushare.extender.managed_resources import ManagedResources
from gpushare.extender.tell import gpu_seconds
from gpushare.extender.tell.gpu_seconds import GpuSeconds
from gpushare.extender.tell.written_metrics import OTHERS
from gpushare.ledger import Ledger
from gpushare.wire.annotations import ALIYUN
from tests.unit.core.clusters import node as make_node
from tests.unit.core.clusters import with_share
from tests.unit.extender.kit import NPU, managed_resources


@dataclass
class Counted:
    """Books and their counters, at a time that tests set."""

    detail: str = "pods"
    now: float = 100.0
    earlier_end: float = math.nan
    resources: ManagedResources = field(default_factory=lambda: managed_resources(ALIYUN))

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Begin with the counters of another process, and the same books."""
        self.counters = GpuSeconds(
            self.resources, self.detail, lambda: self.earlier_end, clock=lambda: self.now
        )

    @property
    def ledger(self) -> Ledger:
        return self.resources.resources[0].ledger

    def tick(self, seconds: float = 0.0, *, is_ready: bool = True) -> None:
        self.now += seconds
        self.counters.tick(is_ready)

    def pod(
        self,
        name: str,
        units: int,
        placement: Shares | None,
        *,
        namespace: str = "team",
        labels: Sequence[tuple[str, str]] = (),
        cores: int = 0,
        share: int = 0,
    ) -> PodRef:
        ref = PodRef(namespace, name, f"uid-{namespace}-{name}")
        devices = len(placement or (0,))
        request = Request(units, devices, percents=with_share(cores, share))
        self.ledger.pod_changed(
            ObservedPod(ref, request, "n", placement, labels=tuple(labels), running=True)
        )
        return ref

    def seconds(self, family: str, *labels: str) -> dict[tuple[str, ...], float]:
        """The values of a family by these labels."""
        return {
            tuple(sample.labels[label] for label in labels): sample.value
            for entry in text_string_to_metric_families(self.counters.text().decode())
            if entry.name == f"gpushare_{family}"
            for sample in entry.samples
        }


def one_node(detail: str = "pods", **figures: object) -> Counted:
    counted = Counted(detail)
    counted.ledger.node_changed(make_node("n", 10, 20, models=("A100", "T4"), **figures))  # type: ignore[arg-type]
    counted.tick()
    return counted


def test_a_share_of_memory_counts_by_time_and_the_remainder_is_idle() -> None:
    counted = one_node()
    pod = counted.pod("a", 5, ((0, 5),))
    counted.tick()
    counted.tick(60)
    assert counted.seconds("namespace_gpu_seconds", "namespace", "model") == {("team", "A100"): 30}
    assert counted.seconds("gpu_seconds", "model", "state") == {
        ("A100", "promised"): 30,
        ("A100", "idle"): 30,
        ("T4", "idle"): 60,
    }
    counted.ledger.pod_gone(pod.uid)
    counted.tick()
    counted.tick(60)
    assert counted.seconds("namespace_gpu_seconds", "namespace") == {("team",): 30}
    assert counted.seconds("gpu_seconds", "model", "state")["A100", "idle"] == 90


def test_a_pod_on_two_devices_counts_for_the_model_of_each() -> None:
    counted = one_node()
    counted.pod("a", 5, ((0, 5), (1, 5)))
    counted.tick()
    counted.tick(100)
    assert counted.seconds("namespace_gpu_seconds", "model") == {("A100",): 50, ("T4",): 25}


def test_a_percentage_of_memory_counts_as_the_units_of_its_card() -> None:
    counted = one_node()
    counted.pod("a", 1, ((1, 1),), share=60)
    counted.tick()
    counted.tick(100)
    assert counted.seconds("namespace_gpu_seconds", "model") == {("T4",): 60}


def test_compute_counts_for_the_pods_that_ask_for_it() -> None:
    counted = one_node()
    counted.pod("a", 5, ((0, 5),), cores=30)
    counted.pod("b", 5, ((1, 5),), namespace="other")
    counted.tick()
    counted.tick(100)
    compute = counted.seconds("namespace_gpu_compute_seconds", "namespace", "model")
    assert compute == {("team", "A100"): 30}
    assert counted.seconds("workload_gpu_compute_seconds", "workload") == {("Pod/a",): 30}


def test_the_pods_of_a_workload_count_together() -> None:
    counted = one_node()
    labels = (("pod-template-hash", "5f"),)
    counted.pod("web-5f-a", 2, ((0, 2),), labels=labels)
    counted.pod("web-5f-b", 2, ((0, 2),), labels=labels)
    counted.pod("late", 5, None)
    counted.tick()
    counted.tick(100)
    # It is not known where the late pod is: half of it counts on either device.
    assert counted.seconds("workload_gpu_seconds", "workload", "model") == {
        ("Deployment/web", "A100"): pytest.approx(40),
        ("Pod/late", "A100"): pytest.approx(25),
        ("Pod/late", "T4"): pytest.approx(12.5),
    }


@pytest.mark.parametrize(
    "unplaced",
    [
        Request(10, 8, percents=with_share(100, 0)),
        Request(1, 8, percents=with_share(100, 100)),
        Request(3, 8, split=(3, 3, 3, 3, 2, 2, 2, 2), percents=with_share(100, 100)),
    ],
    ids=["units", "percentage", "parts"],
)
def test_a_pod_without_a_known_place_is_promised_all_its_devices(unplaced: Request) -> None:
    counted = Counted()
    counted.ledger.node_changed(make_node("n", *(10 for _ in range(8))))
    ref = PodRef("team", "a", "uid-a")
    counted.ledger.pod_changed(ObservedPod(ref, unplaced, "n", None, running=True))
    counted.tick()
    counted.tick(100)
    assert counted.seconds("namespace_gpu_seconds", "namespace")["team",] == pytest.approx(800)
    compute = counted.seconds("namespace_gpu_compute_seconds", "namespace")
    assert compute["team",] == pytest.approx(800)
    states = counted.seconds("gpu_seconds", "state")
    assert sum(states.values()) == states["promised",] == pytest.approx(800)


def test_a_pod_counts_for_its_workload_once_the_watch_has_shown_its_labels() -> None:
    counted = one_node()
    ref, request = PodRef("team", "web-5f-a", "uid-a"), Request(5, 1)
    counted.ledger.assume(ref, request, Allocation("n", ((0, 5),)), counted.now, stamp="1")
    counted.tick()
    counted.tick(1)
    assert counted.seconds("namespace_gpu_seconds", "namespace") == {("team",): 0.5}
    assert not counted.seconds("workload_gpu_seconds", "workload")
    labels = (("pod-template-hash", "5f"),)
    pod = ObservedPod(ref, request, "n", ((0, 5),), stamp="1", labels=labels)
    counted.ledger.pod_changed(pod)
    counted.tick()
    counted.tick(100)
    assert counted.seconds("workload_gpu_seconds", "workload") == {("Deployment/web",): 50}


@pytest.mark.parametrize(
    ("detail", "families"),
    [
        ("devices", {"gpu_seconds"}),
        ("namespaces", {"gpu_seconds", "namespace_gpu_seconds"}),
        ("pods", {"gpu_seconds", "namespace_gpu_seconds", "workload_gpu_seconds"}),
    ],
)
def test_nobody_is_named_unless_asked_for(detail: str, families: set[str]) -> None:
    counted = one_node(detail)
    counted.pod("a", 5, ((0, 5),))
    counted.tick()
    text = counted.counters.text().decode()
    names = {entry.name for entry in text_string_to_metric_families(text)}
    assert names == {f"gpushare_{family}" for family in families}
    assert ("team" in text) == (detail != "devices")


def test_a_process_counts_only_while_it_answers() -> None:
    counted = Counted()
    counted.ledger.node_changed(make_node("n", 10))
    counted.pod("a", 10, ((0, 10),))
    counted.tick(is_ready=False)
    counted.tick(50, is_ready=False)
    # A series is there at 0 before it counts: the first sample is no increase to Prometheus.
    assert counted.seconds("namespace_gpu_seconds", "namespace") == {("team",): 0}
    counted.tick(50)
    counted.tick(7)
    assert counted.seconds("namespace_gpu_seconds", "namespace") == {("team",): 7}
    counted.tick(3, is_ready=False)
    counted.tick(100, is_ready=False)
    assert counted.seconds("namespace_gpu_seconds", "namespace") == {("team",): 10}


def test_the_same_leader_counts_the_time_in_which_it_did_not_answer() -> None:
    counted = one_node()
    counted.pod("a", 10, ((0, 10),))
    counted.tick()
    counted.tick(5, is_ready=False)
    counted.tick(100, is_ready=False)
    counted.tick(20)
    assert counted.seconds("namespace_gpu_seconds", "namespace") == {("team",): 125}


@pytest.mark.parametrize(
    ("age", "seconds"), [(30.0, 30.0), (-5.0, 0.0), (1e6, gpu_seconds.MOST_GAP)]
)
def test_the_next_leader_counts_from_the_end_of_the_term_before(age: float, seconds: float) -> None:
    counted = one_node()
    counted.pod("a", 10, ((0, 10),))
    counted.restart()
    counted.tick(is_ready=False)
    counted.earlier_end = counted.now + 10 - age
    counted.tick(10)
    counted.tick(7)
    values = counted.seconds("namespace_gpu_seconds", "namespace")
    assert values == {("team",): pytest.approx(seconds + 7)}
    # The same end counts once.
    counted.tick(1, is_ready=False)
    counted.tick(1)
    values = counted.seconds("namespace_gpu_seconds", "namespace")
    assert values == {("team",): pytest.approx(seconds + 9)}


def test_the_time_without_the_lease_of_kube_scheduler_is_not_counted() -> None:
    counted = one_node()
    counted.pod("a", 10, ((0, 10),))
    counted.earlier_end = math.inf
    counted.tick()
    for _ in range(2):
        counted.tick(1000, is_ready=False)
        counted.tick(1000, is_ready=False)
        counted.tick()
    counted.tick(7)
    values = counted.seconds("namespace_gpu_seconds", "namespace")
    # A second at which the process was ready begins the time until it is not.
    assert values == {("team",): pytest.approx(2007)}


def test_a_node_that_is_gone_counts_no_more() -> None:
    counted = one_node()
    counted.pod("a", 10, ((0, 10),))
    counted.tick()
    counted.ledger.node_gone("n")
    counted.tick(5)
    counted.tick(100)
    assert counted.seconds("namespace_gpu_seconds", "namespace") == {("team",): 5}


def test_each_resource_counts_for_itself() -> None:
    counted = Counted(resources=managed_resources(ALIYUN, NPU))
    for resource in counted.resources:
        resource.ledger.node_changed(make_node("n", 10, models=()))
    counted.tick()
    counted.tick(10)
    assert counted.seconds("gpu_seconds", "resource", "model") == {
        (ALIYUN.resource, "unknown"): 10,
        (NPU.resource, "unknown"): 10,
    }


def test_a_closed_node_with_fewer_devices_than_its_pods_were_given_is_counted() -> None:
    counted = one_node()
    counted.pod("a", 10, ((1, 10),))
    closed = make_node("n", 10, closed=Reason.OTHER_UNIT)
    counted.ledger.node_changed(closed)
    counted.tick()
    counted.tick(60)
    assert counted.seconds("gpu_seconds", "model", "state")["A100", "idle"] == 60


def test_claims_count_for_their_namespace_and_for_no_workload() -> None:
    pods, claims = managed_resources(ALIYUN, NPU)
    for resource in (pods, claims):
        resource.ledger.node_changed(make_node("n", 10))
        ref = PodRef("team", "a", "uid-a")
        resource.ledger.pod_changed(ObservedPod(ref, Request(5, 1), "n", ((0, 5),)))
    counted = Counted()
    counted.counters = GpuSeconds([pods], "pods", clock=lambda: counted.now, claims=claims)
    counted.tick()
    counted.tick(10)
    of_resources = {(ALIYUN.resource,): 5, (NPU.resource,): 5}
    assert counted.seconds("namespace_gpu_seconds", "resource") == of_resources
    assert counted.seconds("workload_gpu_seconds", "resource") == {(ALIYUN.resource,): 5}


def test_the_smallest_count_together_and_no_counter_falls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_seconds, "MOST_SERIES", 3)
    monkeypatch.setattr(gpu_seconds, "_KEPT", 6)
    counted = Counted("namespaces")
    counted.ledger.node_changed(make_node("n", 1000))
    counted.tick()
    before: dict[tuple[str, ...], float] = {}
    for begin in range(0, 20, 4):
        pods = [
            counted.pod("a", number, ((0, number),), namespace=f"ns-{number}")
            for number in range(begin + 1, begin + 6)
        ]
        counted.tick()
        counted.tick(10)
        values = counted.seconds("namespace_gpu_seconds", "namespace")
        assert len(values) <= 6
        assert values[OTHERS,] > before.get((OTHERS,), 0.0)
        assert all(values[names] >= before[names] for names in values.keys() & before.keys())
        assert {(f"ns-{begin + number}",) for number in (3, 4, 5)} <= values.keys()
        before = values
        for pod in pods:
            counted.ledger.pod_gone(pod.uid)


def test_the_same_of_equal_holders_count_for_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_seconds, "MOST_SERIES", 3)
    counted = one_node("namespaces")
    for namespace in "abcde":
        counted.pod("p", 2, ((0, 2),), namespace=namespace)
    counted.tick()
    counted.pod("q", 3, ((1, 3),), namespace="a")
    counted.tick(10)
    counted.ledger.pod_gone("uid-a-q")
    counted.tick(10)
    counted.tick(10)
    known = counted.seconds("namespace_gpu_seconds", "namespace").keys()
    assert known == {("a",), ("b",), ("c",), (OTHERS,)}


def test_a_cluster_in_churn_leaves_no_rounding_errors_behind() -> None:
    counted = one_node()
    for number in range(200):
        first = counted.pod(f"a{number}", 3, ((1, 3),))
        second = counted.pod(f"b{number}", 7, ((1, 7),))
        counted.tick(1)
        counted.ledger.pod_gone(first.uid)
        counted.tick(1)
        counted.ledger.pod_gone(second.uid)
        counted.tick(1)
    before = counted.seconds("namespace_gpu_seconds", "namespace")
    counted.tick(1e6)
    assert counted.seconds("namespace_gpu_seconds", "namespace") == before
