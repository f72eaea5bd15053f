"""Make the report that every output format shows: devices, and the pods that hold their memory.

Knows facts about nodes and pods, and units of memory; no API and no format. A pod without a usable
annotation, or with a device that its node lacks, is *unplaced*: it may be on any device. Its memory
is subtracted from the free memory of each device of the node, and allocated to none.

Tested in `tests/contract/test_golden_inspect.py`.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from gpushare.cli.facts import NodeFacts, PendingFacts, PodFacts
from gpushare.core.amounts import COMPUTE, PERCENT_AMOUNTS
from gpushare.core.cover import resolve_devices
from gpushare.core.model import ALL_CORES, Cover, NodeSpec, PodRef, Reason, Shares
from gpushare.core.node_filters import Availability, NodeState
from gpushare.wire.annotations import Names
from gpushare.wire.inventory import LARGEST_IN_GIB, mib_of

if TYPE_CHECKING:  # these modules take longer to load than the command
    from gpushare.cli.claims import ClaimsReport
    from gpushare.wire.held import HeldPlace
    from gpushare.wire.metrics import RankingPolicy

_COMPUTE = PERCENT_AMOUNTS.index(COMPUTE)


@dataclass(frozen=True, slots=True)
class DeviceLine:
    """One device."""

    index: int
    total: int
    allocated: int
    free: int
    """Units that the extender can still allocate."""
    healthy: bool
    model: str
    uuid: str
    cores: int = 0
    """Allocated percent of compute."""
    cores_free: int = ALL_CORES
    """Percent of compute that can still be allocated."""
    stranded: int = 0
    """Units that nobody can get because all compute is allocated."""
    limits: int = 0
    """Units that the pods of the device may use together, at least `allocated`."""


@dataclass(frozen=True, slots=True)
class PodLine:
    """One pod that holds memory."""

    ref: PodRef
    phase: str
    assigned: bool
    units: int
    shares: Shares
    """() for an unplaced pod."""
    cores: int = 0
    """The largest percent of compute of a device of the pod; for an unplaced pod of each device of
    the node."""


@dataclass(frozen=True, slots=True)
class NodeLine:
    """One node."""

    name: str
    address: str
    unit: str
    """The node's own unit; the numbers are in the report's unit."""
    devices: tuple[DeviceLine, ...]
    pods: tuple[PodLine, ...]
    unplaced: int
    closed_reason: str
    """Why no pod may be placed there, or ""."""
    left_out: str = ""
    """What kube-scheduler's own filters object to, or ""."""
    availability: Availability = Availability.OPEN
    state: NodeState | None = None
    """The state for these filters, with device memory in the report's unit."""
    unplaced_cores: int = 0
    """Percent of compute of each device that unplaced pods may have."""
    kept_reason: str = ""
    """Why autoscalers must keep the node, or ""."""

    @property
    def total(self) -> int:
        """Units of all devices."""
        return sum(device.total for device in self.devices)

    @property
    def allocated(self) -> int:
        """Units of all pods, the unplaced ones included."""
        return sum(device.allocated for device in self.devices) + self.unplaced

    @property
    def free(self) -> int:
        """Units that can still be allocated."""
        return sum(device.free for device in self.devices)

    @property
    def stranded(self) -> int:
        """Units that nobody can get because all compute of their devices is allocated."""
        return sum(device.stranded for device in self.devices)


@dataclass(frozen=True, slots=True)
class Report:
    """Nodes sorted by name, and warnings."""

    resource: str
    unit: str
    """The unit of all numbers."""
    unit_from: str
    """One of "inventory", "flag" and "guess"."""
    nodes: tuple[NodeLine, ...]
    warnings: tuple[str, ...]
    policy: "RankingPolicy | None" = None
    """The policy that ranks pods; None if unknown."""
    pending: tuple[PendingFacts, ...] = ()
    """Pending pods by namespace and name; () if they were not listed."""
    holds: "tuple[HeldPlace, ...] | None" = None
    """Places that filter holds for pods; None if unknown."""
    claims: "ClaimsReport | None" = None
    """Devices of DRA drivers, None if the cluster has no DeviceClass gpushare.io."""

    @property
    def total(self) -> int:
        """Units of all nodes."""
        return sum(node.total for node in self.nodes)

    @property
    def allocated(self) -> int:
        """Units of all pods."""
        return sum(node.allocated for node in self.nodes)

    @property
    def any_cores(self) -> bool:
        """Whether a pod has or requests compute; otherwise the report does not show compute."""
        return any(pod.cores for pod in self.pending) or any(
            node.unplaced_cores or any(device.cores for device in node.devices)
            for node in self.nodes
        )

    def within(self, namespace: str) -> "Report":
        """Return the report with the pods of this namespace alone; sums stay those of all pods."""
        nodes = tuple(
            replace(node, pods=tuple(pod for pod in node.pods if pod.ref.namespace == namespace))
            for node in self.nodes
        )
        pending = tuple(pod for pod in self.pending if pod.ref.namespace == namespace)
        holds = self.holds
        if holds is not None:
            holds = tuple(place for place in holds if place.pod.namespace == namespace)
        claims = self.claims and self.claims.within(namespace)
        return replace(self, nodes=nodes, pending=pending, holds=holds, claims=claims)


