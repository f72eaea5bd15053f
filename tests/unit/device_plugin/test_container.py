"""The answer for a container: the original's variables to the letter, and limits of memory."""

from dataclasses import replace

import pytest

from gpushare.device_plugin import kubelet_pb2 as pb
from gpushare.device_plugin.container import Contract, answer, visible_devices
from gpushare.device_plugin.identity import Grant
from gpushare.device_plugin.kubelet import parse_answer
from gpushare.errors import RequestRefused
from gpushare.wire.annotations import ALIYUN
from tests.unit.device_plugin.pods import cards

NODE = cards(16, 24, 16)
ONE = Grant(((NODE.all[1], 4),), 6)
TWO = Grant(((NODE.all[0], 4), (NODE.all[2], 2)), 6)
PLAIN = Contract(ALIYUN, 1024)


def told(grant: Grant, **changes: object) -> pb.ContainerAllocateResponse:
    return answer(grant, replace(PLAIN, **changes), "uid", "main")  # type: ignore[arg-type]


def test_the_variables_are_the_originals() -> None:
    original = {
        "NVIDIA_VISIBLE_DEVICES": "1",
        "ALIYUN_COM_GPU_MEM_IDX": "1",
        "ALIYUN_COM_GPU_MEM_POD": "6",
        "ALIYUN_COM_GPU_MEM_CONTAINER": "4",
        "ALIYUN_COM_GPU_MEM_DEV": "24",
    }
    original |= {"ALIYUN_COM_GPU_MEM_FRACTION": "0.166"}  # ours
    assert told(ONE, id_strategy="index") == pb.ContainerAllocateResponse(envs=original)
    assert told(ONE) == pb.ContainerAllocateResponse(
        envs=original | {"NVIDIA_VISIBLE_DEVICES": "GPU-1"}
    )
    assert told(ONE, cgpu_disabled=True).envs["CGPU_DISABLE"] == "true"


def test_several_devices_are_named_in_order() -> None:
    envs = told(TWO).envs
    assert envs["NVIDIA_VISIBLE_DEVICES"] == "GPU-0,GPU-2"
    assert envs["ALIYUN_COM_GPU_MEM_IDX"] == "0,2"
    assert envs["ALIYUN_COM_GPU_MEM_CONTAINER"] == "6"


def fraction(memory_mib: int, grant: Grant = ONE, **changes: object) -> str | None:
    cards = [(replace(card, memory_mib=memory_mib), units) for card, units in grant.shares]
    envs = told(replace(grant, shares=tuple(cards)), **changes).envs
    return envs.get("ALIYUN_COM_GPU_MEM_FRACTION")


def test_a_program_is_told_the_fraction_of_the_size_that_cuda_shows_it() -> None:
    assert fraction(24 * 1024) == "0.166"  # 4 of 24 GiB, rounded down
    assert fraction(24 * 1024, TWO) == "0.083"  # of the smallest part
    assert fraction(24 * 1024, replace(ONE, whole_cards=True)) == "1.000"
    assert fraction(0) is None
    assert fraction(24 * 1024, isolation="mps") == "0.166"
    for isolation in ("driver", "hami-core"):
        assert fraction(24 * 1024, isolation=isolation) == "1.000"


def test_of_a_mig_instance_the_driver_hides_nothing() -> None:
    instance = replace(NODE.all[1], uuid="MIG-1")
    grant = replace(ONE, shares=((instance, 4),))
    assert fraction(8 * 1024, grant, isolation="driver") == "0.500"


def added(grant: Grant, **changes: object) -> dict[str, str]:
    plain = told(grant).envs
    return {name: value for name, value in told(grant, **changes).envs.items() if name not in plain}


def test_the_driver_is_told_both_limits_in_whole_mib() -> None:
    assert added(ONE, isolation="driver") == {
        "NVIDIA_GPU_MEMORY_LIMIT": "4096",
        "NVIDIA_GPU_MEMORY_REQUEST": "0",
    }
    assert added(TWO, isolation="driver", unit_mib=256)["NVIDIA_GPU_MEMORY_LIMIT"] == "512"


def test_the_driver_is_told_no_limit_of_a_mig_instance() -> None:
    """NVIDIA's driver limits memory of whole GPUs alone; the instance is a limit by itself."""
    instance = replace(NODE.all[1], uuid="MIG-1")
    assert added(replace(ONE, shares=((instance, 4),)), isolation="driver") == {}


