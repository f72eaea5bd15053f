"""Prices of what is scarce in the whole cluster, subtracted from the scores of placements.

A policy may be a `ClusterPricing`. Then the value of a placement is its score, which depends only
on its row, minus prices that depend on the whole cluster. The supply of each row and the sums by
group are kept, and only changed rows are counted again.

What a placement takes from each node is an index into a few patterns: equal nodes, such as all
empty ones, lose the same. One price for each pattern is enough for all of them; a price for each
node would cost as much as the rest of a request.

Tested in `tests/unit/core/test_ranking.py`.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from gpushare.core.held_snapshot import HeldSnapshot
from gpushare.core.layout import with_rows
from gpushare.core.model import Request
from gpushare.core.policy import ClusterPricing, KeyedByShapes, Policy, Taken
from gpushare.core.snapshot import Floats, Ints, Rows, Snapshot, idle_devices

_SPARE = 64
"""Patterns without a row that are tolerated before the unused ones are dropped."""


@dataclass(frozen=True, slots=True)
class PatternRows:
    """What is taken from each of N rows; immutable."""

    patterns: Taken
    """int8 (P, Y), the first all zeros."""
    index: npt.NDArray[np.int32]
    """int32 (N,), the pattern of each row."""
    numbers: dict[bytes, int]
    """The number of each pattern, by its bytes."""
    least: int
    """How many patterns there were when each had a row."""

    @staticmethod
    def of(taken: Taken) -> "PatternRows":
        """Return the patterns and the index of int8 (N, Y)."""
        nothing = np.zeros((1, taken.shape[1]), dtype=np.int8)
        empty = PatternRows(nothing, np.zeros(0, np.int32), {nothing.tobytes(): 0}, 1)
        rows = empty._with(taken)
        return replace(rows, least=len(rows.patterns))

    def patched(self, rows: Rows, taken: Taken, more: int = 0) -> "PatternRows":
        """Return the same with these rows replaced, by int8 (K, Y) in their order.

        more: rows that are added first.
        """
        if not len(taken):
            return self
        known = self._with(taken)
        index = with_rows(self.index, more)
        index[rows] = known.index
        if len(known.patterns) > known.least + _SPARE:
            return PatternRows.of(known.patterns.take(index, axis=0))
        return PatternRows(known.patterns, index, known.numbers, self.least)

    def row(self, row: int) -> Taken:
        """Return int8 (Y,): what is taken from one row."""
        taken: Taken = self.patterns[self.index[row]]
        return taken

    def _with(self, taken: Taken) -> "PatternRows":
        """Return the patterns with those of int8 (K, Y) added, and the index of these K rows."""
        width, data = taken.shape[1], taken.tobytes()
        keys = [data[at * width : (at + 1) * width] for at in range(len(taken))]
        numbers = self.numbers
        new = [key for key in dict.fromkeys(keys) if key not in numbers]
        patterns = self.patterns
        if new:
            numbers = numbers | {key: len(numbers) + at for at, key in enumerate(new)}
            added = np.frombuffer(b"".join(new), np.int8).reshape(len(new), width)
            patterns = np.concatenate([patterns, added])
        index = np.fromiter(map(numbers.__getitem__, keys), np.int32, len(keys))
        return PatternRows(patterns, index, numbers, self.least)


@dataclass(frozen=True, slots=True)
class _Supply:
    """The supply of each row and the sums by group, for one generation; immutable."""

    generation: int
    shapes: "ShapesSeen"
    group: npt.NDArray[np.int32]
    """Of each row, (N,), as it was summed up."""
    by_row: Ints
    totals: Ints


class ClusterPrices:
    """The prices of one policy. Any thread may ask: whatever is kept has its generation.

    V is 2 if devices in use and idle ones differ, else 1.
    """

    def __init__(self, policy: ClusterPricing) -> None:
        self._policy = policy
        self._keys = shapes_keys(policy)
        self._supply: _Supply | None = None

    def split(
        self, snapshot: Snapshot, rows: Rows, request: Request, scores: Floats
    ) -> tuple[Floats, Taken]:
        """Return scores (K, D) as float64 (V, K, D), -inf where a device is in the other state, and
        int8 (K, Y), what the placement takes from each row.

        For a pod of one device those in use come first, then idle ones.
        """
        taken = self._policy.taken(snapshot, rows, request)
        if request.devices != 1:
            return scores[None], taken
        idle = idle_devices(snapshot, rows)
        states = (np.where(idle, -np.inf, scores), np.where(idle, scores, -np.inf))
        return np.stack(states), taken

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
        if known is not None and known.generation > snapshot.generation:
            return self._summed(snapshot).totals
        if known is None or not known.shapes.hold_for(snapshot, self._keys):
            known = self._summed(snapshot)
        elif known.generation != snapshot.generation:
            known = self._summed_again(known, snapshot)
        self._supply = known
        return known.totals

    def _summed(self, snapshot: Snapshot) -> _Supply:
        """Return the supply of all rows, and their sums."""
        by_row = self._policy.supply(snapshot, np.arange(len(snapshot.names)))
        totals = np.zeros((int(snapshot.group.max(initial=0)) + 1, by_row.shape[1]), np.int64)
        np.add.at(totals, snapshot.group, by_row)
        return _Supply(
            generation=snapshot.generation,
            shapes=ShapesSeen.of(snapshot, self._keys),
            group=snapshot.group,
            by_row=by_row,
            totals=totals,
        )

    def _summed_again(self, known: _Supply, snapshot: Snapshot) -> _Supply:
        """Return the sums with the rows that have changed as they are now."""
        rows = snapshot.changed_since(known.generation)
        before = rows[rows < len(known.group)]
        supply = self._policy.supply(snapshot, rows)
        groups = int(snapshot.group.max(initial=0)) + 1
        size = max(groups, len(known.totals))
        totals = with_rows(known.totals, size - len(known.totals))
        by_row = with_rows(known.by_row, len(snapshot.names) - len(known.group))
        # What a row supplied counted for the group that it was in then.
        np.subtract.at(totals, known.group[before], by_row[before])
        np.add.at(totals, snapshot.group[rows], supply)
        by_row[rows] = supply
        return replace(
            known,
            generation=snapshot.generation,
            shapes=ShapesSeen.of(snapshot, self._keys),
            group=snapshot.group,
            by_row=by_row,
            totals=totals[:groups],
        )


@dataclass(frozen=True, slots=True)
class ShapesSeen:
    """The shapes of all nodes for which something was computed by row."""

    capacity: Ints
    """An array that snapshots share until the shape of a node changes."""
    lineage: object
    """As in Snapshot."""
    key: Hashable
    """What the policy takes from the shapes of other nodes; None: it does not say."""

    @staticmethod
    def of(snapshot: Snapshot, key_of: Callable[[Snapshot], Hashable]) -> "ShapesSeen":
        """Return those of the snapshot."""
        return ShapesSeen(snapshot.capacity, snapshot.lineage, key_of(snapshot))

    def hold_for(self, snapshot: Snapshot, key_of: Callable[[Snapshot], Hashable]) -> bool:
        """Return whether what was computed holds for the rows that have not changed since."""
        if self.capacity is snapshot.capacity:
            return True
        is_kept = self.key is not None and self.lineage is snapshot.lineage
        return is_kept and key_of(snapshot) == self.key


def shapes_keys(policy: Policy) -> Callable[[Snapshot], Hashable]:
    """Return a function that returns what the policy takes from the shapes of other nodes.

    It returns None for a policy that does not say. The last value is kept.
    """
    keyed = policy if isinstance(policy, KeyedByShapes) else None
    last: tuple[Ints, Hashable] | None = None

    def key(snapshot: Snapshot) -> Hashable:
        nonlocal last
        if keyed is None:
            return None
        known = last
        if known is None or known[0] is not snapshot.capacity:
            known = last = snapshot.capacity, keyed.shapes_key(snapshot)
        return known[1]

    return key
