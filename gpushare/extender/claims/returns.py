"""Takes back devices that nobody uses: of gangs that cannot be completed, and whose are nobody's.

In two writes, as a pod with all its devices may be bound at any moment: kube-scheduler writes
nothing more to a claim that is reserved for the pod. The first write takes the reservation. Who
binds the pod after that reserves anew; that changes the claim, and it stays. If nobody has within
UNRESERVED seconds, the second write, which demands the same version, takes the devices.

Tested in `tests/unit/extender/claims/test_gangs.py`.
"""

import math
from collections.abc import Callable, Iterable

from gpushare.errors import WireError
from gpushare.extender.claims.books import ClaimBooks, claim_ref, version_of
from gpushare.wire.dra.claims import CLASS, claim_names, claim_request
from gpushare.wire.dra.objects import ClaimsPod, ResourceClaim
from gpushare.wire.dra.writes import release, withdrawal
from gpushare.wire.pods import pod_ref

UNRESERVED = 20.0
"""Seconds that an allocation stays which is reserved for nobody. kube-scheduler, which reserves
before it binds, takes far less; a pod that waits at Permit waits for its gang."""
_EVERY = 5.0
"""Seconds between looks at all allocations."""


class Returns:
    """What is to be taken back.

    write: sends a patch of the status of the claim, if it may be sent now.
    """

    def __init__(
        self,
        books: ClaimBooks,
        write: Callable[[ResourceClaim, bytes], object],
        clock: Callable[[], float],
    ) -> None:
        self._books = books
        self._write = write
        self._clock = clock
        self._since: dict[tuple[str, int], float] = {}
        self._due = -math.inf

    def withdraw(self, pods: Iterable[ClaimsPod]) -> None:
        """Take the reservations of pods on no node from claims that nobody else has reserved."""
        for pod in pods:
            ref = pod_ref(pod)
            for name in claim_names(pod) or ():
                claim = self._books.named(ref.namespace, name)
                holders = [each.uid for each in claim.reserved] if claim else []
                if claim is not None and holders == [ref.uid] and _is_ours(claim):
                    self._write(claim, withdrawal(claim))

    def sweep(self) -> None:
        """Take back what nobody has reserved for long enough."""
        now = self._clock()
        if now < self._due:
            return
        self._due = now + _EVERY
        free = {
            (claim_ref(claim).uid, version_of(claim)): claim
            for claim in self._books.allocated()
            if not claim.reserved and _is_ours(claim)
        }
        self._since = {key: self._since.get(key, now) for key in free}
        for key, since in self._since.items():
            if now >= since + UNRESERVED:
                self._write(free[key], release(free[key]))


def _is_ours(claim: ResourceClaim) -> bool:
    try:
        return claim_request(claim, CLASS) is not None
    except WireError:
        return False
