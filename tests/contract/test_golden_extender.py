"""Recorded clusters of the original over HTTP: equal answers, byte for byte.

The table below has every intended difference with its reason. The recorded lists reach the books as
from a reflector, without an API server.
"""

import json
import math
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from werkzeug.test import Client

from gpushare.core.policy import load_policy, policy_names
from gpushare.core.ranking import Ranking
from gpushare.daemon.callers import Callers
from gpushare.extender.door.app import Routes, build_app
from gpushare.extender.follow.watch_handlers import NodeEventHandler, PodEventHandler
from gpushare.extender.managed_resources import ManagedResource, ManagedResources
from gpushare.extender.service import Service
from gpushare.extender.verbs.bind.binder import Binder
from gpushare.extender.verbs.tickets import BindSlots
from gpushare.ledger import Ledger
from gpushare.wire.annotations import ALIYUN
from gpushare.wire.objects import NODES, PODS
from tests.support.scripted_api import ScriptedApi

GOLDEN = Path(__file__).parents[1] / "data" / "golden" / "aliyun"
CASES = sorted(path.name for path in GOLDEN.iterdir())
UNITS = ("1", "8", "17")
A16 = {"totalGPU": 16}

TOO_LARGE = "GPU Memory request is larger than any healthy device"
NO_DEVICE = "no shared GPU"
NOT_FOR_SHARE = "The node cpu-only is not for GPU share, need skip"
ONE_DEVICE = "Insufficient GPU Memory in one device"


class Moved(NamedTuple):
    """A node refused in other words, and as one that no preemption can help."""

    theirs: str
    ours: str


FILTER_DIFFERENCES = (
    # 17 units never fit a card of 16. The original says "busy", so kube-scheduler would try to
    # preempt pods there, in vain.
    Moved(ONE_DEVICE, TOO_LARGE),
    # kube-scheduler counts nodes by equal text ("3 no shared GPU"); a text with a name in it makes
    # one line for each node. Nor can preemption give the node a GPU.
    Moved(NOT_FOR_SHARE, NO_DEVICE),
)
"""In these files no pod is busy anywhere where 17 units are asked for, so each refusal is moved."""


def device(index: int, *pods: tuple[str, int]) -> dict[str, Any]:
    shown_text = [{"name": name, "namespace": "default", "usedGPU": units} for name, units in pods]
    return {"id": index, **A16, "usedGPU": sum(units for _, units in pods), "pods": shown_text}


def node(devices: list[dict[str, Any]], used: int, **more: object) -> dict[str, Any]:
    total = 16 * len(devices)
    shape = {"name": "gpu-node-a", "totalGPU": total, "usedGPU": used, "devs": devices}
    return {"nodes": [{**shape, **more}]}


INSPECT_DIFFERENCES: dict[str, tuple[dict[str, Any], str]] = {
    "allocation-map": (
        node(
            [
                device(0, ("spread", 8)),
                device(1, ("spread", 4)),
                device(2),
                device(3, ("spread", 4)),
            ],
            16,
        ),
        "the original's extender believes IDX, its command line the container map: here they name"
        " different devices, and each of these may be the one that the pod uses",
    ),
    "index-beyond": (
        node(
            [device(0), device(1, ("beta", 1))],
            5,
            unplaced=[{"name": "alpha", "namespace": "default", "usedGPU": 4}],
        ),
        "the original drops a pod whose index is beyond the devices and gives its memory out again",
    ),
    "pending-and-done": (
        node(
            [device(0), device(1), device(2, ("alpha", 4)), device(3)],
            7,
            unplaced=[{"name": "no-annotation", "namespace": "default", "usedGPU": 3}],
        ),
        "the original drops a bound pod without an index and gives its memory out again",
    ),
}
LIST_DIFFERENCES: dict[str, tuple[str, str]] = {
    "empty": (
        "inspect-node.json",
        "the original lists a node only once it was asked about; we list all that share devices",
    ),
}


