"""Which pods to evict for a pod that fits nowhere: kube-scheduler's preemption, without doing it.

A dry run with the in-tree filters only, node by node; then the extenders that preempt have their
say; then the best candidate is taken. Texts are kube-scheduler's. Evicts nobody (see eviction.py).
"""

import logging
from collections.abc import Callable, Mapping, Sequence

from gpushare.wire.budgets import DisruptionBudget
from gpushare_localcluster.scheduler.cache import NodeInfo, Snapshot
from gpushare_localcluster.scheduler.candidates import Candidate, best, importance
from gpushare_localcluster.scheduler.cycle_state import CycleState
from gpushare_localcluster.scheduler.diagnosis import unschedulable_message
from gpushare_localcluster.scheduler.extender import ExtenderError, HttpExtender
from gpushare_localcluster.scheduler.framework import Code, Status
from gpushare_localcluster.scheduler.objects import PodView
from gpushare_localcluster.scheduler.runtime import Framework

log = logging.getLogger(__name__)

_NOT_HELPFUL = Status(Code.UNRESOLVABLE, ("Preemption is not helpful for scheduling",))
_NO_VICTIMS = Status(Code.UNRESOLVABLE, ("No preemption victims found for incoming pod",))


class NoPreemption(Exception):
    """Nobody is evicted; the text says why, as kube-scheduler puts it."""


