"""Fragmentation: how much free GPU the pods that usually come could not use.

The measure of Weng et al., "Beware of Fragmentation", USENIX ATC 2023. For a class m of typical
pods a node loses all its free GPU if m cannot run there (it asks for no GPU, or there is too little
CPU, another model, or too few devices with room); else it loses what is free on devices with too
little room for m. The fragmentation of a node is the mean over the typical pods.

If a class asks for compute, a device has two dimensions. It has room for a class that finds enough
of both there, and what is lost is the memory and the compute of the others, also the memory of a
device whose compute is all given.

It is counted in whole numbers, pods times units, so that the order of a sum does not matter. Once
CPU and model are known, the loss of a class is a sum over devices, so three tables by CPU, model
and room of a device are enough.

Tested in `tests/unit/core/test_prices.py`.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from gpushare.core.model import ALL_CORES, Request
from gpushare.core.policies.node_shape import (
    BEFORE_AFTER,
    Groups,
    Levels,
    free_with_compute,
    rest_of,
    tightest,
)
from gpushare.core.snapshot import Bools, Ints, Rows, Snapshot
from gpushare.core.workload import PodClass

COMPUTE = 1
"""What all compute of a device counts beside all of its memory, if classes ask for it."""

_AS_TABLE = 1 << 16
"""Up to this capacity the room of a device is looked up in a table; above it by a search."""


@dataclass(frozen=True, slots=True, eq=False)
class Tables:
    """Numbers of typical pods for the nodes of one layout."""

    base: Ints
    """(N,) the first line of a node's model; a line is a step of CPU."""
    barred: Ints
    """By line, pods that cannot run because of CPU or model, or that ask for no GPU."""
    small: Ints
    """By line and room of a device, the other pods that need more room."""
    many: tuple[tuple[tuple[int, int], Ints], ...]
    """For each size (units, compute needed) of pods of several devices, by line and number of
    devices with that much room, the pods that need more such devices."""
    rooms: Ints
    """By free units how many sizes fit, or () for large capacities."""


class _Left(NamedTuple):
    """What is left of devices, (..., K, D)."""

    amount: Ints
    """What is lost with one that nobody can use."""
    units: Ints
    rest: Ints | None
    """Of its compute; None if no class asks for any."""

    def at_least(self, size: tuple[int, int]) -> Bools:
        """Return bool (..., K, D): devices with so many units and so much of the compute."""
        units, need = size
        enough: Bools = self.units >= units
        return enough if self.rest is None else enough & (self.rest >= need)

    def where_not(self, chosen: Bools, other: "_Left") -> "_Left":
        """Return this, but the other one on the devices that are chosen."""
        amount, units = (
            np.where(chosen, after, before)
            for before, after in zip(self[:2], other[:2], strict=True)
        )
        if self.rest is None or other.rest is None:
            return _Left(amount, units, None)
        return _Left(amount, units, np.where(chosen, other.rest, self.rest))


