"""The running autoscaler on an API server: each check adds or removes nodes by current objects."""

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import pytest

from gpushare.errors import ApiNotFound, SettingsError
from gpushare_localcluster.api.apiserver import ApiServer
from gpushare_localcluster.api.store import Store
from gpushare_localcluster.autoscaler import (
    DISABLED,
    GROUP,
    GROUPS,
    MAPS,
    STATUS,
    Group,
    RunningAutoscaler,
)
from gpushare_localcluster.client import MERGE_PATCH, ApiClient
from gpushare_localcluster.kubelet import Kubelet
from tests.support.waiting import poll

Object = dict[str, Any]
PODS = "/api/v1/namespaces/default/pods"
MEM = "aliyun.com/gpu-mem"


def read(data: Mapping[str, str]) -> list[Group]:
    """Groups of nodes of 32 units, `LEAST-MOST`."""
    if "wrong" in data:
        raise SettingsError("wrong is no group")
    amounts = {"cpu": "32", "memory": "64Gi", "pods": "110", MEM: "32"}
    template = {"metadata": {}, "status": {"allocatable": amounts, "capacity": amounts}}
    bounds = {name: text.split("-") for name, text in data.items()}
    return [Group(name, template, int(a), int(b)) for name, (a, b) in bounds.items()]


class World:
    """An API server, kubelets, and the autoscaler; pods are bound by the test's hand."""

    def __init__(self) -> None:
        self.server = ApiServer(Store())
        self.server.start()
        self.api = ApiClient(self.server.url, user_agent="test")
        self.told: list[str] = []
        self.under_test = RunningAutoscaler(
            ApiClient(self.server.url, user_agent="autoscaler"),
            read,
            interval=0.02,
            unneeded=0.1,
            report=self.told.append,
        )
        kubelet_api = ApiClient(self.server.url, user_agent="kubelet")
        self.kubelet = Kubelet(kubelet_api, self.server.logs)
        self.kubelet.start()
        self.under_test.start()

    def stop(self) -> None:
        self.under_test.stop()
        self.kubelet.stop()
        self.api.close()
        self.server.stop()

    def groups(self, **data: str) -> None:
        with suppress(ApiNotFound):
            self.api.delete(f"{MAPS}/{GROUPS}")
        self.api.create(MAPS, {"metadata": {"name": GROUPS}, "data": data})

    def node(self, name: str, **annotations: str) -> None:
        (group,) = read({"gpu": "0-9"})
        created = group.node(name)
        created["metadata"]["annotations"] = annotations
        self.api.create("/api/v1/nodes", created)

    def pod(self, name: str, units: int, on: str = "", **labels: str) -> None:
        resources = {"limits": {MEM: str(units)}, "requests": {MEM: str(units), "cpu": "1m"}}
        owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "of", "uid": "of"}
        meta = {"name": name, "labels": labels, "ownerReferences": [{**owner, "controller": True}]}
        container = {"name": "main", "image": "pause", "resources": resources}
        spec = {"containers": [container], **({"nodeName": on} if on else {})}
        self.api.create(PODS, {"metadata": meta, "spec": spec})
        if on:
            poll(lambda: self.phase(name) == "Running", "it runs")
            return
        error = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
        status = {"status": {"conditions": [error]}}
        self.api.patch(f"{PODS}/{name}/status", status, MERGE_PATCH)

    def phase(self, name: str) -> str:
        return str((self.api.get(f"{PODS}/{name}").get("status") or {}).get("phase"))

    def nodes(self) -> list[str]:
        return sorted(item["metadata"]["name"] for item in self.api.get("/api/v1/nodes")["items"])

    def pods(self) -> list[str]:
        return sorted(item["metadata"]["name"] for item in self.api.get(PODS)["items"])

    def status(self) -> Object:
        try:
            result: Object = json.loads(self.api.get(f"{MAPS}/{STATUS}")["data"]["status"])
        except ApiNotFound:
            return {}
        return result


