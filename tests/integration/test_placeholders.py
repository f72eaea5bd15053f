"""Placeholders on an API server, and the decisions of cluster-autoscaler's rules about them.

The reflectors, the client and the books are the real ones; the clocks of the placeholders are the
test's.
"""

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from gpushare.extender.follow.placeholders import AFTER_JOIN, Placeholders
from gpushare.extender.follow.shown import Shown
from gpushare.extender.follow.watch_handlers import NodeEventHandler, PodEventHandler
from gpushare.kube.client import connect
from gpushare.kube.listwatch import ListWatch
from gpushare.kube.reflector import Reflector
from gpushare.wire.objects import NODES as NODE_CODEC
from gpushare.wire.objects import PODS as POD_CODEC
from gpushare.wire.placeholders import FOR, Placeholder
from gpushare_localcluster.autoscaler import Autoscaler, Group
from tests.integration.cluster import MARK, NODES, PODS, Cluster
from tests.integration.wired import QUICK
from tests.support.waiting import poll
from tests.unit.extender.kit import managed_resources

REFUSED = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}


class Asking:
    """The placeholders of a process that follows the cluster."""

    def __init__(self, cluster: Cluster, kubeconfig: str, namespace: str = "kube-system") -> None:
        self.cluster = cluster
        self.late = 0.0
        self.client = connect(kubeconfig, pool_size=4, user_agent="asking")
        resources = self.resources = managed_resources()
        (self.managed,) = resources
        known_items = Shown[Placeholder]()
        pods = PodEventHandler(resources, placeholders=known_items)
        self.reflectors: list[Reflector[Any, Any]] = [
            Reflector(
                self.client,
                ListWatch("/api/v1/nodes", NODE_CODEC, timing=QUICK),
                NodeEventHandler(resources, "GiB"),
            ),
            Reflector(self.client, ListWatch("/api/v1/pods", POD_CODEC, timing=QUICK), pods),
        ]
        self.known = known_items
        self.under_test = Placeholders(
            self.client,
            resources,
            known_items,
            namespace,
            not_ready=lambda: "",
            clock=lambda: time.monotonic() + self.late,
            wall=lambda: time.time() + self.late,
        )
        for reflector in self.reflectors:
            reflector.start()
        poll(lambda: all(reflector.status.synced for reflector in self.reflectors), "it follows")
        self.under_test.round()
        self.late += AFTER_JOIN

    def stop(self) -> None:
        for reflector in self.reflectors:
            reflector.stop()
        self.client.close()

    def sees_refused_beside(self, node: str) -> None:
        """Wait until both watches have shown the new objects: each watch has its own delay."""
        poll(
            lambda: (
                node in self.resources.node_states
                and any(item.gated for item in self.managed.ledger.waiting())
            ),
            "the node is known, and the pod as refused",
        )

    def there(self) -> list[dict[str, Any]]:
        """The placeholders that the API server has."""
        pods = self.cluster.all(PODS)
        return [pod for pod in pods if FOR in (pod["metadata"].get("labels") or {})]


@pytest.fixture
def asking(cluster: Cluster, tmp_path: Path) -> Iterator[Asking]:
    asking_object = Asking(cluster, cluster.kubeconfig(tmp_path))
    yield asking_object
    asking_object.stop()


def template() -> dict[str, Any]:
    amounts = {"cpu": "96", "memory": "768Gi", "pods": "110", "aliyun.com/gpu-mem": "32"}
    return {"metadata": {"name": "template"}, "status": {"allocatable": amounts}}


def test_one_node_comes_and_nothing_is_left(cluster: Cluster, asking: Asking) -> None:
    autoscaler = Autoscaler([Group("gpu", template())])

    def coming() -> Mapping[str, int]:
        return autoscaler.scale_up(cluster.all(NODES), cluster.all(PODS)).new

    full = cluster.node()
    for place in ("0", "1"):
        cluster.pod(10, spec={"nodeName": full}, annotations={f"{MARK}IDX": place})
    pod = cluster.pod(8)
    name = pod["metadata"]["name"]
    status = {"phase": "Pending", "conditions": [REFUSED]}
    cluster.change(PODS, "default", name, lambda body: {**body, "status": status})
    asking.sees_refused_beside(full)
    asking.late += AFTER_JOIN
    assert asking.under_test.round()
    asking.late += AFTER_JOIN
    assert coming() == {}
    assert asking.under_test.round()
    (there_result,) = asking.there()
    assert there_result["metadata"]["labels"] == {FOR: pod["metadata"]["uid"]}
    assert there_result["status"]["conditions"][0]["reason"] == "Unschedulable"
    assert coming() == {"gpu": 1}
    poll(
        lambda: [item.unschedulable for item in asking.known.all().values()] == [True],
        "the watch shows it",
    )
    assert asking.under_test.round()
    assert len(asking.there()) == 1
    new = cluster.node()
    poll(lambda: new in asking.resources.node_states, "the new node is known")
    assert coming() == {}
    cluster.change(
        PODS, "default", name, lambda body: {**body, "spec": {**body["spec"], "nodeName": new}}
    )
    assert coming() == {}
    poll(lambda: not asking.managed.ledger.waiting(), "it is known to be bound")
    assert asking.under_test.round()
    assert asking.there() == []


def test_switched_off_nothing_is_left(cluster: Cluster, asking: Asking, tmp_path: Path) -> None:
    full = cluster.node()
    for place in ("0", "1"):
        cluster.pod(10, spec={"nodeName": full}, annotations={f"{MARK}IDX": place})
    name = cluster.pod(8)["metadata"]["name"]
    status = {"phase": "Pending", "conditions": [REFUSED]}
    cluster.change(PODS, "default", name, lambda body: {**body, "status": status})
    asking.sees_refused_beside(full)
    asking.late += AFTER_JOIN
    asking.under_test.round()
    asking.late += AFTER_JOIN
    asking.under_test.round()
    assert len(asking.there()) == 1
    asking_object = Asking(cluster, cluster.kubeconfig(tmp_path), namespace="")
    try:
        poll(
            lambda: asking_object.under_test.round() and not asking_object.there(), "it is deleted"
        )
    finally:
        asking_object.stop()