class Preemption:
    """Finds victims. `budgets` gives the PodDisruptionBudgets as they are now.

    `nominated`: the waiting pods for which room was made on a node, which they keep against pods of
    no higher priority. `enough`: a percentage of the nodes and a number; the larger of both is how
    many candidates are looked for.

    `empty_candidates`: a node that passes the in-tree filters with nobody evicted is sent to the
    extenders that preempt, to name the victims there (since 1.38; an error before).
    """

    def __init__(
        self,
        extenders: Sequence[HttpExtender],
        budgets: Callable[[], Sequence[DisruptionBudget]],
        *,
        nominated: Callable[[], Mapping[str, Sequence[PodView]]] = dict,
        enough: tuple[int, int] = (10, 100),
        empty_candidates: bool = True,
    ) -> None:
        self._nominated = nominated
        self._enough = enough
        self._extenders = [extender for extender in extenders if extender.config.preempt_verb]
        self._budgets = budgets
        self._empty_candidates = empty_candidates

    def choose(
        self,
        framework: Framework,
        state: CycleState,
        pod: PodView,
        snapshot: Snapshot,
        statuses: Mapping[str, Status],
    ) -> Candidate:
        """Return whom to evict where. Raises NoPreemption."""
        _check_eligible(pod, snapshot, statuses)
        extenders = [extender for extender in self._extenders if extender.is_interested(pod)]
        reasons = {node.name: _NOT_HELPFUL for node in snapshot.nodes}
        candidates: list[Candidate] = []
        nominated = self._nominated()
        for node in snapshot.nodes:
            if statuses.get(node.name, Status()).code is not Code.UNSCHEDULABLE:
                continue
            trial = _Trial(framework, state, pod, node, nominated.get(node.name, ()))
            result = self._dry_run(trial, empty=self._empty_candidates and bool(extenders))
            if isinstance(result, Status):
                reasons[node.name] = result
            else:
                candidates.append(result)
            if self._has_enough(candidates, len(snapshot.nodes)):
                break
        if not candidates:
            raise NoPreemption(_no_candidates(reasons))
        candidates = [c for c in self._ask(extenders, pod, candidates, snapshot) if c.pods]
        if not candidates:
            raise NoPreemption("no candidate node for preemption")
        return best(candidates)

    def _dry_run(self, trial: "_Trial", *, empty: bool) -> Candidate | Status:
        """Return the least victims on a node (SelectVictimsOnNode), or why there are none.

        All pods of lower priority go; then each comes back that leaves room: those that a budget
        protects first, then the more important ones.
        """
        node, priority = trial.node.name, trial.pod.priority
        lower = sorted(
            (p for p in trial.node.pods.values() if p.priority < priority), key=importance
        )
        if not lower:
            return _NO_VICTIMS
        for pod in lower:
            trial.remove(pod)
        status = trial.run()
        if not status.ok:
            return status
        protected = _protected(lower, self._budgets())
        victims: list[PodView] = []
        for pod in sorted(lower, key=lambda p: p.uid not in protected):
            trial.add(pod)
            if not trial.run().ok:
                trial.remove(pod)
                victims.append(pod)
        violations = sum(victim.uid in protected for victim in victims)
        if victims or empty:
            return Candidate(node, tuple(sorted(victims, key=importance)), violations)
        if not self._empty_candidates:
            return Status(Code.ERROR, (f'expected at least one victim pod on node "{node}"',))
        return _NO_VICTIMS

    def _has_enough(self, candidates: Sequence[Candidate], nodes: int) -> bool:
        percent, number = self._enough
        limit = min(max(nodes * percent // 100, number), nodes)
        return len(candidates) >= limit and any(not c.violations for c in candidates)

    def _ask(
        self,
        extenders: Sequence[HttpExtender],
        pod: PodView,
        candidates: Sequence[Candidate],
        snapshot: Snapshot,
    ) -> Sequence[Candidate]:
        """Return what the extenders leave, each getting what the one before it left."""
        for extender in extenders:
            try:
                candidates = _checked(
                    extender, candidates, extender.preempt(pod, candidates, snapshot)
                )
            except ExtenderError as error:
                if not extender.config.ignorable:
                    raise NoPreemption(str(error)) from error
                log.warning("extender skipped url=%s error=%s", extender.name, error)
            if not candidates:
                break
        return candidates


class _Trial:
    """A node as it would be without some of its pods, and what the plug-ins counted for it."""

    def __init__(
        self,
        framework: Framework,
        state: CycleState,
        pod: PodView,
        node: NodeInfo,
        nominated: Sequence[PodView],
    ) -> None:
        self._framework = framework
        self._nominated = nominated
        self._state = state.clone()
        self.pod = pod
        self.node = node

    def add(self, victim: PodView) -> None:
        """Have the pod on the node."""
        self.node = self.node.with_pod(victim)
        self._framework.run_add_pod(self._state, self.pod, victim, self.node)

    def remove(self, victim: PodView) -> None:
        """Have the pod away."""
        self.node = self.node.without_pod(victim.uid)
        self._framework.run_remove_pod(self._state, self.pod, victim, self.node)

    def run(self) -> Status:
        """Return what the filters say now."""
        return self._framework.run_filters_with_nominated(
            self._state, self.pod, self.node, self._nominated
        )


def _check_eligible(pod: PodView, snapshot: Snapshot, statuses: Mapping[str, Status]) -> None:
    """Raise NoPreemption where nobody may be evicted for this pod now."""
    if pod.spec.get("preemptionPolicy") == "Never":
        raise NoPreemption("not eligible due to preemptionPolicy=Never.")
    nominated = snapshot.get(pod.nominated_node)
    if nominated is None:
        return
    if statuses.get(nominated.name, Status()).code is Code.UNRESOLVABLE:
        return
    for node_pod in nominated.pods.values():
        if node_pod.priority < pod.priority and _ends_by_preemption(node_pod):
            raise NoPreemption("not eligible due to a terminating pod on the nominated node.")


def _ends_by_preemption(pod: PodView) -> bool:
    conditions = (pod.raw.get("status") or {}).get("conditions") or ()
    return pod.deleting and any(
        condition.get("type") == "DisruptionTarget"
        and condition.get("reason") == "PreemptionByScheduler"
        for condition in conditions
    )


def _no_candidates(reasons: Mapping[str, Status]) -> str:
    """Return why no node is a candidate; an error on a node takes the place of the count."""
    errors = [status.message for status in reasons.values() if status.code is Code.ERROR]
    return ", ".join(errors) or unschedulable_message(len(reasons), reasons)


def _protected(pods: Sequence[PodView], budgets: Sequence[DisruptionBudget]) -> set[str]:
    """Return the uids of the pods whose going breaks a budget when all go, the most important
    first.
    """
    remaining = [budget.allowed_disruptions for budget in budgets]
    protected_uids: set[str] = set()
    for pod in pods:
        for index, budget in enumerate(budgets):
            if budget.covers(pod.namespace, pod.name, pod.labels):
                remaining[index] -= 1
                if remaining[index] < 0:
                    protected_uids.add(pod.uid)
    return protected_uids


def _checked(
    extender: HttpExtender, before: Sequence[Candidate], after: Sequence[Candidate]
) -> list[Candidate]:
    """Return what an extender left; a list of victims it emptied is an error, one that was empty is
    not.

    An ignorable extender only loses such a node.
    """
    empty = {candidate.node for candidate in before if not candidate.pods}
    remaining: list[Candidate] = []
    for candidate in after:
        if candidate.pods or candidate.node in empty:
            remaining.append(candidate)
        elif not extender.config.ignorable:
            raise ExtenderError(f'expected at least one victim pod on node "{candidate.node}"')
    return remaining
