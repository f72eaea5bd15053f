"""The framework of one profile: plug-ins by extension point, and the runs of each point.

The order, the objection that counts and the meaning of Skip are those of kube-scheduler
(pkg/scheduler/framework/runtime). Knows no API server and no queue.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from gpushare_localcluster.scheduler import framework as fwk
from gpushare_localcluster.scheduler.cache import NodeInfo
from gpushare_localcluster.scheduler.cluster_events import ANY_EVENT, Change, Resource
from gpushare_localcluster.scheduler.framework import (
    MAX_NODE_SCORE,
    SUCCESS,
    Code,
    CycleState,
    NodeNames,
    Plugin,
    PluginError,
    Status,
)
from gpushare_localcluster.scheduler.objects import PodView

log = logging.getLogger(__name__)

PluginScores = Mapping[str, Mapping[str, int]]
"""Plug-in -> node -> score, normalized and weighted."""


class Framework:
    """The plug-ins of one profile.

    points: the plug-ins of each point in order; None: each plug-in joins all points of its methods.
    weights: of Score plug-ins, by name, by default 1. percentage: of nodes to score.
    check_all_filters: all filters run on a node, not only up to the first objection.
    """

    def __init__(
        self,
        plugins: Sequence[Plugin],
        *,
        points: Mapping[str, Sequence[Plugin]] | None = None,
        weights: Mapping[str, int] | None = None,
        percentage: int = 0,
        check_all_filters: bool = False,
    ) -> None:
        self.plugins = tuple(plugins)
        self.percentage = percentage
        self._check_all = check_all_filters
        self._weights = dict(weights or {})
        at = points or {
            point: [plugin for plugin in plugins if fwk.joins(plugin, point)]
            for point in fwk.POINTS
        }
        one = {point: at.get(point, ()) for point in fwk.POINTS}
        self.queue_sorts = [p for p in one["queueSort"] if isinstance(p, fwk.QueueSortPlugin)]
        self.pre_enqueues = [p for p in one["preEnqueue"] if isinstance(p, fwk.PreEnqueuePlugin)]
        self.pre_filters = [p for p in one["preFilter"] if isinstance(p, fwk.PreFilterPlugin)]
        self.extensions = [p for p in self.pre_filters if isinstance(p, fwk.PreFilterExtensions)]
        self.filters = [p for p in one["filter"] if isinstance(p, fwk.FilterPlugin)]
        self.post_filters = [p for p in one["postFilter"] if isinstance(p, fwk.PostFilterPlugin)]
        self.pre_scores = [p for p in one["preScore"] if isinstance(p, fwk.PreScorePlugin)]
        self.scorers = [p for p in one["score"] if isinstance(p, fwk.ScorePlugin)]
        self._normalizers = {p.name: p for p in self.scorers if isinstance(p, fwk.ScoreExtensions)}
        self.reservers = [p for p in one["reserve"] if isinstance(p, fwk.ReservePlugin)]
        self.permits = [p for p in one["permit"] if isinstance(p, fwk.PermitPlugin)]
        self.pre_binders = [p for p in one["preBind"] if isinstance(p, fwk.PreBindPlugin)]
        self.binders = [p for p in one["bind"] if isinstance(p, fwk.BindPlugin)]
        self.post_binders = [p for p in one["postBind"] if isinstance(p, fwk.PostBindPlugin)]
        self._events = {
            plugin.name: plugin.events_to_register()
            for plugin in plugins
            if isinstance(plugin, fwk.EnqueueExtensions)
        }

    def weight(self, plugin_name: str) -> int:
        """Return the weight of the plug-in's scores."""
        return self._weights.get(plugin_name, 1)

    def run_pre_enqueue(self, pod: PodView) -> Status:
        """Return the first objection to trying the pod at all, or Success."""
        return _first_objection(self.pre_enqueues, lambda plugin: plugin.pre_enqueue(pod))

    def run_pre_filters(
        self, state: CycleState, pod: PodView, nodes: Sequence[NodeInfo]
    ) -> tuple[NodeNames | None, frozenset[str], Status]:
        """Run PreFilter; return the only nodes to filter (None: all), the plug-ins that named them,
        and a status.

        An unresolvable objection ends the point at once; of other objections the last one counts.
        """
        only: NodeNames | None = None
        narrowed: list[str] = []
        skipped: set[str] = set()
        objection = SUCCESS
        for plugin in self.pre_filters:
            names, status = plugin.pre_filter(state, pod, nodes)
            if status.code is Code.SKIP:
                skipped.add(plugin.name)
            elif not status.ok:
                objection = Status(status.code, status.reasons, plugin.name)
                if status.code is not Code.UNSCHEDULABLE:
                    return None, frozenset(narrowed), objection
            elif names is not None:
                narrowed.append(plugin.name)
                only = names if only is None else only & names
                if not only:
                    nowhere = Status(Code.UNRESOLVABLE, (_nowhere(narrowed),), plugin.name)
                    return only, frozenset(narrowed), nowhere
        state.skip_filter = frozenset(skipped)
        return only, frozenset(narrowed), objection

    def run_add_pod(self, state: CycleState, pod: PodView, other: PodView, node: NodeInfo) -> None:
        """Update the counts of plug-ins: `other` was added to the node."""
        for plugin in self.extensions:
            if plugin.name not in state.skip_filter:
                plugin.add_pod(state, pod, other, node)

    def run_remove_pod(
        self, state: CycleState, pod: PodView, other: PodView, node: NodeInfo
    ) -> None:
        """Update the counts of plug-ins: `other` was removed from the node."""
        for plugin in self.extensions:
            if plugin.name not in state.skip_filter:
                plugin.remove_pod(state, pod, other, node)

    def run_filters(self, state: CycleState, pod: PodView, node: NodeInfo) -> Status:
        """Return the first objection with the name of the plug-in, else Success.

        With check_all_filters it has the reasons of all, and is unresolvable if one of them is.
        """
        result = SUCCESS
        for plugin in self.filters:
            if plugin.name in state.skip_filter:
                continue
            status = plugin.filter(state, pod, node)
            if status is SUCCESS or status.ok:
                continue
            code = result.code if result.code is Code.UNRESOLVABLE else status.code
            result = Status(code, (*result.reasons, *status.reasons), result.plugin or plugin.name)
            if not (self._check_all and status.rejected):
                break
        return result

    def run_filters_with_nominated(
        self, state: CycleState, pod: PodView, node: NodeInfo, nominated: Sequence[PodView]
    ) -> Status:
        """Return the first objection with and without the nominated pods on the node. nominated:
        pods nominated for the node; those of lower priority are ignored.

        The pod must also fit without nominated pods, which may go to other nodes, for its affinity.
        """
        nominated_pods = [p for p in nominated if p.priority >= pod.priority and p.uid != pod.uid]
        if nominated_pods:
            with_them, copy = node, state.clone()
            for nominated_pod in nominated_pods:
                with_them = with_them.with_pod(nominated_pod)
                self.run_add_pod(copy, pod, nominated_pod, with_them)
            status = self.run_filters(copy, pod, with_them)
            if not status.ok:
                return status
        return self.run_filters(state, pod, node)

    def run_post_filters(
        self, state: CycleState, pod: PodView, statuses: Mapping[str, Status]
    ) -> Status:
        """Return the first success, else Unschedulable with the texts of all plug-ins."""
        texts: list[str] = []
        for plugin in self.post_filters:
            status = plugin.post_filter(state, pod, statuses)
            if status.ok:
                return status
            texts.append(status.message)
        return Status(Code.UNSCHEDULABLE, tuple(text for text in texts if text))

    def run_pre_scores(self, state: CycleState, pod: PodView, nodes: Sequence[NodeInfo]) -> None:
        """Run PreScore. Raises PluginError."""
        skipped: set[str] = set()
        for plugin in self.pre_scores:
            status = plugin.pre_score(state, pod, nodes)
            if status.code is Code.SKIP:
                skipped.add(plugin.name)
            elif not status.ok:
                raise PluginError(f'running PreScore plugin "{plugin.name}": {status.message}')
        state.skip_score = frozenset(skipped)

    def run_scores(
        self, state: CycleState, pod: PodView, nodes: Sequence[NodeInfo]
    ) -> PluginScores:
        """Return the part of each plug-in in each node's score. Raises PluginError."""
        all_scores: dict[str, dict[str, int]] = {}
        node_pairs = [(node.name, node) for node in nodes]
        for plugin in self.scorers:
            if plugin.name in state.skip_score:
                continue
            scores = {name: plugin.score(state, pod, node) for name, node in node_pairs}
            if normalizer := self._normalizers.get(plugin.name):
                scores = normalizer.normalize_score(state, pod, scores)
            weight = self.weight(plugin.name)
            for score in scores.values():
                if not 0 <= score <= MAX_NODE_SCORE:
                    raise PluginError(
                        f'plugin "{plugin.name}" returns an invalid score {score},'
                        f" it should in the range of [0, {MAX_NODE_SCORE}] after normalizing"
                    )
            all_scores[plugin.name] = {node: score * weight for node, score in scores.items()}
        return all_scores

    def run_reserve(self, state: CycleState, pod: PodView, node_name: str) -> Status:
        """Run Reserve; return Success, or the first objection."""
        return _first_objection(self.reservers, lambda p: p.reserve(state, pod, node_name))

    def run_unreserve(self, state: CycleState, pod: PodView, node_name: str) -> None:
        """Run Unreserve, the last plug-in first."""
        for plugin in reversed(self.reservers):
            plugin.unreserve(state, pod, node_name)

    def run_permit(
        self, state: CycleState, pod: PodView, node_name: str
    ) -> tuple[Status, dict[str, float]]:
        """Return the first objection, else Wait or Success; and the longest wait by plug-in."""
        waits: dict[str, float] = {}
        for plugin in self.permits:
            status, longest = plugin.permit(state, pod, node_name)
            if status.code is Code.WAIT:
                waits[plugin.name] = longest
            elif not status.ok:
                return Status(status.code, status.reasons, plugin.name), {}
        state.waits = waits
        return Status(Code.WAIT) if waits else SUCCESS, waits

    def run_pre_bind(self, state: CycleState, pod: PodView, node_name: str) -> Status:
        """Return the first objection, or Success."""
        return _first_objection(self.pre_binders, lambda p: p.pre_bind(state, pod, node_name))

    def run_bind(self, state: CycleState, pod: PodView, node_name: str) -> Status:
        """Return the result of the first plug-in that does not skip."""
        for plugin in self.binders:
            status = plugin.bind(state, pod, node_name)
            if status.code is not Code.SKIP:
                return Status(status.code, status.reasons, plugin.name)
        return Status(Code.ERROR, ("no bind plugin binds this pod",))

    def run_post_bind(self, state: CycleState, pod: PodView, node_name: str) -> None:
        """Run PostBind for the bound pod."""
        for plugin in self.post_binders:
            plugin.post_bind(state, pod, node_name)

    def is_worth_requeuing(self, pod: PodView, rejected_by: frozenset[str], change: Change) -> bool:
        """Return whether a change may resolve a rejection by these plug-ins.

        Any event may resolve a rejection without plug-ins (a cluster without nodes), by an
        extender, or by a plug-in without registered events.
        """
        if not rejected_by or change.resource is Resource.WILDCARD:
            return True
        return any(self._hints(name, pod, change) for name in rejected_by)

    def _hints(self, plugin_name: str, pod: PodView, change: Change) -> bool:
        registered = self._events.get(plugin_name, ANY_EVENT)
        try:
            return any(event.wants(pod, change) for event in registered)
        except Exception:
            # As in kube-scheduler: a bug in a hint must not leave a pod pending.
            log.exception("queueing hint failed plugin=%s pod=%s", plugin_name, pod.key)
            return True


AnyPlugin = TypeVar("AnyPlugin", bound=Plugin)


def _first_objection(plugins: Sequence[AnyPlugin], judge: Callable[[AnyPlugin], Status]) -> Status:
    for plugin in plugins:
        status = judge(plugin)
        if not status.ok:
            return Status(status.code, status.reasons, plugin.name)
    return SUCCESS


def _nowhere(plugins: Sequence[str]) -> str:
    """Return kube-scheduler's sentence for plug-ins that name disjoint nodes."""
    if len(plugins) == 1:
        return f"node(s) didn't satisfy plugin {plugins[0]}"
    return f"node(s) didn't satisfy plugin(s) [{' '.join(sorted(plugins))}] simultaneously"
