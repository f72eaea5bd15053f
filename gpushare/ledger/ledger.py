"""The books: who holds how much of which device. The only mutable state, behind the only lock.

It is told what the API server shows (nodes, and all pods that have not ended) and what the binder
decides; it never ranks, never does I/O, never reads a clock (time is an argument: seconds of a
monotonic clock). Under the lock there is only arithmetic. Readers take a Snapshot and go.

    unknown --assume--> assumed --observed--> bound --gone--> unknown
    assumed --forget, settle--> unknown           unknown --observed--> bound

Pods are keyed by uid, sized from their spec and placed by their annotations *as first seen*: users
can edit annotations. They are charged on cards, not on indices (core/cover.py): which devices of
its node a charge counts on is found anew whenever the node changes. A charge ends only by proof:
the object is gone or has ended, the API server refused the binding, or a read made after every late
write could have landed shows the pod unbound.
"""

import threading
from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import count, islice

from gpushare.core.cover import resolve
from gpushare.core.model import (
    Allocation,
    Cover,
    Entry,
    NodeBooks,
    NodeSpec,
    ObservedPod,
    PodRef,
    Request,
    State,
)
from gpushare.core.node_arrays import Charge, NodeArrays
from gpushare.core.node_history import Past
from gpushare.core.pairing import Pairing, Pins
from gpushare.core.recount import drift
from gpushare.core.snapshot import Snapshot
from gpushare.errors import (
    InsufficientMemory,
    InvariantError,
    PodInFlight,
    PodMismatch,
    RequestRefused,
    UnknownNode,
)

HOLD = 65.0
"""Seconds a charge in doubt is kept although the pod reads as unbound.

kube-apiserver ends a request after 60 s (--request-timeout), so a binding sent earlier cannot land
later; the rest is for the read, which was sent a little before it is settled.
"""

LANDED_GRACE = 10.0
"""Seconds the watch may take to show a binding that was answered with success before it is read."""

_NO_PAST = Past()

_ALARMS_KEPT = 256
"""Alarms kept for `take_alarms`; the oldest go first, and are counted all the same."""


@dataclass(slots=True)
class _Assumption:
    """A bind of ours that no watch has shown yet."""

    token: int  # a new one with every doubt, so that what was read before does not settle it
    node: str  # where it was sent
    since: float
    sent: Cover  # the devices in the Bindings that were sent
    stamps: set[str]  # their assume times
    in_flight: bool = True
    suspect: bool = False  # its outcome has to be read: no answer came, or a list came without it
    sure: bool = False  # one has landed: the API server said so, or the pod had its assume time
    shown: bool = False  # the watch has shown it bound, and a list then without a node
    lost: bool = False  # it has landed and reads as unbound: told


@dataclass(frozen=True, slots=True)
class Overdue:
    """A charge whose pod must be read, and the token to hand back with what was read."""

    ref: PodRef
    node: str
    token: int


@dataclass(frozen=True, slots=True)
class Alarm:
    """Something that should not happen.

    kind: its name in `counts`; node: where the pod is now, or was bound where it reads as unbound.
    """

    kind: str
    ref: PodRef
    node: str


@dataclass(frozen=True, slots=True)
class Waiting:
    """A pod without a node. created: seconds since the epoch, 0 where unknown.

    gated: nobody need ask about it as it is.
    """

    uid: str
    request: Request
    created: float
    gated: bool


