"""What filter may offer: the books, less what is held for others; and what people are told of that.

Each hold takes the devices that the policy of its own pod likes best on its node, after those of
older holds; one that fits nowhere there takes nothing (the victims of a preemption are not gone
yet, or others were faster). What is held on a node is placed again only when the node or its holds
have changed, so a filter call costs the same with hundreds of holds as with none.

Tested in `tests/unit/extender/verbs/test_offers.py`, and what people are told in
`tests/unit/extender/tell/test_explainer.py`.
"""

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpushare.core.decide import Judgement, judge, judge_all, room_for, take_best
from gpushare.core.held_snapshot import HeldSnapshot
from gpushare.core.model import ALL_CORES, Reason, Request, Shares
from gpushare.core.node_names import NodeNames
from gpushare.core.ranking import Scorer
from gpushare.core.snapshot import Snapshot
from gpushare.errors import WireError
from gpushare.explain.pod import GroupNeed
from gpushare.extender.managed_resources import ManagedResource
from gpushare.extender.verbs.holds import Hold, Holds, counts_against
from gpushare.wire.groups import Claimant
from gpushare.wire.held import HeldPlace

_MAX_VIEWS = 8
"""Views kept, one for each priority among the holds that makes a difference."""


@dataclass(slots=True)
class _View:
    """What may be offered to pods of one priority that hold nothing."""

    offered: HeldSnapshot
    version: int = -1
    """Of the holds."""
    placed: dict[int, tuple[Hold, ...]] = field(default_factory=dict)
    """By row, the holds that are taken from it, of rows that ever had one: it is changed in place,
    never copied."""


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
        self._views: dict[int, _View] = {}

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
        offered = HeldSnapshot.of(books) if common is None else common.on(books)[0]
        for node, row in own.items():
            counting = [
                hold
                for hold in holds.on(node)
                if counts_against(hold, pod) and hold.number not in outwaited
            ]
            self._place(offered, row, counting)
        return offered

    def look(
        self,
        pod: Claimant | None,
        request: Request,
        names: NodeNames,
        books: Callable[[], Snapshot],
        now: float,
    ) -> tuple[Snapshot, Judgement]:
        """Return what is offered to the pod now, and which of the named nodes fit: none for a group
        that does not. To a pod that is promised nothing (None) the books are offered as they are.
        """
        snapshot = books()
        if pod is None:
            return snapshot, judge(snapshot, names.rows(snapshot.row), request)
        seen = self.to(pod, snapshot, now)
        # A bind that was charged meanwhile is in neither: its hold takes nothing any more.
        while (newer := books()) is not snapshot:
            snapshot = newer
            seen = self.to(pod, snapshot, now)
        needs = self._holds.missing(pod) if pod.group.whole else Counter()
        if needs.total() > 1 and any(room_for(seen, asks, n) < n for asks, n in needs.items()):
            return seen, judge_all(names, Reason.GROUP_TOO_LARGE)
        return seen, judge(seen, names.rows(seen.row), request)

    def _common(self, priority: int, books: Snapshot) -> HeldSnapshot:
        """Return what may be offered to pods of that priority that hold nothing themselves."""
        if not self._lock.acquire(blocking=False):
            # Another thread makes one. It may look into the books, so nobody waits for it.
            return self._brought_up(_View(HeldSnapshot.of(books)), priority, books)
        try:
            view = self._views.get(priority)
            if view is None or view.offered.capacity is not books.capacity:
                # Of another layout: nodes have come, gone or changed, and rows mean other nodes.
                view = _View(HeldSnapshot.of(books))
            offered = self._brought_up(view, priority, books)
            self._views[priority] = view
            if len(self._views) > _MAX_VIEWS:
                del self._views[next(iter(self._views))]
            return offered
        finally:
            self._lock.release()

    def _brought_up(self, view: _View, priority: int, books: Snapshot) -> HeldSnapshot:
        """Bring the view up to date with the holds and these books, and return what it offers."""
        version, changed = self._holds.changed_since(view.version)
        if changed is None:
            placed = {books.names[row] for row in view.placed}
            changed = [*placed.union(hold.node for hold in self._holds.live())]
        moved = {}
        for node in changed:
            row = books.row.get(node)
            if row is None:
                continue
            counting = tuple(
                hold
                for hold in self._holds.on(node)
                if not hold.lapsed and hold.pod.priority >= priority
            )
            # Most holds begin and end between two looks: their pods are bound at once.
            if counting != view.placed.get(row, ()):
                moved[row] = counting
        if moved or view.offered.base is not books:
            offered, again = view.offered.on(books)
            for row in again - moved.keys():
                self._place(offered, row, view.placed[row])
            for row, counting in moved.items():
                self._place(offered, row, counting)
            view.offered = offered
            view.placed |= moved
        view.version = version
        return view.offered

    def _place(self, offered: HeldSnapshot, row: int, holds: Sequence[Hold]) -> None:
        """Take from the row, as it is in the books, what these holds take, oldest first."""
        offered.reset(row)
        for hold in holds:
            # It is placed again when the row changes, though nothing may fit now.
            offered.hold(row)
            if self._charged(hold.pod.ref.uid):
                continue
            if hold.reserved is not None:
                _take_free(offered, row, hold.reserved.shares, hold.pod.request)
                continue
            # Without its policy its bind will be refused.
            with contextlib.suppress(WireError):
                take_best(offered, row, hold.pod.request, self._scorer_of(hold.pod))


def _take_free(offered: HeldSnapshot, row: int, planned: Shares, request: Request) -> None:
    """Take what the request needs of these devices, as far as it is free: a place that opens bit by
    bit is kept bit by bit.
    """
    shares, cores = [], request.cores
    for device, needed in planned:
        if device < offered.free.shape[1]:
            free = int(offered.free[row, device])
            units = free if request.alone else min(needed, free)
            if units > 0:
                shares.append((device, units))
                cores = min(cores, ALL_CORES - int(offered.cores_used[row, device]))
    if shares:
        offered.take(row, tuple(shares), replace(request, cores=max(cores, 0)))


def offers_of(managed: ManagedResource) -> Offers:
    """Return the offers of a managed resource, by its own rankings and books."""
    return Offers(
        managed.holds,
        lambda pod: managed.scorer(pod.request),
        lambda uid: managed.ledger.entry(uid) is not None,
    )


def group_need(offered: Snapshot, pod: Claimant, needs: Mapping[Request, int]) -> GroupNeed | None:
    """Return what the pod's group has no place for, of what `Holds.missing` says that it needs.

    offered: to this pod. None if it waits alone.
    """
    if sum(needs.values()) < 2:
        return None
    kinds = ((asks, needed, room_for(offered, asks, needed)) for asks, needed in needs.items())
    return GroupNeed(tuple(kinds), at_once=pod.group.size > 0)


def held_places(holds: Holds, against: Claimant | None = None) -> tuple[HeldPlace, ...]:
    """Return the places that are kept from the pod `against`, or from any other pod; oldest first.

    A hold that counts for its own group alone is kept from no other pod.
    """
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
            hold.pod.request.cores,
            hold.pod.request.split,
        )
        for hold in holds.live()
        if (counts_against(hold, against) if against else not hold.lapsed)
        and hold.number not in outwaited
    )
