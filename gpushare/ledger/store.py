"""The records of all pods and nodes, and everything that is counted from them.

A pod's record is changed in one place, `put`, which keeps the arrays up to date by adding and
subtracting. Nothing here locks: a Ledger owns one Store.

Tested in `tests/unit/ledger/test_model.py`.
"""

from dataclasses import dataclass, replace
from typing import cast

from gpushare.core.cover import resolve_devices
from gpushare.core.model import ALL_CORES, Allocation, NodeSpec, Request, Shares
from gpushare.core.node_arrays import Charge, NodeArrays
from gpushare.core.node_history import NodeHistory
from gpushare.core.pairing import Pairing, Pins
from gpushare.core.states.entry import Entry, Phase
from gpushare.core.states.phases import CHARGED, RECORDED
from gpushare.core.states.records import CpuOnly, Record
from gpushare.errors import InsufficientMemory, UnknownNode

_NO_HISTORY = NodeHistory()


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """A node: its spec as shown last, its history, and the shape that counts."""

    spec: NodeSpec
    past: NodeHistory
    shape: NodeSpec


class Store:
    """The records. records: of pods, by uid; by_phase: the same once more; nodes: by name.

    on_node, cpu_only_on: by node, the uids of those that hold devices of it, and that hold none.
    unhealthy: by node, there or not, the devices that somebody reported, by index or uuid. lent:
    the nodes, there or not, whose devices are given out in other books. changes: how often a record
    was changed.
    """

    def __init__(self, pairing: Pairing) -> None:
        self.records: dict[str, Record] = {}
        self.by_phase: dict[Phase, dict[str, Record]] = {phase: {} for phase in RECORDED}
        self.on_node: dict[str, set[str]] = {}
        self.cpu_only_on: dict[str, set[str]] = {}
        self.nodes: dict[str, NodeRecord] = {}
        self.unhealthy: dict[str, frozenset[int | str]] = {}
        self.lent: set[str] = set()
        self.arrays = NodeArrays()
        self.pins = Pins(pairing)
        self.changes = 0

    # -- pods -----------------------------------------------------------------------------------

    def put(self, uid: str, record: Record | None) -> None:
        """Replace the pod's record; None removes it."""
        before = self.records.get(uid)
        if record is before:
            return
        self.changes += 1
        if isinstance(record, Entry) and not (
            # Its devices were found already, when its last record was put here.
            isinstance(before, Entry)
            and record.cover is before.cover
            and (record.node, record.placement) == (before.node, before.placement)
        ):
            node = self.nodes.get(record.node)
            record = resolved(record, node.shape if node else None)
        was, now = charge_of(before), charge_of(record)
        if was != now or _pinned(before) != _pinned(record):
            if before is not None and was is not None:
                self._uncount(uid, before, was)
            if record is not None and now is not None:
                self._count(uid, record, now)
        if before is not None and (record is None or record.phase is not before.phase):
            del self.by_phase[before.phase][uid]
        if record is None:
            del self.records[uid]
        else:
            self.records[uid] = self.by_phase[record.phase][uid] = record

    def entry(self, uid: str) -> Entry | None:
        """Return the charge of the pod, if it has one."""
        record = self.records.get(uid)
        return record if isinstance(record, Entry) else None

    def entries(self, *phases: Phase) -> dict[str, Entry]:
        """Return the charges in these phases, by uid; without a phase, all charges."""
        first, *others = phases or CHARGED
        charged = self.by_phase[first].copy()
        for phase in others:
            charged |= self.by_phase[phase]
        return cast(dict[str, Entry], charged)

    def entries_on(self, node: str) -> list[Entry]:
        """Return the charges on the node."""
        return cast(list[Entry], [self.records[uid] for uid in self.on_node.get(node, ())])

    def requests_on(self, node: str) -> list[Request]:
        """Return what each pod on the node asks for, also those that hold no device."""
        uids = (*self.on_node.get(node, ()), *self.cpu_only_on.get(node, ()))
        return [charge.request for charge in map(charge_of, map(self.records.get, uids)) if charge]

    def is_filed(self) -> bool:
        """Return whether every record is where it is looked for; False only by a mistake."""
        again = Store(Pairing.OFF)
        for uid, record in self.records.items():
            again.put(uid, record)
        filed, indices = again.by_phase == self.by_phase, again.on_node == self.on_node
        return filed and indices and again.cpu_only_on == self.cpu_only_on

    # -- nodes ----------------------------------------------------------------------------------

    def set_spec(self, spec: NodeSpec) -> None:
        """Take over a node as it is shown."""
        known = self.nodes.get(spec.name)
        if known is not None and known.spec == spec:
            # The very object: an audit knows by it whether the node was told again.
            self.nodes[spec.name] = replace(known, spec=spec)
            return
        self.pins.serves_by_identity(spec.name, spec.serves_by_identity)
        self._reshape(spec, (known.past if known else _NO_HISTORY).updated(spec))

    def drop_node(self, name: str) -> None:
        """Close a node. Its pods stay charged."""
        if self.nodes.pop(name, None) is not None:
            self.arrays.remove_node(name)
            self.pins.serves_by_identity(name, known=False)

    def set_unhealthy(self, node: str, devices: frozenset[int | str]) -> None:
        """Take over which devices of the node are reported unhealthy."""
        known, before = self.nodes.get(node), self.unhealthy.pop(node, frozenset())
        if devices:
            self.unhealthy[node] = devices
        if devices != before and known is not None:
            self._reshape(known.spec, known.past)

    def lend(self, node: str) -> None:
        """Close all devices of the node from now on: they are given out in other books."""
        if node not in self.lent:
            self.lent.add(node)
            known = self.nodes.get(node)
            if known is not None:
                self._reshape(known.spec, known.past)

    def recount(self, node: str) -> None:
        """Count the node again, if that leaves less free; see NodeArrays.recount."""
        known = self.nodes.get(node)
        if known is not None:
            self._resolve(known.shape)
            self.arrays.recount(known.shape, self._charges(node))
        elif node in self.arrays.row:
            self.arrays.remove_node(node)

    # -- what fits ------------------------------------------------------------------------------

    def check_fits(self, uid: str, request: Request, allocation: Allocation) -> None:
        """Raise UnknownNode or InsufficientMemory if the pod cannot be charged so."""
        node = allocation.node
        if node not in self.nodes:
            raise UnknownNode(f"node {node!r} is not known")
        for device, units in allocation.shares:
            if not self.arrays.has_room(node, device, units, request.cores):
                cores = f" and {request.cores} % of its cores" if request.cores else ""
                raise InsufficientMemory(
                    f"node {node!r}: device {device} has no room for {units} units{cores} any more"
                )
        self._check_pairing(uid, request, allocation)

    def check_still_fits(self, entry: Entry) -> tuple[Allocation, int]:
        """Return what is charged, and the capacity of its first device, if it all can be used.

        Its cover says which devices. Raises UnknownNode or InsufficientMemory if it cannot.
        """
        node = entry.node
        devices, units = zip(*entry.cover.written or (), strict=True)
        allocation = Allocation(node, devices, units, entry.cover.uuids)
        if node not in self.nodes:
            raise UnknownNode(f"node {node!r} is not known any more")
        spec, used = self.nodes[node].shape, self.arrays.used(node)
        cores, least = self.arrays.cores(node), max(entry.cores, 1)
        if entry.placement != allocation.shares:
            raise InsufficientMemory(f"node {node!r}: its devices have come to other indices")
        for device, held in allocation.shares:
            there = device < len(spec.capacity) and spec.healthy[device] and not spec.closed
            if (
                not there
                or used[device] > spec.capacity[device]
                # As NodeArrays.has_room, with its own charge among those that are there.
                or cores[device] - entry.cores > ALL_CORES - least
                or (entry.request.alone and used[device] > held)
            ):
                why = "was given to others" if there else "was closed"
                raise InsufficientMemory(f"node {node!r}: device {device} {why} meanwhile")
        self._check_pairing(entry.ref.uid, entry.request, allocation)
        return allocation, spec.capacity[devices[0]]

    def with_uuids(self, allocation: Allocation) -> Allocation:
        """Return the allocation with the uuids of its devices, as the node tells them now."""
        uuids = self.nodes[allocation.node].spec.uuids
        if not any(uuids):
            return replace(allocation, uuids=())
        return replace(allocation, uuids=tuple(uuids[device] for device in allocation.devices))

    def _check_pairing(self, uid: str, request: Request, allocation: Allocation) -> None:
        node = allocation.node
        if self.pins.devices(node, request, uid) not in (None, allocation.devices):
            raise InsufficientMemory(f"node {node!r}: an equal pod waits for the device plug-in")

    # -- counting -------------------------------------------------------------------------------

    def _reshape(self, spec: NodeSpec, past: NodeHistory) -> None:
        """Take over the node, and count it again."""
        unhealthy, lent = self.unhealthy.get(spec.name), spec.name in self.lent
        shape = shape_of(spec, past, unhealthy, lent=lent)
        self.nodes[spec.name] = NodeRecord(spec, past, shape)
        self._resolve(shape)
        self.arrays.set_node(shape, self._charges(spec.name))

    def _resolve(self, shape: NodeSpec) -> None:
        """Find again the devices that each charge on the node counts on."""
        for entry in self.entries_on(shape.name):
            uid, again = entry.ref.uid, resolved(entry, shape)
            self.records[uid] = self.by_phase[entry.phase][uid] = again

    def _charges(self, node: str) -> list[Charge]:
        uids = (*self.on_node.get(node, ()), *self.cpu_only_on.get(node, ()))
        charges = (charge_of(self.records[uid]) for uid in uids)
        return [charge for charge in charges if charge is not None]

    def _count(self, uid: str, record: Record, charge: Charge) -> None:
        self.arrays.add(charge)
        if isinstance(record, Entry):
            self.on_node.setdefault(charge.node, set()).add(uid)
            self.pins.add(record)
        else:
            self.cpu_only_on.setdefault(charge.node, set()).add(uid)

    def _uncount(self, uid: str, record: Record, charge: Charge) -> None:
        self.arrays.subtract(charge)
        there = self.on_node
        if isinstance(record, Entry):
            self.pins.remove(record)
        else:
            there = self.cpu_only_on
        there[charge.node].remove(uid)
        if not there[charge.node]:
            del there[charge.node]


