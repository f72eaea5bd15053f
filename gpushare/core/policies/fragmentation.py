"""Fragmentation: how much free GPU the pods that usually come could not use.

The measure of Weng et al., "Beware of Fragmentation", USENIX ATC 2023. For a class m of typical
pods a node loses all its free GPU if m cannot run there (it asks for no GPU, or there is too little
CPU, another model, or too few devices with room); else it loses what is free on devices with too
little room for m. The fragmentation of a node is the mean over the typical pods.

It is counted in whole numbers, pods times units, so that the order of a sum does not matter. Once
CPU and model are known, the loss of a class is a sum over devices, so three tables by CPU, model
and room of a device are enough.

Tested in `tests/unit/core/test_prices.py`.
"""

from dataclasses import dataclass

import numpy as np

from gpushare.core.model import Request
from gpushare.core.policies.node_shape import BEFORE_AFTER, tightest
from gpushare.core.snapshot import Bools, Ints, Rows, Snapshot
from gpushare.core.workload import PodClass

_AS_TABLE = 1 << 16
"""Up to this capacity the room of a device is looked up in a table; above it by a search."""


@dataclass(frozen=True, slots=True, eq=False)
class Tables:
    """Numbers of typical pods for the nodes of one layout.

    base: (N,) the first line of a node's model; a line is a step of CPU. barred: by line, pods that
    cannot run because of CPU or model, or that ask for no GPU. small: by line and room of a device,
    the other pods that need more room. many: for each size of pods of several devices, by line and
    number of devices with that much room, the pods that need more such devices. rooms: by free
    units how many sizes fit, or () for large capacities.
    """

    base: Ints
    barred: Ints
    small: Ints
    many: tuple[tuple[int, Ints], ...]
    rooms: Ints


