"""The device plug-in by the real binding of NVML, to a library that answers as a file says."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpushare.device_plugin import kubelet_pb2 as pb
from gpushare.device_plugin.cards import uuids_of
from gpushare.device_plugin.kubelet import parse_answer
from gpushare.wire.device_list import DEVICE_LIST, decode_device_list
from tests.integration.cluster import NODES, Cluster, Json
from tests.integration.nvml_node import StandInNode
from tests.support.waiting import poll

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
    cluster = Cluster()
    yield cluster
    cluster.stop()


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
    assert [(device.uuid, device.mem, device.model) for device in node.told().devices] == [
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
        "ALIYUN_COM_GPU_MEM_FRACTION": "1.000",  # the driver shows its limit as the size
        **LIMITED,
    }


LIMITED = {"NVIDIA_GPU_MEMORY_LIMIT": "4096", "NVIDIA_GPU_MEMORY_REQUEST": "0"}
"""The driver's variables under --isolation auto for 4 GiB."""


def healthy(node: StandInNode) -> list[bool]:
    return [device.healthy for device in node.told().devices]


@pytest.mark.long
def test_a_gpu_that_is_lost_is_unhealthy_until_it_is_back(make_node: MakeNode) -> None:
    node = make_node().start()
    node.says(GPUS[0], GPUS[1].removesuffix("0") + "15", GPUS[2])
    node.kubelet.wait_advertised(32)
    poll(lambda: healthy(node) == [True, False, True], "not told")
    problems = ["", "NVML says that it is lost", ""]
    poll(lambda: [device.problem for device in node.told().devices] == problems, "not told")
    message = "GPU GPU-b (index 1) is unhealthy: NVML says that it is lost"
    poll(lambda: node.node_events("GPUShareDeviceUnhealthy") == [message], "no event")
    assert node.metric("gpushare_device_plugin_device_healthy") == 2
    assert 'device_problem{device="1",fault="lost",uuid="GPU-b"} 1.0' in node.get("/metrics")[1]
    assert node.get("/livez")[0] == node.get("/readyz")[0] == 200
    # The errors of this card cannot be waited for now; those of other cards can.
    node.says(GPUS[0], GPUS[1].removesuffix("0") + "15", GPUS[2], "xid GPU-c 48")
    node.kubelet.wait_advertised(16)
    node.says(*GPUS)
    node.kubelet.wait_advertised(23)
    message = "GPU GPU-b (index 1) is healthy again"
    poll(lambda: node.node_events("GPUShareDeviceHealthy") == [message], "no event")
    # Gone from the list, with another card at its index: the other cards keep their places.
    node.says(GPUS[0], GPUS[2])
    node.kubelet.wait_advertised(16)
    poll(lambda: healthy(node) == [True, False, False], "not told")


@pytest.mark.long
def test_an_xid_closes_a_gpu_for_a_while_unless_it_needs_a_reset_or_a_program_caused_it(
    make_node: MakeNode,
) -> None:
    node = make_node().start()
    node.says(*GPUS, "xid GPU-a 31")
    poll(lambda: "xid of a program" in node.log, "not reported")
    assert healthy(node) == [True, True, True]
    node.says(*GPUS, "xid GPU-c 94")
    node.kubelet.wait_advertised(23)
    node.kubelet.wait_advertised(39)
    poll(lambda: "the driver reported Xid 94" in node.log, "not reported")
    node.says(*GPUS, "xid GPU-c 79")
    node.kubelet.wait_advertised(23)
    node.says(*GPUS, "xid GPU-c 79", "recovery GPU-a 1")
    node.kubelet.wait_advertised(7)
    fell_off = "the driver reported Xid 79, and only a reset heals that"
    problems = ["needs a reset, as NVML says", "", fell_off]
    poll(lambda: [device.problem for device in node.told().devices] == problems, "not told")
    # The card says so after a restart of the plug-in, too; reported errors are not kept.
    node.stop_plugin()
    node.start_plugin()
    node.kubelet.wait_advertised(23)
    poll(lambda: healthy(node) == [False, True, True], "not told")


def test_a_gpu_that_is_added_counts_after_a_restart(make_node: MakeNode) -> None:
    node = make_node().start()
    node.says(*GPUS, "GPU-d 8192 0 0")
    poll(lambda: node.told().uncounted == ("GPU-d",), "not told")
    message = "GPU GPU-d was added, and counts after a restart of the device plug-in"
    poll(lambda: node.node_events("GPUShareDeviceAdded") == [message], "no event")
    assert node.metric("gpushare_device_plugin_uncounted_devices") == 1
    node.stop_plugin()
    node.start_plugin()
    node.kubelet.wait_advertised(47)
    poll(lambda: node.told().uncounted == (), "still told")


