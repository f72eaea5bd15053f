"""`kubectl inspect gpushare` prints the recorded output of the original, byte for byte, and charges
what the books charge.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.cli.facts import read_node
from gpushare.cli.lister import Observed, Scope
from gpushare.cli.report import NodeLine, PodLine, Report, make_report
from gpushare.cli.tables import details, summary
from gpushare.errors import WireError
from gpushare.ledger import Ledger
from gpushare.wire.annotations import ALIYUN
from gpushare.wire.demands import node_state
from gpushare.wire.inspect import encode_inspect
from gpushare.wire.inventory import decode_unhealthy
from gpushare.wire.nodes import node_spec
from gpushare.wire.objects import NODES, PODS
from gpushare.wire.pods import observe_pod

GOLDEN = Path(__file__).parents[1] / "data" / "golden" / "aliyun"
CASES = sorted(path.name for path in GOLDEN.iterdir())
COMMANDS = {"summary": (), "details": (), "node": ("NODE",), "node-details": ("NODE",)}

BEYOND_SUMMARY = """\
NAME        IPADDRESS  GPU0(Allocated/Total)  GPU1(Allocated/Total)  PENDING(Allocated)  GPU Memory(GiB)
gpu-node-a  10.9.0.1   0/16                   1/16                   4                   5/32
---------------------------------------------------------
Allocated/Total GPU Memory In Cluster:
5/32 (15%)  
"""  # noqa: E501, W291  # to the byte
BEYOND_DETAILS = """\

NAME:       gpu-node-a
IPADDRESS:  10.9.0.1

NAME         NAMESPACE  GPU0(Allocated)  GPU1(Allocated)  Pending(Allocated)  
alpha        default    0                0                4                   
beta         default    0                1                0                   
Allocated :  5 (15%)    
Total :      32         
---------------------------------------------------


Allocated/Total GPU Memory In Cluster:  5/32 (15%)  
"""  # noqa: W291
EITHER_SUMMARY = """\
NAME        IPADDRESS  GPU0(Allocated/Total)  GPU1(Allocated/Total)  GPU2(Allocated/Total)  GPU3(Allocated/Total)  GPU Memory(GiB)
gpu-node-a  10.9.0.1   8/16                   4/16                   0/16                   4/16                   16/64
------------------------------------------------------------------
Allocated/Total GPU Memory In Cluster:
16/64 (25%)  
"""  # noqa: E501, W291  # to the byte
EITHER_DETAILS = """\

NAME:       gpu-node-a
IPADDRESS:  10.9.0.1

NAME         NAMESPACE  GPU0(Allocated)  GPU1(Allocated)  GPU2(Allocated)  GPU3(Allocated)  
spread       default    8                4                0                4                
Allocated :  16 (25%)   
Total :      64         
----------------------------------


