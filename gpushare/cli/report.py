"""The report that every output format shows: which pods hold how much of which device.

Knows what was read of nodes and pods, and units of memory; not how it was read nor how it is
shown. A pod whose devices are not known (no usable annotation, or one that names a device its node
does not have) is *unplaced*: it may be on any device, so the ledger takes it off the free memory of
each, while a device shows as allocated what its own pods sum to.

Tested in `tests/contract/test_golden_inspect.py`.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from gpushare.cli.facts import NodeFacts, PendingFacts, PodFacts
from gpushare.core.cover import resolve_devices
from gpushare.core.model import Cover, NodeSpec, PodRef, Reason, Shares
from gpushare.core.node_filters import NodeState
from gpushare.wire.annotations import Names
from gpushare.wire.inventory import mib_of

if TYPE_CHECKING:  # it loads more than the rest of the command
    from gpushare.wire.held import HeldPlace
    from gpushare.wire.metrics import RankingPolicy

LARGEST_IN_GIB = 100
"""A device of more units than this is taken to be counted in MiB, as the original takes it."""


@dataclass(frozen=True, slots=True)
class DeviceLine:
    """One device. free is what the extender can still give out of it."""

    index: int
    total: int
    allocated: int
    free: int
    healthy: bool
    model: str
    uuid: str


@dataclass(frozen=True, slots=True)
class PodLine:
    """One pod that holds memory; shares is () if it is unplaced."""

    ref: PodRef
    phase: str
    assigned: bool
    units: int
    shares: Shares


@dataclass(frozen=True, slots=True)
class NodeLine:
    """One node; unit is the one it counts in, the numbers are in the report's. closed: why no pod
    may be placed on it, or ""; left_out: what keeps kube-scheduler itself from it, or "". state:
    what its filters see, device memory in the report's unit.
    """

    name: str
    address: str
    unit: str
    devices: tuple[DeviceLine, ...]
    pods: tuple[PodLine, ...]
    unplaced: int
    closed: str
    left_out: str = ""
    state: NodeState | None = None

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
        """Units that can still be given out."""
        return sum(device.free for device in self.devices)


@dataclass(frozen=True, slots=True)
class Report:
    """Nodes by name, and what is wrong, one line each.

    unit: what all numbers count. unit_from: "inventory", "flag" or "guess". policy: the one that
    ranks pods, None if nobody was asked or it is not known. pending: pods that wait, by
    namespace and name; () if they were not asked for. held: what filter keeps for pods, None as for
    the policy.
    """

    resource: str
    unit: str
    unit_from: str
    nodes: tuple[NodeLine, ...]
    warnings: tuple[str, ...]
    policy: "RankingPolicy | None" = None
    pending: tuple[PendingFacts, ...] = ()
    held: "tuple[HeldPlace, ...] | None" = None

    @property
    def total(self) -> int:
        """Units of all nodes."""
        return sum(node.total for node in self.nodes)

    @property
    def allocated(self) -> int:
        """Units of all pods."""
        return sum(node.allocated for node in self.nodes)

    def within(self, namespace: str) -> "Report":
        """Return the report with the pods of this namespace alone; sums stay those of all pods."""
        nodes = tuple(
            replace(node, pods=tuple(pod for pod in node.pods if pod.ref.namespace == namespace))
            for node in self.nodes
        )
        pending = tuple(pod for pod in self.pending if pod.ref.namespace == namespace)
        held = self.held
        if held is not None:
            held = tuple(place for place in held if place.pod.namespace == namespace)
        return replace(self, nodes=nodes, pending=pending, held=held)


def make_report(
    nodes: Iterable[NodeFacts],
    pods: Iterable[PodFacts],
    names: Names,
    unit: str = "",
    *,
    pending: Iterable[PendingFacts] = (),
    closed: Mapping[str, Collection[int | str]] = MappingProxyType({}),
) -> Report:
    """Return the report of these nodes; pods on other nodes are left out.

    unit: what nodes without inventory count in. If it is not given it is the one that inventories
    name, and if none does it is guessed. pending: pods that wait. closed: by node the devices
    that ConfigMaps close, by index or uuid.
    """
    sorted_nodes = sorted(
        (_with_closed(node, closed.get(node.name, ())) for node in nodes),
        key=lambda node: node.name,
    )
    fallback, unit_from = _fallback(sorted_nodes, unit)
    units = {node.name: node.unit or fallback for node in sorted_nodes}
    used = sorted(set(units.values())) or [fallback]
    common = used[0] if len(used) == 1 else "MiB"
    held: dict[str, list[PodFacts]] = {node.name: [] for node in sorted_nodes}
    for pod in pods:
        if pod.node in held:
            held[pod.node].append(pod)
    lines = tuple(
        _node_line(
            node,
            held[node.name],
            units[node.name],
            _scale(units[node.name], common),
            names.resource,
        )
        for node in sorted_nodes
    )
    warnings = [_closed_warning(node) for node in sorted_nodes if node.closed]
    if len(used) > 1:
        warnings.append(_mixed_warning(units, used))
    waiting = tuple(
        replace(pod, units=pod.units * _scale(fallback, common))
        for pod in sorted(pending, key=_name_of)
    )
    return Report(names.resource, common, unit_from, lines, tuple(warnings), pending=waiting)


def _with_closed(node: NodeFacts, closed: Collection[int | str]) -> NodeFacts:
    """Return the node with these devices unhealthy, as the extender takes them."""
    devices = tuple(
        replace(device, healthy=False) if {index, device.uuid} & {*closed} else device
        for index, device in enumerate(node.devices)
    )
    return replace(node, devices=devices)


def _fallback(nodes: Sequence[NodeFacts], flag: str) -> tuple[str, str]:
    """Return (unit of the nodes without inventory, where it is from)."""
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
    """Return the factor of the node's numbers; the common unit is its own, or MiB."""
    return 1 if unit == common else mib_of(unit)


