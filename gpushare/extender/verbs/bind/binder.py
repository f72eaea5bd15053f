"""The verb bind: places a pod on the node that kube-scheduler chose, with one write.

Here is the I/O: the steps of a BindTransaction are run, and what is in doubt is settled. It is kept
simple: every decision is in transaction.py and in the ledger. Tested in
`tests/unit/extender/verbs/bind/test_binder.py` and `tests/unit/extender/test_service.py`.
"""

import threading
import time
from collections.abc import Callable

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
from gpushare.extender.tell.events.messages import EventMessages
from gpushare.extender.tell.page.last_hour import LastHour
from gpushare.extender.verbs.answer import VerbAnswer
from gpushare.extender.verbs.bind.transaction import (
    BUDGET,
    NOT_OURS,
    BindResult,
    BindTransaction,
    Step,
    WriteBinding,
    observed_pod,
)
from gpushare.extender.verbs.tickets import BindSlots, Tickets
from gpushare.kube.api import Api
from gpushare.ledger import Overdue
from gpushare.wire.codec import binding, check_bound
from gpushare.wire.extender import decode_bind, encode_bind
from gpushare.wire.objects import PODS, Pod

_POST_TIMEOUT = 3.0
"""Seconds a Binding may take."""

_READ_TIMEOUT = 2.0
"""Seconds a read may take: one before the Binding must leave time for it."""

_LAST_READ = 0.5
"""Seconds of the budget that are always left for reading the pod back."""

_ROUND = 30.0
"""Seconds after which a round of settling ends: an API server that answers nothing must not let
the thread look stuck. What was not looked at comes first in the next round.
"""


