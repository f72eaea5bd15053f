"""The gate at bind: the pods of a group pass together, or none of them does.

A member of a group comes here charged, its Binding not yet sent, and waits. When as many members as
the group needs at once are bound, sent or waiting, all that wait pass. Else they turn back: when
the time is over, when a competing group needs their places, when their pod is deleted, or when this
process stops. Only pods that the watch has shown count and pass.

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
from operator import attrgetter
from typing import NamedTuple

from gpushare.core.model import PodRef, Request
from gpushare.extender.follow.group_members import GroupMembers, Member, Need
from gpushare.wire.groups import Group

WAIT = 3.0
"""Seconds that a member waits at most where kube-scheduler's httpTimeout is not known."""

Rank = tuple[int, float, str]
"""Sort key of competing groups: the first wins. Minus the priority, when the oldest member was
created, the key."""

TIMEOUT, COMPETITION, DELETED, STOP = "group_timeout", "group_competes", "gone", "stopping"
NOT_LEADING, REPLACED = "not_leading", "replaced"
"""Why a wait ended, one word for logs and metrics."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A bind that waits at the gate."""

    ref: PodRef
    stamp: str
    """The assume time of its Binding, by which its transaction is known."""
    node: str
    resource: str
    """The managed resource that it is charged in; "" for a pod without devices."""
    until: float
    """When its time is over."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The end of the waits of a group's members: all of them pass, or all turn back."""

    group_key: str
    arrivals: tuple[Arrival, ...]
    refusal: str = ""
    """Why they turn back; "": they pass, and their Bindings are sent."""
    reason: str = ""
    """The refusal in one word, for logs and metrics."""


class GroupState(NamedTuple):
    """How far a group has come, for people."""

    size: int
    """Pods that it needs at once; 0 if unknown."""
    existing: int
    """Pods that the API server shows, ended ones left out."""
    bound: int
    """Pods that are bound, or whose Bindings are sent."""
    waiting: int
    """Pods that wait at the gate, and have a place."""
    until: float | None
    """When the first of these gives its place back, by the clock of the gate; None: none waits."""


class Torn(NamedTuple):
    """A group of which the API server refused one Binding while others were bound."""

    group_key: str
    bound: int
    size: int
    members: tuple[PodRef, ...]


@dataclass(slots=True)
class _Try:
    """The waits and the Bindings of one group."""

    group: Group
    waiting: dict[str, Arrival] = field(default_factory=dict)
    sent: set[str] = field(default_factory=set)
    """The uids of Bindings that were sent and that no watch has shown."""


