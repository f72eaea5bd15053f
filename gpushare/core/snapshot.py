"""The cluster at one moment, as arrays.

Knows numpy and the model; has no lock and is immutable, so any thread may read it. N rows, one per
node (a removed node leaves an empty row until another node uses it), D columns, one per device
index. Every question about the cluster is a sum over these arrays: at 5,000 nodes with 8 devices a
filter takes 0.1 ms here and 2.2 ms over objects.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from gpushare.core.model import ALL_CORES, ANY_CARD, Cards, Reason, Request

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
Rows = npt.NDArray[np.intp]

REASONS: tuple[Reason | None, ...] = (None, *Reason)
"""The reasons by their number in `Snapshot.closed`."""

Pinned = tuple[frozenset[int], tuple[int, ...]]
"""(sizes, devices) of a pod that holds back its equals."""


KINDS = 5


def pod_kind(request: Request, capacity: int) -> int:
    """Return the column of `Snapshot.kinds` for a pod with GPU, on devices of `capacity` units.

    0: it shares a device; 1 to 4: it has 1, 2, 3 or 4, or more whole devices.
    """
    if request.units < capacity and request.devices == 1:
        return 0
    return min((request.devices - 1).bit_length() + 1, KINDS - 1)


def idle_devices(snapshot: "Snapshot", rows: Rows) -> Bools:
    """Return bool (K, D): devices of which nothing is used."""
    free = snapshot.free.take(rows, axis=0)
    mask: Bools = (free == snapshot.capacity.take(rows, axis=0)) & (free > 0)
    return mask


def has_room(snapshot: "Snapshot", rows: Rows, request: Request) -> Bools:
    """Return bool (K, D): devices with room for the request's memory and, there too, its cores.

    Of a split one each has room for the least part: `has_devices` tells whether all have room. One
    whose cores are all given has no memory free, so a pod without cores needs no second look.
    """
    room: Bools = snapshot.free.take(rows, axis=0) >= max(request.least, 1)
    if request.cores:
        room &= has_cores(snapshot, rows, request)
    if request.cards != ANY_CARD:
        room &= has_cards(snapshot, rows, request.cards)
    return room


def has_devices(
    among: Bools, request: Request, units: Ints, rows: Rows | slice = slice(None)
) -> Bools:
    """Return bool (K,): rows with enough devices for the request, each part on another one.

    among: bool (K, D), the devices that may be used: each has enough for the least part. units,
    rows: what may be used of each is in these rows; only a split request has them looked up.
    """
    if not request.split:
        enough: Bools = among.sum(axis=1) >= request.devices
        return enough
    units = units[rows]
    if units.shape[1] < request.devices:
        return np.zeros(len(units), dtype=bool)
    # If they fit at all, the largest part fits on the device with the most, and so on.
    most = np.sort(np.where(among, units, 0), axis=1)[:, ::-1][:, : request.devices]
    fits: Bools = np.all(most >= np.array(request.split), axis=1)
    return fits


def has_cores(snapshot: "Snapshot", rows: Rows, request: Request) -> Bools:
    """Return bool (K, D): open devices with room for the request's cores, whatever memory is free.

    Who asks for all cores of a device gets one that nobody uses: a pod without cores uses them too.
    """
    taken = snapshot.cores_used.take(rows, axis=0)
    room: Bools = snapshot.open[rows] & (taken <= ALL_CORES - max(request.cores, 1))
    if request.alone:
        room &= snapshot.used.take(rows, axis=0) == 0
    return room


def has_cards(snapshot: "Snapshot", rows: Rows, cards: Cards) -> Bools:
    """Return bool (K, D): devices that are wanted, as far as their models and uuids say."""
    # Index -1 is the last one: a device of which no model is known, or none at all.
    models = np.array([*map(cards.accepts_model, snapshot.models), cards.accepts_model("")])
    wanted: Bools = models[snapshot.model.take(rows, axis=0)]
    for uuids, wants in ((cards.uuids, True), (cards.not_uuids, False)):
        if uuids:
            named = np.zeros(snapshot.model.shape, dtype=bool)
            for row, device in filter(None, map(snapshot.cards.get, uuids)):
                named[row, device] = True
            wanted &= named[rows] == wants
    return wanted


def stranded_by_compute(snapshot: "Snapshot") -> int:
    """Return the units that nobody has, on open devices whose cores are all given."""
    raw = np.maximum(snapshot.capacity - snapshot.used, 0)
    return int(raw[snapshot.open & (snapshot.cores_used >= ALL_CORES)].sum())


def has_accepted_model(snapshot: "Snapshot", rows: Rows, request: Request) -> Bools:
    """Return bool (K,): nodes of a GPU model that the request accepts."""
    if not request.models:
        return np.ones(len(rows), dtype=bool)
    accepted = np.array([*(model in request.models for model in snapshot.models), False])
    found: Bools = accepted[snapshot.model[rows].max(axis=1, initial=-1)]
    return found


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
    cores_used: npt.NDArray[np.int32]
    """int32 (N, D) percent of each device's compute; pods that ask for no cores count 0."""
    healthy: Bools
    """bool (N, D), False beyond a node's devices."""
    model: npt.NDArray[np.int16]
    """int16 (N, D) index into `models`, -1 beyond a node's devices."""
    models: tuple[str, ...]
    """The names of all models."""
    uuids: tuple[tuple[str, ...], ...]
    """By row, the uuid of each device, "" for one without; () where nothing is known of them."""
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
    kinds: npt.NDArray[np.int16]
    """int16 (N, 5) pods by `pod_kind`."""
    group: npt.NDArray[np.int32]
    """int32 (N,), equal for nodes that are alike when empty, to the GiB of memory."""
    closed: npt.NDArray[np.int8]
    """int8 (N,) index into REASONS."""
    order: Ints
    """int64 (N,) the rank of the node's name, the last key of every order."""
    row_generation: Ints
    """int64 (N,) the generation of each row's last change."""
    pinned: Mapping[int, tuple[Pinned, ...]]
    """By row, the bound pods whose equals have to wait or take the same devices (see pairing)."""

    @cached_property
    def open(self) -> Bools:
        """bool (N, D): devices that may be given out: healthy, on a node not closed."""
        mask: Bools = self.healthy & (self.closed == 0)[:, None]
        mask.flags.writeable = False
        return mask

    @cached_property
    def free(self) -> Ints:
        """int64 (N, D): units that can be given out, never negative.

        0 if a device is not open, or if its cores are all given: then its memory is no use.
        """
        return self.left(slice(None))

    @cached_property
    def cards(self) -> Mapping[str, tuple[int, int]]:
        """(row, device) of each card that has a uuid."""
        return {
            uuid: (row, device)
            for row, uuids in enumerate(self.uuids)
            for device, uuid in enumerate(uuids)
            if uuid
        }

    @cached_property
    def any_cores(self) -> bool:
        """Whether a pod holds cores."""
        return bool(self.cores_used.any())

    @cached_property
    def cores_free(self) -> Ints:
        """int64 (N, D): percent of the compute that can be given out; 0 if a device is not open."""
        return self.cores_left(slice(None))

    def inherit(self, before: "Snapshot") -> None:
        """Copy from an earlier snapshot what has not changed since, to compute less."""
        if before.capacity is not self.capacity:  # another layout: nodes have come, gone or changed
            return
        self.__dict__["open"] = before.open  # where cached_property would put it
        if "cards" in before.__dict__:
            self.__dict__["cards"] = before.cards
        if before.cores_used is self.cores_used:
            self.__dict__["any_cores"] = before.any_cores
        rows = self.changed_since(before.generation)
        free = before.free.copy()
        free[rows] = self.left(rows)
        free.flags.writeable = False
        self.__dict__["free"] = free

    def left(self, rows: Rows | slice) -> Ints:
        """Return int64 (K, D): what `free` is for these rows, counted anew."""
        left: Ints = np.maximum(self.capacity[rows] - self.used[rows], 0)
        left[~self.open[rows]] = 0
        if self.any_cores:
            left[self.cores_used[rows] >= ALL_CORES] = 0
        left.flags.writeable = False
        return left

    def cores_left(self, rows: Rows | slice) -> Ints:
        """Return int64 (K, D): what `cores_free` is for these rows, counted anew."""
        left: Ints = np.maximum(ALL_CORES - self.cores_used[rows].astype(np.int64), 0)
        left[~self.open[rows]] = 0
        left.flags.writeable = False
        return left

    def changed_since(self, generation: int) -> Rows:
        """Return intp (K,): rows that changed after that generation."""
        return np.flatnonzero(self.row_generation > generation)
