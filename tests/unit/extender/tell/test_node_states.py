"""Metrics, page, inspect, explain and event agree on the state of a node."""

import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gpushare.cli.documents import report_document
from gpushare.cli.facts import read_node
from gpushare.cli.report import make_report
from gpushare.core.model import ObservedPod, PodRef, Reason, Request
from gpushare.core.node_filters import Availability
from gpushare.explain.document import document
from gpushare.explain.pod import explain_pod
from gpushare.extender.follow.watch_handlers import NodeEventHandler
from gpushare.extender.tell.events.mistaken_pods import MistakenPods
from gpushare.extender.tell.metrics import Metrics
from gpushare.extender.tell.page.document import Documents
from gpushare.extender.tell.written_metrics import DeviceMetrics
from gpushare.wire.annotations import ALIYUN
from gpushare.wire.codec import WatchEvent
from tests.unit.cli.fake_kubectl import inventory
from tests.unit.cli.fake_kubectl import node as node_json
from tests.unit.extender.kit import pod_json, read_pod
from tests.unit.extender.kit import read_node as typed_node
from tests.unit.extender.scripted_extender import ScriptedExtender

Json = dict[str, Any]
GIB = 2**30
TAINT = {"key": "dedicated", "value": "", "effect": "NoSchedule"}


def cordon(node: Json) -> None:
    node["spec"] = {"unschedulable": True}


def stop_kubelet(node: Json) -> None:
    node["status"]["conditions"] = [{"type": "Ready", "status": "Unknown"}]


def stop_plugin(node: Json) -> None:
    node["status"]["allocatable"][ALIYUN.resource] = "0"


def break_devices(node: Json) -> None:
    devices = inventory(16, 16, healthy=False)
    node["metadata"]["annotations"]["gpushare.io/devices"] = json.dumps(devices)


def taint(node: Json) -> None:
    node["spec"] = {"taints": [TAINT]}


CASES: dict[Availability, tuple[Callable[[Json], None], str]] = {
    Availability.CORDONED: (cordon, "on x once it is uncordoned"),
    Availability.NOT_READY: (stop_kubelet, "on x once it is ready"),
    Availability.PLUGIN_AWAY: (
        stop_plugin,
        "on x once its device plug-in offers aliyun.com/gpu-mem again",
    ),
    Availability.CLOSED: (break_devices, "on x once closed device 1 returns"),
    Availability.TAINTED: (taint, "on x once its taint dedicated is gone"),
    Availability.OPEN: (lambda _: None, ""),
}
"""By state, what brings a node into it, and what helps a pod that would fit there."""


def samples(text: bytes, name: str) -> dict[tuple[str, ...], float]:
    """The samples of a metric of our resource, by their other labels in alphabetical order."""
    return {
        tuple(value for key, value in sorted(sample.labels.items()) if key != "resource"): (
            sample.value
        )
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
        if sample.name == f"gpushare_{name}" and sample.labels["resource"] == ALIYUN.resource
    }


@pytest.mark.parametrize("state", CASES)
def test_a_node_has_the_same_state_wherever_it_is_told(state: Availability) -> None:
    """One node is full, and another, in that state, has memory for the pod that waits."""
    change, remedy = CASES[state]
    raw_nodes = [
        node_json("full", inventory=inventory(16)),
        node_json("x", inventory=inventory(16, 16)),
    ]
    change(raw_nodes[1])
    extender = ScriptedExtender()
    resources, (managed, _) = extender.resources, extender.resources.resources
    for name in managed.ledger.view().nodes:
        managed.ledger.node_gone(name)
    handler = NodeEventHandler(resources, "GiB")
    for raw in raw_nodes:
        handler.apply(WatchEvent("ADDED", typed_node(raw)))
    full = ObservedPod(PodRef("team", "big", "uid-big"), Request(16, 1), "full", ((0, 16),))
    managed.ledger.pod_changed(full)

    metrics = Metrics(resources, GIB, dict).text()
    assert samples(metrics, "node_state") == {("full", "open"): 1, ("x", state): 1}
    free = samples(metrics, "device_memory_free_bytes")
    usable = 16.0 if state.takes_pods else 0.0
    assert {place: value / GIB for place, value in free.items()} == {
        ("0", "full"): 0,
        ("0", "x"): usable,
        ("1", "x"): usable,
    }
    unavailable = samples(metrics, "memory_unavailable_bytes")
    assert {of: value / GIB for (of,), value in unavailable.items() if value} == (
        {} if state.takes_pods else {state: 32}
    )

    page = json.loads(documents_of(extender).body())["resources"][0]
    facts = [facts for raw in raw_nodes if (facts := read_node(raw, ALIYUN)) is not None]
    report = report_document(make_report(facts, [], ALIYUN))
    for shown in (page["nodes"], report["nodes"]):
        x = shown[1]
        assert (x["name"], x["state"]) == ("x", state.value)
        assert x["free"] == 2 * usable
    assert [bool(node["unavailable"]) for node in page["nodes"]] == [False, not state.takes_pods]

    waiting = pod_json("late", 4)
    explained = explain_pod(read_pod(waiting), resources.resources, "GiB", now=time.time())
    text = " ".join(document(explained)["lines"])
    # kube-scheduler leaves out nodes that it does not let the pod onto.
    called = ["full", "x"] if state in (Availability.OPEN, Availability.CLOSED) else ["full"]
    answer = extender.filter(waiting, called)
    notes = [note for _, reason, note in extender.heard.events if reason == "GPUShareNoFit"]
    if state is Availability.OPEN:
        assert (answer["NodeNames"], notes) == (["x"], [])
    else:
        assert remedy in text
        assert remedy in notes[0]


