"""Estimates the workload from the pods that come, and makes new policies for that workload.

Knows the managed resources, and functions that make and try policies (see policy_builder.py). These
functions take seconds, so only the thread of this module calls them, never a request. A request
finds the old ranking or the new one. If a policy cannot be made, the old ranking stays, and the
other policies are not affected; the pauses before a new try grow, since a policy that never returns
delays all others.

Every created pod counts, with or without GPU, placed or refused, unless the pod has gates or no
node has such devices: else anybody could have policies made for pods that never run. Pods that ran
before the first list count too. core/workload_estimator.py decides on the workload and on the
number of pods between two refreshes; this module limits refreshes to one a minute, except the early
ones.

Trials compare the candidates of the policy `auto` on the current cluster, and the winner ranks
pods. A trial (see core/trial.py) takes seconds, and a rest follows, so that trials take a fiftieth
of a core at most.

A trial waits until no pod has come or was bound for a while, or for a bounded time: in a burst a
trial would take a core from kube-scheduler. New policies wait the same while the default policy
looks at no workload: they change nothing for pods that name no policy.
"""

import logging
import math
import secrets
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from gpushare.core.card_sizes import common_sizes
from gpushare.core.model import Request
from gpushare.core.policy import Policy
from gpushare.core.ranking import Ranking
from gpushare.core.snapshot import Ints, Snapshot, has_devices
from gpushare.core.trial import AUTO, FALLBACK_POLICY, Trial
from gpushare.core.workload import Workload, class_of
from gpushare.core.workload_estimator import WorkloadEstimator
from gpushare.daemon.loop import Loop
from gpushare.daemon.part import LoopPart
from gpushare.extender.managed_resources import ManagedResource, ManagedResources
from gpushare.ledger import Changes
from gpushare.logline import Line

log = logging.getLogger("gpushare.learning")

Make = Callable[[Sequence[str], Workload], Mapping[str, Policy | Exception]]
"""Makes policies for a workload: by name, the policy or an error; raises if all fail."""

Try = Callable[[Sequence[str], Workload, Snapshot, int], Trial | None]
"""Runs a trial of the named policies; raises if the trial fails."""

SPACING = 60.0
"""Seconds between two refreshes, except the early ones."""

_EARLY = 200
_LATEST = 64
"""Multiples of SPACING, at most, until a policy that failed is tried again."""
_LOOK_EVERY = 1.0
_PREPARED_KINDS = 16
"""Latest kinds of request that a new ranking is prepared for before its use."""
_STEP_PAUSE = 0.01
"""Seconds between two steps of preparing: the arithmetic delays requests."""

REST = 50.0
"""A rest after a trial, as a multiple of the time of the trial: at most 71 seconds an hour of
trials."""
SHORTEST_REST = 60.0
"""Seconds of rest after a trial at least: new nodes may be on the way."""
QUIET = 5.0
"""Seconds without a new pod and without a bind: then work that can wait begins."""
LONGEST_WAIT = 120.0
"""Seconds that such work waits at most."""
_MOST_FAILURES = 3
"""Failures of a candidate in a row until its last trial: each failure may cost minutes."""


@dataclass(frozen=True, slots=True)
class _FailedPolicy:
    """A policy that could not be made: the failures in a row, and the time of the next try."""

    times: int = 0
    again_at: float = float("-inf")