class Binder:
    """Binds pods, one call of `bind` each, from any thread.

    room_on: called with the node of each charge in doubt that is given back.
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
    ) -> None:
        self._api = api
        self._resources = resources
        self._leads_until = leads_until
        self._clock = clock
        self._wall_ns = wall_ns
        self._room_on = room_on
        self._last_stamp = 0
        self._next_in_round = 0
        self._conflicts = 0
        self._in_flight = 0
        self._lock = threading.Lock()

    def bind(
        self, ref: PodRef, node: str, approved: bool, resource_request: ResourceRequest | None
    ) -> BindResult:
        """Return the outcome of binding the pod to the node, within BUDGET seconds.

        `approved`: filter has approved the pod for the node, and `resource_request` is what the pod
        asks for; otherwise the pod is read.
        """
        deadline = self._clock() + BUDGET
        with self._lock:
            self._in_flight += 1
            # Nanoseconds since the epoch, always increasing: device plug-ins sort by it.
            self._last_stamp = max(self._wall_ns(), self._last_stamp + 1)
            stamp = str(self._last_stamp)
        bind = BindTransaction(self._resources, ref, node, approved, resource_request, stamp)
        try:
            step: Step = bind.start(self._clock(), self._leads_until())
            while not isinstance(step, BindResult):
                seconds = max(deadline - self._clock(), _LAST_READ)
                if isinstance(step, WriteBinding):
                    timeout = min(max(seconds - _LAST_READ, _LAST_READ), _POST_TIMEOUT)
                    error = self._write(step, timeout, deadline)
                    step = bind.written(error, self._clock())
                else:
                    sent = self._clock()
                    seen = self._read(step.ref, min(seconds, _READ_TIMEOUT))
                    step = bind.read(seen, sent, self._clock(), self._leads_until())
        except BaseException:
            # Our bug, or the process is ending: nothing is known of the write, so the charge stays.
            if bind.resource_request:
                bind.resource_request[0].ledger.doubt(ref.uid, self._clock(), bind.stamp)
            raise
        finally:
            with self._lock:
                self._in_flight -= 1
        return step

    def settled(self) -> bool:
        """Return whether nothing sent from here can still land."""
        doubts = any(managed.ledger.counts()["in_doubt"] for managed in self._resources)
        return not (self._in_flight or doubts)

    def state(self) -> dict[str, float]:
        """Return counters for metrics: Bindings that the API server refused with 409."""
        return {"bind_conflicts_total": self._conflicts}

    def settle_overdue(self) -> int:
        """Read the pods of charges in doubt and settle these; return how many were looked at."""
        end = self._clock() + _ROUND
        due = [
            (managed, overdue)
            for managed in self._resources
            for overdue in managed.ledger.overdue(self._clock())
        ]
        start = self._next_in_round % len(due) if due else 0
        settled_count = 0
        for managed, overdue in due[start:] + due[:start]:
            if self._clock() > end:
                break
            settled_count += 1
            self._settle(managed, overdue)
        self._next_in_round = start + settled_count
        return settled_count

    def _write(self, step: WriteBinding, timeout: float, deadline: float) -> ApiError | None:
        ref = step.ref
        body = binding(ref, step.node, step.annotations)
        # kube-apiserver stops its work after this time too (the query `timeout` of any request).
        # Otherwise it could go on for a minute, and the next leader would have to wait for that.
        query = {"timeout": f"{timeout:.3f}s"}
        try:
            # Leadership lasts for BUDGET, as checked before. A process that was paused since
            # (SIGSTOP, a stalled machine), or waited for a name server or a credential, may come
            # here while another process leads, or even after that one's term.
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
            # Who answered is not the API server (a proxy's login page, say), so nothing is known.
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

    def _settle(self, managed: ManagedResource, overdue: Overdue) -> None:
        sent = self._clock()
        seen = self._read(overdue.ref, _READ_TIMEOUT)
        if isinstance(seen, ApiError):
            return
        try:
            pod = observed_pod(seen, overdue.ref, managed.names)
        except WireError:
            return
        managed.ledger.settle(overdue.ref.uid, overdue.token, pod, sent)
        if self._room_on is not None and managed.ledger.entry(overdue.ref.uid) is None:
            self._room_on(overdue.node)


class BindVerb:
    """Answers bind. The arguments are those of `Service`."""

    def __init__(
        self,
        resources: ManagedResources,
        tickets: Tickets,
        binder: Binder,
        *,
        not_ready: Callable[[], str],
        bind_slots: BindSlots,
        event_messages: EventMessages | None,
        last_hour: LastHour | None,
    ) -> None:
        self._resources = resources
        self._tickets = tickets
        self._binder = binder
        self._not_ready = not_ready
        self._bind_slots = bind_slots
        self._event_messages = event_messages
        self._last_hour = last_hour

    def answer(self, body: bytes) -> VerbAnswer:
        """Return the answer to a body of bind; an error stands in its `Error`."""
        try:
            args = decode_bind(body)
        except MessageError as error:
            return VerbAnswer(encode_bind(f"gpushare: {error}"), "malformed", {"error": str(error)})
        ref, node = args.ref, args.node
        line: dict[str, object] = {"pod": ref, "node": node}
        if not_ready := self._not_ready():
            return VerbAnswer(encode_bind(not_ready), "not_ready", line | {"error": not_ready})
        if not self._bind_slots.take():
            return VerbAnswer(encode_bind("gpushare: too many binds are under way"), "busy", line)
        try:
            approved, resource_request = self._tickets.get(ref.uid, node)
            result = self._binder.bind(ref, node, approved, resource_request)
            # Not before: until the books have charged it, only its hold keeps others off its
            # devices.
            for managed in self._resources:
                managed.holds.bind(ref.uid, refused=bool(result.error))
        finally:
            self._bind_slots.free()
        if result.error:
            if self._event_messages is not None and result.reason != NOT_OURS:
                self._event_messages.bind_failed(ref, node, result.error)
            error_text = f"gpushare: {result.error}"
            return VerbAnswer(
                encode_bind(error_text), result.reason, line | {"error": result.error}
            )
        self._tickets.remove(ref.uid)
        shares: Shares = ()
        for managed in self._resources:
            record = managed.ledger.record(ref.uid)
            if isinstance(record, Entry) and record.placement is not None:
                shares = record.placement
                if self._last_hour is not None:
                    units = sum(units for _, units in shares)
                    self._last_hour.allocated(managed.names.resource, ref.uid, units)
        if self._event_messages is not None:
            self._event_messages.bound(ref, node, shares)
        line["devices"] = ",".join(f"{device}:{units}" for device, units in shares) or "-"
        return VerbAnswer(encode_bind(), result.reason, line)