def test_a_gpu_whose_errors_are_not_seen_is_told_by_readyz(make_node: MakeNode) -> None:
    node = make_node().start()
    node.says(*GPUS, "xid GPU-b 31")
    poll(lambda: "xid of a program" in node.log, "not reported")
    node.says(*GPUS, "answer nvmlEventSetWait_v2 999 GPU-b")
    poll(lambda: node.get("/readyz")[0] == 503, "not told")
    assert "[-]devices errors of GPU-b are not seen: Unknown Error" in node.get("/readyz")[1]
    assert node.metric("gpushare_device_plugin_device_unwatched") == 1
    assert healthy(node) == [True, True, True]
    node.says(*GPUS)
    poll(node.ready, "still told", 60.0)


def test_what_the_driver_keeps_of_the_memory_is_not_given_out(make_node: MakeNode) -> None:
    node = make_node()
    node.says("GPU-t4 15360 0 0", "reserved GPU-t4 450")
    node.kubelet.start()
    node.start_plugin()
    node.kubelet.wait_advertised(14)
    node.flags = ("--reserve-mib", "0")
    node.stop_plugin()
    node.start_plugin()
    node.kubelet.wait_advertised(15)


def test_a_gpu_without_memory_of_its_own_has_the_size_of_the_setting(make_node: MakeNode) -> None:
    node = make_node("--memory-mib", "Stand-in=32768")
    node.says("GPU-unified 0 -1 0", "answer nvmlDeviceGetMemoryInfo 3 GPU-unified")
    node.kubelet.start()
    node.start_plugin()
    node.kubelet.wait_advertised(32)
    assert [(device.mem, device.healthy) for device in node.told().devices] == [(32, True)]


TOOLKIT = "etc/nvidia-container-runtime/config.toml"
REFUSES_THE_VARIABLE = """
accept-nvidia-visible-devices-as-volume-mounts = true
accept-nvidia-visible-devices-envvar-when-unprivileged = false
"""
CDI_FILE = "".join(f"- name: {line.split()[0]}\n" for line in GPUS)


def handed(node: StandInNode) -> str:
    """The strategy in the Node's annotation, "" before there is one."""
    text = node.node_object()["metadata"]["annotations"].get(DEVICE_LIST, "")
    return decode_device_list(text).strategy if text else ""


def answered(node: StandInNode, uid: str) -> pb.ContainerAllocateResponse:
    """The kubelet's answer for the first container of the pod; the container starts."""
    node.kubelet.start_container(uid, "c0")
    (holding,) = (item for item in node.kubelet.grants if item.uid == uid)
    return parse_answer(holding.response)


def test_devices_are_handed_over_as_the_node_takes_them(
    make_node: MakeNode, cluster: Cluster
) -> None:
    node = make_node("--isolation", "none")
    node.write(TOOLKIT, REFUSES_THE_VARIABLE)
    node.start()
    poll(lambda: handed(node) == "volume-mounts", "not told")
    assert "config.toml accepts volume mounts" in node.log
    pod = node.pod(4, devices=[2])
    uid = pod["metadata"]["uid"]
    node.kubelet.add(pod)
    answer = answered(node, uid)
    assert [(mount.container_path, mount.host_path) for mount in answer.mounts] == [
        ("/var/run/nvidia-container-devices/GPU-c", "/dev/null")
    ]
    assert [device.host_path for device in answer.devices] == ["/dev/nvidia2"]

    # A CDI file comes, and the runtime takes CDI devices: the next container gets CDI devices.
    node.write("var/run/cdi/nvidia.yaml", f"kind: nvidia.com/gpu\ndevices:\n{CDI_FILE}")
    info = {"containerRuntimeVersion": "containerd://2.1.4", "kubeletVersion": "v1.34.1"}
    cluster.change(NODES, "", node.name, lambda body: with_info(body, info))
    node.stop_plugin()
    node.start_plugin()
    poll(lambda: handed(node) == "cdi-cri", "not told")
    pod = node.pod(4, devices=[1])
    uid = pod["metadata"]["uid"]
    node.kubelet.add(pod)
    answer = answered(node, uid)
    assert [device.name for device in answer.cdi_devices] == ["nvidia.com/gpu=GPU-b"]
    assert not answer.mounts
    assert not answer.devices


def with_info(body: Json, info: Json) -> Json:
    return {**body, "status": {**body["status"], "nodeInfo": info}}


