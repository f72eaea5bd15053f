"""Whether a group fits whole in filter, and which groups at the gate yield their places.

Only an optimization: the gate at bind (bind/gate.py) keeps groups whole without this module. Filter
refuses a group that does not fit whole before any place is charged for the group. The result is
kept per group, and computed again for a refused group once the books have changed.

Tested in `tests/unit/extender/verbs/test_group_room.py`, in `test_offers.py` beside it, and in
`tests/simulation/test_gate_story.py`.
"""

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from gpushare.core.decide import room_for
from gpushare.core.held_snapshot import HeldSnapshot, HeldSnapshotBuilder
from gpushare.core.model import Request
from gpushare.core.selectors import Demands
from gpushare.core.snapshot import Rows, Snapshot
from gpushare.core.states.entry import Phase
from gpushare.explain.pod import GroupNeed
from gpushare.extender.follow.group_members import Need, kind_of
from gpushare.extender.managed_resources import ManagedResource
from gpushare.extender.verbs.bind.gate import Arrival, Gate
from gpushare.wire.pods import Claimant

_MAX_GROUPS = 1_000
"""Upper bound of the groups with a kept result."""

Version = tuple[int, int, int, int]
"""The generation of the books, the versions of the holds and of the gate, and a hash of the rows of
the named nodes: the rows of 5,000 nodes take 40 KB."""


class _GroupLook(NamedTuple):
    """The kept result of a group."""

    fits: bool
    version: Version
    """A group that does not fit is computed again once the version has changed."""
    until: float
    """When a group that fits is computed again."""
    ended_waits: int
    """The number of ended waits at the gate; a group that fits is computed again when it rises."""


class GroupRoom:
    """The groups of one managed resource. Any thread may call any method.

    open_gate: carries out the verdicts of the gate at once.
    """

    def __init__(
        self, resource: ManagedResource, gate: Gate, open_gate: Callable[[], None]
    ) -> None:
        self._managed = resource
        self._gate = gate
        self._open_gate = open_gate
        self._lock = threading.Lock()
        self._looks: dict[str, _GroupLook] = {}

    def fits(
        self,
        pod: Claimant,
        demands: Callable[[], Demands],
        snapshot: Snapshot,
        rows: Rows,
        now: float,
    ) -> bool:
        """Return whether the pod's group fits whole.

        demands: returns the demands of the pod on nodes. snapshot: the books less the holds of
        other pods. rows: intp (K,), the rows of the named nodes, -1 for an unknown node. True also
        if the group does not have to wait at the gate, or if volumes restrict the pod's nodes.
        """
        if pod.waits or not self._gate.holds_back(pod.group):
            return True
        with self._lock:
            look = self._looks.get(pod.group.key)
        ended = self._gate.ended_waits
        if look is not None and look.fits and now < look.until and ended == look.ended_waits:
            return True
        rows = rows[rows >= 0]
        rows.sort()
        holds, gate = self._managed.holds.version, self._gate.version
        version = snapshot.generation, holds, gate, hash(rows.tobytes())
        if look is not None and not look.fits and version == look.version:
            return False
        needs = self.needs(pod, demands())
        fits = all(room_for(snapshot, asks, count, rows) >= count for asks, count in needs.items())
        with self._lock:
            self._looks.pop(pod.group.key, None)
            self._looks[pod.group.key] = _GroupLook(fits, version, now + self._gate.wait, ended)
            if len(self._looks) > _MAX_GROUPS:
                del self._looks[next(iter(self._looks))]
        return fits

    def forget_fitting(self, pod: Claimant) -> None:
        """Drop the result that the pod's group fits: a pod of the group has found no node."""
        with self._lock:
            look = self._looks.get(pod.group.key)
            if look is not None and look.fits:
                del self._looks[pod.group.key]

    def needs(self, pod: Claimant, demands: Demands) -> Counter[Request]:
        """Return the places that the pod's group lacks, by request; empty for no gang."""
        return group_needs(self._managed, self._gate, pod, demands)

    def make_room(
        self, pod: Claimant, demands: Callable[[], Demands], snapshot: Snapshot, rows: Rows
    ) -> bool:
        """End the waits of worse groups at the gate if the pod's group then fits whole; return
        whether a wait has ended. The worst group yields first, and no more groups than necessary.
        """
        if not self._gate.holds_back(pod.group):
            return False
        rivals = self._gate.rivals(pod.group, self._managed.names.resource)
        if not rivals:
            return False
        needs = self.needs(pod, demands()) or Counter({kind_of(pod.request): 1})
        rows = rows[rows >= 0]

        def fits(number: int) -> bool:
            draft = self._without(snapshot, rivals[:number])
            return all(room_for(draft, asks, count, rows) >= count for asks, count in needs.items())

        # Most often no number is enough, and there may be a thousand groups.
        if not fits(len(rivals)):
            return False
        number = 1 + bisect_left(range(1, len(rivals)), True, key=fits)
        self._gate.yield_to(pod.group, [key for key, _ in rivals[:number]])
        self._open_gate()
        return True

    def _without(
        self, snapshot: Snapshot, groups: Iterable[tuple[str, Iterable[Arrival]]]
    ) -> HeldSnapshot:
        """Return the snapshot less the charges of these groups at the gate."""
        if isinstance(snapshot, HeldSnapshot):
            freed = HeldSnapshotBuilder(snapshot.base, snapshot)
        else:
            freed = HeldSnapshotBuilder(snapshot)
        for _, arrivals in groups:
            for arrival in arrivals:
                entry = self._managed.ledger.entry(arrival.ref.uid)
                row = snapshot.row.get(arrival.node)
                if entry is not None and entry.phase is Phase.AT_GATE and row is not None:
                    freed.give(row, entry.placement or (), entry.request)
        return freed.draft()


def group_needs(
    resource: ManagedResource, gate: Gate, pod: Claimant, demands: Demands
) -> Counter[Request]:
    """Return the places that the pod's group lacks, by request, the pod's request first.

    demands: of the pod. Empty if the group does not have to wait at the gate.
    """
    need = Need(resource.names.resource, kind_of(pod.request), demands, pod.waits)
    return gate.needs(pod.ref.uid, pod.group, need, resource.holds)


def group_need(
    snapshot: Snapshot, needs: Mapping[Request, int], rows: Rows | None = None
) -> GroupNeed | None:
    """Return, by request, the places that a group lacks and the places that exist; None if the
    group lacks one place at most.

    snapshot: the books less the holds of other groups. rows: intp (K,), the rows to count; None:
    all rows.
    """
    if sum(needs.values()) < 2:
        return None
    rows = None if rows is None else rows[rows >= 0]
    kinds = ((asks, count, room_for(snapshot, asks, count, rows)) for asks, count in needs.items())
    return GroupNeed(tuple(kinds), at_once=True)
