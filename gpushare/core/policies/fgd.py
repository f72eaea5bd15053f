"""fgd: fragmentation gradient descent, the placement that raises fragmentation least.

The policy of Weng et al., "Beware of Fragmentation", USENIX ATC 2023. The score is a whole number
of 0..100. The rounding is part of the policy: ties go to the first node, which keeps load on few
nodes and others empty. It was published for devices that all count 1000. If cards differ, the
largest device counts 1000 and any other in proportion to its units.

Tested in `tests/contract/test_policies.py`.
"""

from functools import partial

import numpy as np

from gpushare.core.model import Request
from gpushare.core.policies.compute import free_with_compute
from gpushare.core.policies.device_bestfit import DeviceBestFit
from gpushare.core.policies.fragmentation import Fragmentation
from gpushare.core.policies.node_shape import PerLayout, node_shapes, rank_unknown_last, tightest
from gpushare.core.snapshot import Floats, Rows, Snapshot
from gpushare.core.workload import Workload


class Fgd:
    """floor(100 / (1 + exp(-d / 1000))), where d is the fall of fragmentation in milli."""

    def __init__(self, workload: Workload) -> None:
        self.measure = Fragmentation(workload.typical())
        largest = max(workload.devices, default=0)
        self.shapes = PerLayout(partial(node_shapes, largest=largest))
        self.tables = PerLayout(self.measure.tables)

    def score(self, snapshot: Snapshot, rows: Rows, request: Request) -> Floats:
        """Return a score by the fall of fragmentation; without a workload that of DeviceBestFit."""
        if not self.measure.pods:
            return DeviceBestFit().score(snapshot, rows, request)
        shapes, free = self.shapes(snapshot), snapshot.free.take(rows, axis=0)
        fall = self.measure.fall(self.tables(snapshot), snapshot, rows, request)
        milli = shapes.even * -0.001 / (self.measure.pods * self.measure.scale)
        values = np.floor(100 / (1 + np.exp(fall * milli)))
        if request.devices > 1:
            room = free_with_compute(snapshot, rows, request, free)
            values = np.where(tightest(room, request), values, values - 1)
        elif not request.devices:
            values = np.repeat(values, free.shape[1], axis=1)
        return rank_unknown_last(values, shapes, snapshot, rows, request)
