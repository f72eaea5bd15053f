"""dotproduct: the node whose free CPU and GPU are least aligned with the request.

The "dot-product" of Weng et al., "Beware of Fragmentation", USENIX ATC 2023, with its rounding. On
the node it uses the tightest device.

Tested in `tests/contract/test_policies.py`.
"""

import numpy as np

from gpushare.core.model import Request
from gpushare.core.policies.bestfit import LARGEST_CPU, LARGEST_GPU
from gpushare.core.policies.node_shape import PerLayout, node_shapes, on_tightest, rank_unknown_last
from gpushare.core.snapshot import Floats, Rows, Snapshot
from gpushare.core.workload import Workload


class DotProduct:
    """floor(100 (1 - the mean over CPU and GPU of share free x share asked))."""

    def __init__(self, _workload: Workload | None = None) -> None:
        """Ignore the workload: this policy looks only at what is free on a node."""
        self._shapes = PerLayout(node_shapes)

    def score(self, snapshot: Snapshot, rows: Rows, request: Request) -> Floats:
        """Return a score that is higher the less the node's free shares resemble the request."""
        shapes, free = self._shapes(snapshot), snapshot.free[rows]
        milli = shapes.milli[rows]
        gpu = (free.sum(axis=1) * milli / LARGEST_GPU) * (request.total * milli / LARGEST_GPU)
        cpu = (snapshot.cpu_free[rows] / LARGEST_CPU) * (request.cpu / LARGEST_CPU)
        value = np.floor(100 * (1 - (cpu + gpu) / 2))
        return rank_unknown_last(on_tightest(value, free, request), shapes, snapshot, rows, request)
