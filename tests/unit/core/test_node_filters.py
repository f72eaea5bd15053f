"""The copy of kube-scheduler's own filters, compared with the local cluster's scheduler.

Other tests compare the plug-ins of the local cluster with kube-scheduler, letter by letter.
"""

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare.core.model import ObservedPod, Reason, Request
from gpushare.core.node_filters import (
    UNSELECTED,
    Availability,
    NodeState,
    NodeStates,
    OwnFilters,
)
from gpushare.core.selectors import Demands, NodeSelectorTerm, Requirement, Taint, Toleration
from gpushare.ledger import Ledger
from gpushare.wire.annotations import ALIYUN
from gpushare.wire.demands import demands_of, node_state
from gpushare.wire.nodes import node_spec
from gpushare.wire.objects import NODES, PODS, Node, Pod
from gpushare.wire.pods import observe_pod
from gpushare_localcluster.scheduler.cache import NodeInfo
from gpushare_localcluster.scheduler.framework import CycleState, FilterPlugin
from gpushare_localcluster.scheduler.objects import read_node, read_pod
from gpushare_localcluster.scheduler.plugins.node import (
    NodeAffinity,
    NodeUnschedulable,
    TaintToleration,
)
from gpushare_localcluster.scheduler.plugins.resources import NodeResourcesFit
from tests.unit.core.clusters import node as make_node

MEM = ALIYUN.resource
PLUGINS: tuple[FilterPlugin, ...] = (
    NodeUnschedulable(),
    TaintToleration(),
    NodeAffinity(),
    NodeResourcesFit(),
)
Json = dict[str, Any]

keys = st.sampled_from(["zone", "tier", "node.kubernetes.io/unschedulable", "gpu"])
values = st.sampled_from(["", "a", "b", "7", "12"])
effects = st.sampled_from(["NoSchedule", "NoExecute", "PreferNoSchedule"])
taints = st.builds(lambda k, v, e: {"key": k, "value": v, "effect": e}, keys, values, effects)
tolerations = st.builds(
    lambda k, o, v, e: {"key": k, "operator": o, "value": v, "effect": e},
    st.one_of(st.just(""), keys),
    st.sampled_from(["Exists", "Equal", ""]),
    values,
    st.one_of(st.just(""), effects),
)
requirements = st.builds(
    lambda k, o, v: {"key": k, "operator": o, "values": v},
    keys,
    st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", "Near"]),
    st.lists(values, max_size=2),
)
names = st.builds(
    lambda o, v: {"key": "metadata.name", "operator": o, "values": [v]},
    st.sampled_from(["In", "NotIn"]),
    st.sampled_from(["n", "m"]),
)
terms = st.builds(
    lambda labels, fields: {"matchExpressions": labels, "matchFields": fields},
    st.lists(requirements, max_size=2),
    st.lists(names, max_size=1),
)
amounts = st.fixed_dictionaries(
    {},
    optional={
        "cpu": st.sampled_from(["100m", "1", "2500m"]),
        "memory": st.sampled_from(["1Gi", "512Mi"]),
        MEM: st.sampled_from(["0", "4", "16"]),
        "nvidia.com/gpu": st.sampled_from(["1", "2"]),
        "ephemeral-storage": st.sampled_from(["1Gi", "3Gi"]),
    },
)
containers = st.builds(
    lambda amounts_, always: {
        "name": "c",
        "resources": {"requests": amounts_, "limits": amounts_},
        **({"restartPolicy": "Always"} if always else {}),
    },
    amounts,
    st.booleans(),
)


@st.composite
def pod_specs(draw: st.DrawFn) -> Json:
    """The fields of a pod that these filters read."""
    spec: Json = {"containers": draw(st.lists(containers, min_size=1, max_size=2))}
    for container in spec["containers"]:
        container.pop("restartPolicy", None)
    spec["initContainers"] = draw(st.lists(containers, max_size=2))
    if draw(st.booleans()):
        spec["nodeSelector"] = draw(st.dictionaries(keys, values, max_size=1))
    if draw(st.booleans()):
        required = {"nodeSelectorTerms": draw(st.lists(terms, max_size=2))}
        affinity = {"requiredDuringSchedulingIgnoredDuringExecution": required}
        spec["affinity"] = {"nodeAffinity": affinity}
    spec["tolerations"] = draw(st.lists(tolerations, max_size=2))
    if draw(st.booleans()):
        spec["overhead"] = {"cpu": "250m"}
    return spec


