"""The verb filter: which nodes have room for a pod, and why the others do not.

It reads snapshots, and changes nothing but the ticket of the pod (request_cache.py) and what is
held for it until its bind (holds.py).

Tested in `tests/unit/extender/test_service.py`.
"""

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial

from gpushare.core.decide import (
    FilterResult,
    best_node,
    filter_nodes,
    restrict_to,
)
from gpushare.core.explain import explain
from gpushare.core.explanation import Explanation
from gpushare.core.model import Reason, Request
from gpushare.core.snapshot import Snapshot
from gpushare.errors import MessageError, NotReady, WireError
from gpushare.explain.pod import GroupNeed, Outstanding, node_books
from gpushare.extender.answer import VerbAnswer, pod_name
from gpushare.extender.binding.request_cache import RequestCache
from gpushare.extender.claimant import Claimant, claimant
from gpushare.extender.events.messages import EventMessages
from gpushare.extender.held_places import group_need
from gpushare.extender.managed_resources import (
    ManagedResource,
    ManagedResources,
    ResourceRequest,
)
from gpushare.extender.offers import offers_of
from gpushare.extender.refusal_hold import RefusalHold
from gpushare.extender.ui.last_hour import LastHour
from gpushare.wire.demands import demands_of
from gpushare.wire.extender import FilterArgs, decode_filter, encode_filter
from gpushare.wire.pods import pod_ref

UNKNOWN_NODE = "node not found"
"""The reason for a node that the ledger does not have, without its name."""


