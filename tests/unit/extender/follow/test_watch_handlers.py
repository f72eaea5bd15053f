"""From the objects of the API server to the books, odd objects included."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import pytest

from gpushare.core.model import Allocation, PodRef, Request, Shares
from gpushare.extender.follow.watch_handlers import (
    NodeEventHandler,
    PodEventHandler,
    UnhealthyEventHandler,
)
from gpushare.extender.managed_resources import ExtenderScope, ManagedResource, ManagedResources
from gpushare.extender.verbs.bind.transaction import BindTransaction, ReadPod
from gpushare.ledger import BINDING_LIFETIME, Changes, LearnedPod, Ledger
from gpushare.wire.annotations import ALIYUN
from gpushare.wire.binding import encode
from gpushare.wire.codec import Codec, Decoded, WatchEvent
from gpushare.wire.inventory import Inventory, decode_inventory
from gpushare.wire.objects import CONFIG_MAPS, NODES, PODS, Pod
from gpushare.wire.pods import observe_pod
from tests.unit.core.clusters import node as make_node
from tests.unit.extender.kit import NPU, managed_resources, node_json, pod_json, read_pod

ASKS = Request(units=4, devices=1, containers=((0, 4),))
_T = TypeVar("_T")

ON_0 = encode(Allocation("n", ((0, 4),)), ASKS, 8, "1", ALIYUN)


@pytest.fixture
def resources() -> Iterator[ManagedResources]:
    created = managed_resources(ALIYUN, NPU)
    yield created
    for item in created:
        item.ledger.check()


@pytest.fixture
def gpus(resources: ManagedResources) -> Ledger:
    return resources.resources[0].ledger


@pytest.fixture
def npus(resources: ManagedResources) -> Ledger:
    return resources.resources[1].ledger


def page(codec: Codec[_T], *items: Mapping[str, Any]) -> Decoded[_T]:
    meta = {"resourceVersion": "7"}
    body = json.dumps({"kind": f"{codec.kind}List", "metadata": meta, "items": items}).encode()
    return codec.decode_list(body)


def event(codec: Codec[_T], kind: str, item: Mapping[str, Any]) -> WatchEvent[_T]:
    return codec.decode_event(json.dumps({"type": kind, "object": item}).encode())


# -- nodes --------------------------------------------------------------------------------------


@pytest.fixture
def nodes(resources: ManagedResources) -> NodeEventHandler:
    return NodeEventHandler(resources, "GiB")


def capacities(ledger: Ledger) -> dict[str, tuple[int, ...]]:
    return {item.spec.name: item.spec.capacity for item in ledger.dump()}


def test_a_list_of_nodes_is_all_there_is(
    nodes: NodeEventHandler, gpus: Ledger, npus: Ledger
) -> None:
    npu = {ALIYUN.resource: "0", NPU.resource: "6", NPU.count: "3"}
    both = node_json("both", 8)
    both["status"] = {"capacity": npu, "allocatable": npu}
    nodes.replace([page(NODES, node_json("a", 16, 2)), page(NODES, both)], 0.0)
    assert capacities(gpus) == {"a": (8, 8)}
    assert capacities(npus) == {"both": (2, 2, 2)}
    nodes.replace([page(NODES, both)], 0.0)
    assert capacities(gpus) == {}


def test_a_node_that_cannot_be_read_stays_as_it_was(nodes: NodeEventHandler, gpus: Ledger) -> None:
    nodes.replace([page(NODES, node_json("a", 8), node_json("b", 8))], 0.0)
    odd = {"metadata": {"name": "a"}, "status": {"capacity": 7}}
    nodes.replace([page(NODES, odd)], 0.0)
    assert capacities(gpus) == {"a": (8,)}
    nodes.apply(event(NODES, "MODIFIED", odd))
    assert capacities(gpus) == {"a": (8,)}
    nodes.apply(event(NODES, "DELETED", odd))
    assert capacities(gpus) == {}
    nodes.apply(WatchEvent("MODIFIED"))


def test_a_node_comes_changes_and_goes(nodes: NodeEventHandler, gpus: Ledger) -> None:
    nodes.apply(event(NODES, "ADDED", node_json("a", 8)))
    nodes.apply(event(NODES, "MODIFIED", node_json("a", 16, 2)))
    assert capacities(gpus) == {"a": (8, 8)}
    nodes.apply(event(NODES, "DELETED", node_json("a", 16, 2)))
    assert capacities(gpus) == {}


@pytest.mark.parametrize("kind", ["ADDED", "MODIFIED", "DELETED"])
def test_a_change_of_a_node_makes_the_layout_and_the_next_snapshot_does_not(
    nodes: NodeEventHandler, gpus: Ledger, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    nodes.replace([page(NODES, node_json("a", 8), node_json("b", 8))], 0.0)
    gpus.snapshot()
    nodes.apply(event(NODES, kind, node_json("c" if kind == "ADDED" else "a", 16, 2)))
    copies = list[object]()
    monkeypatch.setattr("gpushare.core.layout._frozen", copies.append)
    names = {"ADDED": {"a", "b", "c"}, "MODIFIED": {"a", "b"}, "DELETED": {"b"}}
    assert gpus.snapshot().row.keys() == names[kind]
    assert copies == []


def test_an_inventory_that_cannot_be_read_closes_the_node(
    nodes: NodeEventHandler, gpus: Ledger
) -> None:
    broken = node_json("a", 8, 1, **{ALIYUN.inventory: "{"})
    nodes.apply(event(NODES, "ADDED", broken))
    snapshot_result = gpus.snapshot()
    assert not snapshot_result.open.any()
    inventory = json.dumps({"v": 1, "unit": "MiB", "devices": [{"mem": 8}]})
    nodes.apply(event(NODES, "ADDED", node_json("b", 8, 1, **{ALIYUN.inventory: inventory})))
    assert [item.spec.closed for item in gpus.dump()] == []


def test_an_inventory_that_is_unchanged_is_not_parsed_again(
    nodes: NodeEventHandler, gpus: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[str] = []

    def counted(text: str) -> Inventory:
        parsed.append(text)
        return decode_inventory(text)

    monkeypatch.setattr("gpushare.wire.nodes.decode_inventory", counted)
    first, second = (
        json.dumps({"v": 1, "unit": "GiB", "devices": [{"mem": mem}, {"mem": 4}]})
        for mem in (8, 16)
    )

    def shown(text: str, **changes: Any) -> dict[str, Any]:
        node_json_result = node_json("a", 8, 1, **{ALIYUN.inventory: text})
        node_json_result["status"]["allocatable"] |= changes
        return node_json_result

    nodes.replace([page(NODES, shown(first))], 0.0)
    for cpu in ("1", "2"):
        nodes.apply(event(NODES, "MODIFIED", shown(first, cpu=cpu)))
    assert len(parsed) == 1
    assert gpus.snapshot().cpu_capacity.tolist() == [2000]
    nodes.apply(event(NODES, "MODIFIED", shown(second)))
    assert capacities(gpus) == {"a": (16, 4)}
    nodes.apply(event(NODES, "MODIFIED", shown("{")))
    assert not gpus.snapshot().open.any()
    nodes.apply(event(NODES, "MODIFIED", shown(first)))
    assert capacities(gpus) == {"a": (8, 4)}
    assert len(parsed) == 4
    nodes.apply(event(NODES, "DELETED", shown(first)))
    nodes.apply(event(NODES, "ADDED", shown(first)))
    nodes.replace([page(NODES)], 0.0)
    nodes.replace([page(NODES, shown(first))], 0.0)
    assert len(parsed) == 6, "of a node that has gone nothing is kept"


# -- pods ---------------------------------------------------------------------------------------


@pytest.fixture
def pods(resources: ManagedResources) -> PodEventHandler:
    for resource in resources:
        resource.ledger.node_changed(make_node("n", 8, 8))
    return PodEventHandler(resources)


def held(ledger: Ledger) -> dict[str, Shares | None]:
    return {entry.ref.name: entry.placement for entry in ledger.dump("n")[0].entries}


def bound(name: str = "web", **changes: Any) -> dict[str, Any]:
    """A pod bound to n, on device 0 unless other annotations are given."""
    return pod_json(name, 4, **{"node": "n", "annotations": ON_0, **changes})


def test_a_list_of_pods_is_all_there_is(pods: PodEventHandler, gpus: Ledger) -> None:
    pods.replace([page(PODS, bound("a")), page(PODS, bound("b"), pod_json("c", 4))], 0.0)
    assert held(gpus) == {"a": ((0, 4),), "b": ((0, 4),)}
    assert gpus.counts()["waiting"] == 1
    pods.replace([page(PODS, bound("b"))], 0.0)
    assert held(gpus) == {"b": ((0, 4),)}
    assert gpus.counts()["waiting"] == 0


def test_of_a_page_of_large_pods_little_is_kept_until_the_list_is_whole(
    pods: PodEventHandler,
) -> None:
    large = bound(annotations={**ON_0, "note": "x" * 200_000})
    large["metadata"]["labels"] = {f"example.com/{at}": "y" * 60 for at in range(10_000)}
    trim_result = pods.trim(page(PODS, large))
    assert len(repr(trim_result)) < 16_384


def test_a_bound_pod_that_a_list_shows_without_a_node_is_given_back_by_proof(
    pods: PodEventHandler, resources: ManagedResources, gpus: Ledger
) -> None:
    """An etcd that was set back knows nothing of the binding; no watch ever says so."""
    pods.apply(event(PODS, "ADDED", bound()))
    waits = pod_json("web", 4)
    pods.replace([page(PODS, waits)], 100.0)
    assert held(gpus) == {"web": ((0, 4),)}
    request = (resources.resources[0], ASKS)
    bind = BindTransaction(resources, PodRef("team", "web", "uid-web"), "n", True, request, "1")
    assert isinstance(bind.start(100.0, float("inf")), ReadPod), "nothing is bound as it stands"
    (overdue,) = gpus.overdue(100.0)
    observe_pod_result = observe_pod(read_pod(waits), ALIYUN)
    gpus.settle("uid-web", overdue.token, observe_pod_result, 100.0 + BINDING_LIFETIME - 1.0)
    assert held(gpus) == {"web": ((0, 4),)}
    gpus.settle("uid-web", overdue.token, observe_pod_result, 100.0 + BINDING_LIFETIME)
    assert held(gpus) == {}


def test_a_pod_is_charged_where_it_asks_and_is_plain_elsewhere(
    pods: PodEventHandler, gpus: Ledger, npus: Ledger
) -> None:
    pods.apply(event(PODS, "ADDED", bound()))
    assert (held(gpus), held(npus)) == ({"web": ((0, 4),)}, {})
    assert npus.counts()["plain"] == 1


ODD_PODS = [
    pytest.param({"metadata": {"uid": "uid-web", "name": "web"}, "spec": 7}, id="no-spec"),
    pytest.param(pod_json("web", "much", node="n"), id="no-number"),
    pytest.param(bound() | {"metadata": {"uid": "uid-web", "name": "web"}}, id="no-namespace"),
    pytest.param(pod_json("web", "-1", node="n"), id="negative"),
]


@pytest.mark.parametrize("odd", ODD_PODS)
def test_a_pod_that_cannot_be_read_keeps_what_it_holds(
    pods: PodEventHandler, gpus: Ledger, odd: dict[str, Any]
) -> None:
    pods.replace([page(PODS, bound(), bound("other"))], 0.0)
    pods.apply(event(PODS, "MODIFIED", odd))
    assert held(gpus) == {"web": ((0, 4),), "other": ((0, 4),)}


@pytest.mark.parametrize("odd", ODD_PODS)
def test_a_pod_that_cannot_be_read_in_a_list_keeps_what_it_holds(
    pods: PodEventHandler, gpus: Ledger, odd: dict[str, Any]
) -> None:
    pods.replace([page(PODS, bound(), bound("other"))], 0.0)
    pods.replace([page(PODS, odd)], 0.0)
    assert held(gpus) == {"web": ((0, 4),)}


@pytest.mark.parametrize("odd", ODD_PODS)
def test_a_pod_that_is_gone_frees_what_it_held_whatever_it_says(
    pods: PodEventHandler, gpus: Ledger, odd: dict[str, Any]
) -> None:
    pods.apply(event(PODS, "ADDED", bound()))
    pods.apply(event(PODS, "DELETED", odd))
    assert held(gpus) == {}


@pytest.mark.parametrize("kind", ["ADDED", "MODIFIED"])
def test_a_pod_that_has_ended_frees_what_it_held(
    pods: PodEventHandler, gpus: Ledger, kind: str
) -> None:
    pods.apply(event(PODS, "ADDED", bound()))
    pods.apply(event(PODS, kind, bound(phase="Succeeded")))
    assert held(gpus) == {}


def test_a_pod_that_is_being_deleted_holds_on(pods: PodEventHandler, gpus: Ledger) -> None:
    pods.apply(event(PODS, "ADDED", bound()))
    leaving = bound()
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    pods.apply(event(PODS, "MODIFIED", leaving))
    assert held(gpus) == {"web": ((0, 4),)}


@pytest.mark.parametrize(
    "annotations", [{}, {ALIYUN.idx: "x"}, {ALIYUN.idx: "0"} | {ALIYUN.allocation: "{"}]
)
def test_a_bound_pod_is_charged_whatever_its_annotations_say(
    pods: PodEventHandler, gpus: Ledger, annotations: dict[str, str]
) -> None:
    pods.apply(event(PODS, "ADDED", bound(annotations=annotations)))
    used = gpus.dump("n")[0].used
    assert used[0] == 4
    assert used[1] == (0 if annotations.get(ALIYUN.idx) == "0" else 4)


def test_a_bound_pod_is_charged_though_its_cpu_is_more_than_anybody_counts(
    pods: PodEventHandler, gpus: Ledger
) -> None:
    pods.replace([page(PODS, bound(limits={"cpu": "10P"}))], 0.0)
    assert held(gpus) == {"web": ((0, 4),)}


def test_a_nameless_deletion_frees_nobody(pods: PodEventHandler, gpus: Ledger) -> None:
    pods.apply(event(PODS, "ADDED", bound()))
    nothing: WatchEvent[Pod] = WatchEvent("DELETED")
    for odd in (nothing, event(PODS, "DELETED", {"metadata": None})):
        pods.apply(odd)
    assert held(gpus) == {"web": ((0, 4),)}


# -- pods that were created ---------------------------------------------------------------------


@pytest.fixture
def created() -> list[tuple[str, Request]]:
    return []


@pytest.fixture
def watching(resources: ManagedResources, created: list[tuple[str, Request]]) -> PodEventHandler:
    def tell(managed: ManagedResource, changes: Changes, first: bool) -> None:
        for pod, on_node in changes.new:
            if not (first and on_node):
                created.append((managed.names.resource, pod.request))

    return PodEventHandler(resources, tell)


def gpu_sizes(created: list[tuple[str, Request]]) -> list[int]:
    return [request.units for resource, request in created if resource == ALIYUN.resource]


def test_of_the_first_list_only_pods_that_wait_are_new(
    watching: PodEventHandler, created: list[tuple[str, Request]]
) -> None:
    watching.replace([page(PODS, bound("runs"), pod_json("waits", 3))], 0.0)
    assert gpu_sizes(created) == [3]
    watching.apply(event(PODS, "MODIFIED", bound("runs")))
    watching.replace([page(PODS, bound("runs"), pod_json("waits", 3))], 0.0)
    assert gpu_sizes(created) == [3]


def test_a_pod_is_told_once_however_often_it_is_seen(
    watching: PodEventHandler, created: list[tuple[str, Request]]
) -> None:
    watching.replace([page(PODS)], 0.0)
    waits, runs = pod_json("a", 4), bound("a")
    for kind, item in (("ADDED", waits), ("MODIFIED", waits), ("MODIFIED", runs)):
        watching.apply(event(PODS, kind, item))
    watching.replace([page(PODS, runs)], 0.0)
    watching.apply(event(PODS, "DELETED", runs))
    assert gpu_sizes(created) == [4]


def test_a_pod_with_gates_is_told_once_when_they_are_gone_or_never(
    watching: PodEventHandler, created: list[tuple[str, Request]]
) -> None:
    watching.replace([page(PODS)], 0.0)
    gated, deleted, waits = pod_json("a", 4), pod_json("b", 5), pod_json("a", 4)
    for entry in (gated, deleted):
        entry["spec"]["schedulingGates"] = [{"name": "quota"}]
        watching.apply(event(PODS, "ADDED", entry))
    watching.replace([page(PODS, gated, deleted)], 0.0)
    watching.apply(event(PODS, "DELETED", deleted))
    assert gpu_sizes(created) == []
    for item in (waits, gated, waits, bound("a")):
        watching.apply(event(PODS, "MODIFIED", item))
    assert gpu_sizes(created) == [4]


def test_a_pod_that_comes_to_a_node_or_goes_is_told_once_for_each_of_the_books(
    resources: ManagedResources,
) -> None:
    result: list[tuple[str, int]] = []

    def tell(managed: ManagedResource, changes: Changes, first: bool) -> None:
        if not first:
            result.extend((managed.names.resource, 1) for _ in changes.came)
            result.extend((managed.names.resource, -1) for _ in changes.went)

    sink = PodEventHandler(resources, tell)
    names = [resource.names.resource for resource in resources]
    came, went = [(name, 1) for name in names], [(name, -1) for name in names]
    stays, waits = bound("stays"), pod_json("waits", 3)
    sink.replace([page(PODS, bound("runs"), bound("missed"), stays, waits)], 0.0)
    assert result == []
    for kind in ("DELETED", "DELETED"):
        sink.apply(event(PODS, kind, bound("runs")))
    assert result == went
    sink.replace([page(PODS, stays, waits)], 0.0)
    assert result == went * 2
    for kind in ("MODIFIED", "MODIFIED", "DELETED"):
        sink.apply(event(PODS, kind, bound("waits")))
    assert result == went * 2 + came + went
    sink.replace([page(PODS, stays, bound("new"))], 0.0)
    assert result == went * 2 + came + went + came


def test_a_pod_that_never_came_to_a_node_does_not_go_from_one(resources: ManagedResources) -> None:
    result: list[LearnedPod] = []
    sink = PodEventHandler(
        resources, lambda _, changes, __: result.extend(changes.came + changes.went)
    )
    sink.replace([page(PODS, pod_json("waits", 3), pod_json("given-up", 3))], 0.0)
    sink.apply(event(PODS, "DELETED", pod_json("waits", 3)))
    sink.apply(event(PODS, "DELETED", pod_json("never-seen", 1)))
    sink.replace([page(PODS)], 0.0)
    assert result == []


def test_every_pod_after_the_first_list_is_told_bound_or_not_gpu_or_not(
    watching: PodEventHandler, created: list[tuple[str, Request]]
) -> None:
    watching.replace([page(PODS)], 0.0)
    watching.apply(event(PODS, "ADDED", bound("a")))
    watching.apply(event(PODS, "ADDED", pod_json("b", limits={"cpu": "2"})))
    watching.replace([page(PODS, pod_json("missed-by-the-watch", 7))], 0.0)
    assert gpu_sizes(created) == [4, 0, 7]
    assert [request.cpu for _, request in created] == [0, 0, 2000, 2000, 0, 0]


def test_to_other_resources_a_pod_is_one_without_devices(
    watching: PodEventHandler, created: list[tuple[str, Request]]
) -> None:
    watching.replace([page(PODS, pod_json("a", 4))], 0.0)
    assert [(name, request.devices) for name, request in created] == [
        (ALIYUN.resource, 1),
        (NPU.resource, 0),
    ]


def test_a_pod_that_cannot_be_read_is_no_new_one_when_it_can(
    watching: PodEventHandler, created: list[tuple[str, Request]]
) -> None:
    watching.replace([page(PODS, pod_json("web", "much", node="n"))], 0.0)
    watching.apply(event(PODS, "MODIFIED", bound()))
    assert created == []


# -- devices closed by operators ------------------------------------------------------------------


@pytest.fixture
def unhealthy(resources: ManagedResources) -> UnhealthyEventHandler:
    for resource in resources:
        resource.ledger.node_changed(make_node("n", 8, 8, 8))
    return UnhealthyEventHandler(resources)


def config_map(name: str, gpus: str | None) -> dict[str, Any]:
    return {"metadata": {"name": name}, "data": None if gpus is None else {"gpus": gpus}}


def closed(ledger: Ledger) -> list[int]:
    healthy = ledger.dump("n")[0].spec.healthy
    return [device for device, fine in enumerate(healthy) if not fine]


def test_a_config_map_closes_the_devices_it_names(
    unhealthy: UnhealthyEventHandler, gpus: Ledger, npus: Ledger
) -> None:
    name = "unhealthy-gpu-n"
    unhealthy.apply(event(CONFIG_MAPS, "ADDED", config_map(name, "0, 2")))
    assert (closed(gpus), closed(npus)) == ([0, 2], [])
    unhealthy.apply(event(CONFIG_MAPS, "MODIFIED", config_map(name, "1")))
    assert closed(gpus) == [1]
    unhealthy.apply(event(CONFIG_MAPS, "MODIFIED", config_map(name, None)))
    assert closed(gpus) == []
    unhealthy.apply(event(CONFIG_MAPS, "MODIFIED", config_map(name, "1")))
    unhealthy.apply(event(CONFIG_MAPS, "DELETED", config_map(name, "1")))
    assert closed(gpus) == []


def test_each_resource_has_its_own_config_maps(
    unhealthy: UnhealthyEventHandler, gpus: Ledger, npus: Ledger
) -> None:
    unhealthy.replace([page(CONFIG_MAPS, config_map(f"{NPU.unhealthy}n", "1"))], 0.0)
    assert (closed(gpus), closed(npus)) == ([], [1])


@pytest.mark.parametrize("text", ["1,", "x", "-1", "1 2", "1.0", "٣"])
def test_a_config_map_that_makes_no_sense_leaves_what_the_last_good_one_said(
    unhealthy: UnhealthyEventHandler, gpus: Ledger, text: str
) -> None:
    name = "unhealthy-gpu-n"
    unhealthy.apply(event(CONFIG_MAPS, "ADDED", config_map(name, "0")))
    unhealthy.apply(event(CONFIG_MAPS, "MODIFIED", config_map(name, text)))
    assert closed(gpus) == [0]
    unhealthy.replace([page(CONFIG_MAPS, config_map(name, text))], 0.0)
    assert closed(gpus) == [0]


def test_a_config_map_that_cannot_be_decoded_leaves_it_too(
    unhealthy: UnhealthyEventHandler, gpus: Ledger
) -> None:
    name = "unhealthy-gpu-n"
    odd = {"metadata": {"name": name}, "data": 7}
    unhealthy.apply(event(CONFIG_MAPS, "ADDED", config_map(name, "0")))
    unhealthy.apply(event(CONFIG_MAPS, "MODIFIED", odd))
    unhealthy.apply(WatchEvent("MODIFIED"))
    unhealthy.replace([page(CONFIG_MAPS, odd)], 0.0)
    assert closed(gpus) == [0]


def test_a_list_without_its_config_map_opens_the_devices_again(
    unhealthy: UnhealthyEventHandler, gpus: Ledger
) -> None:
    unhealthy.replace([page(CONFIG_MAPS, config_map("unhealthy-gpu-n", "0"))], 0.0)
    assert closed(gpus) == [0]
    unhealthy.replace([page(CONFIG_MAPS, config_map("kube-root-ca.crt", "0"))], 0.0)
    assert closed(gpus) == []


@pytest.mark.parametrize("name", ["gpu-n", "n"])
def test_other_config_maps_say_nothing(
    unhealthy: UnhealthyEventHandler, gpus: Ledger, name: str
) -> None:
    unhealthy.apply(event(CONFIG_MAPS, "ADDED", config_map("unhealthy-gpu-n", "1")))
    for kind in ("ADDED", "DELETED"):
        unhealthy.apply(event(CONFIG_MAPS, kind, config_map(name, "0")))
        assert closed(gpus) == [1]


def test_a_pod_of_another_scheduler_is_one_that_we_are_never_asked_about() -> None:
    scope = ExtenderScope(frozenset([ALIYUN.resource]), frozenset(["gpu"]))
    resources = replace(managed_resources(), scope=scope)
    sink, ledger = PodEventHandler(resources), resources.resources[0].ledger
    for name, scheduler in (("ours", "gpu"), ("theirs", "nobody")):
        pod = pod_json(name, 4)
        pod["spec"]["schedulerName"] = scheduler
        sink.apply(PODS.decode_event(json.dumps({"type": "ADDED", "object": pod}).encode()))
    assert {pod.ref.name: pod.gated for pod in ledger.waiting()} == {"ours": False, "theirs": True}


def test_the_uid_of_a_pod_that_is_gone_is_told() -> None:
    result: list[str] = []
    pods = PodEventHandler(managed_resources(), gone=result.append)
    pods.apply(event(PODS, "ADDED", bound()))
    assert result == []
    pods.apply(event(PODS, "DELETED", bound()))
    assert result == [bound()["metadata"]["uid"]]
