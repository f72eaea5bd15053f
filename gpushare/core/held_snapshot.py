"""The cluster as filter offers it: a snapshot of the books, less the places held for other pods.

Knows no pods and no rules of holds, only the amounts that are taken from devices. The books stay as
they are, and every cache that is keyed by a generation (rankings, prices) is computed from the
books alone.

Tested in `tests/unit/extender/verbs/test_offers.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gpushare.core.amounts import PERCENT_AMOUNTS, charged_units
from gpushare.core.apart import Workloads, count_pod
from gpushare.core.model import Request, Shares
from gpushare.core.snapshot import PODS, Bools, Ints, PercentArray, Rows, Snapshot, counts_of
from gpushare.core.spare_arrays import Arrays, SpareArrays

_STAMPS = count(1)
_COPIED_ARRAYS = ("free", "gpu_pods", "pods", "cpu_free", "memory_free")
"""The arrays that holds change, as copies of the books' arrays."""


@dataclass(frozen=True, eq=False)
class HeldSnapshot(Snapshot):
    """An immutable snapshot of the books less holds, with the generation of the books.

    `HeldSnapshotBuilder` makes it.
    """

    base: Snapshot
    """The books."""
    is_held: Bools
    """bool (N,) rows that differ from the books."""
    stamps: Ints
    """int64 (N,) a number that differs after each change of the row, in any builder; 0 for a row
    that equals the books."""
    reopened: Mapping[tuple[int, int], int] = field(default_factory=dict)
    """By (row, device): units that the books do not offer, and that are free since `give`."""

    @property
    def rows(self) -> Rows:
        """intp (K,): the rows that differ from the books."""
        return np.flatnonzero(self.is_held)

    @property
    def takes_percents(self) -> bool:
        """Whether holds take percents; otherwise `percents_used` is that of the books."""
        return self.percents_used is not self.base.percents_used

    @cached_property  # type: ignore[misc]  # computed on demand, not passed to the constructor
    def used(self) -> Ints:
        """int64 (N, D): units in use or held; all units of a device that a hold has alone."""
        used = self.base.used + (self.base.free - self.free)
        for place, units in self.reopened.items():
            used[place] += units
        return used

    @property
    def held(self) -> "Held":
        """The state that another snapshot of the same layout is compared with."""
        return Held(self.generation, self.stamps)

    def differing_rows(self, held: "Held") -> Rows | None:
        """Return intp (K,): the rows that may differ from those of an earlier held snapshot of the
        same layout; None if that one is of later books.
        """
        if held.generation > self.generation:
            return None
        differs = self.stamps != held.stamps
        if held.generation < self.generation:
            differs |= self.row_generation > held.generation
        return np.flatnonzero(differs)


class Held(NamedTuple):
    """The state of a held snapshot, without its arrays."""

    generation: int
    """The generation of the books."""
    stamps: Ints
    """The stamps of the snapshot."""


