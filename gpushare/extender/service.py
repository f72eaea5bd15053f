"""The verbs: bytes in, bytes out. readiness -> decode -> ledger -> decide -> encode.

Knows no HTTP; every method may be called from many threads at once. Filter and prioritize read a
snapshot and change nothing. Each decision is one log line.
"""

import logging
import time
from collections.abc import Callable, Mapping

from gpushare.core.decide import (
    BEST,
    score_nodes,
)
from gpushare.core.model import Shares
from gpushare.core.preemption.preemptor import Preemptor, Victims
from gpushare.daemon.logs.formatters import Line
from gpushare.errors import MessageError, NotReady, UnknownNode, WireError
from gpushare.extender.door.document_cache import DocumentCache
from gpushare.extender.managed_resources import ManagedResources
from gpushare.extender.tell.events.messages import EventMessages
from gpushare.extender.tell.page.last_hour import LastHour
from gpushare.extender.verbs.answer import VerbAnswer, pod_name
from gpushare.extender.verbs.bind.binder import Binder
from gpushare.extender.verbs.bind.slots import BindSlots
from gpushare.extender.verbs.bind.steps import NOT_OURS, BindResult
from gpushare.extender.verbs.filter import FilterVerb
from gpushare.extender.verbs.preempt import BudgetsOf, no_budgets, trim_candidates
from gpushare.extender.verbs.refusal_hold import RefusalHold
from gpushare.extender.verbs.tickets import Tickets
from gpushare.wire.extender import (
    BindArgs,
    decode_bind,
    decode_filter,
    encode_bind,
    encode_priorities,
)
from gpushare.wire.inspect import encode_inspect
from gpushare.wire.pods import may_preempt, priority_of
from gpushare.wire.preempt import decode_preempt, encode_preempt

log = logging.getLogger("gpushare.decision")

_NO_VALUES: Mapping[str, object] = {}
_DEBUG_ONLY = frozenset({("prioritize", "scored"), ("prioritize", "plain")})
"""Verbs and outcomes that decide nothing yet: logged for debugging alone."""

Observe = Callable[[str, str, float], None]
"""Called for every call: verb, outcome (one word), seconds."""