Allocated/Total GPU Memory In Cluster:  16/64 (25%)  
"""  # noqa: W291

# (cluster, command) -> (our output, reason)
DIFFERENT = {
    ("index-beyond", command): (text, "a pod whose index the node lacks is pending, not lost")
    for command, text in {
        "summary": BEYOND_SUMMARY,
        "node": BEYOND_SUMMARY,
        "details": BEYOND_DETAILS,
        "node-details": BEYOND_DETAILS,
    }.items()
} | {
    ("allocation-map", command): (text, "IDX and the map name other devices: it may be on each")
    for command, text in {
        "summary": EITHER_SUMMARY,
        "node": EITHER_SUMMARY,
        "details": EITHER_DETAILS,
        "node-details": EITHER_DETAILS,
    }.items()
}


def cluster(case: str) -> Any:
    return json.loads((GOLDEN / case / "cluster.json").read_text())


def report_of(
    nodes: list[Any],
    pods: list[Any],
    only: tuple[str, ...] = (),
    closed_nodes: Mapping[str, str] = {},
) -> Report:
    observed = Observed(ALIYUN, Scope(only))
    for name, gpus in closed_nodes.items():
        metadata = {"name": ALIYUN.unhealthy + name}
        observed.take_config_map({"metadata": metadata, "data": {"gpus": gpus}})
    for node in nodes:
        observed.take_node(node)
    for pod in pods:
        observed.take_pod(pod)
    values = (observed.nodes.values(), observed.pods.values())
    return make_report(*values, ALIYUN, closed_devices=observed.closed_devices)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("case", CASES)
def test_the_output_is_the_recorded_one(case: str, command: str) -> None:
    objects = cluster(case)
    nodes = objects["nodes"]["items"]
    gpu_node = next(
        node["metadata"]["name"] for node in nodes if ALIYUN.resource in node["status"]["capacity"]
    )
    only = (gpu_node,) if COMMANDS[command] else ()
    report = report_of(nodes, objects["pods"]["items"], only)
    printed = details(report) if "details" in command else summary(report)
    recorded = (GOLDEN / case / f"{command}.txt").read_text()
    instead, _why = DIFFERENT.get((case, command), (recorded, ""))
    assert printed == instead


@pytest.mark.parametrize(("case", "command"), DIFFERENT)
def test_a_difference_is_one(case: str, command: str) -> None:
    """An entry that the original would print itself does not belong into the table."""
    assert (GOLDEN / case / f"{command}.txt").read_text() != DIFFERENT[case, command][0]


def books_of(nodes: list[Any], pods: list[Any]) -> Ledger:
    """The extender's books of these objects, decoded by its codecs."""
    ledger = Ledger()
    result = NODES.decode_list(json.dumps({"kind": "NodeList", "items": nodes}).encode())
    values = PODS.decode_list(json.dumps({"kind": "PodList", "items": pods}).encode())
    assert result.bad == values.bad == ()
    ledger.replace_nodes(node_spec(node, ALIYUN, "GiB") for node in result.items)
    for pod in values.items:
        try:
            ledger.pod_changed(observe_pod(pod, ALIYUN))
        except WireError:
            continue  # the extender keeps the pod out of the books and reports it
    return ledger


def any_cores(node: NodeLine) -> bool:
    return any(pod.cores for pod in node.pods)


def as_inspect(report: Report) -> Any:
    """The report in the form of the extender's inspect document."""

    def pod_as(pod: PodLine, units: int, node: NodeLine) -> dict[str, object]:
        values = {"name": pod.ref.name, "namespace": pod.ref.namespace, "usedGPU": units}
        return values | ({"usedCores": pod.cores} if any_cores(node) else {})

    return [
        {
            "name": node.name,
            "totalGPU": node.total,
            "usedGPU": node.allocated,
            "devs": [
                {
                    "id": device.index,
                    "totalGPU": device.total,
                    "usedGPU": device.allocated,
                    **({"usedCores": device.cores} if any_cores(node) else {}),
                    "pods": [
                        pod_as(pod, units, node)
                        for pod in node.pods
                        for index, units in pod.shares
                        if index == device.index
                    ],
                }
                for device in node.devices
            ],
            **(
                {"unplaced": [pod_as(pod, pod.units, node) for pod in node.pods if not pod.shares]}
                if node.unplaced
                else {}
            ),
        }
        for node in report.nodes
        if node.devices
    ]