def test_the_driver_guarantees_the_limit_where_that_is_wanted() -> None:
    assert added(ONE, isolation="driver", driver_guarantee=True) == {
        "NVIDIA_GPU_MEMORY_LIMIT": "4096",
        "NVIDIA_GPU_MEMORY_REQUEST": "4096",
    }


def test_hami_core_is_told_each_limit_and_has_a_folder_of_its_own() -> None:
    envs = added(TWO, isolation="hami-core")
    assert envs["CUDA_DEVICE_MEMORY_LIMIT_0"] == "4096m"
    assert envs["CUDA_DEVICE_MEMORY_LIMIT_1"] == "2048m"
    assert envs["CUDA_DEVICE_MEMORY_SHARED_CACHE"] == "/usr/local/vgpu/GPU-0.cache"
    mounts = {item.container_path: item for item in told(TWO, isolation="hami-core").mounts}
    assert mounts["/usr/local/vgpu"].host_path == "/usr/local/vgpu/containers/uid_main"
    assert not mounts["/usr/local/vgpu"].read_only
    assert mounts["/usr/local/vgpu/libvgpu.so"].read_only
    assert mounts["/etc/ld.so.preload"].host_path == "/usr/local/vgpu/ld.so.preload"


def test_mps_is_told_limits_by_the_numbers_that_the_container_sees() -> None:
    envs = added(TWO, isolation="mps", mps_pipe="/mps/pipe")
    assert envs == {
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=4096M,1=2048M",
        "CUDA_MPS_PIPE_DIRECTORY": "/mps/pipe",
    }


