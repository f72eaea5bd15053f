"""A plan of moves as a step machine: it takes an observation and the time, and returns a step.

The plan goes on only while it holds: a moved pod runs on the planned node, the fewest moves are a
part of the first plan and open the same node, and the pod is pending. Knows no API server, threads
or clocks, so a story can drive the machine.

Tested in `tests/unit/extender/moves/test_mover.py`.
"""

from dataclasses import dataclass
from enum import StrEnum

from gpushare.core.states.entry import Waiting
from gpushare.explain.defrag import DefragAnswer, PodMove

WAIT = 300.0
"""Seconds for a budget to allow an eviction, a moved pod to run, and the pod to be bound."""


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


@dataclass(frozen=True, slots=True)
class Heir:
    """The pod that a controller has made in place of one that was evicted."""

    name: str
    node: str
    running: bool


@dataclass(frozen=True, slots=True)
class Seen:
    """An observation before a step."""

    node: str | None = ""
    """The node of the pod to place, "" while the pod is pending; None: the pod is gone."""
    plan: DefragAnswer | None = None
    """A plan of as many moves as are left at most, made between moves once the books show the last
    one."""
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
class EvictionEnd:
    """This move is complete."""

    move: PodMove


@dataclass(frozen=True, slots=True)
class Stopped:
    """Nothing more is moved."""

    why: Stop


@dataclass(frozen=True, slots=True)
class PlanDone:
    """The pod that waited is bound, and all was moved."""


Step = Evict | Pause | EvictionEnd | Stopped | PlanDone


class Run:
    """A plan from the first move on. pod: the pending pod that the plan makes room for."""

    def __init__(self, pod: Waiting, plan: DefragAnswer, now: float) -> None:
        self.pod = pod
        self.node, self.shares = plan.node, plan.shares
        self.unmoved = {move.entry.ref.uid for move in plan.moves}
        self.sent: PodMove | None = None
        """The move with a sent eviction and no clear answer."""
        self.evicted: PodMove | None = None
        """The move with an evicted pod, until the heir of the pod runs."""
        self.until = now + WAIT
        self._changed = self._refused = False

    def step(self, observation: Seen, now: float) -> Step:
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
                return Pause()
            # The call has uid and resourceVersion: a repetition can hit no other pod.
            return Stopped(Stop.UNKNOWN) if now >= self.until else Evict(move)
        return self._between(observation, now)

    def answered(self, move: PodMove, answer: Answer, now: float) -> Step:
        """Take the outcome of an eviction, and return the next step."""
        unclear = self.sent is not None
        self.sent = None
        match answer:
            case Answer.DONE:
                self._gone(move, now)
            case Answer.UNCLEAR:
                self.sent = move
            case Answer.CHANGED:
                # The one that was sent first cannot land any more, but may have landed.
                self.sent, self._changed = (move if unclear else None), unclear
            case Answer.TOO_MANY:
                # Unless an earlier call with unknown outcome may still land.
                self.sent, self._refused = (move if unclear else None), True
            case Answer.FORBIDDEN:
                return Stopped(Stop.UNKNOWN if unclear else Stop.REFUSED)
        return Pause()

    def _between(self, observation: Seen, now: float) -> Step:
        if observation.node is None:
            return Stopped(Stop.POD_GONE)
        if observation.node:
            return Stopped(Stop.POD_BOUND) if self.unmoved else PlanDone()
        plan, late = observation.plan, now >= self.until
        if not self.unmoved:
            return Stopped(Stop.NOT_BOUND) if late else Pause()
        if plan is None:
            return Stopped(Stop.PLAN) if late else Pause()
        planned_uids = {move.entry.ref.uid for move in plan.moves}
        if plan.node and not planned_uids:
            self.unmoved.clear()
            return Pause()
        if plan.node != self.node or not planned_uids <= self.unmoved:
            # The pod that was moved last may count as disrupted a little longer.
            return Pause() if observation.spent and not late else Stopped(Stop.PLAN)
        if late:
            return Stopped(Stop.REFUSED if self._refused else Stop.PLAN)
        self.unmoved = planned_uids
        return Evict(plan.moves[0])

    def _after(self, move: PodMove, observation: Seen, now: float) -> Step:
        heir = observation.heir
        if heir is not None and heir.node not in ("", move.node):
            return Stopped(Stop.LANDED)
        if heir is not None and heir.running and heir.node and observation.ended:
            self.evicted, self.until = None, now + WAIT
            return EvictionEnd(move)
        return Stopped(Stop.NOT_RUNNING) if now >= self.until else Pause()

    def _gone(self, move: PodMove, now: float) -> None:
        self.sent, self.evicted = None, move
        self._changed = self._refused = False
        self.unmoved.discard(move.entry.ref.uid)
        self.until = now + WAIT
