"""Containers that really run have the nodes of their GPUs in /dev, and of no others.

kubelet, containerd and runc are real; the driver is a stand-in for NVML and its nodes.
"""

from collections.abc import Iterator

import pytest

from tests.e2e.cluster import Cluster, pod
from tests.e2e.conftest import MakeWorld
from tests.e2e.containerd_node import IMAGE, ContainerdNode, OursByNvml, can_run_containers
from tests.e2e.given import container_of, limit, written_for
from tests.e2e.nvidia_node import NODES, UVM, NvidiaNode
from tests.e2e.plane import Plane
from tests.e2e.plugins import DEVICES, UNITS
from tests.e2e.processes import until

pytestmark = pytest.mark.timeout(400)

_CONTROL = {*NODES, *UVM}


@pytest.fixture
def cluster(
    make_world: MakeWorld, plane: Plane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    can_run_containers()
    folder = tmp_path_factory.mktemp("c")  # socket paths must be short
    gpus = [f"GPU-{number:08x} {UNITS * 1024} -1 0" for number in range(DEVICES)]
    (folder / "nvidia").mkdir()
    nvidia = NvidiaNode(folder / "nvidia", gpus)
    node = ContainerdNode(plane, folder / "node", nvidia)
    plugin = OursByNvml(plane, node, folder / "plugin", nvidia)
    world = make_world(flags=("--leadership", "off", "--policy", "spread"))
    cluster = Cluster(world, node, plugin, "auto")
    try:
        cluster.start()
        yield cluster
        cluster.clear()
    finally:
        cluster.stop()


def test_each_container_has_its_gpus_and_can_open_no_others(cluster: Cluster) -> None:
    bodies = [*(pod(2) for _ in range(6)), pod(1, 2), pod(8, devices=2), pod(0)]
    for body in bodies:
        body["spec"]["hostNetwork"] = True
        for container in body["spec"]["containers"]:
            container |= {"image": IMAGE, "imagePullPolicy": "Never"}
    cluster.burst(bodies)
    cluster.settled()
    assert cluster.refused() == []
    node = cluster.node
    assert isinstance(node, ContainerdNode)
    until(lambda: len(node.running()) == 10, cluster.told)
    by_name = {body["metadata"]["name"]: body for body in cluster.pods.values()}
    for container in node.running():
        body = by_name[container.pod]
        if not limit(container_of(body, container.container)):
            assert not container.nodes | container.gpus
            continue
        gpus = set(written_for(body, container.container))
        assert container.nodes == {*(f"nvidia{gpu}" for gpu in gpus), *_CONTROL}
        assert container.gpus == gpus
        uuids = {f"GPU-{gpu:08x}" for gpu in gpus}
        assert set(container.env["NVIDIA_VISIBLE_DEVICES"].split(",")) == uuids
