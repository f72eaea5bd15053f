"""What filter keeps for which pod now, as people are told.

Tested in `tests/unit/extender/test_explainer.py`.
"""

import time

from gpushare.extender.holds import Claimant, Holds, counts_against
from gpushare.wire.held import HeldPlace


def held_places(holds: Holds, against: Claimant | None = None) -> tuple[HeldPlace, ...]:
    """Return the places that are kept from the pod `against`, or from any other pod; oldest first.

    A hold that counts for its own group alone is kept from no other pod.
    """
    now = time.monotonic()
    holds.expire(now)
    since_epoch = time.time() - now
    return tuple(
        HeldPlace(
            hold.pod.ref,
            hold.node,
            hold.pod.request.units,
            hold.pod.request.devices,
            None if (end := holds.until(hold)) is None else since_epoch + end,
        )
        for hold in holds.live()
        if (counts_against(hold, against) if against else not hold.lapsed)
    )