class Ledger:
    """The books of one managed resource. Every method may be called from any thread."""

    CHUNK = 1000
    """Pods taken over under one hold of the lock while a list is read in (about 5 ms)."""

    def __init__(self, pairing: Pairing = Pairing.AUTO) -> None:
        self._lock = threading.Lock()
        self._pins = Pins(pairing)
        self._tally = NodeArrays()
        self._specs: dict[str, NodeSpec] = {}
        self._pasts: dict[str, Past] = {}
        self._shapes: dict[str, NodeSpec] = {}
        self._unhealthy: dict[str, frozenset[int | str]] = {}
        self._entries: dict[str, Entry] = {}
        self._assumptions: dict[str, _Assumption] = {}
        self._tokens = count()
        self._plain: dict[str, tuple[str, int, int]] = {}
        self._waiting: dict[str, tuple[Request, float, bool]] = {}
        self._on_node: dict[str, set[str]] = {}
        self._alarms = Counter(placement_edited=0, bound_by_another=0, binding_lost=0)
        self._untold: deque[Alarm] = deque(maxlen=_ALARMS_KEPT)
        self._view: Snapshot | None = None

    # -- what the watches show ------------------------------------------------------------------

    def replace_nodes(self, specs: Iterable[NodeSpec], keep: Collection[str] = ()) -> None:
        """Take over a complete list of nodes: those not in it are gone.

        keep: names of nodes that are in the list but could not be read; they stay as they were.
        """
        listed = {spec.name: spec for spec in specs}
        with self._lock:
            for spec in listed.values():
                self._set_spec(spec)
            for name in self._specs.keys() - listed.keys() - set(keep):
                self._drop_node(name)

    def node_changed(self, spec: NodeSpec) -> None:
        """Take over a node as it is now."""
        with self._lock:
            self._set_spec(spec)

    def node_gone(self, name: str) -> None:
        """Close the node. Its pods stay charged and count again if it comes back."""
        with self._lock:
            self._drop_node(name)

    def set_unhealthy(self, node: str, devices: frozenset[int | str]) -> None:
        """Close these devices of the node, besides those its own spec says are not healthy.

        devices: each by the index that it has now, or by its uuid.
        """
        with self._lock:
            if devices == self._unhealthy.get(node, frozenset()):
                return
            self._unhealthy[node] = devices
            if not devices:
                del self._unhealthy[node]
            if node in self._specs:
                self._recount(node)

    def replace_pods(self, pods: Iterable[ObservedPod], keep: Collection[str] = ()) -> None:
        """Take over a complete list of the pods that have not ended: those not in it are gone.

        keep: uids of pods that are in the list but could not be read; they stay as they were. It is
        read after `pods` has been, so it may be filled on the way.
        An assumed pod that the list does not show bound is not dropped: the list may be older than
        the binding. It becomes overdue.
        """
        listed: set[str] = set()
        chunks = iter(pods)
        while chunk := list(islice(chunks, self.CHUNK)):
            listed.update(pod.ref.uid for pod in chunk)
            with self._lock:
                for pod in chunk:
                    self._observe(pod)
        with self._lock:
            for known in (self._entries, self._plain, self._waiting):
                for uid in known.keys() - listed - set(keep):
                    if uid not in self._assumptions:
                        self._forget(uid)
                    elif known is self._waiting:
                        del self._waiting[uid]
            for assumption in self._assumptions.values():
                assumption.suspect = True
                assumption.token = next(self._tokens)

    def unbound(self, uids: Iterable[str], now: float) -> None:
        """A list begun at `now` shows these pods without a node.

        None ever loses its node, unless the API server is set back to an older state. One that is
        charged as bound is read, and settled like a bind in doubt.
        """
        with self._lock:
            for uid in uids:
                entry = self._entries.get(uid)
                if entry is not None and entry.state is State.BOUND:
                    doubt = replace(entry, state=State.ASSUMED, landed=False, in_doubt=True)
                    self._entries[uid] = doubt
                    self._have_read(doubt, now)
                    self._assumptions[uid].shown = True

    def pod_changed(self, pod: ObservedPod) -> None:
        """Take over a pod as an event shows it; the event may be late or a repetition."""
        with self._lock:
            self._observe(pod)

    def pod_gone(self, uid: str) -> None:
        """Free what the pod held, whatever the event said it was."""
        with self._lock:
            self._forget(uid)

    # -- what the binder does -------------------------------------------------------------------

    def assume(
        self,
        ref: PodRef,
        request: Request,
        allocation: Allocation,
        now: float,
        *,
        stamp: str = "",
        seen: int | None = None,
    ) -> Allocation:
        """Charge an allocation before it is written, if it still fits; return it with its uuids.

        stamp: the assume time of the Binding, by which what its bind reports is told from what
        another reports, and by which it is known again where its other annotations were edited at
        once. seen: the generation of the snapshot that the devices were chosen by; the node must
        not have changed since. None: if they fit, they do. Raises PodInFlight, PodMismatch (bound
        already), UnknownNode or InsufficientMemory; then nothing has changed.
        """
        with self._lock:
            if ref.uid in self._assumptions:
                raise PodInFlight(f"pod {ref}: another bind of it has not ended")
            if ref.uid in self._entries:
                node = self._entries[ref.uid].node
                raise PodMismatch(f"pod {ref} is already bound to node {node!r}")
            if ref.uid in self._plain:
                node = self._plain[ref.uid][0]
                raise PodMismatch(f"pod {ref} is bound to node {node!r}, and asks for no GPU there")
            self._must_fit(ref.uid, request, allocation)
            if seen is not None and self._tally.changed(allocation.node) > seen:
                raise InsufficientMemory(f"node {allocation.node!r} has changed meanwhile")
            allocation = self._named(allocation)
            sent, node = Cover(allocation.shares, allocation.uuids), allocation.node
            self._put(Entry(ref, request, node, sent.written, State.ASSUMED, cover=sent))
            self._assumptions[ref.uid] = _Assumption(next(self._tokens), node, now, sent, {stamp})
            return allocation

    # Of a Binding that is charged no more nothing is taken: its pod may have been seen bound, and
    # gone, before its answer came, and another bind of the same uid be under way.

    def landed(self, uid: str, now: float, stamp: str = "") -> None:
        """The API server has confirmed the binding; it is a fact once the watch shows it."""
        with self._lock:
            assumption = self._sent(uid, stamp)
            if assumption is not None:
                assumption.in_flight, assumption.since, assumption.sure = False, now, True
                self._entries[uid] = replace(self._entries[uid], landed=True, in_doubt=False)

    def doubt(self, uid: str, now: float, stamp: str = "") -> None:
        """The binding was sent and its outcome is unknown: keep the charge, have the pod read."""
        with self._lock:
            assumption = self._sent(uid, stamp)
            if assumption is not None:
                assumption.suspect, assumption.in_flight, assumption.since = True, False, now
                assumption.token = next(self._tokens)
                self._entries[uid] = replace(self._entries[uid], in_doubt=True)

    def resume(
        self, uid: str, node: str, now: float, stamp: str = ""
    ) -> tuple[Allocation, int] | None:
        """The binding that the caller may now send again, and the capacity of its first device.

        None where it may not: it must be in doubt, sent to this node, and nobody else sending it.
        Raises UnknownNode, or InsufficientMemory where its devices are not to be had any more: one
        that led meanwhile may have given them away, and they may have been closed.
        """
        with self._lock:
            assumption, entry = self._assumptions.get(uid), self._entries.get(uid)
            if assumption is None or entry is None or assumption.in_flight or not entry.in_doubt:
                return None
            if entry.node != node or entry.cover.written is None:
                return None
            devices, units = zip(*entry.cover.written, strict=True)
            allocation = Allocation(node, devices, units, entry.cover.uuids)
            capacity = self._must_still_fit(entry, allocation)
            assumption.in_flight, assumption.since = True, now
            assumption.token = next(self._tokens)
            assumption.stamps.add(stamp)
            return allocation, capacity

    def token(self, uid: str) -> int:
        """The token to read the pod under, see settle; -1 where nothing is assumed for it."""
        with self._lock:
            assumption = self._assumptions.get(uid)
            return -1 if assumption is None else assumption.token

    def forget(self, uid: str, stamp: str = "") -> None:
        """Give back an assumed charge whose binding was never sent, or was definitely refused."""
        with self._lock:
            if self._sent(uid, stamp) is not None and not self._entries[uid].landed:
                self._give_back(uid)

    def overdue(self, now: float) -> tuple[Overdue, ...]:
        """The assumed charges whose pods have to be read now; see settle."""
        with self._lock:
            return tuple(
                Overdue(self._entries[uid].ref, self._entries[uid].node, assumption.token)
                for uid, assumption in self._assumptions.items()
                if not assumption.in_flight
                and (assumption.suspect or now >= assumption.since + LANDED_GRACE)
            )

    def settle(self, uid: str, token: int, seen: ObservedPod | None, now: float) -> None:
        """Settle an overdue charge by a read of its pod made since `overdue` gave the token.

        seen None: no pod of that name exists. A read that shows the pod bound makes its charge
        landed; it is a fact once the watch shows it, since a list under way may be older than the
        read. One that shows it unbound settles only once no late write can bind it any more; where
        it was known to be bound, an alarm tells it.
        """
        with self._lock:
            assumption = self._assumptions.get(uid)
            if assumption is None or assumption.in_flight or assumption.token != token:
                return
            if seen is None or seen.ref.uid != uid or seen.ended:
                self._give_back(uid)
            elif seen.node:
                assumption.suspect, assumption.since = False, now
                self._adopt(assumption, seen, State.ASSUMED)
            else:
                self._tell_lost(assumption, self._entries[uid])
                if now >= assumption.since + HOLD:
                    self._give_back(uid)

    def standing(self, uid: str) -> Entry | None:
        """The charge of the pod as it stands."""
        with self._lock:
            return self._entries.get(uid)

    def knows(self, node: str) -> bool:
        """Whether the node is in the books."""
        with self._lock:
            return node in self._specs

    def asks(self, uid: str) -> Request | None:
        """What the pod asks for as the watch shows it; None where it shows none that waits."""
        with self._lock:
            held = self._waiting.get(uid)
            return held[0] if held is not None else None

    def keeps(self, uid: str) -> bool:
        """Whether the pod is charged where it is bound already, or its bind may still be done.

        It may not where the node has gone, or its devices were closed or given to others since.
        """
        with self._lock:
            entry = self._entries.get(uid)
            if entry is None or entry.state is State.BOUND or entry.landed:
                return entry is not None
            if entry.cover.written is None:
                return entry.node in self._specs
            devices, units = zip(*entry.cover.written, strict=True)
            try:
                self._must_still_fit(entry, Allocation(entry.node, devices, units))
            except RequestRefused:
                return False
            return True

    # -- what readers take ----------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """The books as arrays, never changed again."""
        with self._lock:
            if self._view is None or self._view.generation != self._tally.generation:
                self._view = self._tally.snapshot(self._pins.by_row(self._tally.row))
            return self._view

    def dump(self, node: str | None = None) -> tuple[NodeBooks, ...]:
        """The nodes that share devices, by name, with what is charged on them (or the one node).

        Each as it is at one moment, one after the other: binds do not wait for all of them. Raises
        UnknownNode for a node that is not in the books.
        """
        with self._lock:
            if node is not None and node not in self._specs:
                raise UnknownNode(f"node {node!r} is not known")
            names = sorted(self._specs) if node is None else [node]
        return tuple(books for books in map(self._books, names) if books is not None)

    def _books(self, node: str) -> NodeBooks | None:
        with self._lock:
            if node not in self._specs or not self._specs[node].capacity:
                return None
            held = [self._entries.get(uid) for uid in self._on_node.get(node, ())]
            spec, used = self._shape(node), self._tally.used(node)
            cpu, memory = self._tally.host_free(node)
        entries = sorted((entry for entry in held if entry is not None), key=_by_name)
        return NodeBooks(spec, used, tuple(entries), cpu, memory)

    def counts(self) -> dict[str, int]:
        """How many nodes, pods by state, and alarms (by kind) there are.

        unplaced: charges on every device of their node, because their own are not known.
        """
        with self._lock:
            entries, specs, alarms = dict(self._entries), dict(self._specs), dict(self._alarms)
            assumed, plain = set(self._assumptions), len(self._plain)
            waiting = len(self._waiting.keys() - entries.keys())
        return {
            "nodes": len(specs),
            "assumed": len(assumed),
            "in_doubt": sum(entries[uid].in_doubt for uid in assumed & entries.keys()),
            "bound": len(entries) - len(assumed),
            "unplaced": sum(entry.placement is None for entry in entries.values()),
            "plain": plain,
            "waiting": waiting,
            **alarms,
        }

    def take_alarms(self) -> tuple[Alarm, ...]:
        """The alarms since the last call, oldest first."""
        with self._lock:
            alarms = tuple(self._untold)
            self._untold.clear()
        return alarms

    def closed_devices(self) -> dict[str, frozenset[int]]:
        """By node, the devices that are not healthy; nodes without such a device are left out."""
        with self._lock:
            shapes = list(self._shapes.values())
        return {
            shape.name: frozenset(device for device, ok in enumerate(shape.healthy) if not ok)
            for shape in shapes
            if not all(shape.healthy)
        }

    def waiting(self) -> tuple[Waiting, ...]:
        """The pods without a node that ask for devices, oldest first."""
        with self._lock:
            held = [item for item in self._waiting.items() if item[0] not in self._entries]
        found = (Waiting(uid, *what) for uid, what in held if what[0].devices)
        return tuple(sorted(found, key=lambda pod: (pod.created, pod.uid)))

    # -- what an audit does -----------------------------------------------------------------------

    def held(self) -> tuple[dict[str, Entry], dict[str, NodeSpec]]:
        """(the charges by uid, the nodes by name), both as last told."""
        with self._lock:
            return dict(self._entries), dict(self._specs)

    def drift(self) -> tuple[list[str], list[str]]:
        """(nodes whose arrays are not what their charges sum to, uids half assumed).

        Half assumed: a bind of ours without a charge, or the reverse. Both are empty unless there
        is a mistake here. Under the lock things are copied only; they are counted outside.
        """
        with self._lock:
            sums, pasts = self._tally.sums(), dict(self._pasts)
            specs, unhealthy = list(self._specs.values()), dict(self._unhealthy)
            entries, plain = list(self._entries.values()), list(self._plain.values())
            assumed = set(self._assumptions)
        shapes = {spec.name: _shape(spec, pasts, unhealthy) for spec in specs}
        charges = (*map(_charge, entries), *map(_plain_charge, plain))
        half = assumed ^ {entry.ref.uid for entry in entries if entry.state is State.ASSUMED}
        astray = {entry.node for entry in entries if _resolved(entry, shapes) is not entry}
        return sorted(astray.union(drift(sums, shapes.values(), charges))), sorted(half)

    def check(self) -> None:
        """Nothing. Raises InvariantError naming what `drift` finds."""
        wrong, half = self.drift()
        if wrong or half:
            raise InvariantError(f"the books differ from their entries: {wrong}, {half}")

    def recount(self, nodes: Iterable[str]) -> None:
        """Count these nodes anew where that leaves less free, see Tally.recount."""
        with self._lock:
            for node in nodes:
                self._resolve(node)
                if node in self._specs:
                    self._tally.recount(self._shape(node), self._charges(node))
                elif node in self._tally.row:
                    self._tally.remove_node(node)

    def reshape(self, known: NodeSpec, spec: NodeSpec) -> bool:
        """Whether nothing was told of the node since it was `known`; then it is taken over."""
        with self._lock:
            untold = self._specs.get(known.name) is known
            if untold:
                self._set_spec(spec)
            return untold

    def read_again(self, uid: str, now: float) -> None:
        """Have a half assumed pod read and settled like a bind in doubt; what is charged stays."""
        with self._lock:
            entry = self._entries.get(uid)
            if entry is None or entry.state is not State.ASSUMED:
                self._assumptions.pop(uid, None)
            elif uid not in self._assumptions:
                self._have_read(entry, now)

    def correct(self, pod: ObservedPod) -> None:
        """Charge a bound pod that is not charged where and as much as the API server shows.

        Only an audit calls this. A pod never changes its node, so what is charged elsewhere is
        nobody's. On its own node it is charged to every device: where it runs is in doubt. A charge
        with which nothing is wrong stays: the watch may have put it right since the audit looked.
        """
        with self._lock:
            entry = self._entries.get(pod.ref.uid)
            if entry is None or pod.ref.uid in self._assumptions:
                self._observe(pod)
                return
            if entry.node == pod.node and entry.charged[0] >= pod.request.total:
                return
            self._take(pod.ref.uid)
            cover = Cover() if entry.node == pod.node else _cover(pod)
            self._put(_entry(pod, cover, State.BOUND))

    # -- under the lock -------------------------------------------------------------------------

    def _have_read(self, entry: Entry, now: float) -> None:
        """Have the assumed pod read and settled."""
        self._assumptions[entry.ref.uid] = _Assumption(
            next(self._tokens),
            entry.node,
            now,
            entry.cover,
            set(),
            in_flight=False,
            suspect=True,
        )

    def _set_spec(self, spec: NodeSpec) -> None:
        # Also where they are equal: an audit knows by the object whether it was told again.
        before, self._specs[spec.name] = self._specs.get(spec.name), spec
        if before != spec:
            self._pins.serves_by_identity(spec.name, spec.serves_by_identity)
            past = self._pasts.get(spec.name, _NO_PAST)
            self._pasts[spec.name] = past.after(spec)
            self._recount(spec.name)

    def _drop_node(self, name: str) -> None:
        if self._specs.pop(name, None) is not None:
            self._tally.remove_node(name)
            self._pins.serves_by_identity(name, known=False)
            del self._pasts[name], self._shapes[name]

    def _recount(self, node: str) -> None:
        self._shapes[node] = _shape(self._specs[node], self._pasts, self._unhealthy)
        self._resolve(node)
        self._tally.set_node(self._shape(node), self._charges(node))

    def _resolve(self, node: str) -> None:
        """Find the devices anew that the charges on the node count on."""
        for uid in self._on_node.get(node, ()):
            entry = self._entries.get(uid)
            if entry is not None:
                self._entries[uid] = _resolved(entry, self._shapes)

    def _charges(self, node: str) -> list[Charge]:
        uids = self._on_node.get(node, ())
        entries = (self._entries[uid] for uid in uids if uid in self._entries)
        plain = (self._plain[uid] for uid in uids if uid in self._plain)
        return [*map(_charge, entries), *map(_plain_charge, plain)]

    def _shape(self, node: str) -> NodeSpec:
        """The node as it counts: see _shape."""
        return self._shapes[node]

    def _named(self, allocation: Allocation) -> Allocation:
        """The allocation with the uuids of its devices, as the node tells them now."""
        uuids = self._specs[allocation.node].uuids
        if not any(uuids):
            return replace(allocation, uuids=())
        return replace(allocation, uuids=tuple(uuids[device] for device in allocation.devices))

    def _observe(self, pod: ObservedPod) -> None:
        uid = pod.ref.uid
        if pod.ended:
            self._forget(uid)
        elif not pod.node:
            known = uid in self._entries or uid in self._plain
            if not known or uid in self._assumptions:
                self._waiting[uid] = (pod.request, pod.created, pod.gated)
        elif uid in self._assumptions:
            self._adopt(self._assumptions.pop(uid), pod, State.BOUND)
        elif uid in self._entries:
            self._observe_again(self._entries[uid], pod)
        elif pod.request.devices == 0:
            self._observe_plain(uid, (pod.node, pod.request.cpu, pod.request.memory))
        else:
            self._put(_entry(pod, _cover(pod), State.BOUND))

    def _observe_plain(self, uid: str, held: tuple[str, int, int]) -> None:
        before = self._plain.get(uid)
        if before == held:
            return
        if before is not None:
            self._take_plain(uid)
        self._waiting.pop(uid, None)
        self._plain[uid] = held
        self._on_node.setdefault(held[0], set()).add(uid)
        self._tally.add(_plain_charge(held))

    def _take_plain(self, uid: str) -> None:
        held = self._plain.pop(uid)
        self._tally.subtract(_plain_charge(held))
        self._leave(held[0], uid)

    def _observe_again(self, entry: Entry, pod: ObservedPod) -> None:
        if not _same(_cover(pod), entry.cover):
            self._alarm("placement_edited", pod.ref, pod.node)
        assigned = entry.assigned or pod.assigned
        # CPU and memory of a running pod may be resized; extended resources cannot.
        request = replace(entry.request, cpu=pod.request.cpu, memory=pod.request.memory)
        seen = replace(_described(entry, pod), assigned=assigned, request=request)
        if (assigned, seen.pins, request) != (entry.assigned, entry.pins, entry.request):
            self._take(entry.ref.uid)
            self._put(seen)
        elif seen != entry:
            # What it is for preemption changes no charge, so nothing is counted anew.
            self._entries[entry.ref.uid] = seen

    def _adopt(self, assumption: _Assumption, pod: ObservedPod, state: State) -> None:
        """An assumed pod is seen bound: by us, or by somebody else meanwhile."""
        entry = self._entries[pod.ref.uid]
        self._take(entry.ref.uid)
        cover = _cover(pod)
        if pod.node == assumption.node:
            assumption.sure |= bool(pod.stamp) and pod.stamp in assumption.stamps
            # Else the watch has the last word: a read may have shown it edited since it was bound.
            cover = assumption.sent if assumption.sure else cover
        if pod.node == entry.node and _same(cover, entry.cover):
            cover = entry.cover  # with the cards that it has learned of meanwhile
        else:
            self._alarm("bound_by_another", pod.ref, pod.node)
        self._put(_entry(pod, cover, state))

    def _tell_lost(self, assumption: _Assumption, entry: Entry) -> None:
        """A read shows the pod without a node: tell once where it was known to have one."""
        if (entry.landed or assumption.shown) and not assumption.lost:
            assumption.lost = True
            self._alarm("binding_lost", entry.ref, entry.node)

    def _alarm(self, kind: str, ref: PodRef, node: str) -> None:
        self._alarms[kind] += 1
        self._untold.append(Alarm(kind, ref, node))

    def _put(self, entry: Entry) -> None:
        uid = entry.ref.uid
        entry = _resolved(entry, self._shapes)
        if entry.state is State.BOUND:
            # While it is assumed it may come to wait again, and no watch would say so anew.
            self._waiting.pop(uid, None)
        self._entries[uid] = entry
        self._on_node.setdefault(entry.node, set()).add(uid)
        self._pins.add(entry)
        self._tally.add(_charge(entry))

    def _take(self, uid: str) -> None:
        entry = self._entries.pop(uid)
        self._tally.subtract(_charge(entry))
        self._leave(entry.node, uid)
        self._pins.remove(entry)

    def _leave(self, node: str, uid: str) -> None:
        uids = self._on_node[node]
        uids.remove(uid)
        if not uids:
            del self._on_node[node]

    def _sent(self, uid: str, stamp: str) -> _Assumption | None:
        """The assumption that a Binding with this assume time belongs to."""
        assumption = self._assumptions.get(uid)
        return assumption if assumption is not None and stamp in assumption.stamps else None

    def _give_back(self, uid: str) -> None:
        """The pod was not bound: it waits as before, for as long as the watch shows it."""
        del self._assumptions[uid]
        self._take(uid)

    def _forget(self, uid: str) -> None:
        self._assumptions.pop(uid, None)
        self._waiting.pop(uid, None)
        if uid in self._entries:
            self._take(uid)
        if uid in self._plain:
            self._take_plain(uid)

    def _must_fit(self, uid: str, request: Request, allocation: Allocation) -> None:
        node = allocation.node
        if node not in self._specs:
            raise UnknownNode(f"node {node!r} is not known")
        for device, units in allocation.shares:
            if self._tally.room(node, device) < units:
                raise InsufficientMemory(
                    f"node {node!r}: device {device} has no room for {units} units any more"
                )
        self._must_pair(uid, request, allocation)

    def _must_pair(self, uid: str, request: Request, allocation: Allocation) -> None:
        node = allocation.node
        if self._pins.devices(node, request, uid) not in (None, allocation.devices):
            raise InsufficientMemory(f"node {node!r}: an equal pod waits for the device plug-in")

    def _must_still_fit(self, entry: Entry, allocation: Allocation) -> int:
        """The capacity of the first of the charged devices, if they all can still be used."""
        node = entry.node
        if node not in self._specs:
            raise UnknownNode(f"node {node!r} is not known any more")
        spec, used = self._shape(node), self._tally.used(node)
        if entry.placement != allocation.shares:
            raise InsufficientMemory(f"node {node!r}: its devices have come to other indices")
        for device in allocation.devices:
            there = device < len(spec.capacity) and spec.healthy[device] and not spec.closed
            if not there or used[device] > spec.capacity[device]:
                why = "was given to others" if there else "was closed"
                raise InsufficientMemory(f"node {node!r}: device {device} {why} meanwhile")
        self._must_pair(entry.ref.uid, entry.request, allocation)
        return spec.capacity[allocation.devices[0]]


