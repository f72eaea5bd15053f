"""The cluster at one moment as arrays, and the arrays that sum up charges.

Knows numpy and the model, no pods, and has no lock. N rows, one per node (a removed node leaves an
empty row until another node uses it), D columns, one per device index. Every question about the
cluster is a sum over these arrays: at 5,000 nodes with 8 devices a filter takes 0.1 ms here and
2.2 ms over objects.

`NodeArrays` changes, and the Ledger has the lock for it. Charging is linear, so adding and
subtracting the same charge in any order leaves the arrays as they were; therefore the incremental
sums equal rebuilt ones. A `Snapshot` is a copy: immutable, so any thread may read it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gpushare.core.amounts import (
    COMPUTE,
    PERCENT_AMOUNTS,
    SHARE,
    DeviceAmount,
    charged_units,
    memory_percent,
)
from gpushare.core.apart import Workloads, count_pod, pods_of_workload
from gpushare.core.layout import GroupRows, Layout, LayoutRows, with_rows
from gpushare.core.model import (
    ANY_CARD,
    ANY_SHARERS,
    HOST_BOUND,
    Cards,
    Charge,
    NodeSpec,
    Pinned,
    Reason,
    Request,
)
from gpushare.core.paired_rows import PairedRows

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
Rows = npt.NDArray[np.intp]
PercentArray = npt.NDArray[np.int32]

REASONS: tuple[Reason | None, ...] = (None, *Reason)
"""The reasons, indexed by the numbers in `Snapshot.closed`."""

PODS, UNMETERED = 0, 1
"""The two counts in `Snapshot.pods`."""
_COMPUTE = PERCENT_AMOUNTS.index(COMPUTE)

_ROWS = 64
"""Nodes that have room at first; doubled whenever all rows are in use."""


def counts_of(request: Request) -> int:
    """Return how many of the counts in `Snapshot.pods` a pod is in: PODS alone, or both."""
    return UNMETERED if request.cores else UNMETERED + 1


def idle_devices(snapshot: "Snapshot", rows: Rows) -> Bools:
    """Return bool (K, D): devices without any used memory."""
    free = snapshot.free.take(rows, axis=0)
    mask: Bools = (free == snapshot.capacity.take(rows, axis=0)) & (free > 0)
    return mask


def has_room(snapshot: "Snapshot", rows: Rows, request: Request) -> Bools:
    """Return bool (K, D): devices with room for the request's memory and, there too, its percents.

    For a split request each device has room for the smallest part: `has_devices` tells whether all
    parts have room. `free` is 0 where all of an exclusive amount is given, so a request without
    percents needs no second look.
    """
    room: Bools = snapshot.free.take(rows, axis=0) >= max(request.least, 1)
    if request.percents:
        room &= has_percents(snapshot, rows, request)
    if request.cards != ANY_CARD:
        room &= has_cards(snapshot, rows, request.cards)
    if request.excludes_fellows:
        room &= fellows(snapshot, rows, request) == 0
    return room


def needed_units(snapshot: "Snapshot", rows: Rows, request: Request) -> int | Ints:
    """Return the units that the smallest part of the request is charged, at least 1.

    The same for all devices, or int64 (K, D) if the request is for a percentage of the memory.
    """
    least, percent = max(request.least, 1), memory_percent(request.percents)
    if not percent:
        return least
    return np.maximum(-(-percent * snapshot.capacity.take(rows, axis=0) // SHARE.whole), least)


def fellows(snapshot: "Snapshot", rows: Rows, request: Request) -> Ints:
    """Return int64 (K, D): the pods of the request's workload on each device (core/apart.py)."""
    return pods_of_workload(snapshot.workloads, rows, snapshot.used.shape[1], request)


def has_devices(
    among: Bools, request: Request, units: Ints, rows: Rows | slice = slice(None)
) -> Bools:
    """Return bool (K,): rows with enough devices for the request, each part on another one.

    among: bool (K, D), the devices that may be used: each has enough for the least part. units,
    rows: the usable part of each is in these rows; only a split request has them looked up.
    """
    if not request.split:
        # A sum over the short axis of an array takes four times as long.
        count = np.add.reduce(among.T.copy(), axis=0, dtype=np.int16)
        enough: Bools = count >= request.devices
        return enough
    units = units[rows]
    if units.shape[1] < request.devices:
        return np.zeros(len(units), dtype=bool)
    # If the parts fit, the largest part fits on the device with the most units, and so on.
    largest = np.sort(np.where(among, units, 0), axis=1)[:, ::-1][:, : request.devices]
    fits: Bools = np.all(largest >= np.array(request.split), axis=1)
    return fits