def must_agree(nodes: list[Any], pods: list[Any], closed_gpus: Mapping[str, str] = {}) -> None:
    """closed_gpus: the closed devices in ConfigMaps, by node."""
    report, ledger = report_of(nodes, pods, closed_nodes=closed_gpus), books_of(nodes, pods)
    for name, gpus in closed_gpus.items():
        ledger.set_unhealthy(name, decode_unhealthy({"gpus": gpus}))
    assert as_inspect(report) == json.loads(encode_inspect(ledger.dump()))["nodes"]
    snapshot = ledger.snapshot()
    free, cores_free = snapshot.free.tolist(), snapshot.cores_free.tolist()
    # The books of a node count devices that a ConfigMap closes; a node without devices has none.
    with_closed = {books.spec.name: books.spec for books in ledger.dump()}
    specs = ledger.entries_and_specs()[1] | with_closed
    for node in report.nodes:
        row = snapshot.row[node.name]
        assert node.state is not None
        judged = node.state.judge(ALIYUN.resource, specs[node.name], is_counted=False)
        assert judged[0] is node.availability
        takes_pods = node.availability.takes_pods
        used = snapshot.used[row].tolist()
        for device in node.devices:
            assert used[device.index] == device.allocated + node.unplaced
            assert device.free == (free[row][device.index] if takes_pods else 0)
            percent = int(snapshot.cores_used[row][device.index])
            assert percent == device.cores + node.unplaced_cores
            assert device.cores_free == (cores_free[row][device.index] if takes_pods else 0)
            is_open = takes_pods and bool(snapshot.open[row][device.index])
            remaining = max(device.total - used[device.index], 0) if is_open else 0
            assert device.free + device.stranded == remaining
            assert not (device.free and device.stranded)
    closed_nodes = {books.spec.name for books in ledger.dump() if books.spec.closed}
    assert closed_nodes == {
        node.name for node in report.nodes if node.closed_reason and node.devices
    }


@pytest.mark.parametrize("case", CASES)
def test_recorded_clusters_show_what_the_books_charge(case: str) -> None:
    objects = cluster(case)
    must_agree(objects["nodes"]["items"], objects["pods"]["items"])


QUANTITIES = st.sampled_from(["0", "1", "2", "3", "4", "7", "16", "1k", "6.0", 8, "1.5", "x", "-1"])
AMOUNTS = st.sampled_from([None, "0", "0", "1", "2", "3", "7", "32", "32", "65", "-1", "x"])
DEVICE = st.builds(
    lambda mem, healthy: {"mem": mem, "healthy": healthy, "uuid": "GPU-1", "model": "A100"},
    st.integers(0, 80),
    st.booleans(),
)
INVENTORY = st.one_of(
    st.just(None),
    st.sampled_from(["", "nonsense", '{"v":2}', '{"v":1,"unit":"GiB","devices":[{"mem":-1}]}']),
    st.lists(DEVICE, max_size=4).map(
        lambda devices: json.dumps({"v": 1, "unit": "GiB", "devices": devices})
    ),
)


def resources(**amounts: object) -> dict[str, object]:
    names = {"mem": ALIYUN.resource, "count": ALIYUN.count, "cores": ALIYUN.cores}
    return {names[key]: amount for key, amount in amounts.items() if amount is not None}


@st.composite
def nodes_of(draw: st.DrawFn) -> list[Any]:
    return [
        {
            "metadata": {
                "name": f"node-{number}",
                "annotations": {"gpushare.io/devices": text}
                if (text := draw(INVENTORY)) is not None
                else None,
            },
            "status": {
                "capacity": resources(mem=draw(AMOUNTS), count=draw(AMOUNTS)),
                "allocatable": resources(mem=draw(AMOUNTS), count=draw(AMOUNTS)),
            },
        }
        for number in range(draw(st.integers(1, 3)))
    ]


CONTAINER = st.builds(
    lambda limit, request, cores, restart: {
        "resources": {
            "limits": resources(mem=limit, cores=cores),
            "requests": resources(mem=request),
        },
        "restartPolicy": restart,
    },
    st.none() | QUANTITIES,
    st.none() | QUANTITIES,
    st.sampled_from([None, None, "0", "30", "60", "100", "250", "x"]),
    st.sampled_from([None, "Always"]),
)
ANNOTATIONS = st.fixed_dictionaries(
    {},
    optional={
        "ALIYUN_COM_GPU_MEM_IDX": st.sampled_from(["0", "1", "0,1", "1,1", "5", "-1", "", "x"]),
        "ALIYUN_COM_GPU_MEM_ASSIGNED": st.sampled_from(["true", "false", ""]),
        "aliyun.com/gpu-count": st.sampled_from(["1", "2", "0", "x"]),
        "gpushare.io/policy": st.sampled_from(["spread", "no policy!"]),
        "gpushare.io/use-models": st.sampled_from(["a100", ","]),
        "scheduler.framework.gpushare.allocation": st.sampled_from(
            ['{"0":{"0":2}}', '{"0":{"0":1,"1":1}}', '{"0":{"9":2}}', "{", '{"1":{"0":3}}', "[]"]
        ),
    },
)


