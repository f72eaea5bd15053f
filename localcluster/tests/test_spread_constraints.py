"""Spread by default constraints: the pods, the selector, and the scores.

Expected scores are computed by hand from scoring.go of kube-scheduler 1.37.
"""

from typing import Any

import pytest

from gpushare.errors import SettingsError
from gpushare.wire.label_selectors import selects
from gpushare_localcluster.scheduler.cache import NodeInfo, Snapshot
from gpushare_localcluster.scheduler.framework import Code, CycleState
from gpushare_localcluster.scheduler.handle import Handle
from gpushare_localcluster.scheduler.objects import PodView, read_node, read_pod
from gpushare_localcluster.scheduler.plugins.topology_spread import PodTopologySpread
from gpushare_localcluster.scheduler.scheduler import OtherObjects

Json = dict[str, Any]
ZONE = "topology.kubernetes.io/zone"
OWNER = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-1", "controller": True}


def pod(name: str, app: str = "web", *, owned: bool = True, owner: Json = OWNER) -> PodView:
    owners = [owner] if owned else []
    meta = {"name": name, "uid": name, "namespace": "ns", "labels": {"app": app}}
    return read_pod({"metadata": {**meta, "ownerReferences": owners}, "spec": {}})


def node(name: str, zone: str, *pods: PodView) -> NodeInfo:
    labels = {"kubernetes.io/hostname": name} | ({ZONE: zone} if zone else {})
    info = NodeInfo(read_node({"metadata": {"name": name, "labels": labels}}))
    for item in pods:
        info = info.with_pod(item)
    return info


def known(kind: str, name: str, selector: Json, namespace: str = "ns") -> OtherObjects:
    other_objects = OtherObjects()
    meta = {"name": name, "namespace": namespace}
    other_objects.on_selecting(kind, None, {"metadata": meta, "spec": {"selector": selector}})
    return other_objects


def scores(plugin: PodTopologySpread, new_pod: PodView, nodes: list[NodeInfo]) -> dict[str, int]:
    state = CycleState()
    assert plugin.pre_score(state, new_pod, nodes).ok
    raw = {item.name: plugin.score(state, new_pod, item) for item in nodes}
    return plugin.normalize_score(state, new_pod, raw)


def plugin(other_objects: OtherObjects, nodes: list[NodeInfo], args: Json | None = None) -> Any:
    snapshot = Snapshot(tuple(nodes))
    handle = Handle(snapshot=snapshot, default_selector=other_objects.default_selector)
    return PodTopologySpread(args, handle)


REPLICA_SET = known("ReplicaSet", "web-1", {"matchLabels": {"app": "web"}})


def test_pods_of_a_replica_set_go_to_other_nodes_and_zones() -> None:
    nodes = [node("a1", "a", pod("old")), node("a2", "a"), node("b1", "b")]
    result = scores(plugin(REPLICA_SET, nodes), pod("new"), nodes)
    assert result == {"a1": 66, "a2": 88, "b1": 100}


def test_without_zones_the_nodes_count_alone() -> None:
    nodes = [node("n1", "", pod("old")), node("n2", "")]
    # n1: log(4) + 2 = 3.39, n2: 2.
    assert scores(plugin(REPLICA_SET, nodes), pod("new"), nodes) == {"n1": 66, "n2": 100}


def test_a_pod_of_nobody_is_not_spread() -> None:
    nodes = [node("a1", "a", pod("old"))]
    for alone in (pod("new", owned=False), pod("new", "other", owned=False)):
        status = plugin(REPLICA_SET, nodes).pre_score(CycleState(), alone, nodes)
        assert status.code is Code.SKIP


def test_services_and_the_controller_select_together() -> None:
    other_objects = known("Service", "web", {"app": "web"})
    assert other_objects.default_selector(pod("p", owned=False)) == {
        "matchLabels": {"app": "web"},
        "matchExpressions": [],
    }
    assert other_objects.default_selector(pod("p", "other")) is None
    expression = {"key": "app", "operator": "Exists"}
    spec = {"selector": {"matchExpressions": [expression]}}
    meta = {"name": "web-1", "namespace": "ns"}
    other_objects.on_selecting("ReplicaSet", None, {"metadata": meta, "spec": spec})
    assert other_objects.default_selector(pod("p")) == {
        "matchLabels": {"app": "web"},
        "matchExpressions": [expression],
    }
    namesake = OWNER | {"apiVersion": "apps.example.com/v1"}
    only_service = {"matchLabels": {"app": "web"}, "matchExpressions": []}
    assert other_objects.default_selector(pod("p", owner=namesake)) == only_service
    other_objects.on_selecting("ReplicaSet", {"metadata": meta, "spec": spec}, None)
    elsewhere = known("Service", "web", {"app": "web"}, namespace="other")
    assert elsewhere.default_selector(pod("p")) is None


def test_a_controller_that_asks_for_another_label_than_the_service_selects_nobody_with_it() -> None:
    other_objects = known("Service", "web", {"app": "web"})
    meta = {"name": "web-1", "namespace": "ns"}
    spec = {"selector": {"matchLabels": {"app": "old"}}}
    other_objects.on_selecting("ReplicaSet", None, {"metadata": meta, "spec": spec})
    selector = other_objects.default_selector(pod("p"))
    assert not any(selects(selector, {"app": app}) for app in ("web", "old"))


def test_a_list_of_ones_own_takes_the_systems_place() -> None:
    hard = {"maxSkew": 1, "topologyKey": ZONE, "whenUnsatisfiable": "DoNotSchedule"}
    nodes = [node("a1", "a", pod("old")), node("b1", "b")]
    created = plugin(REPLICA_SET, nodes, {"defaultingType": "List", "defaultConstraints": [hard]})
    state = CycleState()
    created.pre_filter(state, pod("new"), nodes)
    rejected, used = (created.filter(state, pod("new"), item) for item in nodes)
    assert rejected.reasons == ("node(s) didn't match pod topology spread constraints",)
    assert used.ok
    assert created.pre_score(state, pod("new"), nodes).code is Code.SKIP


@pytest.mark.parametrize(
    ("args", "refusal"),
    [
        ({"defaultConstraints": [{}]}, "defaultingType: must be System, or List"),
        ({"defaultingType": "X"}, "defaultingType: must be System, or List"),
        (
            {"defaultingType": "List", "defaultConstraints": [{"topologyKey": "a"}]},
            r"defaultConstraints\[0\]: needs a maxSkew above 0",
        ),
        (
            {
                "defaultingType": "List",
                "defaultConstraints": [{"maxSkew": 1, "topologyKey": "a"}],
            },
            r"defaultConstraints\[0\].whenUnsatisfiable: DoNotSchedule or ScheduleAnyway",
        ),
    ],
)
def test_wrong_defaults_are_refused(args: Json, refusal: str) -> None:
    with pytest.raises(SettingsError, match=refusal):
        PodTopologySpread(args)