def shape_of(
    spec: NodeSpec, past: NodeHistory, unhealthy: frozenset[int | str] | None, *, lent: bool
) -> NodeSpec:
    """Return the node as it counts, given what it was, and without what was reported unhealthy; no
    device of one that is lent is open.
    """
    shape = past.effective_spec(spec)
    if lent:
        return replace(shape, healthy=(False,) * len(shape.healthy))
    if not unhealthy:
        return shape
    uuids = shape.uuids or ("",) * len(shape.capacity)
    healthy = tuple(
        ok and device not in unhealthy and uuid not in unhealthy
        for device, (ok, uuid) in enumerate(zip(shape.healthy, uuids, strict=True))
    )
    return replace(shape, healthy=healthy)


def charge_of(record: Record | None) -> Charge | None:
    """Return what the record charges."""
    if isinstance(record, Entry):
        return Charge(record.node, record.request, record.placement)
    return Charge(record.node, record.request, None) if isinstance(record, CpuOnly) else None


def resolved(entry: Entry, shape: NodeSpec | None) -> Entry:
    """Return the charge on its node's devices as they are; as it was if they are not known."""
    if shape is None or shape.closed or not shape.capacity:
        return entry
    cover, placement = resolve_devices(entry.cover, shape)
    if cover is entry.cover and placement == entry.placement:
        return entry
    return replace(entry, cover=cover, placement=placement)


def _pinned(record: Record | None) -> Shares | None:
    """Return where the record holds back equal pods."""
    return record.cover.written if isinstance(record, Entry) and record.pins else None