class Fragmentation:
    """The measure for the typical pods of a workload."""

    def __init__(self, typical: tuple[tuple[PodClass, int], ...]) -> None:
        self._classes = [cls for cls, _ in typical]
        self._counts = np.array([count for _, count in typical], dtype=np.int64)
        self.cpus = np.unique([0, *(cls.cpu for cls in self._classes)])
        self.sizes = np.unique([cls.units for cls in self._classes if cls.devices] or [1])
        self.pods = int(self._counts.sum())
        self._levels = Levels(self._classes)
        self.scale = ALL_CORES if self._levels.asked else 1
        """In how many parts of a unit it counts."""
        # For the last models, largest device and devices on a node: the tables that these make.
        self._kept: tuple[tuple[tuple[str, ...], int, int], Tables] | None = None
        self.most = 1 + COMPUTE if self._levels.asked else 1
        """What is lost with a device that nobody can use, as a multiple of its memory."""

    def tables(self, snapshot: Snapshot) -> Tables:
        """Return the tables for the nodes of the snapshot."""
        groups = Groups.of(snapshot)
        # All devices of a node have one model; a node without devices has -1: the last lines.
        models = snapshot.model.take(groups.row, axis=0).max(axis=1, initial=-1)
        model = groups.by_row(models, -1) % (len(snapshot.models) + 1)
        largest = int(groups.largest().max(initial=0))
        key = snapshot.models, largest, snapshot.capacity.shape[1]
        kept = self._kept
        if kept is None or kept[0] != key:
            kept = self._kept = key, self._of_models(*key)
        # The first step of CPU is found at 1.
        return replace(kept[1], base=model * len(self.cpus) - 1)

    def _of_models(self, models: tuple[str, ...], largest: int, width: int) -> Tables:
        """Return the tables for these models, the largest device and devices on a node, without
        the line of each node.
        """
        # bool (lines, classes): which may run, by model (the last: none) and CPU step.
        accepts = [
            [cls.devices > 0 and (not cls.models or model in cls.models) for cls in self._classes]
            for model in (*models, None)
        ]
        asked = np.array([cls.cpu for cls in self._classes], dtype=np.int64)
        enough = asked <= self.cpus[:, None]
        both = np.array(accepts, bool)[:, None, :] & enough[None, :, :]
        runs: Bools = both.reshape(-1, len(self._classes))
        needs = self._levels.need
        several = sorted(
            {(cls.units, needs(cls.cores)) for cls in self._classes if cls.devices > 1}
        )
        return Tables(
            base=np.zeros(0, dtype=np.int64),
            barred=self._count(~runs),
            small=self._by_room(runs),
            many=tuple((size, self._too_many(runs, size, width)) for size in several),
            rooms=self.sizes.searchsorted(
                np.arange(largest + 1 if largest < _AS_TABLE else 0), "right"
            ),
        )

    def lost(self, tables: Tables, snapshot: Snapshot, rows: Rows) -> Ints:
        """Return int64 (K,): the current fragmentation of the rows, in pods times parts."""
        line = tables.base[rows] + self.cpus.searchsorted(snapshot.cpu_free[rows], "right")
        return self._lost(tables, line, self._left(snapshot, rows))

    def fall(self, tables: Tables, snapshot: Snapshot, rows: Rows, request: Request) -> Ints:
        """Return int64 (K, D) or (K, 1): the fall of fragmentation if the request is placed there.

        There is one column if there is only one choice: no device, or several at once. CPU may be
        too little for the request, since kube-scheduler learns that a pod has ended before we do.
        """
        cpu = np.maximum(snapshot.cpu_free.take(rows) - BEFORE_AFTER * request.cpu, 0)
        lines = tables.base.take(rows) + self.cpus.searchsorted(cpu, "right")
        before = self._left(snapshot, rows)
        # What is left of each device if the request is placed there.
        units, rest = before.units - request.units, None
        amount = units
        if before.rest is not None:
            rest = np.minimum(before.rest, ALL_CORES) - request.cores
            amount = _amount(units, rest, snapshot.capacity.take(rows, axis=0))
        after = _Left(amount, units, rest)
        if request.devices == 1:
            return self._fall_by_device(tables, lines, before, after)
        lost = self._lost(tables, lines[0], before)
        if request.devices:
            free = free_with_compute(snapshot, rows, request, snapshot.free.take(rows, axis=0))
            after = before.where_not(tightest(free, request), after)
        fall: Ints = (lost - self._lost(tables, lines[1], after))[:, None]
        return fall

    def _left(self, snapshot: Snapshot, rows: Rows) -> _Left:
        """Return what is left of the devices of the rows."""
        free = snapshot.free.take(rows, axis=0)
        if not self._levels.asked:
            return _Left(free, free, None)
        capacity = snapshot.capacity.take(rows, axis=0)
        # Free memory of a device whose compute is all given counts, or to strand it would pay.
        raw = np.maximum(capacity - snapshot.used.take(rows, axis=0), 0)
        units = np.where(snapshot.open[rows], raw, 0)
        rest = rest_of(snapshot, rows)
        return _Left(_amount(units, rest, capacity), units, rest)

    def _lost(self, tables: Tables, line: Ints, left: _Left) -> Ints:
        """Return int64 (K,): the fragmentation of nodes with these lines and this left."""
        at = line[:, None] * tables.small.shape[1] + self._room(tables, left)
        lost: Ints = np.add.reduce(tables.small.take(at, mode="clip") * left.amount, axis=-1)
        lost += np.add.reduce(left.amount, axis=-1) * tables.barred.take(line, mode="clip")
        for size, many in tables.many:
            large = left.at_least(size)
            at = line * many.shape[1] + np.add.reduce(large, axis=-1)
            lost += np.add.reduce(large * left.amount, axis=-1) * many.take(at, mode="clip")
        return lost

    def _fall_by_device(self, tables: Tables, lines: Ints, before: _Left, after: _Left) -> Ints:
        begin = lines * tables.small.shape[1]
        at = begin[:, :, None] + self._room(tables, before)
        lost = tables.small.take(at, mode="clip") * before.amount
        at = begin[1][:, None] + self._room(tables, after)
        own = tables.small.take(at, mode="clip") * after.amount
        node = np.add.reduce(lost, axis=2)
        barred = tables.barred.take(lines, mode="clip")
        node += barred * np.add.reduce(before.amount, axis=1)
        # Without compute the same is taken from each device: one column is enough.
        width = 1 if before.rest is None else None
        taken = before.amount[:, :width] - after.amount[:, :width]
        same: Ints = (node[0] - node[1])[:, None] + barred[1][:, None] * taken
        fall: Ints = same + (lost[1] - own)
        for size, many in tables.many:
            # The part by pods of several devices of this size.
            large = before.at_least(size)
            room = large * before.amount
            count, sum_ = np.add.reduce(large, axis=1), np.add.reduce(room, axis=1)
            now = sum_ * many.take(lines[0] * many.shape[1] + count, mode="clip")
            still = count[:, None] - large
            stays = sum_[:, None] - room
            also = after.at_least(size)
            if also.any():
                still += also
                stays += also * after.amount
            line = (lines[1] * many.shape[1])[:, None]
            fall += now[:, None] - stays * many.take(line + still, mode="clip")
        return fall

    def _room(self, tables: Tables, left: _Left) -> Ints:
        """Return int64: the column of `small` for each device."""
        sizes: Ints = (
            tables.rooms.take(left.units, mode="clip")
            if len(tables.rooms)
            else self.sizes.searchsorted(left.units, "right")
        )
        if left.rest is None:
            return sizes
        return sizes * self._levels.columns + self._levels.needs.searchsorted(left.rest, "right")

    def _count(self, which: Bools) -> Ints:
        counted: Ints = which.astype(np.int64) @ self._counts
        return counted

    def _by_room(self, runs: Bools) -> Ints:
        """Return int64 (lines, rooms): pods that need more than the first sizes and levels do.

        Rooms are by size; if pods ask for compute, by size and by level of it.
        """
        shape = (len(self.sizes) + 1, self._levels.columns, len(runs))
        by_room = np.zeros(shape, dtype=np.int64)
        gpu = [at for at, cls in enumerate(self._classes) if cls.devices]
        size = self.sizes.searchsorted([self._classes[at].units for at in gpu])
        needs = [self._levels.need(self._classes[at].cores) for at in gpu]
        column = self._levels.needs.searchsorted(np.array(needs, np.int64))
        # A class fits from the room after its own on.
        np.add.at(by_room, (size + 1, column + 1), (runs * self._counts).T[gpu])
        more: Ints = self._count(runs) - by_room.cumsum(axis=0).cumsum(axis=1)
        if not self._levels.asked:
            more = more[:, -1:]
        table: Ints = more.reshape(-1, len(runs)).T.copy()
        return table

    def _too_many(self, runs: Bools, size: tuple[int, int], width: int) -> Ints:
        """Return int64 (lines, width + 1): pods of this size that need more devices with room."""
        alike = [
            at
            for at, cls in enumerate(self._classes)
            if cls.devices > 1 and (cls.units, self._levels.need(cls.cores)) == size
        ]
        devices = np.array([self._classes[at].devices for at in alike])
        lacking = devices[:, None] > np.maximum(np.arange(width + 1), 1)
        pods: Ints = (runs[:, alike] * self._counts[alike]) @ lacking.astype(np.int64)
        return pods


def _amount(units: Ints, rest: Ints, capacity: Ints) -> Ints:
    """Return what is lost with so much of devices, in parts of a unit."""
    compute: Ints = np.minimum(rest, ALL_CORES)
    return ALL_CORES * units + COMPUTE * compute * capacity
