"""The verbs: bytes in, bytes out. readiness -> decode -> ledger -> decide -> encode.

Knows no HTTP; every method may be called from many threads at once. Filter and prioritize read a
snapshot and change nothing. Each decision is one log line.
"""

import contextlib
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from gpushare.core.decide import (
    BEST,
    FilterResult,
    best_node,
    filter_nodes,
    restrict_to,
    score_nodes,
)
from gpushare.core.explain import explain
from gpushare.core.explanation import Explanation
from gpushare.core.model import Request, Shares
from gpushare.core.preemption.preemptor import Preemptor, Victims
from gpushare.core.snapshot import Snapshot
from gpushare.errors import MessageError, NotReady, UnknownNode, WireError
from gpushare.explain.pod import node_books
from gpushare.extender.binding.bind_transaction import NOT_OURS, ResourceRequest
from gpushare.extender.binding.bind_transaction import Answer as BindAnswer
from gpushare.extender.binding.binder import Binder
from gpushare.extender.binding.refusal_hold import RefusalHold
from gpushare.extender.binding.request_cache import RequestCache
from gpushare.extender.events.messages import EventMessages
from gpushare.extender.http.document_cache import DocumentCache
from gpushare.extender.logs.formatters import Line
from gpushare.extender.managed_resources import ManagedResource, ManagedResources
from gpushare.extender.preemption import BudgetsOf, no_budgets, trim_candidates
from gpushare.wire.extender import (
    BindArgs,
    FilterArgs,
    decode_bind,
    decode_filter,
    encode_bind,
    encode_filter,
    encode_priorities,
)
from gpushare.wire.inspect import encode_inspect
from gpushare.wire.pods import may_preempt, pod_ref, priority_of
from gpushare.wire.preempt import PreemptArgs, decode_preempt, encode_preempt

log = logging.getLogger("gpushare.decision")

UNKNOWN_NODE = "node not found"
"""The reason where the ledger does not have a node, without its name."""

_NO_VALUES: Mapping[str, object] = {}
_DEBUG_ONLY = frozenset({("prioritize", "scored"), ("prioritize", "plain")})
"""Verbs and outcomes that decide nothing yet: logged for debugging alone."""

Observe = Callable[[str, str, float], None]
"""Called for every call: verb, outcome (one word), seconds."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The body of an answer, one word for metrics, and what the log line says besides."""

    body: bytes
    outcome: str
    line: Mapping[str, object] = field(default_factory=dict)


