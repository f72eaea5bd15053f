"""Whether a group fits whole, as filter sees it; and places that worse groups have to give back.

Only an optimization: the gate at bind (bind/gate.py) keeps groups whole without it. A group that
does not fit whole is refused before places are charged for it. Each group is looked at once, and
again when it was refused and the books have changed since.

Tested in `tests/unit/extender/verbs/test_offers.py` and `tests/simulation/test_gate_story.py`.
"""

import threading
from collections import Counter
from collections.abc import Callable, Mapping
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
from gpushare.extender.verbs.bind.gate import Gate
from gpushare.wire.groups import Claimant

_MOST_GROUPS = 1_000
"""Groups of which the last look is kept."""

Version = tuple[int, int, int, int]
"""The generation of the books, the versions of the holds and of the gate, and a hash of the rows of
the nodes that kube-scheduler offers: the rows of 5,000 nodes take 40 KB."""


class _Look(NamedTuple):
    """The last look at a group."""

    fits: bool
    version: Version
    """A group that does not fit is looked at again once this has changed."""
    until: float
    """When a group that fits is looked at again."""
    ended_waits: int
    """Waits at the gate that had ended; a group that fits is looked at again after the next."""


class GroupRoom:
    """Answers for the groups of one managed resource. Any thread may ask.

    open_gate: carries out at once what the gate has decided.
    """

    def __init__(self, managed: ManagedResource, gate: Gate, open_gate: Callable[[], None]) -> None:
        self._managed = managed
        self._gate = gate
        self._open_gate = open_gate
        self._lock = threading.Lock()
        self._looks: dict[str, _Look] = {}

    def fits(
        self, pod: Claimant, demands: Callable[[], Demands], seen: Snapshot, rows: Rows, now: float
    ) -> bool:
        """Return whether the pod's group fits whole.

        demands: returns what the pod demands of nodes. seen: as it is offered to the pod. rows:
        intp (K,), the nodes that kube-scheduler offers, -1 for an unknown one. True for a pod whose
        group does not have to wait at the gate, or whose volumes restrict its nodes.
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
        version = seen.generation, holds, gate, hash(rows.tobytes())
        if look is not None and not look.fits and version == look.version:
            return False
        needs = self.needs(pod, demands())
        fits = all(room_for(seen, asks, count, rows) >= count for asks, count in needs.items())
        with self._lock:
            self._looks.pop(pod.group.key, None)
            self._looks[pod.group.key] = _Look(fits, version, now + self._gate.wait, ended)
            if len(self._looks) > _MOST_GROUPS:
                del self._looks[next(iter(self._looks))]
        return fits

    def forget_fitting(self, pod: Claimant) -> None:
        """Look at the pod's group again if it was found to fit: one of its pods has no place."""
        with self._lock:
            look = self._looks.get(pod.group.key)
            if look is not None and look.fits:
                del self._looks[pod.group.key]

    def needs(self, pod: Claimant, demands: Demands) -> Counter[Request]:
        """Return the places that the pod's group lacks, by request; empty if it is no gang."""
        return group_needs(self._managed, self._gate, pod, demands)

    def make_room(
        self, pod: Claimant, demands: Callable[[], Demands], seen: Snapshot, rows: Rows
    ) -> bool:
        """End the waits of worse groups at the gate, if the pod's group fits whole then; return
        whether any has ended. The worst one yields first, and no more than necessary.
        """
        if not self._gate.holds_back(pod.group):
            return False
        rivals = self._gate.rivals(pod.group, self._managed.names.resource)
        if not rivals:
            return False
        needs = self.needs(pod, demands()) or Counter({kind_of(pod.request): 1})
        rows = rows[rows >= 0]
        if isinstance(seen, HeldSnapshot):
            freed = HeldSnapshotBuilder(seen.base, seen)
        else:
            freed = HeldSnapshotBuilder(seen)
        for number, (_, arrivals) in enumerate(rivals, 1):
            for arrival in arrivals:
                entry = self._managed.ledger.entry(arrival.ref.uid)
                row = seen.row.get(arrival.node)
                if entry is None or entry.phase is not Phase.AT_GATE or row is None:
                    continue
                freed.give(row, entry.placement or (), entry.request)
            draft = freed.draft()
            if all(room_for(draft, asks, count, rows) >= count for asks, count in needs.items()):
                self._gate.yield_to(pod.group, [key for key, _ in rivals[:number]])
                self._open_gate()
                return True
        return False


def group_needs(
    managed: ManagedResource, gate: Gate, pod: Claimant, demands: Demands
) -> Counter[Request]:
    """Return the places that the pod's group lacks, by request, that of the pod first.

    demands: of the pod. Empty if the group does not have to wait at the gate.
    """
    need = Need(managed.names.resource, kind_of(pod.request), demands, pod.waits)
    return gate.needs(pod.ref.uid, pod.group, need, managed.holds)


def group_need(
    offered: Snapshot, needs: Mapping[Request, int], rows: Rows | None = None
) -> GroupNeed | None:
    """Return which of the places that a group lacks there are; None if it lacks one at most.

    offered: to a pod of the group. rows: intp (K,), the nodes that count; None: all.
    """
    if sum(needs.values()) < 2:
        return None
    rows = None if rows is None else rows[rows >= 0]
    kinds = ((asks, count, room_for(offered, asks, count, rows)) for asks, count in needs.items())
    return GroupNeed(tuple(kinds), at_once=True)
