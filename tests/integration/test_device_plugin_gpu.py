"""The device plug-in on a real GPU of NVIDIA's: `python -m pytest -m gpu`, as root.

Other programs must leave the GPU alone meanwhile. Skipped where there is none.
"""

import csv
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from secrets import token_hex

import pytest

from gpushare.device_plugin.devices import NvmlSource
from gpushare.device_plugin.health import Health
from tests.integration.cluster import Cluster, Json
from tests.integration.nvml_node import NvmlNode
from tests.support.waiting import poll

if shutil.which("nvidia-smi") is None:
    pytest.skip("no GPU of NVIDIA's here (nvidia-smi)", allow_module_level=True)

MPS = shutil.which("nvidia-cuda-mps-control")

pytestmark = pytest.mark.gpu

GIB = 2**30
MIB = 2**20
USED = "gpushare_device_plugin_container_memory_used_bytes"
ENFORCED = "gpushare_memory_limit_enforced"

PROGRAM = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
device, context, place = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
for done in (
    cuda.cuInit(0),
    cuda.cuDeviceGet(ctypes.byref(device), 0),
    cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device),
    cuda.cuCtxSetCurrent(context),
):
    if done:
        sys.exit(f"CUDA does not start: {done}")
for line in sys.stdin:
    print(cuda.cuMemAlloc_v2(ctypes.byref(place), ctypes.c_size_t(int(line) << 20)), flush=True)
"""
"""A program that takes as many MiB as each line of its input says, and writes CUDA's answer."""

OUT_OF_MEMORY = 2


def smi(*fields: str) -> list[list[str]]:
    """The output of nvidia-smi for each GPU."""
    words = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    completed = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60).stdout
    return list(csv.reader(completed.splitlines(), skipinitialspace=True))


class GpuNode(NvmlNode):
    """A node with the GPUs of this machine. Its containers are cgroups with a program in each."""

    def __init__(self, cluster: Cluster, cgroups: Path, *flags: str) -> None:
        cards = [{"uuid": uuid, "memoryMiB": int(mib)} for uuid, mib in smi("uuid", "memory.total")]
        super().__init__(cluster, *flags, cards=cards)
        self.cgroups = cgroups
        self.programs: list[subprocess.Popen[str]] = []
        self.folders: list[Path] = []

    def run(self, pod: Json) -> "subprocess.Popen[str]":
        """Start a program in the pod's one container, with the variables of that container."""
        uid, container = pod["metadata"]["uid"], token_hex(32)
        folder = self.cgroups / "kubepods" / f"pod{uid}" / container
        folder.mkdir(parents=True)
        self.folders.append(folder)
        start_container_result = self.kubelet.start_container(uid, "c0")
        environment = {
            **os.environ,
            **start_container_result,
            "CUDA_VISIBLE_DEVICES": start_container_result["NVIDIA_VISIBLE_DEVICES"],
        }
        program = start(environment, folder)
        self.programs.append(program)
        self.say_started(pod, [container])
        return program

    def stop(self) -> None:
        for program in self.programs:
            program.kill()
            program.communicate(timeout=20)
        for folder in self.folders:  # a cgroup can go when its last process has been reaped
            folder.rmdir()
            folder.parent.rmdir()
        super().stop()


