"""The verb filter: which nodes have room for a pod, and why the other nodes do not.

`FilterTransaction` is the rule: a step machine that is handed each look at the cluster and returns
the next step. `FilterVerb` carries the steps out. Filter changes the ticket of the pod (tickets.py)
and the holds (holds.py) in `FilterVerb._record`, and for a competing group the gate
(group_room.py).

Tested in `tests/unit/extender/verbs/test_filter_steps.py`, `tests/unit/extender/test_service.py`
and, with holds, in `tests/unit/extender/verbs/test_offers.py`.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from typing import NamedTuple

from gpushare.core.amounts import by_name
from gpushare.core.decide import UNKNOWN_NODE, Judgement, best_row, judge, judge_all
from gpushare.core.explain import Explanation, explain
from gpushare.core.held_snapshot import HeldSnapshot
from gpushare.core.model import Reason, Request
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
from gpushare.extender.verbs.answer import NOT_READY, VerbAnswer
from gpushare.extender.verbs.group_room import GroupRoom, group_need
from gpushare.extender.verbs.offers import offers_of
from gpushare.extender.verbs.rank import ranked_names
from gpushare.extender.verbs.recipients import NO_RECIPIENTS, Recipients
from gpushare.extender.verbs.tickets import BindSlots, Tickets
from gpushare.extender.verbs.wait_budget import WaitBudget
from gpushare.wire.demands import demands_of
from gpushare.wire.extender import FilterArgs, NameLists, decode_filter, encode_filter
from gpushare.wire.groups import group_of
from gpushare.wire.objects import Pod
from gpushare.wire.pods import Claimant, claimant


class FilterLook(NamedTuple):
    """One look at the cluster for a pod."""

    snapshot: Snapshot
    """The books less the places held for other pods."""
    judgement: Judgement
    """Of the named nodes."""
    version: int
    """The version of the holds before the look."""


class FilterWait(Enum):
    """Step: wait until a node fits or the time is over; judge again after each change of the
    ledger or the holds; the last look is the answer.
    """

    FOR_ROOM = "pods that are about to end may free a device"
    FOR_HOLDS = "holds that have just begun or are about to end may free a device"


@dataclass(frozen=True, slots=True)
class KeepNode:
    """Step: the end. Answer the node where the pod is charged already."""

    place: int
    """The index of the node among the named nodes."""
    changes_hold: bool = False


@dataclass(frozen=True, slots=True)
class Offer:
    """Step: the end. Answer nodes that fit."""

    changes_hold: bool
    """Whether to hold the best node for the pod: the pod is not charged."""


@dataclass(frozen=True, slots=True)
class Refuse:
    """Step: the end. Answer that no node fits."""

    changes_hold: bool
    """Whether filter ends the pod's hold. False if the ledger charges the pod, or if the only named
    node is the pod's nominated node."""
    only_holds: bool = False
    """Only the holds of other pods keep the pod out."""
    wake_since: int | None = None
    """Wake the pod when a hold ends, or has ended since this version of the holds; None: do not."""


Step = FilterWait | KeepNode | Offer | Refuse


@dataclass(slots=True)
class FilterTransaction:
    """One call of filter for a pod that asks for a managed resource, as steps.

    Reads the ledger and the holds, and changes nothing. docs/architecture.md has the table.
    """

    resource: ManagedResource
    request: Request
    uid: str
    is_ours: bool
    """Whether kube-scheduler's configuration sends the pod here."""
    pod: Claimant | None
    """None: nothing is held for the pod."""
    names: NodeNames
    """The nodes that kube-scheduler asks about."""
    is_nominated_only: bool
    """Whether the only named node is the pod's nominated node."""
    last_wait: FilterWait | None = None
    refusal: Refuse | None = None
    """The refusal before `FilterWait.FOR_HOLDS`."""

    def next(self, look: FilterLook, now: float) -> Step:
        """Return the step after a look."""
        ledger, judgement = self.resource.ledger, look.judgement
        entry = ledger.entry(self.uid)
        if entry and entry.node in self.names and ledger.can_still_bind(self.uid):
            # kube-scheduler calls filter again when a bind took too long. The pod's own charge must
            # not exclude the node, and a bind to another node is refused until that bind is
            # settled. If the node is gone, or its devices are closed or charged to other pods, the
            # bind is refused as well, and repeated until that bind is settled.
            return KeepNode(self.names.index(entry.node))
        if judgement.fits.any():
            return Offer(changes_hold=entry is None)
        if self.last_wait is None and judgement.may_change:
            self.last_wait = FilterWait.FOR_ROOM
            return FilterWait.FOR_ROOM
        is_promised = judgement.has(Reason.PROMISED)
        if self.refusal is not None:  # after the wait for holds
            return replace(self.refusal, only_holds=self.refusal.only_holds and is_promised)
        changes_hold = entry is None and not self.is_nominated_only
        holds, pod = self.resource.holds, self.pod
        # A hold may have ended since the look.
        is_changed = holds.version != look.version
        if pod is None or not (holds.by_key or is_changed):
            return Refuse(changes_hold)
        is_against = holds.any_against(pod)
        is_kept_out = is_promised or judgement.has(Reason.GROUP_TOO_LARGE)
        self.refusal = Refuse(
            changes_hold,
            only_holds=is_against and is_promised,
            wake_since=look.version if is_kept_out and (is_against or is_changed) else None,
        )
        if is_promised and holds.any_soon(pod, now):
            self.last_wait = FilterWait.FOR_HOLDS
            return FilterWait.FOR_HOLDS
        return self.refusal


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterOptions:
    """How filter answers."""

    best_only: bool = False
    """Whether filter answers the best node alone."""
    ranks_all: bool = False
    """For pods with claims: whether filter answers all nodes, and prioritize scores these nodes;
    else filter answers the best node alone."""
    room_wait: WaitBudget | None = None
    """The wait for changes before a refusal; None: no wait."""
    hold_wait: WaitBudget | None = None
    """The same before a refusal for a hold of another pod."""


