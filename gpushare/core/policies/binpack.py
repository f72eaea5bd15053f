"""binpack: fill nodes one after another, and on a node its tightest device.

Keeps whole nodes empty for pods that need many devices, and for scaling the cluster down.

Tested in `tests/contract/test_policies.py`.
"""

from gpushare.core.model import Request
from gpushare.core.snapshot import Floats, Rows, Snapshot
from gpushare.core.workload import Workload


class Binpack:
    """Least free units on the node first; there, the device with the least free units."""

    def __init__(self, _workload: Workload | None = None) -> None:
        """Ignore the workload: this policy looks at free memory alone."""

    def score(self, snapshot: Snapshot, rows: Rows, request: Request) -> Floats:
        """Return minus the free units of the node, minus a fraction below one for those of the
        device.
        """
        free = snapshot.free[rows]
        scale = 1.0 + snapshot.capacity[rows].max(axis=1, keepdims=True, initial=0)
        value: Floats = -(free.sum(axis=1, keepdims=True) + free / scale)
        return value
