"""The pods of each group, as the API server shows them, and the places that a group still needs.

A launcher needs no device, its workers do. So this module counts the need of a group from the pods
of the group. Only pods that do not exist yet count like the pod of the filter call.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from gpushare.core.model import PodRef, Request
from gpushare.core.selectors import NO_DEMANDS, Demands

MOST_KINDS = 8
"""Kinds of request in one group that are looked at; each costs a look at all nodes."""

_NO_MEMBERS: Mapping[str, "Member"] = MappingProxyType({})


class Need(NamedTuple):
    """The place that a pod without a node needs."""

    resource: str
    """The managed resource."""
    request: Request
    """The kind of request, of `kind_of`."""
    demands: Demands = NO_DEMANDS
    has_volumes: bool = False
    """Whether the pod has volumes or claims: these may restrict the nodes."""


@dataclass(frozen=True, slots=True)
class Member:
    """A pod of a group that has not ended and is not marked deleted."""

    ref: PodRef
    is_bound: bool = False
    need: Need | None = None
    """None: the pod has a place, or needs no device."""
    priority: int = 0
    created: float = 0.0
    """Seconds since the epoch, 0 if unknown."""


class GroupMembers:
    """The members of all groups, by uid. For one thread at a time.

    A member that was bound, was not marked deleted, and is no longer shown has ended (Succeeded or
    Failed): the watch selects pods that have not. Ended members keep counting while another member
    of their group is bound. Members that ended before the first list are not known.
    """

    def __init__(self) -> None:
        self._groups: dict[str, dict[str, Member]] = {}
        self._group_of: dict[str, str] = {}
        self._ended: dict[str, set[str]] = {}
        self._bound_counts: Counter[str] = Counter()
        self._older: set[str] = set()

    def put(self, group_key: str, member: Member) -> None:
        """Add or replace a pod of the group; `group_key` is not ""."""
        uid = member.ref.uid
        if uid in self._group_of:
            self._take_out(uid)
        self._group_of[uid] = group_key
        self._groups.setdefault(group_key, {})[uid] = member
        self._bound_counts[group_key] += member.is_bound
        if group_key in self._ended:
            self._ended[group_key].discard(uid)

    def __contains__(self, uid: str) -> bool:
        return uid in self._group_of

    def group_of(self, uid: str) -> str:
        """Return the key of the pod's group; "" if the pod is no member of any group."""
        return self._group_of.get(uid, "")

    def remove(self, uid: str, *, deleted: bool) -> None:
        """Forget a pod. deleted: the pod is marked deleted; else a bound pod has ended."""
        group_key = self._group_of.get(uid)
        if group_key is None:
            return
        member = self._take_out(uid)
        if member.is_bound and not deleted:
            self._ended.setdefault(group_key, set()).add(uid)
        if not self._bound_counts[group_key]:
            # The name of the group is used again, or all pods of the group are recreated.
            self._ended.pop(group_key, None)
            self._older.discard(group_key)

    def keep(self, uids: Collection[str]) -> None:
        """Forget all pods but these."""
        for uid in [uid for uid in self._group_of if uid not in uids]:
            self.remove(uid, deleted=False)

    def note_first_list(self) -> None:
        """Note that the first list is over: of groups with bound members some may have ended."""
        self._older = {key for key, count in self._bound_counts.items() if count}

    def of(self, group_key: str) -> Mapping[str, Member]:
        """Return the members of the group by uid; valid until the next change."""
        return self._groups.get(group_key, _NO_MEMBERS)

    def bound_count(self, group_key: str) -> int:
        """Return how many members are bound or have ended."""
        return self._bound_counts[group_key] + len(self._ended.get(group_key, ()))

    def may_have_ended(self, group_key: str) -> bool:
        """Return whether members may have ended before the first list, and one is still bound."""
        return group_key in self._older

    def needs(
        self, uid: str, need: Need, group_key: str, size: int, uids_with_place: Set[str]
    ) -> Counter[Request]:
        """Return the number of places that the group lacks, by request; first that of this pod.

        Members with other demands on nodes than this pod, or with volumes, do not count:
        kube-scheduler offers other nodes to them. uids_with_place: unbound members at the gate,
        with a Binding under way, or with a hold. A member that does not exist yet counts like this
        pod. Pending members count up to the size of the group, the smallest first.
        """
        members = self.of(group_key)
        pending_needs = [
            member.need
            for other, member in members.items()
            if member.need is not None
            and not member.is_bound
            and other != uid
            and other not in uids_with_place
        ]
        existing = len(members.keys() | uids_with_place | {uid}) + len(
            self._ended.get(group_key, ())
        )
        unknown = max(size - existing, 0)
        lacking = max(size - (existing - 1 - len(pending_needs)) - 1 - unknown, 0)
        smallest = sorted(pending_needs, key=lambda other: other.request.total)[:lacking]
        needed = Counter({need.request: 1 + unknown})
        needed.update(
            other.request
            for other in smallest
            if (other.resource, other.demands) == (need.resource, need.demands)
            and not other.has_volumes
        )
        kinds = list(needed)[:MOST_KINDS]
        return Counter({kind: needed[kind] for kind in kinds})

    def _take_out(self, uid: str) -> Member:
        group_key = self._group_of.pop(uid)
        members = self._groups[group_key]
        member = members.pop(uid)
        self._bound_counts[group_key] -= member.is_bound
        if not members:
            del self._groups[group_key]
        if not self._bound_counts[group_key]:
            del self._bound_counts[group_key]
        return member


def kind_of(request: Request) -> Request:
    """Return the part of the request that decides on the devices where the pod fits."""
    units, devices, _, _, models, percents, cards, split, _ = request.kind
    return Request(
        units,
        devices,
        models=models,
        percents=percents,
        cards=cards,
        split=split,
        apart=request.apart,
    )