def _node_line(
    node: NodeFacts, pods: Iterable[PodFacts], unit: str, scale: int, resource: str
) -> NodeLine:
    lines = [_pod_line(pod, _shares(pod, node), scale) for pod in sorted(pods, key=_name_of)]
    allocated = [0] * len(node.devices)
    for pod in lines:
        for device, units in pod.shares:
            allocated[device] += units
    unplaced = sum(pod.units for pod in lines if not pod.shares)
    devices = tuple(
        DeviceLine(
            index=index,
            total=device.mem * scale,
            allocated=allocated[index],
            free=max(0, device.mem * scale - allocated[index] - unplaced)
            if device.healthy and node.closed is None
            else 0,
            healthy=device.healthy,
            model=device.model,
            uuid=device.uuid,
        )
        for index, device in enumerate(node.devices)
    )
    closed = node.closed.value if node.closed else ""
    return NodeLine(
        node.name,
        node.address,
        unit,
        devices,
        tuple(lines),
        unplaced,
        closed,
        node.left_out,
        _scaled(node.state, resource, scale),
    )


def _scaled(state: NodeState | None, resource: str, scale: int) -> NodeState | None:
    amounts = state.allocatable if state else None
    if state is None or not amounts or resource not in amounts:
        return state
    return replace(state, allocatable={**amounts, resource: amounts[resource] * scale})


def _shares(pod: PodFacts, node: NodeFacts) -> Shares:
    """Return the shares by the indices that the pod's cards have now, as the ledger finds them; ()
    if unplaced.
    """
    if node.closed is None and node.devices and pod.shares:
        capacity = tuple(device.mem for device in node.devices)
        uuids = tuple(device.uuid for device in node.devices)
        spec = NodeSpec(
            node.name,
            capacity,
            uuids=uuids,
            serves_by_identity=node.serves_by_identity,
            gone=node.gone,
        )
        return resolve_devices(Cover(pod.shares, pod.uuids, given=pod.given), spec)[1] or ()
    known = all(device < len(node.devices) for device, _ in pod.shares)
    return pod.shares if known else ()


def _pod_line(pod: PodFacts, shares: Shares, scale: int) -> PodLine:
    return PodLine(
        pod.ref,
        phase=pod.phase,
        assigned=pod.assigned,
        units=pod.units * scale,
        shares=tuple((device, units * scale) for device, units in shares),
    )


def _name_of(pod: PodFacts | PendingFacts) -> tuple[str, str, str]:
    """Return what pods are sorted by."""
    return pod.ref.namespace, pod.ref.name, pod.ref.uid


def _closed_warning(node: NodeFacts) -> str:
    reason = node.closed.value if node.closed else ""
    detail = f" ({node.detail})" if node.detail else ""
    lost = "" if node.devices or node.closed is Reason.UNEVEN else "; its memory counts as 0"
    return f"node {node.name}: {reason}{detail}{lost}"


def _mixed_warning(units: Mapping[str, str], used: Iterable[str]) -> str:
    groups = "; ".join(
        f"{unit}: " + ", ".join(name for name, own in units.items() if own == unit) for unit in used
    )
    return (
        f"nodes count memory in different units ({groups}), shown in MiB;"
        " the extender places no pod on a node of another unit than its own"
    )
