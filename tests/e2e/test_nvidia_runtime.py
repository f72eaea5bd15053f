"""Each way of handing devices over works with NVIDIA's own runtime as on the page, without a GPU.

The runtime changes the OCI specification of a container; the tests read the input for runc.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from gpushare.device_plugin import kubelet_pb2 as pb
from gpushare.device_plugin.cards import Card
from gpushare.device_plugin.container import Contract, answer
from gpushare.device_plugin.handover import CONTROL_NODES, Handover, Setup
from gpushare.device_plugin.identity import Grant
from gpushare.wire.annotations import ALIYUN
from tests.e2e.chart import ROOT
from tests.e2e.nvidia_node import NvidiaNode, Started

GPUS = tuple(f"GPU-8f7b5c8e-1b0c-4c56-a7d2-00000000000{number}" for number in range(3))
VARIABLE = "accept-nvidia-visible-devices-envvar-when-unprivileged"
MOUNTS = "accept-nvidia-visible-devices-as-volume-mounts"
TOOLKITS: dict[str, Mapping[str, bool]] = {
    "as installed": {},
    "mounts alone": {VARIABLE: False, MOUNTS: True},
    "neither": {VARIABLE: False, MOUNTS: False},
}
WORKS = {
    "envvar": {"as installed"},
    "volume-mounts": {"as installed", "mounts alone"},
    "cdi-cri": {*TOOLKITS},
    "cdi-annotations": {*TOOLKITS},
}
CONTROL = tuple(f"/{node}" for node in CONTROL_NODES)
DRIVER = {"libcuda"}
"""A library that no program on a GPU can do without."""

NODE_CARDS = [Card(uuid, number, 16, minor=number) for number, uuid in enumerate(GPUS)]
ONE = Grant(((NODE_CARDS[1], 4),), 4)
TWO = Grant(((NODE_CARDS[0], 4), (NODE_CARDS[2], 4)), 8)
PLAIN = Contract(ALIYUN, 1024)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> NvidiaNode:
    created = NvidiaNode(tmp_path_factory.mktemp("node"), [f"{uuid} 16384 -1 0" for uuid in GPUS])
    created.write_cdi()
    return created


def started(
    node: NvidiaNode, strategy: str, toolkit: Mapping[str, bool], grant: Grant = ONE, **more: object
) -> Started:
    contract = replace(PLAIN, list_strategy=strategy, **more)  # type: ignore[arg-type]
    return node.start(answer(grant, contract, "uid", "c"), toolkit)


@pytest.mark.parametrize("toolkit", TOOLKITS)
@pytest.mark.parametrize("strategy", WORKS)
def test_a_container_has_its_own_gpus_where_the_way_is_open_and_else_none(
    node: NvidiaNode, strategy: str, toolkit: str
) -> None:
    works = toolkit in WORKS[strategy]
    for grant, numbers in ((ONE, {"1"}), (TWO, {"0", "2"})):
        devices = started(node, strategy, TOOLKITS[toolkit], grant)
        assert devices.gpus == (numbers if works else set())
        assert (devices.libraries >= DRIVER) == works
        assert (devices.nodes >= set(CONTROL)) == works


@pytest.mark.parametrize("toolkit", TOOLKITS)
@pytest.mark.parametrize("strategy", WORKS)
def test_the_driver_limits_memory_by_a_hook_for_each_gpu(
    node: NvidiaNode, strategy: str, toolkit: str
) -> None:
    devices = started(node, strategy, TOOLKITS[toolkit], TWO, isolation="driver")
    # By annotations two runtimes may add the same hook: CRI-O, and NVIDIA's that it calls.
    limits = {hook for hook in devices.hooks if "apply-cuda-memory-limits" in hook}
    assert len(limits) == (2 if toolkit in WORKS[strategy] else 0)
    assert all(sum(uuid in hook for hook in limits) <= 1 for uuid in GPUS)
    assert devices.variables["NVIDIA_GPU_MEMORY_LIMIT"] == "4096"


@pytest.mark.parametrize("strategy", ["envvar", "volume-mounts"])
def test_in_legacy_mode_the_device_nodes_are_there_because_the_kubelet_passes_them(
    node: NvidiaNode, strategy: str
) -> None:
    """Before 1.18 a hook mounted the device nodes, and a reload of systemd removed the access."""
    contract = replace(PLAIN, list_strategy=strategy)
    toolkit = TOOLKITS["mounts alone" if strategy == "volume-mounts" else "as installed"]
    bare = node.start(answer(ONE, contract, "uid", "c"), toolkit, mode="legacy")
    assert any("nvidia-container-runtime-hook" in hook for hook in bare.hooks)
    assert bare.nodes == set()
    passing = replace(contract, control_nodes=CONTROL)
    devices = node.start(answer(ONE, passing, "uid", "c"), toolkit, mode="legacy")
    assert devices.nodes == {"/dev/nvidia1", *CONTROL}


@pytest.mark.parametrize("toolkit", TOOLKITS)
def test_nodes_that_the_kubelet_passes_are_no_others_than_the_runtime_gives(
    node: NvidiaNode, toolkit: str
) -> None:
    devices = started(node, "volume-mounts", TOOLKITS[toolkit], control_nodes=CONTROL)
    assert devices.nodes == {"/dev/nvidia1", *CONTROL}


def own_pod() -> pb.ContainerAllocateResponse:
    """The plug-in's own container by its manifest: variables, and mounts of /dev/null."""
    text = (ROOT / "config" / "device-plugin" / "daemonset.yaml").read_text()
    spec = yaml.safe_load(text)["spec"]["template"]["spec"]
    (part,) = spec["containers"]
    of = {item["name"]: item["hostPath"]["path"] for item in spec["volumes"] if "hostPath" in item}
    return pb.ContainerAllocateResponse(
        envs={item["name"]: item["value"] for item in part["env"] if "value" in item},
        mounts=[
            pb.Mount(container_path=item["mountPath"], host_path=of[item["name"]], read_only=True)
            for item in part["volumeMounts"]
            if of.get(item["name"]) == "/dev/null"
        ],
    )


