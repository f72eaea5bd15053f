"""The device plug-in by the real binding of NVML, to a library that says what a file says."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.cluster import Cluster
from tests.integration.nvml_node import StandInNode
from tests.integration.verbs import poll

SOURCE = Path(__file__).parents[1] / "unit" / "device_plugin" / "stand_in_nvml.c"
COMPILER = shutil.which("cc")

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C compiler for the stand-in of NVML")

GPUS = ("GPU-a 16384 0 0", "GPU-b 8000 0 0", "GPU-c 16384 -1 0")

MakeNode = Callable[..., "StandInNode"]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nvml")
    target = folder / "libnvidia-ml.so.1"
    command = [str(COMPILER), "-shared", "-fPIC", "-O1", "-o", str(target), str(SOURCE)]
    subprocess.run(command, check=True, timeout=60)
    return folder


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    found = Cluster()
    yield found
    found.stop()


@pytest.fixture
def make_node(cluster: Cluster, library: Path) -> Iterator[MakeNode]:
    nodes: list[StandInNode] = []

    def make(*flags: str, **more: str) -> StandInNode:
        nodes.append(StandInNode(cluster, library, *flags, gpus=GPUS, **more))
        return nodes[-1]

    yield make
    for node in nodes:
        node.stop()
    cluster.clear()


def test_each_gpu_has_its_own_memory_and_name(make_node: MakeNode) -> None:
    node = make_node().start()
    assert [(each.uuid, each.mem, each.model) for each in node.told().devices] == [
        ("GPU-a", 16, "Stand-in"),
        ("GPU-b", 7, "Stand-in"),
        ("GPU-c", 16, "Stand-in"),
    ]
    pod = node.pod(4, devices=[2])
    node.kubelet.add(pod)
    assert node.kubelet.envs(pod["metadata"]["uid"], "c0") == {
        "NVIDIA_VISIBLE_DEVICES": "GPU-c",
        "ALIYUN_COM_GPU_MEM_IDX": "2",
        "ALIYUN_COM_GPU_MEM_POD": "4",
        "ALIYUN_COM_GPU_MEM_CONTAINER": "4",
        "ALIYUN_COM_GPU_MEM_DEV": "16",
        **LIMITED,
    }


LIMITED = {"NVIDIA_GPU_MEMORY_LIMIT": "4096", "NVIDIA_GPU_MEMORY_REQUEST": "0"}
"""What the driver is told by --isolation auto of 4 GiB."""


def healthy(node: StandInNode) -> list[bool]:
    return [each.healthy for each in node.told().devices]


def test_a_gpu_that_is_lost_is_unhealthy_until_it_is_back(make_node: MakeNode) -> None:
    node = make_node().start()
    node.says(GPUS[0], GPUS[1].removesuffix("0") + "15", GPUS[2])
    node.kubelet.wait_advertised(32)
    poll(lambda: healthy(node) == [True, False, True], "not told")
    assert "GPU is lost" in node.log
    node.says(*GPUS)
    node.kubelet.wait_advertised(39)
    # Gone from the list, with another at its index: the others stay what they are.
    node.says(GPUS[0], GPUS[2])
    node.kubelet.wait_advertised(32)
    poll(lambda: healthy(node) == [True, False, True], "not told")


def test_an_xid_closes_a_gpu_for_a_while_unless_a_program_caused_it(make_node: MakeNode) -> None:
    node = make_node().start()
    node.says(*GPUS, "xid GPU-a 31")
    poll(lambda: "xid of a program" in node.log, "not reported")
    assert healthy(node) == [True, True, True]
    node.says(*GPUS, "xid GPU-c 79")
    node.kubelet.wait_advertised(23)
    node.kubelet.wait_advertised(39)
    assert "the driver reported Xid 79" in node.log


def test_a_gpu_in_mig_mode_is_not_shared(make_node: MakeNode) -> None:
    node = make_node()
    node.says(GPUS[0], GPUS[1], "GPU-c 16384 1 0")
    node.kubelet.start()
    node.start_plugin()
    node.kubelet.wait_advertised(23)
    assert healthy(node) == [True, True, False]


def test_the_numa_node_of_a_gpu_is_that_of_its_slot(make_node: MakeNode) -> None:
    node = make_node()
    node.write("sys/bus/pci/devices/0000:10:00.0/numa_node", "1\n")
    node.write("sys/bus/pci/devices/0000:11:00.0/numa_node", "-1\n")  # a machine without NUMA
    program = (
        "import json, pathlib, sys\n"
        "from gpushare.device_plugin.devices import NvmlSource\n"
        "source = NvmlSource(topology=True, root=pathlib.Path(sys.argv[1]))\n"
        "print(json.dumps([gpu.numa for gpu in source.read()]))"
    )
    words = [sys.executable, "-c", program, str(node.root)]
    said = subprocess.run(words, env=node.environment, capture_output=True, check=True, timeout=60)
    assert json.loads(said.stdout) == [1, None, None]


def test_a_gpu_that_does_not_answer_keeps_none_of_the_others_waiting(make_node: MakeNode) -> None:
    node = make_node().start()
    node.says(GPUS[0], GPUS[1].removesuffix("0") + "999", GPUS[2])
    pod = node.pod(4, devices=[0])
    node.kubelet.add(pod)
    node.kubelet.start_container(pod["metadata"]["uid"], "c0")
    node.says(*GPUS)


def test_a_driver_that_cannot_limit_memory_is_not_told_to(make_node: MakeNode) -> None:
    node = make_node(driver="595.91.07").start()
    pod = node.pod(4, devices=[0])
    node.kubelet.add(pod)
    assert "NVIDIA_GPU_MEMORY_LIMIT" not in node.kubelet.envs(pod["metadata"]["uid"], "c0")
    code, said = node.ended("--isolation", "driver", "--health-port", "0")
    assert code == 2
    assert "the driver's version is 595, and limits come with 615" in said


def test_without_the_library_it_says_what_to_do(make_node: MakeNode) -> None:
    node = make_node()
    node.environment["LD_LIBRARY_PATH"] = "/nowhere"
    code, said = node.ended()
    assert code == 2
    assert "NVML cannot be used" in said
    assert "--devices-file" in said


def test_a_node_without_a_gpu_says_so(make_node: MakeNode) -> None:
    node = make_node()
    node.says()
    assert node.ended() == (2, "gpushare device-plugin: there is no GPU on this node")


def test_a_limit_is_left_alone_where_the_node_has_no_second_version_of_cgroups(
    make_node: MakeNode,
) -> None:
    node = make_node()
    (node.root / "sys/fs/cgroup/cgroup.controllers").unlink()
    code, said = node.ended("--isolation", "driver", "--health-port", "0")
    assert (code, said.rpartition(": ")[2]) == (2, "the node has no cgroup v2")
