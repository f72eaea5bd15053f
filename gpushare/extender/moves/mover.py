"""Moves pods so that one fits that waits for room in pieces: so many an hour, one at a time.

The leader looks for a pod that has fitted nowhere for a while, makes the plan of `gpushare defrag`
for it, and carries that out by steps.py. Before each eviction the rules are read and the plan made
anew, and the move is written down (wire/moves.py). Meanwhile the holds keep what the pod that
waits needs, bit by bit as it opens, and the new place of the pod that moves. An eviction names its
pod by uid and resourceVersion, and is not sent once this process does not lead. Read are only pods
whose owners consent, never all of them.

Tested in `tests/unit/extender/moves/test_mover.py`.
"""

import json
import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from gpushare.core.model import PodRef
from gpushare.core.policy import load_policy
from gpushare.core.states.entry import Waiting
from gpushare.core.trial import FALLBACK_POLICY
from gpushare.daemon.loop import Loop
from gpushare.daemon.part import LoopPart
from gpushare.errors import ApiConflict, ApiError, ApiNotFound, GpuShareError
from gpushare.explain import defrag
from gpushare.extender.follow.write_right import REFUSED, WriteRight
from gpushare.extender.managed_resources import ManagedResource, ManagedResources
from gpushare.extender.moves import steps
from gpushare.extender.tell.events.messages import EventMessages
from gpushare.kube.api import Calls, pages
from gpushare.logline import Line
from gpushare.turns import in_turns
from gpushare.wire.budgets import read_budget
from gpushare.wire.codec import Codec
from gpushare.wire.demands import demands_of
from gpushare.wire.groups import NO_GROUP, Claimant, claimant, group_of
from gpushare.wire.kept import MOVES
from gpushare.wire.moves import (
    MoveRecord,
    eviction,
    kept_owned,
    may_succeed,
    pod_path,
    read_record,
)
from gpushare.wire.objects import BUDGETS, NAMESPACES, OWNED_PODS, Metadata, OwnedPod, Owner
from gpushare.wire.pods import controller_of, has_ended

log = logging.getLogger("gpushare.moves")

EVERY = 10.0
AGAIN = 1.0
"""Seconds until the next round while a plan is carried out."""

PAUSE = 60.0
"""Seconds until moves for the same pod are looked for again where none were found."""

AFTER_STOP = 600.0
"""Seconds until moves for the same pod are looked for again after a plan was not carried on."""

_MOST_PODS = 20
"""Pods that are looked at in a round, in the turns of their namespaces."""

_LOOK = 2.0
"""Seconds until the cluster is read again where nothing could be done between two moves."""

_RETRY = 10.0
"""Seconds until an eviction that its budget did not allow is tried again."""

_TIMEOUT = 10.0
_NOT_ENDED = "status.phase!=Succeeded,status.phase!=Failed"
_OF_ONE_OWNER = ("statefulset.kubernetes.io/pod-name", "pod-template-hash")
"""Labels by which controllers tell their pods apart: they keep a list short."""

_T = TypeVar("_T")


def _is_going(pod: OwnedPod | None) -> bool:
    """Return whether the pod is gone, has ended, or is being deleted."""
    if pod is None or has_ended(pod):
        return True
    return bool(pod.metadata and pod.metadata.deletion_timestamp)


def _node_of(pod: OwnedPod) -> str:
    """Return its node, or ""."""
    return (pod.spec and pod.spec.node_name) or ""


def _heir_of(
    old: OwnedPod, before: frozenset[str], pods: Mapping[str, OwnedPod]
) -> steps.Heir | None:
    """Return the pod that has come in place of the old one, the one with a node first.

    before: the uids that were there before the old one was evicted.
    """
    owner, name = controller_of(old) or Owner(), (old.metadata and old.metadata.name) or ""
    heirs: list[steps.Heir] = []
    for uid, pod in pods.items():
        metadata = pod.metadata or Metadata()
        if uid in before or _is_going(pod) or not may_succeed(pod, owner, name):
            continue
        running = (pod.status and pod.status.phase) == "Running"
        heirs.append(steps.Heir(f"{metadata.namespace}/{metadata.name}", _node_of(pod), running))
    return max(heirs, key=lambda heir: (heir.running, bool(heir.node)), default=None)


