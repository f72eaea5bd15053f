"""One scheduling cycle: filter, extender filter, score, prioritize; the result is a node.

Decides without side effects, except for evictions by PostFilter: assuming, reserving and binding
come later. Knows the frameworks and the extenders; no queue, no API server. The injected random
numbers break ties.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

from gpushare_localcluster.scheduler.cache import NodeInfo, Snapshot
from gpushare_localcluster.scheduler.extender import ExtenderError
from gpushare_localcluster.scheduler.framework import (
    NO_NODES,
    Code,
    CycleState,
    PluginError,
    Status,
    unschedulable_message,
)
from gpushare_localcluster.scheduler.handle import Handle, Nominated
from gpushare_localcluster.scheduler.objects import PodView
from gpushare_localcluster.scheduler.runtime import Framework

log = logging.getLogger(__name__)

# Below this many feasible nodes kube-scheduler never stops looking early.
_MIN_FEASIBLE = 100
_MIN_PERCENT = 5

Scores = Mapping[str, Mapping[str, int]]
"""Source of the score (a plug-in, or an extender's URL) -> node -> score."""


class FitError(Exception):
    """No node takes the pod; the text goes into the condition and the event of the pod."""

    def __init__(
        self, message: str, rejected_by: frozenset[str], statuses: Mapping[str, Status]
    ) -> None:
        super().__init__(message)
        self.rejected_by = rejected_by
        self.statuses = statuses


class CycleError(Exception):
    """The decision itself failed, for example by an error of an extender."""


@dataclass(frozen=True)
class Decision:
    """The chosen node of a pod, the numbers of evaluated and feasible nodes, and the scores.

    scores: the sum for each feasible node, {} for a single one. details: the parts of the sums.
    statuses: why other nodes were not feasible.
    """

    pod: PodView
    node: str
    evaluated: int
    feasible: int
    scores: Mapping[str, int] = field(default_factory=dict)
    details: Scores = field(default_factory=dict)
    statuses: Mapping[str, Status] = field(default_factory=dict)
    state: CycleState = field(default_factory=CycleState)


@dataclass(frozen=True)
class _Attempt:
    """One attempt to place a pod; statuses: why nodes are not feasible, so far."""

    framework: Framework
    state: CycleState
    pod: PodView
    snapshot: Snapshot
    statuses: dict[str, Status] = field(default_factory=dict)


class SchedulingCycle:
    """Decides pods one after another, as kube-scheduler does, each by its profile's framework."""

    def __init__(self, handle: Handle, random: Random) -> None:
        self._handle = handle
        # Extenders that must not be ignored come first, so that their errors cost least time.
        self._extenders = sorted(handle.extenders, key=lambda extender: extender.config.ignorable)
        self._random = random
        self._start = 0
        self._nominated: Nominated = {}

    def decide(self, pod: PodView, snapshot: Snapshot) -> Decision:
        """Return the best node. Raises FitError, or CycleError for a failure."""
        if not snapshot.nodes:
            raise FitError(NO_NODES, frozenset(), {})
        self._handle.snapshot = snapshot
        self._nominated = self._handle.nominated()
        attempt = _Attempt(self._handle.profiles[pod.scheduler_name], CycleState(), pod, snapshot)
        nodes = self._pre_filter(attempt)
        if self._nominated_fits(attempt):
            return Decision(pod, pod.nominated_node, evaluated=1, feasible=1, state=attempt.state)
        feasible = self._filter(attempt, nodes)
        feasible = self._extender_filter(pod, feasible, attempt.statuses)
        if not feasible:
            raise self._fit_error(attempt)
        scores: dict[str, int] = {}
        details: Scores = {}
        if len(feasible) > 1:
            details = self._score(attempt, feasible)
            scores = dict.fromkeys((node.name for node in feasible), 0)
        for added in details.values():
            for name in scores.keys() & added.keys():
                scores[name] += added[name]
        top = max(scores.values(), default=0)
        best = [name for name, score in scores.items() if score == top]
        return Decision(
            pod=pod,
            node=self._random.choice(best) if best else feasible[0].name,
            evaluated=len(feasible) + len(attempt.statuses),
            feasible=len(feasible),
            scores=scores,
            details=details,
            statuses=attempt.statuses,
            state=attempt.state,
        )

    def _pre_filter(self, attempt: _Attempt) -> Sequence[NodeInfo]:
        """Return the nodes to filter; put the other nodes into `statuses`. Raises FitError."""
        framework, state, pod = attempt.framework, attempt.state, attempt.pod
        snapshot, statuses = attempt.snapshot, attempt.statuses
        only, narrowing, status = framework.run_pre_filters(state, pod, snapshot.nodes)
        if status.code is Code.ERROR:
            raise CycleError(f'running PreFilter plugin "{status.plugin}": {status.message}')
        if not status.ok:
            statuses.update({node.name: status for node in snapshot.nodes})
            total = f"0/{len(snapshot.nodes)} nodes are available: {status.message}."
            text = framework.run_post_filters(state, pod, statuses).message
            message = f"{total} {text}" if text else total
            raise FitError(message, frozenset({status.plugin}), statuses)
        if only is None:
            return snapshot.nodes
        reason = f"node(s) didn't satisfy plugin(s) [{' '.join(sorted(narrowing))}]"
        absent = Status(Code.UNRESOLVABLE, (reason,), min(narrowing))
        statuses.update({n.name: absent for n in snapshot.nodes if n.name not in only})
        return [node for node in snapshot.nodes if node.name in only]

    def _nominated_fits(self, attempt: _Attempt) -> bool:
        """Return whether the nominated node takes the pod; it is checked before all other nodes."""
        pod = attempt.pod
        node = attempt.snapshot.get(pod.nominated_node)
        if node is None or not self._passes(attempt, node).ok:
            return False
        try:
            return bool(self._extender_filter(pod, [node], {}))
        except CycleError as error:
            log.info("nominated node not asked about pod=%s error=%s", pod.key, error)
            return False

    def _passes(self, attempt: _Attempt, node: NodeInfo) -> Status:
        nominated = self._nominated.get(node.name, ())
        status = attempt.framework.run_filters_with_nominated(
            attempt.state, attempt.pod, node, nominated
        )
        if status.code is Code.ERROR:
            raise CycleError(f'running "{status.plugin}" filter plugin: {status.message}')
        return status

    def _filter(self, attempt: _Attempt, nodes: Sequence[NodeInfo]) -> list[NodeInfo]:
        """Return enough nodes that pass all filters; the start rotates from pod to pod."""
        total = len(nodes)
        enough = nodes_to_find(total, attempt.framework.percentage)
        feasible: list[NodeInfo] = []
        looked = 0
        for offset in range(total):
            node = nodes[(self._start + offset) % total]
            looked += 1
            status = self._passes(attempt, node)
            if not status.ok:
                attempt.statuses[node.name] = status
                continue
            feasible.append(node)
            if len(feasible) >= enough:
                break
        self._start = (self._start + looked) % max(len(self._handle.snapshot.nodes), 1)
        return feasible

    def _extender_filter(
        self, pod: PodView, feasible: list[NodeInfo], statuses: dict[str, Status]
    ) -> list[NodeInfo]:
        """Return the nodes that pass all extenders; each gets the nodes of the one before."""
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

    def _score(self, attempt: _Attempt, nodes: Sequence[NodeInfo]) -> Scores:
        """Return the scores of plug-ins and extenders, without extenders that fail."""
        framework, state, pod = attempt.framework, attempt.state, attempt.pod
        try:
            framework.run_pre_scores(state, pod, nodes)
            details: dict[str, Mapping[str, int]] = dict(framework.run_scores(state, pod, nodes))
        except PluginError as error:
            raise CycleError(str(error)) from error
        for extender in self._extenders:
            if not extender.config.prioritize_verb or not extender.is_interested(pod):
                continue
            try:
                details[extender.name] = extender.prioritize(pod, nodes)
            except ExtenderError as error:
                log.info("prioritize ignored url=%s error=%s", extender.name, error)
        return details

    def _fit_error(self, attempt: _Attempt) -> FitError:
        framework, state, statuses = attempt.framework, attempt.state, attempt.statuses
        post_filter = framework.run_post_filters(state, attempt.pod, statuses).message
        total = len(self._handle.snapshot.nodes)
        message = unschedulable_message(total, statuses, post_filter)
        plugins = frozenset(status.plugin for status in statuses.values() if status.plugin)
        return FitError(message, plugins, statuses)


def nodes_to_find(total: int, percentage: int) -> int:
    """Return how many feasible nodes are enough; 0 percent means 50 - nodes/125, at least 5."""
    if total < _MIN_FEASIBLE:
        return total
    percent = percentage or max(50 - total // 125, _MIN_PERCENT)
    return max(total * min(percent, 100) // 100, _MIN_FEASIBLE)
