"""A real kube-scheduler places pods through our extender on a real API server."""

import json
import random

import pytest

from tests.contract.apiserver.client import Json
from tests.e2e.objects import PODS
from tests.e2e.processes import until
from tests.e2e.world import World
from tests.integration.oracle import asked

IDX = "ALIYUN_COM_GPU_MEM_IDX"


def test_pods_land_on_the_tightest_device_that_has_room(world: World) -> None:
    objects = world.objects
    node = objects.node(devices=2, units=16)
    landed = [objects.lands(objects.pod(units), world.told) for units in (10, 12, 4, 6)]
    assert landed == [(node, {0: 10}), (node, {1: 12}), (node, {1: 4}), (node, {0: 6})]


def test_a_pod_of_several_devices_gets_them_on_one_node(world: World) -> None:
    objects = world.objects
    objects.node(devices=1, units=16)
    node = objects.node(devices=2, units=16)
    pod = objects.pod(16, annotations={"aliyun.com/gpu-count": "2"})
    assert objects.lands(pod, world.told) == (node, {0: 8, 1: 8})


def test_annotations_and_node_arrive_in_one_write(world: World) -> None:
    objects = world.objects
    node = objects.node()
    pod = objects.pod(5, schedulingGates=[{"name": "example.com/wait"}])
    version = pod["metadata"]["resourceVersion"]
    name = pod["metadata"]["name"]
    query = {"fieldSelector": f"metadata.name={name}", "resourceVersion": version}
    with world.api.watch(PODS, **query) as stream:
        objects.patch(f"{PODS}/{name}", {"spec": {"schedulingGates": None}})
        collected: list[Json] = []
        while not collected or not collected[-1]["spec"].get("nodeName"):
            event = stream.next()
            assert event["type"] == "MODIFIED"
            collected.append(event["object"])
    *before, bound_pod = collected
    assert not [IDX for body in before if IDX in body["metadata"].get("annotations", {})]
    assert bound_pod["spec"]["nodeName"] == node
    assert bound_pod["metadata"]["annotations"][IDX] == "0"
    assert (
        objects.get(pod)["metadata"]["resourceVersion"] == bound_pod["metadata"]["resourceVersion"]
    )


def test_a_pod_of_no_gpu_is_none_of_our_business(world: World) -> None:
    objects = world.objects
    node = objects.node(devices=0)
    pod = objects.pod(0)
    assert objects.lands(pod, world.told) == (node, {})
    assert IDX not in objects.get(pod)["metadata"].get("annotations", {})


@pytest.mark.timeout(400)
def test_no_device_is_over_committed_when_hundreds_of_pods_arrive_at_once(world: World) -> None:
    objects = world.objects
    for _ in range(25):
        objects.node(devices=4, units=16)  # 1,600 units in all
    dice = random.Random(7)
    # Some 2,700 units.
    pods = objects.many([dice.choice((1, 2, 3, 5, 8, 13)) for _ in range(500)])

    def full() -> bool:
        """Whether nothing that is pending would fit anywhere."""
        document = objects.inspect()
        free = max(
            device["totalGPU"] - device["usedGPU"]
            for node in document["nodes"]
            for device in node["devs"]
        )
        names = {pod["metadata"]["name"] for pod in pods}
        return not any(
            asked(body, "aliyun.com/gpu-mem") <= free
            for body in objects.pods()
            if body["metadata"]["name"] in names and not body["spec"].get("nodeName")
        )

    until(full, world.told, 240.0)
    objects.sound()


def test_a_device_that_becomes_free_goes_to_the_pod_that_waits_for_one(world: World) -> None:
    objects = world.objects
    node = objects.node(devices=2, units=16)
    pods = [objects.pod(10) for _ in range(2)]
    for pod in pods:
        objects.lands(pod, world.told)
    pending_pod = objects.pod(9)
    objects.refusal(pending_pod, "1 Insufficient GPU Memory in one device")
    objects.delete(pods[1])
    path, values = objects.lands(pending_pod, world.told)
    assert path == node
    assert list(values.values()) == [9]
    objects.sound()


def test_memory_of_a_deleted_pod_goes_to_the_pod_that_waits(world: World) -> None:
    objects = world.objects
    node = objects.node(devices=1, units=16)
    first = objects.pod(10)
    objects.lands(first, world.told)
    pending_pod = objects.pod(9)
    # kube-scheduler knows the sum by itself, and never asks us about this node.
    objects.refusal(pending_pod, "1 Insufficient aliyun.com/gpu-mem")
    objects.delete(first)
    assert objects.lands(pending_pod, world.told) == (node, {0: 9})


