"""cluster-autoscaler's rules, compared with the real one's behaviour in each scene.

The scenes are those of docs/autoscalers.md, and those in which a pod stood in for one that waits.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpushare.core.node_filters import NodeStates, OwnFilters
from gpushare.core.policy import load_policy
from gpushare.explain.autoscalers import Books, must_stay
from gpushare.ledger import Ledger
from gpushare.wire.annotations import ALIYUN
from gpushare.wire.demands import node_state
from gpushare.wire.nodes import node_spec
from gpushare.wire.objects import NODES, PODS
from gpushare.wire.pods import observe_pod
from gpushare_localcluster.autoscaler import (
    DISABLED,
    GOING,
    GROUP,
    SAFE,
    SAFE_VOLUMES,
    Autoscaler,
    Group,
    Removal,
)

MEM = "aliyun.com/gpu-mem"
PAGE = Path(__file__).parents[2] / "docs" / "autoscalers.md"
Object = dict[str, Any]


def node(name: str, mem: int = 32, annotations: dict[str, str] | None = None) -> Object:
    amounts = {"cpu": "32", "memory": "64Gi", "pods": "110"}
    if mem:
        amounts |= {MEM: str(mem), ALIYUN.count: "2"}
    return {
        "metadata": {
            "name": name,
            "labels": {"kubernetes.io/hostname": name} | ({GROUP: "gpu"} if mem else {}),
            "annotations": annotations or {},
        },
        "status": {"allocatable": amounts, "capacity": amounts},
    }


def pod(name: str, mem: int, on: str = "", device: int = 0, **spec: Any) -> Object:
    """A pod of a controller, which runs on a device, or was found unschedulable."""
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    resources = {"limits": {MEM: str(mem)}, "requests": {MEM: str(mem), "cpu": "100m"}}
    return {
        "metadata": {
            "name": name,
            "namespace": "team",
            "uid": name,
            "ownerReferences": [{"kind": "ReplicaSet", "name": "of", "controller": True}],
            "annotations": {ALIYUN.idx: str(device), ALIYUN.pod: str(mem)} if on else {},
        },
        "spec": {"nodeName": on, "containers": [{"name": "main", "resources": resources}], **spec},
        "status": {
            "phase": "Running" if on else "Pending",
            "conditions": [] if on else [condition],
        },
    }


def annotated(item: Object, **annotations: str) -> Object:
    metadata = item["metadata"]
    return {**item, "metadata": {**metadata, "annotations": metadata["annotations"] | annotations}}


def told(nodes: list[Object], pods: list[Object]) -> list[Object]:
    """The nodes with the annotations of the scale-down guard."""
    ledger = Ledger()
    decoded = [NODES.decode(json.dumps(item).encode()) for item in nodes]
    ledger.replace_nodes(node_spec(item, ALIYUN, "GiB") for item in decoded)
    running = [PODS.decode(json.dumps(item).encode()) for item in pods]
    ledger.replace_pods(observe_pod(item, ALIYUN) for item in running)
    own_filters = OwnFilters(NodeStates(map(node_state, decoded)), ledger.taken)
    stay = must_stay([Books.of_pods(ledger.view(), own_filters, {})], load_policy("device-bestfit"))
    return [
        annotated(item, **{DISABLED: "true"}) if item["metadata"]["name"] in stay else item
        for item in nodes
    ]


SUMS = Autoscaler([Group("gpu", node("template"))])
FULL = [pod("ten-0", 10, "a", 0), pod("ten-1", 10, "a", 1)]
BESIDE = [*FULL, pod("eight", 8, "b", 0)]
TWO = [node("a"), node("b")]


def gone(nodes: list[Object], pods: list[Object]) -> Removal | None:
    """The first node that may go."""
    return next(iter(SUMS.scale_down(nodes, pods).may_go), None)


def sum_has_room() -> None:
    assert SUMS.scale_up([node("a")], [*FULL, pod("waits", 8)]).new == {}
    assert SUMS.scale_up([node("a")], [*FULL, pod("waits", 13)]).new == {"gpu": 1}


def from_zero() -> None:
    assert SUMS.scale_up([node("cpu-only", 0)], [pod("waits", 8)]).new == {"gpu": 1}


def from_zero_untold() -> None:
    untold = Autoscaler([Group("gpu", node("template", 0))])
    assert untold.scale_up([node("cpu-only", 0)], [pod("waits", 8)]).new == {}


def from_zero_ignored() -> None:
    ignoring = Autoscaler([Group("gpu", node("template", 0))], {"ignoredResources": [MEM]})
    assert ignoring.scale_up([node("cpu-only", 0)], [pod("waits", 8)]).new == {}
    # Not for want of a group: where no node is there, one comes.
    assert ignoring.scale_up([], [pod("waits", 8)]).new == {"gpu": 1}


def taken_away() -> None:
    assert gone(TWO, BESIDE) == Removal("a", ("ten-0", "ten-1"))
    marked_nodes = told(TWO, BESIDE)
    assert gone(marked_nodes, BESIDE) is None
    assert {item["metadata"]["annotations"].get(DISABLED) for item in marked_nodes} == {"true"}


def made_again() -> None:
    running = [pod("eight", 8, "b", 0), pod("ten-2", 10, "b", 1), pod("ten-3", 10)]
    assert SUMS.scale_up([node("b")], running).new == {}


def told_to_stay() -> None:
    disabled = {DISABLED: "true"}
    nodes = [node("a", annotations=disabled), node("b", annotations=disabled)]
    assert gone(nodes, BESIDE) is None


SCENES: dict[str, Callable[[], None]] = {
    "a node holds 10 + 10, a pod of 8 waits": sum_has_room,
    "a group without nodes, which says `gpu-mem: 32`": from_zero,
    "a group without nodes, which says nothing of gpu-mem": from_zero_untold,
    "the same, with `ignoredResources": from_zero_ignored,
    "a holds 10 + 10, b holds 8": taken_away,
    "their controller makes both tens again": made_again,
    "the same two nodes, both annotated": told_to_stay,
}


@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES.keys())
def test_a_scene_ends_as_the_real_one_did(scene: Callable[[], None]) -> None:
    scene()


def test_the_page_has_these_scenes() -> None:
    table = PAGE.read_text(encoding="utf-8").partition("<!-- scenes -->")[2]
    rows = re.findall(r"^\| (.+?) \|", table.partition("<!-- end")[0], re.M)
    assert rows[0] == "scene"
    for row, scene in zip(rows[2:], SCENES, strict=True):
        assert row.startswith(scene)


def stand_in(name: str, mem: int, *nodes: str) -> Object:
    """A pod that nobody binds, and that may not be where the waiting pod was refused."""
    requirement = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": [*nodes]}
    required = {"nodeSelectorTerms": [{"matchExpressions": [requirement]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    return pod(name, mem, affinity=affinity if nodes else {})


def test_a_stand_in_of_a_whole_node_brings_a_second_one() -> None:
    waits, whole = pod("waits", 8), stand_in("whole", 32)
    assert SUMS.scale_up([node("a")], [*FULL, waits, whole]).new == {"gpu": 1}
    bound_pod = pod("waits", 8, "new", 0)
    assert SUMS.scale_up([node("a"), node("new")], [*FULL, bound_pod, whole]).new == {"gpu": 1}


def test_a_stand_in_like_the_pod_but_elsewhere_brings_one_node() -> None:
    waits, alike = pod("waits", 8), stand_in("alike", 8, "a")
    assert SUMS.scale_up([node("a")], [*FULL, waits, alike]).new == {"gpu": 1}
    bound_pod = pod("waits", 8, "new", 0)
    assert SUMS.scale_up([node("a"), node("new")], [*FULL, bound_pod, alike]).new == {}


def test_several_stand_ins_are_packed_by_sums() -> None:
    alike = [stand_in(f"s{n}", 10, "a") for n in range(4)]
    assert SUMS.scale_up([node("a")], [*FULL, *alike]).new == {"gpu": 2}  # of three a node, by sums
    few = Autoscaler([Group("gpu", node("template"), max_size=2)])
    assert few.scale_up([node("a")], [*FULL, *alike]).new == {"gpu": 1}


@pytest.mark.parametrize(
    "change",
    [
        {"spec": {"nodeName": "", "schedulingGates": [{"name": "x"}], "containers": []}},
        {"status": {"phase": "Pending", "conditions": []}},
        {
            "status": {
                "phase": "Pending",
                "nominatedNodeName": "a",
                "conditions": [
                    {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
                ],
            }
        },
        {
            "status": {
                "phase": "Pending",
                "conditions": [
                    {"type": "PodScheduled", "status": "False", "reason": "SchedulerError"}
                ],
            }
        },
    ],
    ids=["gated", "untried", "nominated", "an error"],
)
def test_who_was_not_found_unschedulable_brings_no_node(change: Object) -> None:
    waits = {**pod("waits", 32), **change}
    if "schedulingGates" in waits["spec"]:
        waits["status"]["conditions"][0]["reason"] = "SchedulingGated"
    assert SUMS.scale_up([node("a")], [*FULL, waits]).new == {}


def test_a_group_does_not_grow_beyond_its_most() -> None:
    full = Autoscaler([Group("gpu", node("template"), max_size=1)])
    result = full.scale_up([node("a")], [*FULL, pod("waits", 13), pod("large", 33)])
    assert result.new == {}
    assert result.outcomes == {
        "team/waits": "gpu: max node group size reached",
        "team/large": "gpu: Insufficient aliyun.com/gpu-mem",
    }


def test_of_each_waiting_pod_it_says_what_becomes_of_it() -> None:
    groups = [Group("cpu", node("c", 0)), Group("gpu", node("g"))]
    pods = [*FULL, pod("fits", 8), pod("grows", 13), pod("never", 33)]
    result = Autoscaler(groups).scale_up([node("a")], pods)
    assert result.new == {"gpu": 1}
    assert result.outcomes == {
        "team/fits": "fits a",
        "team/grows": "gpu grows",
        "team/never": "; ".join(f"{name}: Insufficient {MEM}" for name in ("cpu", "gpu")),
    }
    assert Autoscaler([]).scale_up([node("a")], pods).outcomes["team/never"] == "there is no group"


def of_controller(item: Object, **change: Any) -> Object:
    item["metadata"] |= change.pop("metadata", {})
    item["spec"] |= change.pop("spec", {})
    assert not change
    return item


BUDGET = {
    "metadata": {"name": "one", "namespace": "team"},
    "spec": {"selector": {"matchLabels": {"app": "a"}}},
}


@pytest.mark.parametrize(
    ("reason", "change", "allowed_count"),
    [
        ("NotReplicated", {"metadata": {"ownerReferences": []}}, 0),
        ("UnmovableKubeSystemPod", {"metadata": {"namespace": "kube-system"}}, 0),
        ("NotSafeToEvictAnnotation", {"metadata": {"annotations": {SAFE: "false"}}}, 0),
        ("LocalStorageRequested", {"spec": {"volumes": [{"name": "x", "hostPath": {}}]}}, 0),
        ("LocalStorageRequested", {"spec": {"volumes": [{"name": "x", "emptyDir": {}}]}}, 0),
        ("NotEnoughPdb", {"metadata": {"labels": {"app": "a"}}}, 0),
        ("", {"metadata": {"labels": {"app": "a"}}}, 1),
        ("", {"metadata": {"labels": {"app": "b"}}}, 0),
        ("", {"spec": {"volumes": [{"name": "x", "emptyDir": {"medium": "Memory"}}]}}, 0),
        ("", {"spec": {"volumes": [{"name": "x", "configMap": {"name": "y"}}]}}, 0),
        ("", {"metadata": {"ownerReferences": [], "annotations": {SAFE: "true"}}}, 0),
        (
            "",
            {
                "metadata": {"annotations": {SAFE_VOLUMES: "x, y"}},
                "spec": {"volumes": [{"name": "y", "emptyDir": {}}]},
            },
            0,
        ),
    ],
)
def test_a_pod_that_may_not_be_evicted_keeps_its_node(
    reason: str, change: dict[str, Any], allowed_count: int
) -> None:
    running = of_controller(pod("ten", 10, "a"), **change)
    budget = {**BUDGET, "status": {"disruptionsAllowed": allowed_count}}
    result = SUMS.scale_down(TWO, [running, pod("one", 1, "b")], [budget])
    namespace = running["metadata"]["namespace"]
    assert result.stays == ({"a": f"BlockedByPod {namespace}/ten {reason}"} if reason else {})
    assert result.may_go[-1] == Removal("b", ("one",))


def test_of_each_node_that_stays_it_says_why() -> None:
    busy = pod("busy", 1, "busy")
    busy["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "16"
    going = node("going")
    going["spec"] = {"taints": [{"key": GOING, "effect": "NoSchedule"}]}
    nodes = [
        node("busy"),
        node("cpu-only", 0),
        going,
        node("told", annotations={DISABLED: "true"}),
        node("full"),
    ]
    pods = [busy, *(pod(f"whole-{on}", 32, on) for on in ("full", "told"))]
    assert SUMS.scale_down(nodes, pods).stays == {
        "busy": "NotUnderutilized",
        "cpu-only": "NotAutoscaled",
        "going": "CurrentlyBeingDeleted",
        "told": "ScaleDownDisabledAnnotation",
        "full": "NoPlaceToMovePods",
    }


@pytest.mark.parametrize(("min_size", "stays"), [(1, {}), (2, "NodeGroupMinSizeReached")])
def test_a_group_keeps_its_least(min_size: int, stays: object) -> None:
    autoscaler = Autoscaler([Group("gpu", node("template"), min_size=min_size)])
    result = autoscaler.scale_down(TWO, [])
    assert result.stays == (dict.fromkeys("ab", stays) if stays else {})


@pytest.mark.parametrize(
    "change",
    [
        {"metadata": {"ownerReferences": [{"kind": "DaemonSet", "controller": True}]}},
        {"metadata": {"annotations": {"kubernetes.io/config.mirror": "x"}}},
        {"phase": "Succeeded"},
    ],
    ids=["of a DaemonSet", "static", "ended"],
)
def test_pods_that_need_no_other_place_do_not_keep_a_node(change: dict[str, Any]) -> None:
    running = pod("whole", 32, "a")
    running["status"]["phase"] = change.pop("phase", "Running")
    assert gone([node("a")], [of_controller(running, **change)]) == Removal("a", ())


def test_the_guard_leaves_a_node_that_can_be_emptied() -> None:
    pods = [pod("ten-0", 10, "a", 0), pod("eight", 8, "b", 0)]
    marked_nodes = told(TWO, pods)
    assert gone(marked_nodes, pods) == Removal("b", ("eight",))