class HeldSnapshotBuilder:
    """Copies of the arrays of the books from which places are taken, one after the other.

    base: the books. start: a held snapshot of the same layout to go on from; its rows that changed
    in the books since are reset, and `changed_rows` names those that were held. spares: arrays of
    snapshots of this layout. One thread uses a builder.
    """

    def __init__(
        self,
        base: Snapshot,
        start: HeldSnapshot | None = None,
        spares: SpareArrays[Held] | None = None,
    ) -> None:
        self.base, self._spares = base, spares
        values: Snapshot = base if start is None else start
        arrays = None if spares is None or start is None else _taken_over(spares, start)
        if arrays is None:
            arrays = {name: getattr(values, name).copy() for name in _COPIED_ARRAYS}
        self._arrays = arrays
        self.free, self.gpu_pods, self.pods = arrays["free"], arrays["gpu_pods"], arrays["pods"]
        self.cpu_free, self.memory_free = arrays["cpu_free"], arrays["memory_free"]
        self.workloads: Workloads = values.workloads.copy()
        self.reopened: dict[tuple[int, int], int] = {}
        self._percents_used: tuple[PercentArray, ...] | None = None
        self.changed_rows: set[int] = set()
        if start is None:
            self.is_held = np.zeros(len(base.names), dtype=bool)
            self.stamps = np.zeros(len(base.names), dtype=np.int64)
            return
        self.is_held, self.stamps = start.is_held.copy(), start.stamps.copy()
        self.reopened |= start.reopened
        if start.takes_percents:
            self._percents_used = tuple(array.copy() for array in start.percents_used)
        rows = np.flatnonzero(base.row_generation != start.base.row_generation)
        self.changed_rows = set(rows[self.is_held[rows]].tolist())
        self.reset(rows)

    @property
    def takes_percents(self) -> bool:
        """Whether percents were taken; otherwise `percents_used` is that of the books."""
        return self._percents_used is not None

    @property
    def percents_used(self) -> tuple[PercentArray, ...]:
        """For each of `PERCENT_AMOUNTS` int32 (N, D): percent in use or held."""
        return self.base.percents_used if self._percents_used is None else self._percents_used

    def own_percents(self) -> tuple[PercentArray, ...]:
        """Return the builder's own arrays of percents, copies of the books' at the first call."""
        if self._percents_used is None:
            self._percents_used = tuple(array.copy() for array in self.base.percents_used)
        return self._percents_used

    def take(self, row: int, shares: Shares, request: Request) -> None:
        """Take these units of the row's devices, the request's percents there, and the request's
        CPU and host memory.
        """
        self.hold(row)
        free, devices = self.free[row], [device for device, _ in shares]
        capacity = self.base.capacity[row].tolist()
        free[devices] -= [
            charged_units(units, request.percents, capacity[device]) for device, units in shares
        ]
        self.pods[row, devices, : counts_of(request)] += 1
        count_pod(self.workloads, row, request, devices, 1)
        free[self.pods[row, :, PODS] >= self.base.sharers[row]] = 0
        if request.percents:
            for amount, used, percent in zip(
                PERCENT_AMOUNTS, self.own_percents(), request.percents, strict=True
            ):
                used_in_row = used[row]
                used_in_row[devices] += percent
                if amount.is_exclusive:
                    free[used_in_row >= amount.whole] = 0
        self.gpu_pods[row] += 1
        self.cpu_free[row] = max(int(self.cpu_free[row]) - request.cpu, 0)
        self.memory_free[row] = max(int(self.memory_free[row]) - request.memory, 0)

    def give(self, row: int, shares: Shares, request: Request) -> None:
        """Free the devices of a pod that the books charge. CPU, host memory and `gpu_pods` stay."""
        self.hold(row)
        devices, capacity = [device for device, _ in shares], self.base.capacity[row]
        free, was_closed = self.free[row], self._closed(row)
        free[devices] += [units for _, units in shares]
        self.pods[row, devices, : counts_of(request)] -= 1
        count_pod(self.workloads, row, request, devices, -1)
        if request.percents and shares:
            for (device, units), percents in zip(shares, request.percents_on(shares), strict=True):
                free[device] += charged_units(units, percents, int(capacity[device])) - units
                for used, percent in zip(self.own_percents(), percents, strict=True):
                    used[row, device] -= percent
        closed = self._closed(row)
        opened = was_closed & ~closed
        unused = np.maximum(capacity - self.base.used[row], 0) - self.base.free[row]
        free[opened] += unused[opened]
        self.reopened |= {(row, at): int(unused[at]) for at in np.flatnonzero(opened).tolist()}
        free[closed | ~self.base.open[row]] = 0

    def _closed(self, row: int) -> Bools:
        """Return bool (D,): devices with the most sharers, or with all of an exclusive amount."""
        closed: Bools = self.pods[row, :, PODS] >= self.base.sharers[row]
        for amount, used in zip(PERCENT_AMOUNTS, self.percents_used, strict=True):
            if amount.is_exclusive:
                closed |= used[row] >= amount.whole
        return closed

    def hold(self, row: int) -> None:
        """Mark the row as different from the books, even if nothing could be taken there."""
        self.is_held[row] = True
        self.stamps[row] = next(_STAMPS)

    def reset(self, rows: Rows | int) -> None:
        """Make these rows equal to the books."""
        self.is_held[rows] = False
        self.stamps[rows] = 0
        for name in _COPIED_ARRAYS:
            getattr(self, name)[rows] = getattr(self.base, name)[rows]
        if self.workloads or self.base.workloads:
            for row in np.atleast_1d(rows).tolist():
                if row in self.base.workloads:
                    self.workloads[row] = self.base.workloads[row]
                else:
                    self.workloads.pop(row, None)
        if self.reopened:
            gone = {*np.atleast_1d(rows).tolist()}
            self.reopened = {at: units for at, units in self.reopened.items() if at[0] not in gone}
        if self._percents_used is not None:
            for used, of_base in zip(self._percents_used, self.base.percents_used, strict=True):
                used[rows] = of_base[rows]

    def draft(self) -> HeldSnapshot:
        """Return the snapshot so far, to choose the next place from; it is valid until the next
        change, and nobody keeps it.
        """
        arrays: dict[str, npt.NDArray[np.generic]] = {
            name: getattr(self, name).view() for name in (*_COPIED_ARRAYS, "is_held", "stamps")
        }
        percents_used = tuple(array.view() for array in self._percents_used or ())
        for array in (*arrays.values(), *percents_used):
            array.flags.writeable = False
        snapshot = object.__new__(HeldSnapshot)
        # With the properties that the books have computed, such as `open`.
        values = vars(snapshot)
        values.update(vars(self.base) | arrays, base=self.base, workloads=self.workloads)
        values["reopened"] = self.reopened
        del values["used"]
        if percents_used:
            values.update(percents_used=percents_used, any_percents=True)
            values.pop("percents_free", None)
        return snapshot

    def build(self) -> HeldSnapshot:
        """Return the snapshot. Every later change of this builder raises ValueError."""
        for name in (*_COPIED_ARRAYS, "is_held", "stamps"):
            getattr(self, name).flags.writeable = False
        for array in self._percents_used or ():
            array.flags.writeable = False
        if self._spares is not None:
            self._spares.keep(Held(self.base.generation, self.stamps), self._arrays)
        return self.draft()