def test_a_way_that_cannot_work_is_told(make_node: MakeNode) -> None:
    node = make_node("--device-list-strategy", "envvar", "--no-pass-device-specs")
    node.write(TOOLKIT, REFUSES_THE_VARIABLE)
    node.start()
    poll(lambda: handed(node) == "envvar", "not told")
    assert "refuses the variable NVIDIA_VISIBLE_DEVICES" in node.log
    pod = node.pod(4, devices=[2])
    node.kubelet.add(pod)
    answer = answered(node, pod["metadata"]["uid"])
    assert not answer.devices
    assert not answer.mounts


def test_a_gpu_in_mig_mode_is_not_shared(make_node: MakeNode) -> None:
    node = make_node()
    node.says(GPUS[0], GPUS[1], "GPU-c 16384 1 0")
    node.kubelet.start()
    node.start_plugin()
    node.kubelet.wait_advertised(23)
    assert healthy(node) == [True, True, False]


def test_a_container_gets_the_mig_instance_that_its_pod_was_bound_to(make_node: MakeNode) -> None:
    node = make_node("--device-id-strategy", "index")  # which there is not with instances
    node.says(
        GPUS[0], "GPU-cut 0 1 0", "instance MIG-a GPU-cut 4864", "instance MIG-b GPU-cut 9856"
    )
    node.kubelet.start()
    node.start_plugin()
    node.kubelet.wait_advertised(16 + 4 + 9)
    result = [(device.uuid, device.mem, device.model) for device in node.told().devices]
    assert result[1:] == [("MIG-a", 4, "Stand-in MIG 1g.5gb"), ("MIG-b", 9, "Stand-in MIG 1g.10gb")]
    node.cards = [{"uuid": device.uuid, "memoryMiB": 0} for device in node.told().devices]
    pod = node.pod(4, devices=[2])
    uid = pod["metadata"]["uid"]
    node.kubelet.add(pod)
    answer = answered(node, uid)
    assert answer.envs["NVIDIA_VISIBLE_DEVICES"] == "MIG-b"
    assert "NVIDIA_GPU_MEMORY_LIMIT" not in answer.envs
    assert not answer.devices
    (holding,) = (item for item in node.kubelet.grants if item.uid == uid)
    assert uuids_of(holding.ids) == {"MIG-b"}


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
    completed = subprocess.run(
        words, env=node.environment, capture_output=True, check=True, timeout=60
    )
    assert json.loads(completed.stdout) == [1, None, None]


def test_a_gpu_that_does_not_answer_keeps_none_of_the_others_waiting(make_node: MakeNode) -> None:
    node = make_node().start()
    node.says(GPUS[0], GPUS[1].removesuffix("0") + "9999", GPUS[2])
    pod = node.pod(4, devices=[0])
    node.kubelet.add(pod)
    node.kubelet.start_container(pod["metadata"]["uid"], "c0")
    node.says(*GPUS)


def test_a_driver_that_cannot_limit_memory_is_not_told_to(make_node: MakeNode) -> None:
    node = make_node(driver="595.91.07").start()
    pod = node.pod(4, devices=[0])
    node.kubelet.add(pod)
    assert "NVIDIA_GPU_MEMORY_LIMIT" not in node.kubelet.envs(pod["metadata"]["uid"], "c0")
    code, message = node.ended("--isolation", "driver", "--health-port", "0")
    assert code == 2
    assert "the driver's version is 595, and limits come with 615" in message


def test_without_the_library_it_says_what_to_do(make_node: MakeNode) -> None:
    node = make_node()
    node.environment["LD_LIBRARY_PATH"] = "/nowhere"
    code, message = node.ended()
    assert code == 2
    assert "NVML cannot be used" in message
    assert "--devices-file" in message


def test_a_node_without_a_gpu_says_so(make_node: MakeNode) -> None:
    node = make_node()
    node.says()
    assert node.ended() == (2, "gpushare device-plugin: there is no GPU on this node")


USED = "gpushare_device_plugin_container_memory_used_bytes"
ENFORCED = "gpushare_memory_limit_enforced"
GIB = 2**30


