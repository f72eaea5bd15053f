"""dotproduct: the node whose free CPU and GPU are least aligned with what is asked.

The "dot-product" of Weng et al., "Beware of Fragmentation", USENIX ATC 2023, its rounding included;
on the node the tightest device.

Tested in `tests/contract/test_policies.py`.
"""

import numpy as np

from gpushare.core.model import Request
from gpushare.core.policies.bestfit import LARGEST_CPU, LARGEST_GPU
from gpushare.core.policies.node_shape import PerLayout, ground, on_tightest, with_blind
from gpushare.core.snapshot import Floats, Rows, Snapshot
from gpushare.core.workload import Workload


class DotProduct:
    """floor(100 (1 - the mean over CPU and GPU of share free x share asked))."""

    def __init__(self, _workload: Workload | None = None) -> None:
        """Ignore the workload: this policy looks at what is free on a node alone."""
        self._ground = PerLayout(ground)

    def score(self, snapshot: Snapshot, rows: Rows, request: Request) -> Floats:
        """Return how little the node's free shares resemble the request."""
        facts, free = self._ground(snapshot), snapshot.free[rows]
        milli = facts.milli[rows]
        gpu = (free.sum(axis=1) * milli / LARGEST_GPU) * (request.total * milli / LARGEST_GPU)
        cpu = (snapshot.cpu_free[rows] / LARGEST_CPU) * (request.cpu / LARGEST_CPU)
        value = np.floor(100 * (1 - (cpu + gpu) / 2))
        return with_blind(on_tightest(value, free, request), facts, snapshot, rows, request)
