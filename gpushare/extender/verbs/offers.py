"""What filter may offer: the books, less what is held for others; and what people are told of that.

Each hold takes the devices that the policy of its own pod likes best on its node, after holds of a
higher priority and older holds of its own priority. A hold that fits nowhere there takes nothing:
the victims of a preemption are not gone yet, or others were faster. The holds of a node are placed
again only when the node or its holds have changed, so a filter call costs about the same with
thousands of holds, of whatever priorities, as with none.

Tested in `tests/unit/extender/verbs/test_offers.py`, and what people are told in
`tests/unit/extender/tell/test_explainer.py`.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace

from gpushare.core.amounts import PERCENT_AMOUNTS, percents_of
from gpushare.core.decide import Judgement, judge, take_best
from gpushare.core.held_snapshot import HeldSnapshot, HeldSnapshotBuilder, RowStates
from gpushare.core.model import Request, Shares
from gpushare.core.node_names import NodeNames
from gpushare.core.ranking import Scorer
from gpushare.core.snapshot import Snapshot
from gpushare.errors import WireError
from gpushare.extender.managed_resources import ManagedResource
from gpushare.extender.verbs.holds import Hold, Holds, counts_against
from gpushare.wire.groups import Claimant
from gpushare.wire.held import HeldPlace

_MAX_VIEWS = 8
"""Views kept, of as many priorities; another one is put together from the rows that are placed."""


class _PlacedHolds:
    """The rows with holds, each with its state after its holds of each priority.

    The holds of a row are placed in one order: those of the highest priority first, and of equal
    ones the oldest. So a row as pods of one priority see it is a step on the way to the row as pods
    of the next lower priority see it, and each hold is placed once for all of them.
    """

    def __init__(self, books: Snapshot) -> None:
        self.all = HeldSnapshotBuilder(books).build()
        """With all holds taken."""
        self.version = -1
        """Of the holds."""
        self.holds: dict[int, tuple[Hold, ...]] = {}
        """By row, in the order in which they are placed."""
        self._states = RowStates(books)

    def place(
        self,
        offered: HeldSnapshotBuilder,
        row: int,
        take: Callable[[HeldSnapshotBuilder, int, Hold], None],
    ) -> None:
        """Take from the row, as it is in the books, what its holds take; keep its states."""
        self.forget(row)
        offered.reset(row)
        holds = self.holds[row]
        for number, hold in enumerate(holds):
            # It is placed again when the row changes, though nothing may fit now.
            offered.hold(row)
            take(offered, row, hold)
            priority = hold.pod.priority
            if number + 1 == len(holds) or holds[number + 1].pod.priority != priority:
                self._states.save(offered, row, priority)

    def forget(self, row: int) -> None:
        """Drop the states of the row."""
        self._states.forget(row)

    def seen_by(self, priority: int) -> HeldSnapshot:
        """Return the snapshot as pods of that priority see it that hold nothing themselves."""
        return self._states.offered_to(priority, self.all.base) or self.all


class Offers:
    """The offers of one managed resource. Any thread may ask.

    scorer_of: returns the scorer of a pod that holds something; raises WireError if there is none
    any more. charged: whether the books have charged the pod of a uid: then its hold takes nothing.
    """

    def __init__(
        self,
        holds: Holds,
        scorer_of: Callable[[Claimant], Scorer],
        charged: Callable[[str], bool],
    ) -> None:
        self._holds = holds
        self._charged = charged
        self._scorer_of = scorer_of
        self._lock = threading.Lock()
        self._placed: _PlacedHolds | None = None
        self._views: dict[int, HeldSnapshot] = {}
        """By priority, of the holds that are placed now."""

    def to(self, pod: Claimant, books: Snapshot, now: float) -> Snapshot:
        """Return what may be offered to the pod now: the books themselves if nothing is held."""
        holds = self._holds
        if not holds.expire(now):
            return books
        priorities = [priority for priority in holds.priorities() if priority >= pod.priority]
        common = self._common(min(priorities), books) if priorities else None
        outwaited = {hold.number: hold.node for hold in holds.outwaited(pod, now)}
        nodes = holds.nodes_of(pod) | set(outwaited.values())
        own = {node: books.row[node] for node in nodes if node in books.row}
        if not own:
            return common or books
        offered = HeldSnapshotBuilder(books, common)
        for node, row in own.items():
            offered.reset(row)
            for hold in _in_order(holds.on(node)):
                if counts_against(hold, pod) and hold.number not in outwaited:
                    offered.hold(row)
                    self._take(offered, row, hold)
        return offered.build()

    def look(
        self,
        pod: Claimant | None,
        request: Request,
        names: NodeNames,
        books: Callable[[], Snapshot],
        now: float,
    ) -> tuple[Snapshot, Judgement]:
        """Return what is offered to the pod now, and which of the named nodes fit. To a pod that is
        promised nothing (None) the books are offered as they are.
        """
        snapshot = books()
        if pod is None:
            return snapshot, judge(snapshot, names.rows(snapshot.row), request)
        seen = self.to(pod, snapshot, now)
        # A bind that was charged meanwhile is in neither: its hold takes nothing any more.
        while (newer := books()) is not snapshot:
            snapshot = newer
            seen = self.to(pod, snapshot, now)
        return seen, judge(seen, names.rows(seen.row), request)

    def _common(self, priority: int, books: Snapshot) -> HeldSnapshot:
        """Return what may be offered to pods of that priority that hold nothing themselves."""
        if not self._lock.acquire(blocking=False):
            # Another thread places holds. It may look into the books, so nobody waits for it.
            placed = _PlacedHolds(books)
            self._bring_up(placed, books)
            return placed.seen_by(priority)
        try:
            last, self._placed = self._placed, None
            if last is not None and last.all.capacity is books.capacity:
                placed = last
            else:
                # Of another layout: nodes have come, gone or changed, and rows mean other nodes.
                placed = _PlacedHolds(books)
            before = last and last.all
            self._bring_up(placed, books)
            self._placed = placed
            if placed.all is not before:
                self._views = {}
            view = self._views.get(priority)
            if view is None:
                view = self._views[priority] = placed.seen_by(priority)
                if len(self._views) > _MAX_VIEWS:
                    del self._views[next(iter(self._views))]
            return view
        finally:
            self._lock.release()

    def _bring_up(self, placed: _PlacedHolds, books: Snapshot) -> None:
        """Place the holds on rows whose holds, or whose state in the books, have changed."""
        version, changed = self._holds.changed_since(placed.version)
        if changed is None:
            known = {books.names[row] for row in placed.holds}
            changed = [*known.union(hold.node for hold in self._holds.live())]
        moved = {}
        for node in changed:
            row = books.row.get(node)
            if row is None:
                continue
            holds = _in_order(self._holds.on(node))
            # Most holds begin and end between two looks: their pods are bound at once.
            if holds != placed.holds.get(row, ()):
                moved[row] = holds
        if moved or placed.all.base is not books:
            offered = HeldSnapshotBuilder(books, placed.all)
            for row, holds in moved.items():
                if holds:
                    placed.holds[row] = holds
                else:
                    placed.holds.pop(row, None)
                    placed.forget(row)
                    offered.reset(row)
            for row in (offered.changed_rows | moved.keys()) & placed.holds.keys():
                placed.place(offered, row, self._take)
            placed.all = offered.build()
        placed.version = version

    def _take(self, offered: HeldSnapshotBuilder, row: int, hold: Hold) -> None:
        """Take from the row what the hold takes, if anything."""
        if self._charged(hold.pod.ref.uid):
            return
        if hold.reserved is not None:
            _take_free(offered, row, hold.reserved.shares, hold.pod.request)
            return
        # Without its policy its bind will be refused.
        with contextlib.suppress(WireError):
            take_best(offered, row, hold.pod.request, self._scorer_of(hold.pod))


def _in_order(holds: Iterable[Hold]) -> tuple[Hold, ...]:
    """Return the holds in the order in which they are placed."""
    return tuple(sorted(holds, key=lambda hold: (-hold.pod.priority, hold.number)))


def _take_free(offered: HeldSnapshotBuilder, row: int, planned: Shares, request: Request) -> None:
    """Take what the request needs of these devices, as far as it is free: a place that opens bit by
    bit is kept bit by bit.
    """
    shares: list[tuple[int, int]] = []
    percents = list(request.every_percent)
    for device, needed in planned:
        if device < offered.free.shape[1]:
            free = int(offered.free[row, device])
            units = free if request.alone else min(needed, free)
            if units > 0:
                shares.append((device, units))
                percents = [
                    min(percent, max(amount.whole - int(used[row, device]), 0))
                    for amount, percent, used in zip(
                        PERCENT_AMOUNTS, percents, offered.percents_used, strict=True
                    )
                ]
    if shares:
        offered.take(row, tuple(shares), replace(request, percents=percents_of(percents)))


def offers_of(managed: ManagedResource) -> Offers:
    """Return the offers of a managed resource, by its own rankings and books."""
    return Offers(
        managed.holds,
        lambda pod: managed.scorer(pod.request),
        lambda uid: managed.ledger.entry(uid) is not None,
    )


def held_places(holds: Holds, against: Claimant | None = None) -> tuple[HeldPlace, ...]:
    """Return the places kept from the pod `against`, or from any other pod; oldest first."""
    now = time.monotonic()
    holds.expire(now)
    since_epoch = time.time() - now
    outwaited = {hold.number for hold in holds.outwaited(against, now)} if against else set()
    return tuple(
        HeldPlace(
            hold.pod.ref,
            hold.node,
            hold.pod.request.units,
            hold.pod.request.devices,
            None if (end := holds.until(hold)) is None else since_epoch + end,
            hold.pod.request.percents,
            hold.pod.request.split,
        )
        for hold in holds.live()
        if (against is None or counts_against(hold, against)) and hold.number not in outwaited
    )
