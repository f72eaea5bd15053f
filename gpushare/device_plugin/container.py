"""The answer for one container: environment variables, mounts, CDI devices, device nodes.

Pure. The first group is the original's, to the letter (gpushare-device-plugin, allocate.go), which
Alibaba Cloud's cGPU reads as well; then a fraction for programs that size themselves. Limits of
memory and compute follow the contract of each maker: see the function of each kind. The driver has
no limit of compute.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from gpushare.core.amounts import COMPUTE
from gpushare.device_plugin import kubelet_pb2 as pb
from gpushare.device_plugin.identity import Grant
from gpushare.errors import RequestRefused
from gpushare.wire.annotations import Names
from gpushare.wire.device_request import LIMITS_LABEL, MEMORY_LIMIT

VISIBLE = "NVIDIA_VISIBLE_DEVICES"
COMPUTE_LIMITS = COMPUTE.limit_variables
"""The variable with the limit of compute, of those of ISOLATIONS that have one."""

_DRIVER_LIMIT = "NVIDIA_GPU_MEMORY_LIMIT"
_HAMI_CORE_CACHE = "CUDA_DEVICE_MEMORY_SHARED_CACHE"
_MPS_LIMIT = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
_TELLTALE = {_DRIVER_LIMIT: "driver", _HAMI_CORE_CACHE: "hami-core", _MPS_LIMIT: "mps"}
_MIB_TEXT = re.compile(r"[0-9]{1,9}")

VOLUME_MOUNTS = "/var/run/nvidia-container-devices"
"""Where NVIDIA's runtime takes the name of a mount of /dev/null for the name of a device."""
_CDI_ANNOTATION = "cdi.k8s.io/gpushare_devices"
_NO_DEVICES = "void"


@dataclass(frozen=True, slots=True)
class Contract:
    """How the settings say that containers get devices and limits."""

    names: Names
    unit_mib: int
    isolation: str = "none"
    """The limit of a container's memory: one of ISOLATIONS, never auto."""
    id_strategy: str = "uuid"
    list_strategy: str = "envvar"
    """One of LIST_STRATEGIES; auto has been settled."""
    control_nodes: Sequence[str] | None = None
    """Device nodes that a container gets besides that of the GPU; None: no device node at all."""
    cdi_kind: str = "nvidia.com/gpu"
    hami_core: str = "/usr/local/vgpu"
    """The folder on the node that has libvgpu.so."""
    mps_pipe: str = ""
    """The folder of the pipes of the user's MPS daemon, "" without one."""
    mps_shm: str = "/dev/shm"  # noqa: S108 -- a path on the node that the daemon shares
    """The folder of the MPS daemon's shared memory."""
    cgpu_disabled: bool = False
    """The label of the node switches cGPU off."""
    driver_guarantee: bool = False
    """Whether the driver keeps the memory up to the limit for the container."""