def has_percents(snapshot: "Snapshot", rows: Rows, request: Request) -> Bools:
    """Return bool (K, D): open devices with room for the request's percents, whatever memory is
    free.
    """
    room: Bools = snapshot.open[rows]
    for index, percent in enumerate(request.every_percent):
        if PERCENT_AMOUNTS[index].needed(percent):
            room &= has_percent(snapshot, rows, index, percent)
    return room


def has_percent(snapshot: "Snapshot", rows: Rows, index: int, percent: int) -> Bools:
    """Return bool (K, D): devices with room for so much of the amount PERCENT_AMOUNTS[index].

    A pod that takes the whole of an exclusive amount needs a device that no pod uses: pods that ask
    for nothing of such an amount use some of it too.
    """
    amount = PERCENT_AMOUNTS[index]
    if amount.is_memory:
        needed = -(-percent * snapshot.capacity.take(rows, axis=0) // amount.whole)
        has_memory: Bools = snapshot.free.take(rows, axis=0) >= needed
        return has_memory
    used = snapshot.percents_used[index].take(rows, axis=0)
    room: Bools = used <= amount.whole - amount.needed(percent)
    if amount.is_exclusive and percent >= amount.whole:
        room &= snapshot.used.take(rows, axis=0) == 0
    return room


def has_place(snapshot: "Snapshot", rows: Rows | slice) -> Bools:
    """Return bool (K, D): devices with fewer pods than the most sharers of their node."""
    places: Bools = snapshot.pods[rows, :, PODS] < snapshot.sharers[rows, None]
    return places


def has_cards(snapshot: "Snapshot", rows: Rows, cards: Cards) -> Bools:
    """Return bool (K, D): devices whose model and uuid meet the conditions of the request."""
    # Index -1 is the last element: a device of unknown model, or no device.
    models = np.array([*map(cards.accepts_model, snapshot.models), cards.accepts_model("")])
    accepted: Bools = models[snapshot.model.take(rows, axis=0)]
    for uuids, wants in ((cards.uuids, True), (cards.not_uuids, False)):
        if uuids:
            is_named = np.zeros(snapshot.model.shape, dtype=bool)
            for uuid in uuids:
                for row, device in snapshot.cards.get(uuid, ()):
                    is_named[row, device] = True
            accepted &= is_named[rows] == wants
    return accepted


def contested_cards(snapshot: "Snapshot") -> dict[str, dict[str, str]]:
    """Return, by node, the uuids of cards that a second node claims too, with the second node."""
    contested: dict[str, dict[str, str]] = {}
    uuids_of_cards = [uuid for uuids in snapshot.uuids for uuid in uuids if uuid]
    if len(set(uuids_of_cards)) == len(uuids_of_cards):  # as nearly always
        return contested
    for uuid, places in snapshot.cards.items():
        rows = [row for row, _ in places]
        if len(set(rows)) > 1:
            names = sorted({snapshot.names[row] for row in rows})
            for name in names:
                second_node = next(second_node for second_node in names if second_node != name)
                contested.setdefault(name, {})[uuid] = second_node
    return contested


def units_stranded_by(snapshot: "Snapshot", amount: DeviceAmount) -> int:
    """Return the units that no pod has, on open devices of which the whole amount is given."""
    unused = np.maximum(snapshot.capacity - snapshot.used, 0)
    used = snapshot.percents_used[PERCENT_AMOUNTS.index(amount)]
    return int(unused[snapshot.open & (used >= amount.whole)].sum())


def has_accepted_model(snapshot: "Snapshot", rows: Rows | slice, request: Request) -> Bools:
    """Return bool (K,): nodes of a GPU model that the request accepts."""
    if not request.models:
        return np.ones(len(snapshot.model[rows]), dtype=bool)
    accepted = np.array([*(model in request.models for model in snapshot.models), False])
    nodes: Bools = accepted[snapshot.model[rows].max(axis=1, initial=-1)]
    return nodes


@dataclass(frozen=True, eq=False)
class Snapshot:
    """An immutable view of the ledger: N nodes by D devices."""

    names: tuple[str, ...]
    """The name of the node by row, "" for an empty row."""
    row: Mapping[str, int]
    """The row by the name of the node."""
    generation: int
    """Rises with every change."""
    capacity: Ints
    """int64 (N, D) units."""
    used: Ints
    """int64 (N, D) units."""
    percents_used: tuple[PercentArray, ...]
    """For each of `PERCENT_AMOUNTS` int32 (N, D) percent of each device; pods that ask for nothing
    of the amount count 0."""
    healthy: Bools
    """bool (N, D), False beyond a node's devices."""
    model: npt.NDArray[np.int16]
    """int16 (N, D) index into `models`, -1 beyond a node's devices."""
    models: tuple[str, ...]
    """The names of all models."""
    uuids: tuple[tuple[str, ...], ...]
    """By row, the uuid of each device, "" for a device without one; () where uuids are unknown."""
    cpu_capacity: Ints
    """int64 (N,) milli, -1 where unknown."""
    memory_capacity: Ints
    """int64 (N,) bytes, -1 where unknown."""
    cpu_free: Ints
    """int64 (N,) milli."""
    memory_free: Ints
    """int64 (N,) bytes."""
    cpu_only: Ints
    """int64 (N,) milli held by pods without GPU."""
    gpu_pods: Ints
    """int64 (N,) pods with GPU."""
    pods: npt.NDArray[np.int16]
    """int16 (N, D, 2) pods that hold a part of each device: all of them (PODS), and those of them
    that ask for no compute (UNMETERED)."""
    group: npt.NDArray[np.int32]
    """int32 (N,), equal for nodes that are alike when empty, to the GiB of memory."""
    sharers: npt.NDArray[np.int16]
    """int16 (N,): the most pods that may hold a part of one device."""
    closed: npt.NDArray[np.int8]
    """int8 (N,) index into REASONS."""
    order: Ints
    """int64 (N,) the rank of the node's name, the last key of every order; -1 of an empty row."""
    row_generation: Ints
    """int64 (N,) the generation of each row's last change."""
    pinned: Mapping[int, tuple[Pinned, ...]]
    """By row, the charged pods that make equal pods wait or take the same devices (see pairing)."""
    workloads: Workloads
    """By row, the devices of the pods that stay apart from others of their workload."""

    @cached_property
    def lineage(self) -> object:
        """An object that snapshots of the same arrays share, and no others.

        Among these a row that has not changed since a generation is the same row.
        """
        return object()

    @cached_property
    def paired_rows(self) -> PairedRows:
        """The devices that pairing allows; snapshots of the same arrays share the cache."""
        return PairedRows()

    @cached_property
    def open(self) -> Bools:
        """bool (N, D): devices that may be given out: healthy, on a node not closed."""
        mask: Bools = self.healthy & (self.closed == 0)[:, None]
        mask.flags.writeable = False
        return mask

    @cached_property
    def free(self) -> Ints:
        """int64 (N, D): units that can be given out, never negative.

        0 if a device is not open, has the most sharers, or if all of an exclusive amount of the
        device is given: then no pod can use the memory.
        """
        return self.left(slice(None))

    @cached_property
    def cards(self) -> Mapping[str, tuple[tuple[int, int], ...]]:
        """By uuid, (row, device) of each device that is said to be the card.

        Nobody can tell which of two nodes has a card that both claim, so both count.
        """
        places: dict[str, tuple[tuple[int, int], ...]] = {}
        for row, uuids in enumerate(self.uuids):
            for device, uuid in enumerate(uuids):
                if uuid:
                    places[uuid] = (*places.get(uuid, ()), (row, device))
        return places

    @cached_property
    def group_rows(self) -> GroupRows:
        """The nodes of each group."""
        return GroupRows.of(self.group, self.order)

    @cached_property
    def limits_sharers(self) -> bool:
        """Whether a node limits the pods of a device."""
        return bool((self.sharers < ANY_SHARERS).any())

    @cached_property
    def any_percents(self) -> bool:
        """Whether a pod has a part of an amount that is counted in percent."""
        return any(bool(used.any()) for used in self.percents_used)

    @property
    def cores_used(self) -> PercentArray:
        """int32 (N, D) percent of the compute of each device. Policies read this."""
        return self.percents_used[_COMPUTE]

    @cached_property
    def percents_free(self) -> tuple[Ints, ...]:
        """For each of `PERCENT_AMOUNTS` int64 (N, D): percent that can be given out; 0 if a device
        is not open.
        """
        return self.percents_left(slice(None))

    @property
    def cores_free(self) -> Ints:
        """int64 (N, D): percent of the compute that can be given out. Policies read this."""
        return self.percents_free[_COMPUTE]

    def left(self, rows: Rows | slice) -> Ints:
        """Return int64 (K, D): `free` of these rows, computed again."""
        free: Ints = np.maximum(self.capacity[rows] - self.used[rows], 0)
        free[~self.open[rows]] = 0
        if self.limits_sharers:
            free[~has_place(self, rows)] = 0
        if self.any_percents:
            for amount, used in zip(PERCENT_AMOUNTS, self.percents_used, strict=True):
                if amount.is_exclusive:
                    free[used[rows] >= amount.whole] = 0
        free.flags.writeable = False
        return free

    def percents_left(self, rows: Rows | slice) -> tuple[Ints, ...]:
        """Return `percents_free` of these rows, int64 (K, D) each, computed again."""
        return tuple(
            self._percent_left(rows, amount, used)
            for amount, used in zip(PERCENT_AMOUNTS, self.percents_used, strict=True)
        )

    def _percent_left(self, rows: Rows | slice, amount: DeviceAmount, used: PercentArray) -> Ints:
        percent: Ints = np.maximum(amount.whole - used[rows].astype(np.int64), 0)
        percent[~self.open[rows]] = 0
        percent.flags.writeable = False
        return percent

    def changed_since(self, generation: int) -> Rows:
        """Return intp (K,): rows that changed after that generation."""
        return np.flatnonzero(self.row_generation > generation)


def _computed_again(last: Snapshot, view: Snapshot) -> dict[str, object]:
    """Return the computed properties of `view`.

    last: the previous snapshot. Unchanged values are copied from there.
    """
    computed: dict[str, object] = {}
    rows, more = view.changed_since(last.generation), len(view.names) - len(last.names)
    has_same_width = view.capacity.shape[1] == last.free.shape[1]
    if view.healthy is last.healthy and view.closed is last.closed:
        computed["open"] = last.open
    elif has_same_width:
        is_open = with_rows(last.open, more)
        is_open[rows] = view.healthy[rows] & (view.closed[rows] == 0)[:, None]
        is_open.flags.writeable = False
        computed["open"] = is_open
    if view.percents_used is last.percents_used:
        computed["any_percents"] = last.any_percents
    elif not last.any_percents:
        computed["any_percents"] = any(bool(used[rows].any()) for used in view.percents_used)
    if view.sharers is last.sharers:
        computed["limits_sharers"] = last.limits_sharers
    vars(view).update(computed)
    if has_same_width:
        free = with_rows(last.free, more)
        free[rows] = view.left(rows)
        free.flags.writeable = False
        computed["free"] = free
    if "cards" in vars(last):
        computed["cards"] = (
            last.cards if view.uuids is last.uuids else _cards_again(last, view, rows)
        )
    return computed


def _cards_again(
    last: Snapshot, view: Snapshot, rows: Rows
) -> Mapping[str, tuple[tuple[int, int], ...]]:
    """Return `cards` of `view`, of which these rows have changed since `last`."""
    cards = dict(last.cards)
    changed_rows = set(rows.tolist())
    for row in changed_rows:
        for uuid in filter(None, last.uuids[row] if row < len(last.uuids) else ()):
            places = tuple(place for place in cards.pop(uuid, ()) if place[0] not in changed_rows)
            if places:
                cards[uuid] = places
    for row in sorted(changed_rows):
        for device, uuid in enumerate(view.uuids[row]):
            if uuid:
                cards[uuid] = tuple(sorted((*cards.get(uuid, ()), (row, device))))
    return cards


class ArrayCopies(NamedTuple):
    """A copy of all sums: row by node name, arrays as in a Snapshot, and `host`."""

    row: dict[str, int]
    capacity: Ints
    used: Ints
    percents: tuple[PercentArray, ...]
    pods: npt.NDArray[np.int16]
    healthy: Bools
    host: Ints
    """int64 (N, 6) CPU capacity and used, memory capacity and used, CPU of pods without GPU, pods
    with GPU."""
    closed: npt.NDArray[np.int8]
    workloads: Workloads


class NodeArrays:
    """Nodes by row, and the sums of the charges on them."""

    def __init__(self) -> None:
        self.generation = 0
        self._lineage, self._paired_rows = object(), PairedRows()
        self.row: dict[str, int] = {}
        self._rows = LayoutRows()
        self._empty_rows: list[int] = []
        self._capacity = np.zeros((_ROWS, 1), dtype=np.int64)
        self._used = np.zeros((_ROWS, 1), dtype=np.int64)
        # By PERCENT_AMOUNTS.
        self._percents = tuple(np.zeros((_ROWS, 1), dtype=np.int32) for _ in PERCENT_AMOUNTS)
        # The arrays of the last snapshot, until a pod with percents comes or goes.
        self._percents_shown: tuple[PercentArray, ...] | None = None
        self._healthy = np.zeros((_ROWS, 1), dtype=bool)
        # Columns: cpu capacity, cpu used, memory capacity, memory used, cpu of pods without GPU,
        # pods with GPU.
        self._host = np.zeros((_ROWS, 6), dtype=np.int64)
        self._pods = np.zeros((_ROWS, 1, 2), dtype=np.int16)
        self._closed = np.zeros(_ROWS, dtype=np.int8)
        self._workloads: Workloads = {}
        # The copy in the last snapshot, until a pod that stays apart comes or goes.
        self._workloads_shown: Workloads | None = None
        self._changed = np.zeros(_ROWS, dtype=np.int64)
        self._layout: Layout | None = None
        self._last: Snapshot | None = None
        # The mapping of pins that the last snapshot was made of.
        self._pins: Mapping[str, tuple[Pinned, ...]] | None = None

    def used(self, node: str) -> tuple[int, ...]:
        """Return the units used on each device of a known node."""
        row = self.row[node]
        spec = self._rows.spec(row)
        return tuple(self._used[row, : len(spec.capacity) if spec else 0].tolist())

    def percents(self, node: str) -> tuple[tuple[int, ...], ...]:
        """Return, for each of `PERCENT_AMOUNTS`, the percent in use of each device of a known
        node.
        """
        row = self.row[node]
        spec = self._rows.spec(row)
        count = len(spec.capacity) if spec else 0
        return tuple(tuple(used[row, :count].tolist()) for used in self._percents)

    def pods(self, node: str) -> tuple[int, ...]:
        """Return the number of pods that hold a part of each device of a known node."""
        row = self.row[node]
        spec = self._rows.spec(row)
        return tuple(self._pods[row, : len(spec.capacity) if spec else 0, PODS].tolist())

    def host_free(self, node: str) -> tuple[int | None, int | None]:
        """Return (milli-cores, bytes) left on a known node; below 0 if over-full, None: unknown."""
        cpu, cpu_used, memory, memory_used, *_ = self._host[self.row[node]].tolist()
        return (
            cpu - cpu_used if cpu >= 0 else None,
            memory - memory_used if memory >= 0 else None,
        )

    def has_room(self, node: str, device: int, units: int, request: Request) -> bool:
        """Return whether the device of a known node is open and has room for so many units and the
        percents of the request.
        """
        row = self.row[node]
        spec = self._rows.spec(row)
        if spec is None or spec.closed or device >= len(spec.capacity) or not spec.healthy[device]:
            return False
        used = self._used[row, device]
        if (request.alone and used) or self._pods[row, device, PODS] >= spec.max_sharers:
            return False
        for amount, percents, percent in zip(
            PERCENT_AMOUNTS, self._percents, request.every_percent, strict=True
        ):
            if percents[row, device] > amount.whole - amount.needed(percent):
                return False
        if request.excludes_fellows and self.fellows(node, device, request):
            return False
        needed = charged_units(units, request.percents, spec.capacity[device])
        return bool(self._capacity[row, device] - used >= needed)

    def fellows(self, node: str, device: int, request: Request) -> int:
        """Return the number of pods of the request's workload on the device of a known node."""
        workload = request.apart.workload if request.apart else ""
        return self._workloads.get(self.row[node], {}).get(workload, ()).count(device)

    def changed(self, node: str) -> int:
        """Return the generation in which a known node changed last."""
        return int(self._changed[self.row[node]])

    def set_node(self, spec: NodeSpec, charges: Iterable[Charge]) -> None:
        """Add the node, or replace the node's shape, and count the charges again."""
        row = self.row.get(spec.name)
        if row is None:
            row = self._empty_rows.pop() if self._empty_rows else self._grow_rows()
            self.row[spec.name] = row
        self._add_columns(len(spec.capacity))
        self._clear_row(row)
        self._rows.set(row, spec)
        count = len(spec.capacity)
        self._capacity[row, :count] = spec.capacity
        self._healthy[row, :count] = spec.healthy
        self._host[row, 0] = -1 if spec.cpu is None else min(spec.cpu, HOST_BOUND)
        self._host[row, 2] = -1 if spec.memory is None else min(spec.memory, HOST_BOUND)
        self._closed[row] = REASONS.index(spec.closed)
        self._layout = None
        for charge in charges:
            self.add(charge)

    def recount(self, spec: NodeSpec, charges: Iterable[Charge]) -> None:
        """Count the node again, but free no memory by it: the count with less free stays."""
        self._add_columns(len(spec.capacity))
        row = self.row.get(spec.name)
        if row is None:
            self.set_node(spec, charges)
            return
        capacity, used, healthy, *percents = (
            array[row].copy()
            for array in (self._capacity, self._used, self._healthy, *self._percents)
        )
        closed_before = self._closed[row]
        self.set_node(spec, charges)
        np.minimum(self._capacity[row], capacity, out=self._capacity[row])
        np.maximum(self._used[row], used, out=self._used[row])
        for array, before in zip(self._percents, percents, strict=True):
            np.maximum(array[row], before, out=array[row])
        self._healthy[row] &= healthy
        self._closed[row] = self._closed[row] or closed_before

    def remove_node(self, name: str) -> None:
        """Remove the node; a later node may use the row."""
        row = self.row.pop(name)
        self._clear_row(row)
        self._rows.set(row, None)
        self._empty_rows.append(row)
        self._layout = None

    def add(self, charge: Charge, sign: int = 1) -> None:
        """Count a charge; sign -1: subtract a counted one.

        On an unknown node it counts only once set_node adds the node.
        """
        row = self.row.get(charge.node)
        if row is None:
            return
        spec, request, host = self._rows.spec(row), charge.request, self._host[row]
        capacity = spec.capacity if spec else ()
        count, pods = len(capacity), self._pods[row, :, : counts_of(request)]
        devices: Iterable[int] = ()
        if charge.placement is not None and all(device < count for device, _ in charge.placement):
            for device, units in charge.placement:
                self._used[row, device] += sign * units
                pods[device] += sign
            devices = dict(charge.placement)
            if request.percents and charge.placement:
                on_devices = request.percents_on(charge.placement)
                for (device, units), percents in zip(charge.placement, on_devices, strict=True):
                    charged = charged_units(units, percents, capacity[device])
                    self._used[row, device] += sign * (charged - units)
                    for array, percent in zip(self._percents, percents, strict=True):
                        array[row, device] += sign * percent
                self._percents_shown = None
        elif request.devices:
            # The devices are unknown: the pod may be on any device, so every device is charged.
            devices = range(count)
            for device, charged in enumerate(request.charges_anywhere(capacity)):
                self._used[row, device] += sign * charged
            pods[:count] += sign
            if request.percents:
                for array, percent in zip(self._percents, request.all_percents, strict=True):
                    array[row, :count] += sign * percent
                self._percents_shown = None
        self._count_workload(row, request, devices, sign)
        cpu = min(request.cpu, HOST_BOUND)
        host[1] += sign * cpu
        host[3] += sign * min(request.memory, HOST_BOUND)
        if request.devices:
            host[5] += sign
        else:
            host[4] += sign * cpu
        self.generation += 1
        self._changed[row] = self.generation

    def _count_workload(
        self, row: int, request: Request, devices: Iterable[int], sign: int
    ) -> None:
        if count_pod(self._workloads, row, request, devices, sign):
            self._workloads_shown = None

    def snapshot(self, pinned: Mapping[str, tuple[Pinned, ...]]) -> Snapshot:
        """Return a copy of the arrays; those that only nodes change are shared by snapshots.

        pinned: by node, as `Snapshot.pinned`; if the caller passes the same mapping again, only
        rows with a change since the last snapshot may have other pins. The parts without a change
        since the last snapshot are taken from that one, to compute less.
        """
        count = len(self._rows)
        if self._layout is None:
            self._layout = self._rows.layout(
                self.row,
                self._capacity[:count],
                self._healthy[:count],
                self._host[:count, 0:3:2],
                self._closed[:count],
            )
        host = self._host[:count]
        cpu_free = np.maximum(host[:, 0] - host[:, 1], 0)
        memory_free = np.maximum(host[:, 2] - host[:, 3], 0)
        used, changes, cpu_only, gpu_pods, pods = (
            array[:count].copy()
            for array in (self._used, self._changed, *self._host.T[4:], self._pods)
        )
        if self._percents_shown is None:
            self._percents_shown = tuple(array[:count].copy() for array in self._percents)
        if self._workloads_shown is None:
            self._workloads_shown = self._workloads.copy()
        for array in (
            cpu_free,
            memory_free,
            used,
            changes,
            gpu_pods,
            pods,
            cpu_only,
            *self._percents_shown,
        ):
            array.flags.writeable = False
        view = Snapshot(
            **self._layout._asdict(),
            generation=self.generation,
            used=used,
            percents_used=self._percents_shown,
            cpu_free=cpu_free,
            memory_free=memory_free,
            cpu_only=cpu_only,
            gpu_pods=gpu_pods,
            pods=pods,
            row_generation=changes,
            pinned=self._pinned_rows(pinned, changes),
            workloads=self._workloads_shown,
        )
        last, self._last = self._last, view
        # Where cached_property would put it.
        vars(view).update(
            lineage=self._lineage,
            paired_rows=self._paired_rows,
            group_rows=self._rows.group_rows,
        )
        if last is not None:
            vars(view).update(_computed_again(last, view))
        return view

    def _pinned_rows(
        self, pinned: Mapping[str, tuple[Pinned, ...]], changed_at: Ints
    ) -> Mapping[int, tuple[Pinned, ...]]:
        """Return the pins by row. changed: int64 (N,), the generation of each row's last change."""
        if not pinned:
            rows: dict[int, tuple[Pinned, ...]] = {}
        elif pinned is self._pins and self._last is not None:
            # They come and go with the charges of their pods.
            rows = dict(self._last.pinned)
            for row in np.flatnonzero(changed_at > self._last.generation).tolist():
                spec = self._rows.spec(row)
                pins = pinned.get(spec.name) if spec else None
                if pins:
                    rows[row] = pins
                else:
                    rows.pop(row, None)
        else:
            rows = {self.row[node]: pins for node, pins in pinned.items() if node in self.row}
        self._pins = pinned if pinned else None
        return rows

    def sums(self) -> ArrayCopies:
        """Return a copy of all arrays of sums, none of them shared with snapshots."""
        return ArrayCopies(
            dict(self.row),
            self._capacity.copy(),
            self._used.copy(),
            tuple(array.copy() for array in self._percents),
            self._pods.copy(),
            self._healthy.copy(),
            self._host.copy(),
            self._closed.copy(),
            self._workloads.copy(),
        )

    def _clear_row(self, row: int) -> None:
        for array in (self._capacity, self._used, self._host, self._pods):
            array[row] = 0
        for percents in self._percents:
            if percents[row].any():
                percents[row] = 0
                self._percents_shown = None
        if self._workloads.pop(row, None):
            self._workloads_shown = None
        self._closed[row] = 0
        self._healthy[row] = False
        self.generation += 1
        self._changed[row] = self.generation

    def _grow_rows(self) -> int:
        row = self._rows.append()
        self._percents_shown = None
        if row == len(self._used):
            self._capacity, self._used, self._healthy, self._host = (
                np.pad(array, ((0, row), (0, 0)))
                for array in (self._capacity, self._used, self._healthy, self._host)
            )
            self._percents = tuple(np.pad(array, ((0, row), (0, 0))) for array in self._percents)
            self._pods = np.pad(self._pods, ((0, row), (0, 0), (0, 0)))
            self._closed = np.pad(self._closed, (0, row))
            self._changed = np.pad(self._changed, (0, row))
        return row

    def _add_columns(self, devices: int) -> None:
        more = devices - self._used.shape[1]
        if more > 0:
            self._capacity, self._used, self._healthy = (
                np.pad(array, ((0, 0), (0, more)))
                for array in (self._capacity, self._used, self._healthy)
            )
            self._percents = tuple(np.pad(array, ((0, 0), (0, more))) for array in self._percents)
            self._pods = np.pad(self._pods, ((0, 0), (0, more), (0, 0)))
            self._percents_shown = None
            self._layout = None
