"""Prices of scarce goods of the whole cluster, subtracted from the scores of placements.

A policy may be a `ClusterPricing`. Then the value of a placement is a score, which depends only on
the row, minus prices that depend on the whole cluster. The supply of each row and the sums by
group are kept, and only changed rows are counted again.

The amounts that a placement takes from a node are an index into a few patterns: equal nodes, such
as all empty nodes, lose the same amounts. So one price for each pattern is enough; a price for each
node would cost as much as all other work for a request.

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
    """The amounts that a placement takes from each of N rows; immutable."""

    patterns: Taken
    """int8 (P, Y), the first all zeros."""
    index: npt.NDArray[np.int32]
    """int32 (N,), the pattern of each row."""
    numbers: dict[bytes, int]
    """The number of each pattern, by the bytes of the pattern."""
    base_size: int
    """How many patterns there were when the last unused ones were dropped."""

    @staticmethod
    def of(amounts: Taken) -> "PatternRows":
        """Return the patterns and the index of int8 (N, Y)."""
        nothing = np.zeros((1, amounts.shape[1]), dtype=np.int8)
        empty = PatternRows(nothing, np.zeros(0, np.int32), {nothing.tobytes(): 0}, 1)
        rows = empty._with(amounts)
        return replace(rows, base_size=len(rows.patterns))

    def patched(self, rows: Rows, amounts: Taken, more: int = 0) -> "PatternRows":
        """Return the same with the K rows replaced by int8 (K, Y), in the order of `rows`.

        more: number of rows that are added first.
        """
        if not len(amounts):
            return self
        extended = self._with(amounts)
        index = with_rows(self.index, more)
        index[rows] = extended.index
        if len(extended.patterns) > extended.base_size + _SPARE:
            return PatternRows.of(extended.patterns.take(index, axis=0))
        return PatternRows(extended.patterns, index, extended.numbers, self.base_size)

    def row(self, row: int) -> Taken:
        """Return int8 (Y,): the amounts that a placement takes from one row."""
        amounts: Taken = self.patterns[self.index[row]]
        return amounts

    def _with(self, amounts: Taken) -> "PatternRows":
        """Return the patterns with those of int8 (K, Y) added, and the index of these K rows."""
        width, data = amounts.shape[1], amounts.tobytes()
        keys = [data[at * width : (at + 1) * width] for at in range(len(amounts))]
        numbers = self.numbers
        new = [key for key in dict.fromkeys(keys) if key not in numbers]
        patterns = self.patterns
        if new:
            numbers = numbers | {key: len(numbers) + at for at, key in enumerate(new)}
            added = np.frombuffer(b"".join(new), np.int8).reshape(len(new), width)
            patterns = np.concatenate([patterns, added])
        index = np.fromiter(map(numbers.__getitem__, keys), np.int32, len(keys))
        return PatternRows(patterns, index, numbers, self.base_size)


@dataclass(frozen=True, slots=True)
class _Supply:
    """The supply of each row and the sums by group, for one generation; immutable."""

    generation: int
    shapes: "ShapesSeen"
    group: npt.NDArray[np.int32]
    """int32 (N,), the group of each row in the sums."""
    by_row: Ints
    totals: Ints


class ClusterPrices:
    """The prices of one policy. Any thread may call the methods: each cached value has a
    generation.

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
        int8 (K, Y), the amounts that the placement takes from each row.

        For a pod of one device the scores of devices in use come first, then those of idle devices.
        """
        amounts = self._policy.taken(snapshot, rows, request)
        if request.devices != 1:
            return scores[None], amounts
        idle = idle_devices(snapshot, rows)
        states = (np.where(idle, -np.inf, scores), np.where(idle, scores, -np.inf))
        return np.stack(states), amounts

    def charge(
        self, snapshot: Snapshot, request: Request, best: Floats, patterns: PatternRows
    ) -> Floats:
        """Return the best scores minus the prices of groups and of the amounts taken."""
        totals = self.totals(snapshot)
        prices = self._policy.group_prices(snapshot, request, totals)
        worth: Floats = best - prices.take(snapshot.group)
        if len(patterns.patterns) > 1:
            cost = self._policy.taken_prices(snapshot, request, patterns.patterns, totals)
            worth -= cost.take(patterns.index, axis=1)
        return worth

    def charge_devices(
        self, snapshot: Snapshot, rows: Rows, request: Request, scores: Floats
    ) -> Floats:
        """Return the scores of devices minus the same prices, computed again for these rows."""
        totals = self.totals(snapshot)
        prices = self._policy.group_prices(snapshot, request, totals)
        worth: Floats = scores - prices.take(snapshot.group[rows])[:, None]
        amounts = self._policy.taken(snapshot, rows, request)
        cost = self._policy.taken_prices(snapshot, request, amounts, totals)
        if len(cost) == 1:
            worth -= cost[0][:, None]
        else:
            idle = idle_devices(snapshot, rows)
            worth -= np.where(idle, cost[1][:, None], cost[0][:, None])
        return worth

    def charge_row(
        self, snapshot: Snapshot, row: int, request: Request, best: Floats, amounts: Taken
    ) -> Floats:
        """Return the best scores of one row minus the prices, as `charge` does for all rows."""
        totals = self.totals(snapshot)
        prices = self._policy.group_prices(snapshot, request, totals)
        cost = self._policy.taken_prices(snapshot, request, amounts[None], totals)
        worth: Floats = (best - prices[snapshot.group[row]]) - cost[:, 0]
        return worth

    def totals(self, snapshot: Snapshot) -> Ints:
        """Return int64 (groups, X): the supply of all nodes of each group.

        Holds are ignored: they last for seconds, and the cached supply has the generation of the
        ledger.
        """
        if isinstance(snapshot, HeldSnapshot):
            snapshot = snapshot.base
        supply = self._supply
        if supply is not None and supply.generation > snapshot.generation:
            return self._summed(snapshot).totals
        if supply is None or not supply.shapes.hold_for(snapshot, self._keys):
            supply = self._summed(snapshot)
        elif supply.generation != snapshot.generation:
            supply = self._summed_again(supply, snapshot)
        self._supply = supply
        return supply.totals

    def _summed(self, snapshot: Snapshot) -> _Supply:
        """Return the supply of all rows and the sums by group."""
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

    def _summed_again(self, earlier: _Supply, snapshot: Snapshot) -> _Supply:
        """Return the supply with the changed rows counted again."""
        rows = snapshot.changed_since(earlier.generation)
        before = rows[rows < len(earlier.group)]
        row_supply = self._policy.supply(snapshot, rows)
        groups = int(snapshot.group.max(initial=0)) + 1
        size = max(groups, len(earlier.totals))
        totals = with_rows(earlier.totals, size - len(earlier.totals))
        by_row = with_rows(earlier.by_row, len(snapshot.names) - len(earlier.group))
        # The old supply of a row was counted in the old group of the row.
        np.subtract.at(totals, earlier.group[before], by_row[before])
        np.add.at(totals, snapshot.group[rows], row_supply)
        by_row[rows] = row_supply
        return replace(
            earlier,
            generation=snapshot.generation,
            shapes=ShapesSeen.of(snapshot, self._keys),
            group=snapshot.group,
            by_row=by_row,
            totals=totals[:groups],
        )


@dataclass(frozen=True, slots=True)
class ShapesSeen:
    """The shapes of all nodes for which values were computed by row."""

    capacity: Ints
    """An array that snapshots share until the shape of a node changes."""
    lineage: object
    """As in Snapshot."""
    key: Hashable
    """`KeyedByShapes.shapes_key`; None if the policy has no such key."""

    @staticmethod
    def of(snapshot: Snapshot, key_of: Callable[[Snapshot], Hashable]) -> "ShapesSeen":
        """Return the shapes of the snapshot."""
        return ShapesSeen(snapshot.capacity, snapshot.lineage, key_of(snapshot))

    def hold_for(self, snapshot: Snapshot, key_of: Callable[[Snapshot], Hashable]) -> bool:
        """Return whether values computed for these shapes still hold for unchanged rows."""
        if self.capacity is snapshot.capacity:
            return True
        is_kept = self.key is not None and self.lineage is snapshot.lineage
        return is_kept and key_of(snapshot) == self.key


def shapes_keys(policy: Policy) -> Callable[[Snapshot], Hashable]:
    """Return a function that returns the policy's key of a snapshot's shapes, and keeps the last.

    The function returns None for a policy that is not KeyedByShapes.
    """
    keyed = policy if isinstance(policy, KeyedByShapes) else None
    last: tuple[Ints, Hashable] | None = None

    def key(snapshot: Snapshot) -> Hashable:
        nonlocal last
        if keyed is None:
            return None
        cached = last
        if cached is None or cached[0] is not snapshot.capacity:
            cached = last = snapshot.capacity, keyed.shapes_key(snapshot)
        return cached[1]

    return key
