"""The books: the records of all pods and nodes, their sums, and the values for readers.

A pod's record is changed in one place, `Store.put`, which keeps the arrays up to date by adding and
subtracting. A `Store` locks nothing: a `Reader` owns one, and has the lock. The returned value is
never changed again.

Tested in `tests/unit/ledger/test_ledger.py` and `tests/unit/ledger/test_model.py`.
"""

import threading
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import cast

from gpushare.core.amounts import (
    memory_text,
    percents_text,
)
from gpushare.core.arrays_check import differing_nodes
from gpushare.core.cover import resolve_devices
from gpushare.core.model import (
    Allocation,
    Amounts,
    Charge,
    NodeSpec,
    PodRef,
    Request,
)
from gpushare.core.node_arrays import NodeArrays
from gpushare.core.node_filters import amounts_of
from gpushare.core.node_history import NodeHistory
from gpushare.core.pairing import Pairing, Pins
from gpushare.core.snapshot import Snapshot
from gpushare.core.states.entry import Entry, NodeBooks, Phase, Waiting
from gpushare.core.states.phases import ASSUMED, CHARGED, RECORDED
from gpushare.core.states.records import Alarm, Record
from gpushare.core.stranded import typical_units
from gpushare.errors import InsufficientMemory, InvariantError, RequestRefused, UnknownNode

LANDED_GRACE = 10.0
"""Seconds the watch may take to show a binding that was answered with success before it is read."""

_ALARMS_KEPT = 256
"""Alarms kept for `take_alarms`; the oldest go first, and are counted all the same."""

_NO_HISTORY = NodeHistory()


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """A node: its spec as shown last, its history, and the shape that counts."""

    spec: NodeSpec
    past: NodeHistory
    shape: NodeSpec


