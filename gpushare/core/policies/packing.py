"""packing: used devices first, then idle devices of used nodes, then fresh nodes.

The "gpu-packing" of Weng et al., "Beware of Fragmentation", USENIX ATC 2023, with its rounding.
A pod without GPU goes to the first node.

Tested in `tests/contract/test_policies.py`.
"""

import numpy as np

from gpushare.core.model import Request
from gpushare.core.policies.node_shape import PerLayout, node_shapes, on_tightest, tightest
from gpushare.core.snapshot import Floats, Rows, Snapshot, idle_devices
from gpushare.core.workload import Workload


class Packing:
    """A whole number: over 50 on used devices, 33..50 on idle ones, less on idle nodes."""

    def __init__(self, _workload: Workload | None = None) -> None:
        """Ignore the workload: this policy looks only at what is in use."""
        self._shapes = PerLayout(node_shapes)

    def score(self, snapshot: Snapshot, rows: Rows, request: Request) -> Floats:
        """Return a score by the state of the tightest devices and of their node."""
        free = snapshot.free[rows]
        if not request.devices:
            return np.zeros(free.shape)
        untouched = idle_devices(snapshot, rows)
        fresh = untouched.sum(axis=1)
        chosen = tightest(free, request)
        if request.devices == 1:
            # Of equally tight devices only the first one counts.
            chosen &= np.cumsum(chosen, axis=1) == 1
        opened = (chosen & untouched).sum(axis=1)
        percent = free * 100 // self._shapes(snapshot).capacity[rows][:, None]
        room = np.where(chosen, percent, 0).sum(axis=1)
        whole_node = fresh == (snapshot.capacity[rows] > 0).sum(axis=1)
        value = np.select(
            [whole_node, opened > 0],
            [np.maximum(33 - fresh, fresh), np.maximum(50 - opened, 33)],
            np.maximum(100 - room // 10, 50),
        )
        return on_tightest(value, free, request)
