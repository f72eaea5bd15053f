"""random: any node that fits, any device that fits, by a seeded generator.

For simulations only, to show what a policy is worth. Its judgement is a new one at every request,
so it is no policy for the extender, whose answer may not depend on who asked before.
"""

import numpy as np

from gpushare.core.model import Request
from gpushare.core.policy import Stakes
from gpushare.core.snapshot import Floats, Ints, Rows, Snapshot


class Dice:
    """Uniform over nodes, then uniform over devices."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def score(self, snapshot: Snapshot, rows: Rows, _request: Request) -> Floats:
        """Nothing: the state of a row does not matter."""
        return np.zeros((len(rows), snapshot.used.shape[1]))

    def offers(self, _snapshot: Snapshot, rows: Rows) -> Ints:
        """Nothing: nothing is scarce."""
        return np.zeros((len(rows), 0), dtype=np.int64)

    def stakes(self, _snapshot: Snapshot, rows: Rows, _request: Request) -> Stakes:
        """Nothing: a placement takes nothing that matters."""
        return np.zeros((len(rows), 0), dtype=np.int8)

    def pressure(
        self, snapshot: Snapshot, rows: Rows, request: Request, _stakes: Stakes, _goods: Ints
    ) -> Floats:
        """A throw for each node, and one for each of its devices that decides among them alone."""
        nodes = self._rng.random((len(rows), 1))
        devices = self._rng.random((len(rows), snapshot.used.shape[1]))
        if not request.devices:
            return np.repeat(nodes, devices.shape[1], axis=1)
        # The throws for devices may not tilt that between nodes: the best one adds a whole 1.
        devices = np.where(snapshot.free[rows] >= request.units, devices, -1)
        best = devices.max(axis=1, keepdims=True)
        return nodes + np.where(devices == best, 1.0, devices - 2)
