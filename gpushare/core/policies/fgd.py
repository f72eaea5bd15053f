"""fgd: fragmentation gradient descent, the placement that raises fragmentation least.

The policy of Weng et al., "Beware of Fragmentation", USENIX ATC 2023: the score is a whole number
of 0..100, and that rounding belongs to it, since with ties to the first node it keeps load on few
nodes and others empty.
"""

import numpy as np

from gpushare.core.model import Request
from gpushare.core.policies.device_bestfit import DeviceBestFit
from gpushare.core.policies.fragmentation import Fragmentation, in_milli
from gpushare.core.policies.ground import PerLayout, ground, tightest, with_blind
from gpushare.core.snapshot import Floats, Rows, Snapshot
from gpushare.core.workload import Workload


class Fgd:
    """floor(100 / (1 + exp(-d / 1000))), d the milli by which fragmentation falls."""

    def __init__(self, workload: Workload) -> None:
        self._measure = Fragmentation(workload.typical())
        self._ground = PerLayout(ground)
        self._tables = PerLayout(self._measure.tables_for)

    def score(self, snapshot: Snapshot, rows: Rows, request: Request) -> Floats:
        """By the fall of fragmentation on each device; as DeviceBestFit without a workload."""
        if not self._measure.pods:
            return DeviceBestFit().score(snapshot, rows, request)
        facts, tables = self._ground(snapshot), self._tables(snapshot)
        before = self._measure.lost(tables, facts, snapshot, rows)
        after = self._measure.lost_after(tables, facts, snapshot, rows, request)
        fall = in_milli(before[:, None] - after, self._measure.pods, facts.milli[rows])
        values = np.floor(100 / (1 + np.exp(-fall / 1000)))
        free = snapshot.free[rows]
        if request.devices > 1:
            values = np.where(tightest(free, request), values, values - 1)
        whole = np.broadcast_to(values, free.shape)
        return with_blind(whole, facts, snapshot, rows, request)
