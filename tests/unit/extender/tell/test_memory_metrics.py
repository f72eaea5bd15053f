"""The holders of memory are told on request, and never in more series than a bound."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gpushare.core.model import ObservedPod, PodRef, Request, Shares
from gpushare.core.neighbours import MANY
from gpushare.extender.managed_resources import ManagedResources
from gpushare.extender.tell.metrics import Metrics
from gpushare.extender.tell.written_metrics import NAMESPACES, OTHERS, PODS
from gpushare.wire.annotations import ALIYUN
from tests.unit.core.clusters import node as make_node
from tests.unit.core.clusters import with_share
from tests.unit.extender.kit import managed_resources

GIB = 2**30


def holding(*pods: tuple[str, str, Request, Shares | None]) -> ManagedResources:
    """Books of one node with these pods: namespace, name, request and placement."""
    resources = managed_resources(ALIYUN)
    ledger = resources.resources[0].ledger
    ledger.node_changed(make_node("n", 4096, 4096))
    for namespace, name, request, placement in pods:
        ref = PodRef(namespace, name, f"uid-{namespace}-{name}")
        ledger.pod_changed(ObservedPod(ref, request, "n", placement))
    return resources


def told(resources: ManagedResources, detail: str, kind: str) -> dict[tuple[str, ...], float]:
    """By the names in its labels, the GiB of each sample."""
    text = Metrics(resources, GIB, dict, detail=detail).text().decode()
    return {
        tuple(
            sample.labels[label] for label in ("namespace", "pod", "node") if label in sample.labels
        ): sample.value / GIB
        for family in text_string_to_metric_families(text)
        if family.name == f"gpushare_{kind}_memory_allocated_bytes"
        for sample in family.samples
        if sample.labels["resource"] == ALIYUN.resource
    }


FEW = (
    ("team-red", "a", Request(4, 1), ((0, 4),)),
    ("team-red", "b", Request(3, 2), ((0, 3), (1, 3))),
    ("team-blue", "a", Request(2, 1), None),
)


def test_nobody_is_named_unless_asked_for() -> None:
    text = Metrics(holding(*FEW), GIB, dict).text().decode()
    assert "team-" not in text
    assert not told(holding(*FEW), "namespaces", "pod")


@pytest.mark.parametrize("detail", ["namespaces", "pods"])
def test_a_namespace_holds_what_its_pods_ask_for(detail: str) -> None:
    assert told(holding(*FEW), detail, "namespace") == {("team-red",): 10, ("team-blue",): 2}


def test_a_pod_holds_what_it_asks_for_on_all_devices_and_unplaced_once() -> None:
    expected = {("team-red", "a", "n"): 4, ("team-red", "b", "n"): 6, ("team-blue", "a", "n"): 2}
    assert told(holding(*FEW), "pods", "pod") == expected


def test_devices_are_counted_by_their_pods() -> None:
    resources = holding(*((f"ns-{n}", "a", Request(1, 1), ((0, 1),)) for n in range(MANY + 2)))
    ledger = resources.resources[0].ledger
    ledger.node_changed(make_node("m", 8, 8, 8, unhealthy=[2]))
    ledger.pod_changed(ObservedPod(PodRef("ns", "b", "uid-b"), Request(2, 1), "m", ((1, 2),)))
    text = Metrics(resources, GIB, dict).text().decode()
    counts = {
        sample.labels["pods"]: sample.value
        for family in text_string_to_metric_families(text)
        if family.name == "gpushare_devices"
        for sample in family.samples
    }
    assert counts == {"0": 2, "1": 1, "2": 0, "3": 0, "4": 1}


def test_the_memory_beside_the_most_pods_is_unavailable() -> None:
    resources = holding(("ns", "a", Request(1, 1), ((0, 1),)), ("ns", "b", Request(1, 1), None))
    resources.resources[0].ledger.node_changed(make_node("n", 8, 8, max_sharers=2))
    text = Metrics(resources, GIB, dict).text().decode()
    samples = [
        (sample.name, sample.labels.get("device"), sample.labels.get("state"), sample.value / GIB)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    ]
    assert ("gpushare_device_memory_free_bytes", "0", None, 0.0) in samples
    assert ("gpushare_device_memory_free_bytes", "1", None, 7.0) in samples
    assert ("gpushare_memory_unavailable_bytes", None, "closed", 6.0) in samples


def test_a_pod_holds_the_part_of_its_card_that_it_asks_for() -> None:
    share = Request(1, 1, percents=with_share(0, 25))
    resources = holding(("ns", "a", share, ((0, 1),)), ("ns", "lost", share, None))
    assert told(resources, "pods", "pod") == {("ns", "a", "n"): 1024, ("ns", "lost", "n"): 1024}


def test_limits_above_requests_are_told_by_device() -> None:
    def limits(resources: ManagedResources) -> dict[tuple[str, str], float]:
        text = Metrics(resources, GIB, dict).text().decode()
        return {
            (sample.labels["node"], sample.labels["device"]): sample.value / GIB
            for family in text_string_to_metric_families(text)
            if family.name == "gpushare_device_memory_limits_bytes"
            for sample in family.samples
        }

    assert limits(holding(*FEW)) == {}
    more = Request(4, 1, memory_limit=4095)
    resources = holding(*FEW, ("ns", "more", more, ((1, 4),)))
    # 4, 3 and 2 on either device of the first three pods.
    assert limits(resources) == {("n", "0"): 9, ("n", "1"): 4100}


def test_the_smallest_are_one_series_so_that_the_sum_stays() -> None:
    many = [(f"ns-{n}", f"pod-{n}", Request(n, 1), ((0, n),)) for n in range(1, PODS + 11)]
    resources = holding(*many)
    for kind, entry, element in (("namespace", NAMESPACES, 1), ("pod", PODS, 3)):
        told_result = told(resources, "pods", kind)
        assert len(told_result) == entry + 1
        assert told_result[(OTHERS,) * element] == sum(range(1, PODS + 11 - entry))
        assert sum(told_result.values()) == sum(range(1, PODS + 11))
