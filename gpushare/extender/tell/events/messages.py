"""The reasons and texts of events: the users' view of our decisions.

Knows the ledger and the recorder; no I/O. Reasons are names that people filter by: they never
change. There is no event for the end of a pod: nobody reads events of an object that is gone, and
every pod would cost a second write.

Tested in `tests/unit/extender/tell/events`.
"""

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from gpushare.core.explain import Explanation
from gpushare.core.model import PodRef, Request, Shares
from gpushare.core.selectors import Demands
from gpushare.core.snapshot import Snapshot, contested_cards
from gpushare.core.states.entry import Waiting
from gpushare.daemon.events import Buckets, EventRecorder
from gpushare.daemon.part import Part
from gpushare.explain.pod import NodeAsk, Outstanding, explanation_of
from gpushare.explain.text import behind_amount, sentence
from gpushare.extender.follow.auditor import Finding
from gpushare.extender.managed_resources import ManagedResource, ManagedResources
from gpushare.extender.tell.events.mistaken_pods import MistakenPods
from gpushare.extender.verbs.bind.gate import Torn
from gpushare.wire.events import ObjectReference

ALLOCATED = "GPUShareAllocated"
BIND_FAILED = "GPUShareBindFailed"
NO_FIT = "GPUShareNoFit"
UNHEALTHY = "GPUShareDeviceUnhealthy"
HEALTHY = "GPUShareDeviceHealthy"
MISMATCH = "GPUShareAllocationMismatch"
BOOKS_WRONG = "GPUShareBooksWrong"
CARD_CONTESTED = "GPUShareCardContested"
MISTAKE = "GPUShareMistake"
NODE_ASKED = "GPUShareNodeAsked"
NODE_NOT_ASKED = "GPUShareNodeNotAsked"
MOVED = "GPUShareMoved"
MAKES_ROOM = "GPUShareMakesRoom"
GROUP_TORN = "GPUShareGroupTorn"

NO_FIT_EVERY = 300.0
"""Seconds between two GPUShareNoFit of one pod: kube-scheduler says FailedScheduling already."""

_WAITING_EVERY = 10.0
"""Seconds between two looks at the pods that wait."""
_AT_ONCE = 3
"""Pods of one look that get an event: what would help takes up to half a second of CPU each."""
_MAX_TORN_EVENTS = 20
"""Pods of a torn group that get an event."""
_UUIDS_NAMED = 3
"""Uuids that one event names."""
_MAX_PODS = 4096
_MAX_NAMESPACES = 4096

_MISMATCHES = {
    "placement_edited": "the annotations of the pod were changed after it was bound;"
    " the devices it was given on node {node} stay charged",
    "bound_by_another": "the pod was bound to node {node} past this extender while it was being"
    " bound here; its memory is charged where it runs",
    "binding_lost": "the API server confirmed that the pod was bound to node {node}, and now shows"
    " it without a node; look whether its data were restored, or a proxy answers in its place",
}


class NoFitLimiter:
    """A limit on events about pods that no node takes, for each namespace.

    An event is written for a new set of reasons, and not too soon after the last of the pod.
    """

    def __init__(self) -> None:
        self.reported: OrderedDict[str, tuple[frozenset[str], float]] = OrderedDict()
        """By uid, the reasons and the time of the last event; any thread may look a pod up."""
        self._buckets = Buckets(rate=0.2, burst=10.0, max_buckets=_MAX_NAMESPACES)

    def allows(self, namespace: str, uid: str, reasons: frozenset[str], now: float) -> bool:
        """Return whether to report now that no node takes the pod for these reasons.

        A pod that is to be reported counts as reported.
        """
        before, at = self.reported.get(uid, (frozenset[str](), float("-inf")))
        if reasons == before or now < at + NO_FIT_EVERY:
            return False
        if not self._buckets.take(namespace, now):
            return False
        self.reported[uid] = (reasons, now)
        self.reported.move_to_end(uid)
        while len(self.reported) > _MAX_PODS:
            self.reported.popitem(last=False)
        return True