@pytest.fixture
def world() -> Iterator[World]:
    created = World()
    yield created
    created.stop()


def test_a_waiting_pod_brings_one_node_and_is_told_so(world: World) -> None:
    world.pod("waits", 20)
    world.groups(gpu="0-9")
    poll(lambda: world.nodes() == ["gpu-1"], "a node comes")
    poll(lambda: world.status().get("pods") == {"default/waits": "fits gpu-1"}, "it fits by sums")
    (created,) = world.api.get("/api/v1/nodes")["items"]
    assert created["metadata"]["labels"][GROUP] == "gpu"
    events = world.api.get("/api/v1/namespaces/default/events")["items"]
    assert [(item["reason"], item["involvedObject"]["name"]) for item in events] == [
        ("TriggeredScaleUp", "waits")
    ]
    assert world.told == ["node gpu-1 comes, for default/waits"]


def test_a_node_whose_pods_fit_no_other_one_stays(world: World) -> None:
    world.node("a")
    world.node("b")
    world.pod("ten", 10, "a")
    world.pod("most", 30, "b")
    world.groups(gpu="0-9")
    reason = dict.fromkeys("ab", "NoPlaceToMovePods")
    poll(lambda: world.status().get("nodes") == reason, "both stay")
    assert world.told == []


def test_a_node_in_little_use_is_emptied_and_goes(world: World) -> None:
    world.node("a")
    world.node("b")
    world.pod("ten", 10, "a")
    world.pod("two", 2, "b")
    world.groups(gpu="1-9")
    poll(lambda: "is gone" in str(world.told), "one goes")
    is_gone = ({"a", "b"} - {*world.nodes()}).pop()
    assert world.pods() == ["two" if is_gone == "a" else "ten"]
    evicted = "ten" if is_gone == "a" else "two"
    assert world.told == [
        f"node {is_gone} goes, and {evicted} has to leave it",
        f"node {is_gone} is gone",
    ]
    poll(lambda: "NodeGroupMinSizeReached" in str(world.status()), "the other one stays")


def test_an_annotated_node_stays_and_the_status_says_why(world: World) -> None:
    world.node("a", **{DISABLED: "true"})
    world.node("b")
    world.groups(gpu="0-9")
    poll(lambda: world.nodes() == ["a"], "b goes")
    poll(lambda: world.status().get("nodes") == {"a": "ScaleDownDisabledAnnotation"}, "a stays")


def test_a_budget_keeps_a_node_that_was_marked_before(world: World) -> None:
    world.node("a")
    world.node("b")
    world.pod("ten", 10, "a", app="x")
    taint = {"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"}
    world.api.patch("/api/v1/nodes/a", {"spec": {"taints": [taint]}}, MERGE_PATCH)
    budget = {
        "metadata": {"name": "none", "namespace": "default"},
        "spec": {"selector": {"matchLabels": {"app": "x"}}, "maxUnavailable": 0},
        "status": {"disruptionsAllowed": 0},
    }
    world.api.create("/apis/policy/v1/namespaces/default/poddisruptionbudgets", budget)
    world.groups(gpu="1-9")
    poll(lambda: any("stays after all" in text for text in world.told), "it is taken back")
    poll(lambda: world.nodes() == ["a"], "the other one goes")
    assert world.pods() == ["ten"]


def test_without_groups_it_leaves_all_as_it_is(world: World) -> None:
    world.node("a")
    world.pod("waits", 40)
    time.sleep(0.3)
    assert (world.nodes(), world.status(), world.told) == (["a"], {}, [])


def test_a_group_that_cannot_be_read_is_told(world: World) -> None:
    world.groups(wrong="1-2")
    poll(lambda: world.status() == {"error": "wrong is no group"}, "it is told")
    world.groups(gpu="0-1")
    poll(lambda: world.status() == {"pods": {}, "nodes": {}}, "it goes on")