DEFAULT_OPTIONS = FilterOptions()


class FilterVerb:
    """Answers filter.

    `not_ready`: returns why filter cannot answer now, or "". `lists`: the lists of names that
    kube-scheduler sends again and again. The other arguments are those of `Service`.
    """

    def __init__(
        self,
        resources: ManagedResources,
        tickets: Tickets,
        options: FilterOptions = DEFAULT_OPTIONS,
        recipients: Recipients = NO_RECIPIENTS,
        *,
        not_ready: Callable[[], str],
        bind_slots: BindSlots,
        lists: NameLists,
        ranker: ClaimRanker | None = None,
        open_gate: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._resources = resources
        self._tickets = tickets
        self._options = options
        self._recipients = recipients
        self._not_ready = not_ready
        self._bind_slots = bind_slots
        self._lists = lists
        self._ranker = ranker
        self._clock = clock
        self._offers = {resource.names.resource: offers_of(resource) for resource in resources}
        self._group_rooms = {
            resource.names.resource: GroupRoom(resource, resources.gate, open_gate)
            for resource in resources
        }

    def answer(self, body: bytes) -> VerbAnswer:
        """Return the answer to a body of filter, with any error in the field `Error`."""
        if self._bind_slots.are_many:
            self._bind_slots.wait_while_many()
        try:
            args = decode_filter(body, self._lists)
        except MessageError as error:
            answer = encode_filter(None, error=f"gpushare: {error}")
            return VerbAnswer(answer, "malformed", {"error": str(error)})
        name = args.ref or "?"
        if reason := self._not_ready():
            error_text = NOT_READY + reason
            line = {"pod": name, "error": error_text}
            return VerbAnswer(encode_filter(args, error=error_text), "not_ready", line)
        is_ours = not self._resources.scope.refusal(args.pod)
        uid = (args.pod.metadata and args.pod.metadata.uid) or ""
        try:
            resource_request = self._resources.resolve(args.pod)
        except WireError as error:
            # Only a change of the pod can help; after an Error kube-scheduler would try again and
            # again.
            self._tickets.put(uid, None, valid=False)
            unresolvable = dict.fromkeys(args.names, str(error))
            line = {"pod": name, "error": str(error)}
            return VerbAnswer(encode_filter(args, unresolvable=unresolvable), "refused", line)
        if resource_request is None:
            fit = args.names
            line = {"pod": name}
            if self._ranker is not None and self._ranker.concerns(args.pod):
                fit, line = ranked_names(self._ranker, args, ranks_all=self._options.ranks_all)
            rows = fit.rows(next(iter(self._resources)).ledger.snapshot().row)
            approved, group = fit.part(rows >= 0), group_of(args.pod)
            self._tickets.put(uid, None, approved, valid=is_ours, group=group)
            answer = encode_filter(args, fit, lists=self._lists)
            return VerbAnswer(answer, "ranked" if "best" in line else "plain", line)
        return self._decide(args, uid, is_ours, resource_request)

    def _decide(
        self, args: FilterArgs, uid: str, is_ours: bool, resource_request: ResourceRequest
    ) -> VerbAnswer:
        """Return the answer for a pod that asks for a managed resource."""
        resource, request = resource_request
        pod = None
        # No hold for a pod without a name, or for a pod that kube-scheduler does not send here.
        if is_ours and args.ref is not None:
            pod = claimant(args.pod, request)
            resource.holds.asked(pod)
        names, status = args.names, args.pod.status
        transaction = FilterTransaction(
            resource=resource,
            request=request,
            uid=uid,
            is_ours=is_ours,
            pod=pod,
            names=names,
            is_nominated_only=(
                status is not None and len(names) == 1 and names[0] == status.nominated_node_name
            ),
        )
        look = self._look(transaction, args)
        step = transaction.next(look, self._clock())
        while isinstance(step, FilterWait):
            look = self._wait(step, look, transaction, args)
            step = transaction.next(look, self._clock())
        judgement, best = look.judgement, ""
        if isinstance(step, KeepNode):
            judgement = judgement.only(step.place)
        is_narrow = self._options.best_only or isinstance(look.snapshot, HeldSnapshot)
        if isinstance(step, Offer) and is_narrow:
            fit = self._narrowed(transaction, look)
        else:
            fit = names.part(judgement.fits)
        if isinstance(step, Offer) and pod is not None and step.changes_hold:
            if len(fit) == 1:
                best = fit[0]
            elif pod.group.key or pod.waits:
                # kube-scheduler may bind to another node, and scoring costs time: prioritize, which
                # comes next, scores anyway, and holds the best node if other pods hold nodes. A pod
                # that may wait before its bind needs a hold in any case.
                best = _best(transaction, look)
        busy, never, reasons = judgement.refusals(names)
        self._record(args, transaction, look, step, fit=fit, best=best, reasons=reasons)
        unknown = reasons.get(UNKNOWN_NODE, 0)
        line = {
            "pod": args.ref or "?",
            "units": request.units,
            "devices": request.devices,
            "fit": max(int(look.judgement.fits.sum()), len(fit)),
            "busy": len(busy) - unknown,
            "never": len(never),
            "unknown": unknown,
        }
        if request.split:
            line["split"] = "+".join(map(str, request.split))
        if request.percents:
            line |= by_name(request.percents)
        if promised := reasons.get(Reason.PROMISED.value):
            line["promised"] = promised
        has_shadow = self._recipients.shadow is not None
        for_shadow = self._for_shadow(transaction, look, step, fit) if has_shadow else None
        answer = encode_filter(args, fit, busy, never, lists=self._lists)
        return VerbAnswer(answer, "fit" if fit else "no_fit", line, for_shadow)

    def _look(self, transaction: FilterTransaction, args: FilterArgs) -> FilterLook:
        """Return a look at the cluster for the pod.

        No node fits if the pod's group does not fit whole. Before that, worse groups at the gate
        yield their places if the pod's group then fits.
        """
        resource, pod, names = transaction.resource, transaction.pod, args.names
        request, holds, books = transaction.request, resource.holds, resource.ledger.snapshot
        name, now = resource.names.resource, self._clock()
        if holds.by_key:
            holds.expire(now)
        version = holds.version
        if pod is not None and holds.by_key:
            snapshot, judgement = self._offers[name].look(pod, request, names, books, now)
        else:
            snapshot = books()
            judgement = judge(snapshot, names.rows(snapshot.row), request)
        # The nominated node alone says nothing about the group.
        if pod is not None and pod.group.key and not transaction.is_nominated_only:
            group_room, fits = self._group_rooms[name], bool(judgement.fits.any())
            demands, rows = partial(demands_of, args.pod), names.rows(snapshot.row)
            if not (fits and group_room.fits(pod, demands, snapshot, rows, now)):
                if group_room.make_room(pod, demands, snapshot, rows):
                    snapshot, judgement = self._offers[name].look(pod, request, names, books, now)
                elif fits:
                    judgement = judge_all(names, Reason.GROUP_TOO_LARGE)
        return FilterLook(snapshot, judgement, version)

    def _wait(
        self, step: FilterWait, look: FilterLook, transaction: FilterTransaction, args: FilterArgs
    ) -> FilterLook:
        """Return the last look, after a wait for a node that fits (wait_budget.py)."""
        waits_for_room, options = step is FilterWait.FOR_ROOM, self._options
        budget = options.room_wait if waits_for_room else options.hold_wait
        holds, ledger = transaction.resource.holds, transaction.resource.ledger

        def fits_now() -> bool:
            nonlocal look
            holds.expire(self._clock())
            generation = ledger.snapshot().generation
            if (look.snapshot.generation, look.version) != (generation, holds.version):
                look = self._look(transaction, args)
            return bool(look.judgement.fits.any())

        if budget is not None:
            budget.wait_for(fits_now)
        return look

    def _narrowed(self, transaction: FilterTransaction, look: FilterLook) -> NodeNames:
        """Return the one node that a plan of moves holds for the pod, or the best node if filter
        answers only that; else all nodes that fit.
        """
        pod, holds = transaction.pod, transaction.resource.holds
        names, fits = transaction.names, look.judgement.fits
        if pod is not None and holds.by_key:
            reserved = holds.reserved_for(pod)
            if reserved and reserved in names.part(fits):  # a plan of moves relies on this node
                return NodeNames((reserved,))
        best = _best(transaction, look) if self._options.best_only else ""
        return NodeNames((best,)) if best else names.part(fits)

    def _for_shadow(
        self,
        transaction: FilterTransaction,
        look: FilterLook,
        step: KeepNode | Offer | Refuse,
        fit: NodeNames,
    ) -> Asked | None:
        """Return the call for a shadow policy, which knows no holds, and is compared on all nodes;
        None for a call that says nothing about policies.
        """
        judgement, resource = look.judgement, transaction.resource
        if transaction.is_nominated_only or transaction.pod is None or not step.changes_hold:
            return None
        if not fit and (judgement.has(Reason.PROMISED) or judgement.has(Reason.GROUP_TOO_LARGE)):
            return None
        return Asked(
            resource.names.resource,
            transaction.uid,
            transaction.request,
            transaction.names,
            judgement.fits,
            look.snapshot,
        )

    def _record(
        self,
        args: FilterArgs,
        transaction: FilterTransaction,
        look: FilterLook,
        step: KeepNode | Offer | Refuse,
        *,
        fit: NodeNames,
        best: str,
        reasons: Mapping[str, int],
    ) -> None:
        """Change the hold of the pod, store its ticket, and report the refusals.

        fit: the answered nodes. best: the node to hold, "" for none. reasons: the number of nodes
        that do not fit, by reason.
        """
        resource, pod, ref = transaction.resource, transaction.pod, args.ref
        if pod is not None and best:
            resource.holds.offered(pod, best, self._clock())
        elif pod is not None and isinstance(step, Refuse):
            if step.wake_since is not None:
                resource.holds.turned_away(pod, step.wake_since)
            if step.changes_hold:
                resource.holds.refused(pod, self._clock() if step.only_holds else None)
                self._group_rooms[resource.names.resource].forget_fitting(pod)
        self._tickets.put(
            transaction.uid,
            (resource, transaction.request),
            fit,
            valid=transaction.is_ours,
            group=pod.group if pod is not None else group_of(args.pod),
            pod=args.pod if args.is_cached else None,
        )
        recipients = self._recipients
        if reasons and recipients.rejected is not None:
            recipients.rejected(reasons)
        # kube-scheduler asks about the nominated node first, and about the other nodes in the same
        # cycle: only the second answer is a refusal.
        is_refusal = isinstance(step, Refuse) and not transaction.is_nominated_only
        if not (is_refusal and reasons) or ref is None:
            return
        if recipients.event_messages is not None:
            explanation = partial(self._explain, look.snapshot, args.pod, args.names, transaction)
            recipients.event_messages.no_fit(ref, reasons, explanation)
        if recipients.last_hour is not None:
            name, units = resource.names.resource, transaction.request.total
            recipients.last_hour.refused(name, ref.uid, units)

    def _explain(
        self,
        snapshot: Snapshot,
        spec: Pod,
        names: NodeNames,
        transaction: FilterTransaction,
    ) -> tuple[Explanation, Outstanding]:
        """Return why no node takes the pod, by the snapshot of the last look.

        spec: the pod of the call. names: the nodes of the call. All nodes of the cluster count:
        kube-scheduler has left full and cordoned nodes out of the call, and the pod may fit there
        later.
        """
        resource, pod, demands = transaction.resource, transaction.pod, demands_of(spec)
        explain_nodes = partial(
            explain,
            snapshot,
            request=transaction.request,
            entries_of=partial(node_books, resource.ledger),
            now=time.time(),
            own=resource.filters,
            demands=demands,
        )
        explanation = explain_nodes(names=sorted(filter(None, snapshot.names)))
        if explanation.fit:
            # kube-scheduler left these nodes out for a reason that no node shows, such as affinity
            # to pods. Only "never" of the nodes in the call would be wrong.
            called_nodes = explain_nodes(names=names)
            explanation = explanation if called_nodes.never else called_nodes
        if pod is None or not pod.group.key:
            return explanation, Outstanding()
        needs = self._group_rooms[resource.names.resource].needs(pod, demands)
        rows = names.rows(snapshot.row)
        return explanation, Outstanding(group=group_need(snapshot, needs, rows))


def _best(transaction: FilterTransaction, look: FilterLook) -> str:
    """Return the best of the nodes that fit, by the policy; "" if none does."""
    resource, request, snapshot = transaction.resource, transaction.request, look.snapshot
    names, fits = transaction.names, look.judgement.fits
    rows, scorer = names.rows(snapshot.row), resource.scorer(request)
    place = best_row(snapshot, rows, request, scorer, among=fits)
    return "" if place is None else names[place]
