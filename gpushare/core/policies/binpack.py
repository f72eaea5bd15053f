"""binpack: fill one node after another, and on a node its tightest device.

It keeps whole nodes empty for pods that need many devices, and for scaling the cluster down.

Tested in `tests/contract/test_policies.py`.
"""

from gpushare.core.model import Request
from gpushare.core.snapshot import Floats, Rows, Snapshot
from gpushare.core.workload import Workload


class Binpack:
    """Least free units on the node first; there, the device with the least free units."""

    def __init__(self, _workload: Workload | None = None) -> None:
        """Ignore the workload: this policy looks only at free memory."""

    def score(self, snapshot: Snapshot, rows: Rows, request: Request) -> Floats:
        """Return minus the node's free units, minus a fraction below one for the device's."""
        free = snapshot.free[rows]
        scale = 1.0 + snapshot.capacity[rows].max(axis=1, keepdims=True, initial=0)
        value: Floats = -(free.sum(axis=1, keepdims=True) + free / scale)
        return value
