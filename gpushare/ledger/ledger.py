"""The books: who holds how much of each device. The only state that decides, behind one lock.

The ledger is told the objects of the API server (nodes, and all pods that have not ended) and the
decisions of the binder; it never ranks, never does I/O, never reads a clock (time is an argument:
seconds of a monotonic clock). Under the lock there is only arithmetic. Readers take a Snapshot and
go.

The record of a pod after an event is in records.py, by the table in phases.py; the sums of records
and the readers' values are in books.py. Pods are keyed by uid, sized from their spec
and placed by their annotations *as first seen*: users can edit annotations. They are charged on
cards, not on indices (core/cover.py).
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from itertools import count, islice
from math import inf
from typing import NamedTuple

from gpushare.core.model import Allocation, NodeSpec, ObservedPod, PodRef, Request
from gpushare.core.pairing import Pairing
from gpushare.core.states import records
from gpushare.core.states.entry import Entry
from gpushare.core.states.phases import ASSUMED, Event
from gpushare.core.states.records import CpuOnly, Record, Sent
from gpushare.errors import InsufficientMemory, InvariantError, PodInFlight, PodMismatch
from gpushare.ledger.books import Reader


class LearnedPod(NamedTuple):
    """The pods that come, and their lifetimes."""

    namespace: str
    request: Request

    started: float = 0.0
    """When it began to run, in seconds since the epoch; 0 if that is not known."""


@dataclass(slots=True)
class Changes:
    """The changes of the watch or of a list."""

    new: list[tuple[LearnedPod, bool]] = field(default_factory=list)
    """The pods that it shows for the first time without gates, and whether each is on a node."""

    came: list[LearnedPod] = field(default_factory=list)
    """The pods that have come to a node."""

    went: list[LearnedPod] = field(default_factory=list)
    """The pods that have gone from their node."""

    def note(self, before: Record | None, after: Record | None) -> None:
        """Note whether the pod has come to a node, or gone from one."""
        was = before is not None and before.phase in records.ON_NODE
        now = after is not None and after.phase in records.ON_NODE
        if now and not was:
            self.came.append(_seen(after))
        elif was and after is None:
            self.went.append(_seen(before))


def _seen(record: Record | None) -> LearnedPod:
    if isinstance(record, Entry):
        return LearnedPod(record.ref.namespace, record.request, record.started)
    if isinstance(record, CpuOnly):
        return LearnedPod(record.namespace, record.request)
    raise InvariantError("a pod on a node is an entry, or has no GPU")


class Ledger(Reader):
    """The books of one managed resource. Every method may be called from any thread."""

    CHUNK = 1000
    """Pods taken over under one hold of the lock while a list is read in (about 5 ms)."""

    def __init__(self, pairing: Pairing = Pairing.AUTO) -> None:
        super().__init__(pairing)
        self._tokens = count()

    # -- observations of the watches --------------------------------------------------------------

    def replace_nodes(self, specs: Iterable[NodeSpec], keep: Collection[str] = ()) -> None:
        """Take over a complete list of nodes: those not in it are gone.

        keep: names of nodes that are in the list but could not be read; they stay as they were.
        """
        specs_by_name = {spec.name: spec for spec in specs}
        with self._lock:
            for spec in specs_by_name.values():
                self._store.set_spec(spec)
            for name in self._store.nodes.keys() - specs_by_name.keys() - set(keep):
                self._store.drop_node(name)

    def node_changed(self, spec: NodeSpec) -> None:
        """Take over a node as it is now."""
        with self._lock:
            self._store.set_spec(spec)

    def node_gone(self, name: str) -> None:
        """Close the node. Its pods stay charged and count again if it comes back."""
        with self._lock:
            self._store.drop_node(name)

    def make_layout(self) -> None:
        """Make the layout after a change of nodes here, so that the next filter need not.

        It costs as much as some copies of the names of all nodes: not for each node of a list.
        """
        with self._lock:
            self._store.arrays.layout()

    def set_unhealthy(self, node: str, devices: frozenset[int | str]) -> None:
        """Close these devices of the node, besides those its own spec says are not healthy.

        devices: each by the index that it has now, or by its uuid.
        """
        with self._lock:
            self._store.set_unhealthy(node, devices)

    def lend(self, node: str) -> None:
        """Close all devices of the node from now on: they are given out in other books.

        The charges of its pods stay. The node may not be known yet.
        """
        with self._lock:
            self._store.lend(node)

    def replace_pods(
        self, pods: Iterable[ObservedPod], keep: Collection[str] = (), started: float = inf
    ) -> Changes:
        """Take over a complete list of the pods that have not ended: those not in it are gone.

        keep: uids of pods that are in the list but could not be read; they stay as they were. It is
        read after `pods` has been, so it may be filled on the way.
        An assumed pod that the list does not show bound is not dropped: the list may be older than
        the binding. It becomes overdue. So does a bound pod that the list shows without a node:
        none ever loses its node, unless the API server is set back to an older state. started: when
        the list was begun, from which on such a pod is in doubt; without it no read frees one.
        """
        changes = Changes()
        listed_uids: set[str] = set()
        pending: list[str] = []
        chunks = iter(pods)
        while chunk := list(islice(chunks, self.CHUNK)):
            listed_uids.update(pod.ref.uid for pod in chunk)
            pending += [pod.ref.uid for pod in chunk if not pod.node]
            with self._lock:
                for pod in chunk:
                    self._shown(pod, changes)
        with self._lock:
            for uid in self._store.records.keys() - listed_uids - set(keep):
                before = self._store.records[uid]
                self._listed(uid, Event.NOT_LISTED)
                changes.note(before, self._store.records.get(uid))
            for uid in keep:
                self._shown_unreadable(uid)
            for uid in self._store.entries(*ASSUMED):
                self._listed(uid, Event.LISTED)
            for uid in pending:
                self._listed(uid, Event.LISTED_UNBOUND, started)
        return changes

    def pod_changed(self, pod: ObservedPod) -> Changes:
        """Take over a pod as an event shows it; the event may be late or a repetition."""
        changes = Changes()
        with self._lock:
            self._shown(pod, changes)
        return changes

    def pod_unreadable(self, uid: str) -> None:
        """Note that the pod is there, and cannot be read: its charge stays as it was."""
        with self._lock:
            self._shown_unreadable(uid)

    def pod_gone(self, uid: str) -> Changes:
        """Free the pod's charge, whatever the event said it was."""
        changes = Changes()
        with self._lock:
            changes.note(self._store.records.get(uid), None)
            self._store.put(uid, None)
        return changes

    # -- calls of the binder ----------------------------------------------------------------------

    def assume(
        self,
        ref: PodRef,
        request: Request,
        allocation: Allocation,
        now: float,
        *,
        stamp: str = "",
        seen: int | None = None,
        at_gate: bool = False,
    ) -> tuple[Allocation, int]:
        """Charge an allocation before it is written, if it still fits; return (the allocation with
        uuids, the capacity of its first device).

        stamp: the assume time of the Binding. It tells reports of this bind from those of another,
        and the pod is recognized by it if other annotations were edited at once. seen: the
        generation of the snapshot that the devices were chosen by; the node must not have changed
        since. None: the node may have changed; the devices only need room. at_gate: the Binding is
        not sent before `let_through`. Raises PodInFlight, PodMismatch (bound already), UnknownNode
        or InsufficientMemory; then nothing has changed.
        """
        with self._lock:
            before, node = self._store.records.get(ref.uid), allocation.node
            arrays = self._store.arrays
            if records.next_phase(before, Event.ASSUMED) is None:
                if before is not None and before.assumption is not None:
                    raise PodInFlight(f"pod {ref}: another bind of it has not ended")
                if isinstance(before, CpuOnly):
                    raise PodMismatch(
                        f"pod {ref} is bound to node {before.node!r}, and asks for no GPU there"
                    )
                if isinstance(before, Entry):
                    raise PodMismatch(f"pod {ref} is already bound to node {before.node!r}")
            self._store.check_fits(ref.uid, request, allocation)
            if seen is not None and arrays.changed_at[arrays.row[node]] > seen:
                raise InsufficientMemory(f"node {node!r} has changed meanwhile")
            node_record = self._store.nodes[node]
            if any(node_record.spec.uuids):
                uuids = tuple(node_record.spec.uuids[device] for device in allocation.devices)
                allocation = replace(allocation, uuids=uuids)
            binding = Sent(stamp, now, next(self._tokens))
            entry = records.assumed(before, ref, request, allocation, binding, at_gate=at_gate)
            self._store.put(ref.uid, entry)
            return allocation, node_record.shape.capacity[allocation.shares[0][0]]

    def let_through(self, uid: str, now: float, stamp: str) -> bool:
        """Note that the Binding of a pod at the gate is sent next; return whether it may be sent.

        It may not be sent where the charge of this stamp has ended: the pod is gone, or is bound.
        """
        with self._lock:
            before = self._store.records.get(uid)
            if records.next_phase(before, Event.LET_THROUGH) is None:
                return False
            binding = Sent(stamp, now, next(self._tokens))
            after = records.answered(before, Event.LET_THROUGH, binding)
            self._store.put(uid, after)
            return after is not before

    def landed(self, uid: str, now: float, stamp: str = "") -> None:
        """Note that the API server took the Binding; it is a fact once the watch shows it."""
        self._answered(uid, Event.ACCEPTED, stamp, now)

    def doubt(self, uid: str, now: float, stamp: str = "") -> None:
        """Keep the charge of a Binding that got no answer; its pod must be read."""
        self._answered(uid, Event.NO_ANSWER, stamp, now)

    def forget(self, uid: str, stamp: str = "") -> None:
        """Give back an assumed charge whose binding was never sent, or was definitely refused."""
        self._answered(uid, Event.REFUSED, stamp)

    def resume(
        self, uid: str, node: str, now: float, stamp: str = ""
    ) -> tuple[Allocation, int] | None:
        """Return (the Binding to send again now, the capacity of its first device).

        None if it may not be sent: it must be in doubt, sent to this node, and not be under way.
        Raises UnknownNode, or InsufficientMemory if its devices are not free any more: a process
        that led meanwhile may have given them away, or they were closed.
        """
        with self._lock:
            entry = self._store.entry(uid)
            if entry is None or records.next_phase(entry, Event.SENT_AGAIN) is None:
                return None
            if entry.node != node or entry.cover.written is None:
                return None
            resumed = self._store.check_still_fits(entry)
            self._store.put(uid, records.sent_again(entry, Sent(stamp, now, next(self._tokens))))
            return resumed

    def settle(self, uid: str, token: int, pod: ObservedPod | None, now: float) -> None:
        """Settle an overdue charge by a read of its pod made since `overdue` gave the token; see
        records.read.
        """
        with self._lock:
            step = records.read(self._store.records.get(uid), pod, token, now)
            self._store.put(uid, step.record, step.alarm)

    # -- calls of the audit -----------------------------------------------------------------------

    def recount(self, nodes: Iterable[str]) -> None:
        """Count these nodes again, if that leaves less free; see NodeArrays.recount."""
        with self._lock:
            for node in nodes:
                self._store.recount(node)

    def reshape(self, last_spec: NodeSpec, spec: NodeSpec) -> bool:
        """Replace the node's spec unless the watch has changed the spec since `last_spec`; return
        whether the spec was replaced.
        """
        with self._lock:
            node = self._store.nodes.get(last_spec.name)
            unchanged = node is not None and node.spec is last_spec
            if unchanged:
                self._store.set_spec(spec)
            return unchanged

    def correct(self, pod: ObservedPod) -> None:
        """Charge a bound pod where and as much as the API server shows; see records.corrected.

        Only an audit calls this.
        """
        with self._lock:
            uid = pod.ref.uid
            step = records.corrected(self._store.records.get(uid), pod)
            self._store.put(uid, step.record, step.alarm)

    # -- under the lock -------------------------------------------------------------------------

    def _shown(self, pod: ObservedPod, changes: Changes) -> None:
        uid = pod.ref.uid
        before = self._store.records.get(uid)
        step = records.observed(before, pod)
        if step.record is not before:
            self._store.put(uid, step.record, step.alarm)
            changes.note(before, step.record)
            if not records.is_counted(before) and records.is_counted(step.record):
                seen = LearnedPod(pod.ref.namespace, pod.request, pod.started)
                changes.new.append((seen, bool(pod.node)))

    def _shown_unreadable(self, uid: str) -> None:
        self._store.put(uid, records.observed_unreadable(self._store.records.get(uid)))

    def _listed(self, uid: str, event: Event, now: float = 0.0) -> None:
        record, token = self._store.records.get(uid), next(self._tokens)
        self._store.put(uid, records.listed(record, event, now=now, token=token))

    def _answered(self, uid: str, event: Event, stamp: str, now: float = 0.0) -> None:
        with self._lock:
            record, binding = self._store.records.get(uid), Sent(stamp, now, next(self._tokens))
            self._store.put(uid, records.answered(record, event, binding))
