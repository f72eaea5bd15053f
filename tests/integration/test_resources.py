"""Several managed resources at once, each with books of its own, named by the scheduler's file."""

from tests.integration.cluster import MEM, NPU
from tests.integration.conftest import World

NPU_COUNT = "example.com/npu-count"


def test_each_resource_has_its_own_devices_and_books(world: World) -> None:
    gpus = world.cluster.node()
    npus = world.cluster.node(resource=NPU, count=NPU_COUNT, devices=4, total=64)
    world.extender.knows(gpus, npus)
    gpu_pod, npu_pod = world.cluster.pod(4), world.cluster.pod(6, resource=NPU)
    assert world.extender.fit(gpu_pod, [gpus, npus]) == [gpus]
    assert world.extender.fit(npu_pod, [gpus, npus]) == [npus]
    assert world.extender.bind(gpu_pod, gpus) == ""
    assert world.extender.bind(npu_pod, npus) == ""
    notes = world.cluster.annotations(npu_pod)
    assert notes["EXAMPLE_COM_NPU_MEM_IDX"] == "0"
    assert notes["gpushare.io/allocation-example-com-npu-mem"] == '{"0":{"0":6}}'
    split = world.cluster.pod(32, resource=NPU, annotations={NPU_COUNT: "2"})
    assert world.extender.bind(split, npus) == ""
    assert world.cluster.annotations(split)["EXAMPLE_COM_NPU_MEM_IDX"] == "1,2"
    world.extender.agrees(world.cluster, MEM)
    world.extender.agrees(world.cluster, NPU)
    assert [node["name"] for node in world.extender.inspect()["nodes"]] == [gpus]


def test_a_pod_that_asks_for_two_resources_is_refused(world: World) -> None:
    node = world.cluster.node()
    world.extender.knows(node)
    limits = {"limits": {MEM: "4", NPU: "4"}}
    pod = world.cluster.pod(spec={"containers": [{"name": "c", "image": "x", "resources": limits}]})
    reason = f"{MEM}, {NPU}: a pod may ask for one of them alone"
    assert world.extender.refusal(pod, node) == reason
    assert reason in world.extender.bind(pod, node)
    assert world.cluster.bindings().count(pod["metadata"]["name"]) == 0
    assert world.extender.used(node) == [0, 0]
