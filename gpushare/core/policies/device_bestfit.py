"""device-bestfit: the tightest device anywhere.

The best of the policies that use only GPU memory: it prefers the devices with the least memory left
over, and of equal ones the fullest node.

Tested in `tests/unit/core/test_policies_plain.py`.
"""

import numpy as np

from gpushare.core.model import ALL_CORES, MAX_UNITS, Request
from gpushare.core.snapshot import Floats, Ints, Rows, Snapshot, has_room, needed_units
from gpushare.core.workload import Workload


class DeviceBestFit:
    """Least units left over on the devices used; then the node with the least share free.

    In between, a pod of one device that asks for cores gets the device with the fewest free cores.
    """

    ignores_host = True
    counts_percentages = True
    """Scores are of the units that a percentage of memory is charged on each device."""

    def __init__(self, _workload: Workload | None = None) -> None:
        """Ignore the workload: this policy looks only at free memory."""

    def shapes_key(self, snapshot: Snapshot) -> tuple[()]:
        """Return a constant: scores do not depend on other nodes."""
        return ()

    def score(self, snapshot: Snapshot, rows: Rows, request: Request) -> Floats:
        """Return minus the leftovers of the best placement with the device, minus the node's free
        share.
        """
        free = snapshot.free[rows]
        # The share is at most a half, and so decides only between equal leftovers.
        scale = 2.0 * np.maximum(snapshot.capacity[rows].sum(axis=1, keepdims=True), 1)
        # A pod without devices prefers the node with the least free memory, even none.
        fits = has_room(snapshot, rows, request) if request.devices else free >= 0
        units = needed_units(snapshot, rows, request) if request.percents else request.units
        leftovers: Ints = np.where(fits, free - units, MAX_UNITS)
        k = min(request.devices, free.shape[1])
        if k > 1:
            # The best set with a device D is D and the k-1 tightest other devices. The leftover of
            # the set is max(leftover of D, k-th tightest) plus the sum of the k-1 tightest.
            tightest = np.sort(leftovers, axis=1)
            leftovers = np.maximum(leftovers, tightest[:, k - 1 : k])
            leftovers += tightest[:, : k - 1].sum(axis=1, keepdims=True)
        free_share = free.sum(axis=1, keepdims=True) / scale
        if request.cores and request.devices == 1:
            free_share = (snapshot.cores_free[rows] - request.cores + free_share) / ALL_CORES
        value: Floats = -(leftovers + free_share)
        return value
