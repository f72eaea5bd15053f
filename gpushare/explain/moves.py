"""A plan of moves as a step machine: it takes an observation and the time, and returns a step.

`gpushare defrag --apply` and the extender carry plans out by this machine. A plan goes on only
while it holds: a moved pod runs on the planned node, the fewest moves are a part of the first plan
and open the same node, and the pod is pending. Knows no API server, threads or clocks, so a story
can drive the machine.

Tested in `tests/unit/extender/moves/test_mover.py` and `tests/unit/cli/test_defrag_apply.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from gpushare.core.model import PodRef
from gpushare.errors import ApiConflict, ApiError, ApiNotFound
from gpushare.explain.defrag import DefragAnswer, MoveRules, PodMove, Rule
from gpushare.ledger import Reader
from gpushare.wire.moves import may_succeed
from gpushare.wire.objects import Metadata, Owner, Pod, controller_of
from gpushare.wire.pods import has_ended

WAIT = 300.0
"""Seconds for a budget to allow an eviction, a moved pod to run, and the pod to be bound."""

_RUNNING = "Running"
_TOO_MANY = 429
_REFUSED = (400, 401, 403, 405, 422)
"""Statuses of an eviction that a repetition does not change."""


class Stop(StrEnum):
    """The reason why a plan stops. The value is a label of a metric: it never changes."""

    POD_GONE = "pod_gone"
    POD_BOUND = "pod_bound"
    PLAN = "plan_changed"
    REFUSED = "eviction_refused"
    UNKNOWN = "eviction_unknown"
    LANDED = "landed_elsewhere"
    NOT_RUNNING = "not_running"
    NOT_BOUND = "not_bound"
    NOT_LEADING = "not_leading"
    UNREADABLE = "cluster_unreadable"


class Answer(StrEnum):
    """The outcome of an eviction call."""

    DONE = "done"
    TOO_MANY = "its budget allows none now"
    CHANGED = "the pod has changed"
    UNCLEAR = "no clear answer"
    FORBIDDEN = "refused for good"
    POSTPONED = "not sent: another pod or process comes first"


def answer_of(error: ApiError) -> Answer:
    """Return the outcome of an eviction call that failed."""
    if isinstance(error, (ApiConflict, ApiNotFound)):
        return Answer.CHANGED
    if error.refusal == _TOO_MANY:
        return Answer.TOO_MANY
    return Answer.FORBIDDEN if error.refusal in _REFUSED else Answer.UNCLEAR


@dataclass(frozen=True, slots=True)
class Heir:
    """The pod that a controller has made in place of an evicted pod."""

    name: str
    node: str
    phase: str


@dataclass(frozen=True, slots=True)
class Observation:
    """The state of the cluster before a step."""

    node: str | None = ""
    """The node of the pod to place, "" while the pod is pending; None: the pod is gone."""
    plan: DefragAnswer | None = None
    """A new plan with at most as many moves as remain; None until the books show the last move."""
    spent: bool = False
    """Whether only a disruption budget keeps a pod of the remaining plan from its move."""
    gone: bool = False
    """Whether the pod of the sent eviction is terminating or gone."""
    ended: bool = False
    """Whether the evicted pod is gone."""
    heir: Heir | None = None
    """The pod in place of the evicted pod."""


@dataclass(frozen=True, slots=True)
class Evict:
    """Evict this pod."""

    move: PodMove


@dataclass(frozen=True, slots=True)
class Pause:
    """Look again."""


@dataclass(frozen=True, slots=True)
class NotEvicted:
    """The eviction of this move was not made, and never will be; look again."""

    move: PodMove


@dataclass(frozen=True, slots=True)
class EvictionEnd:
    """This move is complete."""

    move: PodMove


@dataclass(frozen=True, slots=True)
class RoomOpen:
    """The room is open without the remaining moves; look again."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """Nothing more is moved."""

    why: Stop


@dataclass(frozen=True, slots=True)
class PlanDone:
    """The pod is bound, or without a pod the room is open."""


Step = Evict | Pause | NotEvicted | EvictionEnd | RoomOpen | Stopped | PlanDone


class Run:
    """A plan from the first move on.

    pod: the pending pod that the plan makes room for; None for room without a pod. wait: seconds
    for each move, as WAIT.
    """

    def __init__(
        self, pod: PodRef | None, plan: DefragAnswer, now: float, wait: float = WAIT
    ) -> None:
        self.pod = pod
        self.node, self.shares = plan.node, plan.shares
        self.unmoved = {move.entry.ref.uid: move for move in plan.moves}
        """The remaining moves by the uid of the pod."""
        self.sent: PodMove | None = None
        """The move with a sent eviction and no clear answer."""
        self.evicted: PodMove | None = None
        """The move with an evicted pod, until the heir of the pod runs."""
        self.old: Pod | None = None
        """The pod to move, read before its eviction."""
        self.before: frozenset[str] = frozenset()
        """The uids of the pods of the same owner at that time."""
        self.until = now + wait
        self._wait = wait
        self._changed = self._refused = False

    def step(self, observation: Observation, now: float) -> Step:
        """Return the next step."""
        if self.evicted is not None:
            return self._after(self.evicted, observation, now)
        if self.sent is not None:
            move = self.sent
            if observation.gone:
                self._gone(move, now)
                return Pause()
            if self._changed:
                self.sent, self._changed = None, False
                return NotEvicted(move)
            # The call has uid and resourceVersion: a repetition can hit no other pod.
            return Stopped(Stop.UNKNOWN) if now >= self.until else Evict(move)
        return self._between(observation, now)

    def answered(self, move: PodMove, answer: Answer, now: float) -> Step:
        """Take the outcome of an eviction, and return the next step."""
        # A call with an unknown outcome may still land, whatever a later call says.
        unclear = self.sent is not None
        self.sent = move if unclear else None
        match answer:
            case Answer.DONE:
                self._gone(move, now)
            case Answer.UNCLEAR:
                if not unclear:
                    self.sent, self.until = move, now + self._wait
            case Answer.FORBIDDEN:
                return Stopped(Stop.UNKNOWN if unclear else Stop.REFUSED)
            case Answer.POSTPONED:
                self._refused = True
            case Answer.CHANGED | Answer.TOO_MANY:
                # After CHANGED the first call cannot land any more, but may have landed.
                self._changed, self._refused = unclear and answer is Answer.CHANGED, True
                return Pause() if unclear else NotEvicted(move)
        return Pause()

    def _between(self, observation: Observation, now: float) -> Step:
        if observation.node is None:
            return Stopped(Stop.POD_GONE)
        plan, late = observation.plan, now >= self.until
        if observation.node:
            if self.unmoved and observation.node != self.node:
                return Stopped(Stop.POD_BOUND)
            return self._open() if self.unmoved else PlanDone()
        if not self.unmoved and self.pod is not None:
            return Stopped(Stop.NOT_BOUND) if late else Pause()
        if plan is None:
            return Stopped(Stop.PLAN) if late else Pause()
        planned_moves = {move.entry.ref.uid: move for move in plan.moves}
        if not self.unmoved:
            return PlanDone() if plan.node and not planned_moves else Stopped(Stop.NOT_BOUND)
        if plan.node and not planned_moves:
            return self._open()
        if plan.node != self.node or not planned_moves.keys() <= self.unmoved.keys():
            # The pod that was moved last may count as disrupted a little longer.
            return Pause() if observation.spent and not late else Stopped(Stop.PLAN)
        if late and self._refused:
            return Stopped(Stop.REFUSED)
        self.unmoved = planned_moves
        return Evict(plan.moves[0])

    def _after(self, move: PodMove, observation: Observation, now: float) -> Step:
        heir = observation.heir
        if heir is not None and heir.node not in ("", move.node):
            return Stopped(Stop.LANDED)
        if heir is not None and heir.phase == _RUNNING and heir.node and observation.ended:
            self.evicted, self.until = None, now + self._wait
            return EvictionEnd(move)
        return Stopped(Stop.NOT_RUNNING) if now >= self.until else Pause()

    def _open(self) -> Step:
        self.unmoved.clear()
        return RoomOpen()

    def _gone(self, move: PodMove, now: float) -> None:
        self.sent, self.evicted = None, move
        self._changed = self._refused = False
        self.unmoved.pop(move.entry.ref.uid, None)
        self.until = now + self._wait


class MovesCluster(Protocol):
    """The reads of a cluster in which pods are moved."""

    def pod(self, ref: PodRef) -> Pod | None:
        """Return the pod; None if the pod is gone, or another pod has the name."""

    def pods_of_owner(self, pod: Pod) -> Mapping[str, Pod]:
        """Return the pods that have not ended of the owner of this pod, or more pods, by uid."""

    def look(self, max_moves: int) -> tuple[DefragAnswer, MoveRules, Reader] | None:
        """Return (a new plan of so many moves at most, its rules, its books).

        None while the books do not show the last move.
        """


def observe(run: Run, cluster: MovesCluster) -> Observation:
    """Return the observation for the next step. Raises the errors of the reads."""
    if run.evicted is not None and run.old is not None:
        pods = cluster.pods_of_owner(run.old)
        ended = run.evicted.entry.ref.uid not in pods
        return Observation(ended=ended, heir=_heir_of(run.old, run.before, pods))
    if run.sent is not None:
        return Observation(gone=is_going(cluster.pod(run.sent.entry.ref)))
    if run.pod is not None:
        pod = cluster.pod(run.pod)
        if pod is None or is_going(pod):
            return Observation(node=None)
        node = node_of(pod)
        if node or not run.unmoved:
            return Observation(node=node)
    look = cluster.look(max(len(run.unmoved), 1))
    if look is None:
        return Observation()
    plan, rules, ledger = look
    entries = (ledger.entry(uid) for uid in run.unmoved)
    spent = any(entry is not None and rules.judge(entry).rule is Rule.SPENT for entry in entries)
    return Observation(plan=plan, spent=spent)


def is_going(pod: Pod | None) -> bool:
    """Return whether the pod is gone, has ended, or is being deleted."""
    if pod is None or has_ended(pod):
        return True
    return bool(pod.metadata and pod.metadata.deletion_timestamp)


def node_of(pod: Pod) -> str:
    """Return the node of the pod, or ""."""
    return (pod.spec and pod.spec.node_name) or ""


def _heir_of(old: Pod, before: frozenset[str], pods: Mapping[str, Pod]) -> Heir | None:
    """Return the pod that has come in place of the old one, the one with a node first.

    before: the uids that were there before the old one was evicted.
    """
    owner, name = controller_of(old) or Owner(), (old.metadata and old.metadata.name) or ""
    heirs: list[Heir] = []
    for uid, pod in pods.items():
        metadata = pod.metadata or Metadata()
        if uid in before or is_going(pod) or not may_succeed(pod, owner, name):
            continue
        phase = (pod.status and pod.status.phase) or "Pending"
        heirs.append(Heir(f"{metadata.namespace}/{metadata.name}", node_of(pod), phase))
    return max(heirs, key=lambda heir: (heir.phase == _RUNNING, bool(heir.node)), default=None)
