"""What filter has promised, and nobody has bound yet: the rules by which a hold begins and ends.

Filter answers before kube-scheduler binds: a pod may wait for its volumes, and the next pod is
asked about meanwhile. A hold lowers what filter offers to *other* pods, and nothing else: bind
decides by the ledger alone, so a wrong hold costs others an offer for seconds, never memory. There
are no rules for groups here: bind keeps groups whole (bind/gate.py). Nothing is stored;
kube-scheduler's nominations come back with the list of pods.

Knows no ledger, no devices and no clock: time is an argument, seconds of a monotonic clock. Under
its lock there is only bookkeeping. Any thread may call any method.
"""

import heapq
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import count
from operator import attrgetter
from typing import NamedTuple

from gpushare.core.model import Shares
from gpushare.wire.groups import Claimant

FLOOR = 0.3
"""Seconds that filter may wait for a young or ending hold before it refuses a pod for it."""

_SHORT = 2.0
"""Seconds of a hold where kube-scheduler nominates each pod that waits (1.35 and later)."""
_PLAIN, _LONG = 5.0, 60.0
"""Seconds of a hold where it does not: of a pod that binds at once, and of one that waits."""

_MOST_KEPT_OUT = 10_000
"""Pods of which it is known since when holds keep them out."""

_MOST_TURNED_AWAY = 20_000
"""Pods that are to be woken, the latest ones; more than that wait for kube-scheduler's own time."""

_MOST_CHANGED = 20_000
"""Nodes of which it is known when their holds changed last; others come and go for years."""

_number = attrgetter("number")


@dataclass(frozen=True, slots=True)
class Reserved:
    """What makes a hold one of a plan of moves (moves/mover.py)."""

    until: float
    """When it ends, whatever happens."""
    shares: Shares
    """Of the node's devices; what is free of them is held even while that is too little."""
    heir: bool = False
    """It is for the pod that its controller makes in place of this one, known by the controller and
    by what it asks for."""


@dataclass(frozen=True, slots=True)
class Hold:
    """A promise of filter, a nomination of kube-scheduler, or a place kept by a plan of moves."""

    pod: Claimant
    node: str
    number: int
    """Rises with each hold, so the oldest comes first."""
    since: float
    """When it was promised."""
    nominated: bool = False
    """`status.nominatedNodeName` names the node."""
    reserved: Reserved | None = None
    """A plan of moves keeps it; such a hold stands beside another one of the same pod."""

    @property
    def key(self) -> str:
        """Its key among the holds of a resource."""
        return self.pod.ref.uid if self.reserved is None else _reserved(self.pod.ref.uid)

    def is_for(self, pod: Claimant) -> bool:
        """Return whether the place is the pod's own."""
        if self.pod.ref.uid == pod.ref.uid:
            return True
        heir = self.reserved is not None and self.reserved.heir
        same = (self.pod.owner, self.pod.request) == (pod.owner, pod.request)
        return heir and bool(pod.owner) and same and self.pod.ref.namespace == pod.ref.namespace


class Ended(NamedTuple):
    """What has come of holds since it was last asked for: what wake.py needs."""

    pods: Mapping[str, Claimant]
    """Those turned away, by uid."""
    groups: Mapping[str, Collection[str]]
    """By node, the keys of the groups whose holds ended there; "" is a pod of no group."""

    def nodes(self, pod: Claimant) -> list[str]:
        """Return the nodes where a hold has ended that is not of the pod's own group.

        What ends within its group is the group's own next try, and nobody has to be told of it.
        """
        own = {pod.group.key} - {""}
        return [node for node, keys in self.groups.items() if set(keys) - own]


