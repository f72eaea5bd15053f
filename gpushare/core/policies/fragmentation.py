"""Fragmentation: the free GPU that typical pods could not use.

The measure of Weng et al., "Beware of Fragmentation", USENIX ATC 2023. For a class m of typical
pods a node loses all free GPU if m cannot run there (m asks for no GPU, or the node has too little
CPU, another model, or too few devices with room); else the node loses the free GPU of devices with
too little room for m. The fragmentation of a node is the mean over the typical pods.

If a class asks for compute, a device has two dimensions. A device has room for a class if both
suffice; the memory and the compute of all other devices are lost, also the memory of a device
without free compute.

Fragmentation is counted in whole numbers, pods times units, so that the order of a sum does not
matter. For a given CPU and model, the loss of a class is a sum over devices, so three tables by
CPU, model and room of a device are enough.

Tested in `tests/unit/core/test_prices.py`.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from gpushare.core.model import ALL_CORES, Request
from gpushare.core.policies.node_shape import (
    BEFORE_AFTER,
    Levels,
    free_compute,
    free_with_compute,
    tightest,
)
from gpushare.core.snapshot import Bools, Ints, Rows, Snapshot
from gpushare.core.workload import PodClass

COMPUTE = 1
"""Weight of all compute of a device relative to all memory, if classes ask for compute."""

_AS_TABLE = 1 << 16
"""Up to this capacity the room of a device is looked up in a table; above, by a search."""


@dataclass(frozen=True, slots=True, eq=False)
class Tables:
    """Numbers of typical pods for the nodes of one layout."""

    base: Ints
    """int64 (groups,) the first line of the model of a node; a line is a step of CPU."""
    barred: Ints
    """By line, pods that cannot run because of CPU or model, or that ask for no GPU."""
    small: Ints
    """By line and room of a device, the other pods that need more room."""
    many: tuple[tuple[tuple[int, int], Ints], ...]
    """For each size (units, compute needed) of pods of several devices, by line and number of
    devices with that much room, the pods that need more such devices."""
    rooms: Ints
    """By free units how many sizes fit, or () for large capacities."""


class _Free(NamedTuple):
    """The free amounts of devices, (..., K, D)."""

    amount: Ints
    """The loss by a device that no class can use, in parts of a unit."""
    units: Ints
    compute: Ints | None
    """Free compute as `free_compute` returns it; None if no class asks for compute."""

    def at_least(self, size: tuple[int, int]) -> Bools:
        """Return bool (..., K, D): devices with so many units and so much of the compute."""
        units, need = size
        enough: Bools = self.units >= units
        return enough if self.compute is None else enough & (self.compute >= need)

    def where_not(self, chosen: Bools, replacement: "_Free") -> "_Free":
        """Return the same with `replacement` on the chosen devices."""
        amount, units = (
            np.where(chosen, after, before)
            for before, after in zip(self[:2], replacement[:2], strict=True)
        )
        if self.compute is None or replacement.compute is None:
            return _Free(amount, units, None)
        return _Free(amount, units, np.where(chosen, replacement.compute, self.compute))


class Fragmentation:
    """The measure for the typical pods of a workload."""

    def __init__(self, typical: tuple[tuple[PodClass, int], ...]) -> None:
        self._classes = [cls for cls, _ in typical]
        self._counts = np.array([count for _, count in typical], dtype=np.int64)
        self.cpus = np.unique([0, *(cls.cpu for cls in self._classes)])
        self.sizes = np.unique([cls.units for cls in self._classes if cls.devices] or [1])
        self.pods = int(self._counts.sum())
        self._levels = Levels(self._classes)
        self.scale = ALL_CORES if self._levels.has_compute else 1
        """Number of parts of a unit in which fragmentation is counted."""
        self._models = sorted({model for cls in self._classes for model in cls.models})
        # (key, tables): the key is largest device and devices on a node.
        self._kept: tuple[tuple[int, int], Tables] | None = None
        self.most = 1 + COMPUTE if self._levels.has_compute else 1
        """The loss by a device that no class can use, as a multiple of the device's memory."""

    def tables(self, snapshot: Snapshot) -> Tables:
        """Return the tables for the nodes of the snapshot."""
        groups = snapshot.group_rows
        numbers = {model: number for number, model in enumerate(self._models)}
        # Of a model that no class names, or without devices (-1): the last lines.
        numbers_of_models = np.array(
            [numbers.get(model, len(numbers)) for model in (*snapshot.models, "")], dtype=np.int64
        )
        # All devices of a node have one model.
        models = snapshot.model.take(groups.row, axis=0).max(axis=1, initial=-1)
        largest = int(groups.largest(snapshot.capacity).max(initial=0))
        key = largest, snapshot.capacity.shape[1]
        cached = self._kept
        if cached is None or cached[0] != key:
            cached = self._kept = key, self._for_devices(*key)
        # The first step of CPU is found at 1.
        return replace(cached[1], base=numbers_of_models[models] * len(self.cpus) - 1)

    def _for_devices(self, largest: int, width: int) -> Tables:
        """Return the tables for this largest device and devices of a node; no `base`."""
        # bool (lines, classes): whether the class may run, by model (the last: none) and CPU step.
        accepts = [
            [cls.devices > 0 and (not cls.models or model in cls.models) for cls in self._classes]
            for model in (*self._models, None)
        ]
        class_cpu = np.array([cls.cpu for cls in self._classes], dtype=np.int64)
        enough = class_cpu <= self.cpus[:, None]
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
        line = tables.base[snapshot.group[rows]]
        line += self.cpus.searchsorted(snapshot.cpu_free[rows], "right")
        return self._lost(tables, line, self._free(snapshot, rows))

    def fall(self, tables: Tables, snapshot: Snapshot, rows: Rows, request: Request) -> Ints:
        """Return int64 (K, D) or (K, 1): the fall of fragmentation if the request is placed there.

        There is one column if there is only one choice: no device, or several at once. CPU may be
        too little for the request, since kube-scheduler learns that a pod has ended before we do.
        """
        cpu = np.maximum(snapshot.cpu_free.take(rows) - BEFORE_AFTER * request.cpu, 0)
        lines = tables.base.take(snapshot.group.take(rows)) + self.cpus.searchsorted(cpu, "right")
        before = self._free(snapshot, rows)
        # The free amounts of each device after the request is placed there.
        units, compute = before.units - request.units, None
        amount = units
        if before.compute is not None:
            compute = np.minimum(before.compute, ALL_CORES) - request.cores
            amount = _amount(units, compute, snapshot.capacity.take(rows, axis=0))
        after = _Free(amount, units, compute)
        if request.devices == 1:
            return self._fall_by_device(tables, lines, before, after)
        lost = self._lost(tables, lines[0], before)
        if request.devices:
            free = free_with_compute(snapshot, rows, request, snapshot.free.take(rows, axis=0))
            after = before.where_not(tightest(free, request), after)
        fall: Ints = (lost - self._lost(tables, lines[1], after))[:, None]
        return fall

    def _free(self, snapshot: Snapshot, rows: Rows) -> _Free:
        """Return the free amounts of the devices of the rows."""
        free = snapshot.free.take(rows, axis=0)
        if not self._levels.has_compute:
            return _Free(free, free, None)
        capacity = snapshot.capacity.take(rows, axis=0)
        # Free memory without free compute counts: otherwise stranding the memory would pay.
        raw = np.maximum(capacity - snapshot.used.take(rows, axis=0), 0)
        units = np.where(snapshot.open[rows], raw, 0)
        compute = free_compute(snapshot, rows)
        return _Free(_amount(units, compute, capacity), units, compute)

    def _lost(self, tables: Tables, line: Ints, free: _Free) -> Ints:
        """Return int64 (K,): the fragmentation of nodes with these lines and free amounts."""
        at = line[:, None] * tables.small.shape[1] + self._room(tables, free)
        lost: Ints = np.add.reduce(tables.small.take(at, mode="clip") * free.amount, axis=-1)
        lost += np.add.reduce(free.amount, axis=-1) * tables.barred.take(line, mode="clip")
        for size, many in tables.many:
            large = free.at_least(size)
            at = line * many.shape[1] + np.add.reduce(large, axis=-1)
            lost += np.add.reduce(large * free.amount, axis=-1) * many.take(at, mode="clip")
        return lost

    def _fall_by_device(self, tables: Tables, lines: Ints, before: _Free, after: _Free) -> Ints:
        begin = lines * tables.small.shape[1]
        at = begin[:, :, None] + self._room(tables, before)
        lost = tables.small.take(at, mode="clip") * before.amount
        at = begin[1][:, None] + self._room(tables, after)
        lost_after = tables.small.take(at, mode="clip") * after.amount
        node = np.add.reduce(lost, axis=2)
        barred = tables.barred.take(lines, mode="clip")
        node += barred * np.add.reduce(before.amount, axis=1)
        # Without compute every device loses the same amount: one column is enough.
        width = 1 if before.compute is None else None
        amount_used = before.amount[:, :width] - after.amount[:, :width]
        same: Ints = (node[0] - node[1])[:, None] + barred[1][:, None] * amount_used
        fall: Ints = same + (lost[1] - lost_after)
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

    def _room(self, tables: Tables, free: _Free) -> Ints:
        """Return int64: the column of `small` for each device."""
        sizes: Ints = (
            tables.rooms.take(free.units, mode="clip")
            if len(tables.rooms)
            else self.sizes.searchsorted(free.units, "right")
        )
        if free.compute is None:
            return sizes
        return sizes * self._levels.columns + self._levels.needs.searchsorted(free.compute, "right")

    def _count(self, classes: Bools) -> Ints:
        pods: Ints = classes.astype(np.int64) @ self._counts
        return pods

    def _by_room(self, runs: Bools) -> Ints:
        """Return int64 (lines, rooms): number of pods that need more than the room.

        Rooms are by size; if pods ask for compute, by size and level of compute.
        """
        shape = (len(self.sizes) + 1, self._levels.columns, len(runs))
        by_room = np.zeros(shape, dtype=np.int64)
        gpu = [at for at, cls in enumerate(self._classes) if cls.devices]
        size = self.sizes.searchsorted([self._classes[at].units for at in gpu])
        needs = [self._levels.need(self._classes[at].cores) for at in gpu]
        column = self._levels.needs.searchsorted(np.array(needs, np.int64))
        # A class fits rooms from the index after the class's size on.
        np.add.at(by_room, (size + 1, column + 1), (runs * self._counts).T[gpu])
        more: Ints = self._count(runs) - by_room.cumsum(axis=0).cumsum(axis=1)
        if not self._levels.has_compute:
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


def _amount(units: Ints, free_compute: Ints, capacity: Ints) -> Ints:
    """Return the loss by devices with these free amounts that no class can use, in parts."""
    compute: Ints = np.minimum(free_compute, ALL_CORES)
    return ALL_CORES * units + COMPUTE * compute * capacity
