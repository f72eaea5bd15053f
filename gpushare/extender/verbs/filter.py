"""The verb filter: which nodes have room for a pod, and why the others do not.

It reads snapshots, and changes nothing but the ticket of the pod (tickets.py) and what is held for
it until its bind (holds.py).

Tested in `tests/unit/extender/test_service.py`.
"""

import time
from collections.abc import Callable, Mapping
from functools import partial

from gpushare.core.amounts import by_name
from gpushare.core.decide import UNKNOWN_NODE, Judgement, best_row, judge_all
from gpushare.core.explain import Explanation, explain
from gpushare.core.held_snapshot import HeldSnapshot
from gpushare.core.model import PodRef, Reason, Request
from gpushare.core.node_names import NodeNames
from gpushare.core.snapshot import Snapshot
from gpushare.errors import MessageError, WireError
from gpushare.explain.pod import Outstanding, node_books
from gpushare.extender.claims.ranker import ClaimRanker
from gpushare.extender.managed_resources import (
    ManagedResource,
    ManagedResources,
    ResourceRequest,
)
from gpushare.extender.shadow.follower import Asked
from gpushare.extender.tell.events.messages import EventMessages
from gpushare.extender.tell.page.last_hour import LastHour
from gpushare.extender.verbs.answer import VerbAnswer
from gpushare.extender.verbs.group_room import GroupRoom, group_need
from gpushare.extender.verbs.offers import offers_of
from gpushare.extender.verbs.rank import ranked_names
from gpushare.extender.verbs.refusal_hold import RefusalHold
from gpushare.extender.verbs.tickets import BindSlots, Tickets
from gpushare.wire.demands import demands_of
from gpushare.wire.extender import FilterArgs, NameLists, decode_filter, encode_filter
from gpushare.wire.groups import Claimant, claimant, group_of