class Store:
    """The records, their sums, and the alarms that they have raised."""

    def __init__(self, pairing: Pairing) -> None:
        self.records: dict[str, Record] = {}
        """Of pods, by uid."""
        self.by_phase: dict[Phase, dict[str, Record]] = {phase: {} for phase in RECORDED}
        """The same once more."""
        self.on_node: dict[str, set[str]] = {}
        """By node, the uids of the pods that take something of it."""
        self.nodes: dict[str, NodeRecord] = {}
        """By name."""
        self.unhealthy: dict[str, frozenset[int | str]] = {}
        """By node, there or not, the devices that somebody reported, by index or uuid."""
        self.lent: set[str] = set()
        """The nodes, there or not, whose devices are given out in other books."""
        self.arrays = NodeArrays()
        self.taken: dict[str, tuple[int, Amounts]] = {}
        """By node, the amounts of its pods by resource, and the generation of the last change."""
        self.pins = Pins(pairing)
        self.changes = 0
        """How often a record was changed."""
        self.alarm_counts = Counter(placement_edited=0, bound_by_another=0, binding_lost=0)
        self.alarms: deque[Alarm] = deque(maxlen=_ALARMS_KEPT)
        """Those that nobody has taken yet, oldest first."""

    # -- pods -----------------------------------------------------------------------------------

    def put(self, uid: str, record: Record | None, alarm: Alarm | None = None) -> None:
        """Replace the pod's record; None removes it. alarm: the fault of the observation."""
        if alarm is not None:
            self.alarm_counts[alarm.kind] += 1
            self.alarms.append(alarm)
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
        was = before.charge if before is not None else None
        now = record.charge if record is not None else None
        if was != now:
            if was is not None:
                self._count(uid, was, -1)
            if now is not None:
                self._count(uid, now)
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
        first, *more_phases = phases or CHARGED
        entries_by_uid = self.by_phase[first].copy()
        for phase in more_phases:
            entries_by_uid |= self.by_phase[phase]
        return cast(dict[str, Entry], entries_by_uid)

    def entries_on(self, node: str) -> list[Entry]:
        """Return the charges on the node."""
        records = (self.records[uid] for uid in self.on_node.get(node, ()))
        return [record for record in records if isinstance(record, Entry)]

    def charges_on(self, node: str) -> list[Charge]:
        """Return the amounts of each pod on the node, also of pods that hold no device."""
        charges = (self.records[uid].charge for uid in self.on_node.get(node, ()))
        return [charge for charge in charges if charge is not None]

    def is_filed(self) -> bool:
        """Return whether every record is where it is looked for; False only by a mistake."""
        again = Store(Pairing.OFF)
        for uid, record in self.records.items():
            again.put(uid, record)
        return again.by_phase == self.by_phase and again.on_node == self.on_node

    # -- nodes ----------------------------------------------------------------------------------

    def set_spec(self, spec: NodeSpec) -> None:
        """Take over a node as it is shown."""
        record = self.nodes.get(spec.name)
        if record is not None and record.spec == spec:
            # The very object: an audit knows by it whether the node was told again.
            self.nodes[spec.name] = replace(record, spec=spec)
            return
        self.pins.serves_by_identity(spec.name, spec.serves_by_identity)
        self._reshape(spec, (record.past if record else _NO_HISTORY).updated(spec))

    def drop_node(self, name: str) -> None:
        """Close a node. Its pods stay charged."""
        if self.nodes.pop(name, None) is not None:
            self.arrays.remove_node(name)
            self.taken.pop(name, None)
            self.pins.serves_by_identity(name, serves=False)

    def set_unhealthy(self, node: str, devices: frozenset[int | str]) -> None:
        """Take over which devices of the node are reported unhealthy."""
        record, before = self.nodes.get(node), self.unhealthy.pop(node, frozenset())
        if devices:
            self.unhealthy[node] = devices
        if devices != before and record is not None:
            self._reshape(record.spec, record.past)

    def lend(self, node: str) -> None:
        """Close all devices of the node from now on: they are given out in other books."""
        if node not in self.lent:
            self.lent.add(node)
            record = self.nodes.get(node)
            if record is not None:
                self._reshape(record.spec, record.past)

    def recount(self, node: str) -> None:
        """Count the node again, if that leaves less free; see NodeArrays.recount."""
        record = self.nodes.get(node)
        if record is not None:
            self._resolve(record.shape)
            self.arrays.recount(record.shape, self.charges_on(node))
        elif node in self.arrays.row:
            self.arrays.remove_node(node)

    # -- room on nodes ----------------------------------------------------------------------------

    def check_fits(self, uid: str, request: Request, allocation: Allocation) -> None:
        """Raise UnknownNode or InsufficientMemory if the pod cannot be charged so."""
        node = allocation.node
        if node not in self.nodes:
            raise UnknownNode(f"node {node!r} is not known")
        for device, units in allocation.shares:
            if not self.arrays.has_room(node, device, units, request):
                percents = percents_text(request.percents, "its ")
                room = memory_text(f"{units} units", units, request.percents)
                room += f" and {percents}" if percents else ""
                raise InsufficientMemory(
                    f"node {node!r}: device {device} has no room for {room} any more"
                )
        if node in self.pins.by_node:
            self.pins.check(uid, request, allocation)

    def check_still_fits(self, entry: Entry) -> tuple[Allocation, int]:
        """Return the charge, and the capacity of its first device, if all of it can be used.

        Its cover says which devices. Raises UnknownNode or InsufficientMemory if it cannot.
        """
        node, shares = entry.node, entry.cover.written or ()
        allocation = Allocation(node, shares, entry.cover.uuids)
        if node not in self.nodes:
            raise UnknownNode(f"node {node!r} is not known any more")
        if entry.placement != shares:
            raise InsufficientMemory(f"node {node!r}: its devices have come to other indices")
        spec = self.nodes[node].shape
        for device, units in shares:
            if not self.arrays.has_room(node, device, units, entry.request, counted=True):
                is_open = device < len(spec.capacity) and spec.healthy[device] and not spec.closed
                cause = "was given to others" if is_open else "was closed"
                raise InsufficientMemory(f"node {node!r}: device {device} {cause} meanwhile")
        if node in self.pins.by_node:
            self.pins.check(entry.ref.uid, entry.request, allocation)
        return allocation, spec.capacity[shares[0][0]]

    # -- counting -------------------------------------------------------------------------------

    def _reshape(self, spec: NodeSpec, past: NodeHistory) -> None:
        """Take over the node, and count it again."""
        unhealthy, lent = self.unhealthy.get(spec.name), spec.name in self.lent
        shape = shape_of(spec, past, unhealthy, lent=lent)
        self.nodes[spec.name] = NodeRecord(spec, past, shape)
        self._resolve(shape)
        self.arrays.set_node(shape, self.charges_on(spec.name))

    def _resolve(self, shape: NodeSpec) -> None:
        """Find again the devices that each charge on the node counts on."""
        for entry in self.entries_on(shape.name):
            uid, again = entry.ref.uid, resolved(entry, shape)
            self.records[uid] = self.by_phase[entry.phase][uid] = again

    def _count(self, uid: str, charge: Charge, sign: int = 1) -> None:
        """Count a charge; sign -1: subtract a counted one."""
        self.arrays.add(charge, sign)
        if charge.pinned is not None and self.pins.are_kept:
            self.pins.add(uid, charge, sign)
        uids = self.on_node.setdefault(charge.node, set())
        if sign > 0:
            uids.add(uid)
        else:
            uids.remove(uid)
        if not uids:
            del self.on_node[charge.node]