def make_report(
    nodes: Iterable[NodeFacts],
    pods: Iterable[PodFacts],
    names: Names,
    unit: str = "",
    *,
    pending: Iterable[PendingFacts] = (),
    closed_devices: Mapping[str, Collection[int | str]] = MappingProxyType({}),
) -> Report:
    """Return the report of these nodes; pods on other nodes are left out.

    unit: of nodes without inventory; "" for the unit of the inventories, or a guess. pending: pods.
    closed_devices: devices that ConfigMaps close, as indices or uuids, by node.
    """
    sorted_nodes = []
    for node in sorted(nodes, key=lambda node: node.name):
        unhealthy = {*closed_devices.get(node.name, ())}
        devices = tuple(
            replace(device, healthy=False) if {index, device.uuid} & unhealthy else device
            for index, device in enumerate(node.devices)
        )
        sorted_nodes.append(replace(node, devices=devices))
    fallback, unit_from = _fallback(sorted_nodes, unit)
    units = {node.name: node.unit or fallback for node in sorted_nodes}
    used = sorted(set(units.values())) or [fallback]
    common = used[0] if len(used) == 1 else "MiB"
    pods_by_node: dict[str, list[PodFacts]] = {node.name: [] for node in sorted_nodes}
    for pod in pods:
        if pod.node in pods_by_node:
            pods_by_node[pod.node].append(pod)
    lines = tuple(
        _node_line(
            node,
            pods_by_node[node.name],
            units[node.name],
            _scale(units[node.name], common),
            names.resource,
        )
        for node in sorted_nodes
    )
    warnings = []
    for node in sorted_nodes:
        if node.closed_reason is not None:
            detail = f" ({node.detail})" if node.detail else ""
            lost = (
                ""
                if node.devices or node.closed_reason is Reason.UNEVEN
                else "; its memory counts as 0"
            )
            warnings.append(f"node {node.name}: {node.closed_reason.value}{detail}{lost}")
    warnings += [
        f"node {line.name}: the pods of device {device.index} may use {device.limits} {common}"
        f" together, and it has {device.total}: a program may find no memory within its limit"
        for line in lines
        for device in line.devices
        if device.limits > max(device.total, device.allocated)
    ]
    if len(used) > 1:
        groups = "; ".join(
            f"{unit}: {', '.join(name for name, node_unit in units.items() if node_unit == unit)}"
            for unit in used
        )
        warnings.append(
            f"nodes count memory in different units ({groups}), shown in MiB;"
            " the extender places no pod on a node of another unit than its own"
        )
    pending_pods = tuple(
        replace(pod, units=pod.units * _scale(fallback, common))
        for pod in sorted(pending, key=_name_of)
    )
    return Report(names.resource, common, unit_from, lines, tuple(warnings), pending=pending_pods)


def _fallback(nodes: Sequence[NodeFacts], flag: str) -> tuple[str, str]:
    """Return (unit of the nodes without inventory, source of the unit)."""
    silent = [node for node in nodes if not node.unit]
    stated = {node.unit for node in nodes if node.unit}
    if flag and (silent or not stated):
        return flag, "flag"
    if len(stated) == 1:
        return stated.pop(), "inventory"
    largest = max((device.mem for node in silent for device in node.devices), default=0)
    guess = "MiB" if largest > LARGEST_IN_GIB else "GiB"
    return guess, "guess" if silent or not stated else "inventory"


def _scale(unit: str, common: str) -> int:
    """Return the factor from the node's unit to the common unit, which is the same or MiB."""
    return 1 if unit == common else mib_of(unit)


