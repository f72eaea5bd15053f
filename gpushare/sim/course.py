"""Measurements while a cluster fills: what is allocated, refused, and free but useless.

Knows a cluster and the pods that have come, but not where they come from. Tested in
`tests/unit/sim/test_experiments.py`.
"""

import numpy as np

from gpushare.core.model import Request
from gpushare.core.policies.fragmentation import Fragmentation
from gpushare.core.snapshot import stranded_by_compute
from gpushare.core.workload import Workload
from gpushare.sim.engine import Cluster, size_class
from gpushare.sim.flow import Record


class Course:
    """The measurements of one run."""

    def __init__(self, cluster: Cluster, workload: Workload) -> None:
        self._cluster = cluster
        self._measure = Fragmentation(workload.typical())
        self._largest = int(cluster.view.capacity.max())
        self._asked = 0
        self._arrived: list[int] = []
        self._allocated: list[int] = []
        self._fragmented: dict[int, float] = {0: self._fragmentation()}
        self._stranded: dict[int, float] = {}
        self._refused: dict[str, int] = {}

    def arrived(self, request: Request, placed: bool) -> None:
        """Count a pod that has come, and was placed or refused."""
        self._asked += request.total
        self._arrived.append(self._asked)
        self._allocated.append(self._cluster.allocated)
        if not placed:
            size = size_class(request, self._largest)
            self._refused[size] = self._refused.get(size, 0) + 1
        load = round(100 * self._asked / self._cluster.capacity)
        if load not in self._fragmented:
            self._fragmented[load] = self._fragmentation()
            if self._cluster.view.any_cores:
                units = stranded_by_compute(self._cluster.view)
                self._stranded[load] = 100 * units / self._cluster.capacity

    def record(self) -> Record:
        """Return the record of the run.

        allocated: the mean share of GPU allocated. fragmentation: the share that a typical pod
        could not use, of memory and compute if pods ask for both. Both are in %, by whole % of
        arrived load. failed: pods refused, and by size. If pods ask for compute, compute_stranded:
        the share that nobody has on devices whose compute is all given, in the same way.
        """
        capacity = self._cluster.capacity
        loads = np.rint(100 * np.array(self._arrived) / capacity).astype(int)
        sums = np.bincount(loads, weights=100 * np.array(self._allocated) / capacity)
        seen = np.bincount(loads)
        curve = {
            str(load): float(sums[load] / seen[load]) for load in np.flatnonzero(seen).tolist()
        }
        stranded = {str(load): value for load, value in self._stranded.items()}
        return {
            **({"compute_stranded": stranded} if stranded else {}),
            "allocated": curve,
            "fragmentation": {str(load): value for load, value in self._fragmented.items()},
            "pods": len(loads),
            "failed": sum(self._refused.values()),
            "failed_by_size": self._refused,
        }

    def _fragmentation(self) -> float:
        """Return the mean share of the cluster, in %, that is free but useless to a typical pod."""
        view, measure = self._cluster.view, self._measure
        lost = measure.lost(measure.tables(view), view, np.arange(len(view.names)))
        units = float(lost.sum()) / max(measure.pods * measure.scale * measure.most, 1)
        return 100 * units / self._cluster.capacity
