"""The device plug-in by the real binding of NVML, to a library that says what a file says."""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpushare.wire.annotations import ALIYUN
from gpushare.wire.inventory import Inventory, decode_inventory
from tests.integration.cluster import Cluster
from tests.integration.plugin_world import PluginNode
from tests.integration.verbs import poll

SOURCE = Path(__file__).parents[1] / "unit" / "device_plugin" / "stand_in_nvml.c"
COMPILER = shutil.which("cc")

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C compiler for the stand-in of NVML")

GPUS = ("GPU-a 16384 0 -1 0", "GPU-b 8000 0 1 0", "GPU-c 16384 -1 -1 0")

MakeNode = Callable[..., "NvmlNode"]


class NvmlNode(PluginNode):
    """A node whose plug-in asks NVML; `says` is what that says."""

    def __init__(self, cluster: Cluster, library: Path, *flags: str, driver: str = "") -> None:
        cards = [{"uuid": line.split()[0], "memoryMiB": int(line.split()[1])} for line in GPUS]
        super().__init__(cluster, *flags, cards=cards)
        self.environment = os.environ | {
            "LD_LIBRARY_PATH": str(library),
            "STAND_IN_NVML": str(self.folder / "nvml"),
            **({"STAND_IN_DRIVER": driver} if driver else {}),
        }
        self.says(*GPUS)

    def says(self, *lines: str) -> None:
        new = self.folder / "nvml.new"
        new.write_text("".join(f"{line}\n" for line in lines))
        new.replace(self.folder / "nvml")

    def command(self) -> list[str]:
        words = super().command()
        place = words.index("--devices-file")
        return [*words[:place], *words[place + 2 :], "--recover-seconds", "1"]

    def told(self) -> Inventory:
        notes = self.node_object()["metadata"]["annotations"]
        return decode_inventory(notes[ALIYUN.inventory])


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
    nodes: list[NvmlNode] = []

    def make(*flags: str, **more: str) -> NvmlNode:
        nodes.append(NvmlNode(cluster, library, *flags, **more))
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


LIMITED = (
    {"NVIDIA_GPU_MEMORY_LIMIT": "4096", "NVIDIA_GPU_MEMORY_REQUEST": "0"}
    if Path("/sys/fs/cgroup/cgroup.controllers").exists()
    else {}
)
"""What the driver is told by --isolation auto on this machine."""


def healthy(node: NvmlNode) -> list[bool]:
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
    node.says(GPUS[0], GPUS[1], "GPU-c 16384 1 -1 0")
    node.kubelet.start()
    node.start_plugin()
    node.kubelet.wait_advertised(23)
    assert healthy(node) == [True, True, False]


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