@st.composite
def nodes(draw: st.DrawFn) -> Json:
    """A node in any state."""
    capacity = {"cpu": "4", "memory": "8Gi", "pods": "110", MEM: "32", ALIYUN.count: "2"}
    capacity |= {"nvidia.com/gpu": "2", "ephemeral-storage": "4Gi"}
    less = {"cpu": ["0", "4"], "memory": ["1Gi"], "pods": ["0", "2"], MEM: ["0", "28"]}
    changes = {name: st.sampled_from(some) for name, some in less.items()}
    allocatable = capacity | draw(st.fixed_dictionaries({}, optional=changes))
    for name in draw(st.lists(st.sampled_from(["nvidia.com/gpu", "ephemeral-storage"]))):
        allocatable.pop(name, None)
    return {
        "metadata": {"name": "n", "labels": draw(st.dictionaries(keys, values, max_size=3))},
        "spec": {
            "unschedulable": draw(st.booleans()),
            "taints": draw(st.lists(taints, max_size=2)),
        },
        "status": {"capacity": capacity, "allocatable": allocatable},
    }


def observed(pod: Json) -> tuple[Pod, ObservedPod]:
    typed = PODS.decode(msgspec.json.encode(pod))
    return typed, observe_pod(typed, ALIYUN)


def pod(name: str, spec: Json, node: str = "") -> Json:
    metadata = {"name": name, "namespace": "team", "uid": name}
    return {"metadata": metadata, "spec": spec | ({"nodeName": node} if node else {})}


@settings(max_examples=400, deadline=None)
@given(nodes(), pod_specs(), st.lists(pod_specs(), max_size=3))
def test_a_pod_is_kept_out_where_a_scheduler_keeps_it_out(
    raw: Json, spec: Json, pods_on_node: list[Json]
) -> None:
    ledger, info = Ledger(), NodeInfo(read_node(raw))
    typed: Node = NODES.decode(msgspec.json.encode(raw))
    ledger.node_changed(node_spec(typed, ALIYUN, "GiB"))
    for number, pod_spec in enumerate(pods_on_node):
        bound_pod = pod(f"there-{number}", pod_spec, "n")
        ledger.pod_changed(observed(bound_pod)[1])
        info = info.with_pod(read_pod(bound_pod))
    filters = OwnFilters(NodeStates([node_state(typed)]), ledger.taken)
    new_pod, view = pod("wanted", spec), read_pod(pod("wanted", spec))
    request, demands = observed(new_pod)
    statuses = [pod_spec.filter(CycleState(), view, info) for pod_spec in PLUGINS]
    obstacles = filters.obstacles("n", demands.request, demands_of(request))
    assert (not obstacles) == all(status.ok for status in statuses), (obstacles, statuses)
    lacks = {pod_spec.resource for pod_spec in obstacles if pod_spec.resource}
    reasons = {reason.removeprefix("Insufficient ") for reason in statuses[-1].reasons}
    assert lacks == {"pods" if text == "Too many pods" else text for text in reasons}


STATE = NodeState("n", {"zone": "a"}, allocatable={"pods": 10, MEM: 16})
LOST = Taint("node.kubernetes.io/unreachable", "", "NoSchedule")
OTHER_NODE = NodeSelectorTerm(fields=(Requirement("metadata.name", "In", ("m",)),))
MINE = Taint("dedicated", "ml", "NoSchedule")
ANY = Toleration(operator="Exists")
LOSS_TAKEN = Toleration("node.kubernetes.io/not-ready", "Exists")


