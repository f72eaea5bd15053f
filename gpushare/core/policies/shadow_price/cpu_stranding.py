"""GPU stranded by CPU: the GPU left over on a node when the pods to come have used all CPU there.

Pods are drawn from the workload, by count, until the node is full. If a pod finds enough GPU but
too little CPU, another one is drawn with probability ETA; else the node is stuck. The expected GPU
left is a table by free GPU and free CPU. GPU is counted in tenths of a device, rounded to the
nearest, CPU in cores: free CPU rounded down, requests rounded up.

Tested in `tests/unit/core/test_prices.py`.
"""

from collections.abc import Iterable

import numpy as np

from gpushare.core.snapshot import Floats, Ints
from gpushare.core.workload import PodClass

ETA = 0.97
STEPS = 10
"""Steps of a device."""

MAX_DEVICES, MAX_CORES = 16, 256
"""Bounds of a node; a larger node is treated as one of this size."""

SIZE = (STEPS * MAX_DEVICES + 1) * (MAX_CORES + 1)
"""Entries of a table."""


def stranded(classes: Iterable[tuple[PodClass, int]], capacity: int) -> Floats:
    """Return float64 (steps + 1, cores + 1): GPU expected to be left, by free GPU and CPU.

    The values are in milli; `capacity`: units of a device.
    """
    weights: dict[tuple[int, int], int] = {}
    for cls, count in classes:
        size = int(STEPS * cls.devices * cls.units / capacity + 0.5)
        if size and cls.units <= capacity:
            key = (size, -(-cls.cpu // 1000))
            weights[key] = weights.get(key, 0) + count
    kinds = sorted(weights.items())
    table = np.zeros((STEPS * MAX_DEVICES + 1, MAX_CORES + 1))
    for gpu in range(1, len(table)):
        # A line, in steps, follows from the lines before it.
        fitting = [kind for kind in kinds if kind[0][0] <= gpu]
        total = sum(weight for _, weight in fitting)
        if not total:
            table[gpu] = gpu
            continue
        after, lacking = np.zeros(table.shape[1]), np.zeros(table.shape[1])
        for (size, cores), weight in fitting:
            share = weight / total
            lacking[:cores] += share
            after[cores:] += share * table[gpu - size, : max(table.shape[1] - cores, 0)]
        table[gpu] = (after + (1 - ETA) * lacking * gpu) / (1 - ETA * lacking)
    return table * (1000 / STEPS)


def index(gpu: Ints, cpu: Ints, capacity: Ints) -> Ints:
    """Return int64: the index into the flat table for these free units of GPU and CPU in milli.

    capacity: units of a device there. Negative CPU counts as none.
    """
    line = np.minimum((gpu * (2 * STEPS) + capacity) // (2 * capacity), STEPS * MAX_DEVICES)
    place: Ints = line * (MAX_CORES + 1) + np.clip(cpu // 1000, 0, MAX_CORES)
    return place
