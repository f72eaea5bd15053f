"""Fragmentation: how much free GPU the pods that usually come could not use.

The measure of Weng et al., "Beware of Fragmentation", USENIX ATC 2023. For a class m of typical
pods a node loses all its free GPU where m cannot run there (no GPU asked, too little CPU, another
model, too few devices with room), and else what is free on devices with too little room for m. The
fragmentation of a node is the mean over the typical pods.

It is counted in whole numbers, pods times units, so that it is the same in whatever order it is
summed. What a class loses is a sum over devices once CPU and model are known, so three tables by
CPU, model and room of a device hold everything.
"""

from dataclasses import dataclass

import numpy as np

from gpushare.core.model import Request
from gpushare.core.policies.ground import Ground, tightest
from gpushare.core.snapshot import Bools, Floats, Ints, Rows, Snapshot
from gpushare.core.workload import PodClass


@dataclass(frozen=True, slots=True, eq=False)
class _Tables:
    """Numbers of typical pods, by row of a table: one for each model and step of CPU.

    barred: (B,) those that cannot run for want of CPU, model, or as they ask for no GPU. small: (B,
    sizes + 1) of the others those that need more room on a device than so many of the sizes.
    many: by size of several devices (B, D + 1), those that need more devices with so much room.
    """

    barred: Ints
    small: Ints
    many: tuple[tuple[int, Ints], ...]


class Fragmentation:
    """The measure for the typical pods of a workload."""

    def __init__(self, typical: tuple[tuple[PodClass, int], ...]) -> None:
        self._classes = [cls for cls, _ in typical]
        self._counts = np.array([count for _, count in typical], dtype=np.int64)
        self._cpus = np.unique([0, *(cls.cpu for cls in self._classes)])
        self._sizes = np.unique([cls.units for cls in self._classes if cls.devices] or [1])
        self.pods = int(self._counts.sum())

    def tables_for(self, snapshot: Snapshot) -> _Tables:
        """The tables for the nodes of the snapshot."""
        return self.tables(snapshot.models, snapshot.capacity.shape[1])

    def tables(self, models: tuple[str, ...], width: int) -> _Tables:
        """The tables for nodes of these models, with up to so many devices."""
        runs = self._may_run(models)
        several = sorted({cls.units for cls in self._classes if cls.devices > 1})
        return _Tables(
            barred=self._count(~runs),
            small=np.stack(
                [self._count(runs & self._larger(step)) for step in range(len(self._sizes) + 1)],
                axis=1,
            ),
            many=tuple((size, self._too_many(runs, size, width)) for size in several),
        )

    def lost(self, tables: _Tables, ground: Ground, snapshot: Snapshot, rows: Rows) -> Ints:
        """int64 (K,): the fragmentation of the rows as they are, in pods times units."""
        free = snapshot.free[rows]
        at = self._at(ground, snapshot.cpu_free[rows], rows)
        return self._lost(tables, at, free)

    def lost_after(
        self, tables: _Tables, ground: Ground, snapshot: Snapshot, rows: Rows, request: Request
    ) -> Ints:
        """int64 (K, D) or (K, 1): the fragmentation once the request is placed on each device.

        One column where there is but one choice: no device, or several at once.
        """
        free = snapshot.free[rows]
        at = self._at(ground, snapshot.cpu_free[rows] - request.cpu, rows)
        if request.devices == 1:
            return self._lost_by_device(tables, at, free, request.units)
        if request.devices:
            free = free - request.units * tightest(free, request)
        return self._lost(tables, at, free)[:, None]

    def _may_run(self, models: tuple[str, ...]) -> Bools:
        """bool (B, classes): by model (the last: none) and step of CPU."""
        accepts = [
            [cls.devices > 0 and (not cls.models or model in cls.models) for cls in self._classes]
            for model in (*models, None)
        ]
        enough = [[cls.cpu <= step for cls in self._classes] for step in self._cpus.tolist()]
        both = np.array(accepts, bool)[:, None, :] & np.array(enough, bool)[None, :, :]
        table: Bools = both.reshape(-1, len(self._classes))
        return table

    def _count(self, which: Bools) -> Ints:
        counted: Ints = which.astype(np.int64) @ self._counts
        return counted

    def _larger(self, step: int) -> Bools:
        """bool (classes,): those that need more room than the first `step` sizes."""
        known = self._sizes.tolist()
        return np.array([cls.units in known[step:] for cls in self._classes], bool)

    def _too_many(self, runs: Bools, size: int, width: int) -> Ints:
        """int64 (B, width + 1): pods of several devices of that size, by devices with the room."""
        lacking = [
            [cls.devices > max(have, 1) and cls.units == size for cls in self._classes]
            for have in range(width + 1)
        ]
        return np.stack([self._count(runs & np.array(line, bool)) for line in lacking], axis=1)

    def _at(self, ground: Ground, cpu: Ints, rows: Rows) -> Ints:
        """int64 (K,): the row of the tables for nodes with so much CPU left."""
        step = np.maximum(np.searchsorted(self._cpus, cpu, side="right") - 1, 0)
        at: Ints = ground.model[rows] * len(self._cpus) + step
        return at

    def _lost(self, tables: _Tables, at: Ints, free: Ints) -> Ints:
        room = np.searchsorted(self._sizes, free, side="right")
        lost: Ints = free.sum(axis=1) * tables.barred[at]
        lost += (tables.small[at[:, None], room] * free).sum(axis=1)
        for size, many in tables.many:
            large = free >= size
            lost += (large * free).sum(axis=1) * many[at, large.sum(axis=1)]
        return lost

    def _lost_by_device(self, tables: _Tables, at: Ints, free: Ints, units: int) -> Ints:
        left = np.maximum(free - units, 0)
        column = at[:, None]
        own = tables.small[column, np.searchsorted(self._sizes, free, side="right")] * free
        new = tables.small[column, np.searchsorted(self._sizes, left, side="right")] * left
        lost: Ints = own.sum(axis=1, keepdims=True) - own + new
        lost += ((free.sum(axis=1) - units) * tables.barred[at])[:, None]
        for size, many in tables.many:
            large, still = free >= size, left >= size
            kept = large.sum(axis=1, keepdims=True) - large + still
            room = (large * free).sum(axis=1, keepdims=True) - large * free + still * left
            lost += room * many[column, kept]
        return lost


def in_milli(lost: Ints, pods: int, milli: Floats) -> Floats:
    """float64: pods times units as milli of GPU a typical pod, where a unit counts `milli`."""
    return lost * (milli[:, None] / max(pods, 1))