class Holds:
    """The holds of one managed resource, by pod.

    nominates: kube-scheduler writes `nominatedNodeName` for each pod that waits (1.35 and later),
    so a promise without it soon means nothing.
    """

    def __init__(self, *, nominates: bool = False) -> None:
        self.nominates = nominates
        self._lock = threading.Lock()
        self._holds: dict[str, Hold] = {}
        self._by_node: dict[str, dict[str, Hold]] = {}
        self._reserved: set[str] = set()
        # When a hold ends by time alone nothing happens in the cluster, so kube-scheduler does not
        # ask about a pod that was refused for it again for minutes. By uid, such pods; by node, the
        # groups whose holds have ended there since.
        self._turned_away: dict[str, Claimant] = {}
        self._ended: dict[str, set[str]] = {}
        # Pods whose bind was called: a late event must not make a hold of them again.
        self._binding: set[str] = set()
        # Since when nothing but what is held for others keeps a pod out.
        self._kept_out: dict[str, float] = {}
        self._priorities: dict[int, int] = {}
        self._numbers = count()
        self.version = 0
        """Rises with each change."""
        # By node, the version of its last change; the oldest go first, up to the version forgotten.
        self._changed: dict[str, int] = {}
        self._forgotten = -1
        self._due: list[tuple[float, int, str]] = []
        self.lapsed_total = 0
        """How many holds have ended by time alone."""

    # -- filter and bind --------------------------------------------------------------------------

    def asked(self, pod: Claimant) -> None:
        """Note that filter is called for the pod."""
        with self._lock:
            self._binding.discard(pod.ref.uid)
            self._turned_away.pop(pod.ref.uid, None)

    def offered(self, pod: Claimant, node: str, now: float) -> None:
        """Hold the node for the pod: filter has just offered it."""
        with self._lock:
            if pod.ref.uid in self._binding:
                return
            before = self._holds.get(pod.ref.uid)
            self._kept_out.pop(pod.ref.uid, None)
            if self._takes_reserved(pod, node):
                self._end(pod.ref.uid)
                return
            stands = before is not None and before.nominated and before.node == node
            self._put(Hold(pod, node, next(self._numbers), now, nominated=stands))

    def refused(self, pod: Claimant, kept_out_at: float | None = None) -> None:
        """End the hold of a pod that filter has refused; a nomination stands.

        kept_out_at: when, if nothing but what is held for others kept it out.
        """
        with self._lock:
            if kept_out_at is None:
                self._kept_out.pop(pod.ref.uid, None)
            else:
                self._kept_out.setdefault(pod.ref.uid, kept_out_at)
                if len(self._kept_out) > _MOST_KEPT_OUT:
                    del self._kept_out[next(iter(self._kept_out))]
            self._end(pod.ref.uid, but_nominated=True)

    def turned_away(self, pod: Claimant, version: int) -> None:
        """Note that filter refuses the pod, while places are held for others.

        version: before filter looked. A hold that has ended since then counts as ended now.
        """
        with self._lock:
            self._turned_away.pop(pod.ref.uid, None)
            self._turned_away[pod.ref.uid] = pod
            if len(self._turned_away) > _MOST_TURNED_AWAY:
                del self._turned_away[next(iter(self._turned_away))]
            for node in self._since(version):
                self._ended.setdefault(node, set()).add("")

    def bind(self, uid: str, *, refused: bool = False) -> None:
        """End the hold of a pod whose bind has ended: the ledger charges it, or it is refused.

        refused: its nominations count again.
        """
        with self._lock:
            self._kept_out.pop(uid, None)
            self._binding.add(uid)
            self._end(uid)
            if not refused:
                self._end(_reserved(uid))
            if refused:
                self._binding.discard(uid)

    def charged(self, uid: str) -> None:
        """End the hold of a pod that waits at the gate: the ledger charges it."""
        with self._lock:
            self._end(uid)

    # -- the watch --------------------------------------------------------------------------------

    def shown(self, pod: Claimant, nominated: str, now: float) -> None:
        """Take over a pod without a node, as the watch or a list shows it.

        A nomination begins a hold, or moves it; one that has gone ends it. No condition ends a
        hold: kube-scheduler does not write a failure again whose text is the same.
        """
        with self._lock:
            before = self._holds.get(pod.ref.uid)
            if not nominated:
                if before is not None and before.nominated:
                    self._end(pod.ref.uid)
            elif (
                pod.ref.uid not in self._binding
                and (before is None or (before.node, before.nominated) != (nominated, True))
                and not self._takes_reserved(pod, nominated)
            ):
                number = next(self._numbers) if before is None else before.number
                since = now if before is None else before.since
                self._put(Hold(pod, nominated, number, since, nominated=True))

    def gone(self, uid: str) -> None:
        """Forget a pod that is bound, terminating, has ended or is gone."""
        parts = (self._holds, self._binding, self._kept_out, self._turned_away)
        if not any(uid in part for part in parts) and _reserved(uid) not in self._holds:
            return
        with self._lock:
            self._forget(uid)
            self._turned_away.pop(uid, None)

    def keep(self, uids: Collection[str]) -> None:
        """Forget all pods but these: a whole list shows no other without a node.

        A hold whose pod is younger than the list is lost; that costs one refused bind at most.
        """
        with self._lock:
            for key, hold in list(self._holds.items()):
                if hold.reserved is None and key not in uids:
                    self._end(key)
            self._binding.intersection_update(uids)
            for uid in self._kept_out.keys() - set(uids):
                del self._kept_out[uid]
            for uid in self._turned_away.keys() - set(uids):
                del self._turned_away[uid]

    # -- plans of moves ---------------------------------------------------------------------------

    def reserve(
        self,
        pod: Claimant,
        node: str,
        shares: Shares,
        until: float,
        now: float,
        *,
        heir: bool = False,
    ) -> None:
        """Keep a place for a pod that waits, or for the heir of one that is moved, until then.

        It ends sooner when that pod is bound or gone, or by `release`. An heir is known once filter
        offers it the node.
        """
        with self._lock:
            if heir:
                # The uid is another one's: while the old pod ends the books charge that.
                pod = replace(pod, ref=replace(pod.ref, uid=f"heir of {pod.ref.uid}"))
            reserved = Reserved(until, shares, heir)
            self._put(Hold(pod, node, next(self._numbers), now, reserved=reserved))

    def release(self) -> None:
        """End all that plans of moves keep."""
        with self._lock:
            for key in [key for key, hold in self._holds.items() if hold.reserved is not None]:
                self._end(key)

    def reserved_for(self, pod: Claimant) -> str:
        """Return the node that is kept for the pod in place of the one whose heir it is, or ""."""
        with self._lock:
            holds = self._reserved_of(pod)
            return next((hold.node for hold in holds if hold.reserved and hold.reserved.heir), "")

    # -- readers ----------------------------------------------------------------------------------

    def expire(self, now: float) -> bool:
        """End the holds whose time is over; return whether any is left."""
        with self._lock:
            while self._due and self._due[0][0] <= now:
                _, number, key = heapq.heappop(self._due)
                hold = self._holds.get(key)
                if hold is None or hold.number != number or hold.nominated:
                    continue
                if self._ends_at(hold) <= now:
                    self.lapsed_total += 1
                    self._end(key)
                else:
                    self._wake(hold)
            return bool(self._holds)

    def changed_since(self, version: int) -> tuple[int, list[str] | None]:
        """Return (the version now, the nodes whose holds have changed since that version); None if
        it is so long ago that any may have.
        """
        with self._lock:
            return self.version, None if version < self._forgotten else self._since(version)

    def take_ended(self) -> Ended:
        """Return what has ended for pods that filter had turned away; nothing comes twice."""
        with self._lock:
            groups, self._ended = self._ended, {}
            return Ended(dict(self._turned_away) if groups else {}, groups)

    def forget_turned_away(self, uids: Iterable[str]) -> None:
        """Forget that these pods were turned away: kube-scheduler will ask about them again."""
        with self._lock:
            for uid in uids:
                self._turned_away.pop(uid, None)

    def on(self, node: str) -> tuple[Hold, ...]:
        """Return the holds on the node, oldest first."""
        with self._lock:
            return tuple(sorted(self._by_node.get(node, {}).values(), key=_number))

    def nodes_of(self, pod: Claimant) -> set[str]:
        """Return the nodes where the pod itself holds a place."""
        with self._lock:
            own = self._holds.get(pod.ref.uid)
            nodes = {own.node} if own is not None else set()
            return nodes | {hold.node for hold in self._reserved_of(pod)}

    def any_against(self, pod: Claimant) -> bool:
        """Return whether some hold counts against the pod."""
        with self._lock:
            return any(self._against(pod))

    def any_soon(self, pod: Claimant, now: float) -> bool:
        """Return whether a hold against the pod is so young that its bind or its nomination may be
        on the way, or is about to end by time: filter waits for that before it refuses the pod.
        """
        with self._lock:
            return any(
                not hold.nominated and counts_against(hold, pod)
                for hold in (*self._youngest(now - FLOOR), *self._first_due(now + FLOOR))
            )

    def outwaited(self, pod: Claimant, now: float) -> tuple[Hold, ...]:
        """Return the holds of others that count against the pod no more: nothing but holds has kept
        it out for as long as they last.

        Else pods that filter is called for again and again, and that nobody binds, would keep
        others out for ever. What kube-scheduler nominates counts in any case.
        """
        since = self._kept_out.get(pod.ref.uid)
        if since is None:
            return ()
        with self._lock:
            return tuple(
                hold
                for hold in self._against(pod)
                if not hold.nominated and since + self._seconds(hold) <= now
            )

    def priorities(self) -> set[int]:
        """Return the priorities of the pods that hold something."""
        with self._lock:
            return set(self._priorities)

    def live(self) -> tuple[Hold, ...]:
        """Return all holds, oldest first."""
        with self._lock:
            return tuple(sorted(self._holds.values(), key=_number))

    def until(self, hold: Hold) -> float | None:
        """Return when the hold ends by time; None while kube-scheduler nominates it."""
        return None if hold.nominated else self._ends_at(hold)

    def __contains__(self, uid: object) -> bool:
        """Return whether the pod holds a place."""
        return uid in self._holds or f"{uid} reserved" in self._holds

    def __len__(self) -> int:
        return len(self._holds)

    # -- under the lock ---------------------------------------------------------------------------

    def _since(self, version: int) -> list[str]:
        nodes = []
        for node in reversed(self._changed):
            if self._changed[node] <= version:
                break
            nodes.append(node)
        return nodes

    def _against(self, pod: Claimant) -> Iterator[Hold]:
        # Most often the first one counts, or none does.
        if any(priority >= pod.priority for priority in self._priorities):
            yield from (hold for hold in self._holds.values() if counts_against(hold, pod))

    def _youngest(self, since: float) -> Iterator[Hold]:
        """Yield the holds that began after `since`; among them may be others that were moved."""
        for hold in reversed(self._holds.values()):
            if hold.since <= since and not hold.nominated and hold.reserved is None:
                return
            if hold.since > since:
                yield hold

    def _first_due(self, until: float) -> Iterator[Hold]:
        """Yield the holds that end by time until then."""
        places = [0]
        while places:
            place = places.pop()
            if place < len(self._due) and self._due[place][0] <= until:
                _, number, key = self._due[place]
                hold = self._holds.get(key)
                if hold is not None and hold.number == number:
                    yield hold
                places += [2 * place + 1, 2 * place + 2]

    def _ends_at(self, hold: Hold) -> float:
        return hold.since + self._seconds(hold)

    def _seconds(self, hold: Hold) -> float:
        """Return how long the hold lasts."""
        if hold.reserved is not None:
            return max(hold.reserved.until - hold.since, 0.0)
        return _SHORT if self.nominates else _LONG if hold.pod.waits else _PLAIN

    def _forget(self, uid: str) -> None:
        self._binding.discard(uid)
        self._kept_out.pop(uid, None)
        self._end(uid)
        self._end(_reserved(uid))

    def _takes_reserved(self, pod: Claimant, node: str) -> bool:
        """Return whether a plan of moves keeps a place on the node for the pod, which needs no
        other one then. The heir of a moved pod is known by its uid from here on.
        """
        for hold in self._reserved_of(pod):
            if hold.node == node:
                if hold.pod.ref.uid != pod.ref.uid:
                    self._end(hold.key)
                    self._put(replace(hold, pod=pod))
                return True
        return False

    def _reserved_of(self, pod: Claimant) -> list[Hold]:
        """Return what plans of moves keep for the pod: at most one place of each kind is kept."""
        if not self._reserved:
            return []
        return [hold for hold in map(self._holds.__getitem__, self._reserved) if hold.is_for(pod)]

    def _put(self, hold: Hold) -> None:
        key = hold.key
        self._end(key)
        self._holds[key] = hold
        if hold.reserved is not None:
            self._reserved.add(key)
        self._priorities[hold.pod.priority] = self._priorities.get(hold.pod.priority, 0) + 1
        self._by_node.setdefault(hold.node, {})[key] = hold
        self._note(hold.node)
        self._wake(hold)

    def _wake(self, hold: Hold) -> None:
        if not hold.nominated:
            heapq.heappush(self._due, (self._ends_at(hold), hold.number, hold.key))

    def _end(self, key: str, *, but_nominated: bool = False) -> None:
        """End the hold of this key."""
        hold = self._holds.get(key)
        if hold is None or (but_nominated and hold.nominated):
            return
        del self._holds[key]
        self._reserved.discard(key)
        priority = hold.pod.priority
        self._priorities[priority] -= 1
        if not self._priorities[priority]:
            del self._priorities[priority]
        on_node = self._by_node[hold.node]
        del on_node[key]
        if not on_node:
            del self._by_node[hold.node]
        self._note(hold.node)
        if self._turned_away:
            self._ended.setdefault(hold.node, set()).add(hold.pod.group.key)

    def _note(self, node: str) -> None:
        self.version += 1
        self._changed.pop(node, None)
        self._changed[node] = self.version
        if len(self._changed) > _MOST_CHANGED:
            self._forgotten = self._changed.pop(next(iter(self._changed)))


def counts_against(hold: Hold, pod: Claimant) -> bool:
    """Return whether filter leaves out what the hold takes when it answers for the pod.

    Its own hold never does. Others are held back by pods of their own priority or a higher one, as
    kube-scheduler does with nominated pods.
    """
    return hold.pod.priority >= pod.priority and not hold.is_for(pod)


def _reserved(uid: str) -> str:
    """Return the key of what a plan of moves keeps for the pod, beside its other hold."""
    return f"{uid} reserved"