class Service:
    """The extender's verbs.

    `not_ready`: the reason not to answer now, or "". `best_only`: filter answers its best node
    alone. `max_binds`: binds that may be under way at once; they wait for the API server, and would
    otherwise hold every thread when it is slow. `rejected`: called with the number of nodes that
    filter refused, by reason. `event_messages`: writes events for users. `budgets_of`: returns the
    disruption budgets of pods. `refusal_hold`: how long filter may wait for changes before it
    refuses a pod; None: not at all.
    """

    def __init__(
        self,
        resources: ManagedResources,
        binder: Binder,
        *,
        not_ready: Callable[[], str],
        best_only: bool,
        max_binds: int,
        observe: Observe,
        rejected: Callable[[Mapping[str, int]], None] | None = None,
        event_messages: EventMessages | None = None,
        budgets_of: BudgetsOf = no_budgets,
        refusal_hold: RefusalHold | None = None,
    ) -> None:
        self._resources = resources
        self._binder = binder
        self._not_ready = not_ready
        self._best_only = best_only
        self._binds = threading.BoundedSemaphore(max_binds)
        self._observe = observe
        self._rejected = rejected
        self._event_messages = event_messages
        self._budgets_of = budgets_of
        self._refusal_hold = refusal_hold
        self._request_cache = RequestCache()
        self._documents = DocumentCache()

    def filter(self, body: bytes) -> bytes:
        """Return the answer to filter; an error stands in its `Error`."""
        return self._timed("filter", self._filter, body)

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
        ledger is filled, or where too many requests wait.
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
        return uid in self._request_cache

    def _timed(self, verb: str, work: Callable[[bytes], Answer], body: bytes) -> bytes:
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

    def _filter(self, body: bytes) -> Answer:
        try:
            args = decode_filter(body)
        except MessageError as error:
            answer = encode_filter(None, error=f"gpushare: {error}")
            return Answer(answer, "malformed", {"error": str(error)})
        name = _name(args)
        try:
            self._check_ready()
        except NotReady as error:
            line = {"pod": name, "error": str(error)}
            return Answer(encode_filter(args, error=str(error)), "not_ready", line)
        try:
            resource_request = self._resources.resolve(args.pod)
        except WireError as error:
            # No node will ever do; an Error would have the scheduler try again and again.
            self._cache_request(args, None, (), valid=False)
            refused = dict.fromkeys(args.names, str(error))
            line = {"pod": name, "error": str(error)}
            return Answer(encode_filter(args, unresolvable=refused), "refused", line)
        if resource_request is None:
            known_nodes = next(iter(self._resources)).ledger.snapshot().row
            self._cache_request(args, None, [name for name in args.names if name in known_nodes])
            return Answer(encode_filter(args, fit=args.names), "plain", {"pod": name})
        return self._filter_by(args, *resource_request)

    def _filter_by(self, args: FilterArgs, managed: ManagedResource, request: Request) -> Answer:
        snapshot, result = self._filter_nodes(managed, args.names, request)
        many = len(result.fit)
        result = self._narrow(args, managed, request, snapshot, result)
        fit = result.fit
        self._cache_request(args, (managed, request), fit)
        busy = {name: why.value for name, why in result.failed.items() if why.resolvable}
        unresolvable = {
            name: why.value for name, why in result.failed.items() if not why.resolvable
        }
        # Their texts, not the Reasons: over 5,000 nodes counting those takes three times as long.
        reasons = Counter([*busy.values(), *unresolvable.values()])
        self._report_rejected(
            args, result, reasons, lambda: _explain(managed, snapshot, args.names, request)
        )
        busy.update((name, f'node "{name}" not found') for name in result.unknown)
        line = {
            "pod": _name(args),
            "units": request.units,
            "devices": request.devices,
            "fit": max(many, len(fit)),
            "busy": len(busy) - len(result.unknown),
            "never": len(unresolvable),
            "unknown": len(result.unknown),
        }
        return Answer(
            encode_filter(args, fit, busy, unresolvable), "fit" if fit else "no_fit", line
        )

    def _narrow(
        self,
        args: FilterArgs,
        managed: ManagedResource,
        request: Request,
        seen: Snapshot,
        result: FilterResult,
    ) -> FilterResult:
        """Return the result with one node alone, where there is a reason for it.

        A pod that is charged already keeps its node, whatever else fits: kube-scheduler asks again
        when a bind took too long, the pod's own charge must not exclude the node, and on another
        node the pod would be refused until that bind is settled. Where that node is gone, or its
        devices are closed or taken, the result stays as it is: its bind is refused, and repeated
        until it is settled. Any other pod may be given its best node.
        """
        uid = args.pod.metadata.uid if args.pod.metadata else None
        charged = managed.ledger.standing(uid) if uid else None
        if charged is not None and charged.node in args.names and managed.ledger.keeps(uid or ""):
            return restrict_to(result, charged.node)
        if not self._best_only:
            return result
        best = best_node(seen, result.fit, request, managed.scorer(request))
        return result if best is None else replace(result, fit=(best,))

    def _filter_nodes(
        self, managed: ManagedResource, names: Sequence[str], request: Request
    ) -> tuple[Snapshot, FilterResult]:
        """Return the snapshot and the nodes that fit; where none does now, wait a moment (see
        refusal_hold.py).
        """
        seen = managed.ledger.snapshot()
        result = filter_nodes(seen, names, request)

        def fits_now() -> bool:
            nonlocal seen, result
            now = managed.ledger.snapshot()
            if now.generation != seen.generation:
                seen, result = now, filter_nodes(now, names, request)
            return bool(result.fit)

        if self._refusal_hold is not None and _may_change(result):
            self._refusal_hold.wait_for(fits_now)
        return seen, result

    def _report_rejected(
        self,
        args: FilterArgs,
        result: FilterResult,
        reasons: Counter[str],
        explain: Callable[[], Explanation],
    ) -> None:
        """Tell how many nodes do not take the pod for which reason; users, when none does.

        Of its nominated node kube-scheduler asks alone, and of all others in the same cycle after.
        """
        if result.unknown:
            reasons[UNKNOWN_NODE] = len(result.unknown)
        if self._rejected is not None and reasons:
            self._rejected(reasons)
        nominated = args.pod.status and args.pod.status.nominated_node_name
        refused = reasons and not result.fit and [*args.names] != [nominated]
        if self._event_messages is not None and refused:
            with contextlib.suppress(WireError):  # a pod without name or uid
                self._event_messages.no_fit(pod_ref(args.pod), reasons, explain)

    def _prioritize(self, body: bytes) -> Answer:
        args = decode_filter(body)
        self._check_ready()
        try:
            resource_request = self._resources.resolve(args.pod)
        except WireError as error:
            raise MessageError(str(error)) from error
        if resource_request is None:
            return Answer(encode_priorities({}), "plain", {"pod": _name(args)})
        managed, request = resource_request
        snapshot = managed.ledger.snapshot()
        scores = score_nodes(snapshot, args.names, request, managed.scorer(request))
        best = scores[BEST][0] if scores else "-"
        line = {"pod": _name(args), "units": request.units, "nodes": len(args.names), "best": best}
        return Answer(encode_priorities(scores), "scored", line)

    def _preempt(self, body: bytes) -> Answer:
        args = decode_preempt(body)
        self._check_ready()
        try:
            resource_request = self._resources.resolve(args.pod)
        except WireError as error:
            raise MessageError(str(error)) from error
        if resource_request is None:
            return Answer(encode_preempt(args.victims), "plain", {"pod": _name(args)})
        managed, request = resource_request
        left: dict[str, Victims] = {}
        if may_preempt(args.pod):
            preemptor = Preemptor(request, priority_of(args.pod), managed.counted_by_scheduler)
            left = trim_candidates(managed.ledger, preemptor, args.victims, self._budgets_of)
        line = {
            "pod": _name(args),
            "units": request.units,
            "devices": request.devices,
            "candidates": len(args.victims),
            "left": len(left),
            "changed": sum(those != args.victims[node] for node, those in left.items()),
        }
        return Answer(encode_preempt(left), "victims" if left else "no_victims", line)

    def _bind(self, body: bytes) -> Answer:
        try:
            args = decode_bind(body)
        except MessageError as error:
            return Answer(encode_bind(f"gpushare: {error}"), "malformed", {"error": str(error)})
        line: dict[str, object] = {"pod": args.ref, "node": args.node}
        try:
            self._check_ready()
        except NotReady as error:
            return Answer(encode_bind(str(error)), "not_ready", line | {"error": str(error)})
        if not self._binds.acquire(blocking=False):
            return Answer(encode_bind("gpushare: too many binds are under way"), "busy", line)
        try:
            answer = self._run_bind(args)
        finally:
            self._binds.release()
        fields = {"error": answer.error} if answer.error else {"devices": self._report_bound(args)}
        return Answer(encode_bind(answer.error), answer.reason, line | fields)

    def _run_bind(self, args: BindArgs) -> BindAnswer:
        uid = args.ref.uid
        approved, resource_request = self._request_cache.get(uid, args.node)
        answer = self._binder.bind(args.ref, args.node, approved, resource_request)
        if not answer.error:
            self._request_cache.remove(uid)
        elif self._event_messages is not None and answer.reason != NOT_OURS:
            self._event_messages.bind_failed(args.ref, args.node, answer.error)
        return answer

    def _report_bound(self, args: BindArgs) -> str:
        """Record the event and return what the pod was given, as "0:4,1:4" (device:units); "-" for
        a pod without GPU.
        """
        shares: Shares = ()
        for managed in self._resources:
            entry = managed.ledger.standing(args.ref.uid)
            if entry is not None and entry.placement is not None:
                shares = entry.placement
        if self._event_messages is not None:
            self._event_messages.bound(args.ref, args.node, shares)
        return ",".join(f"{device}:{units}" for device, units in shares) or "-"

    def _cache_request(
        self,
        args: FilterArgs,
        resource_request: ResourceRequest | None,
        nodes: Collection[str],
        *,
        valid: bool = True,
    ) -> None:
        """Approve the pod for these nodes, unless it is one that kube-scheduler does not send."""
        uid = args.pod.metadata.uid if args.pod.metadata else None
        if uid:
            is_ours = not self._resources.scope.refusal(args.pod)
            self._request_cache.put(uid, resource_request, nodes, valid=valid and is_ours)


def _may_change(result: FilterResult) -> bool:
    """Return whether no node fits, but one would if some pods were gone."""
    return not result.fit and any(why.resolvable for why in result.failed.values())


def _explain(
    managed: ManagedResource, seen: Snapshot, names: Sequence[str], request: Request
) -> Explanation:
    """Return why filter refused these nodes, by the snapshot that it has seen."""
    return explain(seen, names, request, partial(node_books, managed.ledger))


def _name(args: FilterArgs | PreemptArgs) -> str:
    try:
        return str(pod_ref(args.pod))
    except MessageError:
        return "?"
