"""Pods that are moved so that those that wait find room, in a cluster whose pods come and go.

Every pod with GPU may be moved, at any time; what it has done since it began is lost, but it leaves
when it would have left. So what is measured is the most that moves may bring, and the most that
they may cost.

Tested in `tests/unit/sim/test_defrag.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from gpushare.core.defrag import Mover, Plan, Planner
from gpushare.core.model import Request
from gpushare.core.mutable_cluster import MutableCluster, Placement
from gpushare.core.preemption.victim_search import StepBudget
from gpushare.sim.engine import Cluster
from gpushare.sim.learner import LearningScorer

OLDEST = 2
"""Kinds of waiting pods for whose oldest pod moves are looked for."""

_STEPS = 50_000
"""Of one search, as core/defrag.py counts them."""


@dataclass(frozen=True, slots=True)
class Defrag:
    """How pods are moved."""

    k: int = 3
    """Moves for one pod that waits, at most."""
    every: int = 20
    """Departures after which moves are looked for."""

    def __str__(self) -> str:
        """Return the words of the command line."""
        return f"k={self.k},every={self.every}"


@dataclass(slots=True)
class Running:
    """A pod that runs."""

    placement: Placement
    began: float
    """When it began where it is now."""


class Defragmenter:
    """Moves pods of a cluster. start: the time from which on moves are counted."""

    def __init__(self, cluster: Cluster, how: Defrag, start: float) -> None:
        self._cluster, self._how, self._start = cluster, how, start
        self._departures = 0
        self.moves = 0
        self.lost = 0.0
        """Units times time that moved pods had run."""

    def is_due(self) -> bool:
        """Count a departure, and return whether moves are due."""
        self._departures += 1
        return self._departures % self._how.every == 0

    def make_room(
        self, request: Request, running: Mapping[int, Running], now: float
    ) -> Placement | None:
        """Move pods and place the one that waits; None if there is no plan."""
        plan = self._plan(request, running, now)
        if plan is None:
            return None
        for move in plan.moves:
            pod = running[int(move.mover.name)]
            self._cluster.release(pod.placement)
            if now >= self._start:
                self.moves += 1
                self.lost += _lost(pod, now)
            pod.placement = self._cluster.put(*move.to)
            pod.began = now
        return self._cluster.put(*plan.hole)

    def _plan(self, request: Request, running: Mapping[int, Running], now: float) -> Plan | None:
        scorer = self._cluster.scorer
        if isinstance(scorer, LearningScorer):  # it counts what it is asked for as pods that come
            scorer = scorer.ranking
        tried = MutableCluster(self._cluster.view, scorer)
        movers = (
            Mover(f"{number:09}", pod.placement, _lost(pod, now))
            for number, pod in running.items()
            if pod.placement.devices
        )
        return Planner(tried, movers).plan(request, self._how.k, StepBudget(_STEPS))


def _lost(pod: Running, now: float) -> float:
    """Return what is lost if the pod is moved: units times time."""
    return pod.placement.request.total * (now - pod.began)