class FilterVerb:
    """Answers filter.

    `check_ready`: raises NotReady. The other arguments are those of `Service`.
    """

    def __init__(
        self,
        resources: ManagedResources,
        request_cache: RequestCache,
        *,
        check_ready: Callable[[], None],
        best_only: bool,
        rejected: Callable[[Mapping[str, int]], None] | None,
        event_messages: EventMessages | None,
        refusal_hold: RefusalHold | None,
        promise_wait: RefusalHold | None = None,
        last_hour: LastHour | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._resources = resources
        self._request_cache = request_cache
        self._check_ready = check_ready
        self._best_only = best_only
        self._rejected = rejected
        self._event_messages = event_messages
        self._refusal_hold = refusal_hold
        self._promise_wait = promise_wait
        self._last_hour = last_hour
        self._clock = clock
        self._offers = {managed.names.resource: offers_of(managed) for managed in resources}

    def answer(self, body: bytes) -> VerbAnswer:
        """Return the answer to a body of filter; an error stands in its `Error`."""
        try:
            args = decode_filter(body)
        except MessageError as error:
            answer = encode_filter(None, error=f"gpushare: {error}")
            return VerbAnswer(answer, "malformed", {"error": str(error)})
        name = pod_name(args)
        try:
            self._check_ready()
        except NotReady as error:
            line = {"pod": name, "error": str(error)}
            return VerbAnswer(encode_filter(args, error=str(error)), "not_ready", line)
        try:
            resource_request = self._resources.resolve(args.pod)
        except WireError as error:
            # No node will ever do; after an Error the scheduler would try again and again.
            self._cache_request(args, None, (), valid=False)
            refused = dict.fromkeys(args.names, str(error))
            line = {"pod": name, "error": str(error)}
            return VerbAnswer(encode_filter(args, unresolvable=refused), "refused", line)
        if resource_request is None:
            known_nodes = next(iter(self._resources)).ledger.snapshot().row
            self._cache_request(args, None, [name for name in args.names if name in known_nodes])
            return VerbAnswer(encode_filter(args, fit=args.names), "plain", {"pod": name})
        return self._answer_for(args, *resource_request)

    def _answer_for(
        self, args: FilterArgs, managed: ManagedResource, request: Request
    ) -> VerbAnswer:
        pod = None
        # A pod without names, or one that is not sent here, is promised nothing.
        with contextlib.suppress(WireError):
            if not self._resources.scope.refusal(args.pod):
                pod = claimant(args.pod, request)
                managed.holds.asked(pod, self._clock())
        snapshot, result = self._filter_nodes(managed, args.names, request, pod)
        # Before its group loses what it holds: that is in what this pod has seen.
        group = None
        if pod is not None and not result.fit:
            group = partial(group_need, snapshot, pod, managed.holds.missing(pod))
        many = len(result.fit)
        result = self._restrict(args, managed, request, snapshot, result)
        fit = result.fit
        if pod is not None:
            self._hold(args, managed, pod, snapshot, fit)
        self._cache_request(args, (managed, request), fit)
        busy = {name: why.value for name, why in result.failed.items() if why.resolvable}
        unresolvable = {
            name: why.value for name, why in result.failed.items() if not why.resolvable
        }
        # Their texts, not the Reasons: over 5,000 nodes counting those takes three times as long.
        reasons = Counter([*busy.values(), *unresolvable.values()])
        refused = self._report_rejected(
            args, result, reasons, lambda: _explain(managed, snapshot, args, request, group)
        )
        uid = args.pod.metadata and args.pod.metadata.uid
        if refused and uid and self._last_hour is not None:
            self._last_hour.refused(managed.names.resource, uid, request.total)
        busy.update((name, f'node "{name}" not found') for name in result.unknown)
        line = {
            "pod": pod_name(args),
            "units": request.units,
            "devices": request.devices,
            "fit": max(many, len(fit)),
            "busy": len(busy) - len(result.unknown),
            "never": len(unresolvable),
            "unknown": len(result.unknown),
        }
        if promised := reasons[Reason.PROMISED.value]:
            line["promised"] = promised
        return VerbAnswer(
            encode_filter(args, fit, busy, unresolvable), "fit" if fit else "no_fit", line
        )

    def _restrict(
        self,
        args: FilterArgs,
        managed: ManagedResource,
        request: Request,
        seen: Snapshot,
        result: FilterResult,
    ) -> FilterResult:
        """Return the result restricted to one node, if there is a reason for it.

        A pod that is charged already keeps its node, whatever else fits: kube-scheduler asks again
        when a bind took too long, the pod's own charge must not exclude the node, and on another
        node the pod would be refused until that bind is settled. If that node is gone, or its
        devices are closed or taken, the result stays as it is: its bind is refused, and repeated
        until it is settled. Any other pod may be given its best node.
        """
        uid, ledger = (args.pod.metadata and args.pod.metadata.uid) or "", managed.ledger
        charged = ledger.entry(uid)
        if charged is not None and charged.node in args.names and ledger.can_still_bind(uid):
            return restrict_to(result, charged.node)
        if not self._best_only:
            return result
        best = best_node(seen, result.fit, request, managed.scorer(request))
        return result if best is None else replace(result, fit=(best,))

    def _filter_nodes(
        self,
        managed: ManagedResource,
        names: Sequence[str],
        request: Request,
        pod: Claimant | None,
    ) -> tuple[Snapshot, FilterResult]:
        """Return what is offered and the nodes that fit; if none does, wait (refusal_hold.py)."""
        holds = managed.holds

        def look() -> tuple[Snapshot, FilterResult]:
            return self._look(managed, names, request, pod)

        def version() -> tuple[int, int]:
            holds.expire(self._clock())
            return managed.ledger.snapshot().generation, holds.version

        before, (seen, result) = version(), look()

        def fits_now() -> bool:
            nonlocal before, seen, result
            now = version()
            if now != before:
                before, (seen, result) = now, look()
            return bool(result.fit)

        if self._refusal_hold is not None and _may_change(result):
            self._refusal_hold.wait_for(fits_now)
        # What was there when it looked may have ended since.
        since = before[1]
        if pod is None or result.fit or (not len(holds) and holds.version == since):
            return seen, result
        others, why = holds.of_others(pod), result.failed.values()
        promised = Reason.PROMISED in why
        kept_away = (others or holds.version != since) and (
            promised or Reason.GROUP_TOO_LARGE in why
        )
        if promised:
            now = self._clock()
            if self._promise_wait is not None and any(holds.soon(each, now) for each in others):
                self._promise_wait.wait_for(fits_now)
            if pod.group.key and not others:  # the pods of its own group have what it needs
                result = _replaced(result, Reason.PROMISED, Reason.GROUP_TOO_LARGE)
        if kept_away and not result.fit:
            holds.turned_away(pod, since)
        return seen, result

    def _look(
        self,
        managed: ManagedResource,
        names: Sequence[str],
        request: Request,
        pod: Claimant | None,
    ) -> tuple[Snapshot, FilterResult]:
        """Return what is offered now and the nodes that fit."""
        if pod is None:
            books = managed.ledger.snapshot()
            return books, filter_nodes(books, names, request)
        offers = self._offers[managed.names.resource]
        return offers.look(pod, names, managed.ledger.snapshot, self._clock())

    def _hold(
        self,
        args: FilterArgs,
        managed: ManagedResource,
        pod: Claimant,
        seen: Snapshot,
        fit: Sequence[str],
    ) -> None:
        """Hold the best node of the answer for the pod, or end what is held for it."""
        if managed.ledger.entry(pod.ref.uid) is not None:
            return
        if not fit:
            nominated = args.pod.status and args.pod.status.nominated_node_name
            if [*args.names] != [nominated]:
                managed.holds.refused(pod)
            return
        node: str | None = fit[0]
        if len(fit) > 1:
            # kube-scheduler may take another node, and the look costs something. It is worth it for
            # a pod that may wait, and for one that could be bound to what is held for another: the
            # next pod is asked about before this one's bind is charged.
            if not (pod.group.key or pod.waits or len(managed.holds)):
                return
            node = best_node(seen, fit, pod.request, managed.scorer(pod.request))
        if node is not None:
            managed.holds.offered(pod, node, self._clock())

    def _report_rejected(
        self,
        args: FilterArgs,
        result: FilterResult,
        reasons: Counter[str],
        explanation: Callable[[], tuple[Explanation, Outstanding]],
    ) -> bool:
        """Count the refusals by reason, and write an event if no node fits; return whether none
        does.

        A call about the nominated node alone does not count: kube-scheduler asks about all others
        in the same cycle.
        """
        if result.unknown:
            reasons[UNKNOWN_NODE] = len(result.unknown)
        if self._rejected is not None and reasons:
            self._rejected(reasons)
        nominated = args.pod.status and args.pod.status.nominated_node_name
        refused = bool(reasons) and not result.fit and [*args.names] != [nominated]
        if self._event_messages is not None and refused:
            with contextlib.suppress(WireError):  # a pod without name or uid
                self._event_messages.no_fit(pod_ref(args.pod), reasons, explanation)
        return refused

    def _cache_request(
        self,
        args: FilterArgs,
        resource_request: ResourceRequest | None,
        nodes: Collection[str],
        *,
        valid: bool = True,
    ) -> None:
        """Approve the pod for these nodes, unless kube-scheduler does not send such pods here."""
        uid = args.pod.metadata.uid if args.pod.metadata else None
        if uid:
            is_ours = not self._resources.scope.refusal(args.pod)
            self._request_cache.put(uid, resource_request, nodes, valid=valid and is_ours)


def _replaced(result: FilterResult, old: Reason, new: Reason) -> FilterResult:
    failed = {name: new if why is old else why for name, why in result.failed.items()}
    return replace(result, failed=failed)


def _may_change(result: FilterResult) -> bool:
    """Return whether no node fits, but one would if some pods were gone."""
    return not result.fit and any(why.resolvable for why in result.failed.values())


def _explain(
    managed: ManagedResource,
    seen: Snapshot,
    args: FilterArgs,
    request: Request,
    group: Callable[[], GroupNeed | None] | None,
) -> tuple[Explanation, Outstanding]:
    """Return why filter refused these nodes, by the snapshot that it has seen.

    group: returns what the pod's group had no place for then.
    """
    books_of, demands = partial(node_books, managed.ledger), demands_of(args.pod)
    own, now = managed.filters, time.time()
    found = explain(seen, args.names, request, books_of, now, own=own, demands=demands)
    return found, Outstanding(group=group() if group else None)