def answer(
    grant: Grant, contract: Contract, uid: str, container: str
) -> pb.ContainerAllocateResponse:
    """Return the answer for a container. uid: of the pod, "" if the pod is not certain.

    Raises RequestRefused for a limit above the request that nothing would hold.
    """
    is_limited = _is_limited(grant, contract)
    if grant.memory_limit and not is_limited:
        raise RequestRefused(
            f"its annotation {MEMORY_LIMIT} needs a node that limits memory (--isolation driver,"
            f" hami-core or mps, and no MIG instance with driver); take the label {LIMITS_LABEL}"
            " off this node"
        )
    by_uuid = contract.id_strategy == "uuid"
    ids = [card.uuid if by_uuid else str(card.index) for card, _ in grant.shares]
    envs = _original(grant, contract, ids) | _fraction(grant, contract)
    mounts: tuple[pb.Mount, ...] = ()
    match contract.isolation:
        case "driver" if is_limited:
            envs |= _driver(grant, contract)
        case "hami-core":
            additions, mounts = _hami_core(grant, contract, uid, container)
            envs |= additions
        case "mps":
            additions, mounts = _mps(grant, contract)
            envs |= additions
    if contract.isolation in COMPUTE_LIMITS and grant.least_percent:
        # One number for all cards of the container.
        envs[COMPUTE_LIMITS[contract.isolation]] = str(grant.least_percent)
    names = [f"{contract.cdi_kind}={device}" for device in ids]
    if contract.list_strategy in ("cdi-cri", "cdi-annotations"):
        # To the NVIDIA runtime "void" means: leave this container alone. The devices come by CDI.
        allocation = pb.ContainerAllocateResponse(envs=envs | {VISIBLE: _NO_DEVICES}, mounts=mounts)
        if contract.list_strategy == "cdi-cri":
            allocation.cdi_devices.extend(pb.CDIDevice(name=name) for name in names)
        else:
            allocation.annotations[_CDI_ANNOTATION] = ",".join(names)
        return allocation
    if contract.list_strategy == "volume-mounts":
        # A runtime that does not accept mounts takes the variable.
        mounts += tuple(_mount(f"{VOLUME_MOUNTS}/{device}", "/dev/null") for device in ids)
    minors = [card.minor for card, _ in grant.shares]
    nodes: Sequence[str] = ()
    if contract.control_nodes is not None and None not in minors:
        # So that the container keeps the GPUs when systemd sets up the device cgroup again.
        nodes = (*(f"/dev/nvidia{minor}" for minor in minors), *contract.control_nodes)
    devices = [pb.DeviceSpec(container_path=at, host_path=at, permissions="rw") for at in nodes]
    return pb.ContainerAllocateResponse(envs=envs, mounts=mounts, devices=devices)


def visible_devices(allocation: pb.ContainerAllocateResponse) -> frozenset[str]:
    """Return the uuids, or the indices, of the devices that a container was told of."""
    by_annotation = allocation.annotations.get(_CDI_ANNOTATION, "").split(",")
    names = [*(device.name for device in allocation.cdi_devices), *by_annotation]
    by_cdi = {name.rpartition("=")[2] for name in names if name}
    by_mount = {
        mount.container_path.removeprefix(f"{VOLUME_MOUNTS}/")
        for mount in allocation.mounts
        if mount.container_path.startswith(f"{VOLUME_MOUNTS}/")
    }
    if by_mount:
        return frozenset(by_mount)
    visible = allocation.envs.get(VISIBLE, "")
    if by_cdi or visible == _NO_DEVICES:
        return frozenset(by_cdi)
    return frozenset(visible.split(",")) if visible else frozenset()


def isolation_of(allocation: pb.ContainerAllocateResponse) -> str:
    """Return the limit of a container's memory: one of ISOLATIONS, never auto."""
    for name, kind in _TELLTALE.items():
        if name in allocation.envs:
            return kind
    return "none"


def driver_limit(allocation: pb.ContainerAllocateResponse) -> int:
    """Return the limit in MiB that the driver was given for a container, 0 if none."""
    text = allocation.envs.get(_DRIVER_LIMIT, "")
    return int(text) if _MIB_TEXT.fullmatch(text) else 0


def compute_limit(allocation: pb.ContainerAllocateResponse) -> str:
    """Return the limit of compute that a container was told, in percent, "" if none."""
    return allocation.envs.get(COMPUTE_LIMITS.get(isolation_of(allocation), ""), "")


def _is_limited(grant: Grant, contract: Contract) -> bool:
    """Return whether the isolation limits the container's memory; the driver limits no memory of
    MIG instances.
    """
    has_instance = any(card.is_instance for card, _ in grant.shares)
    return contract.isolation != "none" and not (contract.isolation == "driver" and has_instance)


def _original(grant: Grant, contract: Contract, ids: Sequence[str]) -> dict[str, str]:
    names = contract.names
    first, _ = grant.shares[0]
    envs = {
        VISIBLE: ",".join(ids),
        names.idx: ",".join(str(card.index) for card, _ in grant.shares),
        names.pod: str(grant.total),
        f"{names.pod.removesuffix('POD')}CONTAINER": str(sum(units for _, units in grant.limits)),
        names.dev: str(first.unit_count),
    }
    return envs | ({"CGPU_DISABLE": "true"} if contract.cgpu_disabled else {})


