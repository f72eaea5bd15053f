"""One scheduling cycle: filter, extender filter, score, prioritize; which node takes this pod.

Decides, and changes nothing: assuming, reserving and binding come after. Knows the framework and
the extenders; no queue, no API server, no clock. Ties are broken by the random numbers given.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

from gpushare.localcluster.scheduler.cache import NodeInfo, Snapshot
from gpushare.localcluster.scheduler.diagnosis import NO_NODES, unschedulable_message
from gpushare.localcluster.scheduler.extender import ExtenderError, HttpExtender
from gpushare.localcluster.scheduler.framework import Framework, Status
from gpushare.localcluster.scheduler.objects import PodView

log = logging.getLogger(__name__)

# Below this many feasible nodes kube-scheduler never stops looking early.
_MIN_FEASIBLE = 100
_MIN_PERCENT = 5


class FitError(Exception):
    """No node takes the pod; the text is what its condition and event say."""

    def __init__(self, message: str, rejected_by: frozenset[str]) -> None:
        super().__init__(message)
        self.rejected_by = rejected_by


class CycleError(Exception):
    """The decision itself failed (an extender's error): nothing is known about the nodes."""


@dataclass(frozen=True)
class Decision:
    """The node chosen for a pod, how many took part, and the scores when more than one was left."""

    pod: PodView
    node: str
    evaluated: int
    feasible: int
    scores: Mapping[str, int]


class SchedulingCycle:
    """Decides pods one after another, as kube-scheduler does.

    `percentage` is percentageOfNodesToScore (0: adaptive).
    """

    def __init__(
        self,
        framework: Framework,
        extenders: Sequence[HttpExtender],
        random: Random,
        percentage: int = 0,
    ) -> None:
        self._framework = framework
        # Those that must answer come first, so that no time is lost on others before them.
        self._extenders = sorted(extenders, key=lambda extender: extender.config.ignorable)
        self._random = random
        self._percentage = percentage
        self._start = 0

    def decide(self, pod: PodView, snapshot: Snapshot) -> Decision:
        """Return the best node. Raises FitError when none is left, CycleError when an extender
        failed.
        """
        if not snapshot.nodes:
            raise FitError(NO_NODES, frozenset())
        if self._nominated_fits(pod, snapshot):
            return Decision(pod, pod.nominated_node, 1, 1, {})
        statuses: dict[str, Status] = {}
        feasible = self._filter(pod, snapshot, statuses)
        feasible = self._extender_filter(pod, feasible, statuses)
        if not feasible:
            raise self._fit_error(pod, snapshot, statuses)
        evaluated = len(feasible) + len(statuses)
        if len(feasible) == 1:
            return Decision(pod, feasible[0].name, evaluated, 1, {})
        scores = self._score(pod, feasible)
        top = max(scores.values())
        node = self._random.choice([name for name, score in scores.items() if score == top])
        return Decision(pod, node, evaluated, len(feasible), scores)

    def _nominated_fits(self, pod: PodView, snapshot: Snapshot) -> bool:
        """Return whether the node that preemption cleared takes the pod; it is asked before all
        others.
        """
        node = snapshot.get(pod.nominated_node)
        if node is None or not self._framework.run_filters(pod, node).ok:
            return False
        try:
            return bool(self._extender_filter(pod, [node], {}))
        except CycleError as error:
            log.info("nominated node not asked about pod=%s error=%s", pod.key, error)
            return False

    def _filter(
        self, pod: PodView, snapshot: Snapshot, statuses: dict[str, Status]
    ) -> list[NodeInfo]:
        """Return the nodes the plugins accept, until enough are found; the start rotates from pod
        to pod.
        """
        total = len(snapshot.nodes)
        enough = nodes_to_find(total, self._percentage)
        feasible: list[NodeInfo] = []
        looked = 0
        for offset in range(total):
            node = snapshot.nodes[(self._start + offset) % total]
            looked += 1
            status = self._framework.run_filters(pod, node)
            if not status.ok:
                statuses[node.name] = status
                continue
            feasible.append(node)
            if len(feasible) >= enough:
                break
        self._start = (self._start + looked) % total
        return feasible

    def _extender_filter(
        self, pod: PodView, feasible: list[NodeInfo], statuses: dict[str, Status]
    ) -> list[NodeInfo]:
        """Give each extender what the one before it left; none is called with nothing left."""
        for extender in self._extenders:
            if not feasible:
                break
            if not extender.config.filter_verb or not extender.is_interested(pod):
                continue
            try:
                result = extender.filter(pod, feasible)
            except ExtenderError as error:
                if not extender.config.ignorable:
                    raise CycleError(str(error)) from error
                log.warning("extender skipped url=%s error=%s", extender.name, error)
                continue
            statuses.update(result.statuses)
            feasible = list(result.nodes)
        return feasible

    def _score(self, pod: PodView, nodes: Sequence[NodeInfo]) -> dict[str, int]:
        """Return the in-tree scores plus what each extender adds; an extender's error only costs
        its share.
        """
        scores = self._framework.run_scores(pod, nodes)
        for extender in self._extenders:
            if not extender.config.prioritize_verb or not extender.is_interested(pod):
                continue
            try:
                added = extender.prioritize(pod, nodes)
            except ExtenderError as error:
                log.info("prioritize ignored url=%s error=%s", extender.name, error)
                continue
            for name in scores.keys() & added.keys():
                scores[name] += added[name]
        return scores

    def _fit_error(
        self, pod: PodView, snapshot: Snapshot, statuses: Mapping[str, Status]
    ) -> FitError:
        post_filter = self._framework.run_post_filters(pod, snapshot, statuses)
        message = unschedulable_message(len(snapshot.nodes), statuses, post_filter)
        return FitError(message, frozenset(status.plugin for status in statuses.values()))


def nodes_to_find(total: int, percentage: int) -> int:
    """Return how many feasible nodes are enough; 0 percent means adaptive: 50 - nodes/125, at least
    5.
    """
    if total < _MIN_FEASIBLE:
        return total
    percent = percentage or max(50 - total // 125, _MIN_PERCENT)
    return max(total * min(percent, 100) // 100, _MIN_FEASIBLE)