def cluster(case: str) -> Any:
    """The recorded objects, with every bound pod running, as no kubelet was recorded."""
    lists = json.loads((GOLDEN / case / "cluster.json").read_text())
    for pod in lists["pods"]["items"]:
        if pod["spec"].get("nodeName") and pod["status"].get("phase") == "Pending":
            pod["status"]["phase"] = "Running"
    return lists


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def client(case: str, ledger: Ledger) -> Client:
    """A client of the extender with the recorded cluster in the books."""
    rankings = {name: Ranking(load_policy(name)) for name in policy_names()}
    resources = ManagedResources((ManagedResource(ALIYUN, ledger, rankings, "device-bestfit"),))
    lists = cluster(case)
    unit = "MiB" if case.endswith("mib") else "GiB"
    NodeEventHandler(resources, unit).replace([NODES.decode_list(encoded(lists["nodes"]))], 0.0)
    PodEventHandler(resources).replace([PODS.decode_list(encoded(lists["pods"]))], 0.0)
    no_api = ScriptedApi(forever=AssertionError("filter and inspect do without the API server"))
    binder = Binder(no_api, resources, lambda: math.inf)
    service = Service(
        resources,
        binder,
        not_ready=lambda: "",
        bind_slots=BindSlots(64),
    )
    return build_app(service, Routes(), 1 << 20, Callers()).test_client()


def encoded(document: object) -> bytes:
    return json.dumps(document).encode()


def ask(client: Client, case: str, units: str) -> dict[str, Any]:
    names = [node["metadata"]["name"] for node in cluster(case)["nodes"]["items"]]
    limits = {"limits": {"aliyun.com/gpu-mem": units}}
    pod = {
        "metadata": {"name": "asked", "namespace": "default", "uid": "u"},
        "spec": {"containers": [{"name": "c", "resources": limits}]},
    }
    body = {"Pod": pod, "Nodes": None, "NodeNames": [*names, "nosuch"]}
    answer = client.post("/gpushare-scheduler/filter", json=body)
    return {"status": answer.status_code, **json.loads(answer.get_data())}


@pytest.mark.parametrize("units", UNITS)
def test_filter_answers_as_recorded(client: Client, case: str, units: str) -> None:
    recorded = json.loads((GOLDEN / case / "filter.json").read_text())[units]
    result = ask(client, case, units)
    assert sorted(result.keys() - {"status"}) == recorded.pop("keys")
    differences = dict(FILTER_DIFFERENCES)
    theirs = recorded["FailedNodes"]
    expected = {
        **recorded,
        "FailedNodes": {name: text for name, text in theirs.items() if text not in differences},
        "FailedAndUnresolvableNodes": {
            name: differences[text] for name, text in theirs.items() if text in differences
        },
        "Nodes": None,
    }
    assert result == expected


def test_inspect_answers_as_recorded(client: Client, case: str) -> None:
    recorded = "inspect.json"
    if case in LIST_DIFFERENCES:
        recorded, _reason = LIST_DIFFERENCES[case]
    assert_inspect(client, "/gpushare-scheduler/inspect", case, recorded)


def test_inspect_of_one_node_answers_as_recorded(client: Client, case: str) -> None:
    name = json.loads((GOLDEN / case / "inspect-node.json").read_text())["nodes"][0]["name"]
    assert_inspect(client, f"/gpushare-scheduler/inspect/{name}", case, "inspect-node.json")


def assert_inspect(client: Client, path: str, case: str, recorded: str) -> None:
    expected = (GOLDEN / case / recorded).read_text().strip()
    if case in INSPECT_DIFFERENCES:
        our_value, _reason = INSPECT_DIFFERENCES[case]
        assert json.loads(expected) != our_value
        expected = json.dumps(our_value, separators=(",", ":"))
    answer = client.get(path)
    assert answer.status_code == 200
    assert answer.get_data(as_text=True) == expected


def test_an_unknown_node_is_said_to_be_unknown_where_the_original_fell_over(client: Client) -> None:
    answer = client.get("/gpushare-scheduler/inspect/nosuch")
    assert answer.status_code == 404
    assert json.loads(answer.get_data()) == {"error": "node 'nosuch' is not known"}


def test_every_difference_listed_is_one() -> None:
    texts = [
        text
        for item in CASES
        for answer in json.loads((GOLDEN / item / "filter.json").read_text()).values()
        for text in answer["FailedNodes"].values()
    ]
    assert {differences.theirs for differences in FILTER_DIFFERENCES} <= set(texts)
    assert INSPECT_DIFFERENCES.keys() | LIST_DIFFERENCES.keys() <= set(CASES)