def start(environment: dict[str, str], folder: Path | None = None) -> "subprocess.Popen[str]":
    """Start PROGRAM, in that cgroup."""
    program = subprocess.Popen(
        ["/bin/sh", "-c", 'read go && exec "$@"', "sh", sys.executable, "-c", PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    if folder:
        (folder / "cgroup.procs").write_text(str(program.pid))
    assert program.stdin is not None
    program.stdin.write("go\n")
    program.stdin.flush()
    return program


def take(program: "subprocess.Popen[str]", mib: int) -> int:
    """Have the program take memory of the GPU; return CUDA's answer, 0 on success."""
    assert program.stdin is not None
    assert program.stdout is not None
    program.stdin.write(f"{mib}\n")
    program.stdin.flush()
    return int(program.stdout.readline())


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    cluster = Cluster()
    yield cluster
    cluster.stop()


@pytest.fixture(scope="module")
def cgroups(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The cgroups of this machine, mounted writable."""
    folder = tmp_path_factory.mktemp("cgroup")
    words = ["mount", "-t", "cgroup2", "none", str(folder)]
    completed = subprocess.run(words, capture_output=True, text=True, check=False, timeout=20)
    if completed.returncode:
        pytest.skip(f"cgroups cannot be mounted: {completed.stderr.strip()}")
    yield folder
    if (folder / "kubepods").exists():
        (folder / "kubepods").rmdir()
    subprocess.run(["umount", str(folder)], check=True, timeout=20)


MakeNode = Callable[..., GpuNode]


@pytest.fixture
def make_node(cluster: Cluster, cgroups: Path) -> Iterator[MakeNode]:
    nodes: list[GpuNode] = []

    def make(*flags: str) -> GpuNode:
        nodes.append(GpuNode(cluster, cgroups, *flags))
        return nodes[-1]

    yield make
    for node in nodes:
        node.stop()
    cluster.clear()


def driver() -> int:
    return int(smi("driver_version")[0][0].partition(".")[0])


def numa(slot: str) -> int | None:
    """The NUMA node that Linux names for a slot, which nvidia-smi writes as 00000000:3B:00.0."""
    text = Path(f"/sys/bus/pci/devices/{slot[4:].lower()}/numa_node").read_text()
    return int(text) if int(text) >= 0 else None


def test_gpus_are_found_as_nvidia_smi_shows_them() -> None:
    result = NvmlSource(topology=True).read()
    fields = ("uuid", "index", "memory.total", "name", "pci.bus_id", "mig.mode.current")
    expected = [
        (uuid, int(index), int(mib), name, numa(slot), mig == "Enabled")
        for uuid, index, mib, name, slot, mig in smi(*fields)
    ]
    assert expected
    assert [
        (gpu.uuid, gpu.index, gpu.memory_mib, gpu.model, gpu.numa, "MIG" in str(gpu.problem))
        for gpu in result
    ] == expected


def test_a_gpu_that_is_well_stays_so_and_its_errors_can_be_waited_for() -> None:
    source = NvmlSource()
    health = Health(source, "GiB", 0, recover=1)
    for _ in range(3):
        health.refresh()
    cards, changes = health.now()
    assert all(card.healthy for card in cards.all)
    assert changes == 0
    assert list(source.xids(0.5)) == []
    assert source.unwatched == {}


def test_a_container_has_the_gpu_that_its_pod_was_bound_to(make_node: MakeNode) -> None:
    node = make_node().start()
    assert [device.uuid for device in node.told().devices] == [uuid for (uuid,) in smi("uuid")]
    pod = node.pod(4, devices=[0])
    node.kubelet.add(pod)
    start_container_result = node.kubelet.start_container(pod["metadata"]["uid"], "c0")
    assert start_container_result["NVIDIA_VISIBLE_DEVICES"] == node.uuid(0)
    assert start_container_result["ALIYUN_COM_GPU_MEM_DEV"] == str(node.units)
    poll(lambda: node.assigned(pod), "not marked")


def test_the_memory_of_a_cuda_program_is_its_containers(make_node: MakeNode) -> None:
    node = make_node().start()
    pods = [node.pod(4, devices=[0]), node.pod(1, devices=[0])]
    for pod in pods:
        node.kubelet.add(pod)
    fits, exceeds = (node.run(pod) for pod in pods)
    start_result = start(dict(os.environ))
    node.programs.append(start_result)
    assert [take(fits, 1024), take(exceeds, 2048), take(start_result, 3072)] == [0, 0, 0]
    places = [f"{pod['metadata']['name']}/c0/{node.uuid(0)}" for pod in pods]
    poll(lambda: sorted(node.samples(USED)) == sorted(places), "not read")
    used = node.samples(USED)
    print({place: size / MIB for place, size in used.items()})
    assert 1 * GIB <= used[places[0]] < 2 * GIB  # with the memory that CUDA itself takes
    assert 2 * GIB <= used[places[1]] < 3 * GIB
    assert node.metric("gpushare_device_plugin_device_memory_used_bytes") > 6 * GIB
    poll(lambda: bool(node.events("GPUShareMemoryExceeded")), "no event")
    (events,) = node.events("GPUShareMemoryExceeded")
    assert events.endswith("was given 1024; nothing keeps it to that")
    assert node.samples(ENFORCED) == {}
    fits.kill()
    poll(lambda: sorted(node.samples(USED)) == [places[1]], "not gone")


def test_isolation_auto_is_what_the_driver_can_do(make_node: MakeNode) -> None:
    node = make_node().start()
    if driver() >= 615:
        poll(lambda: "isolation=driver" in node.log, "it is not told")
        return
    poll(lambda: "isolation=none" in node.log, "it is not told")
    code, message = node.ended("--isolation", "driver", "--health-port", "0")
    print(message)
    assert code == 2
    assert f"the driver's version is {driver()}, and limits come with 615" in message


@pytest.fixture
def mps(tmp_path: Path) -> Iterator[Sequence[str]]:
    """An MPS daemon; its place is told to the device plug-in."""
    environment = {
        **os.environ,
        "CUDA_MPS_PIPE_DIRECTORY": str(tmp_path / "pipe"),
        "CUDA_MPS_LOG_DIRECTORY": str(tmp_path / "log"),
    }
    (tmp_path / "pipe").mkdir()
    (tmp_path / "log").mkdir()
    subprocess.run([str(MPS), "-d"], env=environment, check=True, timeout=30)
    yield ("--isolation", "mps", "--mps-pipe-dir", str(tmp_path / "pipe"))
    subprocess.run([str(MPS)], input="quit\n", text=True, env=environment, check=False, timeout=60)
    for log in sorted((tmp_path / "log").iterdir()):
        print(log.name, log.read_text()[-2000:])


@pytest.mark.skipif(MPS is None, reason="no nvidia-cuda-mps-control here")
def test_a_limit_by_mps_holds_and_its_clients_are_seen(
    make_node: MakeNode, mps: Sequence[str]
) -> None:
    node = make_node(*mps).start()
    pod = node.pod(4, devices=[0])
    node.kubelet.add(pod)
    program = node.run(pod)
    assert take(program, 1024) == 0
    assert take(program, 6 * 1024) == OUT_OF_MEMORY
    place = f"{pod['metadata']['name']}/c0/{node.uuid(0)}"
    poll(lambda: list(node.samples(USED)) == [place], "not read")
    print({place: size / MIB for place, size in node.samples(USED).items()})
    assert 1 * GIB <= node.samples(USED)[place] < 4 * GIB
    assert node.samples(ENFORCED) == {}  # the limit holds, but NVML does not show the limit
