"""What filter keeps for which pod now, and what a group has no place for, as people are told.

Tested in `tests/unit/extender/tell/test_explainer.py`.
"""

import time
from collections.abc import Mapping

from gpushare.core.decide import room_for
from gpushare.core.model import Request
from gpushare.core.snapshot import Snapshot
from gpushare.explain.pod import GroupNeed
from gpushare.extender.verbs.claimant import Claimant
from gpushare.extender.verbs.holds import Holds, counts_against
from gpushare.wire.held import HeldPlace


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
        )
        for hold in holds.live()
        if (counts_against(hold, against) if against else not hold.lapsed)
        and hold.number not in outwaited
    )
