"""The holds of pods that filter offered a node and that are not bound: when a hold begins and ends.

Filter answers before kube-scheduler binds: a pod may wait for its volumes while kube-scheduler
filters the next pods. A hold reduces the room that filter offers to *other* pods; a hold of a plan
of moves also leaves its pod that node alone. A *reservation* is a hold for a pod that has waited
for long (moves/reserver.py). Bind decides by the ledger, so a wrong hold costs pods
an offer for seconds, and never memory. Holds have no rules for groups: bind keeps groups whole
(bind/gate.py). Nothing is stored; kube-scheduler's nominations come back with the list of pods.

Knows no ledger, no devices and no clock: time is an argument, seconds of a monotonic clock. The
lock guards bookkeeping only. Any thread may call any method.
"""

import heapq
import math
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import count
from operator import attrgetter
from typing import NamedTuple

from gpushare.core.model import Shares
from gpushare.wire.pods import Claimant

FLOOR = 0.3
"""Seconds that filter may wait for a young or ending hold before a refusal."""

_SHORT = 2.0
"""Seconds of a hold where kube-scheduler nominates each pod that waits (1.35 and later)."""
_PLAIN, _LONG = 5.0, 60.0
"""Seconds of a hold with an older kube-scheduler: of a pod that binds at once, and of a pod that
may wait."""

_MAX_KEPT_OUT = 10_000
"""Upper bound of the pods in `Holds._kept_out`."""

_MAX_TURNED_AWAY = 20_000
"""Upper bound of the pods to wake, the latest ones; other pods wait for kube-scheduler's flush."""

_MAX_CHANGED = 20_000
"""Upper bound of the nodes in `Holds._changed`: nodes come and go for years."""

_RESERVED = " reserved"
"""Behind a uid: the key of the hold that a plan of moves or a reservation has for the pod."""

_number = attrgetter("number")


@dataclass(frozen=True, slots=True)
class Reserved:
    """The part of a hold that a plan of moves (moves/mover.py) or a reservation adds."""

    until: float
    """The end of the hold at the latest; inf for a reservation."""
    shares: Shares
    """Units by device of the node; the free part is held even while it is too small."""
    heir: bool = False
    """The hold is for the pod that the controller creates in place of this pod: of the same owner,
    with the same request."""
    opens_at: float | None = None
    """Of a reservation: when the devices are expected to be free; None: of a plan of moves."""


@dataclass(frozen=True, slots=True)
class Hold:
    """A promise of filter, a nomination of kube-scheduler, a place kept by a plan of moves, or a
    reservation.
    """

    pod: Claimant
    node: str
    number: int
    """Rises with each hold: the oldest hold has the lowest number."""
    since: float
    """The time of the offer."""
    nominated: bool = False
    """`status.nominatedNodeName` names the node."""
    reserved: Reserved | None = None
    """Of a plan of moves or a reservation; the pod may have an ordinary hold besides."""

    @property
    def key(self) -> str:
        """The key of the hold among the holds of a resource."""
        return self.pod.ref.uid if self.reserved is None else self.pod.ref.uid + _RESERVED

    @property
    def opens_at(self) -> float | None:
        """When the devices of a reservation are expected to be free; None for any other hold."""
        return None if self.reserved is None else self.reserved.opens_at

    def is_for(self, pod: Claimant) -> bool:
        """Return whether the place is the pod's own."""
        if self.pod.ref.uid == pod.ref.uid:
            return True
        if self.reserved is None or not self.reserved.heir or not pod.owner:
            return False
        same = (self.pod.owner, self.pod.request) == (pod.owner, pod.request)
        return same and self.pod.ref.namespace == pod.ref.namespace