def test_compute_is_limited_where_somebody_enforces_it() -> None:
    half = replace(ONE, cores=50)
    assert added(half, isolation="hami-core")["CUDA_DEVICE_SM_LIMIT"] == "50"
    assert added(half, isolation="mps")["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "50"
    for kind in ("none", "driver"):
        assert added(half, isolation=kind) == added(ONE, isolation=kind)
    uneven = replace(TWO, cores=61)
    assert added(uneven, isolation="mps")["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "20"


def test_who_has_whole_cards_may_use_all_of_their_memory() -> None:
    little, whole = (replace(TWO, cores=200, whole_cards=item) for item in (False, True))
    assert added(whole, isolation="driver")["NVIDIA_GPU_MEMORY_LIMIT"] == str(16 * 1024)
    assert added(little, isolation="driver")["NVIDIA_GPU_MEMORY_LIMIT"] == str(2 * 1024)
    envs = added(whole, isolation="hami-core")
    assert {envs[f"CUDA_DEVICE_MEMORY_LIMIT_{number}"] for number in (0, 1)} == {"16384m"}
    envs = added(whole, isolation="mps")
    assert envs["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=16384M,1=16384M"
    text = told(whole).envs
    assert (text["ALIYUN_COM_GPU_MEM_CONTAINER"], text["ALIYUN_COM_GPU_MEM_POD"]) == ("32", "6")


def test_a_limit_above_the_request_is_told_where_it_is_held_and_the_request_kept() -> None:
    """The pod asks for 6 units, of which ONE has 4, and may use 9."""
    more = replace(ONE, memory_limit=9)
    expected = {
        "driver": {"NVIDIA_GPU_MEMORY_LIMIT": "6144", "NVIDIA_GPU_MEMORY_REQUEST": "4096"},
        "mps": {
            "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=6144M",
            "ALIYUN_COM_GPU_MEM_POD": "6",
            "ALIYUN_COM_GPU_MEM_CONTAINER": "6",
            "ALIYUN_COM_GPU_MEM_FRACTION": "0.250",
        },
        "hami-core": {"CUDA_DEVICE_MEMORY_LIMIT_0": "6144m"},
    }
    for isolation, variables in expected.items():
        envs = told(more, isolation=isolation, driver_guarantee=True).envs
        assert {name: envs[name] for name in variables} == variables
    whole = told(replace(ONE, memory_limit=60), isolation="hami-core").envs
    assert whole["CUDA_DEVICE_MEMORY_LIMIT_0"] == "24576m"  # the card has no more


def test_a_limit_above_the_request_is_refused_where_nothing_holds_it() -> None:
    more = replace(ONE, memory_limit=9)
    instance = replace(more, shares=((replace(NODE.all[1], uuid="MIG-1"), 4),))
    for grant, isolation in ((more, "none"), (instance, "driver")):
        with pytest.raises(RequestRefused, match=r"take the label gpushare\.io/memory-limits off"):
            told(grant, isolation=isolation)
    assert told(instance, isolation="hami-core")


def test_a_percentage_of_memory_is_that_of_each_card_and_rounded_down() -> None:
    quarter = replace(ONE, share=27)
    # 6.48 of 24 units.
    assert added(quarter, isolation="driver")["NVIDIA_GPU_MEMORY_LIMIT"] == str(6 * 1024)
    assert told(quarter).envs["ALIYUN_COM_GPU_MEM_CONTAINER"] == "6"
    half_of_each = replace(TWO, shares=tuple((card, 1) for card, _ in TWO.shares), share=100)
    envs = added(half_of_each, isolation="mps")
    assert envs["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=8192M,1=8192M"
    # The units that a container asks for are the least.
    assert added(replace(ONE, share=1), isolation="driver")["NVIDIA_GPU_MEMORY_LIMIT"] == "4096"


@pytest.mark.parametrize("isolation", ["hami-core", "mps"])
def test_without_compute_there_is_no_limit_of_it(isolation: str) -> None:
    names = added(ONE, isolation=isolation)
    assert not {"CUDA_DEVICE_SM_LIMIT", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"} & names.keys()


def test_by_cdi_the_devices_are_named_there_and_the_runtime_is_told_to_leave_them() -> None:
    by_field = told(TWO, list_strategy="cdi-cri")
    kind = "nvidia.com/gpu"
    assert [device.name for device in by_field.cdi_devices] == [f"{kind}=GPU-0", f"{kind}=GPU-2"]
    assert by_field.envs["NVIDIA_VISIBLE_DEVICES"] == "void"
    by_note = told(TWO, list_strategy="cdi-annotations", cdi_kind="example.com/gpu")
    assert list(by_note.annotations.values()) == ["example.com/gpu=GPU-0,example.com/gpu=GPU-2"]


def test_by_volume_mounts_the_runtime_is_told_by_names_of_mounts_and_by_the_variable() -> None:
    units = told(TWO, list_strategy="volume-mounts")
    assert [(mount.container_path, mount.host_path) for mount in units.mounts] == [
        ("/var/run/nvidia-container-devices/GPU-0", "/dev/null"),
        ("/var/run/nvidia-container-devices/GPU-2", "/dev/null"),
    ]
    assert units.envs["NVIDIA_VISIBLE_DEVICES"] == "GPU-0,GPU-2"


def test_device_nodes_are_those_of_the_containers_cards_unless_cdi_has_them() -> None:
    shares = tuple((replace(card, minor=number + 4), 1) for number, card in enumerate(NODE.all))
    grant, control = Grant(shares[1:], 2), ("/dev/nvidiactl",)
    nodes = ("/dev/nvidia5", "/dev/nvidia6", "/dev/nvidiactl")
    for strategy in ("envvar", "volume-mounts"):
        assert not told(grant, list_strategy=strategy).devices
        devices = told(grant, list_strategy=strategy, control_nodes=control).devices
        assert tuple(device.host_path for device in devices) == nodes
        assert tuple(device.container_path for device in devices) == nodes
    assert not told(grant, list_strategy="cdi-cri", control_nodes=control).devices
    # A card whose number NVML does not tell: part of the nodes would be worse than none.
    assert told(replace(grant, shares=(*shares[1:], (NODE.all[0], 1))), control_nodes=()) == told(
        replace(grant, shares=(*shares[1:], (NODE.all[0], 1)))
    )


@pytest.mark.parametrize("strategy", ["envvar", "volume-mounts", "cdi-cri", "cdi-annotations"])
@pytest.mark.parametrize(("ids", "names"), [("uuid", {"GPU-0", "GPU-2"}), ("index", {"0", "2"})])
def test_what_was_told_can_be_read_back(strategy: str, ids: str, names: set[str]) -> None:
    grant = replace(TWO, shares=tuple((replace(card, minor=0), n) for card, n in TWO.shares))
    more = {"isolation": "hami-core", "control_nodes": ["/dev/nvidiactl"]}
    units = told(grant, list_strategy=strategy, id_strategy=ids, **more)
    decoded = parse_answer(units.SerializeToString())
    assert decoded == units
    assert visible_devices(decoded) == names


def test_who_was_told_of_no_device_has_none() -> None:
    assert visible_devices(pb.ContainerAllocateResponse()) == frozenset()
    void = pb.ContainerAllocateResponse(envs={"NVIDIA_VISIBLE_DEVICES": "void"})
    assert visible_devices(void) == frozenset()
