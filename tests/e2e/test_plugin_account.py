"""The writes of the device plug-in's account on a real kube-apiserver with config/device-plugin: by
roles, and by the policy that restricts the account to its own node.
"""

import json
from collections.abc import Iterator

import pytest

from gpushare.wire.annotations import ALIYUN
from gpushare.wire.device_list import DEVICE_LIST, DeviceList, encode_device_list
from tests.contract.apiserver.client import Api, Json
from tests.e2e.conftest import MakePlane
from tests.e2e.objects import COUNT, NODES, Objects
from tests.e2e.plane import Plane
from tests.e2e.test_tenants import annotated, as_plugin, refused, sees
from tests.e2e.world import apply

INVENTORY = {
    ALIYUN.inventory: json.dumps({"v": 1, "unit": "GiB", "devices": [{"mem": 16}]}),
    DEVICE_LIST: encode_device_list(DeviceList("cdi-cri", "a reason")),
}


@pytest.fixture(scope="module")
def plane(make_plane: MakePlane) -> Plane:
    result = make_plane()
    apply(result, "device-plugin")
    objects = result.objects()
    name = objects.node(devices=1, units=16)
    plugin = as_plugin(result, "other")
    sees(objects, lambda: refused(plugin.patch(f"{NODES}/{name}", annotated(own="x"))))
    return result


@pytest.fixture
def objects(plane: Plane) -> Iterator[Objects]:
    result = plane.objects()
    yield result
    result.clear()


def bound(objects: Objects, node: str) -> Json:
    pod = objects.pod(4)
    binding = {
        "metadata": {"name": pod["metadata"]["name"], "annotations": {ALIYUN.assigned: "false"}},
        "target": {"name": node},
    }
    reply = objects.api.create(f"{objects.path(pod)}/binding", binding)
    assert reply.status == 201, reply.body
    return pod


def test_it_writes_its_node_and_marks_the_pods_of_it(plane: Plane, objects: Objects) -> None:
    node = objects.node(devices=0, units=0)
    plugin: Api = as_plugin(plane, node)
    text = {"metadata": {"annotations": INVENTORY, "labels": {"gpushare": "true"}}}
    assert plugin.patch(f"{NODES}/{node}", text).status == 200
    amounts = {COUNT: "1"}
    count = {"status": {"capacity": amounts, "allocatable": amounts}}
    assert plugin.patch(f"{NODES}/{node}/status", count).status == 200
    pod = bound(objects, node)
    mark = {"uid": pod["metadata"]["uid"], **annotated(**{ALIYUN.assigned: "true"})["metadata"]}
    assert plugin.patch(objects.path(pod), {"metadata": mark}).status == 200
    neighbours = {ALIYUN.given: '{"GPU-b":4}'}
    assert plugin.patch(objects.path(pod), annotated(**neighbours)).status == 200
    second = {"metadata": {**mark, "uid": "00000000-0000-4000-8000-000000000000"}}
    assert plugin.patch(objects.path(pod), second).status == 422  # as marker.py expects it


def test_it_writes_nothing_else(plane: Plane, objects: Objects) -> None:
    node = objects.node(devices=1, units=16)
    plugin = as_plugin(plane, node)
    pod = bound(objects, node)
    path = objects.path(pod)
    assert refused(plugin.patch(path, annotated(**{ALIYUN.idx: "0"})), "its marks")
    assert refused(plugin.patch(path, {"metadata": {"labels": {"a": "b"}}}), "no other label")
    image = {"spec": {"activeDeadlineSeconds": 1}}
    assert refused(plugin.patch(path, image), "neither the spec")
    cordon = {"spec": {"unschedulable": True}}
    assert refused(plugin.patch(f"{NODES}/{node}", cordon), "neither the spec")
    amounts = {"status": {"capacity": {"cpu": "1"}}}
    assert refused(plugin.patch(f"{NODES}/{node}/status", amounts), "alone")
    # No right at all.
    assert plugin.patch(f"{path}/status", {"status": {"phase": "Failed"}}).status == 403
    assert plugin.delete(path).status == 403
    assert objects.api.get(path).body["metadata"].get("labels") is None


def test_it_does_not_touch_other_nodes_or_their_pods(plane: Plane, objects: Objects) -> None:
    node, second = objects.node(devices=1, units=16), objects.node(devices=1, units=16)
    plugin = as_plugin(plane, second)
    pod = bound(objects, node)
    mark = annotated(**{ALIYUN.assigned: "true"})
    assert refused(plugin.patch(objects.path(pod), mark), "its own node")
    assert refused(plugin.patch(f"{NODES}/{node}", {"metadata": {"labels": {"gpushare": "x"}}}))