def shape_of(
    spec: NodeSpec, past: NodeHistory, unhealthy: frozenset[int | str] | None, *, lent: bool
) -> NodeSpec:
    """Return the node as it counts, given its history, and without devices reported unhealthy; no
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


def resolved(entry: Entry, shape: NodeSpec | None) -> Entry:
    """Return the charge on its node's devices as they are; as it was if they are not known."""
    if shape is None or not shape.has_known_devices:
        return entry
    cover, placement = resolve_devices(entry.cover, shape)
    if cover is entry.cover and placement == entry.placement:
        return entry
    return replace(entry, cover=cover, placement=placement)


@dataclass(frozen=True, slots=True)
class Overdue:
    """A charge with a pod that must be read, and the token to hand back with the answer."""

    ref: PodRef
    node: str
    token: int


@dataclass(frozen=True, slots=True)
class LedgerView:
    """All that the books say at one moment, never changed again."""

    snapshot: Snapshot
    nodes: Mapping[str, NodeSpec]
    """As they count, by name."""
    entries: Mapping[str, Entry]
    """The charges by uid."""
    waiting: tuple[Waiting, ...]
    """The pods without a node that ask for devices, oldest first."""

    @property
    def typical_units(self) -> int:
        """The size of the typical request (core/stranded.py); a split pod asks for each part."""
        bindings = (entry.request for entry in self.entries.values())
        pending = (pod.request for pod in self.waiting)
        return typical_units(
            units for request in chain(bindings, pending) for units in {*request.parts}
        )


