"""The prices of what is scarce in the whole cluster, taken from the scores of placements.

A policy may be a `ClusterPricing`: then what a placement is worth is its score, which depends on
its row alone, less prices that depend on the whole cluster. What each row supplies and the sums by
group are kept, and only rows that changed are counted again. For any other policy `Prices` leaves
the scores as they are.
"""

from dataclasses import dataclass

import numpy as np

from gpushare.core.model import Request
from gpushare.core.pattern_rows import PatternRows
from gpushare.core.policy import ClusterPricing, Policy, Taken
from gpushare.core.snapshot import Floats, Ints, Rows, Snapshot, idle_devices

_NOTHING: Taken = np.zeros((0, 0), dtype=np.int8)


class Prices:
    """What a `Ranking` asks of prices; there are none here, so all scores stay as they are.

    V is 1, or 2 where devices in use and idle ones differ.
    """

    def prepare(self, snapshot: Snapshot) -> None:
        """Count the supply of the snapshot, so that the next request need not."""

    def split(self, snapshot: Snapshot, rows: Rows, request: Request, scores: Floats) -> Floats:
        """Return scores (K, D) as float64 (V, K, D), -inf where a device is in the other state."""
        return scores[None]

    def taken(self, snapshot: Snapshot, rows: Rows, request: Request) -> Taken:
        """Return int8 (K, Y): what a placement takes from each row."""
        return _NOTHING

    def charge(
        self, snapshot: Snapshot, request: Request, best: Floats, taken: PatternRows
    ) -> Floats:
        """Return the best scores (V, N) of all rows less the prices of now."""
        return best

    def charge_devices(
        self, snapshot: Snapshot, rows: Rows, request: Request, scores: Floats
    ) -> Floats:
        """Return scores (K, D) of the devices of some rows less the prices of now."""
        return scores

    def charge_row(
        self, snapshot: Snapshot, row: int, request: Request, best: Floats, taken: Taken
    ) -> Floats:
        """Return the best scores (V,) of one row less the prices of now. taken: (Y,)."""
        return best


def prices_of(policy: Policy) -> Prices:
    """Return the prices of the policy, which may have none."""
    return ClusterPrices(policy) if isinstance(policy, ClusterPricing) else Prices()


@dataclass(frozen=True, slots=True)
class _Supply:
    """What each row supplies, and the sums by group: true for this generation, never changed."""

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
        """Return the scores, for one device those of devices in use before those of idle ones."""
        if request.devices != 1:
            return scores[None]
        idle = idle_devices(snapshot, rows)
        return np.stack([np.where(idle, -np.inf, scores), np.where(idle, scores, -np.inf)])

    def taken(self, snapshot: Snapshot, rows: Rows, request: Request) -> Taken:
        """Return what the policy says is taken."""
        return self._policy.taken(snapshot, rows, request)

    def charge(
        self, snapshot: Snapshot, request: Request, best: Floats, taken: PatternRows
    ) -> Floats:
        """Return the best scores less the prices of groups, and of what is taken where it is."""
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
        """Return the scores of devices less the same prices, computed anew for these rows."""
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
        """Return the best scores of one row less the prices, as `charge` does for all rows."""
        totals = self.totals(snapshot)
        prices = self._policy.group_prices(snapshot, request, totals)
        cost = self._policy.taken_prices(snapshot, request, taken[None], totals)
        worth: Floats = (best - prices[snapshot.group[row]]) - cost[:, 0]
        return worth

    def totals(self, snapshot: Snapshot) -> Ints:
        """Return int64 (groups, X): what the nodes of each group supply together."""
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