def _taken_over(spares: SpareArrays[Held], start: HeldSnapshot) -> Arrays | None:
    """Return spare arrays with the values of a snapshot; None without such arrays."""
    if (spare := spares.take()) is None:
        return None
    held, arrays = spare
    if (rows := start.differing_rows(held)) is None:
        return None
    for name, array in arrays.items():
        array[rows] = getattr(start, name)[rows]
    return arrays


class RowStates:
    """Kept states of rows, by row and priority, to put into new held snapshots.

    All snapshots have the layout of `like`. A pod of a priority sees, of each row, the state of the
    lowest kept priority that is not lower than its own.
    """

    def __init__(self, like: Snapshot) -> None:
        self._arrays = {
            name: np.empty((0, *getattr(like, name).shape[1:]), getattr(like, name).dtype)
            for name in _COPIED_ARRAYS
        }
        self._percents = [
            np.empty((0, array.shape[1]), dtype=np.int32) for array in like.percents_used
        ]
        self._rows = np.empty(0, dtype=np.intp)
        self._stamps = np.empty(0, dtype=np.int64)
        self._spare_slots: list[int] = []
        self._takes_percents = False
        # By slot, if the row has pods that stay apart.
        self._workloads: Workloads = {}
        # By row, the slots of its states; by slot, its priority.
        self._slots: dict[int, list[int]] = {}
        self._priorities: dict[int, int] = {}
        # Slots and their negated priorities, the highest priority first; None: to be sorted again.
        self._order: tuple[Rows, Ints] | None = None

    def save(self, builder: HeldSnapshotBuilder, row: int, priority: int) -> None:
        """Keep the row as it is in the builder, for pods of that priority and of lower priorities
        down to the next kept one.
        """
        if not self._spare_slots:
            self._grow()
        slot = self._spare_slots.pop()
        for name, values in self._arrays.items():
            values[slot] = getattr(builder, name)[row]
        for percents, used in zip(self._percents, builder.percents_used, strict=True):
            percents[slot] = used[row]
        self._rows[slot], self._stamps[slot] = row, builder.stamps[row]
        self._takes_percents |= builder.takes_percents
        if row in builder.workloads:
            self._workloads[slot] = builder.workloads[row]
        self._slots.setdefault(row, []).append(slot)
        self._priorities[slot] = priority
        self._order = None

    def forget(self, row: int) -> None:
        """Drop the states of the row."""
        for slot in self._slots.pop(row, ()):
            self._spare_slots.append(slot)
            del self._priorities[slot]
            self._workloads.pop(slot, None)
            self._order = None

    def offered_to(self, priority: int, books: Snapshot) -> HeldSnapshot | None:
        """Return the books with the state of each row for pods of that priority; None if the states
        of all priorities count for such pods.
        """
        if self._order is None:
            slots = np.fromiter(self._priorities.keys(), np.intp, len(self._priorities))
            ranks = -np.fromiter(self._priorities.values(), np.int64, len(slots))
            order = np.argsort(ranks, kind="stable")
            self._order = slots[order], ranks[order]
        slots, ranks = self._order
        count = int(np.searchsorted(ranks, -priority, side="right"))
        if count == len(slots):
            return None
        builder, slots = HeldSnapshotBuilder(books), slots[:count]
        # Of a row with several slots the last one counts.
        rows = self._rows[slots]
        for name, values in self._arrays.items():
            getattr(builder, name)[rows] = values[slots]
        if self._takes_percents:
            for used, percents in zip(builder.own_percents(), self._percents, strict=True):
                used[rows] = percents[slots]
        for slot in slots.tolist() if self._workloads else ():
            if slot in self._workloads:
                builder.workloads[int(self._rows[slot])] = self._workloads[slot]
        builder.is_held[rows] = True
        builder.stamps[rows] = self._stamps[slots]
        return builder.build()

    def _grow(self) -> None:
        """Double the slots."""
        size = len(self._rows)
        larger = max(2 * size, 64)
        for name, values in self._arrays.items():
            self._arrays[name] = np.resize(values, (larger, *values.shape[1:]))
        self._percents = [np.resize(values, (larger, values.shape[1])) for values in self._percents]
        self._rows = np.resize(self._rows, larger)
        self._stamps = np.resize(self._stamps, larger)
        self._spare_slots = list(range(larger - 1, size - 1, -1))
