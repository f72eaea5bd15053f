"""Moves pods so that a pending pod fits: at most so many an hour, one move at a time.

The leader looks for a pod that has fitted nowhere for a while, makes the plan of `gpushare defrag`
for the pod, and carries the plan out by explain/moves.py. Before each eviction the mover reads the
rules, makes the plan again, and records the move (wire/moves.py). Meanwhile holds reserve the room
for the pending pod, as soon as the room opens, and the new place of the moved pod. An eviction has
the uid and resourceVersion of the pod, and a process that does not lead sends none. The mover reads
only pods with the consent of their owners.
"""

import json
import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import TypeVar

from gpushare.core.model import PodRef
from gpushare.core.policy import load_policy
from gpushare.core.states.entry import Waiting
from gpushare.core.trial import FALLBACK_POLICY
from gpushare.daemon.loop import Loop
from gpushare.daemon.part import LoopPart
from gpushare.errors import ApiError, ApiNotFound, GpuShareError
from gpushare.explain import defrag, moves
from gpushare.extender.follow.disruption_budgets import budget_of
from gpushare.extender.follow.write_right import WriteRight
from gpushare.extender.managed_resources import ManagedResource, ManagedResources
from gpushare.extender.tell.events.messages import EventMessages
from gpushare.kube.api import Calls, pages
from gpushare.ledger import Reader
from gpushare.logline import Line
from gpushare.turns import in_turns
from gpushare.wire.codec import Codec
from gpushare.wire.kept import MOVES
from gpushare.wire.moves import MoveRecord, eviction, kept_owned, read_record
from gpushare.wire.objects import BUDGETS, NAMESPACES, PODS, Metadata, Pod
from gpushare.wire.pods import Claimant, claimant, may_have_place, pod_path, read_pod

log = logging.getLogger("gpushare.moves")

EVERY = 10.0
AGAIN = 1.0
"""Seconds until the next round while a plan is carried out."""

PAUSE = 60.0
"""Seconds until moves for the same pod are looked for again where none were found."""

AFTER_STOP = 600.0
"""Seconds until moves for the same pod are looked for again after a plan was not carried on."""

_MOST_PODS = 20
"""Upper bound of the pods of one round, in the turns of their namespaces."""

_REST = 50.0
"""The pause after a round without a plan, as a multiple of the CPU time of the round."""

_MOST_CPU = 0.2
"""Seconds of CPU after which a round searches for no further pod: calls of filter wait for the
interpreter meanwhile."""

_LOOK = 2.0
"""Seconds until the cluster is read again where nothing could be done between two moves."""

_RETRY = 10.0
"""Seconds until the mover repeats an eviction that a budget refused."""

_TIMEOUT = 10.0
_NOT_ENDED = "status.phase!=Succeeded,status.phase!=Failed"
_OF_ONE_OWNER = ("statefulset.kubernetes.io/pod-name", "pod-template-hash")
"""Labels that controllers give to their pods: a list by such a label is short."""

_T = TypeVar("_T")


@dataclass(slots=True)
class _Going:
    """A plan under way, with the objects for the calls to the API server."""

    resource: ManagedResource
    pod: Waiting
    run: moves.Run
    rules: defrag.ListedRules
    not_before: float = -math.inf
    """When the next step may be made."""
    failing_since: float | None = None
    settled: set[str] = field(default_factory=set)
    """The uids of those that were moved."""