class Gate:
    """The gate of one process.

    size_of: returns how many pods a group needs at once, 0 or 1 if each is bound by itself.
    wait: seconds that a member waits at most.
    """

    def __init__(
        self, size_of: Callable[[Group], int] = attrgetter("size"), wait: float = WAIT
    ) -> None:
        self.size_of = size_of
        self.wait = wait
        self._changed = threading.Condition()
        self._members = GroupMembers()
        self._tries: dict[str, _Try] = {}
        self._verdicts: list[Verdict] = []
        self._is_listed = False
        self._is_stopped = False
        self._ends: Counter[str] = Counter()
        self.ended_waits = 0
        """How many waits of groups have ended, in whatever way."""
        self.version = 0
        """Rises with each change of the groups and of their waits."""

    # -- what the watch shows ---------------------------------------------------------------------

    def shown(self, group_key: str, member: Member) -> None:
        """Take over a pod of the group as it is shown: it exists."""
        with self._changed:
            self._members.put(group_key, member)
            self.version += 1
            attempt = self._tries.get(group_key)
            if attempt is not None:
                if member.is_bound:
                    attempt.sent.discard(member.ref.uid)
                self._judge(attempt)

    def gone(self, uid: str, *, deleted: bool) -> None:
        """Forget a pod that is no member any more. deleted: it is marked deleted, so a bound member
        has not ended by itself.
        """
        if uid not in self._members:
            return
        with self._changed:
            group_key = self._members.group_of(uid)
            self._members.remove(uid, deleted=deleted)
            self.version += 1
            attempt = self._tries.get(group_key)
            if attempt is None:
                return
            attempt.sent.discard(uid)
            arrival = attempt.waiting.pop(uid, None)
            if arrival is not None:
                self._add(Verdict(group_key, (arrival,), "it is deleted", DELETED))
            self._drop_if_empty(attempt)

    def listed(self, uids: Collection[str]) -> None:
        """Forget all members but these: a whole list of pods shows no others."""
        with self._changed:
            self._members.keep(uids)
            self.version += 1
            if not self._is_listed:
                self._is_listed = True
                self._members.note_first_list()
            for attempt in list(self._tries.values()):
                # A pod that waits may be younger than the list: it counts once it is shown.
                attempt.sent.intersection_update(uids)
                self._drop_if_empty(attempt)

    # -- bind -------------------------------------------------------------------------------------

    def holds_back(self, group: Group) -> bool:
        """Return whether members of the group have to wait for each other."""
        return bool(group.key) and self.size_of(group) > 1

    def arrive(self, group: Group, arrival: Arrival) -> None:
        """Begin the wait of a member, which has a place that is charged, or needs no device."""
        with self._changed:
            attempt = self._tries.setdefault(group.key, _Try(group))
            attempt.group = group
            uid = arrival.ref.uid
            attempt.sent.discard(uid)
            attempt.waiting[uid] = arrival
            self.version += 1
            if self._is_stopped:
                self._turn_back(attempt, "this process stops", STOP)
            else:
                self._judge(attempt)
            if len(attempt.waiting) == 1:  # it may be the first whose time is over
                self._changed.notify_all()

    def replaced(self, uid: str) -> bool:
        """End the wait of the pod, if it waits: another bind of it has come, as the kube-scheduler
        that sent the first has ended. Return whether it has waited.
        """
        with self._changed:
            for attempt in list(self._tries.values()):
                arrival = attempt.waiting.pop(uid, None)
                if arrival is not None:
                    why = "another bind of the pod has come"
                    self._add(Verdict(attempt.group.key, (arrival,), why, REPLACED))
                    self._drop_if_empty(attempt)
                    return True
            return False

    def unbound(self, uid: str) -> Torn | None:
        """Note that a Binding that was sent, or was about to be, has not landed; return the group
        if it is torn by this: other members are bound, and they are too few.
        """
        with self._changed:
            attempt = next((made for made in self._tries.values() if uid in made.sent), None)
            if attempt is None:
                return None
            attempt.sent.discard(uid)
            self.version += 1
            group, key = attempt.group, attempt.group.key
            bound, size = len(self._bound(attempt)), self.size_of(group)
            self._drop_if_empty(attempt)
            if not 0 < bound < size:
                return None
            self._ends["torn"] += 1
            refs = tuple(member.ref for member in self._members.of(key).values())
            return Torn(key, bound, size, refs)

    def take_back(self, verdict: Verdict) -> None:
        """Note that no Binding of this verdict is sent after all."""
        with self._changed:
            attempt = self._tries.get(verdict.group_key)
            if attempt is not None:
                attempt.sent.difference_update(arrival.ref.uid for arrival in verdict.arrivals)
                self._drop_if_empty(attempt)

    def take(self, now: float) -> tuple[Verdict, ...]:
        """Return the verdicts since the last call; each is returned once."""
        with self._changed:
            for attempt in list(self._tries.values()):
                if any(arrival.until <= now for arrival in attempt.waiting.values()):
                    self._turn_back(attempt, "its group is not whole", TIMEOUT)
            verdicts, self._verdicts = tuple(self._verdicts), []
            return verdicts

    def wait_for_verdict(self, clock: Callable[[], float], most: float) -> None:
        """Wait until `take` has something to return; `most` seconds at most."""
        with self._changed:
            ends = (
                arrival.until for made in self._tries.values() for arrival in made.waiting.values()
            )
            seconds = min(min(ends, default=math.inf) - clock(), most)
            if not self._verdicts:
                self._changed.wait(max(seconds, 0.0))

    def turn_all_back(self, why: str, reason: str) -> None:
        """End all waits; nothing of them is sent."""
        with self._changed:
            for attempt in list(self._tries.values()):
                self._turn_back(attempt, why, reason)

    def stop(self) -> None:
        """End all waits, and let none begin: this process stops."""
        with self._changed:
            self._is_stopped = True
            self.turn_all_back("this process stops", STOP)

    # -- filter -----------------------------------------------------------------------------------

    def needs(self, uid: str, group: Group, need: Need, held: Container[str]) -> Counter[Request]:
        """Return the places that a group lacks before it passes, by request, that of this pod
        first; empty if the group does not have to wait, or lacks no other place.

        held: contains the uids of pods for which filter holds a place. The places that better
        groups at the gate still lack are added: they come first.
        """
        size = self.size_of(group)
        with self._changed:
            if not group.key or size < 2 or self._is_complete(group, size):
                return Counter()
            placed = {member for member in self._members.of(group.key) if member in held}
            attempt = self._tries.get(group.key)
            if attempt is not None:
                placed |= attempt.waiting.keys() | attempt.sent
            needed = self._members.needs(uid, need, group.key, size, placed)
            for other in self._tries.values():
                if other.waiting and self._rank(other.group.key) < self._rank(group.key):
                    needed.update(self._lacks(other, need.resource, held))
            return needed

    def rivals(self, group: Group, resource: str) -> list[tuple[str, tuple[Arrival, ...]]]:
        """Return the groups with charges at the gate that have to make room for this one, the one
        that yields first at the head: their keys, and the binds that wait.
        """
        with self._changed:
            rank = self._rank(group.key)
            worse = sorted(
                (
                    (self._rank(made.group.key), made)
                    for made in self._tries.values()
                    if made.waiting and self._rank(made.group.key) > rank
                ),
                key=lambda pair: pair[0],
                reverse=True,
            )
            return [
                (made.group.key, charged)
                for _, made in worse
                if (charged := tuple(a for a in made.waiting.values() if a.resource == resource))
            ]

    def yield_to(self, group: Group, rivals: Collection[str]) -> None:
        """End the waits of these groups: this one needs their places."""
        with self._changed:
            for key in rivals:
                attempt = self._tries.get(key)
                if attempt is not None:
                    why = f"its places are given to {group.key}, which comes first"
                    self._turn_back(attempt, why, COMPETITION)

    # -- readers ----------------------------------------------------------------------------------

    def state_of(self, group: Group) -> GroupState:
        """Return how far the group has come."""
        with self._changed:
            attempt = self._tries.get(group.key) or _Try(group)
            return GroupState(
                self.size_of(group) if group.key else 0,
                len(self._members.of(group.key)),
                len(self._bound(attempt)),
                len(attempt.waiting),
                min((arrival.until for arrival in attempt.waiting.values()), default=None),
            )

    def waiting_groups(self) -> dict[str, GroupState]:
        """Return how far the groups have come of which pods wait at the gate, by key."""
        with self._changed:
            groups = [attempt.group for attempt in self._tries.values() if attempt.waiting]
            return {group.key: self.state_of(group) for group in groups}

    def state(self) -> dict[str, float]:
        """Return values for metrics: what waits, and how waits have ended."""
        with self._changed:
            waiting = [len(attempt.waiting) for attempt in self._tries.values() if attempt.waiting]
            return {
                "gate_groups": len(waiting),
                "gate_pods": sum(waiting),
                "gate_whole_total": self._ends["whole"],
                "gate_timeouts_total": self._ends[TIMEOUT],
                "gate_yields_total": self._ends[COMPETITION],
                "gate_torn_total": self._ends["torn"],
            }

    # -- under the lock ---------------------------------------------------------------------------

    def _bound(self, attempt: _Try) -> set[str]:
        members = self._members.of(attempt.group.key)
        bound = {uid for uid, member in members.items() if member.is_bound}
        return bound | (attempt.sent & members.keys())

    def _count(self, attempt: _Try) -> int:
        """Return how many members have their place."""
        members = self._members.of(attempt.group.key)
        placed = (attempt.sent | attempt.waiting.keys()) & members.keys()
        unseen = sum(not members[uid].is_bound for uid in placed)
        return self._members.bound_count(attempt.group.key) + unseen

    def _is_complete(self, group: Group, size: int) -> bool:
        """Return whether the group lacks no member, so that others of it need not wait."""
        attempt = self._tries.get(group.key) or _Try(group)
        if self._members.may_have_ended(group.key):
            return True
        return self._count(attempt) >= size

    def _judge(self, attempt: _Try) -> None:
        """Let the group pass if it is whole.

        A pod that the watch has not shown yet waits: the watch shows its changes in order, so what
        it has shown before may be older than the end of a group of the same name.
        """
        members = self._members.of(attempt.group.key)
        passing = attempt.waiting.keys() & members.keys()
        if not passing or not self._is_complete(attempt.group, self.size_of(attempt.group)):
            return
        arrivals = tuple(attempt.waiting.pop(uid) for uid in [*attempt.waiting] if uid in passing)
        attempt.sent.update(passing)
        self._ends["whole"] += 1
        self._add(Verdict(attempt.group.key, arrivals))

    def _turn_back(self, attempt: _Try, why: str, reason: str) -> None:
        if not attempt.waiting:
            return
        have, size = self._count(attempt), self.size_of(attempt.group)
        text = f"its group is not whole: {have} of {size} have a place"
        text = text if reason == TIMEOUT else f"{text}; {why}"
        arrivals = tuple(attempt.waiting.values())
        attempt.waiting.clear()
        self._ends[reason] += 1
        self._add(Verdict(attempt.group.key, arrivals, text, reason))
        self._drop_if_empty(attempt)

    def _add(self, verdict: Verdict) -> None:
        self._verdicts.append(verdict)
        self.ended_waits += 1
        self.version += 1
        self._changed.notify_all()

    def _drop_if_empty(self, attempt: _Try) -> None:
        if not attempt.waiting and not attempt.sent:
            self._tries.pop(attempt.group.key, None)

    def _rank(self, group_key: str) -> Rank:
        members = self._members.of(group_key).values()
        priority = max((member.priority for member in members), default=0)
        created = min((member.created for member in members), default=float("inf"))
        return -priority, created, group_key

    def _lacks(self, attempt: _Try, resource: str, held: Container[str]) -> Counter[Request]:
        """Return the places of this resource that a group at the gate lacks, by request."""
        members, size = self._members.of(attempt.group.key), self.size_of(attempt.group)
        placed = attempt.waiting.keys() | attempt.sent
        lacking = max(size - self._count(attempt), 0)
        needs = (
            member.need
            for uid, member in members.items()
            if member.need is not None and uid not in placed and uid not in held
        )
        wanted = sorted(
            (need.request for need in needs if need.resource == resource),
            key=lambda request: request.total,
        )
        return Counter(wanted[:lacking])
