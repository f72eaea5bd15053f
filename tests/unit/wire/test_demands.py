"""Pods and nodes are kept for kube-scheduler's own filters: unchanged, and bounded."""

from typing import Any

import msgspec
import pytest

from gpushare.core.selectors import (
    NO_DEMANDS,
    Demands,
    NodeSelectorTerm,
    Requirement,
    Taint,
    Toleration,
)
from gpushare.errors import MessageError
from gpushare.wire.demands import MOST_DEMANDS, MOST_RESOURCES, MOST_TEXT, demands_of, node_state
from gpushare.wire.objects import NODES, PODS
from gpushare.wire.pods import host_sums


def demands(**spec: Any) -> Demands:
    return demands_of(PODS.decode(msgspec.json.encode({"spec": spec})))


def sums(*containers: dict[str, Any], **spec: Any) -> dict[str, int]:
    body = {"spec": {"containers": [{"resources": item} for item in containers], **spec}}
    return dict(host_sums(PODS.decode(msgspec.json.encode(body))).resources)


def test_a_pods_demands_are_those_of_its_spec() -> None:
    term = {
        "matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}],
        "matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["n"]}],
    }
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    result = demands(
        nodeSelector={"b": "2", "a": "1"},
        affinity={"nodeAffinity": required},
        tolerations=[{"key": "k", "effect": "NoSchedule"}, {"operator": "Exists"}],
        schedulingGates=[{"name": "g"}],
    )
    zone = Requirement("zone", "In", ("a",))
    name = Requirement("metadata.name", "NotIn", ("n",))
    tolerations = (Toleration("k", "Equal", "", "NoSchedule"), Toleration("", "Exists"))
    pairs = (("a", "1"), ("b", "2"))
    assert result == Demands(pairs, (NodeSelectorTerm((zone,), (name,)),), tolerations, gated=True)
    assert demands() == NO_DEMANDS
    assert demands(nodeSelector={"a": "1"}) is demands(nodeSelector={"a": "1"})


@pytest.mark.parametrize(
    "spec",
    [
        {"nodeSelector": {"a": "x" * MOST_DEMANDS}},
        {"tolerations": [{"key": "x" * MOST_DEMANDS + "y"}]},
        {"tolerations": [{}] * (MOST_DEMANDS // 64 + 1)},
        {"tolerations": [{"key": f"k{at}"} for at in range(250)]},
        {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{}] * (MOST_DEMANDS + 1)}}}},
    ],
)  # fmt: skip
def test_of_a_pod_that_demands_very_much_nothing_is_known(spec: dict[str, Any]) -> None:
    assert demands(**spec, schedulingGates=[{}]) == Demands(gated=True, is_complete=False)


def test_all_resources_but_cpu_and_memory_are_summed() -> None:
    side = {"restartPolicy": "Always", "resources": {"requests": {"x/thing": "1"}}}
    first = {"requests": {"cpu": "1", "x/thing": "2"}, "limits": {"x/gpu": "3"}}
    result = sums(first, {"limits": {"x/thing": 4}}, initContainers=[side])
    assert result == {"x/gpu": 3, "x/thing": 7}
    assert sums({"requests": {"cpu": "1"}}) == {}
    assert sums({"requests": {"odd": "many", "x/thing": "0"}}, overhead={"disk": "1Ki"}) == {
        "disk": 1024
    }
    many = {f"x/{number:03}": "1" for number in range(MOST_RESOURCES + 1)}
    assert len(sums({"requests": many})) == MOST_RESOURCES
    long = {f"{'x' * 240}/{number:03}": "1" for number in range(MOST_RESOURCES)}
    assert sums({"requests": long}).keys() == {*sorted(long)[:16]}


def state(**node: Any) -> Any:
    body = {"metadata": {"name": "n", **node.pop("metadata", {})}, **node}
    return node_state(NODES.decode(msgspec.json.encode(body)))


def test_a_nodes_state_is_what_it_shows() -> None:
    result = state(
        metadata={"labels": {"zone": "a"}},
        spec={"taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}]},
        status={
            "allocatable": {"cpu": "1500m", "pods": "9", "odd": "x"},
            "conditions": [
                {"type": "Ready", "status": "True"},
                {"type": "Disk", "status": "False"},
            ],
        },
    )
    assert (result.labels, result.taints) == ({"zone": "a"}, (Taint("k", "v", "NoSchedule"),))
    assert (result.cordoned, result.ready) == (False, True)
    assert result.allocatable == {"cpu": 1500, "pods": 9, "odd": 0}
    assert state(status={"capacity": {"pods": "9"}}).allocatable == {"pods": 9}
    assert state().allocatable is None
    with pytest.raises(MessageError, match="name is missing"):
        state(metadata={"name": ""})


@pytest.mark.parametrize("status", ["False", "Unknown"])
def test_a_node_is_ready_unless_it_says_otherwise(status: str) -> None:
    assert not state(status={"conditions": [{"type": "Ready", "status": status}]}).ready
    assert state().ready


def test_a_cordon_is_one_by_its_taint_too() -> None:
    cordon = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
    for spec in ({"unschedulable": True}, {"taints": [cordon]}):
        result = state(spec=spec)
        assert (result.cordoned, result.taints) == (True, ())


def test_what_is_too_much_to_keep_is_not_judged() -> None:
    large = state(
        metadata={"labels": {"a": "x" * MOST_TEXT}},
        spec={"taints": [{"key": str(number)} for number in range(100)]},
        status={"allocatable": {f"x/{number}": "1" for number in range(MOST_RESOURCES + 1)}},
    )
    assert (large.labels, large.allocatable, len(large.taints)) == (None, None, 64)