@st.composite
def pods_of(draw: st.DrawFn) -> list[Any]:
    return [
        {
            "metadata": {
                "name": f"pod-{draw(st.integers(0, 2))}",
                "namespace": draw(st.sampled_from(["default", "team"])),
                "uid": f"uid-{number}",
                "annotations": draw(ANNOTATIONS),
            },
            "spec": {
                "nodeName": draw(st.sampled_from(["node-0", "node-0", "node-1", "gone", "", None])),
                "containers": draw(st.lists(CONTAINER, max_size=3)),
                "initContainers": draw(st.none() | st.lists(CONTAINER, max_size=2)),
            },
            "status": {"phase": draw(st.sampled_from(["Running", "Pending", "Failed", None]))},
        }
        for number in range(draw(st.integers(0, 5)))
    ]


CLOSED = st.dictionaries(
    st.sampled_from(["node-0", "node-1", "gone"]),
    st.sampled_from(["", "0", "1", "0, 2", "GPU-1", "63"]),
    max_size=2,
)


TAINT = st.fixed_dictionaries(
    {"effect": st.sampled_from(["NoSchedule", "PreferNoSchedule", "NoExecute"])},
    optional={
        "key": st.sampled_from(["team", "node.kubernetes.io/unschedulable"]),
        "value": st.sampled_from(["", "a", None]),
    },
)
AMOUNT_OF = st.dictionaries(
    st.sampled_from(["cpu", "memory", "pods", "aliyun.com/gpu-mem", "example.com/x"]),
    st.sampled_from(["0", "8", "1500m", "0.5", "32Gi", "1e3", 7, "x", "-1"]),
)
NODE_STATE = st.fixed_dictionaries(
    {
        "labels": st.none() | st.dictionaries(st.sampled_from(["pool", "zone"]), st.just("x")),
        "spec": st.fixed_dictionaries(
            {},
            optional={
                "taints": st.none() | st.lists(TAINT, max_size=3),
                "unschedulable": st.sampled_from([True, False, None]),
            },
        ),
        "status": st.fixed_dictionaries(
            {"capacity": AMOUNT_OF},
            optional={
                "allocatable": st.none() | AMOUNT_OF,
                "conditions": st.lists(
                    st.fixed_dictionaries(
                        {
                            "type": st.sampled_from(["Ready", "DiskPressure"]),
                            "status": st.sampled_from(["True", "False", "Unknown"]),
                        }
                    ),
                    max_size=2,
                ),
            },
        ),
    }
)


@given(NODE_STATE)
def test_any_node_tells_the_command_line_what_it_tells_the_extender(parts: dict[str, Any]) -> None:
    """Fields for kube-scheduler's own filters."""
    annotations = {"gpushare.io/devices": '{"v":1,"unit":"GiB","devices":[{"mem":8}]}'}
    metadata = {"name": "n", "labels": parts["labels"], "annotations": annotations}
    node = {"metadata": metadata, "spec": parts["spec"], "status": parts["status"]}
    listing = {"kind": "NodeList", "metadata": {}, "items": [node]}
    page = NODES.decode_list(json.dumps(listing).encode())
    facts = read_node(node, ALIYUN)
    assert facts is not None
    assert facts.state == node_state(page.items[0])


@given(nodes_of(), pods_of(), CLOSED)
def test_any_cluster_shows_what_the_books_charge(
    nodes: list[Any], pods: list[Any], closed_nodes: dict[str, str]
) -> None:
    must_agree(nodes, pods, closed_nodes)