@dataclass(eq=False)
class EventMessages(Part):
    """Passes events to the recorder; any thread may call any method, and none waits.

    `unit`: the memory unit of the cluster, for the texts. `mistaken_pods`: is shown all pods, and
    one mistake a second becomes an event.
    """

    recorder: EventRecorder
    resources: ManagedResources
    unit: str
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._behind_amount = behind_amount(self.unit)
        self._no_fit_limiter = NoFitLimiter()
        self._lock = threading.Lock()
        self._waiting_from = self.clock()
        # By namespace, when a pod was told that kube-scheduler refuses alone.
        self._told_at: dict[str, float] = {}
        self._closed: dict[str, Mapping[str, frozenset[int]]] = {}
        # By resource: the uuids of all nodes at the last comparison, and by node the uuids of the
        # cards that another node claims too.
        self._contested: dict[str, tuple[object, Mapping[str, Mapping[str, str]]]] = {}
        self.mistaken_pods = MistakenPods(self.resources, self.unit, self.clock)

    def bound(self, ref: PodRef, node: str, shares: Shares | None) -> None:
        """Record that a pod was bound to the node.

        shares: None for a pod without a GPU; then there is no event.
        """
        if ref.uid in self._no_fit_limiter.reported:
            with self._lock:
                self._no_fit_limiter.reported.pop(ref.uid, None)
        if shares:
            cards = ", ".join(
                f"{units}{self._behind_amount} on device {device}" for device, units in shares
            )
            self.recorder.record(_pod(ref), ALLOCATED, "Binding", f"node {node}: {cards}")

    def bind_failed(self, ref: PodRef, node: str, reason: str) -> None:
        """Record that a bind was answered with an error."""
        note = f"node {node}: {reason}"
        self.recorder.record(_pod(ref), BIND_FAILED, "Binding", note, warning=True)

    def group_torn(self, torn: Torn, refused_pod: PodRef, reason: str) -> None:
        """Record on the pods of a group that the group is torn: the API server refused one Binding
        and took others.
        """
        note = (
            f"{torn.bound_count} of {torn.size} pods of the group are bound; pod"
            f" {refused_pod.name} is not: {reason}. A pod in its place is bound as soon as it comes"
        )
        for ref in torn.members[:_MAX_TORN_EVENTS]:
            self.recorder.record(_pod(ref), GROUP_TORN, "Binding", note, warning=True)

    def no_fit(
        self,
        ref: PodRef,
        reasons: Mapping[str, int],
        explain: Callable[[], tuple[Explanation, Outstanding]],
    ) -> None:
        """Record that no node takes the pod. `reasons`: the number of nodes by reason.

        explain: returns advice for the pod and its group; the thread that writes calls this.
        """
        total = sum(reasons.values())
        parts = ", ".join(
            f"{count} {reason_text}" for reason_text, count in sorted(reasons.items())
        )
        note = f"0 of {total} nodes take the pod: {parts}"
        self._no_fit(ref, frozenset(reasons), note, explain)

    def _no_fit(
        self,
        ref: PodRef,
        kinds: frozenset[str],
        note: str,
        explain: Callable[[], tuple[Explanation, Outstanding]],
    ) -> None:
        regarding = _pod(ref)
        if not regarding.is_sound:
            return
        with self._lock:
            if not self._no_fit_limiter.allows(ref.namespace, ref.uid, kinds, self.clock()):
                return

        def details() -> str:
            explanation, between = explain()
            return sentence(explanation, self.unit, ref.namespace, between)

        self.recorder.record(regarding, NO_FIT, "Scheduling", note, warning=True, details=details)

    def node_asked(self, ref: PodRef, ask: NodeAsk) -> None:
        """Record the request to an autoscaler for a node for the pod, or the failed request."""
        if ask.asked_at is None:
            note = f"no node was asked for: {ask.why_not}"
            self.recorder.record(_pod(ref), NODE_NOT_ASKED, "Scheduling", note, warning=True)
        else:
            note = "no device has room for it: a placeholder asks autoscalers for a node"
            self.recorder.record(_pod(ref), NODE_ASKED, "Scheduling", note)

    def moved(self, ref: PodRef, node: str, to: str, pending_pod: PodRef) -> None:
        """Record that the pod was evicted from the node to make room for a pending pod.

        The text names the pending pod only if both pods are in one namespace.
        """
        whom = (
            f"pod {pending_pod.name}"
            if pending_pod.namespace == ref.namespace
            else "a pod elsewhere"
        )
        note = f"evicted from node {node}, so that {whom} fits there; planned for node {to}"
        self.recorder.record(_pod(ref), MOVED, "Evicting", note)

    def makes_room(self, ref: PodRef, node: str, moves: int) -> None:
        """Record that pods are moved, one at a time, so that this one fits."""
        note = f"{moves} pods of node {node} are moved, one at a time, so that it fits there"
        self.recorder.record(_pod(ref), MAKES_ROOM, "Scheduling", note)

    def books_wrong(self, finding: Finding, healed: bool) -> None:
        """Record that an audit found the ledger wrong."""
        now = "put on the safe side" if healed else "left as it is"
        regarding = _pod(finding.pod) if finding.pod else _node(finding.node)
        note = f"{finding.resource}: {finding}; {now}"
        self.recorder.record(regarding, BOOKS_WRONG, "Auditing", note, warning=True)

    def tick(self, is_ready: bool) -> None:
        """Record the changes in the ledger since the last call.

        is_ready False: the ledger is not filled, or another process leads and records the changes.
        """
        if is_ready and (mistaken := self.mistaken_pods.take()):
            ref, text = mistaken
            self.recorder.record(_pod(ref), MISTAKE, "Scheduling", text, warning=True)
        if is_ready and (now := self.clock()) >= self._waiting_from:
            self._waiting_from = now + _WAITING_EVERY
            self._record_waiting(now)
        for managed_resource in self.resources:
            for alarm in managed_resource.ledger.take_alarms():
                if is_ready:
                    note = _MISMATCHES[alarm.kind].format(node=alarm.node)
                    self.recorder.record(_pod(alarm.ref), MISMATCH, "Auditing", note, warning=True)
            resource = managed_resource.names.resource
            closed_devices = managed_resource.ledger.closed_devices()
            before = self._closed.get(resource)
            if is_ready and before is not None and before != closed_devices:
                self._record_device_changes(
                    resource, before, closed_devices, managed_resource.ledger.snapshot()
                )
            if is_ready:
                self._closed[resource] = closed_devices
                self._record_contested_cards(resource, managed_resource.ledger.snapshot())
            else:
                self._closed.pop(resource, None)
                self._contested.pop(resource, None)

    def _record_waiting(self, now: float) -> None:
        """Record what would help pods that kube-scheduler's own filters leave no node: it calls no
        extender for them, and who may not read nodes has nothing else to go by.

        Of a few namespaces the oldest pod; those that have waited longest for that come first.
        """
        oldest: dict[str, tuple[ManagedResource, Waiting]] = {}
        for resource in self.resources:
            for pod in resource.ledger.waiting():
                is_refused = pod.gated and pod.served and not pod.demands.gated
                if is_refused and pod.ref.uid not in self._no_fit_limiter.reported:
                    oldest.setdefault(pod.ref.namespace, (resource, pod))
        self._told_at = {name: at for name, at in self._told_at.items() if name in oldest}
        for name in sorted(oldest, key=lambda name: self._told_at.get(name, -math.inf))[:_AT_ONCE]:
            self._told_at[name] = now
            resource, pod = oldest[name]
            explain = partial(_explained, resource, pod.request, pod.demands)
            self._no_fit(pod.ref, _LEFT_OUT, "kube-scheduler finds no node for the pod", explain)

    def _record_contested_cards(self, resource: str, view: Snapshot) -> None:
        """Record on each node the cards that another node has come to claim too."""
        uuids, before = self._contested.get(resource, (None, {}))
        if uuids is view.uuids:  # snapshots share the uuids until a node changes
            return
        contested = contested_cards(view)
        self._contested[resource] = view.uuids, contested
        for node, cards in contested.items():
            reported_cards = before.get(node, {})
            new = [
                f"{uuid} (also on {other_node})"
                for uuid, other_node in cards.items()
                if uuid not in reported_cards
            ]
            if new:
                more = f" and {len(new) - _UUIDS_NAMED} more" if len(new) > _UUIDS_NAMED else ""
                note = f"{resource}: another node claims the same cards:"
                note += f" {', '.join(new[:_UUIDS_NAMED])}{more}"
                self.recorder.record(_node(node), CARD_CONTESTED, "Monitoring", note, warning=True)

    def _record_device_changes(
        self,
        resource: str,
        before: Mapping[str, frozenset[int]],
        now: Mapping[str, frozenset[int]],
        view: Snapshot,
    ) -> None:
        for node in before.keys() | now.keys():
            was, is_now = before.get(node, frozenset()), now.get(node, frozenset())
            if new := is_now - was:
                note = f"{resource}: nothing new is placed on {_devices(new)}"
                self.recorder.record(_node(node), UNHEALTHY, "Monitoring", note, warning=True)
            row = view.row.get(node)  # none if the node is gone
            usable = view.open[row].nonzero()[0].tolist() if row is not None else ()
            if opened := (was - is_now).intersection(usable):
                note = f"{resource}: {_devices(opened)} may be used again"
                self.recorder.record(_node(node), HEALTHY, "Monitoring", note)


_LEFT_OUT = frozenset({"left out"})


def _explained(
    resource: ManagedResource, request: Request, demands: Demands
) -> tuple[Explanation, Outstanding]:
    return explanation_of(resource, request, demands, time.time()), Outstanding()


def _devices(devices: frozenset[int]) -> str:
    return f"device {', '.join(map(str, sorted(devices)))}"


def _pod(ref: PodRef) -> ObjectReference:
    return ObjectReference("Pod", ref.namespace, ref.name, ref.uid)


def _node(name: str) -> ObjectReference:
    """Return a node as in events of the kubelet: the name stands as the uid, for kubectl."""
    return ObjectReference("Node", "", name, name)
