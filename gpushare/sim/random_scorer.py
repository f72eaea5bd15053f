"""random: any node that fits, any device that fits, by a seeded generator.

For simulations only, to show what a policy is worth. Its scores differ at each call, so it is no
policy for the extender, whose answers must not depend on earlier calls.

Tested in `tests/unit/sim/test_experiments.py`.
"""

import numpy as np

from gpushare.core.model import Request
from gpushare.core.mutable_cluster import fits
from gpushare.core.ranking import Scores
from gpushare.core.snapshot import Floats, Rows, Snapshot


class RandomScorer:
    """Uniform over nodes, then uniform over devices."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def scores(self, snapshot: Snapshot, request: Request) -> Scores:
        """Return a random score for each node that the request fits."""
        mask = fits(snapshot, np.arange(len(snapshot.names)), request)
        values = np.where(mask.any(axis=1), self._rng.random(len(mask)), -np.inf)
        devices = np.where(mask, self._rng.random(mask.shape), -1).argmax(axis=1)
        return Scores(values, values[None], devices[None].astype(np.int16))

    def score_devices(self, snapshot: Snapshot, rows: Rows, _request: Request) -> Floats:
        """Return a random score for each device."""
        return self._rng.random((len(rows), snapshot.used.shape[1]))

    def best_device(self, _snapshot: Snapshot, _row: int, _request: Request) -> int | None:
        """Return None: nothing is kept."""
        return None
