"""The results of plug-ins, with kube-scheduler's texts; and the requests of pods."""

from typing import Any

import pytest

from gpushare_localcluster.scheduler.cache import Cache, NodeInfo, Snapshot
from gpushare_localcluster.scheduler.framework import (
    Code,
    CycleState,
    FilterPlugin,
    Status,
    unschedulable_message,
)
from gpushare_localcluster.scheduler.handle import Handle
from gpushare_localcluster.scheduler.objects import PodView, pod_requests, read_node, read_pod
from gpushare_localcluster.scheduler.plugins.node import (
    NodeAffinity,
    NodeName,
    NodeUnschedulable,
    TaintToleration,
)
from gpushare_localcluster.scheduler.plugins.resources import NodeResourcesFit
from gpushare_localcluster.scheduler.preemption import DefaultPreemption
from gpushare_localcluster.scheduler.runtime import Framework

GPU = "aliyun.com/gpu-mem"
ROOM = {"cpu": "4", "memory": "8Gi", "pods": "10", GPU: "16"}


def pod(name: str = "p", requests: dict[str, str] | None = None, **spec: Any) -> PodView:
    container = {"name": "main", "resources": {"requests": requests or {}}}
    return read_pod(
        {"metadata": {"name": name, "uid": name}, "spec": {"containers": [container], **spec}}
    )


def node(
    name: str = "n1",
    allocatable: dict[str, str] | None = None,
    labels: dict[str, str] | None = None,
    **spec: Any,
) -> NodeInfo:
    return NodeInfo(
        read_node(
            {
                "metadata": {"name": name, "labels": labels or {}},
                "spec": spec,
                "status": {"allocatable": ROOM if allocatable is None else allocatable},
            }
        )
    )


def reasons(plugin: FilterPlugin, new_pod: PodView, place: NodeInfo) -> tuple[str, ...]:
    return plugin.filter(CycleState(), new_pod, place).reasons