@dataclass(slots=True)
class _Going:
    """A plan under way, with what of it concerns the API server."""

    managed: ManagedResource
    run: steps.Run
    rules: defrag.ListedRules
    old: OwnedPod | None = None
    """The pod that moves, as it was read before its eviction."""
    before: frozenset[str] = frozenset()
    """The uids of its owner's pods then."""
    not_before: float = -math.inf
    """When the next step may be made."""
    failing_since: float | None = None
    settled: set[str] = field(default_factory=set)
    """The uids of those that were moved."""


class Mover(LoopPart):
    """Carries plans out: `round` once, a started mover again and again.

    budget: evictions an hour, of all processes that led in it; 0: it is off. after: seconds that a
    pod must have fitted nowhere. namespace: of the ConfigMap that keeps the moves. leads_until:
    monotonic seconds until which something may be sent. wall: seconds since the epoch.
    """

    def __init__(
        self,
        api: Calls,
        resources: ManagedResources,
        messages: EventMessages,
        *,
        budget: int,
        after: float,
        namespace: str,
        not_ready: Callable[[], str],
        leads_until: Callable[[], float] = lambda: math.inf,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._api = api
        self._resources = resources
        self._messages = messages
        self._budget = budget
        self._after = after
        self._maps = f"/api/v1/namespaces/{namespace}/configmaps"
        self._not_ready = not_ready
        self._leads_until = leads_until
        self._clock = clock
        self._wall = wall
        self._policy = load_policy(FALLBACK_POLICY)
        self._right = WriteRight(clock)
        self._going: _Going | None = None
        self._refused_since: dict[str, float] = {}
        self._not_before: dict[str, float] = {}
        # By namespace with pending pods, when a plan was begun for one of them.
        self._served_at: dict[str, float] = {}
        self._record = MoveRecord()
        self._moved = self._refused = 0
        self._stopped: Counter[str] = Counter({why.value: 0 for why in steps.Stop})
        self.loop = Loop(
            "moves",
            lambda: EVERY if self.round() else AGAIN,
            AGAIN,
            log=log,
            failed="moves failed",
        )

    def start(self) -> None:
        """Begin, if it is on."""
        if self._budget:
            super().start()

    def stop(self) -> None:
        """Evict nothing more, and keep no place."""
        super().stop()
        self._let_go()

    def state(self) -> dict[str, float]:
        """Return the values for metrics; none while it is off."""
        if not self._budget:
            return {}
        return {
            "moves_total": self._moved,
            "moves_refused_total": self._refused,
            "moves_left": self._record.moves_left(self._budget, self._wall()),
        }

    def stopped(self) -> Mapping[str, int]:
        """Return how many plans were not carried on, by why; nothing while it is off."""
        return dict(self._stopped) if self._budget else {}

    def round(self) -> bool:
        """Make one step of a plan, or look for one; return whether none is under way."""
        if self._not_ready():
            self._refused_since.clear()
            if self._going is not None:
                self._end(self._going, steps.Stop.NOT_LEADING)
            return False
        going = self._going
        try:
            if going is None:
                if not self._right.missing:
                    self._begin()
            elif self._clock() >= going.not_before:
                self._act(going, going.run.step(self._seen(going), self._clock()))
                going.failing_since = None
        except GpuShareError as error:
            log.warning(Line("moves: not done", error=str(error)))
            if going is not None:
                now = self._clock()
                going.failing_since = since = going.failing_since or now
                if now >= since + steps.WAIT:
                    self._end(going, steps.Stop.UNREADABLE)
        return self._going is None

    # -- which pod --------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Begin a plan for the first pod that has waited for long enough, if there is one."""
        ripe = self._ripe()
        if not ripe:
            return
        now, wall = self._clock(), self._wall()
        self._record = record = self._read_record()
        most = min(record.moves_left(self._budget, wall), defrag.MOST_MOVES)
        if not most or record.under_way(wall):
            return
        rules = self._rules(wall)
        for managed, pod in ripe:
            self._not_before[pod.uid] = now + PAUSE
            if not self._may_have_moves(pod):
                continue
            plan = self._plan(managed, pod, rules, most)
            if plan.moves:
                self._served_at[pod.ref.namespace] = now
                self._going = _Going(managed, steps.Run(pod, plan, now), rules)
                self._keep_hole(self._going)
                count = len(plan.moves)
                log.info(Line("moves begin", pod=pod.ref, node=plan.node, moves=count))
                self._messages.makes_room(pod.ref, plan.node, count)
                return

    def _ripe(self) -> list[tuple[ManagedResource, Waiting]]:
        """Return the pods that have fitted nowhere for a while, in the turns of their namespaces.

        Of each those for which no moves were looked for come first, then the most important, then
        the oldest. A pod for which none were found a short while ago is not looked at.
        """
        now, ripe = self._clock(), list[tuple[ManagedResource, Waiting]]()
        since: dict[str, float] = {}
        namespaces = set[str]()
        for managed in self._resources:
            # kube-scheduler calls no extender for a pod while it finds it unschedulable (`gated`).
            waiting = [pod for pod in managed.ledger.waiting() if pod.served]
            namespaces |= {pod.ref.namespace for pod in waiting}
            known = self._refused_since
            since |= {pod.uid: known[pod.uid] for pod in waiting if pod.uid in known}
            waiting = [pod for pod in waiting if now >= self._tried_until(pod)]
            waiting.sort(key=self._turn)
            for pod in in_turns(waiting, lambda pod: pod.ref.namespace)[:_MOST_PODS]:
                # A card by its name is where it is, and the plan need not look elsewhere for it.
                if not any(managed.places(pod.request, pod.demands)):
                    since.setdefault(pod.uid, now)
                    if now >= since[pod.uid] + self._after:
                        ripe.append((managed, pod))
                else:
                    since.pop(pod.uid, None)
        self._refused_since = since
        resting = self._not_before.items()
        self._not_before = {uid: at for uid, at in resting if uid in since or at > now}
        served = self._served_at.items()
        self._served_at = {namespace: at for namespace, at in served if namespace in namespaces}
        ripe.sort(key=lambda found: self._turn(found[1]))
        return in_turns(ripe, lambda found: found[1].ref.namespace)

    def _tried_until(self, pod: Waiting) -> float:
        """Return until when the pod rests because no moves were found for it; -inf: none tried."""
        return self._not_before.get(pod.uid, -math.inf)

    def _turn(self, pod: Waiting) -> tuple[float, float, int, float]:
        """Return the sort key of a pending pod.

        The namespace that was served longest ago comes first, and of its pods those that were tried
        longest ago.
        """
        served_at = self._served_at.get(pod.ref.namespace, -math.inf)
        return served_at, self._tried_until(pod), -pod.priority, pod.created

    def _may_have_moves(self, pod: Waiting) -> bool:
        """Return whether it is alone and has no gates, and nothing else is about to place it."""
        read = self._pod(pod.ref)
        if read is None or _is_going(read) or _node_of(read):
            return False
        if read.spec is not None and read.spec.scheduling_gates:
            return False
        nominated = read.status and read.status.nominated_node_name
        return not nominated and group_of(read) == NO_GROUP

    def _plan(
        self, managed: ManagedResource, pod: Waiting, rules: defrag.ListedRules, most: int
    ) -> defrag.DefragAnswer:
        return defrag.find_moves(
            managed.ledger,
            defrag.Hole(pod.request, pod.priority, pod.demands),
            rules,
            self._policy,
            managed.filters,
            max_moves=most,
            demands={uid: demands_of(owned) for uid, owned in rules.pods.items()},
            steps=defrag.A_GLANCE,
        )

    # -- a step -----------------------------------------------------------------------------------

    def _seen(self, going: _Going) -> steps.Seen:
        """Read what the next step depends on."""
        run = going.run
        move = run.evicted or run.sent
        if move is not None:
            pod = self._pod(move.entry.ref)
            if run.sent is not None:
                return steps.Seen(gone=_is_going(pod))
            heir = None
            if going.old is not None:
                heir = _heir_of(going.old, going.before, self._of_owner(going.old))
            return steps.Seen(ended=pod is None, heir=heir)
        waiting = self._pod(run.pod.ref)
        if waiting is None or _is_going(waiting):
            return steps.Seen(node=None)
        if node := _node_of(waiting):
            return steps.Seen(node=node)
        ledger = going.managed.ledger
        if not run.unmoved or any(ledger.entry(uid) is not None for uid in going.settled):
            return steps.Seen()
        going.rules = self._rules(self._wall())
        plan = self._plan(going.managed, run.pod, going.rules, len(run.unmoved))
        entries = (ledger.entry(uid) for uid in run.unmoved)
        spent = any(
            entry and going.rules.judge(entry).rule is defrag.Rule.SPENT for entry in entries
        )
        return steps.Seen(plan=plan, spent=spent)

    def _act(self, going: _Going, step: steps.Step) -> None:
        match step:
            case steps.Evict(move):
                self._evict(going, move)
            case steps.Settled(move):
                self._moved += 1
                going.settled.add(move.entry.ref.uid)
                self._keep_hole(going)
                log.info(Line("moved", pod=move.entry.ref, node=move.entry.node, to=move.node))
                self._write_record(self._record.settled(move.entry.ref.uid))
            case steps.Stopped(why):
                self._end(going, why)
            case steps.Done():
                log.info(Line("moves end", pod=going.run.pod.ref, node=going.run.node))
                self._going = None
                self._let_go()
            case steps.Wait() if going.run.unmoved and not (going.run.evicted or going.run.sent):
                going.not_before = max(going.not_before, self._clock() + _LOOK)

    def _evict(self, going: _Going, move: defrag.PodMove) -> None:
        """Write the move down, keep its new place, and evict the pod."""
        ref, run, again = move.entry.ref, going.run, going.run.sent is not None
        if not again:
            holds = going.managed.holds
            holds.expire(self._clock())
            promised = (*holds.on(move.node), *holds.on(run.node))
            if any(hold.reserved is None for hold in promised):
                return  # filter has promised something on one of both nodes to another pod
            going.old = going.rules.pods[ref.uid]
            going.before = frozenset(self._of_owner(going.old)) | {ref.uid}
            record, wall = self._read_record(), self._wall()
            for uid in going.settled:  # that may not have been written
                record = record.settled(uid)
            if not record.moves_left(self._budget, wall) or record.under_way(wall):
                self._end(going, steps.Stop.PLAN)  # another process has moved something
                return
            self._write_record(record.sent(ref.uid, str(ref), wall))
            self._keep_place(going, move, going.old)
        if self.loop.is_stopping or self._not_ready():
            return  # the next round, if there is one, ends it
        answer = self._sent(going, move)
        log.info(Line("eviction", pod=ref, node=move.entry.node, to=move.node, answer=answer.value))
        step = run.answered(move, answer, self._clock())
        if answer is steps.Answer.DONE:
            self._messages.moved(ref, move.entry.node, move.node, run.pod.ref)
        elif answer is not steps.Answer.UNCLEAR:
            self._refused += 1
            going.not_before = self._clock() + _RETRY
        self._act(going, step)
        if run.sent is None and run.evicted is None:
            self._write_record(self._record.withdrawn(ref.uid))

    def _sent(self, going: _Going, move: defrag.PodMove) -> steps.Answer:
        """Send the eviction; return what came of it."""
        ref, old = move.entry.ref, going.old
        version = (old and old.metadata and old.metadata.resource_version) or ""
        try:
            self._api.request(
                "POST",
                f"{pod_path(ref)}/eviction",
                body=json.dumps(eviction(ref, version)).encode(),
                timeout=_TIMEOUT,
                not_after=self._leads_until(),
            )
        except (ApiConflict, ApiNotFound):
            return steps.Answer.CHANGED
        except ApiError as error:
            self._right.failed(error)
            if error.status == 429:
                return steps.Answer.TOO_MANY
            if error.status in REFUSED:
                log.warning(Line("eviction refused", pod=ref, error=str(error)))
                return steps.Answer.FORBIDDEN
            return steps.Answer.UNCLEAR
        return steps.Answer.DONE

    def _end(self, going: _Going, why: steps.Stop) -> None:
        """Carry the plan on no more: what was moved stays moved."""
        pod = going.run.pod
        self._stopped[why.value] += 1
        self._not_before[pod.uid] = self._clock() + AFTER_STOP
        self._going = None
        self._let_go()
        log.warning(Line("moves stopped", pod=pod.ref, node=going.run.node, why=why.value))

    # -- places -----------------------------------------------------------------------------------

    def _keep_hole(self, going: _Going) -> None:
        """Keep what the pod that waits needs, and no other place."""
        holds, run, now = going.managed.holds, going.run, self._clock()
        pod = Claimant(run.pod.ref, run.pod.request, run.pod.priority)
        holds.release()
        holds.reserve(pod, run.node, run.shares, now + steps.WAIT, now)

    def _keep_place(self, going: _Going, move: defrag.PodMove, old: OwnedPod) -> None:
        now, heir = self._clock(), claimant(old, move.entry.request)
        going.managed.holds.reserve(heir, move.node, move.shares, now + steps.WAIT, now, heir=True)

    def _let_go(self) -> None:
        for managed in self._resources:
            managed.holds.release()

    # -- reads, which may raise ApiError, and MessageError for an unreadable page ----------------

    def _rules(self, now: float) -> defrag.ListedRules:
        """Return which pods may be moved. now: seconds since the epoch."""
        namespaces: dict[str, Mapping[str, str]] = {}
        for namespace in self._all("/api/v1/namespaces", NAMESPACES):
            metadata = namespace.metadata or Metadata()
            consent = (metadata.labels or {}).get(defrag.LABEL)
            namespaces[metadata.name or ""] = {} if consent is None else {defrag.LABEL: consent}
        budgets = [
            read_budget(
                (budget.metadata and budget.metadata.namespace) or "", budget.spec, budget.status
            )
            for budget in self._all("/apis/policy/v1/poddisruptionbudgets", BUDGETS)
        ]
        pods = self._pods("/api/v1/pods", f"{defrag.LABEL}=true")
        for name, labels in namespaces.items():
            if labels.get(defrag.LABEL) == "true":
                pods |= self._pods(f"/api/v1/namespaces/{name}/pods", "")
        return defrag.ListedRules(pods, namespaces, budgets, now)

    def _pod(self, ref: PodRef) -> OwnedPod | None:
        """Return the pod; None if it is gone, or another one has its name."""
        try:
            body = self._api.request("GET", pod_path(ref), timeout=_TIMEOUT)
        except ApiNotFound:
            return None
        pod = OWNED_PODS.decode_answer(body, ref.namespace, ref.name)
        return pod if (pod.metadata and pod.metadata.uid) == ref.uid else None

    def _of_owner(self, pod: OwnedPod) -> dict[str, OwnedPod]:
        """Return the pods of its namespace that its controller may have made, by uid."""
        metadata = pod.metadata or Metadata()
        labels = metadata.labels or {}
        key = next((key for key in _OF_ONE_OWNER if key in labels), "")
        path = f"/api/v1/namespaces/{metadata.namespace}/pods"
        return self._pods(path, f"{key}={labels[key]}" if key else "")

    def _pods(self, path: str, labels: str) -> dict[str, OwnedPod]:
        query = {"fieldSelector": _NOT_ENDED} | ({"labelSelector": labels} if labels else {})
        every = self._all(path, OWNED_PODS, query)
        kept = (kept_owned(pod, defrag.CHECKPOINT) for pod in every)
        return {(pod.metadata and pod.metadata.uid) or "": pod for pod in kept if pod is not None}

    def _all(
        self, path: str, codec: Codec[_T], query: Mapping[str, str] | None = None
    ) -> Iterator[_T]:
        for page in pages(self._api, path, codec.decode_list, query, timeout=_TIMEOUT):
            yield from page.items

    # -- the record -------------------------------------------------------------------------------

    def _read_record(self) -> MoveRecord:
        try:
            body = self._api.request("GET", f"{self._maps}/{MOVES}", timeout=_TIMEOUT)
        except ApiNotFound:
            return MoveRecord()
        return read_record(body, self._wall())

    def _write_record(self, record: MoveRecord) -> None:
        """Write it, if it is still as it was read. Raises ApiError, also if that is not known."""
        verb, path = ("PUT", f"{self._maps}/{MOVES}") if record.version else ("POST", self._maps)
        try:
            document = json.dumps(record.document()).encode()
            body = self._api.request(verb, path, body=document, timeout=_TIMEOUT)
        except ApiError as error:
            self._right.failed(error)
            raise
        self._record = read_record(body, self._wall())