class _Trials:
    """The trials of one resource."""

    def __init__(
        self, resource: ManagedResource, try_policies: Try, wall: Callable[[], float] = time.time
    ) -> None:
        self._managed = resource
        self._try = try_policies
        self._wall = wall
        self._again_at = -math.inf
        self._failures: Counter[str] = Counter()
        self._told_failed = False
        self.completed = self.failed = 0

    def may_run(self, now: float) -> bool:
        """Return whether a trial may be run now."""
        is_auto = self._managed.default_policy == AUTO and bool(self._candidates())
        return is_auto and now >= self._again_at

    def run(self, workload: Workload, clock: Callable[[], float]) -> str:
        """Run a trial; return the policy that ranks from now on: after a failure the same one."""
        began = clock()
        try:
            return self._run(workload)
        finally:
            ended = clock()
            self._again_at = ended + max(REST * (ended - began), SHORTEST_REST)

    def _run(self, workload: Workload) -> str:
        managed_resource = self._managed
        resource, before = managed_resource.names.resource, managed_resource.ranking_policy
        snapshot = managed_resource.ledger.snapshot()
        try:
            trial = self._try(self._candidates(), workload, snapshot, secrets.randbits(32))
        except Exception as error:  # the trial starts a process, and more may go wrong
            level = logging.DEBUG if self._told_failed else logging.WARNING
            self._told_failed = True
            self.failed += 1
            values = {"resource": resource, "error": f"{type(error).__name__}: {error}"}
            log.log(level, Line("policies could not be tried", ranks=before, **values))
            return before
        if trial is None:
            return before
        self._note_failed(trial.failed)
        if not trial.allocated:
            return before
        managed_resource.choice = choice = trial.choice(managed_resource.choice, self._wall())
        self.completed += 1  # after the choice: a reader that sees the count sees the figures too
        figures = {name: round(allocated, 1) for name, allocated in choice.allocated.items()}
        if choice.second:
            figures |= {"lead": round(choice.lead, 1), "error": round(choice.error, 1)}
        text = "policies tried" if choice.policy == before else "policies tried, another one ranks"
        log.info(Line(text, resource=resource, ranks=choice.policy, before=before, **figures))
        return choice.policy

    def settle(self) -> None:
        """Put the ranking of the winner, which may be a new one, in the place of `auto`."""
        rankings, choice = self._managed.rankings, self._managed.choice
        winner = rankings.get(choice.policy if choice else FALLBACK_POLICY)
        if AUTO in rankings and winner is not None:
            rankings[AUTO] = winner

    def _candidates(self) -> tuple[str, ...]:
        return tuple(
            name for name in self._managed.candidates if self._failures[name] < _MOST_FAILURES
        )

    def _note_failed(self, failed: Mapping[str, str]) -> None:
        """Count failures in a row; warn of the first and of the last failure of a candidate."""
        for name in self._candidates():
            self._failures[name] = self._failures[name] + 1 if name in failed else 0
        self.failed += len(failed)
        for name, reason in failed.items():
            times = self._failures[name]
            text = "a candidate is left out of a trial"
            if times >= _MOST_FAILURES:
                text = f"a candidate has failed {times} times in a row and is not tried any more"
            level = logging.WARNING if times in (1, _MOST_FAILURES) else logging.DEBUG
            log.log(
                level, Line(text, resource=self._managed.names.resource, policy=name, error=reason)
            )


@dataclass(slots=True)
class _WaitForQuiet:
    """The wait of work that is due for a time without new pods."""

    due_since: float | None = None

    def is_over(self, now: float, came_at: float, *, is_due: bool) -> bool:
        """Return whether the work is due and begins now. came_at: when a pod came last."""
        since = now if self.due_since is None else self.due_since
        is_over = is_due and (now >= came_at + QUIET or now >= since + LONGEST_WAIT)
        self.due_since = since if is_due and not is_over else None
        return is_over


