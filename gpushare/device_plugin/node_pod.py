"""A pod of this node for the device plug-in: GPU containers, and the shares of each.

Pure. The spec has the amounts, the annotations of the Binding have the devices.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from gpushare.core.amounts import COMPUTE, DEVICE_AMOUNTS, SHARE
from gpushare.core.model import MAX_UNITS, Given, PodRef, Request, Shares
from gpushare.errors import AnnotationError, WireError
from gpushare.wire.annotations import Names, container_shares, device_uuids, placement
from gpushare.wire.device_request import container_sums
from gpushare.wire.given_annotation import read_given
from gpushare.wire.objects import Pod, PodSpec, PodStatus, StartedPodStatus
from gpushare.wire.pods import has_ended, pod_ref, request_of
from gpushare.wire.whole_card import has_whole_cards


@dataclass(frozen=True, slots=True)
class GpuContainer:
    """A container that asks for device memory."""

    name: str
    units: int
    init: bool = False
    """A plain init container (no sidecar), which ends before the next one starts."""
    shares: Shares = ()
    """(device index, units) by the Binding."""
    cores: int = 0
    """Requested percent of compute, on all devices together."""
    share: int = 0
    """Requested percent of memory, on all devices together."""


@dataclass(frozen=True, slots=True)
class NodePod:
    """A pod."""

    ref: PodRef
    gpu_containers: tuple[GpuContainer, ...] = ()
    """The GPU containers, in the order of the kubelet's questions."""
    total: int = 0
    uuids: Mapping[int, str] | None = None
    """Uuids by device index, as in the Binding ("" for a device without one)."""
    problem: str = ""
    """Why the pod's devices are unknown, or ""."""
    ended: bool = False
    terminating: bool = False
    started: bool = False
    """The kubelet has admitted the pod before."""
    assigned: bool = False
    extra_devices: Given = ()
    """Units by uuid on devices of no Binding, as a device plug-in wrote."""
    container_names: Mapping[str, str] | None = None
    """By the container runtime's ids, if known."""
    whole_cards: bool = False
    """The pod may use all memory of the cards."""
    memory_limit: int = 0
    """The most units that the pod may use on all cards together; 0: the requested ones."""

    @property
    def key(self) -> tuple[str, str]:
        """Namespace and name."""
        return self.ref.namespace, self.ref.name

    def gpu_container(self, name: str) -> GpuContainer | None:
        """Return the container of that name, or None."""
        return next(
            (container for container in self.gpu_containers if container.name == name), None
        )

    def as_first_seen(self, first: "NodePod | None") -> "NodePod":
        """Return this pod with the devices of `first`, if that is an earlier state of the pod.

        Anybody who may patch pods can edit annotations later. The kubelet's Pods API has no ids of
        containers, so the ids of the watch stay.
        """
        if first is None or first.ref.uid != self.ref.uid:
            return self
        pod = replace(self, container_names=self.container_names or first.container_names)
        if first.problem or not first.gpu_containers:
            return pod
        return replace(
            pod,
            gpu_containers=first.gpu_containers,
            total=first.total,
            uuids=first.uuids,
            problem="",
            whole_cards=first.whole_cards,
            memory_limit=first.memory_limit,
        )