class Reader:
    """The books, to be looked at. Every method may be called from any thread."""

    def __init__(self, pairing: Pairing) -> None:
        self._lock = threading.RLock()
        self._store = Store(pairing)
        self._view: Snapshot | None = None

    def snapshot(self) -> Snapshot:
        """Return all that is charged as arrays, never changed again."""
        with self._lock:
            arrays = self._store.arrays
            if self._view is None or self._view.generation != arrays.generation:
                self._view = arrays.snapshot(self._store.pins.by_node)
            return self._view

    def version(self) -> tuple[int, int]:
        """Return a value that differs after each change of the books."""
        with self._lock:
            return self._store.arrays.generation, self._store.changes

    def view(self) -> LedgerView:
        """Return all nodes and pods as they are at one moment.

        Under the lock references are copied only: 2 ms for 100,000 pods.
        """
        with self._lock:
            snapshot, nodes = self.snapshot(), dict(self._store.nodes)
            entries = self._store.entries()
            uncharged = list(self._store.by_phase[Phase.UNCHARGED].values())
        shapes = {name: node_record.shape for name, node_record in nodes.items()}
        return LedgerView(snapshot, shapes, entries, _waiting(uncharged))

    def dump(self, node: str | None = None) -> tuple[NodeBooks, ...]:
        """Return the nodes that share devices, by name, with their charges (or the one node).

        Each as it is at one moment, one after the other: binds do not wait for all of them. Raises
        UnknownNode for a node that is not in the books.
        """
        with self._lock:
            if node is not None and node not in self._store.nodes:
                raise UnknownNode(f"node {node!r} is not known")
            names = sorted(self._store.nodes) if node is None else [node]
        return tuple(books for books in map(self.node_books, names) if books is not None)

    def node_books(self, node: str) -> NodeBooks | None:
        """Return the node with its charges; None if it is not known or shares no devices."""
        with self._lock:
            node_record = self._store.nodes.get(node)
            if node_record is None or not node_record.spec.capacity:
                return None
            entries = tuple(sorted(self._store.entries_on(node), key=_by_name))
            return self._store.arrays.books(node_record.shape, entries)

    def node_versions(self) -> dict[str, int]:
        """Return a number by name of each node that shares devices, in the order of the names.

        It differs after each change of the node's shape or of its charges.
        """
        with self._lock:
            snapshot, nodes = self.snapshot(), dict(self._store.nodes)
        generations, row = snapshot.row_generation.tolist(), snapshot.row
        return {name: generations[row[name]] for name in sorted(nodes) if nodes[name].spec.capacity}

    def taken(self, node: str) -> Amounts:
        """Return the amounts of a node's pods, by resource; added up once for each change."""
        with self._lock:
            arrays, memo = self._store.arrays, self._store.taken
            if node not in arrays.row:
                return {}
            version, kept_amounts = int(arrays.changed_at[arrays.row[node]]), memo.get(node)
            if kept_amounts is not None and kept_amounts[0] == version:
                return kept_amounts[1]
            charges = self._store.charges_on(node)
        sums: Counter[str] = Counter()
        for charge in charges:
            sums.update(amounts_of(charge.request))
        with self._lock:
            if node in arrays.row:
                memo[node] = version, sums
        return sums

    def counts(self) -> dict[str, int]:
        """Return how many nodes, pods by state, and alarms (by kind) there are.

        unplaced: charges on every device of their node, because their own are not known.
        """
        with self._lock:
            numbers = {phase: len(pods) for phase, pods in self._store.by_phase.items()}
            uncharged = list(self._store.by_phase[Phase.UNCHARGED].values())
            nodes, alarms = len(self._store.nodes), dict(self._store.alarm_counts)
            entries = self._store.entries()
        return {
            "nodes": nodes,
            "assumed": sum(numbers[phase] for phase in ASSUMED),
            "in_doubt": numbers[Phase.IN_DOUBT] + numbers[Phase.RESENT],
            "bound": numbers[Phase.BOUND],
            "unplaced": sum(entry.placement is None for entry in entries.values()),
            "plain": numbers[Phase.CPU_ONLY],
            "waiting": sum(isinstance(record, Waiting) for record in uncharged),
            **alarms,
        }

    def take_alarms(self) -> tuple[Alarm, ...]:
        """Return the alarms since the last call, oldest first."""
        with self._lock:
            alarms = tuple(self._store.alarms)
            self._store.alarms.clear()
        return alarms

    def closed_devices(self) -> dict[str, frozenset[int]]:
        """Return the devices that are not healthy, by node; nodes without such a device are left
        out.
        """
        with self._lock:
            nodes = dict(self._store.nodes)
        return {
            name: frozenset(device for device, ok in enumerate(node_record.shape.healthy) if not ok)
            for name, node_record in nodes.items()
            if not all(node_record.shape.healthy)
        }

    def waiting(self) -> tuple[Waiting, ...]:
        """Return the pods without a node that ask for devices, oldest first."""
        with self._lock:
            uncharged = list(self._store.by_phase[Phase.UNCHARGED].values())
        return _waiting(uncharged)

    # -- one pod, one node --------------------------------------------------------------------

    def entry(self, uid: str) -> Entry | None:
        """Return the charge of the pod."""
        with self._lock:
            return self._store.entry(uid)

    def record(self, uid: str) -> Record | None:
        """Return the known state of the pod."""
        with self._lock:
            return self._store.records.get(uid)

    def has_node(self, node: str) -> bool:
        """Return whether the node is in the books."""
        with self._lock:
            return node in self._store.nodes

    def serves(self, node: str) -> bool:
        """Return whether the node has devices here, or pods that hold some."""
        with self._lock:
            node_record = self._store.nodes.get(node)
            has_devices = node_record is not None and bool(node_record.spec.capacity)
            return has_devices or bool(self._store.entries_on(node))

    def can_still_bind(self, uid: str) -> bool:
        """Return whether the pod is bound, or its pending bind can still succeed.

        It cannot if the node is gone, or if its devices were closed or given to others since.
        """
        with self._lock:
            entry = self._store.entry(uid)
            if entry is None or entry.known_bound:
                return entry is not None
            if entry.cover.written is None:
                return entry.node in self._store.nodes
            try:
                self._store.check_still_fits(entry)
            except RequestRefused:
                return False
            return True

    # -- charges with pods that must be read ----------------------------------------------------

    def token(self, uid: str) -> int:
        """Return the token to pass to `settle` with the next read; -1 if the pod is not assumed."""
        with self._lock:
            record = self._store.records.get(uid)
            assumption = record.assumption if record else None
            return assumption.token if assumption else -1

    def overdue(self, now: float) -> tuple[Overdue, ...]:
        """Return the assumed charges whose pods must be read now, longest due first; see settle."""
        with self._lock:
            entries = self._store.entries(Phase.IN_DOUBT, Phase.LANDED).values()
        due = (
            Overdue(entry.ref, entry.node, entry.assumption.token)
            for entry in entries
            if entry.assumption
            and (entry.assumption.due or now >= entry.assumption.since + LANDED_GRACE)
        )
        return tuple(sorted(due, key=lambda charge: charge.token))

    # -- comparisons of the audit -----------------------------------------------------------------

    def entries_and_specs(self) -> tuple[dict[str, Entry], dict[str, NodeSpec]]:
        """Return (the charges by uid, the nodes by name), both as last shown."""
        with self._lock:
            entries, nodes = self._store.entries(), dict(self._store.nodes)
        return entries, {name: node_record.spec for name, node_record in nodes.items()}

    def differing_nodes(self) -> list[str]:
        """Return the nodes whose arrays differ from the sums of their charges.

        None unless there is a mistake here. Under the lock things are copied only; they are counted
        outside.
        """
        with self._lock:
            sums, records = self._store.arrays.sums(), list(self._store.records.values())
            nodes, unhealthy = dict(self._store.nodes), dict(self._store.unhealthy)
            lent = set(self._store.lent)
        shapes = {
            name: shape_of(
                node_record.spec, node_record.past, unhealthy.get(name), lent=name in lent
            )
            for name, node_record in nodes.items()
        }
        charges = [charge for record in records if (charge := record.charge) is not None]
        astray = {
            record.node
            for record in records
            if isinstance(record, Entry) and resolved(record, shapes.get(record.node)) is not record
        }
        return sorted(astray.union(differing_nodes(sums, shapes.values(), charges)))

    def check(self) -> None:
        """Raise InvariantError if sums are not those of the records, or records are misfiled."""
        with self._lock:
            filed = self._store.is_filed()
        wrong = self.differing_nodes()
        if wrong or not filed:
            raise InvariantError(f"the books differ from their records: {wrong}, filed {filed}")


def _waiting(uncharged: Iterable[Record]) -> tuple[Waiting, ...]:
    pending_pods = (pod for pod in uncharged if isinstance(pod, Waiting) and pod.request.devices)
    return tuple(sorted(pending_pods, key=lambda pod: (pod.created, pod.uid)))


def _by_name(entry: Entry) -> tuple[str, str, str]:
    return (entry.ref.namespace, entry.ref.name, entry.ref.uid)
