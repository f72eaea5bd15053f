"""Gangs: groups of pods whose claims are given out whole or not at all.

A gang says how many of its pods it needs at once. Its members are those that wait, and those that
the watch of all pods knows besides: they are bound, or have no claim.

Tested in `tests/unit/extender/claims/test_gangs.py`.
"""

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field

from gpushare.wire.dra.objects import ClaimsPod
from gpushare.wire.pods import Group, group_of

COMPLETED_WITHIN = 30.0
"""Seconds that a gang of which a part alone has devices comes before all other pods. After them its
pods that are on no node lose what they have."""


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
        self._of: dict[str, Gang] = {}
        self._in_part: dict[str, float] = {}

    def look(self, pods: Mapping[str, ClaimsPod]) -> None:
        """Begin a round: these pods wait."""
        gangs: dict[str, Gang] = {}
        self._of = {}
        for uid, pod in pods.items():
            group = group_of(pod)
            if not group.whole:
                continue
            if group.key not in gangs:
                gangs[group.key] = Gang(group, self._others(group.key) - pods.keys())
            self._of[uid] = gang = gangs[group.key]
            if not (pod.metadata and pod.metadata.deletion_timestamp):
                gang.pods.append(pod)
        self._in_part = {key: at for key, at in self._in_part.items() if key in gangs}

    def of(self, uid: str) -> Gang | None:
        """Return the gang of a pod that waits."""
        return self._of.get(uid)

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
