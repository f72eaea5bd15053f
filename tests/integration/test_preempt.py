"""Preempt against the extender process, over HTTP, on pods that the process has bound."""

import json
from pathlib import Path

import pytest

from gpushare_localcluster.api.resources import RESOURCES
from tests.integration.cluster import MEM, PODS, Cluster, Json
from tests.integration.conftest import StartExtender, World
from tests.integration.verbs import Verbs
from tests.support.waiting import poll

PRIORITIES, BUDGETS = (
    next(row for row in RESOURCES if row.plural == plural)
    for plural in ("priorityclasses", "poddisruptionbudgets")
)


def new_pod(cluster: Cluster, units: int, priority: int) -> Json:
    name = f"priority-{priority}"
    if name not in {body["metadata"]["name"] for body in cluster.all(PRIORITIES)}:
        cluster.create(PRIORITIES, "", {"metadata": {"name": name}, "value": priority})
    return cluster.pod(units, spec={"priorityClassName": name})


def running(cluster: Cluster, extender: Verbs, node: str, units: int, priority: int) -> Json:
    """A pod that the extender has bound to the node."""
    pod = new_pod(cluster, units, priority)
    assert extender.bind(pod, node) == ""
    return pod


def uid(pod: Json) -> str:
    return str(pod["metadata"]["uid"])


def preempt(extender: Verbs, pod: Json, **nodes: list[Json]) -> dict[str, list[str]]:
    """The uids of the victims by node that the extender answers; nodes: kube-scheduler's own."""
    victims = {
        node: {"Pods": [{"UID": uid(victim)} for victim in entry], "NumPDBViolations": 0}
        for node, entry in nodes.items()
    }
    body = {"Pod": pod, "NodeNameToVictims": None, "NodeNameToMetaVictims": victims}
    reply = extender.post("preempt", json.dumps(body).encode())
    assert reply.status == 200, reply
    answer = reply.json()["NodeNameToMetaVictims"]
    return {node: [pod["UID"] for pod in those["Pods"]] for node, those in answer.items()}


def test_the_pod_that_frees_a_device_is_named_and_its_end_makes_room(world: World) -> None:
    cluster, extender = world.cluster, world.extender
    node = cluster.node(devices=2, total=32)
    extender.knows(node)
    low = running(cluster, extender, node, 10, 1)
    high = running(cluster, extender, node, 10, 9)
    urgent = new_pod(cluster, 12, 5)
    assert extender.fit(urgent, [node]) == []
    # The watch shows the priorities a moment after the binds.
    poll(lambda: preempt(extender, urgent, **{node: []}) == {node: [uid(low)]}, "low is named")
    assert preempt(extender, urgent, **{node: [high]}) == {}
    cluster.delete_pod(low)
    poll(lambda: extender.fit(urgent, [node]) == [node], "the device is free")
    assert extender.bind(urgent, node) == ""


def test_a_pod_that_is_marked_deleted_spares_the_others(world: World) -> None:
    cluster, extender = world.cluster, world.extender
    node = cluster.node(devices=2, total=32)
    extender.knows(node)
    ends = running(cluster, extender, node, 10, 1)
    running_result = running(cluster, extender, node, 10, 1)
    urgent = new_pod(cluster, 12, 5)
    poll(lambda: bool(preempt(extender, urgent, **{node: []}).get(node)), "one is named")
    cluster.mark_deleted(ends)
    poll(lambda: preempt(extender, urgent, **{node: []}) == {node: []}, "nobody has to go")
    assert preempt(extender, urgent, **{node: [running_result]}) == {node: [uid(running_result)]}
    assert extender.fit(urgent, [node]) == []
    cluster.release(ends)
    poll(lambda: extender.fit(urgent, [node]) == [node], "the memory is free")


@pytest.mark.parametrize("body", [b"", b"{}", b'{"Pod":{},"NodeNameToMetaVictims":[]}'])
def test_nonsense_is_refused_with_a_text(world: World, body: bytes) -> None:
    reply = world.extender.post("preempt", body)
    assert reply.status == 400
    assert reply.json()["error"]


def scheduler_file(folder: Path) -> str:
    """The configuration of a kube-scheduler that lets the extender preempt."""
    entry = {
        "urlPrefix": "http://127.0.0.1:32766/gpushare-scheduler",
        "filterVerb": "filter",
        "preemptVerb": "preempt",
        "bindVerb": "bind",
        "nodeCacheCapable": True,
        "managedResources": [{"name": MEM}],
    }
    head = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
    file = folder / "scheduler.json"
    file.write_text(json.dumps({**head, "extenders": [entry]}))
    return str(file)


def test_a_pod_under_a_budget_is_spared(
    cluster: Cluster, start_extender: StartExtender, tmp_path: Path
) -> None:
    extender = start_extender("--scheduler-config", scheduler_file(tmp_path))
    extender.wait_ready()
    node = cluster.node(devices=2, total=32)
    extender.knows(node)
    low = running(cluster, extender, node, 10, 1)
    mid = running(cluster, extender, node, 10, 2)
    urgent = new_pod(cluster, 12, 5)
    poll(lambda: preempt(extender, urgent, **{node: []}) == {node: [uid(low)]}, "low is named")
    labels = {"app": "db"}
    budget = {
        "metadata": {"name": "db"},
        "spec": {"selector": {"matchLabels": labels}},
        "status": {"disruptionsAllowed": 0},
    }
    cluster.create(BUDGETS, "default", budget)
    cluster.change(
        PODS,
        "default",
        low["metadata"]["name"],
        lambda body: {**body, "metadata": {**body["metadata"], "labels": labels}},
    )
    poll(lambda: preempt(extender, urgent, **{node: []}) == {node: [uid(mid)]}, "mid is named")
    cluster.delete(BUDGETS, "default", "db")
    poll(lambda: preempt(extender, urgent, **{node: []}) == {node: [uid(low)]}, "low again")
