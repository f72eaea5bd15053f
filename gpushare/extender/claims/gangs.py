"""Gangs: groups of pods whose claims are given out whole or not at all.

A gang says how many of its pods it needs at once. Its members are those that wait, and those that
the watch of all pods knows besides: they are bound, or have no claim.

What a gang has that cannot be completed is taken back, and what nobody uses. In two writes, as a
pod with all its devices may be bound at any moment: kube-scheduler writes nothing more to a claim
that is reserved for the pod. The first write takes the reservation. Who binds the pod after that
reserves anew; that changes the claim, and it stays. If nobody has within UNRESERVED seconds, the
second write, which demands the same version, takes the devices.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field

from gpushare.errors import WireError
from gpushare.extender.claims.books import ClaimBooks, claim_ref, version_of
from gpushare.wire.dra.claims import CLASS, claim_names, claim_request
from gpushare.wire.dra.objects import ClaimsPod, ResourceClaim
from gpushare.wire.dra.writes import release, withdrawal
from gpushare.wire.pods import Group, group_of, pod_ref

COMPLETED_WITHIN = 30.0
"""Seconds that a gang of which a part alone has devices comes before all other pods. After them its
pods that are on no node lose what they have."""
UNRESERVED = 20.0
"""Seconds that an allocation stays which is reserved for nobody. kube-scheduler, which reserves
before it binds, takes far less; a pod that waits at Permit waits for its gang."""
_EVERY = 5.0
"""Seconds between looks at all allocations."""


@dataclass(slots=True)
class Gang:
    """A gang of which at least one pod waits."""

    group: Group
    others: Set[str]
    """Its members that are bound or have no claim, by uid."""
    pods: list[ClaimsPod] = field(default_factory=list)
    """Its members that wait, with devices or without."""
    tried: bool = False
    """It was tried in this round."""

    def needed(self, with_devices: int) -> int:
        """Return how many pods have to get devices at once. with_devices: of those that wait."""
        return max(self.group.size - len(self.others) - with_devices, 0)

    def why_not_yet(self, needed: int, able: int, with_devices: int) -> str:
        """Return why it cannot be tried, with so many pods of those needed; "" if it can."""
        if needed <= able:
            return ""
        size, known = self.group.size, len(self.others) + len(self.pods)
        if known < size:
            return f"its group needs {size} pods at once: {known} are there"
        ready = len(self.others) + with_devices + able
        return f"its group needs {size} pods at once: {ready} have their claims"


class Gangs:
    """The gangs of each round, and since when a part of one alone has devices.

    others: returns the uids of a group's pods that are bound or have no claims, by the watch of all
    pods. The two watches do not keep step: who is on its way from one to the other is in none.
    """

    def __init__(self, others: Callable[[str], Set[str]], clock: Callable[[], float]) -> None:
        self._others = others
        self._clock = clock
        self.of: dict[str, Gang] = {}
        """By the uid of a pod that waits, its gang."""
        self._in_part: dict[str, float] = {}

    def look(self, pods: Mapping[str, ClaimsPod]) -> None:
        """Begin a round: these pods wait."""
        gangs: dict[str, Gang] = {}
        self.of = {}
        for uid, pod in pods.items():
            group = group_of(pod)
            if not group.whole:
                continue
            if group.key not in gangs:
                gangs[group.key] = Gang(group, self._others(group.key) - pods.keys())
            self.of[uid] = gang = gangs[group.key]
            if not (pod.metadata and pod.metadata.deletion_timestamp):
                gang.pods.append(pod)
        self._in_part = {key: at for key, at in self._in_part.items() if key in gangs}

    def note(self, gang: Gang, *, in_part: bool) -> None:
        """Note whether a part of it alone has devices."""
        if in_part:
            self._in_part.setdefault(gang.group.key, self._clock())
        else:
            self._in_part.pop(gang.group.key, None)

    def comes_first(self, gang: Gang | None) -> bool:
        """Return whether a part of it has devices, and the others come before all other pods."""
        if gang is None or gang.group.key not in self._in_part:
            return False
        return not self.is_overdue(gang)

    def is_overdue(self, gang: Gang) -> bool:
        """Return whether it has had a part alone for too long."""
        since = self._in_part.get(gang.group.key)
        return since is not None and self._clock() >= since + COMPLETED_WITHIN


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