@pytest.mark.parametrize(
    ("changes", "demands", "texts"),
    [
        ({}, {}, []),
        ({"cordoned": True}, {}, ["cordoned"]),
        ({"cordoned": True}, {"tolerations": (ANY,)}, []),
        ({"ready": False}, {}, ["not ready"]),
        ({"ready": False, "taints": (LOST,)}, {}, ["not ready"]),
        ({"ready": False, "taints": (LOST,)}, {"tolerations": (ANY,)}, []),
        ({"taints": (MINE,)}, {}, ["untolerated taint dedicated"]),
        ({"taints": (MINE, Taint("gpu", "", "NoExecute"))}, {},
         ["untolerated taint dedicated", "untolerated taint gpu"]),
        ({"ready": False, "taints": (LOST, MINE)}, {},
         ["not ready", "untolerated taint dedicated"]),
        ({"ready": False, "taints": (MINE,)}, {"tolerations": (LOSS_TAKEN,)},
         ["untolerated taint dedicated"]),
        ({}, {"node_selector": (("zone", "b"),)}, [UNSELECTED.text]),
        ({"labels": None}, {"node_selector": (("zone", "b"),)}, []),
        ({"labels": None}, {"terms": (OTHER_NODE,)}, [UNSELECTED.text]),
        ({"cordoned": True}, {"is_complete": False}, []),
        ({"allocatable": {"pods": 0, MEM: 4}}, {}, ["too many pods even if empty",
         f"too little {MEM} even if empty"]),
        ({"allocatable": {"pods": 9, MEM: 0}}, {}, [f"no {MEM} allocatable"]),
        ({"allocatable": None}, {}, []),
    ],
)  # fmt: skip
def test_each_obstacle_has_its_name(
    changes: dict[str, Any], demands: dict[str, Any], texts: list[str]
) -> None:
    filters = OwnFilters(NodeStates([replace(STATE, **changes)]))
    request = Request(8, 1, resources=((MEM, 8),))
    obstacles = filters.obstacles("n", request, Demands(**demands))
    assert [obstacle.text for obstacle in obstacles] == texts
    assert OwnFilters().obstacles("n", request, Demands(**demands)) == ()


def test_what_is_not_counted_by_kube_scheduler_is_not_short() -> None:
    states = NodeStates([replace(STATE, allocatable={"pods": 10})])
    request = Request(8, 1, resources=((MEM, 8),))
    assert OwnFilters(states).obstacles("n", request)
    assert not OwnFilters(states, ignored=frozenset({MEM})).obstacles("n", request)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({}, ""),
        ({"cordoned": True}, "cordoned"),
        ({"cordoned": True, "ready": False, "taints": (LOST, MINE)},
         "cordoned, not ready, taint dedicated"),
        ({"allocatable": {MEM: 12}}, "allocatable 12 of 16"),
        ({"allocatable": {}}, "plug-in away"),
        ({"allocatable": None}, ""),
    ],
)  # fmt: skip
def test_a_node_is_labelled_by_what_keeps_pods_from_it(changes: dict[str, Any], text: str) -> None:
    assert replace(STATE, **changes).judge(MEM, make_node("n", 8, 8))[1] == text


@pytest.mark.parametrize(
    ("changes", "fields", "availability"),
    [
        ({}, {}, Availability.OPEN),
        ({"taints": (MINE,)}, {}, Availability.TAINTED),
        ({"allocatable": {MEM: 12}}, {}, Availability.OPEN),
        ({"allocatable": {MEM: 0}}, {}, Availability.PLUGIN_AWAY),
        ({"allocatable": {MEM: 0}, "taints": (MINE,)}, {}, Availability.PLUGIN_AWAY),
        ({"allocatable": {MEM: 0}, "ready": False}, {}, Availability.NOT_READY),
        ({"cordoned": True, "ready": False}, {}, Availability.CORDONED),
        ({}, {"closed": Reason.UNEVEN}, Availability.CLOSED),
        ({"allocatable": {MEM: 0}}, {"unhealthy": (0, 1)}, Availability.CLOSED),
        ({}, {"unhealthy": (0,)}, Availability.OPEN),
        # Without an inventory every device counts as unhealthy if nothing is allocatable.
        ({"allocatable": {MEM: 0}}, {"unhealthy": (0, 1), "counted": True},
         Availability.PLUGIN_AWAY),
        ({}, {"unhealthy": (0, 1), "counted": True}, Availability.CLOSED),
        # After five minutes the kubelet says 0 of the capacity too.
        ({"allocatable": {MEM: 0}}, {"capacity": (), "healthy": ()}, Availability.PLUGIN_AWAY),
        ({"allocatable": {}}, {"capacity": (), "healthy": ()}, Availability.OPEN),
    ],
)  # fmt: skip
def test_the_gravest_reason_is_the_state_of_a_node(
    changes: dict[str, Any], fields: dict[str, Any], availability: Availability
) -> None:
    state, spec = replace(STATE, **changes), make_node("n", 8, 8, **fields)
    assert state.judge(MEM, spec)[0] is availability
    assert availability.takes_pods == (availability in ("open", "tainted"))


