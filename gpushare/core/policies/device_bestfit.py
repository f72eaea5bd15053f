"""device-bestfit: the tightest device anywhere.

The best of the policies that look only at GPU memory: it leaves the least memory over on the chosen
devices, and of equal ones it takes the fullest node.

Tested in `tests/unit/core/test_policies_plain.py`.
"""

import numpy as np

from gpushare.core.model import ALL_CORES, MAX_UNITS, Request
from gpushare.core.snapshot import Floats, Ints, Rows, Snapshot, has_room
from gpushare.core.workload import Workload


class DeviceBestFit:
    """Least units left over on the devices used; then the node with the least share free.

    Between the two a pod of one device that asks for cores takes the device with the fewest left.
    """

    ignores_host = True

    def __init__(self, _workload: Workload | None = None) -> None:
        """Ignore the workload: this policy looks only at free memory."""

    def shapes_key(self, snapshot: Snapshot) -> tuple[()]:
        """Return the same for all snapshots: nothing is taken from other nodes."""
        return ()

    def score(self, snapshot: Snapshot, rows: Rows, request: Request) -> Floats:
        """Return minus the leftovers of the best placement with the device, minus the node's free
        share.
        """
        free = snapshot.free[rows]
        # The share is at most a half, so that it decides only between equal leftovers.
        scale = 2.0 * np.maximum(snapshot.capacity[rows].sum(axis=1, keepdims=True), 1)
        # A pod without devices goes where least is free, be it nothing.
        fits = has_room(snapshot, rows, request) if request.devices else free >= 0
        leftovers: Ints = np.where(fits, free - request.units, MAX_UNITS)
        k = min(request.devices, free.shape[1])
        if k > 1:
            # The best set with a device is that one and the k-1 tightest others: the larger of its
            # own leftover and the k-th tightest, and the sum of the k-1 tightest.
            tightest = np.sort(leftovers, axis=1)
            leftovers = np.maximum(leftovers, tightest[:, k - 1 : k])
            leftovers += tightest[:, : k - 1].sum(axis=1, keepdims=True)
        rest = free.sum(axis=1, keepdims=True) / scale
        if request.cores and request.devices == 1:
            rest = (snapshot.cores_free[rows] - request.cores + rest) / ALL_CORES
        value: Floats = -(leftovers + rest)
        return value