@pytest.mark.long
def test_what_containers_use_is_held_against_what_they_were_given(make_node: MakeNode) -> None:
    node = make_node("--isolation", "none").start()
    pod, other_pod = node.pod(4, 2, devices=[0]), node.pod(4, devices=[2])
    for item in (pod, other_pod):
        node.kubelet.add(item)
    node.run(pod, 1001, 1002)
    node.run(other_pod, 1003)
    node.write("proc/1009/cgroup", "0::/system.slice/sshd.service\n")
    name, second = pod["metadata"]["name"], other_pod["metadata"]["name"]
    node.says(
        *GPUS,
        f"process GPU-a 1001 {3 * GIB}",
        f"process GPU-a 1002 {2 * GIB + 1}",
        "process GPU-c 1003 -1",  # NVML does not know how much
        f"process GPU-b 1003 {1 * GIB}",  # a card of another pod
        f"process GPU-a 1009 {4 * GIB}",
        f"process GPU-a 1010 {4 * GIB}",  # the process has ended
    )
    result = {f"{name}/c0/GPU-a": 3.0 * GIB, f"{name}/c1/GPU-a": 2.0 * GIB + 1}
    result[f"{second}/c0/GPU-b"] = 1.0 * GIB
    poll(lambda: node.samples(USED) == result, "not read")
    assert node.samples("gpushare_device_plugin_container_memory_given_bytes") == {
        f"{name}/c0/GPU-a": 4.0 * GIB,
        f"{name}/c1/GPU-a": 2.0 * GIB,
        f"{second}/c0/GPU-b": 0.0,
    }
    assert node.samples(ENFORCED) == {}  # no limit was set for these
    poll(lambda: len(node.events("GPUShareMemoryExceeded")) == 2, "no event")
    assert set(node.events("GPUShareMemoryExceeded")) == {
        "container c1 uses 2049 MiB of GPU-a and was given 2048; nothing keeps it to that",
        "container c0 uses 1024 MiB of GPU-b and was given 0; nothing keeps it to that",
    }
    # NVML lies: more than the card has.
    node.says(*GPUS, f"process GPU-a 1001 {90 * GIB}", f"process GPU-a 1002 {1 * GIB}")
    result = {f"{name}/c1/GPU-a": 1.0 * GIB}
    poll(lambda: node.samples(USED) == result, "not dropped")


@pytest.mark.long
def test_the_use_of_sms_is_told_by_container_where_nvml_has_samples(make_node: MakeNode) -> None:
    node = make_node("--isolation", "none").start()
    pod, other = node.pod(4, 2, devices=[0]), node.pod(4, devices=[2])
    for body in (pod, other):
        node.kubelet.add(body)
    node.run(pod, 1001, 1002)
    node.run(other, 1003)
    node.says(
        *GPUS,
        f"process GPU-a 1001 {3 * GIB}",
        f"process GPU-a 1002 {1 * GIB}",
        f"process GPU-c 1003 {1 * GIB}",  # a card without samples
        "sm GPU-a 1001 10 5",
        "sm GPU-a 1001 40 1",
        "sm GPU-a 1002 70 60",  # older than the window: idle now
    )
    name = pod["metadata"]["name"]
    expected = {f"{name}/c0/GPU-a": 40.0, f"{name}/c1/GPU-a": 0.0}
    poll(
        lambda: node.samples("gpushare_device_plugin_container_sm_percent") == expected, "not read"
    )


@pytest.mark.long
def test_a_limit_that_the_driver_was_told_is_read_back(make_node: MakeNode) -> None:
    node = make_node().start()
    pods = [node.pod(4, devices=[0]), node.pod(2, devices=[0]), node.pod(4, devices=[2])]
    for pod in pods:
        node.kubelet.add(pod)
    ids = [node.run(pod, 1001 + number)[0] for number, pod in enumerate(pods)]
    node.says(
        *GPUS,
        f"limit GPU-a {ids[0]} {4 * GIB} {3 * GIB}",
        f"limit GPU-a {ids[1]} -1 {1 * GIB}",  # no limit
        f"process GPU-c 1003 {1 * GIB}",  # a cgroup without any figure of NVML
    )
    places = [
        f"{pod['metadata']['name']}/c0/GPU-{card}" for pod, card in zip(pods, "aac", strict=True)
    ]
    observed = dict(zip(places, (3.0 * GIB, 1.0 * GIB, 1.0 * GIB), strict=True))
    poll(lambda: node.samples(USED) == observed, "not read")
    assert node.samples(ENFORCED) == {places[0]: 1.0, places[1]: 0.0}
    poll(lambda: bool(node.events("GPUShareMemoryNotLimited")), "no event")
    assert node.events("GPUShareMemoryNotLimited") == [
        "container c0 has no limit on GPU-a and was to have 2048 MiB; is NVIDIA's container toolkit"
        " 1.20.1 on the node?"
    ]
    # The others are served while NVML hangs on a card.
    node.says(*GPUS[:2], GPUS[2].removesuffix("0") + "9999")
    late = node.pod(1, devices=[0])
    node.kubelet.add(late)
    node.says(*GPUS)


def test_a_limit_is_left_alone_where_the_node_has_no_second_version_of_cgroups(
    make_node: MakeNode,
) -> None:
    node = make_node()
    (node.root / "sys/fs/cgroup/cgroup.controllers").unlink()
    code, message = node.ended("--isolation", "driver", "--health-port", "0")
    assert (code, message.rpartition(": ")[2]) == (2, "the node has no cgroup v2")