def documents_of(extender: ScriptedExtender) -> Documents:
    return Documents(
        extender.resources,
        "GiB",
        extender.hour,
        not_ready=str,
        called=bool,
        mistaken_pods=MistakenPods(extender.resources, "GiB", time.monotonic),
    )


def test_a_change_of_the_state_alone_makes_page_and_metrics_anew() -> None:
    extender = ScriptedExtender()
    handler = NodeEventHandler(extender.resources, "GiB")
    raw = node_json("x", inventory=inventory(16, 16))
    handler.apply(WatchEvent("ADDED", typed_node(raw)))
    documents, metrics = documents_of(extender), DeviceMetrics(GIB)
    bodies, texts = [documents.body()], [metrics.text(extender.resources)]
    for change in (cordon, stop_plugin):
        change(raw)
        handler.apply(WatchEvent("MODIFIED", typed_node(raw)))
        bodies.append(documents.body())
        texts.append(metrics.text(extender.resources))
    free = [samples(text, "device_memory_free_bytes")["0", "x"] / GIB for text in texts]
    assert free == [16, 0, 0]
    shown = [json.loads(body)["resources"][0]["nodes"][-1] for body in bodies]
    assert [(node["free"], node["unavailable"]) for node in shown] == [
        (32, None),
        (0, "cordoned"),
        (0, "cordoned, plug-in away"),
    ]


def test_a_node_without_inventory_stays_when_its_plugin_has_been_away_for_long() -> None:
    """The kubelet then says 0 of its capacity."""
    extender = ScriptedExtender()
    handler, managed = NodeEventHandler(extender.resources, "GiB"), extender.resources.resources[0]
    raw = node_json("x", 32, 2)
    handler.apply(WatchEvent("ADDED", typed_node(raw)))
    pod = ObservedPod(PodRef("team", "big", "uid-big"), Request(16, 1), "x", ((0, 16),))
    managed.ledger.pod_changed(pod)
    for amounts in (raw["status"]["allocatable"], raw["status"]["capacity"]):
        amounts[ALIYUN.resource] = "0"
        handler.apply(WatchEvent("MODIFIED", typed_node(raw)))
        states = samples(Metrics(extender.resources, GIB, dict).text(), "node_state")
        assert states["x", "plug-in away"] == 1
        x = json.loads(documents_of(extender).body())["resources"][0]["nodes"][-1]
        assert (x["name"], x["unavailable"], x["allocated"]) == ("x", "plug-in away", 16)
    managed.ledger.pod_gone("uid-big")  # the node may serve something else now
    states = samples(Metrics(extender.resources, GIB, dict).text(), "node_state")
    assert not [node for node, _ in states if node == "x"]
    assert "x" not in [
        node["name"] for node in json.loads(documents_of(extender).body())["resources"][0]["nodes"]
    ]


def test_a_node_that_cannot_be_read_is_closed() -> None:
    extender = ScriptedExtender()
    handler = NodeEventHandler(extender.resources, "GiB")
    handler.apply(WatchEvent("ADDED", typed_node(node_json("x", inventory="nonsense"))))
    states = samples(Metrics(extender.resources, GIB, dict).text(), "node_state")
    assert states["x", "closed"] == 1
    x = json.loads(documents_of(extender).body())["resources"][0]["nodes"][-1]
    assert (x["state"], x["unavailable"]) == ("closed", Reason.BROKEN_INVENTORY.value)
