"""binpack and its opposite, spread: by the free memory of nodes, then of devices.

Tested in `tests/contract/test_policies.py`.
"""

from gpushare.core.model import ALL_CORES, Request
from gpushare.core.snapshot import Floats, Ints, Rows, Snapshot
from gpushare.core.workload import Workload


class Binpack:
    """binpack: least free units on the node first; there, the device with the least free units.

    Keeps whole nodes empty for pods that need many devices, and for scaling the cluster down. Of
    devices with equal memory, a pod that asks for cores gets the device with the fewest free cores.
    """

    ignores_host = True

    def __init__(self, _workload: Workload | None = None) -> None:
        """Ignore the workload: this policy looks only at free memory."""

    def shapes_key(self, snapshot: Snapshot) -> tuple[()]:
        """Return a constant: scores do not depend on other nodes."""
        return ()

    def score(self, snapshot: Snapshot, rows: Rows, request: Request) -> Floats:
        """Return minus the node's free units, minus a fraction below one for the device's."""
        free = snapshot.free[rows]
        scale = 1.0 + snapshot.capacity[rows].max(axis=1, keepdims=True, initial=0)
        device: Ints | Floats = free
        if request.cores:
            device = free + (snapshot.cores_free[rows] - request.cores) / ALL_CORES
        value: Floats = -(free.sum(axis=1, keepdims=True) + device / scale)
        return value


class Spread(Binpack):
    """spread: most free units on the node first; there, the device with the most free units.

    For pods that suffer more from neighbours than from waiting; strands memory.
    """

    def score(self, snapshot: Snapshot, rows: Rows, request: Request) -> Floats:
        """Return the free units of the node, plus a fraction below one for those of the device."""
        return -super().score(snapshot, rows, request)
