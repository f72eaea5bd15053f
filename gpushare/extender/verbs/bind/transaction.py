"""The bind transaction as steps, and the settling of binds with an unknown outcome.

Knows the ledger, the decisions and the wire formats; does no I/O. A step names an action (read the
pod, write the Binding, or answer), the result comes back through `read` or `written`, and all time
is an argument, so one seed can replay any order of events. binder.py runs the steps.

The only write is the Binding. The API server merges the annotations of the Binding into the pod in
the same write that sets `nodeName`, with the uid as precondition (kube-apiserver 1.23 and later),
so there is no half state.

    start -> [read the pod] -> assume -> write -> landed -> answer ""
                                  |  ^    |-> refused: 409 is read back, else forget -> answer why
                                  v  |    |-> no answer or 5xx: in doubt, read back -> answer
                          [wait at the gate] -> turned back: forget -> answer why

A member of a group waits at the gate (gate.py) between the charge and the write.

While a Binding of a pod is in flight, no other Binding is sent for the pod. A Binding is in flight
until the API server has answered (landed, forgotten) or has not answered in time (in doubt); then
the next bind of the pod may send another.
"""

import math
from dataclasses import dataclass, field
from enum import Enum
from operator import attrgetter

from gpushare.core.decide import place
from gpushare.core.model import Allocation, ObservedPod, PodRef, Request
from gpushare.core.states.entry import Entry, Waiting
from gpushare.errors import (
    ApiConflict,
    ApiError,
    ApiNotFound,
    ApiUnavailable,
    InsufficientMemory,
    RequestRefused,
    WireError,
)
from gpushare.extender.managed_resources import ManagedResources, ResourceRequest
from gpushare.wire.annotations import Names
from gpushare.wire.binding import encode
from gpushare.wire.groups import NO_GROUP, Group, group_of
from gpushare.wire.objects import Pod
from gpushare.wire.pods import has_ended, observe_pod, pod_ref

BUDGET = 4.0
"""Seconds one bind may take: less than kube-scheduler's default httpTimeout of 5 s."""
_TRAVEL = 1.0
"""Seconds of kube-scheduler's httpTimeout for the way of a bind to this process and back."""
_LEAST_WAIT = 0.5
"""Lower bound of the wait at the gate in seconds, even if httpTimeout is too short."""

_BEST_ATTEMPTS = 4
"""Attempts that are charged only if the node has not changed since the choice."""
_PLACE_ATTEMPTS = _BEST_ATTEMPTS + 8
"""Attempts in all; in the later ones the chosen devices only have to fit."""

_device_demand = attrgetter(
    *("units", "devices", "split", "containers", "inits", "percents", "percent_containers"),
    *("cards", "apart"),
)
"""The part of a request that a charge on devices, and the choice of these, depend on."""
_NOTHING = Request()

NO_LEAD = "this gpushare extender does not lead (any more)"

NOT_OURS = "not_ours"
"""The reason for a pod that kube-scheduler would not have had bound here."""


def wait_within(http_timeout: float) -> float:
    """Return the seconds that a bind may wait at the gate, of kube-scheduler's httpTimeout."""
    return max(http_timeout - BUDGET - _TRAVEL, _LEAST_WAIT)


@dataclass(frozen=True, slots=True)
class ReadPod:
    """Step: GET the pod by name; hand the result to `read`."""

    ref: PodRef


@dataclass(frozen=True, slots=True)
class WriteBinding:
    """Step: POST the Binding; hand the result to `written`."""

    ref: PodRef
    node: str
    annotations: dict[str, str]


@dataclass(frozen=True, slots=True)
class BindResult:
    """Step: the end. error "" means bound; `reason` is one word for logs and metrics."""

    error: str
    reason: str


@dataclass(frozen=True, slots=True)
class WaitAtGate:
    """Step: wait for the other pods of the group; call `let_through` or `turned_back` then."""

    group: Group


Step = ReadPod | WriteBinding | WaitAtGate | BindResult


class ReadReason(Enum):
    """Why the pod is read."""

    FIRST_READ = "filter has not approved the pod for the node, as far as is remembered"
    RECHECK = "an earlier bind of it is in doubt"
    CONFLICT = "the API server answered 409"
    READ_BACK = "the API server gave no answer"