class Fragmentation:
    """The measure for the typical pods of a workload."""

    def __init__(self, typical: tuple[tuple[PodClass, int], ...]) -> None:
        self._classes = [cls for cls, _ in typical]
        self._counts = np.array([count for _, count in typical], dtype=np.int64)
        self.cpus = np.unique([0, *(cls.cpu for cls in self._classes)])
        self.sizes = np.unique([cls.units for cls in self._classes if cls.devices] or [1])
        self.pods = int(self._counts.sum())

    def tables(self, snapshot: Snapshot) -> Tables:
        """Return the tables for the nodes of the snapshot."""
        runs = self._may_run(snapshot.models)
        width = snapshot.capacity.shape[1]
        several = sorted({cls.units for cls in self._classes if cls.devices > 1})
        # All devices of a node have one model; a node without devices has -1: the last lines.
        model = snapshot.model.max(axis=1, initial=-1).astype(np.int64) % (len(snapshot.models) + 1)
        largest = int(snapshot.capacity.max(initial=0))
        return Tables(
            # The first step of CPU is found at 1.
            base=model * len(self.cpus) - 1,
            barred=self._count(~runs),
            small=self._by_room(runs),
            many=tuple((size, self._too_many(runs, size, width)) for size in several),
            rooms=self._room(np.arange(largest + 1 if largest < _AS_TABLE else 0)),
        )

    def lost(self, tables: Tables, snapshot: Snapshot, rows: Rows) -> Ints:
        """Return int64 (K,): the current fragmentation of the rows, in pods times units."""
        line = tables.base[rows] + self.cpus.searchsorted(snapshot.cpu_free[rows], "right")
        return self._lost(tables, line, snapshot.free[rows])

    def fall(self, tables: Tables, rows: Rows, request: Request, free: Ints, cpu: Ints) -> Ints:
        """Return int64 (K, D) or (K, 1): the fall of fragmentation if the request is placed there.

        free: free GPU (K, D), cpu: free CPU (K,) of the rows. There is one column if there is only
        one choice: no device, or several at once. CPU may be too little for the request, since
        kube-scheduler learns that a pod has ended before we do.
        """
        left = np.maximum(cpu - BEFORE_AFTER * request.cpu, 0)
        steps = self.cpus.searchsorted(left, "right")
        lines = tables.base.take(rows) + steps
        if request.devices == 1:
            return self._fall_by_device(tables, lines, free, request.units)
        after = free - request.units * tightest(free, request) if request.devices else free
        lost = self._lost(tables, lines, np.stack([free, after]))
        fall: Ints = (lost[0] - lost[1])[:, None]
        return fall

    def _lost(self, tables: Tables, line: Ints, free: Ints) -> Ints:
        """Return int64 (..., K): the fragmentation of nodes with these lines and free devices."""
        at = line[..., None] * tables.small.shape[1] + self._looked_up(tables, free)
        lost: Ints = np.add.reduce(tables.small.take(at, mode="clip") * free, axis=-1)
        lost += np.add.reduce(free, axis=-1) * tables.barred.take(line, mode="clip")
        for size, many in tables.many:
            large = free >= size
            at = line * many.shape[1] + np.add.reduce(large, axis=-1)
            lost += np.add.reduce(large * free, axis=-1) * many.take(at, mode="clip")
        return lost

    def _fall_by_device(self, tables: Tables, lines: Ints, free: Ints, units: int) -> Ints:
        begin = lines * tables.small.shape[1]
        at = begin[:, :, None] + self._looked_up(tables, free)
        lost = tables.small.take(at, mode="clip") * free
        left = free - units
        at = begin[1][:, None] + self._looked_up(tables, left)
        own = tables.small.take(at, mode="clip") * left
        node = np.add.reduce(lost, axis=2)
        gpu = np.add.reduce(free, axis=1)
        node += tables.barred.take(lines, mode="clip") * (gpu - BEFORE_AFTER * units)
        fall: Ints = (node[0] - node[1])[:, None] + (lost[1] - own)
        for size, many in tables.many:
            fall += _fall_of_many(size, many, lines, free, left)
        return fall

    def _room(self, free: Ints) -> Ints:
        """Return int64: how many of the sizes fit into this much free memory."""
        return self.sizes.searchsorted(free, "right")

    def _looked_up(self, tables: Tables, free: Ints) -> Ints:
        return tables.rooms.take(free, mode="clip") if len(tables.rooms) else self._room(free)

    def _may_run(self, models: tuple[str, ...]) -> Bools:
        """Return bool (lines, classes): which may run, by model (the last: none) and CPU step."""
        accepts = [
            [cls.devices > 0 and (not cls.models or model in cls.models) for cls in self._classes]
            for model in (*models, None)
        ]
        asked = np.array([cls.cpu for cls in self._classes], dtype=np.int64)
        enough = asked <= self.cpus[:, None]
        both = np.array(accepts, bool)[:, None, :] & enough[None, :, :]
        table: Bools = both.reshape(-1, len(self._classes))
        return table

    def _count(self, which: Bools) -> Ints:
        counted: Ints = which.astype(np.int64) @ self._counts
        return counted

    def _by_room(self, runs: Bools) -> Ints:
        """Return int64 (lines, sizes + 1): pods that need more room than the first sizes do."""
        by_size = np.zeros((len(self.sizes) + 1, len(runs)), dtype=np.int64)
        size = self.sizes.searchsorted([cls.units for cls in self._classes])
        np.add.at(by_size, size, (runs * self._counts).T)
        more: Ints = by_size[::-1].cumsum(axis=0)[::-1].T.copy()
        return more

    def _too_many(self, runs: Bools, size: int, width: int) -> Ints:
        """Return int64 (lines, width + 1): pods of this size that need more devices with room."""
        alike = [
            at for at, cls in enumerate(self._classes) if cls.devices > 1 and cls.units == size
        ]
        devices = np.array([self._classes[at].devices for at in alike])
        lacking = devices[:, None] > np.maximum(np.arange(width + 1), 1)
        found: Ints = (runs[:, alike] * self._counts[alike]) @ lacking.astype(np.int64)
        return found


def _fall_of_many(size: int, many: Ints, lines: Ints, free: Ints, left: Ints) -> Ints:
    """Return int64 (K, D): the part of the fall by pods of several devices of this size."""
    large = free >= size
    room = large * free
    count, sum_ = np.add.reduce(large, axis=1), np.add.reduce(room, axis=1)
    before = sum_ * many.take(lines[0] * many.shape[1] + count, mode="clip")
    still = count[:, None] - large
    stays = sum_[:, None] - room
    also = left >= size
    if also.any():
        still += also
        stays += also * left
    after: Ints = stays * many.take((lines[1] * many.shape[1])[:, None] + still, mode="clip")
    fall: Ints = before[:, None] - after
    return fall
