"""The verb bind: places a pod on the node that kube-scheduler chose, with one write.

This module does the I/O: it runs the steps of a BindTransaction, and settles charges in doubt.
Every decision is in transaction.py and in the ledger. Tested in
`tests/unit/extender/verbs/bind/test_binder.py` and `tests/unit/extender/test_service.py`.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from gpushare.core.model import PodRef, Shares
from gpushare.core.states.entry import Entry
from gpushare.errors import (
    ApiConflict,
    ApiError,
    ApiNotFound,
    ApiUnavailable,
    MessageError,
    WireError,
)
from gpushare.extender.managed_resources import ManagedResource, ManagedResources, ResourceRequest
from gpushare.extender.verbs.answer import NOT_READY, VerbAnswer
from gpushare.extender.verbs.bind.gate import NOT_LEADING, Arrival, Torn
from gpushare.extender.verbs.bind.transaction import (
    BUDGET,
    NO_LEAD,
    NOT_OURS,
    BindResult,
    BindTransaction,
    Step,
    WaitAtGate,
    WriteBinding,
    observed_pod,
)
from gpushare.extender.verbs.recipients import Recipients
from gpushare.extender.verbs.tickets import BindSlots, Tickets
from gpushare.kube.api import Api
from gpushare.ledger import Overdue
from gpushare.logline import Line
from gpushare.wire.binding import check_bound, encode_binding
from gpushare.wire.extender import decode_bind, encode_bind
from gpushare.wire.groups import NO_GROUP, Group
from gpushare.wire.objects import PODS, Pod

log = logging.getLogger("gpushare.bind")

_POST_TIMEOUT = 3.0
"""Seconds a Binding may take."""

_READ_TIMEOUT = 2.0
"""Seconds a read may take; a read before the Binding must leave time for the Binding."""

_LAST_READ = 0.5
"""Seconds of the budget that are reserved for reading the pod back."""

_LOOK = 1.0
"""Seconds between two checks of the leadership while pods wait at the gate."""

_FAILED = "gpushare failed to bind it; its log says why"

_ROUND = 30.0
"""Seconds after which a round of settling ends: an API server that does not answer must not make
the thread look stuck. The next round begins with the remaining charges.
"""


Later = Callable[[BindResult], None]
"""Called once with the outcome of a bind that has waited at the gate, by another thread."""


@dataclass(frozen=True, slots=True)
class _WaitingBind:
    """A bind at the gate."""

    transaction: BindTransaction
    later: Later


def _run_now(work: Callable[[], None]) -> None:
    work()


class Binder:
    """Binds pods, one call of `bind` each, from any thread.

    room_on: called with the node of each charge, in doubt or at the gate, that is given back
    without a change in the cluster. torn: called with a group that the API server has torn, the
    refused pod, and the error. run: runs the remaining steps of a bind that has passed the gate, in
    production in another thread.
    """

    def __init__(
        self,
        api: Api,
        resources: ManagedResources,
        leads_until: Callable[[], float],
        clock: Callable[[], float] = time.monotonic,
        wall_ns: Callable[[], int] = time.time_ns,
        *,
        room_on: Callable[[str], None] | None = None,
        torn: Callable[[Torn, PodRef, str], None] | None = None,
        run: Callable[[Callable[[], None]], object] = _run_now,
    ) -> None:
        self._api = api
        self._resources = resources
        self._leads_until = leads_until
        self._clock = clock
        self._wall_ns = wall_ns
        self._room_on = room_on
        self._torn = torn
        self._run = run
        self._last_stamp = 0
        self._next_in_round = 0
        self._conflicts = 0
        self._in_flight = 0
        self._at_gate: dict[str, _WaitingBind] = {}
        self._lock = threading.Lock()

    def bind(
        self,
        ref: PodRef,
        node: str,
        approved: bool,
        resource_request: ResourceRequest | None,
        group: Group = NO_GROUP,
        *,
        later: Later | None = None,
    ) -> BindResult | None:
        """Bind the pod to the node; return the outcome within BUDGET seconds.

        The outcome is None for a pod that waits at the gate for its group: then `later` is called
        with the outcome, within the wait of the gate and BUDGET seconds more. `approved`: filter
        has approved the pod for the node, and `resource_request` and `group` belong to the pod;
        otherwise the pod is read. A pod of a group needs `later`.
        """
        begun = self._clock()
        if self._at_gate and self._resources.gate.replaced(ref.uid):
            self.open_gate()
        with self._lock:
            # Nanoseconds since the epoch, always increasing: device plug-ins sort by the stamp.
            self._last_stamp = max(self._wall_ns(), self._last_stamp + 1)
            stamp = str(self._last_stamp)
        transaction = BindTransaction(
            resources=self._resources,
            ref=ref,
            node=node,
            approved=approved,
            resource_request=resource_request,
            stamp=stamp,
            group=group,
        )
        result = self._carry_on(
            transaction,
            lambda: transaction.start(self._clock(), self._leads_until()),
            begun + BUDGET,
        )
        if isinstance(result, BindResult):
            return result
        if later is None:
            return transaction.turned_back("its group has to wait, and this call cannot", "refused")
        request = transaction.resource_request
        arrival = Arrival(
            ref=ref,
            stamp=stamp,
            node=node,
            resource=request[0].names.resource if request else "",
            until=begun + self._resources.gate.wait,
        )
        with self._lock:
            self._at_gate[stamp] = _WaitingBind(transaction, later)
        self._resources.gate.arrive(result.group, arrival)
        self.open_gate()
        return None

    def open_gate(self) -> None:
        """Carry out the verdicts of the gate: send Bindings, or give charges back."""
        gate, now = self._resources.gate, self._clock()
        for verdict in gate.take(now):
            with self._lock:
                binds = [self._at_gate.pop(arrival.stamp) for arrival in verdict.arrivals]
            refusal, reason = verdict.refusal, verdict.reason
            # One check for the whole group, before any Binding is sent.
            if not refusal and self._leads_until() < now + BUDGET:
                refusal, reason = NO_LEAD, NOT_LEADING
            if not refusal and not all(bind.transaction.has_place() for bind in binds):
                refusal, reason = "a node or device of its group is not there any more", "changed"
            if refusal:
                if not verdict.refusal:
                    gate.take_back(verdict)
                self._turn_back(binds, refusal, reason)
                continue
            with self._lock:
                self._in_flight += len(binds)
            for bind in binds:
                self._run(partial(self._pass_gate, bind, now + BUDGET))

    def guard_gate(self, max_seconds: float = _LOOK) -> None:
        """Wait for a verdict of the gate, at most `max_seconds`, and carry it out."""
        gate = self._resources.gate
        gate.wait_for_verdict(self._clock, max_seconds)
        if self._at_gate and self._leads_until() < self._clock():
            gate.turn_all_back(NO_LEAD, NOT_LEADING)
        self.open_gate()

    def _turn_back(self, binds: Sequence[_WaitingBind], refusal: str, reason: str) -> None:
        results = [bind.transaction.turned_back(refusal, reason) for bind in binds]
        for bind, result in zip(binds, results, strict=True):
            if bind.transaction.resource_request is not None and self._room_on is not None:
                self._room_on(bind.transaction.node)
            _answer_later(bind, result)

    def _pass_gate(self, bind: _WaitingBind, deadline: float) -> None:
        """Send the Binding of a pod of a whole group.

        deadline: the time until which this process surely leads.
        """
        transaction, now = bind.transaction, self._clock()
        if self._leads_until() >= now + BUDGET:
            deadline = now + BUDGET
        result: BindResult | WaitAtGate = BindResult(_FAILED, "failed")
        try:
            result = self._carry_on(transaction, lambda: transaction.let_through(now), deadline)
        except Exception:
            log.exception(Line("a bind failed behind the gate", pod=transaction.ref))
        finally:
            with self._lock:
                self._in_flight -= 1
        if not isinstance(
            result, BindResult
        ):  # the charge has ended meanwhile, and a read found it
            result = transaction.turned_back("its group has to wait again", "refused")
        if result.error and result.reason not in ("in_doubt", "failed"):
            self._note_unbound(transaction.ref, result.error)
        _answer_later(bind, result)

    def _note_unbound(self, ref: PodRef, error: str) -> None:
        torn = self._resources.gate.unbound(ref.uid)
        if torn is None:
            return
        log.warning(
            Line(
                "a group is torn",
                group=torn.group_key,
                bound=torn.bound_count,
                size=torn.size,
                pod=ref,
                error=error,
            )
        )
        if self._torn is not None:
            self._torn(torn, ref, error)

    def _carry_on(
        self, transaction: BindTransaction, first: Callable[[], Step], deadline: float
    ) -> BindResult | WaitAtGate:
        """Run the transaction to the end, or to a wait at the gate; return that step.

        deadline: the end of the bind's time.
        """
        with self._lock:
            self._in_flight += 1
        try:
            step = first()
            while not isinstance(step, BindResult | WaitAtGate):
                seconds = max(deadline - self._clock(), _LAST_READ)
                if isinstance(step, WriteBinding):
                    timeout = min(max(seconds - _LAST_READ, _LAST_READ), _POST_TIMEOUT)
                    error = self._write(step, timeout, deadline)
                    step = transaction.written(error, self._clock())
                else:
                    sent_at = self._clock()
                    pod = self._read(step.ref, min(seconds, _READ_TIMEOUT))
                    step = transaction.read(pod, sent_at, self._clock(), self._leads_until())
        except BaseException:
            # Our bug, or the process is ending.
            transaction.abandoned(self._clock())
            raise
        finally:
            with self._lock:
                self._in_flight -= 1
        return step

    def settled(self) -> bool:
        """Return whether nothing sent from here can still land."""
        doubts = any(resource.ledger.counts()["in_doubt"] for resource in self._resources)
        return not (self._in_flight or doubts)

    def state(self) -> dict[str, float]:
        """Return values for metrics: of the gate, and the number of Bindings refused with 409."""
        return {"bind_conflicts_total": self._conflicts, **self._resources.gate.state()}

    def settle_overdue(self) -> int:
        """Settle charges in doubt by reading their pods; return the number of charges."""
        end = self._clock() + _ROUND
        due = [
            (resource, overdue)
            for resource in self._resources
            for overdue in resource.ledger.overdue(self._clock())
        ]
        start = self._next_in_round % len(due) if due else 0
        settled_count = 0
        for resource, overdue in due[start:] + due[:start]:
            if self._clock() > end:
                break
            settled_count += 1
            self._settle(resource, overdue)
        self._next_in_round = start + settled_count
        return settled_count

    def _write(self, step: WriteBinding, timeout: float, deadline: float) -> ApiError | None:
        ref = step.ref
        body = encode_binding(ref, step.node, step.annotations)
        # kube-apiserver stops its work after this time too (the query `timeout` of any request).
        # Otherwise kube-apiserver could work for a minute, and the next leader would have to wait.
        query = {"timeout": f"{timeout:.3f}s"}
        try:
            # The leadership was checked to last for BUDGET. A process that was paused since
            # (SIGSTOP, a stalled machine), or waited for a name server or a credential, may reach
            # this line while another process leads, or even after the other process has led.
            answer = self._api.request(
                "POST",
                f"/api/v1/namespaces/{ref.namespace}/pods/{ref.name}/binding",
                query=query,
                body=body,
                timeout=timeout,
                not_after=deadline,
            )
            check_bound(answer)
        except ApiError as error:
            if isinstance(error, ApiConflict):
                with self._lock:
                    self._conflicts += 1
            return error
        except WireError as error:
            # Not the answer of an API server, but a proxy's login page, say: the outcome is
            # unknown.
            return ApiUnavailable(f"{error}; does a proxy answer for the API server?", 0)
        return None

    def _read(self, ref: PodRef, timeout: float) -> Pod | ApiError | None:
        try:
            path = f"/api/v1/namespaces/{ref.namespace}/pods/{ref.name}"
            body = self._api.request("GET", path, timeout=timeout)
            return PODS.decode_answer(body, ref.namespace, ref.name)
        except ApiNotFound:
            return None
        except ApiError as error:
            return error
        except WireError as error:
            return ApiError(str(error), 0)

    def _settle(self, resource: ManagedResource, overdue: Overdue) -> None:
        sent_at = self._clock()
        response = self._read(overdue.ref, _READ_TIMEOUT)
        if isinstance(response, ApiError):
            return
        try:
            pod = observed_pod(response, overdue.ref, resource.names)
        except WireError:
            return
        resource.ledger.settle(overdue.ref.uid, overdue.token, pod, sent_at)
        if resource.ledger.entry(overdue.ref.uid) is None:
            self._note_unbound(overdue.ref, "its Binding has not landed")
            if self._room_on is not None:
                self._room_on(overdue.node)


def _answer_later(bind: _WaitingBind, result: BindResult) -> None:
    try:
        bind.later(result)
    except Exception:  # the binds of the other members go on
        log.exception(Line("a bind has no answer", pod=bind.transaction.ref))


class BindVerb:
    """Answers bind. The arguments are those of `Service`."""

    def __init__(
        self,
        resources: ManagedResources,
        tickets: Tickets,
        binder: Binder,
        recipients: Recipients,
        *,
        not_ready: Callable[[], str],
        bind_slots: BindSlots,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._resources = resources
        self._tickets = tickets
        self._binder = binder
        self._clock = clock
        self._not_ready = not_ready
        self._bind_slots = bind_slots
        self._recipients = recipients

    def answer(self, body: bytes, later: Callable[[VerbAnswer], None]) -> VerbAnswer | None:
        """Return the answer to a body of bind, with any error in the field `Error`.

        None: the pod waits at the gate, and another thread calls `later` with the answer.
        """
        try:
            args = decode_bind(body)
        except MessageError as error:
            return VerbAnswer(encode_bind(f"gpushare: {error}"), "malformed", {"error": str(error)})
        ref, node = args.ref, args.node
        line: dict[str, object] = {"pod": ref, "node": node}
        if reason := self._not_ready():
            text = NOT_READY + reason
            return VerbAnswer(encode_bind(text), "not_ready", line | {"error": text})
        if not self._bind_slots.take():
            return VerbAnswer(encode_bind("gpushare: too many binds are under way"), "busy", line)
        begun = self._clock()

        def answer_later(result: BindResult) -> None:
            answer = self._answer(ref, node, result)
            later(replace(answer, waited=self._clock() - begun))

        try:
            approved, resource_request, group = self._tickets.get(ref.uid, node)
            result = self._binder.bind(
                ref, node, approved, resource_request, group, later=answer_later
            )
        finally:
            self._bind_slots.free()
        if result is None:
            # The books have charged the pod.
            for resource in self._resources:
                resource.holds.charged(ref.uid)
            return None
        return self._answer(ref, node, result)

    def _answer(self, ref: PodRef, node: str, result: BindResult) -> VerbAnswer:
        """Return the answer for the outcome; end the hold, drop the ticket, write the event."""
        line: dict[str, object] = {"pod": ref, "node": node}
        event_messages, last_hour = self._recipients.event_messages, self._recipients.last_hour
        # Not earlier: until the books charge the pod, only the hold protects its devices.
        for resource in self._resources:
            resource.holds.end_after_bind(ref.uid, is_refused=bool(result.error))
        if result.error:
            if event_messages is not None and result.reason != NOT_OURS:
                event_messages.bind_failed(ref, node, result.error)
            error_text = f"gpushare: {result.error}"
            return VerbAnswer(
                encode_bind(error_text), result.reason, line | {"error": result.error}
            )
        self._tickets.remove(ref.uid)
        shares: Shares = ()
        for resource in self._resources:
            record = resource.ledger.record(ref.uid)
            if isinstance(record, Entry) and record.placement is not None:
                shares = record.placement
                if last_hour is not None:
                    units = sum(units for _, units in shares)
                    last_hour.allocated(resource.names.resource, ref.uid, units)
        if event_messages is not None:
            event_messages.bound(ref, node, shares)
        line["devices"] = ",".join(f"{device}:{units}" for device, units in shares) or "-"
        return VerbAnswer(encode_bind(), result.reason, line)
