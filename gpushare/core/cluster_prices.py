"""Prices of what is scarce in the whole cluster, subtracted from the scores of placements.

A policy may be a `ClusterPricing`. Then the value of a placement is its score, which depends only
on its row, minus prices that depend on the whole cluster. The supply of each row and the sums by
group are kept, and only changed rows are counted again. For any other policy `Prices` leaves the
scores as they are.

Tested in `tests/unit/core/test_ranking.py`.
"""

from dataclasses import dataclass

import numpy as np

from gpushare.core.held_snapshot import HeldSnapshot
from gpushare.core.model import Request
from gpushare.core.pattern_rows import PatternRows
from gpushare.core.policy import ClusterPricing, Policy, Taken
from gpushare.core.snapshot import Floats, Ints, Rows, Snapshot, idle_devices

_NOTHING: Taken = np.zeros((0, 0), dtype=np.int8)


class Prices:
    """What a `Ranking` asks of prices; there are none here, so all scores stay as they are.

    V is 2 if devices in use and idle ones differ, else 1.
    """

    def prepare(self, snapshot: Snapshot) -> None:
        """Count the supply of the snapshot in advance for the next request."""

    def split(self, snapshot: Snapshot, rows: Rows, request: Request, scores: Floats) -> Floats:
        """Return scores (K, D) as float64 (V, K, D), -inf where a device is in the other state."""
        return scores[None]

    def taken(self, snapshot: Snapshot, rows: Rows, request: Request) -> Taken:
        """Return int8 (K, Y): what a placement takes from each row."""
        return _NOTHING

    def charge(
        self, snapshot: Snapshot, request: Request, best: Floats, taken: PatternRows
    ) -> Floats:
        """Return the best scores (V, N) of all rows minus the current prices."""
        return best

    def charge_devices(
        self, snapshot: Snapshot, rows: Rows, request: Request, scores: Floats
    ) -> Floats:
        """Return scores (K, D) of the devices of some rows minus the current prices."""
        return scores

    def charge_row(
        self, snapshot: Snapshot, row: int, request: Request, best: Floats, taken: Taken
    ) -> Floats:
        """Return the best scores (V,) of one row minus the current prices. taken: (Y,)."""
        return best


def prices_of(policy: Policy) -> Prices:
    """Return the prices of the policy, which may have none."""
    return ClusterPrices(policy) if isinstance(policy, ClusterPricing) else Prices()


@dataclass(frozen=True, slots=True)
class _Supply:
    """The supply of each row and the sums by group, for one generation; immutable."""

    generation: int
    layout: Ints
    by_row: Ints
    totals: Ints


class ClusterPrices(Prices):
    """The prices of one policy. Any thread may ask: whatever is kept has its generation."""

    def __init__(self, policy: ClusterPricing) -> None:
        self._policy = policy
        self._supply: _Supply | None = None

    def prepare(self, snapshot: Snapshot) -> None:
        """Count the supply of the snapshot."""
        self.totals(snapshot)

    def split(self, snapshot: Snapshot, rows: Rows, request: Request, scores: Floats) -> Floats:
        """Return the scores; for a pod of one device first for those in use, then for idle ones."""
        if request.devices != 1:
            return scores[None]
        idle = idle_devices(snapshot, rows)
        return np.stack([np.where(idle, -np.inf, scores), np.where(idle, scores, -np.inf)])

    def taken(self, snapshot: Snapshot, rows: Rows, request: Request) -> Taken:
        """Return what the policy takes from each row."""
        return self._policy.taken(snapshot, rows, request)

    def charge(
        self, snapshot: Snapshot, request: Request, best: Floats, taken: PatternRows
    ) -> Floats:
        """Return the best scores minus the prices of groups and of what is taken."""
        totals = self.totals(snapshot)
        prices = self._policy.group_prices(snapshot, request, totals)
        worth: Floats = best - prices.take(snapshot.group)
        if len(taken.patterns) > 1:
            cost = self._policy.taken_prices(snapshot, request, taken.patterns, totals)
            worth -= cost.take(taken.index, axis=1)
        return worth

    def charge_devices(
        self, snapshot: Snapshot, rows: Rows, request: Request, scores: Floats
    ) -> Floats:
        """Return the scores of devices minus the same prices, computed again for these rows."""
        totals = self.totals(snapshot)
        prices = self._policy.group_prices(snapshot, request, totals)
        worth: Floats = scores - prices.take(snapshot.group[rows])[:, None]
        taken = self._policy.taken(snapshot, rows, request)
        cost = self._policy.taken_prices(snapshot, request, taken, totals)
        if len(cost) == 1:
            worth -= cost[0][:, None]
        else:
            idle = idle_devices(snapshot, rows)
            worth -= np.where(idle, cost[1][:, None], cost[0][:, None])
        return worth

    def charge_row(
        self, snapshot: Snapshot, row: int, request: Request, best: Floats, taken: Taken
    ) -> Floats:
        """Return the best scores of one row minus the prices, as `charge` does for all rows."""
        totals = self.totals(snapshot)
        prices = self._policy.group_prices(snapshot, request, totals)
        cost = self._policy.taken_prices(snapshot, request, taken[None], totals)
        worth: Floats = (best - prices[snapshot.group[row]]) - cost[:, 0]
        return worth

    def totals(self, snapshot: Snapshot) -> Ints:
        """Return int64 (groups, X): what the nodes of each group supply together.

        Holds are left out: they last for seconds, and what is kept has the books' generation.
        """
        if isinstance(snapshot, HeldSnapshot):
            snapshot = snapshot.base
        known = self._supply
        if known is not None and known.layout is snapshot.capacity:
            if known.generation == snapshot.generation:
                return known.totals
            if known.generation < snapshot.generation:
                rows = snapshot.changed_since(known.generation)
                supply = self._policy.supply(snapshot, rows)
                totals, by_row = known.totals.copy(), known.by_row.copy()
                np.add.at(totals, snapshot.group[rows], supply - by_row[rows])
                by_row[rows] = supply
                self._supply = _Supply(snapshot.generation, snapshot.capacity, by_row, totals)
                return totals
        by_row = self._policy.supply(snapshot, np.arange(len(snapshot.names)))
        totals = np.zeros((int(snapshot.group.max(initial=0)) + 1, by_row.shape[1]), np.int64)
        np.add.at(totals, snapshot.group, by_row)
        if known is None or known.generation <= snapshot.generation:
            self._supply = _Supply(snapshot.generation, snapshot.capacity, by_row, totals)
        return totals
