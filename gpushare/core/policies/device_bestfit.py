"""device-bestfit: the tightest device anywhere.

The best of the policies that look at GPU memory alone: what is left over on the chosen devices is
least, and equal leftovers go to the fullest node.
"""

import numpy as np

from gpushare.core.model import MAX_UNITS, Request
from gpushare.core.snapshot import Floats, Ints, Rows, Snapshot
from gpushare.core.workload import Workload


class DeviceBestFit:
    """Least units left over on the devices used; then the node with the least share free."""

    def __init__(self, _workload: Workload | None = None) -> None:
        """Ignore the workload: this policy looks at free memory alone."""

    def score(self, snapshot: Snapshot, rows: Rows, request: Request) -> Floats:
        """Return minus the leftovers of the best placement with the device, minus the free share of
        the node.
        """
        free = snapshot.free[rows]
        # At most a half, so that it decides between equal leftovers alone, whatever a unit is.
        scale = 2.0 * np.maximum(snapshot.capacity[rows].sum(axis=1, keepdims=True), 1)
        left = _least_left(free, request)
        value: Floats = -(left + free.sum(axis=1, keepdims=True) / scale)
        return value


def _least_left(free: Ints, request: Request) -> Ints:
    """Return int64 (K, D): the least leftovers, summed over the devices of a placement with this
    one.

    With v the devices' leftovers and k devices asked for, the best set with device i is i and the
    k-1 tightest others: max(v_i, the k-th tightest) + the sum of the k-1 tightest.
    """
    left = np.where(free >= request.units, free - request.units, MAX_UNITS)
    k = min(request.devices, free.shape[1])
    if k <= 1:
        return left
    tightest = np.sort(left, axis=1)
    best: Ints = np.maximum(left, tightest[:, k - 1 : k])
    best += tightest[:, : k - 1].sum(axis=1, keepdims=True)
    return best