def test_what_kube_scheduler_does_not_count_need_not_be_advertised() -> None:
    spec, silent = make_node("n", 16), replace(STATE, allocatable={"cpu": 4})
    assert silent.judge(MEM, spec, is_counted=False) == (Availability.OPEN, "")
    assert silent.judge(MEM, spec)[0] is Availability.PLUGIN_AWAY
    away = replace(STATE, allocatable={MEM: 0})
    assert away.judge(MEM, spec, is_counted=False)[0] is Availability.PLUGIN_AWAY


def test_states_are_counted_by_their_changes() -> None:
    states = NodeStates([STATE])
    states.put(STATE)
    assert states.version == 0
    states.put(replace(STATE, cordoned=True))
    states.replace([], keep=["n", "gone"])
    assert (states.version, list(states), states["n"].cordoned) == (2, ["n"], True)
    states.remove("n")
    assert (states.version, len(states)) == (3, 0)


def test_a_list_keeps_the_object_of_an_equal_state() -> None:
    states = NodeStates([STATE])
    states.replace([replace(STATE)])
    assert states["n"] is STATE
    states.replace([replace(STATE, ready=False)])
    assert not states["n"].ready


def test_what_pods_take_is_added_up_anew_after_each_change() -> None:
    ledger = Ledger()
    ledger.node_changed(node_spec(NODES.decode(b'{"metadata":{"name":"n"}}'), ALIYUN, "GiB"))
    pod_spec: Json = {"containers": [{"resources": {"requests": {"cpu": "1", "x/thing": "2"}}}]}
    assert dict(ledger.taken("n")) == {}
    for number in (1, 2):
        ledger.pod_changed(observed(pod(f"p{number}", pod_spec, "n"))[1])
        amounts = {name: amount for name, amount in ledger.taken("n").items() if amount}
        assert amounts == {"cpu": 1000 * number, "pods": number, "x/thing": 2 * number}
    ledger.pod_gone("p1")
    assert ledger.taken("n")["pods"] == 1
    ledger.node_gone("n")
    assert ledger.taken("n") == {}


LABELS = st.dictionaries(st.sampled_from("ab"), st.sampled_from("12"), max_size=2)
REQUIREMENTS = st.lists(
    st.builds(
        Requirement, st.sampled_from("ab"), st.sampled_from(["In", "NotIn"]), st.just(("1",))
    ),
    max_size=2,
)
TERMS = st.none() | st.lists(st.builds(NodeSelectorTerm, REQUIREMENTS.map(tuple)), max_size=2).map(
    tuple
)
DEMANDS = st.builds(Demands, LABELS.map(lambda labels: tuple(sorted(labels.items()))), TERMS)


@given(DEMANDS, DEMANDS, LABELS)
def test_what_two_pods_demand_of_one_node_is_what_both_demand(
    one: Demands, two: Demands, labels: dict[str, str]
) -> None:
    both_select = one.selects("n", labels) and two.selects("n", labels)
    assert one.both(two).selects("n", labels) == both_select


def test_two_pods_tolerate_what_both_tolerate() -> None:
    gpu, spot = Toleration("gpu", "Exists"), Toleration("spot", "Exists")
    demands = Demands(tolerations=(gpu, spot)).both(Demands(tolerations=(gpu,), gated=True))
    assert (demands.tolerations, demands.gated, demands.is_complete) == ((gpu,), True, True)
    assert not Demands(is_complete=False).both(Demands()).is_complete
