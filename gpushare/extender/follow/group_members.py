"""The pods of each group, as the API server shows them, and what a group still needs.

Not every member needs a device, and not all need the same: a launcher has none, workers have. So
what a group needs is counted from its pods, and only those that are not there yet are taken to be
like the one that asks.

Tested in `tests/unit/extender/follow/test_group_members.py`.
"""

from collections import Counter
from collections.abc import Collection, Set

from gpushare.core.model import Request

MOST_KINDS = 8
"""Kinds of request in one group that are looked at; each costs a look at all nodes."""


class GroupMembers:
    """The members of all groups, by uid. For one thread at a time.

    What a member that waits asks for; None: it has its place, or asks for no device here.
    """

    def __init__(self) -> None:
        self._groups: dict[str, dict[str, Request | None]] = {}
        self._group_of: dict[str, str] = {}
        self._by_claim: set[str] = set()

    def put(self, uid: str, group: str, request: Request | None, *, by_claim: bool = False) -> None:
        """Take over a pod of the group, which is a key, not "". by_claim: it waits for claims."""
        if self._group_of.get(uid, group) != group:
            self.remove(uid)
        self._group_of[uid] = group
        (self._by_claim.add if by_claim else self._by_claim.discard)(uid)
        self._groups.setdefault(group, {})[uid] = None if request is None else kind_of(request)

    def __contains__(self, uid: str) -> bool:
        return uid in self._group_of

    def remove(self, uid: str) -> None:
        """Forget a pod that is gone."""
        group = self._group_of.pop(uid, None)
        self._by_claim.discard(uid)
        if group is not None:
            members = self._groups[group]
            del members[uid]
            if not members:
                del self._groups[group]

    def keep(self, uids: Collection[str]) -> None:
        """Forget all pods but these."""
        for uid in [uid for uid in self._group_of if uid not in uids]:
            self.remove(uid)

    def without_claims(self, group: str) -> Set[str]:
        """Return the members of the group that do not wait for claims."""
        return self._groups.get(group, {}).keys() - self._by_claim

    def among(self, group: str, uids: Set[str]) -> Set[str]:
        """Return which of these are members of the group."""
        return {uid for uid in self._groups.get(group, ()) if uid in uids}

    def needs(
        self, uid: str, request: Request, group: str, size: int, placed: Set[str]
    ) -> Counter[Request]:
        """Return how many places of each kind the group needs for this pod to start, its own first.

        size: how many pods the group needs at once; 0: not known, then each that waits counts.
        placed: its other members that hold something or are being bound. Members that are not there
        yet count as this one. Of others that wait, no more count than are needed, the smallest
        ones.
        """
        members = self._groups.get(group, {})
        waiting = [
            asks
            for other, asks in members.items()
            if asks is not None and other != uid and other not in placed
        ]
        needed = Counter({kind_of(request): 1})
        if size:
            seen = len(members.keys() | placed | {uid})
            unknown = max(size - seen, 0)
            needed[kind_of(request)] += unknown
            have_places = seen - 1 - len(waiting)
            lacking = max(size - have_places - 1 - unknown, 0)
            waiting = sorted(waiting, key=lambda asks: asks.total)[:lacking]
        needed.update(waiting)
        kinds = list(needed)[:MOST_KINDS]
        return Counter({kind: needed[kind] for kind in kinds})


def kind_of(request: Request) -> Request:
    """Return what of the request says on which devices it fits."""
    units, devices, _, _, models, cores, cards, split = request.kind
    return Request(units, devices, models=models, cores=cores, cards=cards, split=split)
