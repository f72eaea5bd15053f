"""bestfit: the node with the least CPU and GPU left over, and on it the tightest device.

The "best-fit" of Weng et al., "Beware of Fragmentation", USENIX ATC 2023, its rounding included.

Tested in `tests/unit/core/test_policies.py`.
"""

import numpy as np

from gpushare.core.model import Request
from gpushare.core.policies.node_shape import PerLayout, node_shapes, on_tightest, rank_unknown_last
from gpushare.core.snapshot import Floats, Rows, Snapshot
from gpushare.core.workload import Workload

LARGEST_CPU, LARGEST_GPU = 128_000, 8_000
"""CPU and GPU of a whole node, both in milli: the scales as published."""


class BestFit:
    """floor(100 (1 - the mean of the shares of CPU and GPU left over))."""

    def __init__(self, _workload: Workload | None = None) -> None:
        """Ignore the workload: this policy looks only at what is left of a node."""
        self._shapes = PerLayout(node_shapes)

    def score(self, snapshot: Snapshot, rows: Rows, request: Request) -> Floats:
        """Return how little the node has left once the request is placed."""
        shapes, free = self._shapes(snapshot), snapshot.free[rows]
        gpu = (free.sum(axis=1) - request.total) * shapes.milli[rows]
        cpu = snapshot.cpu_free[rows] - request.cpu
        value = np.floor(100 * (1 - (cpu / LARGEST_CPU + gpu / LARGEST_GPU) / 2))
        return rank_unknown_last(on_tightest(value, free, request), shapes, snapshot, rows, request)
