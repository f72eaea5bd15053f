"""fgd, the policy of Weng et al., "Beware of Fragmentation", USENIX ATC 2023, with its rounding.

The rounding is part of the policy: ties go to the first node, which keeps load on few nodes and
other nodes empty. The paper has only devices that count 1000; see node_shape.py for other devices.

Tested in `tests/contract/test_policies.py` and `tests/unit/core/test_policies.py`.
"""

from functools import partial

import numpy as np

from gpushare.core.model import Request
from gpushare.core.policies.device_bestfit import DeviceBestFit
from gpushare.core.policies.fragmentation import Fragmentation
from gpushare.core.policies.node_shape import (
    PerGroups,
    free_with_compute,
    node_shapes,
    rank_unknown_last,
    tightest,
)
from gpushare.core.snapshot import Floats, Rows, Snapshot
from gpushare.core.workload import Workload

SCALE_CPU, SCALE_GPU = 128_000, 8_000
"""CPU and GPU of a whole node, both in milli: the scales as published."""


class Fgd:
    """fgd: fragmentation gradient descent, the placement that raises fragmentation least.

    floor(100 / (1 + exp(-d / 1000))), where d is the fall of fragmentation in milli: a whole number
    of 0..100. If cards differ, the largest device counts 1000 and any other device in proportion to
    the units.
    """

    def __init__(self, workload: Workload) -> None:
        self.measure = Fragmentation(workload.typical())
        largest = max(workload.devices, default=0)
        self.shapes = PerGroups(partial(node_shapes, largest=largest))
        self.tables = PerGroups(self.measure.tables)

    def shapes_key(self, snapshot: Snapshot) -> float:
        """Return the value of a unit: scores depend on other nodes only through this value."""
        return self.shapes(snapshot).even

    def score(self, snapshot: Snapshot, rows: Rows, request: Request) -> Floats:
        """Return a score by the fall of fragmentation; without a workload that of DeviceBestFit."""
        if not self.measure.pods:
            return DeviceBestFit().score(snapshot, rows, request)
        shapes, free = self.shapes(snapshot), snapshot.free.take(rows, axis=0)
        fall = self.measure.fall(self.tables(snapshot), snapshot, rows, request)
        milli = shapes.even * -0.001 / (self.measure.pods * self.measure.scale)
        with np.errstate(over="ignore"):  # beyond the largest float the value is 0
            values = np.floor(100 / (1 + np.exp(fall * milli)))
        if request.devices > 1:
            room = free_with_compute(snapshot, rows, request, free)
            values = np.where(tightest(room, request), values, values - 1)
        elif not request.devices:
            values = np.repeat(values, free.shape[1], axis=1)
        return rank_unknown_last(values, shapes, snapshot, rows, request)