@pytest.mark.parametrize("toolkit", TOOLKITS)
@pytest.mark.parametrize("privileged", [False, True])
def test_the_plugins_own_pod_has_all_gpus_unless_the_toolkit_refuses_all_that_is_unprivileged(
    node: NvidiaNode, toolkit: str, privileged: bool
) -> None:
    devices = node.start(own_pod(), TOOLKITS[toolkit], privileged=privileged)
    works = privileged or toolkit != "neither"
    assert devices.gpus == ({"0", "1", "2"} if works else set())
    assert (devices.libraries >= {"libnvidia-ml"}) == works


@pytest.mark.parametrize("toolkit", TOOLKITS)
@pytest.mark.parametrize("runtime", ["containerd://2.1.4", "containerd://1.7.27", "cri-o://1.34.1"])
def test_auto_takes_a_way_that_works_where_there_is_one(
    node: NvidiaNode, tmp_path: Path, toolkit: str, runtime: str
) -> None:
    (tmp_path / "var/run").mkdir(parents=True)
    (tmp_path / "var/run/cdi").symlink_to(node.cdi)
    file = tmp_path / "etc/nvidia-container-runtime/config.toml"
    file.parent.mkdir(parents=True)
    settings = TOOLKITS[toolkit].items()
    file.write_text("".join(f"{name} = {str(on).lower()}\n" for name, on in settings))
    way = Handover(Setup("auto", needs_limits=True), tmp_path, passes_nodes=False)
    chosen = way.look(GPUS, runtime, "v1.34.1")
    devices = started(node, chosen.strategy, TOOLKITS[toolkit], isolation="driver")
    assert devices.gpus == {"1"}
    assert any("apply-cuda-memory-limits" in hook for hook in devices.hooks)
    # Whether this runtime was set up to take CDI devices, nothing shows.
    doubtful = toolkit == "neither" and runtime == "containerd://1.7.27"
    assert bool(chosen.problem) == doubtful


def test_without_the_toolkits_configuration_both_ways_are_tried(node: NvidiaNode) -> None:
    nowhere = Path("/nowhere")
    way = Handover(Setup("auto"), nowhere, passes_nodes=False)
    strategy = way.look(GPUS, "containerd://1.7.27", "v1.34.1").strategy
    for toolkit in ("as installed", "mounts alone"):
        assert started(node, strategy, TOOLKITS[toolkit]).gpus == {"1"}