class Ended(NamedTuple):
    """The ends of holds since the last call, for wake.py."""

    pods: Mapping[str, Claimant]
    """The pods that filter refused, by uid."""
    groups: Mapping[str, Collection[str]]
    """By node, the group keys of the holds that ended there; "" for a pod without a group."""

    def nodes(self, pod: Claimant) -> list[str]:
        """Return the nodes where a hold of another group has ended.

        When a hold of the pod's group ends, kube-scheduler tries the group again anyway.
        """
        own_group = {pod.group.key} - {""}
        return [node for node, keys in self.groups.items() if set(keys) - own_group]


class Holds:
    """The holds of one managed resource, by pod.

    nominates: kube-scheduler writes `nominatedNodeName` for each pod that waits (1.35 and later),
    so a hold without a nomination ends soon.
    """

    def __init__(self, *, nominates: bool = False) -> None:
        self.nominates = nominates
        self._lock = threading.Lock()
        self.by_key: dict[str, Hold] = {}
        """The holds by `Hold.key`. Other modules only ask how many there are."""
        self._by_node: dict[str, dict[str, Hold]] = {}
        self._reserved: set[str] = set()
        # When a hold ends by time, nothing changes in the cluster, and kube-scheduler does not try
        # a refused pod again for minutes. By uid, the refused pods; by node, the groups whose holds
        # have ended there since.
        self._turned_away: dict[str, Claimant] = {}
        self._ended: dict[str, set[str]] = {}
        # The uids of pods in bind: a late event must not begin a hold again.
        self._binding: set[str] = set()
        # By uid, since when only the holds of other pods keep the pod out.
        self._kept_out: dict[str, float] = {}
        self._priorities: dict[int, int] = {}
        self._numbers = count()
        self.version = 0
        """Rises with each change."""
        # By node, the version of the last change. The oldest are dropped; `_forgotten` is the
        # highest dropped version.
        self._changed: dict[str, int] = {}
        self._forgotten = -1
        self._due: list[tuple[float, int, str]] = []
        self.lapsed_total = 0
        """The number of holds that have ended by time."""

    # -- filter and bind --------------------------------------------------------------------------

    def asked(self, pod: Claimant) -> None:
        """Note that filter is called for the pod."""
        with self._lock:
            self._binding.discard(pod.ref.uid)
            self._turned_away.pop(pod.ref.uid, None)

    def offered(self, pod: Claimant, node: str, now: float) -> None:
        """Hold the node that filter has just offered to the pod."""
        with self._lock:
            if pod.ref.uid in self._binding:
                return
            before = self.by_key.get(pod.ref.uid)
            self._kept_out.pop(pod.ref.uid, None)
            if self._takes_reserved(pod, node):
                self._end(pod.ref.uid)
                return
            stands = before is not None and before.nominated and before.node == node
            self._put(Hold(pod, node, next(self._numbers), now, nominated=stands))

    def refused(self, pod: Claimant, kept_out_at: float | None = None) -> None:
        """End the hold of a pod that filter has refused; a nomination stays.

        kept_out_at: the time, if only the holds of other pods kept the pod out.
        """
        with self._lock:
            if kept_out_at is None:
                self._kept_out.pop(pod.ref.uid, None)
            else:
                self._kept_out.setdefault(pod.ref.uid, kept_out_at)
                if len(self._kept_out) > _MAX_KEPT_OUT:
                    del self._kept_out[next(iter(self._kept_out))]
            self._end(pod.ref.uid, but_nominated=True)

    def turned_away(self, pod: Claimant, version: int) -> None:
        """Note that filter refuses the pod while other pods hold places.

        version: the version of the holds before filter looked. A hold that has ended since then
        counts as ended now.
        """
        with self._lock:
            self._turned_away.pop(pod.ref.uid, None)
            self._turned_away[pod.ref.uid] = pod
            if len(self._turned_away) > _MAX_TURNED_AWAY:
                del self._turned_away[next(iter(self._turned_away))]
            for node in self._since(version):
                self._ended.setdefault(node, set()).add("")

    def end_after_bind(self, uid: str, *, is_refused: bool = False) -> None:
        """End the hold of a pod after its bind, which charged the pod or refused it.

        is_refused: the bind was refused, and nominations of the pod count again.
        """
        with self._lock:
            self._kept_out.pop(uid, None)
            self._binding.add(uid)
            self._end(uid)
            if not is_refused:
                self._end(uid + _RESERVED)
            if is_refused:
                self._binding.discard(uid)

    def charged(self, uid: str) -> None:
        """End the hold of a pod that waits at the gate: the ledger charges the pod."""
        with self._lock:
            self._end(uid)

    # -- the watch --------------------------------------------------------------------------------

    def shown(self, pod: Claimant, nominated: str, now: float) -> None:
        """Take over a pod without a node from the watch or a list.

        A nomination begins or moves a hold; a removed nomination ends the hold. No condition ends a
        hold: kube-scheduler does not write an unchanged failure again.
        """
        with self._lock:
            before = self.by_key.get(pod.ref.uid)
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
        parts = (self.by_key, self._binding, self._kept_out, self._turned_away)
        if not any(uid in part for part in parts) and uid + _RESERVED not in self.by_key:
            return
        with self._lock:
            self._forget(uid)
            self._turned_away.pop(uid, None)

    def keep(self, uids: Collection[str]) -> None:
        """Forget all pods but these, which are the pods without a node in a whole list.

        If a pod was created after the list was read, this call ends its hold: another pod may get
        the same offer, and one of the two binds is refused.
        """
        with self._lock:
            for key, hold in list(self.by_key.items()):
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
        """Hold a place for a pending pod, or for the heir of a moved pod, until a time.

        The hold ends sooner when that pod is bound or gone, or by `release`. The heir is identified
        when filter offers the node to it.
        """
        with self._lock:
            if heir:
                # The books charge the uid of the old pod until that pod has ended.
                pod = replace(pod, ref=replace(pod.ref, uid=f"heir of {pod.ref.uid}"))
            reserved = Reserved(until, shares, heir)
            self._put(Hold(pod, node, next(self._numbers), now, reserved=reserved))

    def release(self) -> None:
        """End all holds of plans of moves."""
        with self._lock:
            for key in [key for key in self._reserved if self.by_key[key].opens_at is None]:
                self._end(key)

    def reserved_for(self, pod: Claimant) -> str:
        """Return the node that a plan of moves holds for the pod as an heir, or ""."""
        with self._lock:
            holds = self._reserved_of(pod)
            return next((hold.node for hold in holds if hold.reserved and hold.reserved.heir), "")

    # -- reservations -----------------------------------------------------------------------------

    def may_be_reserved(self, uid: str) -> bool:
        """Return whether the pod may have a reservation: the pod is not in bind, and no plan of
        moves holds a place for the pod.
        """
        with self._lock:
            return self._may_be_reserved(uid)

    def begin_reservation(
        self, pod: Claimant, node: str, shares: Shares, opens_at: float, since: float
    ) -> bool:
        """Hold a place for a pod that has waited for long, until the pod is bound or gone, or until
        `end_reservation`. Return whether the pod may have a reservation.
        """
        with self._lock:
            reserved = Reserved(math.inf, shares, opens_at=opens_at)
            is_allowed = self._may_be_reserved(pod.ref.uid)
            if is_allowed:
                self._put(Hold(pod, node, next(self._numbers), since, reserved=reserved))
            return is_allowed

    def end_reservation(self, uid: str) -> None:
        """End the reservation of the pod."""
        with self._lock:
            hold = self.by_key.get(uid + _RESERVED)
            if hold is not None and hold.opens_at is not None:
                self._end(hold.key)

    def reservations(self) -> tuple[Hold, ...]:
        """Return the reservations, oldest first."""
        with self._lock:
            holds = [self.by_key[key] for key in self._reserved]
        return tuple(sorted((h for h in holds if h.opens_at is not None), key=_number))

    # -- readers ----------------------------------------------------------------------------------

    def expire(self, now: float) -> bool:
        """End the holds with an expired time; return whether holds remain."""
        with self._lock:
            while self._due and self._due[0][0] <= now:
                _, number, key = heapq.heappop(self._due)
                hold = self.by_key.get(key)
                if hold is None or hold.number != number or hold.nominated:
                    continue
                if self._ends_at(hold) <= now:
                    self.lapsed_total += 1
                    self._end(key)
                else:
                    self._wake(hold)
            return bool(self.by_key)

    def changed_since(self, version: int) -> tuple[int, list[str] | None]:
        """Return the current version, and the nodes with changed holds since `version`; None
        for the nodes if the version is too old to tell.
        """
        with self._lock:
            return self.version, None if version < self._forgotten else self._since(version)

    def take_ended(self) -> Ended:
        """Return the ended holds and the refused pods since the last call."""
        with self._lock:
            groups, self._ended = self._ended, {}
            return Ended(dict(self._turned_away) if groups else {}, groups)

    def forget_turned_away(self, uids: Iterable[str]) -> None:
        """Forget that filter refused these pods: kube-scheduler will try the pods again."""
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
            own_hold = self.by_key.get(pod.ref.uid)
            nodes = {own_hold.node} if own_hold is not None else set()
            return nodes | {hold.node for hold in self._reserved_of(pod)}

    def any_against(self, pod: Claimant) -> bool:
        """Return whether some hold counts against the pod."""
        with self._lock:
            return any(self._against(pod))

    def any_soon(self, pod: Claimant, now: float) -> bool:
        """Return whether a hold against the pod is about to change: it is young, so that a bind or
        a nomination may follow, or its time is nearly over.
        """
        with self._lock:
            return any(
                not hold.nominated and counts_against(hold, pod)
                for hold in (*self._youngest(now - FLOOR), *self._first_due(now + FLOOR))
            )

    def ignored_by(self, pod: Claimant, now: float) -> tuple[Hold, ...]:
        """Return the holds of other pods that do not count for the pod although their priority is
        high enough: those that the pod has waited out, and the reservations that let the pod pass.
        """
        passed: list[Hold] = []
        if self._reserved:
            with self._lock:
                own = self.by_key.get(pod.ref.uid)
                nominated = own.node if own is not None and own.nominated else ""
                passed = [
                    hold
                    for hold in map(self.by_key.__getitem__, self._reserved)
                    if counts_against(hold, pod)
                    and (hold.node == nominated or lets_pass(hold, pod, now))
                ]
        return (*self.outwaited(pod, now), *passed)

    def outwaited(self, pod: Claimant, now: float) -> tuple[Hold, ...]:
        """Return the holds of other pods that the pod has waited out: only holds have kept the pod
        out for as long as such a hold lasts.

        Otherwise pods that kube-scheduler filters again and again and never binds would keep other
        pods out for ever. Nominations are never waited out.
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
            return tuple(sorted(self.by_key.values(), key=_number))

    def until(self, hold: Hold) -> float | None:
        """Return when the hold ends by time; None for a nomination, the expected time for a
        reservation.
        """
        if hold.opens_at is not None:
            return hold.opens_at
        return None if hold.nominated else self._ends_at(hold)

    def __contains__(self, uid: object) -> bool:
        """Return whether the pod holds a place."""
        return uid in self.by_key or f"{uid}{_RESERVED}" in self.by_key

    # -- under the lock ---------------------------------------------------------------------------

    def _since(self, version: int) -> list[str]:
        nodes = []
        for node in reversed(self._changed):
            if self._changed[node] <= version:
                break
            nodes.append(node)
        return nodes

    def _against(self, pod: Claimant) -> Iterator[Hold]:
        # Usually the first hold counts, or no hold does.
        if any(priority >= pod.priority for priority in self._priorities):
            yield from (hold for hold in self.by_key.values() if counts_against(hold, pod))

    def _youngest(self, since: float) -> Iterator[Hold]:
        """Yield the holds that began after `since`."""
        for hold in reversed(self.by_key.values()):
            if hold.since <= since and not hold.nominated and hold.reserved is None:
                return
            if hold.since > since:
                yield hold

    def _first_due(self, until: float) -> Iterator[Hold]:
        """Yield the holds that end by time before `until`."""
        places = [0]
        while places:
            place = places.pop()
            if place < len(self._due) and self._due[place][0] <= until:
                _, number, key = self._due[place]
                hold = self.by_key.get(key)
                if hold is not None and hold.number == number:
                    yield hold
                places += [2 * place + 1, 2 * place + 2]

    def _may_be_reserved(self, uid: str) -> bool:
        before = self.by_key.get(uid + _RESERVED)
        return uid not in self._binding and (before is None or before.opens_at is not None)

    def _ends_at(self, hold: Hold) -> float:
        return hold.since + self._seconds(hold)

    def _seconds(self, hold: Hold) -> float:
        """Return the length of the hold in seconds."""
        if hold.reserved is not None:
            return max(hold.reserved.until - hold.since, 0.0)
        return _SHORT if self.nominates else _LONG if hold.pod.waits else _PLAIN

    def _forget(self, uid: str) -> None:
        self._binding.discard(uid)
        self._kept_out.pop(uid, None)
        self._end(uid)
        self._end(uid + _RESERVED)

    def _takes_reserved(self, pod: Claimant, node: str) -> bool:
        """Return whether a plan of moves holds a place on the node for the pod, which then needs no
        ordinary hold. From now on the hold of an heir has the uid of the pod.
        """
        for hold in self._reserved_of(pod):
            if hold.node == node:
                if hold.pod.ref.uid != pod.ref.uid:
                    self._end(hold.key)
                    self._put(replace(hold, pod=pod))
                return True
        return False

    def _reserved_of(self, pod: Claimant) -> list[Hold]:
        """Return the holds of plans of moves for the pod: at most one of each kind."""
        if not self._reserved:
            return []
        return [hold for hold in map(self.by_key.__getitem__, self._reserved) if hold.is_for(pod)]

    def _put(self, hold: Hold) -> None:
        key = hold.key
        self._end(key)
        self.by_key[key] = hold
        if hold.reserved is not None:
            self._reserved.add(key)
        self._priorities[hold.pod.priority] = self._priorities.get(hold.pod.priority, 0) + 1
        self._by_node.setdefault(hold.node, {})[key] = hold
        self._note(hold.node)
        self._wake(hold)

    def _wake(self, hold: Hold) -> None:
        if not hold.nominated and hold.opens_at is None:
            heapq.heappush(self._due, (self._ends_at(hold), hold.number, hold.key))

    def _end(self, key: str, *, but_nominated: bool = False) -> None:
        """End the hold of this key."""
        hold = self.by_key.get(key)
        if hold is None or (but_nominated and hold.nominated):
            return
        del self.by_key[key]
        if not self.by_key:
            self._due.clear()  # filter ends no expired holds where there is no hold
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
        if len(self._changed) > _MAX_CHANGED:
            self._forgotten = self._changed.pop(next(iter(self._changed)))


def counts_against(hold: Hold, pod: Claimant) -> bool:
    """Return whether the hold reduces the room that filter offers to the pod.

    The holds of pods with the same or a higher priority do, as with kube-scheduler's nominated
    pods; the pod's own hold does not.
    """
    return hold.pod.priority >= pod.priority and not hold.is_for(pod)


def lets_pass(hold: Hold, pod: Claimant, now: float) -> bool:
    """Return whether a reservation lets the pod pass: the pod is older and of the same priority, or
    its activeDeadlineSeconds end it before the devices are expected to be free.
    """
    if hold.opens_at is None:
        return False
    is_older = pod.priority == hold.pod.priority and 0 < pod.created < hold.pod.created
    return is_older or 0 < pod.deadline <= hold.opens_at - now