@dataclass(slots=True)
class BindTransaction:
    """One bind under way. A copy can go on by itself; copies share the ledger."""

    resources: ManagedResources
    ref: PodRef
    node: str
    approved: bool
    """Filter has approved the pod for the node; otherwise the pod is read and checked."""
    resource_request: ResourceRequest | None
    """The request of the pod, None for a pod without GPU; only meaningful when `approved`."""
    stamp: str
    """The assume time, which identifies this bind's Binding in the ledger."""
    annotations: dict[str, str] = field(default_factory=dict)
    read_reason: ReadReason = ReadReason.FIRST_READ
    resent: bool = False
    """A binding sent earlier may still land, so no refusal of this one frees the charge."""
    token: int = -1
    refusal: str = ""
    group: Group = NO_GROUP
    """The group of the pod, from filter or from the read."""
    is_at_gate: bool = False
    """Whether the pod waits at the gate: its place is charged, and no Binding is sent."""

    def start(self, now: float, leads_until: float) -> Step:
        """Return the first step.

        `leads_until`: the time, by the same clock, until which this process surely leads.
        """
        own_resource, request = self.resource_request or (None, _NOTHING)
        approved = self.approved
        for resource in self.resources:
            record = resource.ledger.record(self.ref.uid)
            if isinstance(record, Entry):
                self.resource_request = (resource, record.request)
                return self._already_charged(record)
            if isinstance(record, Waiting):
                # The watch may show another request than filter had, or more annotations.
                own_request = request if resource is own_resource else _NOTHING
                is_changed = _device_demand(record.request) != _device_demand(own_request)
                approved = approved and not (record.crowded or is_changed)
        return self._send(now, leads_until) if approved else ReadPod(self.ref)

    def read(
        self, response: Pod | ApiError | None, sent_at: float, now: float, leads_until: float
    ) -> Step:
        """Return the step after the pod was read, in a call sent at `sent_at`.

        `response` None: no pod has that name.
        """
        if self.read_reason is ReadReason.CONFLICT and not self.resent and self.resource_request:
            # The only Binding was refused, so a read of an unbound pod ends the doubt at any time.
            ledger = self.resource_request[0].ledger
            ledger.doubt(self.ref.uid, -math.inf, self.stamp)
            self.token = ledger.token(self.ref.uid)
        if isinstance(response, ApiError):
            return self._read_failed(response)
        if self.read_reason is ReadReason.FIRST_READ:
            return self._first_read(response, now, leads_until)
        if self.resource_request is None:
            return self._check_cpu_only(response)
        resource, _ = self.resource_request
        try:
            pod = observed_pod(response, self.ref, resource.names)
        except WireError as error:
            return BindResult(f"pod {self.ref}: {error}", "malformed")
        resource.ledger.settle(self.ref.uid, self.token, pod, sent_at)
        if pod is None or pod.ended:
            return BindResult(f"pod {self.ref} is gone", "gone")
        if pod.node:
            return self._bound_to(pod.node)
        return self._after_unbound_read(self.resource_request, now, leads_until)

    def written(self, error: ApiError | None, now: float) -> Step:
        """Return the step after the Binding was posted; `error` None: the API server accepted."""
        ledger = self.resource_request[0].ledger if self.resource_request else None
        if error is None:
            if ledger:
                ledger.landed(self.ref.uid, now, self.stamp)
            return BindResult("", "bound")
        unknown = isinstance(error, ApiUnavailable)
        if unknown or isinstance(error, ApiConflict):
            self.read_reason = ReadReason.READ_BACK if unknown else ReadReason.CONFLICT
            self.refusal = str(error)
            if ledger and (unknown or self.resent):
                ledger.doubt(self.ref.uid, now, self.stamp)
            return self._read_pod()
        if ledger and self.resent and not isinstance(error, ApiNotFound):
            ledger.doubt(self.ref.uid, now, self.stamp)
        elif ledger:
            ledger.forget(self.ref.uid, self.stamp)
        return BindResult(f"pod {self.ref}: {error}", "refused")

    def _already_charged(self, entry: Entry) -> Step:
        if entry.ref != self.ref:
            # A read under another name would prove nothing of the pod that is charged.
            return BindResult(f"pod {self.ref}: its uid is that of another pod", "gone")
        if entry.known_bound:
            return self._bound_to(entry.node)
        if entry.node != self.node or not entry.in_doubt:
            return BindResult(
                f"pod {self.ref}: a bind to node {entry.node!r} has not ended", "in_flight"
            )
        self.read_reason = ReadReason.RECHECK
        return self._read_pod()

    def _first_read(self, pod: Pod | None, now: float, leads_until: float) -> Step:
        try:
            if pod is None or pod_ref(pod).uid != self.ref.uid:
                return BindResult(f"pod {self.ref} with uid {self.ref.uid} does not exist", "gone")
            node = pod.spec.node_name if pod.spec else None
            if node:
                return self._bound_to(node)
            refusal = self.resources.scope.refusal(pod, to_bind=True)
            if refusal:
                return BindResult(f"pod {self.ref}: {refusal}", NOT_OURS)
            self.resource_request, self.approved = self.resources.resolve(pod), True
            self.group = group_of(pod)
        except WireError as error:
            return BindResult(f"pod {self.ref}: {error}", "malformed")
        if self.resource_request is None and not self.resources.knows(self.node):
            # kube-apiserver binds to any name; for a GPU pod the ledger checks the node.
            return BindResult(
                f"node {self.node!r} is not known; is it new, or gone?", "UnknownNode"
            )
        return self._send(now, leads_until)

    def _send(self, now: float, leads_until: float) -> Step:
        """Charge the request of the pod, and return the write, or the wait of a pod of a group.

        A refusal charges nothing.
        """
        if leads_until < now + BUDGET:
            return BindResult(NO_LEAD, "not_leading")
        waits = bool(self.group.key) and self.resources.gate.holds_back(self.group)
        if self.resource_request is not None:
            resource, request = self.resource_request
            try:
                allocation, capacity = charge(
                    self.resource_request,
                    self.ref,
                    self.node,
                    now=now,
                    stamp=self.stamp,
                    at_gate=waits,
                )
            except (RequestRefused, WireError) as error:
                return BindResult(str(error), type(error).__name__)
            self.annotations = encode(allocation, request, capacity, self.stamp, resource.names)
        self.is_at_gate = waits
        if waits:
            return WaitAtGate(self.group)
        return WriteBinding(self.ref, self.node, self.annotations)

    def has_place(self) -> bool:
        """Return whether the Binding of a pod at the gate is still valid: the node and the charged
        devices have not changed.
        """
        if self.resource_request is None:
            return self.resources.knows(self.node)
        return self.resource_request[0].ledger.can_still_bind(self.ref.uid)

    def let_through(self, now: float) -> Step:
        """Return the write of a pod that passes the gate."""
        self.is_at_gate = False
        if self.resource_request is not None:
            ledger = self.resource_request[0].ledger
            if not ledger.let_through(self.ref.uid, now, self.stamp):
                entry = ledger.entry(self.ref.uid)
                if entry is not None and entry.known_bound:
                    return self._bound_to(entry.node)
                return BindResult(f"pod {self.ref} is gone", "gone")
        return WriteBinding(self.ref, self.node, self.annotations)

    def turned_back(self, refusal: str, reason: str) -> BindResult:
        """Give the charge of a pod that may not pass the gate back; return the answer."""
        self.is_at_gate = False
        if self.resource_request is not None:
            self.resource_request[0].ledger.forget(self.ref.uid, self.stamp)
        return BindResult(f"pod {self.ref}: {refusal}", reason)

    def abandoned(self, now: float) -> None:
        """Note that a bug of ours ends this bind: the charge stays in doubt, since a Binding may
        have been sent; the charge of a pod at the gate is given back.
        """
        if self.resource_request is None:
            return
        ledger = self.resource_request[0].ledger
        if self.is_at_gate:
            ledger.forget(self.ref.uid, self.stamp)
        else:
            ledger.doubt(self.ref.uid, now, self.stamp)

    def _read_pod(self) -> ReadPod:
        self.token = (
            self.resource_request[0].ledger.token(self.ref.uid) if self.resource_request else -1
        )
        return ReadPod(self.ref)

    def _read_failed(self, error: ApiError) -> BindResult:
        """Return the answer after a failed read; the charge stays until a read succeeds."""
        if self.read_reason is ReadReason.FIRST_READ:
            return BindResult(f"pod {self.ref} cannot be read: {error}", "api")
        if self.read_reason is ReadReason.CONFLICT:
            return BindResult(f"pod {self.ref}: {self.refusal}", "refused")
        return self._in_doubt(f"it cannot be read either: {error}")

    def _after_unbound_read(
        self, resource_request: ResourceRequest, now: float, leads_until: float
    ) -> Step:
        """Return the step after a read of an unbound pod, by the answer to the Binding."""
        if self.read_reason is ReadReason.CONFLICT:
            return BindResult(f"pod {self.ref}: {self.refusal}", "refused")
        if self.read_reason is ReadReason.READ_BACK:
            return self._in_doubt("it reads as not bound so far")
        return self._send_again(resource_request, now, leads_until)

    def _send_again(
        self, resource_request: ResourceRequest, now: float, leads_until: float
    ) -> Step:
        """Send the same Binding once more: kube-scheduler repeats a bind in doubt.

        Both Bindings carry the same devices, and the API server refuses the second with 409.
        """
        resource, request = resource_request
        ledger = resource.ledger
        if ledger.entry(self.ref.uid) is None:
            # The read has settled the charge: no Binding can land.
            return self._send(now, leads_until)
        if leads_until < now + BUDGET:
            return BindResult(NO_LEAD, "not_leading")
        # During the read the doubt may have been settled, and a bind to another node begun.
        try:
            resumed = ledger.resume(self.ref.uid, self.node, now, self.stamp)
        except RequestRefused as error:
            return BindResult(f"pod {self.ref}: {error}", type(error).__name__)
        if resumed is None:
            return BindResult(f"pod {self.ref}: another bind of it has not ended", "in_flight")
        self.resent = True
        allocation, capacity = resumed
        self.annotations = encode(allocation, request, capacity, self.stamp, resource.names)
        return WriteBinding(self.ref, self.node, self.annotations)

    def _check_cpu_only(self, pod: Pod | None) -> BindResult:
        """Return the answer for a Binding without devices, by a read after 409 or no answer."""
        if pod is None or not pod.metadata or pod.metadata.uid != self.ref.uid:
            return BindResult(f"pod {self.ref} is gone", "gone")
        if pod.spec and pod.spec.node_name:
            return self._bound_to(pod.spec.node_name)
        return BindResult(f"pod {self.ref}: {self.refusal}", "refused")

    def _bound_to(self, node: str) -> BindResult:
        if node == self.node:
            return BindResult("", "bound")
        return BindResult(f"pod {self.ref} is already bound to node {node!r}", "bound_elsewhere")

    def _in_doubt(self, reason: str) -> BindResult:
        return BindResult(
            f"pod {self.ref}: the API server did not say whether the binding to {self.node!r} was"
            f" taken ({self.refusal or 'no answer'}); {reason}. Its memory stays charged until"
            " known",
            "in_doubt",
        )


