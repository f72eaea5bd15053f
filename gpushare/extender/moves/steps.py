"""One plan that is carried out, as a step machine: what is seen and a time in, the next step out.

It goes on only while all is as it was planned: a pod that was moved runs where it was planned, the
fewest moves are still some of the first plan and open the same node, and the pod still waits. Knows
nothing of the API server, threads and clocks, so a story can drive it.

Tested in `tests/unit/extender/moves/test_mover.py`.
"""

from dataclasses import dataclass
from enum import StrEnum

from gpushare.core.states.entry import Waiting
from gpushare.explain.defrag import DefragAnswer, PodMove

WAIT = 300.0
"""Seconds for a budget to allow an eviction, a moved pod to run, and the pod to be bound."""


class Stop(StrEnum):
    """Why a plan is not carried on. The value is a label of a metric: it never changes."""

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
    """What came of sending an eviction."""

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
    """What is read before a step."""

    node: str | None = ""
    """That of the pod that waits, "" while it waits; None: it is gone."""
    plan: DefragAnswer | None = None
    """A plan of as many moves as are left at most, made between moves once the books show the last
    one."""
    spent: bool = False
    """A pod that is left is kept by its budget alone."""
    gone: bool = False
    """The pod whose eviction was sent is on its way out."""
    ended: bool = False
    """It is no longer there."""
    heir: Heir | None = None
    """What came in its place."""


@dataclass(frozen=True, slots=True)
class Evict:
    """Evict this pod."""

    move: PodMove


@dataclass(frozen=True, slots=True)
class Wait:
    """Look again."""


@dataclass(frozen=True, slots=True)
class Settled:
    """This move has come to its end."""

    move: PodMove


@dataclass(frozen=True, slots=True)
class Stopped:
    """Nothing more is moved."""

    why: Stop


@dataclass(frozen=True, slots=True)
class Done:
    """The pod that waited is bound, and all was moved."""


Step = Evict | Wait | Settled | Stopped | Done


class Run:
    """A plan from its first move on. pod: the one that waits."""

    def __init__(self, pod: Waiting, plan: DefragAnswer, now: float) -> None:
        self.pod = pod
        self.node, self.shares = plan.node, plan.shares
        self.unmoved = {move.entry.ref.uid for move in plan.moves}
        self.sent: PodMove | None = None
        """The pod whose eviction was sent, without a clear answer."""
        self.evicted: PodMove | None = None
        """The pod that is gone, and whose heir does not run yet."""
        self.until = now + WAIT
        self._changed = self._refused = False

    def step(self, seen: Seen, now: float) -> Step:
        """Return what to do next."""
        if self.evicted is not None:
            return self._after(self.evicted, seen, now)
        if self.sent is not None:
            move = self.sent
            if seen.gone:
                self._gone(move, now)
                return Wait()
            if self._changed:
                self.sent, self._changed = None, False
                return Wait()
            # The same call can hit this pod alone, as it was read.
            return Stopped(Stop.UNKNOWN) if now >= self.until else Evict(move)
        return self._between(seen, now)

    def answered(self, move: PodMove, answer: Answer, now: float) -> Step:
        """Take what came of an eviction, and return what to do."""
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
                # Unless an earlier call, whose outcome is not known, may land yet.
                self.sent, self._refused = (move if unclear else None), True
            case Answer.FORBIDDEN:
                return Stopped(Stop.UNKNOWN if unclear else Stop.REFUSED)
        return Wait()

    def _between(self, seen: Seen, now: float) -> Step:
        if seen.node is None:
            return Stopped(Stop.POD_GONE)
        if seen.node:
            return Stopped(Stop.POD_BOUND) if self.unmoved else Done()
        plan, late = seen.plan, now >= self.until
        if not self.unmoved:
            return Stopped(Stop.NOT_BOUND) if late else Wait()
        if plan is None:
            return Stopped(Stop.PLAN) if late else Wait()
        moved = {move.entry.ref.uid for move in plan.moves}
        if plan.node and not moved:
            self.unmoved.clear()
            return Wait()
        if plan.node != self.node or not moved <= self.unmoved:
            # The pod that was moved last may count as disrupted a little longer.
            return Wait() if seen.spent and not late else Stopped(Stop.PLAN)
        if late:
            return Stopped(Stop.REFUSED if self._refused else Stop.PLAN)
        self.unmoved = moved
        return Evict(plan.moves[0])

    def _after(self, move: PodMove, seen: Seen, now: float) -> Step:
        heir = seen.heir
        if heir is not None and heir.node not in ("", move.node):
            return Stopped(Stop.LANDED)
        if heir is not None and heir.running and heir.node and seen.ended:
            self.evicted, self.until = None, now + WAIT
            return Settled(move)
        return Stopped(Stop.NOT_RUNNING) if now >= self.until else Wait()

    def _gone(self, move: PodMove, now: float) -> None:
        self.sent, self.evicted = None, move
        self._changed = self._refused = False
        self.unmoved.discard(move.entry.ref.uid)
        self.until = now + WAIT
