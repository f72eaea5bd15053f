"""DefaultPreemption: the choice of victims for a pod that fits nowhere, and their eviction.

A dry run with the in-tree filters only, node by node; then the extenders that preempt change the
candidates; then the best candidate is chosen. Orders, texts and writes are those of kube-scheduler
(pickOneNodeForPreemption, MoreImportantPod): the condition DisruptionTarget, a DELETE with the
victim's own grace period, an event, and status.nominatedNodeName of the pending pod. The pod is
tried again after the end of the victims.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from gpushare.errors import ApiConflict, ApiError, ApiNotFound, SettingsError
from gpushare.wire.budgets import DisruptionBudget
from gpushare.wire.fields import Fields, number
from gpushare_localcluster.api.objects import timestamp
from gpushare_localcluster.client import ApiClient, Json
from gpushare_localcluster.scheduler.cache import NodeInfo, Snapshot
from gpushare_localcluster.scheduler.extender import Candidate, ExtenderError, HttpExtender
from gpushare_localcluster.scheduler.framework import (
    Code,
    CycleState,
    Status,
    unschedulable_message,
)
from gpushare_localcluster.scheduler.handle import Handle
from gpushare_localcluster.scheduler.objects import PodView
from gpushare_localcluster.scheduler.runtime import Framework

log = logging.getLogger(__name__)

_NEVER_STARTED = "9999-12-31T23:59:59Z"
_OFFSET = 2**31


def importance(pod: PodView) -> tuple[int, str]:
    """Return a sort key, the most important first: higher priority, then started earlier."""
    return (-pod.priority, started(pod))


def started(pod: PodView) -> str:
    """Return the start time of the pod as sortable text; a pod without one comes last."""
    return str((pod.raw.get("status") or {}).get("startTime") or _NEVER_STARTED)


def best(candidates: Sequence[Candidate]) -> Candidate:
    """Return the candidate with the least important victims; each candidate has a victim.

    The priority of the first victim counts as the highest.
    """

    def loss(candidate: Candidate) -> tuple[int, int, int, int]:
        priorities = [pod.priority for pod in candidate.pods]
        total = sum(priority + _OFFSET for priority in priorities)
        return (candidate.violations, priorities[0], total, len(priorities))

    def earliest(candidate: Candidate) -> str:
        highest = max(pod.priority for pod in candidate.pods)
        return min(started(pod) for pod in candidate.pods if pod.priority == highest)

    min_loss = min(loss(candidate) for candidate in candidates)
    return max((item for item in candidates if loss(item) == min_loss), key=earliest)


Told = Callable[[PodView, str], None]


def evict(api: ApiClient, report: Told, pod: PodView, candidate: Candidate) -> None:
    """Evict the victims and nominate the pod. Raises ApiError.

    report: called with each victim and the text of the event.
    """
    for victim in candidate.pods:
        condition: Json = {
            "type": "DisruptionTarget",
            "status": "True",
            "reason": "PreemptionByScheduler",
            "message": f"{pod.scheduler_name}: preempting to accommodate a higher priority pod",
            "lastProbeTime": None,
            "lastTransitionTime": timestamp(),
        }
        # A victim may have ended, or another pod may have its name.
        with suppress(ApiNotFound, ApiConflict):
            api.patch(f"{victim.path}/status", {"status": {"conditions": [condition]}})
            api.delete(victim.path, uid=victim.uid)
            report(victim, f"Preempted by pod {pod.uid} on node {candidate.node}")
    api.patch(f"{pod.path}/status", {"status": {"nominatedNodeName": candidate.node}})


_NOT_HELPFUL = Status(Code.UNRESOLVABLE, ("Preemption is not helpful for scheduling",))
_NO_VICTIMS = Status(Code.UNRESOLVABLE, ("No preemption victims found for incoming pod",))


class NoPreemption(Exception):
    """No pod is evicted; the text is kube-scheduler's reason."""