def charge(
    resource_request: ResourceRequest,
    ref: PodRef,
    node: str,
    *,
    now: float,
    stamp: str,
    at_gate: bool = False,
) -> tuple[Allocation, int]:
    """Charge the best devices of the node; return the allocation and the capacity in units of the
    first device.

    at_gate: the Binding is not sent yet.

    Raises RequestRefused if the request does not fit there, WireError for a policy that is not
    installed.
    """
    resource, request = resource_request
    ranking = resource.scorer(request)
    for attempt in range(_PLACE_ATTEMPTS):
        snapshot = resource.ledger.snapshot()
        allocation = place(snapshot, node, request, ranking)
        generation = snapshot.generation if attempt < _BEST_ATTEMPTS else None
        try:
            return resource.ledger.assume(
                ref, request, allocation, now, stamp=stamp, seen=generation, at_gate=at_gate
            )
        except InsufficientMemory:
            # Another bind has changed the node between the snapshot and the lock, and perhaps the
            # best device with it.
            if attempt == _PLACE_ATTEMPTS - 1:
                raise
    raise AssertionError("unreachable")


def observed_pod(pod: Pod | None, ref: PodRef, names: Names) -> ObservedPod | None:
    """Return the pod of a read by name, for the ledger to settle the charge; None if it is gone.

    A pod with another uid means that our pod is gone, even if that pod cannot be decoded. A pod
    without a node settles the charge even if the annotations make no sense. Raises WireError if the
    pod is on a node and cannot be decoded.
    """
    metadata = pod.metadata if pod else None
    if pod is None or (metadata and metadata.uid and metadata.uid != ref.uid):
        return None
    try:
        return observe_pod(pod, names)
    except WireError:
        if not metadata or not metadata.uid or (pod.spec and pod.spec.node_name):
            raise
        return ObservedPod(ref, Request(), ended=has_ended(pod))