def _fraction(grant: Grant, contract: Contract) -> dict[str, str]:
    """Return the variable with the usable part of the memory that CUDA shows as a card's size, of
    the smallest part, rounded down; none if the size of a card is unknown.

    Driver and HAMi-core show the limit as the size; MPS shows the whole card.
    """
    shows_limit = contract.isolation != "mps" and _is_limited(grant, contract)
    if not all(card.memory_mib for card, _ in grant.shares):
        return {}
    thousandths = 1000
    if not shows_limit:
        thousandths = min(
            units * contract.unit_mib * 1000 // card.memory_mib for card, units in grant.limits
        )
    name = f"{contract.names.pod.removesuffix('POD')}FRACTION"
    return {name: f"{thousandths // 1000}.{thousandths % 1000:03}"}


def _driver(grant: Grant, contract: Contract) -> dict[str, str]:
    """Return the variables for NVIDIA's driver from R615 on (container toolkit from 1.20.1 on).

    Whole MiB, one number for all cards of the container: so the smallest share. The guarantee, at
    most the charge, is a soft limit, which stays on the parent cgroups when the container has
    ended. Without the variable there is no limit either.
    """
    limit, guarantee = (
        str(min(units for _, units in limited.limits) * contract.unit_mib)
        for limited in (grant, grant.without_limit)
    )
    guarantee = guarantee if contract.driver_guarantee else "0"
    return {_DRIVER_LIMIT: limit, "NVIDIA_GPU_MEMORY_REQUEST": guarantee}


def _hami_core(
    grant: Grant, contract: Contract, uid: str, container: str
) -> tuple[dict[str, str], tuple[pb.Mount, ...]]:
    """Return variables and mounts for HAMi-core's libvgpu.so, which the user puts on the node.

    The shared file of a container's processes keeps the first limits, so each container has another
    folder.
    """
    folder = "/usr/local/vgpu"
    envs = {
        f"CUDA_DEVICE_MEMORY_LIMIT_{number}": f"{units * contract.unit_mib}m"
        for number, (_, units) in enumerate(grant.limits)
    }
    first, _ = grant.shares[0]
    envs[_HAMI_CORE_CACHE] = f"{folder}/{first.uuid}.cache"
    container_folder = hami_core_folder(contract.hami_core, uid, container)
    return envs, (
        _mount(folder, container_folder, read_only=False),
        _mount(f"{folder}/libvgpu.so", f"{contract.hami_core}/libvgpu.so"),
        _mount("/tmp/vgpulock", "/tmp/vgpulock", read_only=False),  # noqa: S108 -- HAMi-core's own
        _mount("/etc/ld.so.preload", f"{contract.hami_core}/ld.so.preload"),
    )


def hami_core_folder(hami_core: str, uid: str, container: str) -> str:
    """Return the folder on the node that is the container's own."""
    return f"{hami_core}/containers/{uid}_{container}"


def _mps(grant: Grant, contract: Contract) -> tuple[dict[str, str], tuple[pb.Mount, ...]]:
    """Return variables and mounts for clients of the user's MPS daemon, with a limit per process.

    A card is named by its number within the container: an entry for a card that a process cannot
    see drops all limits.
    """
    limits = [
        f"{number}={units * contract.unit_mib}M" for number, (_, units) in enumerate(grant.limits)
    ]
    envs = {_MPS_LIMIT: ",".join(limits), "CUDA_MPS_PIPE_DIRECTORY": contract.mps_pipe}
    return envs, (
        _mount(contract.mps_pipe, contract.mps_pipe, read_only=False),
        _mount("/dev/shm", contract.mps_shm, read_only=False),  # noqa: S108 -- MPS' own
    )


def _mount(container_path: str, host_path: str, *, read_only: bool = True) -> pb.Mount:
    return pb.Mount(container_path=container_path, host_path=host_path, read_only=read_only)
