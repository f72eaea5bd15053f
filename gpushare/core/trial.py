"""A trial finds the policy that allocates most on this cluster, by a simulation on its nodes.

Pods are drawn at random from the workload, in several *streams* (core/trial_streams.py). Each
policy gets the same pods on the same nodes, and is measured by the allocated memory, in % of the
capacity. Streams are run until the best policy is clear, or will not become clear.
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import numpy as np

from gpushare.core.model import ANY_NEIGHBOURS
from gpushare.core.mutable_cluster import ranking
from gpushare.core.policies.node_shape import common_nodes
from gpushare.core.policy import Policy, load_policy
from gpushare.core.snapshot import Snapshot
from gpushare.core.trial_streams import streams
from gpushare.core.workload import Workload

AUTO = "auto"
"""The policy that is chosen by trial."""

FALLBACK_POLICY = "device-bestfit"
"""The policy that ranks until a trial shows a better policy: of the simple policies the one that is
best most often while the pods to come are unknown."""

CANDIDATES = ("shadow-price", FALLBACK_POLICY, "binpack")
"""The policies that are tried by default."""

_MIN_STREAMS = 8
_MIN_PODS = 2_500
"""Pods of all streams: if few pods fill a cluster, the pods that make the difference are rare."""
_MIN_LEAD = 0.2
"""Points of memory allocated: a smaller lead counts as none and is not worth another stream."""
_ERRORS = 2.0
"""A lead must be more than this many standard errors."""

PolicyTimer = Callable[[str], AbstractContextManager[object]]
"""Name of a policy -> context that limits the time of the policy's code inside."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The policy that `auto` is after a trial, with the figures that decided."""

    policy: str
    since: float
    """When the policy was first chosen, in Unix time; in a simulation the number of pods so far."""
    second: str
    """The second best policy, "" if there was only one."""
    lead: float
    """Points by which the policy allocates more than `second`; negative if the second allocates
    more, but not by more than chance."""
    error: float
    """The standard error of the lead."""
    allocated: Mapping[str, float]
    """By candidate, the mean allocated memory, in % of the cluster's memory."""
    refused_percent: Mapping[str, float]
    """By candidate, the mean memory of refused pods, in % of the cluster's memory."""


@dataclass(frozen=True, slots=True)
class Trial:
    """The result of a trial. Entries at the same position are of one stream, with the same pods."""

    allocated: Mapping[str, Sequence[float]]
    """By policy, the allocated memory of each stream, in % of the cluster's memory."""
    refused_percent: Mapping[str, Sequence[float]]
    """By policy, the memory of the refused pods of each stream, in % of the cluster's memory; if
    pods come and go, of the pods refused in a mean lifetime."""
    failed: Mapping[str, str] = field(default_factory=dict)
    """By policy without results, the error that ended the trial of the policy."""

    def lead(self, policy: str, second: str) -> tuple[float, float]:
        """Return (the points that the policy allocates more on average, the standard error)."""
        pairs = zip(self.allocated[policy], self.allocated[second], strict=True)
        more = [one - two for one, two in pairs]
        return statistics.fmean(more), statistics.stdev(more) / math.sqrt(len(more))

    def is_clear(self, progress: float) -> bool:
        """Return whether more streams would change nothing.

        The best policy leads each other policy by more than chance, or by less than is worth a
        stream; or the lead would not be clear even after all streams. progress: share of the
        streams that have been run.
        """
        best = self.winner()
        leads = [self.lead(best, name) for name in self.allocated if name != best]
        return all(
            lead > _ERRORS * error
            or lead + _ERRORS * error < _MIN_LEAD
            or lead + error * math.sqrt(1 - progress) < _ERRORS * error * math.sqrt(progress)
            for lead, error in leads
        )

    def winner(self, current: str = "", errors: float = _ERRORS) -> str:
        """Return the policy that allocates most, or the current one unless the lead is clear.

        Of equal policies the first. current: the policy that ranks now; ignored if not tried.
        errors: a clear lead is more than this many standard errors.
        """
        means = {name: statistics.fmean(values) for name, values in self.allocated.items()}
        best = max(means, key=means.__getitem__)
        if current not in means:
            return best
        lead, error = self.lead(best, current)
        return best if lead > errors * error else current

    def choice(self, current: Choice | None, now: float) -> Choice:
        """Return the new choice. current: the choice before, None before the first trial."""
        ranks = current.policy if current and current.policy in self.allocated else FALLBACK_POLICY
        policy = self.winner(ranks)
        allocated = {name: statistics.fmean(values) for name, values in self.allocated.items()}
        runners_up = [name for name in allocated if name != policy]
        second = max(runners_up, key=allocated.__getitem__, default="")
        lead, error = self.lead(policy, second) if second else (0.0, 0.0)
        refused = {name: statistics.fmean(all_) for name, all_ in self.refused_percent.items()}
        return Choice(
            policy=policy,
            since=current.since if current and current.policy == policy else now,
            second=second,
            lead=lead,
            error=error,
            allocated=allocated,
            refused_percent=refused,
        )


def safe_policy(workload: Workload) -> Policy:
    """Return the policy that `auto` is before any trial."""
    return load_policy(FALLBACK_POLICY, workload)


def run_trial(
    snapshot: Snapshot,
    workload: Workload,
    names: Sequence[str],
    seed: int,
    *,
    neighbours: int = ANY_NEIGHBOURS,
    timer: PolicyTimer = nullcontext,
    go_on: Callable[[], bool] = lambda: True,
) -> Trial | None:
    """Run a trial of the policies with these names; return None if there is nothing to allocate.

    `seed`: for all random draws. `neighbours`: the limit of neighbours. `timer`: entered with the
    policy's name whenever the policy's code runs. `go_on`: called before each stream but the
    first two; false ends the trial. Raises SettingsError for a policy that cannot be made, and any
    exception that a policy raises.
    """
    policies: dict[str, Policy] = {}
    for name in names:
        with timer(name):
            policies[name] = load_policy(name, workload)
    allocated: dict[str, list[float]] = {name: [] for name in names}
    refused_percent: dict[str, list[float]] = {name: [] for name in names}
    trial = Trial(allocated, refused_percent)
    number, pods = 0, 0.0
    # The cards that a single node reports must not decide for all nodes.
    common = common_nodes(snapshot, workload.devices).snapshot
    for stream in streams(common, workload, np.random.default_rng(seed)):
        if number > 1 and not go_on():
            break
        number += 1
        pods += stream.pods
        for name, policy in policies.items():
            with timer(name):
                scorer = ranking(policy, len(stream.begin.names), neighbours)
                measured = stream.run(scorer)
            allocated[name].append(100 * measured[0] / stream.capacity)
            refused_percent[name].append(100 * measured[1] / stream.capacity)
        if number >= _MIN_STREAMS and pods >= _MIN_PODS and trial.is_clear(stream.progress):
            break
    return trial if number else None
