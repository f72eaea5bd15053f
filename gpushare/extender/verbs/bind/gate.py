"""The gate at bind: the pods of a group pass together, or no pod passes.

A member of a group arrives charged, before its Binding is sent, and waits. When as many members as
the group needs at once are bound, sent or waiting, all waiting members pass. They turn back when
the time is over, when a competing group needs the places, when this process stops or no longer
leads; a member that is deleted or made anew turns back alone. Only pods that the watch has shown
count and pass.

A state machine: no I/O and no clock; time is an argument, seconds of a monotonic clock. Under its
lock there is only bookkeeping, and any thread may call any method. Each call that ends a wait adds
to the verdicts, which `take` returns; binder.py carries them out.

Tested in `tests/unit/extender/verbs/bind/test_gate.py` and `tests/simulation/test_gate_story.py`.
"""

import math
import threading
from collections import Counter
from collections.abc import Callable, Collection, Container
from dataclasses import dataclass, field
from itertools import islice
from operator import attrgetter
from typing import NamedTuple

from gpushare.core.model import PodRef, Request
from gpushare.extender.follow.group_members import MOST_KINDS, GroupMembers, Member, Need
from gpushare.wire.groups import Group

WAIT = 3.0
"""Seconds that a member waits at most where kube-scheduler's httpTimeout is not known."""

Rank = tuple[int, float, str]
"""(minus the highest priority of a member, creation time of the oldest member, group key) of
competing groups: the smallest wins."""

TIMEOUT, COMPETITION, DELETED, STOP = "group_timeout", "group_competes", "gone", "stopping"
NOT_LEADING, REPLACED = "not_leading", "replaced"
"""Why a wait ended, one word for logs and metrics."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A bind that waits at the gate."""

    ref: PodRef
    stamp: str
    """The assume time of the Binding, which identifies the transaction."""
    node: str
    resource: str
    """The managed resource of the charge; "" for a pod without devices."""
    until: float
    """The end of the wait at the latest."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The end of the waits of these members of a group: all pass, or all turn back."""

    group_key: str
    arrivals: tuple[Arrival, ...]
    refusal: str = ""
    """The text for members that turn back; "": the members pass, and Bindings are sent."""
    reason: str = ""
    """The refusal in one word, for logs and metrics."""


class GroupState(NamedTuple):
    """How far a group has come, for people."""

    size: int
    """Pods that the group needs at once; 0 if unknown."""
    existing: int
    """Pods that the API server shows, ended ones left out."""
    bound: int
    """Pods that are bound, or with a Binding that is sent."""
    waiting: int
    """Pods that wait at the gate with a charged place."""
    until: float | None
    """When the first waiting pod gives its place back, by the gate's clock; None: no pod waits."""


class Torn(NamedTuple):
    """A group with a Binding that the API server refused while other members were bound."""

    group_key: str
    bound_count: int
    size: int
    members: tuple[PodRef, ...]


@dataclass(slots=True)
class _GroupAtGate:
    """The waits and the Bindings of one group."""

    group: Group
    arrivals: dict[str, Arrival] = field(default_factory=dict)
    sent_uids: set[str] = field(default_factory=set)
    """The uids of pods with a Binding that is sent and not shown by the watch."""