def test_the_reason_of_each_node_reaches_the_pods_events(world: World) -> None:
    objects = world.objects
    objects.node(devices=2, units=16)
    for _ in range(2):
        objects.lands(objects.pod(10), world.told)
    # The node has 12 free and kube-scheduler lets it through; no device has 8.
    objects.refusal(objects.pod(8), "0/1 nodes", "1 Insufficient GPU Memory in one device")
    # No device is as large as that, though the node is when empty.
    objects.delete(*objects.pods())
    large = objects.pod(20)
    objects.refusal(large, "1 GPU Memory request is larger than any healthy device")


def test_a_gated_pod_holds_nothing_until_its_gate_is_opened(world: World) -> None:
    objects = world.objects
    objects.node(devices=1, units=16)
    gated = objects.pod(10, schedulingGates=[{"name": "example.com/wait"}])
    objects.lands(objects.pod(10), world.told)
    assert not objects.node_of(gated)
    objects.patch(f"{PODS}/{gated['metadata']['name']}", {"spec": {"schedulingGates": None}})
    objects.refusal(gated, "1 Insufficient aliyun.com/gpu-mem")


def test_a_pod_that_is_on_its_way_out_holds_its_memory_until_it_is_gone(world: World) -> None:
    objects = world.objects
    node = objects.node(devices=2, units=16)
    # A kubelet must confirm the deletion, and there is none.
    leaving = objects.pod(16, terminationGracePeriodSeconds=600)
    assert objects.lands(leaving, world.told) == (node, {0: 16})
    objects.lands(objects.pod(9), world.told)
    assert world.api.delete(objects.path(leaving)).status == 200
    assert "deletionTimestamp" in objects.get(leaving)["metadata"]
    pending_pod = objects.pod(7)
    assert objects.lands(pending_pod, world.told) == (node, {1: 7})
    last = objects.pod(10)
    objects.refusal(last, "1 Insufficient aliyun.com/gpu-mem")
    objects.sound()
    objects.delete(leaving)
    assert objects.lands(last, world.told) == (node, {0: 10})


def test_a_pod_under_the_name_of_another_is_not_bound_in_its_place(world: World) -> None:
    objects = world.objects
    node = objects.node()
    world.extender.knows(node)
    # No node has the label, so kube-scheduler binds neither pod.
    nowhere = {"e2e/nowhere": "yes"}
    old = objects.pod(4, nodeSelector=nowhere)
    objects.delete(old)
    new = objects.pod(4, name=old["metadata"]["name"], nodeSelector=nowhere)
    assert world.extender.bind(old, node) != ""
    assert not objects.node_of(new)
    assert world.extender.bind(new, node) == ""
    assert objects.lands(new) == (node, {0: 4})


def test_a_bound_pod_stays_where_it_is(world: World) -> None:
    objects = world.objects
    pod = objects.pod(4)
    node = objects.node()
    assert objects.lands(pod, world.told) == (node, {0: 4})
    second = objects.node()
    world.extender.knows(second)
    before = json.dumps(objects.get(pod))
    assert world.extender.bind(pod, second) != ""
    assert world.extender.bind(pod, node) == ""  # said again: the same answer
    assert json.dumps(objects.get(pod)) == before


def test_preemption_takes_the_pod_whose_device_is_needed(world: World) -> None:
    objects = world.objects
    objects.priority("urgent", 1000)
    node = objects.node(devices=2, units=16)
    large, small = objects.pod(16), objects.pod(3)
    objects.lands(large, world.told)
    assert objects.lands(small, world.told) == (node, {1: 3})
    urgent = objects.pod(14, priorityClassName="urgent")
    # 14 do not fit beside 3: one of the two has to go, and one is enough.
    assert objects.lands(urgent, world.told)[0] == node
    names = {pod["metadata"]["name"] for pod in objects.pods()}
    assert len(names & {large["metadata"]["name"], small["metadata"]["name"]}) == 1
    objects.sound()


def test_a_pod_stays_one_that_can_be_updated_however_large_its_annotations_are(
    world: World,
) -> None:
    """The API server checks the size of annotations at each update, but not at a Binding."""
    objects = world.objects
    objects.node()
    full = objects.pod(2, annotations={"notes": "x" * (256 * 1024 - len("notes"))})

    def refused() -> bool:
        conditions = objects.get(full)["status"].get("conditions", ())
        return any(
            "its annotations have 262144 bytes" in item.get("message", "") for item in conditions
        )

    until(refused, lambda: f"the pod is not refused; {world.told()}")
    room = objects.pod(2, annotations={"notes": "x" * 250_000})
    objects.lands(room, world.told)
    for pod in (full, room):
        objects.patch(f"{PODS}/{pod['metadata']['name']}", {"metadata": {"labels": {"a": "b"}}})