@dataclass(eq=False)
class Mover(LoopPart):
    """Carries plans out: `round` once, a started mover again and again.

    budget: evictions an hour, of all processes that led in this hour. after: seconds that a
    pod must have fitted nowhere. namespace: of the ConfigMap that keeps the moves. leads_until:
    monotonic seconds until which something may be sent. wall: seconds since the epoch.
    """

    api: Calls
    resources: ManagedResources
    messages: EventMessages
    _: KW_ONLY
    budget: int
    after: float
    namespace: str
    not_ready: Callable[[], str]
    leads_until: Callable[[], float] = lambda: math.inf
    clock: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
    cpu_clock: Callable[[], float] = time.thread_time

    def __post_init__(self) -> None:
        self._maps = f"/api/v1/namespaces/{self.namespace}/configmaps"
        self._policy = load_policy(FALLBACK_POLICY)
        self._right = WriteRight(self.clock)
        self._going: _Going | None = None
        self._refused_since: dict[str, float] = {}
        self._not_before: dict[str, float] = {}
        # By namespace with pending pods: the start of the last plan for a pod of the namespace.
        self._served_at: dict[str, float] = {}
        # By namespace with pending pods: the last search for a pod of the namespace.
        self._searched_at: dict[str, float] = {}
        self._record = MoveRecord()
        self._moved = self._refused = 0
        self._stopped: Counter[str] = Counter({reason.value: 0 for reason in moves.Stop})
        self.loop = Loop("moves", self._step, AGAIN, log=log, failed="moves failed")

    def stop(self) -> None:
        """Evict nothing more, and keep no place."""
        super().stop()
        self._let_go()

    def state(self) -> dict[str, float]:
        """Return the values for metrics."""
        return {
            "moves_total": self._moved,
            "moves_refused_total": self._refused,
            "moves_left": self._record.moves_left(self.budget, self.wall()),
        }

    def stopped(self) -> Mapping[str, int]:
        """Return the number of stopped plans by reason."""
        return dict(self._stopped)

    def _step(self) -> float:
        """Make a round; return the pause after it: searches take 2 % of the time at most."""
        began = self.cpu_clock()
        is_idle = self.round()
        return max(EVERY, _REST * (self.cpu_clock() - began)) if is_idle else AGAIN

    def round(self) -> bool:
        """Make one step of a plan, or look for one; return whether none is under way."""
        if self.not_ready():
            self._refused_since.clear()
            if self._going is not None:
                self._end(self._going, moves.Stop.NOT_LEADING)
            return False
        going = self._going
        try:
            if going is None:
                if not self._right.missing:
                    self._begin()
            elif self.clock() >= going.not_before:
                observation = moves.observe(going.run, self)
                self._act(going, going.run.step(observation, self.clock()))
                going.failing_since = None
        except GpuShareError as error:
            log.warning(Line("moves: not done", error=str(error)))
            if going is not None:
                now = self.clock()
                going.failing_since = since = going.failing_since or now
                if now >= since + moves.WAIT:
                    self._end(going, moves.Stop.UNREADABLE)
        return self._going is None

    # -- which pod --------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Begin a plan for the first pod that has waited for long enough, if there is one."""
        ripe = self._ripe()
        if not ripe:
            return
        now, wall = self.clock(), self.wall()
        self._record = record = self._read_record()
        max_moves = min(record.moves_left(self.budget, wall), defrag.MOST_MOVES)
        if not max_moves or record.under_way(wall):
            return
        rules, began = self._rules(wall), self.cpu_clock()
        for resource, pod in ripe:
            self._not_before[pod.uid] = now + PAUSE
            self._searched_at[pod.ref.namespace] = now
            shown = self.pod(pod.ref)
            if shown is None or not may_have_place(shown):
                continue
            plan = self._plan(resource, pod, rules, max_moves)
            if plan.moves:
                self._served_at[pod.ref.namespace] = now
                self._going = _Going(resource, pod, moves.Run(pod.ref, plan, now), rules)
                self._keep_hole(self._going)
                count = len(plan.moves)
                log.info(Line("moves begin", pod=pod.ref, node=plan.node, moves=count))
                self.messages.makes_room(pod.ref, plan.node, count)
                return
            if self.cpu_clock() >= began + _MOST_CPU:
                return

    def _ripe(self) -> list[tuple[ManagedResource, Waiting]]:
        """Return the pods that have fitted nowhere for `after` seconds, in turns of namespaces.

        In a namespace the order is: pods without an earlier search for moves, then by priority,
        then by age. A pod without moves in a recent search is left out.
        """
        now, ripe = self.clock(), list[tuple[ManagedResource, Waiting]]()
        since: dict[str, float] = {}
        namespaces = set[str]()
        for resource in self.resources:
            # kube-scheduler calls no extender for a pod that fails its own filters (`gated`).
            pending_pods = [
                pod for pod in resource.ledger.waiting() if pod.served and not pod.demands.gated
            ]
            namespaces |= {pod.ref.namespace for pod in pending_pods}
            refused_since = self._refused_since
            since |= {
                pod.uid: refused_since[pod.uid] for pod in pending_pods if pod.uid in refused_since
            }
            pending_pods = [pod for pod in pending_pods if now >= self._tried_until(pod)]
            pending_pods.sort(key=self._turn)
            for pod in in_turns(pending_pods, lambda pod: pod.ref.namespace)[:_MOST_PODS]:
                # The plan finds the node of a card that the pod names.
                if not any(resource.places(pod.request, pod.demands)):
                    since.setdefault(pod.uid, now)
                    if now >= since[pod.uid] + self.after:
                        ripe.append((resource, pod))
                else:
                    since.pop(pod.uid, None)
        self._refused_since = since
        resting = self._not_before.items()
        self._not_before = {uid: at for uid, at in resting if uid in since or at > now}
        served, searched = self._served_at.items(), self._searched_at.items()
        self._served_at = {namespace: at for namespace, at in served if namespace in namespaces}
        self._searched_at = {namespace: at for namespace, at in searched if namespace in namespaces}
        ripe.sort(key=lambda candidate: self._turn(candidate[1]))
        return in_turns(ripe, lambda candidate: candidate[1].ref.namespace)

    def _tried_until(self, pod: Waiting) -> float:
        """Return the time of the next search for moves for the pod; -inf without an earlier one."""
        return self._not_before.get(pod.uid, -math.inf)

    def _turn(self, pod: Waiting) -> tuple[float, float, float, int, float]:
        """Return the sort key of a pending pod.

        The namespace with the oldest last plan comes first, then that with the oldest search, since
        a round may end before each namespace had a turn; then the pod with the oldest search.
        """
        served_at = self._served_at.get(pod.ref.namespace, -math.inf)
        searched_at = self._searched_at.get(pod.ref.namespace, -math.inf)
        return served_at, searched_at, self._tried_until(pod), -pod.priority, pod.created

    def _plan(
        self, resource: ManagedResource, pod: Waiting, rules: defrag.ListedRules, max_moves: int
    ) -> defrag.DefragAnswer:
        return defrag.find_moves(
            resource.ledger,
            defrag.Hole(pod.request, pod.priority, pod.demands),
            rules,
            self._policy,
            resource.filters,
            max_moves=max_moves,
            demands=rules.demands,
            steps=defrag.A_GLANCE,
        )

    # -- a step -----------------------------------------------------------------------------------

    def _act(self, going: _Going, step: moves.Step) -> None:
        match step:
            case moves.Evict(move):
                self._evict(going, move)
            case moves.EvictionEnd(move):
                self._moved += 1
                going.settled.add(move.entry.ref.uid)
                self._keep_hole(going)
                log.info(Line("moved", pod=move.entry.ref, node=move.entry.node, to=move.node))
                self._write_record(self._record.settled(move.entry.ref.uid))
            case moves.Stopped(why):
                self._end(going, why)
            case moves.PlanDone():
                log.info(Line("moves end", pod=going.pod.ref, node=going.run.node))
                self._going = None
                self._let_go()
            case moves.NotEvicted(move):
                self._write_record(self._record.withdrawn(move.entry.ref.uid))
            case moves.Pause() if going.run.unmoved and not (going.run.evicted or going.run.sent):
                going.not_before = max(going.not_before, self.clock() + _LOOK)

    def _evict(self, going: _Going, move: defrag.PodMove) -> None:
        """Record the move, reserve the new place, and evict the pod."""
        ref, run, again = move.entry.ref, going.run, going.run.sent is not None
        if not again:
            holds = going.resource.holds
            holds.expire(self.clock())
            promised = (*holds.on(move.node), *holds.on(run.node))
            if any(hold.reserved is None or hold.opens_at is not None for hold in promised):
                # Something on one of both nodes is promised to another pod, or reserved.
                run.answered(move, moves.Answer.POSTPONED, self.clock())
                return
            run.old = old = going.rules.pods[ref.uid]
            run.before = frozenset(self.pods_of_owner(old)) | {ref.uid}
            record, wall = self._read_record(), self.wall()
            for uid in going.settled:  # that may not have been written
                record = record.settled(uid)
            if not record.moves_left(self.budget, wall) or record.under_way(wall):
                self._end(going, moves.Stop.PLAN)  # another process has moved something
                return
            self._write_record(record.sent(ref.uid, str(ref), wall))
            self._keep_place(going, move, old)
        if self.loop.is_stopping or self.not_ready():
            return  # the next round, if any, ends the plan
        answer = self._sent(going, move)
        log.info(Line("eviction", pod=ref, node=move.entry.node, to=move.node, answer=answer.value))
        step = run.answered(move, answer, self.clock())
        if answer is moves.Answer.DONE:
            self.messages.moved(ref, move.entry.node, move.node, going.pod.ref)
        elif answer is not moves.Answer.UNCLEAR:
            self._refused += 1
            going.not_before = self.clock() + _RETRY
        self._act(going, step)
        if answer is moves.Answer.FORBIDDEN and run.sent is None:
            self._write_record(self._record.withdrawn(ref.uid))

    def _sent(self, going: _Going, move: defrag.PodMove) -> moves.Answer:
        """Send the eviction; return its outcome."""
        ref, old = move.entry.ref, going.run.old
        version = (old and old.metadata and old.metadata.resource_version) or ""
        try:
            self.api.request(
                "POST",
                f"{pod_path(ref)}/eviction",
                body=json.dumps(eviction(ref, version)).encode(),
                timeout=_TIMEOUT,
                not_after=self.leads_until(),
            )
        except ApiError as error:
            answer = moves.answer_of(error)
            self._right.failed(error)
            if answer is moves.Answer.FORBIDDEN:
                log.warning(Line("eviction refused", pod=ref, error=str(error)))
            return answer
        return moves.Answer.DONE

    def _end(self, going: _Going, reason: moves.Stop) -> None:
        """Stop the plan; moved pods stay moved."""
        pod = going.pod
        self._stopped[reason.value] += 1
        self._not_before[pod.uid] = self.clock() + AFTER_STOP
        self._going = None
        self._let_go()
        log.warning(Line("moves stopped", pod=pod.ref, node=going.run.node, why=reason.value))

    # -- places -----------------------------------------------------------------------------------

    def _keep_hole(self, going: _Going) -> None:
        """Reserve the room for the pending pod, and no other place."""
        holds, run, now = going.resource.holds, going.run, self.clock()
        claimant_of_hole = Claimant(going.pod.ref, going.pod.request, going.pod.priority)
        holds.release()
        holds.reserve(claimant_of_hole, run.node, run.shares, now + moves.WAIT, now)

    def _keep_place(self, going: _Going, move: defrag.PodMove, old: Pod) -> None:
        now, heir = self.clock(), claimant(old, move.entry.request)
        going.resource.holds.reserve(heir, move.node, move.shares, now + moves.WAIT, now, heir=True)

    def _let_go(self) -> None:
        for resource in self.resources:
            resource.holds.release()

    # -- reads, which may raise ApiError, and MessageError for an unreadable page ----------------

    def look(self, max_moves: int) -> tuple[defrag.DefragAnswer, defrag.MoveRules, Reader] | None:
        """Return a new plan for the pod of the plan under way, its rules, and the books.

        None while the books show a moved pod in the old place.
        """
        going = self._going
        if going is None:
            return None
        ledger = going.resource.ledger
        if any(ledger.entry(uid) is not None for uid in going.settled):
            return None
        going.rules = self._rules(self.wall())
        plan = self._plan(going.resource, going.pod, going.rules, max_moves)
        return plan, going.rules, ledger

    def _rules(self, now: float) -> defrag.ListedRules:
        """Return which pods may be moved. now: seconds since the epoch."""
        namespaces: dict[str, Mapping[str, str]] = {}
        for namespace in self._all("/api/v1/namespaces", NAMESPACES):
            metadata = namespace.metadata or Metadata()
            consent = (metadata.labels or {}).get(defrag.LABEL)
            namespaces[metadata.name or ""] = {} if consent is None else {defrag.LABEL: consent}
        path = "/apis/policy/v1/poddisruptionbudgets"
        budgets = [budget_of(budget) for budget in self._all(path, BUDGETS)]
        pods = self._pods("/api/v1/pods", f"{defrag.LABEL}=true")
        for name, labels in namespaces.items():
            if labels.get(defrag.LABEL) == "true":
                pods |= self._pods(f"/api/v1/namespaces/{name}/pods", "")
        return defrag.ListedRules(pods, namespaces, budgets, now)

    def pod(self, ref: PodRef) -> Pod | None:
        """Return the pod; None if the pod is gone, or another pod has the name."""
        return read_pod(partial(self.api.request, "GET", timeout=_TIMEOUT), ref)

    def pods_of_owner(self, pod: Pod) -> dict[str, Pod]:
        """Return the pods of the namespace with the labels of the same owner, by uid."""
        metadata = pod.metadata or Metadata()
        labels = metadata.labels or {}
        key = next((key for key in _OF_ONE_OWNER if key in labels), "")
        path = f"/api/v1/namespaces/{metadata.namespace}/pods"
        return self._pods(path, f"{key}={labels[key]}" if key else "")

    def _pods(self, path: str, labels: str) -> dict[str, Pod]:
        query = {"fieldSelector": _NOT_ENDED} | ({"labelSelector": labels} if labels else {})
        owned_pods = self._all(path, PODS, query)
        trimmed_pods = (kept_owned(pod, defrag.CHECKPOINT) for pod in owned_pods)
        return {
            (pod.metadata and pod.metadata.uid) or "": pod
            for pod in trimmed_pods
            if pod is not None
        }

    def _all(
        self, path: str, codec: Codec[_T], query: Mapping[str, str] | None = None
    ) -> Iterator[_T]:
        for page in pages(self.api, path, codec.decode_list, query, timeout=_TIMEOUT):
            yield from page.items

    # -- the record -------------------------------------------------------------------------------

    def _read_record(self) -> MoveRecord:
        try:
            body = self.api.request("GET", f"{self._maps}/{MOVES}", timeout=_TIMEOUT)
        except ApiNotFound:
            return MoveRecord()
        return read_record(body, self.wall())

    def _write_record(self, record: MoveRecord) -> None:
        """Write the record at the resourceVersion of the read.

        Raises ApiError, also after an unknown outcome.
        """
        verb, path = ("PUT", f"{self._maps}/{MOVES}") if record.version else ("POST", self._maps)
        try:
            document = json.dumps(record.document()).encode()
            body = self.api.request(verb, path, body=document, timeout=_TIMEOUT)
        except ApiError as error:
            self._right.failed(error)
            raise
        self._record = read_record(body, self.wall())
