"""clustering: pods of one kind together, on the fullest such node.

The "gpu-clustering" of Weng et al., "Beware of Fragmentation", USENIX ATC 2023, with its rounding.
Kinds are shares of a device, and 1, 2, 4 or 8 whole devices. On the node it uses the tightest
device; a pod without GPU goes to the first node.

Tested in `tests/contract/test_policies.py`.
"""

import numpy as np

from gpushare.core.model import Request
from gpushare.core.policies.bestfit import LARGEST_GPU
from gpushare.core.policies.node_shape import PerLayout, node_shapes, on_tightest
from gpushare.core.snapshot import Floats, Rows, Snapshot, pod_kind
from gpushare.core.workload import Workload


class Clustering:
    """75 for nodes that run only this kind, 50 with others, 25 for no pods, else 0; plus up to 25
    the fuller the node is.
    """

    def __init__(self, _workload: Workload | None = None) -> None:
        """Ignore the workload: this policy looks only at what runs on a node."""
        self._shapes = PerLayout(node_shapes)

    def score(self, snapshot: Snapshot, rows: Rows, request: Request) -> Floats:
        """Return a score by the kinds of pods on the node, then by how full it is."""
        shapes, free = self._shapes(snapshot), snapshot.free[rows]
        if not request.devices:
            return np.zeros(free.shape)
        kinds = snapshot.kinds[rows]
        share, whole = (pod_kind(request, capacity) for capacity in (request.units + 1, 1))
        kind = np.where(request.units < shapes.capacity[rows], share, whole)
        own = np.take_along_axis(kinds, kind[:, None], axis=1)[:, 0]
        others = kinds.sum(axis=1) > own
        base = np.select([(own > 0) & ~others, own > 0, ~others], [75, 50, 25], 0)
        gpu = free.sum(axis=1) * shapes.milli[rows]
        value = base + np.floor(25 * (LARGEST_GPU - gpu) / LARGEST_GPU)
        return on_tightest(value, free, request)
