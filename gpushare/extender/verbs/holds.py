"""What filter has promised, and nobody has bound yet: the rules by which a hold begins and ends.

Filter answers long before kube-scheduler binds: a pod may wait for its volumes or for its group,
and the next pod is asked about meanwhile. A hold lowers what filter offers to *other* pods, and
nothing else: bind decides by the ledger alone, so a wrong hold costs others an offer for seconds,
never memory. Nothing is stored; kube-scheduler's nominations come back with the list of pods.

Knows no ledger, no devices and no clock: time is an argument, seconds of a monotonic clock. Under
its lock there is only bookkeeping. Any thread may call any method.
"""

import heapq
import threading
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from itertools import count
from operator import attrgetter
from typing import NamedTuple

from gpushare.core.model import Request, Shares
from gpushare.extender.follow.group_members import GroupMembers
from gpushare.wire.groups import Claimant

FLOOR = 0.3
"""Seconds that a hold counts at least; filter may wait as long before it refuses for one."""

GROUP = 60.0
"""Seconds after its group's last filter in which a member's hold counts for the group itself."""

_SHORT = 2.0
"""Seconds against others where kube-scheduler nominates whoever waits (1.35 and later).

Of a group it is FLOOR."""
_PLAIN, _LONG = 5.0, 60.0
"""Seconds against others where it does not: of a pod that binds at once, and of one that waits."""

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
    lapsed: bool = False
    """It counts for its own group alone."""
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