def _cover(pod: ObservedPod) -> Cover:
    """What its annotations say of its devices."""
    return Cover(pod.placement, pod.uuids)


def _same(one: Cover, other: Cover) -> bool:
    """Whether both say the same, whatever has been learned of either."""
    return (one.written, one.uuids) == (other.written, other.uuids)


def _resolved(entry: Entry, shapes: Mapping[str, NodeSpec]) -> Entry:
    """The charge on the devices of its node as they are now; as it was where they are not known."""
    shape = shapes.get(entry.node)
    if shape is None or shape.closed or not shape.capacity:
        return entry
    cover, placement = resolve(entry.cover, shape)
    if cover is entry.cover and placement == entry.placement:
        return entry
    return replace(entry, cover=cover, placement=placement)


def _entry(pod: ObservedPod, cover: Cover, state: State) -> Entry:
    """The charge of a pod that is seen bound."""
    return Entry(
        *(pod.ref, pod.request, pod.node, cover.written, state, pod.assigned),
        landed=state is State.ASSUMED,
        priority=pod.priority,
        started=pod.started,
        terminating=pod.terminating,
        labels=pod.labels,
        running=pod.running,
        cover=cover,
    )


def _described(entry: Entry, pod: ObservedPod) -> Entry:
    """The charge with what preemption and pairing ask of its pod, as it is seen now."""
    return replace(
        entry,
        priority=pod.priority,
        started=pod.started,
        terminating=pod.terminating,
        labels=pod.labels,
        running=pod.running,
    )


def _shape(
    spec: NodeSpec, pasts: Mapping[str, Past], unhealthy: Mapping[str, frozenset[int | str]]
) -> NodeSpec:
    """The node as it counts, given what it was, and without what somebody reported unhealthy."""
    shape = pasts[spec.name].taken(spec)
    closed = unhealthy.get(spec.name)
    if not closed:
        return shape
    uuids = shape.uuids or ("",) * len(shape.capacity)
    healthy = tuple(
        ok and device not in closed and uuid not in closed
        for device, (ok, uuid) in enumerate(zip(shape.healthy, uuids, strict=True))
    )
    return replace(shape, healthy=healthy)


def _charge(entry: Entry) -> Charge:
    return Charge(entry.node, entry.request, entry.placement)


def _plain_charge(held: tuple[str, int, int]) -> Charge:
    node, cpu, memory = held
    return Charge(node, Request(cpu=cpu, memory=memory), None)


def _by_name(entry: Entry) -> tuple[str, str, str]:
    return (entry.ref.namespace, entry.ref.name, entry.ref.uid)
