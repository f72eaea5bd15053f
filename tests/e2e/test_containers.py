"""Containers that really run have the nodes of their GPUs in /dev, and can open no others.

kubelet, containerd, NVIDIA's runtime and runc are real; the driver is a stand-in for NVML and its
nodes.
"""

from collections.abc import Iterator, Mapping

import pytest

from tests.e2e.cluster import Cluster, pod
from tests.e2e.conftest import MakeWorld
from tests.e2e.containerd_node import IMAGE, ContainerdNode, OursByNvml, can_run_containers
from tests.e2e.given import container_of, limit, written_for
from tests.e2e.nvidia_node import NODES, UVM, NvidiaNode
from tests.e2e.plane import Plane
from tests.e2e.plugins import DEVICES, UNITS
from tests.e2e.processes import until
from tests.e2e.test_nvidia_runtime import TOOLKITS

pytestmark = pytest.mark.timeout(400)

_CONTROL = {*NODES, *UVM}


GPUS = tuple(f"GPU-8f7b5c8e-1b0c-4c56-a7d2-00000000000{number}" for number in range(DEVICES))
WAYS: dict[str, tuple[str, Mapping[str, bool] | None]] = {
    "device nodes by the kubelet": ("--pass-device-specs", None),
    "envvar": ("--no-pass-device-specs", TOOLKITS["as installed"]),
    "volume-mounts": ("--no-pass-device-specs", TOOLKITS["mounts alone"]),
    "cdi-annotations": ("--no-pass-device-specs", TOOLKITS["neither"]),
}
"""An option of the plug-in, and the settings of NVIDIA's toolkit, by strategy. containerd takes CDI
devices of the field for them from 1.7 on.
"""


@pytest.fixture(params=WAYS)
def cluster(
    request: pytest.FixtureRequest,
    make_world: MakeWorld,
    plane: Plane,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Cluster]:
    can_run_containers()
    option, toolkit = WAYS[request.param]
    strategy = "envvar" if toolkit is None else request.param
    folder = tmp_path_factory.mktemp("c")  # socket paths must be short
    (folder / "nvidia").mkdir()
    nvidia = NvidiaNode(folder / "nvidia", [f"{uuid} {UNITS * 1024} -1 0" for uuid in GPUS])
    node = ContainerdNode(plane, folder / "node", nvidia, toolkit)
    flags = ("--device-list-strategy", strategy, option)
    plugin = OursByNvml(plane, node, folder / "plugin", nvidia, flags)
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
    by_nvidia = "--no-pass-device-specs" in cluster.plugin.command()
    by_name = {body["metadata"]["name"]: body for body in cluster.pods.values()}
    for container in node.running():
        body = by_name[container.pod]
        if not limit(container_of(body, container.container)):
            assert not container.nodes
            assert not container.gpus
            continue
        gpus = set(written_for(body, container.container))
        assert container.nodes == {*(f"nvidia{gpu}" for gpu in gpus), *_CONTROL}
        assert container.gpus == gpus
        assert container.has_driver == by_nvidia