class Service:
    """The extender's verbs.

    `not_ready`: the reason not to answer now, or "". `best_only`: filter answers its best node
    alone. `bind_slots`: the binds that may be under way at once; they wait for the API server, and
    would otherwise hold every thread when it is slow. `rejected`: called with the number of nodes
    that filter refused, by reason. `event_messages`: writes events for users. `budgets_of`: returns
    the disruption budgets of pods. `refusal_hold`: how long filter may wait for changes before it
    refuses a pod; None: not at all. `promise_wait`: the same before it refuses one for what is held
    for another pod. `last_hour`: counts what is allocated and refused.
    """

    def __init__(
        self,
        resources: ManagedResources,
        binder: Binder,
        *,
        not_ready: Callable[[], str],
        best_only: bool,
        bind_slots: BindSlots,
        observe: Observe,
        rejected: Callable[[Mapping[str, int]], None] | None = None,
        event_messages: EventMessages | None = None,
        budgets_of: BudgetsOf = no_budgets,
        refusal_hold: RefusalHold | None = None,
        promise_wait: RefusalHold | None = None,
        last_hour: LastHour | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._resources = resources
        self._last_hour = last_hour
        self._binder = binder
        self._not_ready = not_ready
        self._bind_slots = bind_slots
        self._observe = observe
        self._event_messages = event_messages
        self._budgets_of = budgets_of
        self._tickets = Tickets()
        self._filter = FilterVerb(
            resources,
            self._tickets,
            check_ready=self._check_ready,
            best_only=best_only,
            rejected=rejected,
            event_messages=event_messages,
            refusal_hold=refusal_hold,
            promise_wait=promise_wait,
            last_hour=last_hour,
            clock=clock,
        )
        self._documents = DocumentCache()

    def filter(self, body: bytes) -> bytes:
        """Return the answer to filter; an error stands in its `Error`."""
        return self._timed("filter", self._answer_filter, body)

    def prioritize(self, body: bytes) -> bytes:
        """Return the answer to prioritize.

        Raises MessageError or NotReady: it has no field for errors.
        """
        return self._timed("prioritize", self._prioritize, body)

    def bind(self, body: bytes) -> bytes:
        """Return the answer to bind; an error stands in its `Error`."""
        return self._timed("bind", self._bind, body)

    def preempt(self, body: bytes) -> bytes:
        """Return the answer to preempt.

        Raises MessageError or NotReady: it has no field for errors.
        """
        return self._timed("preempt", self._preempt, body)

    def inspect(self, node: str | None, resource: str | None) -> bytes:
        """Return the inspect document of one node, or of all as it was within the last second.

        Raises UnknownNode for a node or resource that the ledger does not have, NotReady before the
        ledger is filled, or if too many requests wait.
        """
        self._check_ready()
        managed = self._resources.find(resource) if resource else next(iter(self._resources))
        if managed is None:
            raise UnknownNode(f"resource {resource!r} is not managed here")
        if node is not None:
            return encode_inspect(managed.ledger.dump(node)).encode()
        ledger = managed.ledger
        return self._documents.get(
            managed.names.resource, lambda: encode_inspect(ledger.dump()).encode()
        )

    def called(self, uid: str) -> bool:
        """Return whether filter was called for the pod and it has not been bound since."""
        return uid in self._tickets

    def _timed(self, verb: str, work: Callable[[bytes], VerbAnswer], body: bytes) -> bytes:
        start = time.perf_counter()
        outcome, line = "failed", _NO_VALUES
        try:
            answer = work(body)
            outcome, line = answer.outcome, answer.line
            return answer.body
        except MessageError as error:
            outcome, line = "malformed", {"error": str(error)}
            raise
        except NotReady as error:
            outcome, line = "not_ready", {"error": str(error)}
            raise
        finally:
            seconds = time.perf_counter() - start
            self._observe(verb, outcome, seconds)
            level = logging.DEBUG if (verb, outcome) in _DEBUG_ONLY else logging.INFO
            log.log(level, Line(verb, outcome=outcome, **line, ms=round(seconds * 1000, 1)))

    def _check_ready(self) -> None:
        reason = self._not_ready()
        if reason:
            raise NotReady(f"gpushare is not ready: {reason}")

    def _answer_filter(self, body: bytes) -> VerbAnswer:
        self._bind_slots.wait_while_many()
        return self._filter.answer(body)

    def _prioritize(self, body: bytes) -> VerbAnswer:
        args = decode_filter(body)
        self._check_ready()
        try:
            resource_request = self._resources.resolve(args.pod)
        except WireError as error:
            raise MessageError(str(error)) from error
        if resource_request is None:
            return VerbAnswer(encode_priorities({}), "plain", {"pod": pod_name(args)})
        managed, request = resource_request
        snapshot = managed.ledger.snapshot()
        scores = score_nodes(snapshot, args.names, request, managed.scorer(request))
        best = scores[BEST][0] if scores else "-"
        line = {
            "pod": pod_name(args),
            "units": request.units,
            "nodes": len(args.names),
            "best": best,
        }
        return VerbAnswer(encode_priorities(scores), "scored", line)

    def _preempt(self, body: bytes) -> VerbAnswer:
        args = decode_preempt(body)
        self._check_ready()
        try:
            resource_request = self._resources.resolve(args.pod)
        except WireError as error:
            raise MessageError(str(error)) from error
        if resource_request is None:
            return VerbAnswer(encode_preempt(args.victims), "plain", {"pod": pod_name(args)})
        managed, request = resource_request
        left: dict[str, Victims] = {}
        if may_preempt(args.pod):
            counted, now = managed.counted_by_scheduler, time.time()
            preemptor = Preemptor(request, priority_of(args.pod), counted, now)
            left = trim_candidates(managed.ledger, preemptor, args.victims, self._budgets_of)
        line = {
            "pod": pod_name(args),
            "units": request.units,
            "devices": request.devices,
            "candidates": len(args.victims),
            "left": len(left),
            "changed": sum(those != args.victims[node] for node, those in left.items()),
        }
        return VerbAnswer(encode_preempt(left), "victims" if left else "no_victims", line)

    def _bind(self, body: bytes) -> VerbAnswer:
        try:
            args = decode_bind(body)
        except MessageError as error:
            return VerbAnswer(encode_bind(f"gpushare: {error}"), "malformed", {"error": str(error)})
        line: dict[str, object] = {"pod": args.ref, "node": args.node}
        try:
            self._check_ready()
        except NotReady as error:
            return VerbAnswer(encode_bind(str(error)), "not_ready", line | {"error": str(error)})
        if not self._bind_slots.take():
            return VerbAnswer(encode_bind("gpushare: too many binds are under way"), "busy", line)
        try:
            answer = self._run_bind(args)
        finally:
            self._bind_slots.free()
        fields = {"error": answer.error} if answer.error else {"devices": self._report_bound(args)}
        told = answer.error and f"gpushare: {answer.error}"
        return VerbAnswer(encode_bind(told), answer.reason, line | fields)

    def _run_bind(self, args: BindArgs) -> BindResult:
        uid = args.ref.uid
        approved, resource_request = self._tickets.get(uid, args.node)
        answer = self._binder.bind(args.ref, args.node, approved, resource_request)
        # Not before: until the books have charged it, only its hold keeps others off its devices.
        for managed in self._resources:
            managed.holds.bind(uid)
            if answer.error:
                managed.holds.bind_refused(uid)
        if not answer.error:
            self._tickets.remove(uid)
        elif self._event_messages is not None and answer.reason != NOT_OURS:
            self._event_messages.bind_failed(args.ref, args.node, answer.error)
        return answer

    def _report_bound(self, args: BindArgs) -> str:
        """Record the event and return what the pod was given, as "0:4,1:4" (device:units); "-" for
        a pod without GPU.
        """
        shares: Shares = ()
        for managed in self._resources:
            entry = managed.ledger.entry(args.ref.uid)
            if entry is not None and entry.placement is not None:
                shares = entry.placement
                if self._last_hour is not None:
                    units = sum(units for _, units in shares)
                    self._last_hour.allocated(managed.names.resource, args.ref.uid, units)
        if self._event_messages is not None:
            self._event_messages.bound(args.ref, args.node, shares)
        return ",".join(f"{device}:{units}" for device, units in shares) or "-"