@dataclass(slots=True)
class _ResourceState:
    """The workload estimated for one managed resource, and the results of making policies."""

    resource: ManagedResource
    trials: _Trials
    estimator: WorkloadEstimator = field(default_factory=WorkloadEstimator)
    layout: Ints | None = None
    """The capacities of the devices when last seen."""
    refits: int = 0
    failed: int = 0
    failing: bool = False
    """Whether no policy could be made the last time."""
    failed_policies: dict[str, "_FailedPolicy"] = field(default_factory=dict)
    """By name, those that could not be made while others could."""
    tried: float = float("-inf")
    done: float = 0.0
    took: float = 0.0
    came_at: float = float("-inf")
    """When a pod was new, or came to a node, last."""
    trial_wait: _WaitForQuiet = field(default_factory=_WaitForQuiet)
    refit_wait: _WaitForQuiet = field(default_factory=_WaitForQuiet)

    def may_try(self, now: float) -> bool:
        """Return whether to try policies now."""
        is_first = self.resource.choice is None
        is_due = self._has_devices() and self.estimator.is_trial_due(first=is_first)
        is_due = is_due and self.trials.may_run(now)
        return self.trial_wait.is_over(now, self.came_at, is_due=is_due)

    def may_refit(self, now: float) -> bool:
        """Return whether to make policies now."""
        is_due = self._is_due(now)
        is_over = self.refit_wait.is_over(now, self.came_at, is_due=is_due)
        # FALLBACK_POLICY looks at no workload: made anew, it would rank as before.
        return is_over or (is_due and self.resource.ranking_policy != FALLBACK_POLICY)

    def _is_due(self, now: float) -> bool:
        """Return whether policies are due; they rank nothing while no node has devices."""
        if not self._has_devices():
            return False
        estimator = self.estimator
        if now >= self.tried + SPACING:
            return estimator.is_due()
        # The first pods tell most, and come fast if a cluster fills.
        return not self.failing and estimator.fit_at <= min(estimator.pod_count, _EARLY)

    def could_take(self, request: Request) -> bool:
        """Return whether the request fits on a node without pods."""
        layout = self.layout
        if not request.devices or layout is None or not layout.any():
            return True
        return bool(has_devices(layout >= min(request.parts), request, layout).any())

    def _has_devices(self) -> bool:
        return self.layout is not None and bool(self.layout.any())


