"""The cluster at one moment as arrays, and which of its devices have room for a request.

Knows numpy and the model, no pods. N rows, one per node (a removed node leaves an empty row until
another node uses it), D columns, one per device index. Every question about the cluster is a sum
over these arrays: at 5,000 nodes with 8 devices a filter takes 0.1 ms here and 2.2 ms over objects.
`NodeArrays` makes a `Snapshot`, which is immutable: any thread may read it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from gpushare.core.amounts import COMPUTE, PERCENT_AMOUNTS, SHARE, DeviceAmount, memory_percent
from gpushare.core.apart import Workloads, pods_of_workload
from gpushare.core.layout import GroupRows
from gpushare.core.model import ANY_CARD, ANY_SHARERS, Cards, Pinned, Reason, Request
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


def counts_of(request: Request) -> int:
    """Return how many of the counts in `Snapshot.pods` a pod is in: PODS alone, or both."""
    return UNMETERED if request.percents and request.percents[_COMPUTE] else UNMETERED + 1


def idle_devices(snapshot: "Snapshot", rows: Rows) -> Bools:
    """Return bool (K, D): devices without any used memory."""
    free = snapshot.free.take(rows, axis=0)
    mask: Bools = (free == snapshot.capacity.take(rows, axis=0)) & (free > 0)
    return mask


def has_room(snapshot: "Snapshot", rows: Rows, request: Request, *, pairing: bool = False) -> Bools:
    """Return bool (K, D): devices with room for the request's memory and, there too, its percents.

    For a split request each device has room for the smallest part: `has_devices` tells whether all
    parts have room. pairing: leave out the devices that pairing excludes. `free` is 0 where all of
    an exclusive amount is given, so a request without percents needs no second look.
    """
    least = request.split[-1] if request.split else request.units
    room: Bools = snapshot.free.take(rows, axis=0) >= max(least, 1)
    if request.percents:
        room &= has_percents(snapshot, rows, request)
    if request.cards != ANY_CARD:
        room &= has_cards(snapshot, rows, request.cards)
    if request.apart and request.apart.required:
        room &= fellows(snapshot, rows, request) == 0
    if pairing and snapshot.pinned and request.devices:
        paired_devices = snapshot.paired_rows.devices(snapshot, request)
        if paired_devices is not None:
            room &= paired_devices.take(rows, axis=0)
    return room


def needed_units(snapshot: "Snapshot", rows: Rows, request: Request) -> int | Ints:
    """Return the units that the smallest part of the request is charged, at least 1.

    The same for all devices, or int64 (K, D) if the request is for a percentage of the memory.
    """
    least = max(min(request.parts, default=0), 1)
    percent = memory_percent(request.percents)
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
        is_closed, left = ~self.open[rows], []
        for amount, used in zip(PERCENT_AMOUNTS, self.percents_used, strict=True):
            percent: Ints = np.maximum(amount.whole - used[rows].astype(np.int64), 0)
            percent[is_closed] = 0
            percent.flags.writeable = False
            left.append(percent)
        return tuple(left)

    def changed_since(self, generation: int) -> Rows:
        """Return intp (K,): rows that changed after that generation."""
        return np.flatnonzero(self.row_generation > generation)