@dataclass(slots=True)
class _Round:
    """The tries of one group."""

    asked: set[str] = field(default_factory=set)
    """Members since the round began."""
    last: str = ""
    """The uid of the last one."""
    at: float = 0.0
    """When it asked."""
    fruitless: int = 0
    """Rounds in a row that bound nothing."""
    bound: bool = False
    """This one has bound something."""


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
        self._by_group: dict[str, set[str]] = {}
        self._reserved: set[str] = set()
        self._members = GroupMembers()
        # When a hold ends by time alone nothing happens in the cluster, so kube-scheduler does not
        # ask about a pod that was refused for it again for minutes. By uid, such pods; by node, the
        # groups whose holds have ended there since.
        self._turned_away: dict[str, Claimant] = {}
        self._ended: dict[str, set[str]] = {}
        self._rounds: dict[str, _Round] = {}
        # Pods whose bind was called: a late event must not make a hold of them again.
        self._binding: set[str] = set()
        # Since when nothing but what is held for others keeps a pod out.
        self._kept_out: dict[str, float] = {}
        self._priorities: Counter[int] = Counter()
        self._numbers = count()
        self.version = 0
        """Rises with each change."""
        # By node, the version of its last change; the oldest go first, up to the version forgotten.
        self._changed: dict[str, int] = {}
        self._forgotten = -1
        self._due: list[tuple[float, int, str]] = []
        self.lapsed_total = 0
        """How many holds have ended by time alone."""
        self._sweep_at = 0.0

    # -- filter and bind --------------------------------------------------------------------------

    def asked(self, pod: Claimant, now: float) -> None:
        """Note that filter is called for the pod: the first one of its group begins a new round.

        A member that was asked before is asked again in a new round, unless nobody else was asked
        in between: kube-scheduler asks about the nominated node alone first. A new round ends all
        holds of the group but those that kube-scheduler nominates, else a retry would be kept out
        by the try before.
        """
        with self._lock:
            self._binding.discard(pod.ref.uid)
            self._turned_away.pop(pod.ref.uid, None)
            key = pod.group.key
            if not key:
                return
            turn = self._rounds.setdefault(key, _Round())
            if pod.ref.uid in turn.asked and pod.ref.uid != turn.last:
                turn.fruitless = 0 if turn.bound else turn.fruitless + 1
                turn.bound, turn.asked = False, set()
                self._end_group(key)
            turn.asked.add(pod.ref.uid)
            turn.last, turn.at = pod.ref.uid, now

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
        """End the holds of a pod that filter has refused, and of its group; nominations stand.

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
            self._end_group(pod.group.key)

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
            for key in self._end(uid):
                self._rounds[key].bound = True
            if not refused:
                self._end(_reserved(uid))
            if refused:
                self._binding.discard(uid)

    # -- the watch --------------------------------------------------------------------------------

    def shown(self, pod: Claimant, nominated: str, now: float) -> None:
        """Take over a pod without a node, as the watch or a list shows it.

        A nomination begins a hold, or moves it; one that has gone ends it. No condition ends a
        hold: kube-scheduler does not write a failure again whose text is the same.
        """
        with self._lock:
            if pod.group.key:
                self._members.put(pod.ref.uid, pod.group.key, pod.request)
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

    def placed(self, uid: str, group: str, *, by_claim: bool = False) -> None:
        """End the hold of a member that is bound, or asks for no device here; its group counts it.

        group: its key. by_claim: it waits, and has claims.
        """
        with self._lock:
            self._forget(uid)
            self._members.put(uid, group, None, by_claim=by_claim)
            self._turned_away.pop(uid, None)

    def gone(self, uid: str) -> None:
        """Forget a pod that is of no group and bound, or is terminating, has ended or is gone."""
        parts = (self._holds, self._binding, self._kept_out, self._members, self._turned_away)
        if not any(uid in part for part in parts) and _reserved(uid) not in self._holds:
            return
        with self._lock:
            self._forget(uid)
            self._members.remove(uid)
            self._turned_away.pop(uid, None)

    def without_claims(self, group: str) -> Set[str]:
        """Return the pods of the group that are bound, or have no claims, by uid."""
        with self._lock:
            return self._members.without_claims(group)

    def keep(self, uids: Collection[str], members: Collection[str] = ()) -> None:
        """Forget all pods but these: a whole list shows no other without a node.

        members: all pods of groups in that list. A hold whose pod is younger than the list is lost;
        that costs one refused bind at most.
        """
        with self._lock:
            for key, hold in list(self._holds.items()):
                if hold.reserved is None and key not in uids:
                    self._end(key)
            self._binding.intersection_update(uids)
            for uid in self._kept_out.keys() - set(uids):
                del self._kept_out[uid]
            self._members.keep(members)
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
        """Let holds lapse, and end, whose time is over; return whether any is left."""
        with self._lock:
            while self._due and self._due[0][0] <= now:
                _, number, key = heapq.heappop(self._due)
                hold = self._holds.get(key)
                if hold is None or hold.number != number or hold.nominated:
                    continue
                lapses, ends = self._times(hold)
                if ends <= now:
                    self.lapsed_total += not hold.lapsed
                    self._end(key)
                elif lapses <= now and not hold.lapsed:
                    self.lapsed_total += 1
                    self._put(replace(hold, lapsed=True))
                else:
                    self._wake(hold)
            if now >= self._sweep_at:
                self._sweep_at = now + GROUP
                for group, turn in list(self._rounds.items()):
                    if group not in self._by_group and turn.at + 2 * GROUP < now:
                        del self._rounds[group]
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
        """Return the nodes where the pod itself or its group holds something."""
        with self._lock:
            uids: Iterable[str] = {pod.ref.uid, *self._by_group.get(pod.group.key, ())}
            nodes = {self._holds[uid].node for uid in uids if uid in self._holds}
            return nodes | {hold.node for hold in self._reserved_of(pod)}

    def missing(self, pod: Claimant) -> Counter[Request]:
        """Return how many places of each kind the pod's group has not yet, its own first.

        Empty for a pod of no group, and once some of the group are being bound.
        """
        uid, group = pod.ref.uid, pod.group
        with self._lock:
            turn = self._rounds.get(group.key)
            if not group.key or (turn is not None and turn.bound):
                return Counter()
            placed = self._by_group.get(group.key, set()) | self._members.among(
                group.key, self._binding
            )
            return self._members.needs(uid, pod.request, group.key, group.size, placed - {uid})

    def of_others(self, pod: Claimant) -> tuple[Hold, ...]:
        """Return the holds against the pod that are not of its own group."""
        with self._lock:
            return tuple(self._of_others(pod))

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
                for hold in self._of_others(pod)
                if not hold.nominated and since + self._seconds(hold) <= now
            )

    def soon(self, hold: Hold, now: float) -> bool:
        """Return whether the hold is so young that its bind or nomination may be on its way, or
        about to lapse: filter waits for that before it refuses another pod.
        """
        with self._lock:
            return not hold.nominated and (
                now < hold.since + FLOOR or self._times(hold)[0] <= now + FLOOR
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
        """Return when the hold lapses against others; None while kube-scheduler nominates it."""
        with self._lock:
            return None if hold.nominated else self._times(hold)[0]

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

    def _of_others(self, pod: Claimant) -> Iterator[Hold]:
        for hold in self._holds.values():
            own = pod.group.key and hold.pod.group.key == pod.group.key
            if not own and counts_against(hold, pod):
                yield hold

    def _times(self, hold: Hold) -> tuple[float, float]:
        """Return when the hold stops to count: against others, and for its own group."""
        seconds = self._seconds(hold)
        if hold.pod.group.key and hold.reserved is None:
            at = self._round_of(hold).at
            return at + seconds, at + GROUP
        return hold.since + seconds, hold.since + seconds

    def _seconds(self, hold: Hold) -> float:
        """Return how long the hold counts against others."""
        if hold.reserved is not None:
            return max(hold.reserved.until - hold.since, 0.0)
        if hold.pod.group.key:
            # kube-scheduler tries a whole group in one piece, and others only afterwards. So a
            # member that is neither bound nor nominated by then never will be, and a pod refused
            # for it might not be tried again for minutes: nothing happens when time passes.
            fruitless = self._round_of(hold).fruitless
            return FLOOR if self.nominates else max(FLOOR, _LONG / 2.0 ** min(fruitless, 30))
        return _SHORT if self.nominates else _LONG if hold.pod.waits else _PLAIN

    def _round_of(self, hold: Hold) -> _Round:
        return self._rounds.get(hold.pod.group.key) or _Round(at=hold.since)

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
        self._priorities[hold.pod.priority] += 1
        self._by_node.setdefault(hold.node, {})[key] = hold
        if hold.pod.group.key:
            self._by_group.setdefault(hold.pod.group.key, set()).add(key)
        self._note(hold.node)
        self._wake(hold)

    def _wake(self, hold: Hold) -> None:
        if not hold.nominated:
            lapses, ends = self._times(hold)
            heapq.heappush(self._due, (ends if hold.lapsed else lapses, hold.number, hold.key))

    def _end(self, key: str, *, but_nominated: bool = False) -> tuple[str, ...]:
        """End the hold of this key, and return the round that it belongs to."""
        hold = self._holds.get(key)
        if hold is None or (but_nominated and hold.nominated):
            return ()
        del self._holds[key]
        self._reserved.discard(key)
        self._priorities[hold.pod.priority] -= 1
        self._priorities += Counter()  # drops what is zero
        on_node = self._by_node[hold.node]
        del on_node[key]
        if not on_node:
            del self._by_node[hold.node]
        self._note(hold.node)
        group = hold.pod.group.key
        if self._turned_away:
            self._ended.setdefault(hold.node, set()).add(group)
        members = self._by_group.get(group)
        if members is not None:
            members.discard(key)
            if not members:
                del self._by_group[group]
        return (group,) if group in self._rounds else ()

    def _end_group(self, key: str) -> None:
        for uid in tuple(self._by_group.get(key, ())):
            self._end(uid, but_nominated=True)

    def _note(self, node: str) -> None:
        self.version += 1
        self._changed.pop(node, None)
        self._changed[node] = self.version
        if len(self._changed) > _MOST_CHANGED:
            self._forgotten = self._changed.pop(next(iter(self._changed)))


def counts_against(hold: Hold, pod: Claimant) -> bool:
    """Return whether filter leaves out what the hold takes when it answers for the pod.

    Its own hold never does. Members of a group always see each other. Others are held back by pods
    of their own priority or a higher one, as kube-scheduler does with nominated pods.
    """
    if hold.is_for(pod):
        return False
    if pod.group.key and hold.pod.group.key == pod.group.key:
        return True
    return not hold.lapsed and hold.pod.priority >= pod.priority


def _reserved(uid: str) -> str:
    """Return the key of what a plan of moves keeps for the pod, beside its other hold."""
    return f"{uid} reserved"