def test_a_cordoned_node_is_refused_unless_tolerated() -> None:
    cordoned = node(unschedulable=True)
    status = NodeUnschedulable().filter(CycleState(), pod(), cordoned)
    assert status == Status(Code.UNRESOLVABLE, ("node(s) were unschedulable",))
    tolerant = pod(tolerations=[{"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}])
    assert NodeUnschedulable().filter(CycleState(), tolerant, cordoned).ok
    assert NodeUnschedulable().filter(CycleState(), pod(), node()).ok


def test_a_named_node_is_the_only_one() -> None:
    assert NodeName().filter(CycleState(), pod(nodeName="n1"), node()).ok
    assert reasons(NodeName(), pod(nodeName="n2"), node()) == (
        "node(s) didn't match the requested node name",
    )


@pytest.mark.parametrize(
    ("toleration", "fits"),
    [
        (None, False),
        ({"key": "gpu", "operator": "Equal", "value": "yes"}, True),
        ({"key": "gpu", "value": "no"}, False),
        ({"key": "gpu", "operator": "Exists"}, True),
        ({"key": "gpu", "operator": "Exists", "effect": "NoExecute"}, False),
        ({"operator": "Exists"}, True),
    ],
)
def test_a_hard_taint_needs_a_toleration(toleration: dict[str, str] | None, fits: bool) -> None:
    tainted = node(taints=[{"key": "gpu", "value": "yes", "effect": "NoSchedule"}])
    new_pod = pod(tolerations=[toleration] if toleration else [])
    expected = () if fits else ("node(s) had untolerated taint(s)",)
    assert reasons(TaintToleration(), new_pod, tainted) == expected


def test_a_soft_taint_refuses_nobody() -> None:
    tainted = node(taints=[{"key": "gpu", "effect": "PreferNoSchedule"}])
    assert TaintToleration().filter(CycleState(), pod(), tainted).ok


def affinity(*terms: dict[str, Any]) -> dict[str, Any]:
    required = {"nodeSelectorTerms": list(terms)}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}


def expression(operator: str, *values: str, key: str = "zone") -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


@pytest.mark.parametrize(
    ("term", "fits"),
    [
        (expression("In", "a", "b"), True),
        (expression("In", "b"), False),
        (expression("NotIn", "b"), True),
        (expression("NotIn", "x", key="absent"), True),
        (expression("Exists"), True),
        (expression("DoesNotExist"), False),
        (expression("Gt", "3", key="size"), True),
        (expression("Gt", "4", key="size"), False),
        (expression("Lt", "5", key="size"), True),
        (expression("Lt", "many", key="size"), False),
        (expression("Gt", "1"), False),
        (expression("Nonsense", "a"), False),
        ({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}, True),
        ({}, False),
    ],
)
def test_required_affinity_matches_as_kubernetes_does(term: dict[str, Any], fits: bool) -> None:
    place = node(labels={"zone": "a", "size": "4"})
    assert NodeAffinity().filter(CycleState(), pod(affinity=affinity(term)), place).ok is fits


def test_terms_are_alternatives_and_the_selector_must_match_too() -> None:
    place = node(labels={"zone": "a"})
    either = affinity(expression("In", "b"), expression("In", "a"))
    assert NodeAffinity().filter(CycleState(), pod(affinity=either), place).ok
    error = pod(affinity=either, nodeSelector={"zone": "b"})
    assert reasons(NodeAffinity(), error, place) == (
        "node(s) didn't match Pod's node affinity/selector",
    )


def test_everything_that_is_short_is_named_in_order() -> None:
    new_pod = pod(requests={GPU: "17", "memory": "9Gi", "cpu": "4100m"})
    status = NodeResourcesFit().filter(
        CycleState(), new_pod, node(allocatable={**ROOM, "pods": "0"})
    )
    assert status.reasons == (
        "Too many pods",
        "Insufficient cpu",
        "Insufficient memory",
        f"Insufficient {GPU}",
    )


def test_busy_now_and_never_are_told_apart() -> None:
    busy = node().with_pod(pod("other", requests={GPU: "10"}))
    fit = NodeResourcesFit()
    assert fit.filter(CycleState(), pod(requests={GPU: "8"}), busy).code is Code.UNSCHEDULABLE
    assert fit.filter(CycleState(), pod(requests={GPU: "17"}), busy).code is Code.UNRESOLVABLE
    assert fit.filter(CycleState(), pod(requests={GPU: "6"}), busy).ok


def test_an_ignored_resource_is_left_to_the_extender() -> None:
    fit = NodeResourcesFit({"ignoredResources": [GPU]})
    assert fit.filter(CycleState(), pod(requests={GPU: "999"}), node()).ok


def test_an_absent_resource_is_insufficient() -> None:
    plain = node(allocatable={"cpu": "1", "memory": "1Gi", "pods": "5"})
    assert reasons(NodeResourcesFit(), pod(requests={GPU: "1"}), plain) == (f"Insufficient {GPU}",)


def test_the_emptier_node_scores_higher() -> None:
    fit = NodeResourcesFit()
    half = node().with_pod(pod("other", requests={"cpu": "2", "memory": "4Gi"}))
    new_pod = pod(requests={"cpu": "1", "memory": "2Gi"})
    assert fit.score(CycleState(), new_pod, node()) == 75
    assert fit.score(CycleState(), new_pod, half) == 25


def test_requests_add_sidecars_and_take_the_peak_of_the_init_phase() -> None:
    def container(cpu: str, **more: str) -> dict[str, Any]:
        return {"resources": {"requests": {"cpu": cpu}}, **more}

    spec: dict[str, Any] = {
        "initContainers": [
            container("1", restartPolicy="Always"),
            container("5"),
            container("500m", restartPolicy="Always"),
        ],
        "containers": [container("1"), container("2")],
        "overhead": {"cpu": "100m"},
    }
    assert pod_requests(spec) == {"cpu": 6100}
    spec["containers"].append(container("4"))
    assert pod_requests(spec) == {"cpu": 8600}


def test_the_message_counts_reasons_and_sorts_them_as_text() -> None:
    statuses = {
        "a": Status(Code.UNRESOLVABLE, ("node(s) were unschedulable",)),
        "b": Status(Code.UNRESOLVABLE, ("node(s) were unschedulable",)),
        "c": Status(Code.UNSCHEDULABLE, ("Insufficient cpu",)),
    }
    snapshot = Snapshot((node("a"), node("b"), node("c")))
    profiles = {"default-scheduler": Framework(())}
    handle = Handle(snapshot=snapshot, profiles=profiles, evict=lambda *_: pytest.fail("nobody"))
    ending = DefaultPreemption({}, handle).post_filter(CycleState(), pod(), statuses).message
    assert unschedulable_message(3, statuses, ending) == (
        "0/3 nodes are available: 1 Insufficient cpu, 2 node(s) were unschedulable."
        " preemption: 0/3 nodes are available:"
        " 1 No preemption victims found for incoming pod,"
        " 2 Preemption is not helpful for scheduling."
    )


def test_an_assumed_pod_counts_until_it_is_forgotten() -> None:
    cache = Cache()
    cache.set_node(node().node)
    new_pod = pod(requests={GPU: "6"})
    cache.assume(new_pod, "n1")
    assert cache.snapshot().nodes[0].free(GPU) == 10
    cache.forget(new_pod)
    assert cache.snapshot().nodes[0].free(GPU) == 16
    assert not cache.holds("p")


def test_a_pod_seen_bound_is_not_forgotten() -> None:
    cache = Cache()
    cache.set_node(node().node)
    new_pod = pod(requests={GPU: "6"})
    cache.assume(new_pod, "n1")
    cache.set_pod(pod(requests={GPU: "6"}, nodeName="n1"))
    cache.forget(new_pod)
    assert cache.snapshot().nodes[0].free(GPU) == 10
    cache.remove_pod("p")
    assert cache.snapshot().nodes[0].free(GPU) == 16


def test_a_pod_seen_before_its_node_is_counted_when_the_node_comes() -> None:
    cache = Cache()
    cache.set_pod(pod(requests={GPU: "6"}, nodeName="n1"))
    cache.set_node(node().node)
    assert cache.snapshot().nodes[0].free(GPU) == 10
    cache.set_node(node(unschedulable=True).node)
    assert cache.snapshot().nodes[0].free(GPU) == 10
    cache.remove_node("n1")
    assert cache.snapshot().nodes == ()
