"""Candidates of a preemption: a node and the pods that would be evicted there, and which is best.

Pure. The orders are kube-scheduler's (pickOneNodeForPreemption, MoreImportantPod), so that a victim
here would be a victim there.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from gpushare_localcluster.scheduler.objects import PodView

_NEVER_STARTED = "9999-12-31T23:59:59Z"
_OFFSET = 2**31


@dataclass(frozen=True)
class Candidate:
    """A node, its victims (the most important first), and how many a budget protects."""

    node: str
    pods: tuple[PodView, ...] = ()
    violations: int = 0


def importance(pod: PodView) -> tuple[int, str]:
    """Return a sort key, the most important first: higher priority, then started earlier."""
    return (-pod.priority, started(pod))


def started(pod: PodView) -> str:
    """Return when the pod started, as a text that sorts; one that has not comes last."""
    return str((pod.raw.get("status") or {}).get("startTime") or _NEVER_STARTED)


def best(candidates: Sequence[Candidate]) -> Candidate:
    """Return the candidate whose victims are missed least; each has at least one.

    The first victim's priority counts as the highest, whatever the others' are.
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