def node_pod(pod: Pod, names: Names) -> NodePod:
    """Return the pod. Raises MessageError if name, namespace or uid is missing."""
    ref = pod_ref(pod)
    status = pod.status or PodStatus()
    metadata = pod.metadata
    annotations = (metadata and metadata.annotations) or {}
    containers = tuple(container for _, container in _gpu_containers(pod, names))
    request, uuids, problem = Request(), dict[int, str](), ""
    try:
        request = request_of(pod, names)
        if containers:
            containers, uuids = _placed(pod, annotations, request, names)
    except WireError as error:
        # The API server checks quantities, so the count of devices makes no sense.
        problem = str(error)
    container_names = {}
    if isinstance(status, StartedPodStatus):
        statuses = (*(status.init_container_statuses or ()), *(status.container_statuses or ()))
        container_names = {
            (container.container_id or "").rpartition("//")[2]: container.name or ""
            for container in statuses
            if container.container_id
        }
    return NodePod(
        ref=ref,
        gpu_containers=containers,
        total=request.total,
        uuids=uuids,
        problem=problem,
        ended=has_ended(pod),
        terminating=bool(metadata and metadata.deletion_timestamp),
        started=status.start_time is not None,
        assigned=annotations.get(names.assigned) == "true",
        extra_devices=read_given(annotations, request.total or MAX_UNITS, names),
        container_names=container_names or None,
        whole_cards=not problem and has_whole_cards(annotations, request, names),
        memory_limit=request.memory_limit,
    )


def _placed(
    pod: Pod, annotations: Mapping[str, str], request: Request, names: Names
) -> tuple[tuple[GpuContainer, ...], dict[int, str]]:
    """Return (the containers with their shares, the uuids by device index): by the map, else device
    after device. Raises AnnotationError.

    Sidecars and init containers have no place in the map. Sidecars have the units outside the map;
    later containers use the units of an init container again.
    """
    shares = placement(annotations, request, names)
    if shares is None:
        raise AnnotationError(
            f"its annotations {names.idx} and {names.allocation} name no device that can be used;"
            " it was not bound by the gpushare extender"
        )
    if sum(units for _, units in shares) != request.total:
        text = f"its annotations {names.idx} and {names.allocation} contradict each other"
        raise AnnotationError(text)
    uuids = device_uuids(annotations, shares, names)
    if uuids is None:
        raise AnnotationError(f"its annotation {names.uuids} does not match {names.idx}")
    grants = container_shares(annotations, request, names)
    granted_units: Counter[int] = Counter()
    for grant in grants.values():
        granted_units.update(grant)
    free_shares = [(device, units - granted_units[device]) for device, units in shares]
    containers = []
    for index, container in _gpu_containers(pod, names):
        if container.init:
            granted_shares, _ = _take(shares, container.units)
        elif index in grants:
            granted_shares = tuple(sorted(grants[index].items()))
        else:
            granted_shares, free_shares = _take(free_shares, container.units)
        if sum(units for _, units in granted_shares) != container.units:
            raise AnnotationError(
                f"its annotations give a container less than the {container.units} units asked"
            )
        containers.append(replace(container, shares=granted_shares))
    indices = [index for index, _ in shares]
    return tuple(containers), dict(zip(indices, uuids, strict=True)) if uuids else {}


def _take(shares: Sequence[tuple[int, int]], units: int) -> tuple[Shares, list[tuple[int, int]]]:
    """Return (shares of this number of units, the rest), from the first device on."""
    granted_shares, remaining = [], []
    for device, available in shares:
        part = min(available, units)
        units -= part
        if part:
            granted_shares.append((device, part))
        if available > part:
            remaining.append((device, available - part))
    return tuple(granted_shares), remaining


def _gpu_containers(pod: Pod, names: Names) -> Iterator[tuple[int, GpuContainer]]:
    """Yield (index in spec.containers or -1, container) of each GPU container; init containers
    first.
    """
    spec = pod.spec or PodSpec()
    regular, inits = spec.containers or (), spec.init_containers or ()
    # A percent that makes no sense sets no limit.
    sums = container_sums(regular, inits, names, strict=False)
    for containers, shares, is_init in (
        (inits, sums.inits, True),
        (regular, sums.containers, False),
    ):
        cores, share = (dict(shares[DEVICE_AMOUNTS.index(amount)]) for amount in (COMPUTE, SHARE))
        for index, units in shares[0]:
            container = containers[index]
            yield (
                -1 if is_init else index,
                GpuContainer(
                    name=container.name or "",
                    units=units,
                    init=is_init and container.restart_policy != "Always",
                    cores=cores.get(index, 0),
                    share=share.get(index, 0),
                ),
            )