class PolicyRefresher(LoopPart):
    """Refreshes the policies of every managed resource. Any thread may call `changed`."""

    def __init__(
        self,
        resources: ManagedResources,
        make: Make,
        try_policies: Try,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._states = {
            resource.names.resource: _ResourceState(resource, _Trials(resource, try_policies, wall))
            for resource in resources
        }
        self._make = make
        self._clock = clock
        self._wall = wall
        self._counting = threading.Lock()
        self.loop = Loop("learning", self.refresh, _LOOK_EVERY, log=log, failed="learning failed")

    def changed(self, resource: ManagedResource, changes: Changes, first: bool) -> None:
        """Count the pods that have come and gone. first: the changes of the first list.

        Before nodes are known every pod counts.
        """
        if not (changes.new or changes.came or changes.went):
            return
        state, now = self._states[resource.names.resource], self._wall()
        with self._counting:
            estimator = state.estimator
            if changes.new or changes.came:
                state.came_at = self._clock()
            for pod, on_node in changes.new:
                if not (first and on_node) and state.could_take(pod.request):
                    estimator.created(pod.namespace, class_of(pod.request))
            if first:
                running = [
                    (pod.namespace, class_of(pod.request), pod.started or now)
                    for pod in changes.came
                ]
                estimator.adopt(running, now)
            else:
                for pod in changes.came:
                    estimator.came(pod.namespace, class_of(pod.request), now)
            for pod in changes.went:
                began = pod.started or None
                estimator.went(pod.namespace, class_of(pod.request), began, now)

    def refresh(self) -> None:
        """Make and try the policies that are due, and put them in use."""
        for state in self._states.values():
            layout = state.resource.ledger.snapshot().capacity
            if layout is not state.layout:  # snapshots share the layout until a node changes
                state.layout = layout
                state.estimator.devices = common_sizes(layout)
            if state.may_refit(self._clock()):
                self._renew(state)
            if state.may_try(self._clock()):
                self._try(state)

    def state(self) -> dict[str, float]:
        """Return the figures for metrics, over all resources; the age is that of the oldest
        policies.
        """
        states = self._states.values()
        now = self._clock()
        return {
            "learned_pods_total": max(state.estimator.pod_count for state in states),
            "refits_total": sum(state.refits for state in states),
            "refit_failures_total": sum(state.failed for state in states),
            "refit_duration_seconds": max(state.took for state in states),
            "refit_age_seconds": max(now - state.done if state.refits else 0.0 for state in states),
            "trials_total": sum(state.trials.completed for state in states),
            "trial_failures_total": sum(state.trials.failed for state in states),
        }

    def _workload(self, state: _ResourceState) -> tuple[int, Workload]:
        """Return (the pods seen until now, the pods to expect)."""
        units_by_namespace = Counter[str]()
        entries, specs = state.resource.ledger.entries_and_specs()
        for entry in entries.values():
            capacity = specs[entry.node].capacity if entry.node in specs else ()
            units_by_namespace[entry.ref.namespace] += entry.units(capacity)
        with self._counting:
            state.estimator.held_units = units_by_namespace
            return state.estimator.pod_count, state.estimator.workload(self._wall())

    def _renew(self, state: _ResourceState) -> None:
        state.tried = start = self._clock()
        resource, estimator = state.resource, state.estimator
        sizes = estimator.sizes
        pod_count, workload = self._workload(state)
        rankings, failed = self._new_rankings(state, workload)
        if failed:
            state.failed += 1
            self._log_failures(state, failed, pod_count)
        state.failing = not rankings
        if not rankings:
            return
        resource.rankings.update(rankings)
        state.trials.settle()
        for name in rankings:
            state.failed_policies.pop(name, None)
        for name in failed:
            times = state.failed_policies.get(name, _FailedPolicy()).times
            again_at = self._clock() + SPACING * min(2**times, _LATEST)
            state.failed_policies[name] = _FailedPolicy(times + 1, again_at)
        state.refits += 1
        estimator.record_policies(pod_count, sizes)
        state.done = self._clock()
        state.took = state.done - start
        classes = len(workload.classes)
        line = {"pods": pod_count, "classes": classes, "turnover": round(workload.turnover, 2)}
        log.info(Line("policies made anew", **line, s=round(state.took, 2)))

    def _try(self, state: _ResourceState) -> None:
        resource = state.resource
        _, workload = self._workload(state)
        state.estimator.record_trial()
        winner = state.trials.run(workload, self._clock)
        if winner != resource.ranking_policy:
            recent_requests = resource.rankings[AUTO].recent_requests
            self._prepared(resource.rankings[winner], recent_requests, resource)
        state.trials.settle()

    def _new_rankings(
        self, state: _ResourceState, workload: Workload
    ) -> tuple[dict[str, Ranking], dict[str, BaseException]]:
        """Return the new rankings by name, and the errors of the others by name."""
        resource, resting = state.resource, state.failed_policies
        names = tuple(
            name
            for name in resource.rankings
            if name != AUTO and (name not in resting or state.tried >= resting[name].again_at)
        )
        # A ranking that was never asked is tried with the last kind of request.
        last = resource.rankings[resource.default_policy].recent_requests[-1:]
        rankings: dict[str, Ranking] = {}
        failed: dict[str, BaseException] = {}
        try:
            policies = self._make(names, workload)
        except Exception as error:
            return rankings, dict.fromkeys(names, error)
        for name in names:
            policy = policies[name]
            try:
                if isinstance(policy, Exception):
                    raise policy
                requests = resource.rankings[name].recent_requests or last
                ranking = Ranking(policy, neighbours=resource.neighbours)
                rankings[name] = self._prepared(ranking, requests, resource)
            except (Exception, SystemExit) as error:  # policies are anybody's code
                failed[name] = error
        return rankings, failed

    def _log_failures(
        self, state: _ResourceState, failed: Mapping[str, BaseException], pod_count: int
    ) -> None:
        """Log one line for each error; as a warning only for policies that did not fail before."""
        alike: dict[str, list[str]] = defaultdict(list)
        for name, error in failed.items():
            alike[f"{type(error).__name__}: {error}"].append(name)
        for text, names in alike.items():
            logged = state.failing or all(name in state.failed_policies for name in names)
            level = logging.DEBUG if logged else logging.WARNING
            values = {"policies": ",".join(names), "error": text, "pods": pod_count}
            log.log(level, Line("policies stay as they are", **values))

    def _prepared(
        self, ranking: Ranking, requests: Sequence[Request], resource: ManagedResource
    ) -> Ranking:
        """Prepare the ranking for the latest kinds of request; return the ranking."""
        for request in requests[-_PREPARED_KINDS:]:
            ranking.prepare(
                resource.ledger.snapshot(), request, lambda: self.loop.rest(_STEP_PAUSE)
            )
        return ranking