class Preemption:
    """Finds victims.

    `budgets` returns the current PodDisruptionBudgets. `nominated` returns the nominated pods by
    node, which keep their room against pods of no higher priority. `enough`: a percentage of the
    nodes and a number; the larger one limits the candidates. `empty_candidates`: a node that passes
    the in-tree filters without evictions is sent to the extenders that preempt, to name victims
    there (since 1.38; an error before).
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
        """Return the node and the pods to evict. Raises NoPreemption."""
        _check_eligible(pod, snapshot, statuses)
        extenders = [extender for extender in self._extenders if extender.is_interested(pod)]
        reasons = {node.name: _NOT_HELPFUL for node in snapshot.nodes}
        candidates: list[Candidate] = []
        nominated, total = self._nominated(), len(snapshot.nodes)
        limit = min(max(total * self._enough[0] // 100, self._enough[1]), total)
        for node in snapshot.nodes:
            if statuses.get(node.name, Status()).code is not Code.UNSCHEDULABLE:
                continue
            trial = _Trial(framework, state.clone(), pod, node, nominated.get(node.name, ()))
            result = self._dry_run(trial, empty=self._empty_candidates and bool(extenders))
            if isinstance(result, Status):
                reasons[node.name] = result
            else:
                candidates.append(result)
            if len(candidates) >= limit and any(not c.violations for c in candidates):
                break
        if not candidates:
            # An error on a node replaces the counts.
            errors = [s.message for s in reasons.values() if s.code is Code.ERROR]
            text = ", ".join(errors) or unschedulable_message(len(reasons), reasons)
            raise NoPreemption(text)
        candidates = [c for c in self._ask(extenders, pod, candidates, snapshot) if c.pods]
        if not candidates:
            raise NoPreemption("no candidate node for preemption")
        return best(candidates)

    def _dry_run(self, trial: "_Trial", *, empty: bool) -> Candidate | Status:
        """Return the fewest victims on a node (SelectVictimsOnNode), or a status with the reason.

        All pods of lower priority are removed; then each pod that leaves room returns: pods
        protected by a budget first, then the more important ones.
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

    def _ask(
        self,
        extenders: Sequence[HttpExtender],
        pod: PodView,
        candidates: Sequence[Candidate],
        snapshot: Snapshot,
    ) -> Sequence[Candidate]:
        """Return the candidates after all extenders, called one after another."""
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


@dataclass
class _Trial:
    """A node without some of its pods, with the counts of plug-ins."""

    framework: Framework
    state: CycleState
    pod: PodView
    node: NodeInfo
    nominated: Sequence[PodView]

    def add(self, victim: PodView) -> None:
        """Add the pod to the node."""
        self.node = self.node.with_pod(victim)
        self.framework.run_add_pod(self.state, self.pod, victim, self.node)

    def remove(self, victim: PodView) -> None:
        """Remove the pod from the node."""
        self.node = self.node.without_pod(victim.uid)
        self.framework.run_remove_pod(self.state, self.pod, victim, self.node)

    def run(self) -> Status:
        """Return the current result of the filters."""
        return self.framework.run_filters_with_nominated(
            self.state, self.pod, self.node, self.nominated
        )


def _check_eligible(pod: PodView, snapshot: Snapshot, statuses: Mapping[str, Status]) -> None:
    """Raise NoPreemption if no pod may be evicted for this pod now."""
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


def _protected(pods: Sequence[PodView], budgets: Sequence[DisruptionBudget]) -> set[str]:
    """Return the uids of pods that a budget protects, if all are evicted in this order."""
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
    """Return the candidates after an extender; a list of victims that it emptied is an error.

    A list that was empty before is no error, and an ignorable extender only loses the node.
    """
    empty = {candidate.node for candidate in before if not candidate.pods}
    remaining: list[Candidate] = []
    for candidate in after:
        if candidate.pods or candidate.node in empty:
            remaining.append(candidate)
        elif not extender.config.ignorable:
            raise ExtenderError(f'expected at least one victim pod on node "{candidate.node}"')
    return remaining


class DefaultPreemption:
    """Chooses victims and evicts them.

    args: `minCandidateNodesPercentage` (10) and `minCandidateNodesAbsolute` (100).
    """

    name = "DefaultPreemption"

    def __init__(self, args: Fields | None = None, handle: Handle | None = None) -> None:
        """Make the plug-in. Raises SettingsError."""
        percent = number(args or {}, "minCandidateNodesPercentage", default=10)
        min_nodes = number(args or {}, "minCandidateNodesAbsolute", default=100)
        if not 0 <= percent <= 100 or min_nodes < 0 or percent == min_nodes == 0:
            raise SettingsError(
                "minCandidateNodesPercentage is from 0 to 100, minCandidateNodesAbsolute is not"
                " negative, and one of them is not zero"
            )
        self._handle = handle or Handle()
        self._preemption = Preemption(
            self._handle.extenders,
            self._handle.budgets,
            nominated=self._handle.nominated,
            enough=(percent, min_nodes),
            empty_candidates=self._handle.empty_candidates,
        )

    def post_filter(
        self, state: CycleState, pod: PodView, statuses: Mapping[str, Status]
    ) -> Status:
        """Evict victims; return Success, or the reason for no eviction, after `preemption: `."""
        framework = self._handle.profiles[pod.scheduler_name]
        try:
            candidate = self._preemption.choose(
                framework, state, pod, self._handle.snapshot, statuses
            )
            self._handle.evict(pod, candidate)
        except NoPreemption as reason:
            return Status(Code.UNSCHEDULABLE, (f"preemption: {reason}",))
        except ApiError as error:
            return Status(Code.ERROR, (f"preemption: {error}",))
        text = f"found a potential placement for pod on node {candidate.node}"
        return Status(
            Code.SUCCESS, (f"preemption: {text}, preempting {len(candidate.pods)} victims",)
        )
