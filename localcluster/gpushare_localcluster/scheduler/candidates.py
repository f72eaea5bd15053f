"""Candidates of a preemption: nodes with the pods to evict, and the choice of the best.

Pure. The orders are those of kube-scheduler (pickOneNodeForPreemption, MoreImportantPod), so that
both choose the same victims.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from gpushare_localcluster.scheduler.objects import PodView

_NEVER_STARTED = "9999-12-31T23:59:59Z"
_OFFSET = 2**31


@dataclass(frozen=True)
class Candidate:
    """A node, the victims (the most important first), and the number of protected victims."""

    node: str
    pods: tuple[PodView, ...] = ()
    violations: int = 0


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

    min_loss = min(loss(candidate) for candidate in candidates)
    equal = [candidate for candidate in candidates if loss(candidate) == min_loss]
    return max(equal, key=_earliest)


def _earliest(candidate: Candidate) -> str:
    """Return the earliest start among the victims of the highest priority."""
    highest = max(pod.priority for pod in candidate.pods)
    return min(started(pod) for pod in candidate.pods if pod.priority == highest)