class Gate:
    """The gate of one process.

    size_of: returns the number of pods that a group needs at once, 0 or 1 for no group. wait: upper
    bound of a member's wait in seconds.
    """

    def __init__(
        self, size_of: Callable[[Group], int] = attrgetter("size"), wait: float = WAIT
    ) -> None:
        self.size_of = size_of
        self.wait = wait
        self._changed = threading.Condition()
        self._members = GroupMembers()
        self._groups: dict[str, _GroupAtGate] = {}
        self._verdicts: list[Verdict] = []
        self._is_listed = False
        self._is_stopped = False
        self._ends: Counter[str] = Counter()
        self.ended_waits = 0
        """The number of ended waits."""
        self.version = 0
        """Rises with each change of a group or a wait."""

    # -- the watch --------------------------------------------------------------------------------

    def shown(self, group_key: str, member: Member) -> None:
        """Take over a pod of the group from the watch."""
        with self._changed:
            self._members.put(group_key, member)
            self.version += 1
            attempt = self._groups.get(group_key)
            if attempt is not None:
                if member.is_bound:
                    attempt.sent_uids.discard(member.ref.uid)
                self._judge(attempt)

    def gone(self, uid: str, *, deleted: bool) -> None:
        """Forget a pod that is no member any more.

        deleted: the pod is marked deleted; otherwise a bound member has ended by itself.
        """
        if uid not in self._members:
            return
        with self._changed:
            group_key = self._members.group_of(uid)
            self._members.remove(uid, deleted=deleted)
            self.version += 1
            attempt = self._groups.get(group_key)
            if attempt is None:
                return
            attempt.sent_uids.discard(uid)
            arrival = attempt.arrivals.pop(uid, None)
            if arrival is not None:
                self._add(Verdict(group_key, (arrival,), "it is deleted", DELETED))
            self._drop_if_empty(attempt)

    def listed(self, uids: Collection[str]) -> None:
        """Forget all members but these, which are the pods of a whole list."""
        with self._changed:
            self._members.keep(uids)
            self.version += 1
            if not self._is_listed:
                self._is_listed = True
                self._members.note_first_list()
            for attempt in list(self._groups.values()):
                # A waiting pod may be younger than the list; it counts once the watch shows it.
                attempt.sent_uids.intersection_update(uids)
                self._drop_if_empty(attempt)

    # -- bind -------------------------------------------------------------------------------------

    def holds_back(self, group: Group) -> bool:
        """Return whether members of the group have to wait for each other."""
        return bool(group.key) and self.size_of(group) > 1

    def arrive(self, group: Group, arrival: Arrival) -> None:
        """Begin the wait of a member that has a charged place, or needs no device."""
        with self._changed:
            attempt = self._groups.setdefault(group.key, _GroupAtGate(group))
            attempt.group = group
            uid = arrival.ref.uid
            attempt.sent_uids.discard(uid)
            attempt.arrivals[uid] = arrival
            self.version += 1
            if self._is_stopped:
                self._turn_back(attempt, "this process stops", STOP)
            else:
                self._judge(attempt)
            if len(attempt.arrivals) == 1:  # perhaps the first time-out of all
                self._changed.notify_all()

    def replaced(self, uid: str) -> bool:
        """End the wait of a pod because of another bind call for it; return whether the pod waited.

        The kube-scheduler that sent the first call has ended.
        """
        with self._changed:
            for attempt in list(self._groups.values()):
                arrival = attempt.arrivals.pop(uid, None)
                if arrival is not None:
                    refusal = "another bind of the pod has come"
                    self._add(Verdict(attempt.group.key, (arrival,), refusal, REPLACED))
                    self._drop_if_empty(attempt)
                    return True
            return False

    def unbound(self, uid: str) -> Torn | None:
        """Note that the Binding of a pod has not landed; return the group if it is torn.

        A group is torn if other members are bound, and fewer than the group needs.
        """
        with self._changed:
            attempt = next(
                (candidate for candidate in self._groups.values() if uid in candidate.sent_uids),
                None,
            )
            if attempt is None:
                return None
            attempt.sent_uids.discard(uid)
            self.version += 1
            group, key = attempt.group, attempt.group.key
            bound_count, size = len(self._bound(attempt)), self.size_of(group)
            self._drop_if_empty(attempt)
            if not 0 < bound_count < size:
                return None
            self._ends["torn"] += 1
            refs = tuple(member.ref for member in self._members.of(key).values())
            return Torn(key, bound_count, size, refs)

    def take_back(self, verdict: Verdict) -> None:
        """Note that no Binding of this verdict was sent."""
        with self._changed:
            attempt = self._groups.get(verdict.group_key)
            if attempt is not None:
                attempt.sent_uids.difference_update(arrival.ref.uid for arrival in verdict.arrivals)
                self._drop_if_empty(attempt)

    def take(self, now: float) -> tuple[Verdict, ...]:
        """Return the verdicts since the last call."""
        with self._changed:
            for attempt in list(self._groups.values()):
                if any(arrival.until <= now for arrival in attempt.arrivals.values()):
                    self._turn_back(attempt, "its group is not whole", TIMEOUT)
            verdicts, self._verdicts = tuple(self._verdicts), []
            return verdicts

    def wait_for_verdict(self, clock: Callable[[], float], max_seconds: float) -> None:
        """Wait until `take` has a verdict to return; at most `max_seconds`."""
        with self._changed:
            ends = (
                arrival.until
                for attempt in self._groups.values()
                for arrival in attempt.arrivals.values()
            )
            seconds = min(min(ends, default=math.inf) - clock(), max_seconds)
            if not self._verdicts:
                self._changed.wait(max(seconds, 0.0))

    def turn_all_back(self, refusal: str, reason: str) -> None:
        """End all waits without a Binding."""
        with self._changed:
            for attempt in list(self._groups.values()):
                self._turn_back(attempt, refusal, reason)

    def stop(self) -> None:
        """End all waits, and refuse new waits: this process stops."""
        with self._changed:
            self._is_stopped = True
            self.turn_all_back("this process stops", STOP)

    # -- filter -----------------------------------------------------------------------------------

    def needs(
        self, uid: str, group: Group, need: Need, holders: Container[str]
    ) -> Counter[Request]:
        """Return the places that a group lacks before it passes, by request, this pod's request
        first; empty if the group does not have to wait, or lacks no other place.

        holders: contains the uids of pods with a hold. The result includes the places that better
        groups at the gate still lack, since better groups pass first, up to a bound of requests.
        """
        size = self.size_of(group)
        with self._changed:
            if not group.key or size < 2 or self._is_complete(group, size):
                return Counter()
            placed_uids = {member for member in self._members.of(group.key) if member in holders}
            attempt = self._groups.get(group.key)
            if attempt is not None:
                placed_uids |= attempt.arrivals.keys() | attempt.sent_uids
            needed = self._members.needs(uid, need, group.key, size, placed_uids)
            for rival in self._groups.values():
                if rival.arrivals and self._rank(rival.group.key) < self._rank(group.key):
                    needed.update(self._lacks(rival, need.resource, holders))
            return Counter(dict(islice(needed.items(), 2 * MOST_KINDS)))

    def rivals(self, group: Group, resource: str) -> list[tuple[str, tuple[Arrival, ...]]]:
        """Return the groups with charges at the gate that have to yield to this group, each with
        its key and its waiting binds; the group that yields first comes first.
        """
        with self._changed:
            rank = self._rank(group.key)
            worse = sorted(
                (
                    (self._rank(attempt.group.key), attempt)
                    for attempt in self._groups.values()
                    if attempt.arrivals and self._rank(attempt.group.key) > rank
                ),
                key=lambda pair: pair[0],
                reverse=True,
            )
            return [
                (attempt.group.key, arrivals)
                for _, attempt in worse
                if (
                    arrivals := tuple(
                        a for a in attempt.arrivals.values() if a.resource == resource
                    )
                )
            ]

    def yield_to(self, group: Group, rivals: Collection[str]) -> None:
        """End the waits of these groups, to give their places to another group."""
        with self._changed:
            for key in rivals:
                attempt = self._groups.get(key)
                if attempt is not None:
                    refusal = f"its places are given to {group.key}, which comes first"
                    self._turn_back(attempt, refusal, COMPETITION)

    # -- readers ----------------------------------------------------------------------------------

    def state_of(self, group: Group) -> GroupState:
        """Return the state of a group."""
        with self._changed:
            attempt = self._groups.get(group.key) or _GroupAtGate(group)
            return GroupState(
                self.size_of(group) if group.key else 0,
                len(self._members.of(group.key)),
                len(self._bound(attempt)),
                len(attempt.arrivals),
                min((arrival.until for arrival in attempt.arrivals.values()), default=None),
            )

    def waiting_groups(self) -> dict[str, GroupState]:
        """Return by key the state of each group with pods at the gate."""
        with self._changed:
            groups = [attempt.group for attempt in self._groups.values() if attempt.arrivals]
            return {group.key: self.state_of(group) for group in groups}

    def state(self) -> dict[str, float]:
        """Return values for metrics: the number of waits, and of ended waits by reason."""
        with self._changed:
            counts = [
                len(attempt.arrivals) for attempt in self._groups.values() if attempt.arrivals
            ]
            return {
                "gate_groups": len(counts),
                "gate_pods": sum(counts),
                "gate_whole_total": self._ends["whole"],
                "gate_timeouts_total": self._ends[TIMEOUT],
                "gate_yields_total": self._ends[COMPETITION],
                "gate_torn_total": self._ends["torn"],
            }

    # -- under the lock ---------------------------------------------------------------------------

    def _bound(self, attempt: _GroupAtGate) -> set[str]:
        members = self._members.of(attempt.group.key)
        uids = {uid for uid, member in members.items() if member.is_bound}
        return uids | (attempt.sent_uids & members.keys())

    def _count(self, attempt: _GroupAtGate) -> int:
        """Return the number of members that are bound or have a charged place."""
        members = self._members.of(attempt.group.key)
        uids = (attempt.sent_uids | attempt.arrivals.keys()) & members.keys()
        unseen = sum(not members[uid].is_bound for uid in uids)
        return self._members.bound_count(attempt.group.key) + unseen

    def _is_complete(self, group: Group, size: int) -> bool:
        """Return whether the group has enough members with a place."""
        attempt = self._groups.get(group.key) or _GroupAtGate(group)
        if self._members.may_have_ended(group.key):
            return True
        return self._count(attempt) >= size

    def _judge(self, attempt: _GroupAtGate) -> None:
        """Let the group pass if enough members have a place.

        A pod that the watch has not shown yet waits: the members that the watch has shown so far
        may belong to an earlier group of the same name.
        """
        members = self._members.of(attempt.group.key)
        passing = attempt.arrivals.keys() & members.keys()
        if not passing or not self._is_complete(attempt.group, self.size_of(attempt.group)):
            return
        arrivals = tuple(attempt.arrivals.pop(uid) for uid in [*attempt.arrivals] if uid in passing)
        attempt.sent_uids.update(passing)
        self._ends["whole"] += 1
        self._add(Verdict(attempt.group.key, arrivals))

    def _turn_back(self, attempt: _GroupAtGate, refusal: str, reason: str) -> None:
        if not attempt.arrivals:
            return
        have, size = self._count(attempt), self.size_of(attempt.group)
        text = f"its group is not whole: {have} of {size} have a place"
        text = text if reason == TIMEOUT else f"{text}; {refusal}"
        arrivals = tuple(attempt.arrivals.values())
        attempt.arrivals.clear()
        self._ends[reason] += 1
        self._add(Verdict(attempt.group.key, arrivals, text, reason))
        self._drop_if_empty(attempt)

    def _add(self, verdict: Verdict) -> None:
        self._verdicts.append(verdict)
        self.ended_waits += 1
        self.version += 1
        self._changed.notify_all()

    def _drop_if_empty(self, attempt: _GroupAtGate) -> None:
        if not attempt.arrivals and not attempt.sent_uids:
            self._groups.pop(attempt.group.key, None)

    def _rank(self, group_key: str) -> Rank:
        members = self._members.of(group_key).values()
        priority = max((member.priority for member in members), default=0)
        created = min((member.created for member in members), default=float("inf"))
        return -priority, created, group_key

    def _lacks(
        self, attempt: _GroupAtGate, resource: str, holders: Container[str]
    ) -> Counter[Request]:
        """Return the places of this resource that a group at the gate lacks, by request."""
        members, size = self._members.of(attempt.group.key), self.size_of(attempt.group)
        placed_uids = attempt.arrivals.keys() | attempt.sent_uids
        lacking = max(size - self._count(attempt), 0)
        needs = (
            member.need
            for uid, member in members.items()
            if member.need is not None and uid not in placed_uids and uid not in holders
        )
        requests = sorted(
            (need.request for need in needs if need.resource == resource),
            key=lambda request: request.total,
        )
        return Counter(requests[:lacking])