def _node_line(
    node: NodeFacts, pods: Iterable[PodFacts], unit: str, scale: int, resource: str
) -> NodeLine:
    lines = []
    cores, above, anywhere = ([0] * len(node.devices) for _ in range(3))
    capacity = [device.mem for device in node.devices]
    for pod in sorted(pods, key=_name_of):
        shares, largest_cores = _shares(pod, node), 0
        units = pod.request.total
        if pod.request.memory_limit:
            limits = pod.request.limits_on(shares, capacity)
            for (index, charged), (_, limit) in zip(shares, limits, strict=True):
                above[index] += (limit - charged) * scale
        if pod.request.percents and shares:
            on_devices = pod.request.percents_on(shares)
            for (index, _), percents in zip(shares, on_devices, strict=True):
                cores[index] += percents[_COMPUTE]
            largest_cores = max(percents[_COMPUTE] for percents in on_devices)
            shares = pod.request.charges_on(shares, capacity)
            units = max(units, sum(part for _, part in shares))
        elif not shares:
            charges = pod.request.charges_anywhere(capacity)
            anywhere = [sum(pair) for pair in zip(anywhere, charges, strict=True)]
            units = max(charges, default=units)
            if pod.request.percents:
                largest_cores = pod.request.all_percents[_COMPUTE]
        lines.append(
            PodLine(
                pod.ref,
                phase=pod.phase,
                assigned=pod.assigned,
                units=units * scale,
                shares=tuple((device, units * scale) for device, units in shares),
                cores=largest_cores,
            )
        )
    allocated = [0] * len(node.devices)
    for line in lines:
        for index, units in line.shares:
            allocated[index] += units
    sharers = Counter(index for line in lines for index, _ in line.shares)
    most_sharers = node.max_sharers - sum(not line.shares for line in lines)
    unplaced = sum(line.units for line in lines if not line.shares)
    unplaced_cores = sum(line.cores for line in lines if not line.shares)
    spec = NodeSpec(
        node.name,
        tuple(device.mem for device in node.devices),
        tuple(device.healthy for device in node.devices),
        closed=node.closed_reason,
        counted=not node.unit,
    )
    # A node with an inventory need not advertise its memory to the kubelet.
    judged_state = node.state or NodeState(node.name)
    availability, left_out = judged_state.judge(resource, spec, is_counted=False)
    devices = []
    for index, device in enumerate(node.devices):
        is_open = device.healthy and availability.takes_pods and sharers[index] < most_sharers
        units_free = device.mem * scale - allocated[index] - anywhere[index] * scale
        units_free = max(0, units_free) if is_open else 0
        cores_free = max(0, ALL_CORES - cores[index] - unplaced_cores) if is_open else 0
        devices.append(
            DeviceLine(
                index=index,
                total=device.mem * scale,
                allocated=allocated[index],
                free=units_free if cores_free else 0,
                healthy=device.healthy,
                model=device.model,
                uuid=device.uuid,
                cores=cores[index],
                cores_free=cores_free,
                stranded=0 if cores_free else units_free,
                limits=allocated[index] + above[index],
            )
        )
    closed_reason, state = node.closed_reason.value if node.closed_reason else "", node.state
    amounts = (state and state.allocatable) or {}
    if state is not None and resource in amounts:
        state = replace(state, allocatable={**amounts, resource: amounts[resource] * scale})
    return NodeLine(
        name=node.name,
        address=node.address,
        unit=unit,
        devices=tuple(devices),
        pods=tuple(lines),
        unplaced=unplaced,
        closed_reason=closed_reason,
        left_out=left_out,
        availability=availability,
        state=state,
        unplaced_cores=unplaced_cores,
        kept_reason=node.kept_reason,
    )


def _shares(pod: PodFacts, node: NodeFacts) -> Shares:
    """Return the shares by present indices of the pod's cards, as in the ledger; () if unplaced."""
    spec = NodeSpec(
        node.name,
        tuple(device.mem for device in node.devices),
        uuids=tuple(device.uuid for device in node.devices),
        closed=node.closed_reason,
        serves_by_identity=node.serves_by_identity,
        gone=node.gone_uuids,
    )
    if spec.has_known_devices and pod.shares:
        return resolve_devices(Cover(pod.shares, pod.uuids, given=pod.given_shares), spec)[1] or ()
    all_exist = all(device < len(node.devices) for device, _ in pod.shares)
    return pod.shares if all_exist else ()


def _name_of(pod: PodFacts | PendingFacts) -> tuple[str, str, str]:
    return pod.ref.namespace, pod.ref.name, pod.ref.uid
