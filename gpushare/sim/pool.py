"""A pool of nodes that grows and shrinks, as an autoscaler makes it: at once, and at no cost."""

import numpy as np

from gpushare.core.model import Request
from gpushare.core.mutable_cluster import Placement, fits
from gpushare.sim.engine import Cluster


class NodePool:
    """The nodes of a cluster that are there; at first there is none."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.present = np.zeros(len(cluster.view.names), dtype=bool)
        """bool (N,)"""

    def place(self, request: Request) -> Placement | None:
        """Place the pod on a node that is there, else on the first other one, which joins; None if
        the pod fits on none.
        """
        placement = self._cluster.place(request, self.present)
        if placement is not None:
            return placement
        rows = np.flatnonzero(~self.present)
        fitting = rows[fits(self._cluster.view, rows, request).any(axis=1)]
        if not len(fitting):
            return None
        self.present[fitting[0]] = True
        return self._cluster.place_on(int(fitting[0]), request)

    def shrink(self, row: int) -> None:
        """Let the node leave if it is empty."""
        view = self._cluster.view
        is_used = view.used[row].any() or view.cpu_free[row] < view.cpu_capacity[row]
        self.present[row] = bool(is_used or view.memory_free[row] < view.memory_capacity[row])
