"""The room that filter may offer: the books less the holds of other pods; and the list of holds.

A hold takes the devices of the node that the policy of the holding pod scores highest, after holds
of a higher priority and older holds of the same priority. A hold that fits nowhere on its node
takes nothing: the victims of a preemption have not ended, or other pods were faster. The holds of a
node are placed again only when the node or its holds have changed, so a filter call with thousands
of holds costs about as much as without holds.

Tested in `tests/unit/extender/verbs/test_offers.py`; the list of holds in
`tests/unit/extender/tell/test_explainer.py`.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace

from gpushare.core.amounts import PERCENT_AMOUNTS, beside_memory, charged_units
from gpushare.core.decide import Judgement, judge, take_best
from gpushare.core.held_snapshot import Held, HeldSnapshot, HeldSnapshotBuilder, RowStates
from gpushare.core.model import Request, Shares
from gpushare.core.node_names import NodeNames
from gpushare.core.ranking import Scorer
from gpushare.core.snapshot import Snapshot
from gpushare.core.spare_arrays import SpareArrays
from gpushare.errors import WireError
from gpushare.extender.managed_resources import ManagedResource
from gpushare.extender.verbs.holds import Hold, Holds, counts_against
from gpushare.wire.held import HeldPlace
from gpushare.wire.pods import Claimant

_MAX_VIEWS = 8
"""Upper bound of the cached snapshots, one per priority; others are made of the placed rows."""


class _PlacedHolds:
    """The rows with holds, each with its state after the holds of each priority.

    The holds of a row are placed in one order: the highest priority first, and of equal priorities
    the oldest. So the state of a row for pods of one priority is a step towards the state for pods
    of the next lower priority, and each hold is placed once for all priorities.
    """

    def __init__(self, books: Snapshot) -> None:
        self.all = HeldSnapshotBuilder(books).build()
        """The books less all holds."""
        self.spares = SpareArrays[Held]()
        self.version = -1
        """The version of the holds."""
        self.holds: dict[int, tuple[Hold, ...]] = {}
        """By row, in the order of placing."""
        self.states = RowStates(books)

    def place(
        self,
        builder: HeldSnapshotBuilder,
        row: int,
        take: Callable[[HeldSnapshotBuilder, int, Hold], None],
    ) -> None:
        """Place the holds of the row, beginning with the row as in the books; keep the states."""
        self.states.forget(row)
        builder.reset(row)
        holds = self.holds[row]
        for number, hold in enumerate(holds):
            # The row differs from the books even if the hold takes nothing now.
            builder.hold(row)
            take(builder, row, hold)
            priority = hold.pod.priority
            if number + 1 == len(holds) or holds[number + 1].pod.priority != priority:
                self.states.save(builder, row, priority)

    def seen_by(self, priority: int) -> HeldSnapshot:
        """Return the snapshot for pods of that priority without holds."""
        return self.states.offered_to(priority, self.all.base) or self.all


class Offers:
    """The offers of one managed resource. Any thread may call any method.

    scorer_of: returns the scorer of a pod with a hold; raises WireError if the policy is gone.
    is_charged: returns whether the books charge the pod of a uid: then its hold takes nothing.
    """

    def __init__(
        self,
        holds: Holds,
        scorer_of: Callable[[Claimant], Scorer],
        is_charged: Callable[[str], bool],
    ) -> None:
        self._holds = holds
        self._charged = is_charged
        self._scorer_of = scorer_of
        self._lock = threading.Lock()
        self._placed: _PlacedHolds | None = None
        self._views: dict[int, HeldSnapshot] = {}
        """By priority, of the placed holds."""

    def to(self, pod: Claimant, books: Snapshot, now: float) -> Snapshot:
        """Return the books less the holds of other pods; the books themselves without holds."""
        holds = self._holds
        if not holds.expire(now):
            return books
        priorities = [priority for priority in holds.priorities() if priority >= pod.priority]
        common = self._common(min(priorities), books) if priorities else None
        ignored = {hold.number: hold.node for hold in holds.ignored_by(pod, now)}
        nodes = holds.nodes_of(pod) | set(ignored.values())
        own_rows = {node: books.row[node] for node in nodes if node in books.row}
        if not own_rows:
            return common or books
        builder = HeldSnapshotBuilder(books, common)
        for node, row in own_rows.items():
            builder.reset(row)
            for hold in _in_order(holds.on(node)):
                if counts_against(hold, pod) and hold.number not in ignored:
                    builder.hold(row)
                    self._take(builder, row, hold)
        return builder.build()

    def look(
        self,
        pod: Claimant,
        request: Request,
        names: NodeNames,
        books: Callable[[], Snapshot],
        now: float,
    ) -> tuple[Snapshot, Judgement]:
        """Return the snapshot that is offered to the pod, and the judgement of the named nodes.

        books: returns the latest snapshot of the ledger.
        """
        snapshot = books()
        offer = self.to(pod, snapshot, now)
        # A bind that was charged meanwhile is missing in the old books, and its hold takes nothing
        # any more.
        while (newer := books()) is not snapshot:
            snapshot = newer
            offer = self.to(pod, snapshot, now)
        return offer, judge(offer, names.rows(offer.row), request)

    def _common(self, priority: int, books: Snapshot) -> HeldSnapshot:
        """Return the snapshot that is offered to pods of that priority without holds."""
        if not self._lock.acquire(blocking=False):
            # Another thread places holds, and may need the ledger's lock: do not wait for it.
            holder = _PlacedHolds(books)
            self._bring_up(holder, books)
            return holder.seen_by(priority)
        try:
            last, self._placed = self._placed, None
            if last is not None and last.all.capacity is books.capacity:
                holder = last
            else:
                # The layout has changed: rows may mean other nodes.
                holder = _PlacedHolds(books)
            before = last and last.all
            self._bring_up(holder, books)
            self._placed = holder
            if holder.all is not before:
                self._views = {}
            view = self._views.get(priority)
            if view is None:
                view = self._views[priority] = holder.seen_by(priority)
                if len(self._views) > _MAX_VIEWS:
                    del self._views[next(iter(self._views))]
            return view
        finally:
            self._lock.release()

    def _bring_up(self, holder: _PlacedHolds, books: Snapshot) -> None:
        """Place the holds again on rows that have changed in the holds or in the books."""
        version, nodes = self._holds.changed_since(holder.version)
        if nodes is None:
            held_nodes = {books.names[row] for row in holder.holds}
            nodes = [*held_nodes.union(hold.node for hold in self._holds.live())]
        new_holds = {}
        for node in nodes:
            row = books.row.get(node)
            if row is None:
                continue
            holds = _in_order(self._holds.on(node))
            # Most holds begin and end between two calls, since most pods are bound at once.
            if holds != holder.holds.get(row, ()):
                new_holds[row] = holds
        if new_holds or holder.all.base is not books:
            builder = HeldSnapshotBuilder(books, holder.all, holder.spares)
            for row, holds in new_holds.items():
                if holds:
                    holder.holds[row] = holds
                else:
                    holder.holds.pop(row, None)
                    holder.states.forget(row)
                    builder.reset(row)
            for row in (builder.changed_rows | new_holds.keys()) & holder.holds.keys():
                holder.place(builder, row, self._take)
            holder.all = builder.build()
        holder.version = version

    def _take(self, builder: HeldSnapshotBuilder, row: int, hold: Hold) -> None:
        """Take the devices of the hold from the row, if the hold fits."""
        if self._charged(hold.pod.ref.uid):
            return
        if hold.reserved is not None:
            _take_free(builder, row, hold.reserved.shares, hold.pod.request)
            return
        # The policy of the pod is gone: bind will refuse the pod.
        with contextlib.suppress(WireError):
            take_best(builder, row, hold.pod.request, self._scorer_of(hold.pod))


def _in_order(holds: Iterable[Hold]) -> tuple[Hold, ...]:
    """Return the holds in the order of placing."""
    return tuple(sorted(holds, key=lambda hold: (-hold.pod.priority, hold.number)))


def _take_free(builder: HeldSnapshotBuilder, row: int, planned: Shares, request: Request) -> None:
    """Take the free part of the planned units: a place that opens bit by bit is held bit by bit."""
    shares: list[tuple[int, int]] = []
    capacity = builder.base.capacity[row].tolist()
    percents = list(request.every_percent)
    for device, needed in planned:
        if device < builder.free.shape[1]:
            free = int(builder.free[row, device])
            charged = charged_units(needed, request.percents, capacity[device])
            units = free if request.alone else min(charged, free)
            if units > 0:
                shares.append((device, units))
                percents = [
                    min(percent, max(amount.whole - int(used[row, device]), 0))
                    for amount, percent, used in zip(
                        PERCENT_AMOUNTS, percents, builder.percents_used, strict=True
                    )
                ]
    if shares:
        # The units are those of the percents already.
        others = beside_memory(tuple(percents))
        builder.take(row, tuple(shares), replace(request, percents=others))


def offers_of(resource: ManagedResource) -> Offers:
    """Return the offers of a managed resource, by the rankings and books of the resource."""
    return Offers(
        resource.holds,
        lambda pod: resource.scorer(pod.request),
        lambda uid: resource.ledger.entry(uid) is not None,
    )


def held_place(holds: Holds, hold: Hold) -> HeldPlace:
    """Return the hold as documents have it."""
    since_epoch, request = time.time() - time.monotonic(), hold.pod.request
    end = holds.until(hold)
    return HeldPlace(
        pod=hold.pod.ref,
        node=hold.node,
        units=request.units,
        devices=request.devices,
        until=None if end is None else since_epoch + end,
        percents=request.percents,
        split=request.split,
        reserved_since=None if hold.opens_at is None else since_epoch + hold.since,
    )


def held_places(holds: Holds, against: Claimant | None = None) -> tuple[HeldPlace, ...]:
    """Return the holds that count against a pod, oldest first; without a pod all holds."""
    now = time.monotonic()
    holds.expire(now)
    ignored = {hold.number for hold in holds.ignored_by(against, now)} if against else set()
    return tuple(
        held_place(holds, hold)
        for hold in holds.live()
        if (against is None or counts_against(hold, against)) and hold.number not in ignored
    )