class FilterVerb:
    """Answers filter.

    `not_ready`: returns why not to answer now, or "". `lists`: the lists of names that
    kube-scheduler sends again and again. `shadowed`: a shadow policy is told of each answer. The
    other arguments are those of `Service`.
    """

    def __init__(
        self,
        resources: ManagedResources,
        tickets: Tickets,
        *,
        not_ready: Callable[[], str],
        best_only: bool,
        bind_slots: BindSlots,
        lists: NameLists,
        rejected: Callable[[Mapping[str, int]], None] | None = None,
        event_messages: EventMessages | None = None,
        refusal_hold: RefusalHold | None = None,
        promise_wait: RefusalHold | None = None,
        last_hour: LastHour | None = None,
        shadowed: bool = False,
        ranker: ClaimRanker | None = None,
        ranks_all: bool = False,
        open_gate: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._resources = resources
        self._tickets = tickets
        self._not_ready = not_ready
        self._best_only = best_only
        self._bind_slots = bind_slots
        self._lists = lists
        self._rejected = rejected
        self._event_messages = event_messages
        self._refusal_hold = refusal_hold
        self._promise_wait = promise_wait
        self._last_hour = last_hour
        self._shadowed = shadowed
        self._ranker = ranker
        self._ranks_all = ranks_all
        self._clock = clock
        self._offers = {managed.names.resource: offers_of(managed) for managed in resources}
        self._group_rooms = {
            managed.names.resource: GroupRoom(managed, resources.gate, open_gate)
            for managed in resources
        }

    def answer(self, body: bytes) -> VerbAnswer:
        """Return the answer to a body of filter; an error stands in its `Error`."""
        self._bind_slots.wait_while_many()
        try:
            args = decode_filter(body, self._lists)
        except MessageError as error:
            answer = encode_filter(None, error=f"gpushare: {error}")
            return VerbAnswer(answer, "malformed", {"error": str(error)})
        name = args.ref or "?"
        if not_ready := self._not_ready():
            line = {"pod": name, "error": not_ready}
            return VerbAnswer(encode_filter(args, error=not_ready), "not_ready", line)
        is_ours = not self._resources.scope.refusal(args.pod)
        uid = (args.pod.metadata and args.pod.metadata.uid) or ""
        try:
            resource_request = self._resources.resolve(args.pod, keep=args.is_cached)
        except WireError as error:
            # No node will ever do; after an Error the scheduler would try again and again.
            self._tickets.put(uid, None, valid=False)
            refused = dict.fromkeys(args.names, str(error))
            line = {"pod": name, "error": str(error)}
            return VerbAnswer(encode_filter(args, unresolvable=refused), "refused", line)
        if resource_request is None:
            fit = args.names
            line = {"pod": name}
            if self._ranker is not None and self._ranker.concerns(args.pod):
                fit, line = ranked_names(self._ranker, args, ranks_all=self._ranks_all)
            rows = fit.rows(next(iter(self._resources)).ledger.snapshot().row)
            approved, group = fit.part(rows >= 0), group_of(args.pod)
            self._tickets.put(uid, None, approved, valid=is_ours, group=group)
            answer = encode_filter(args, fit, lists=self._lists)
            return VerbAnswer(answer, "ranked" if "best" in line else "plain", line)
        return self._decide(args, uid, is_ours, resource_request)

    def _decide(
        self, args: FilterArgs, uid: str, is_ours: bool, resource_request: ResourceRequest
    ) -> VerbAnswer:
        """Answer for a pod that asks for a managed resource."""
        managed, request = resource_request
        pod = None
        # A pod without names, or one that is not sent here, is promised nothing.
        if is_ours and args.ref is not None:
            pod = claimant(args.pod, request)
            managed.holds.asked(pod)
        seen, judged, kept_out = self._judge(managed, args, request, pod)
        fit = args.names.part(judged.fits)
        most = len(fit)
        charged = managed.ledger.entry(uid)
        asked = None
        if self._shadowed and pod and not charged and _is_judged_alone(args, judged):
            resource = managed.names.resource
            asked = Asked(resource, uid, request, args.names, judged.fits, seen)
        if charged and charged.node in args.names and managed.ledger.can_still_bind(uid):
            # It keeps its node, whatever else fits: kube-scheduler asks again when a bind took too
            # long, the pod's own charge must not exclude the node, and on another one it would be
            # refused until that bind is settled. If the node is gone, or its devices are closed or
            # taken, nothing changes: its bind is refused, and repeated until it is settled.
            judged = judged.only(args.names.index(charged.node))
            fit = args.names.part(judged.fits)
        elif fit:
            fit = self._offered(managed, pod, seen, fit, request, hold=charged is None)
        elif pod is not None and charged is None and not _about_nominated_alone(args):
            managed.holds.refused(pod, self._clock() if kept_out else None)
            self._group_rooms[managed.names.resource].forget_fitting(pod)
        group = pod.group if pod is not None else group_of(args.pod)
        self._tickets.put(uid, resource_request, fit, valid=is_ours, group=group)
        busy, never, reasons = judged.refusals(args.names)
        unknown = reasons.get(UNKNOWN_NODE, 0)
        line = {
            "pod": args.ref or "?",
            "units": request.units,
            "devices": request.devices,
            "fit": max(most, len(fit)),
            "busy": len(busy) - unknown,
            "never": len(never),
            "unknown": unknown,
        }
        if request.split:
            line["split"] = "+".join(map(str, request.split))
        line |= by_name(request.percents)
        if promised := reasons.get(Reason.PROMISED.value):
            line["promised"] = promised
        if reasons and self._rejected is not None:
            self._rejected(reasons)
        # A call about the nominated node alone is no refusal: kube-scheduler asks about all others
        # in the same cycle.
        if reasons and not fit and args.ref is not None and not _about_nominated_alone(args):
            explanation = partial(self._explain, seen, args, resource_request, pod)
            self._report(args.ref, resource_request, reasons, explanation)
        answer = encode_filter(args, fit, busy, never, lists=self._lists)
        return VerbAnswer(answer, "fit" if fit else "no_fit", line, asked)

    def _offered(
        self,
        managed: ManagedResource,
        pod: Claimant | None,
        seen: Snapshot,
        fit: NodeNames,
        request: Request,
        *,
        hold: bool,
    ) -> NodeNames:
        """Return those of the nodes that fit which the answer names; if asked to, hold the best of
        them for the pod.
        """
        reserved = ""
        if pod is not None and isinstance(seen, HeldSnapshot):  # else nothing is held
            reserved = managed.holds.reserved_for(pod)
        if reserved and reserved in fit:  # it was moved there: the rest of a plan stands on that
            fit = NodeNames((reserved,))
        elif self._best_only:
            best = best_row(seen, fit.rows(seen.row), request, managed.scorer(request))
            fit = fit if best is None else NodeNames(fit[best : best + 1])
        if pod is None or not hold:
            return fit
        held: int | None = 0
        if len(fit) > 1:
            # kube-scheduler may take another node, and the look costs something: prioritize, which
            # comes next, has it for nothing. But it need not be asked about a pod that may wait.
            if not (pod.group.key or pod.waits):
                return fit
            held = best_row(seen, fit.rows(seen.row), request, managed.scorer(request))
        if held is not None:
            managed.holds.offered(pod, fit[held], self._clock())
        return fit

    def _look(
        self, managed: ManagedResource, args: FilterArgs, request: Request, pod: Claimant | None
    ) -> tuple[Snapshot, Judgement]:
        """Return what is offered now and which nodes fit: none for a pod whose group does not fit
        whole. Worse groups at the gate have made room for its group, if that helps.
        """
        offers, now = self._offers[managed.names.resource], self._clock()
        books = managed.ledger.snapshot
        seen, judged = offers.look(pod, request, args.names, books, now)
        # Of the nominated node alone nothing follows for a group.
        if pod is None or not pod.group.key or _about_nominated_alone(args):
            return seen, judged
        group_room = self._group_rooms[managed.names.resource]
        demands, rows = partial(demands_of, args.pod), args.names.rows(seen.row)
        if judged.fits.any() and group_room.fits(pod, demands, seen, rows, now):
            return seen, judged
        if group_room.make_room(pod, demands, seen, rows):
            return offers.look(pod, request, args.names, books, now)
        if judged.fits.any():
            judged = judge_all(args.names, Reason.GROUP_TOO_LARGE)
        return seen, judged

    def _judge(
        self, managed: ManagedResource, args: FilterArgs, request: Request, pod: Claimant | None
    ) -> tuple[Snapshot, Judgement, bool]:
        """Return what is offered, which nodes fit, and whether nothing but holds keeps the pod out;
        if none fits, wait for a change (refusal_hold.py).
        """
        holds, ledger = managed.holds, managed.ledger
        look = partial(self._look, managed, args, request, pod)
        holds.expire(self._clock())
        version = holds.version
        seen, judged = look()

        def fits_now() -> bool:
            nonlocal version, seen, judged
            holds.expire(self._clock())
            before, now = (seen.generation, version), (ledger.snapshot().generation, holds.version)
            if now != before:
                version, (seen, judged) = now[1], look()
            return bool(judged.fits.any())

        if self._refusal_hold is not None and judged.may_change:
            self._refusal_hold.wait_for(fits_now)
        # Holds that were there at that look may have ended since.
        since = version
        if pod is None or judged.fits.any() or (not len(holds) and holds.version == since):
            return seen, judged, False
        against = holds.any_against(pod)
        kept_away = against or holds.version != since
        if judged.has(Reason.PROMISED):
            if self._promise_wait is not None and holds.any_soon(pod, self._clock()):
                self._promise_wait.wait_for(fits_now)
        elif not judged.has(Reason.GROUP_TOO_LARGE):
            kept_away = False
        if kept_away and not judged.fits.any():
            holds.turned_away(pod, since)
        kept_out = against and isinstance(seen, HeldSnapshot) and judged.has(Reason.PROMISED)
        return seen, judged, kept_out

    def _explain(
        self,
        seen: Snapshot,
        args: FilterArgs,
        resource_request: ResourceRequest,
        pod: Claimant | None,
    ) -> tuple[Explanation, Outstanding]:
        """Return why filter refused these nodes, by the snapshot that it has seen."""
        managed, request = resource_request
        books_of, demands = partial(node_books, managed.ledger), demands_of(args.pod)
        own, now = managed.filters, time.time()
        explanation = explain(seen, args.names, request, books_of, now, own=own, demands=demands)
        if pod is None or not pod.group.key:
            return explanation, Outstanding()
        needs = self._group_rooms[managed.names.resource].needs(pod, demands)
        return explanation, Outstanding(group=group_need(seen, needs, args.names.rows(seen.row)))

    def _report(
        self,
        ref: PodRef,
        resource_request: ResourceRequest,
        reasons: Mapping[str, int],
        explanation: Callable[[], tuple[Explanation, Outstanding]],
    ) -> None:
        """Tell that no node fits: by an event, and in what was refused within the last hour."""
        if self._event_messages is not None:
            self._event_messages.no_fit(ref, reasons, explanation)
        if self._last_hour is not None:
            managed, request = resource_request
            self._last_hour.refused(managed.names.resource, ref.uid, request.total)


def _about_nominated_alone(args: FilterArgs) -> bool:
    nominated = args.pod.status and args.pod.status.nominated_node_name
    return [*args.names] == [nominated]


def _is_judged_alone(args: FilterArgs, judged: Judgement) -> bool:
    """Return whether the answer tells what a policy has left free for the pod, in all nodes: not
    what is held for others, of which a shadow knows nothing.
    """
    kept_out = judged.has(Reason.PROMISED) or judged.has(Reason.GROUP_TOO_LARGE)
    return not _about_nominated_alone(args) and bool(judged.fits.any() or not kept_out)
