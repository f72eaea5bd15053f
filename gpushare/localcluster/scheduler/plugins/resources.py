"""NodeResourcesFit: does the node have what the pod requests, and which node has most left.

Counts cpu, memory, the number of pods and every extended resource by the sums of requests, exactly
as kube-scheduler does; it knows nothing of devices. That is the extender's part.
"""

from gpushare.localcluster.scheduler.cache import NodeInfo
from gpushare.localcluster.scheduler.framework import (
    MAX_NODE_SCORE,
    NODE_CHANGES,
    SUCCESS,
    ClusterEvent,
    Code,
    Status,
)
from gpushare.localcluster.scheduler.objects import CPU, MEMORY, PODS, PodView

_ORDER = (CPU, MEMORY, "ephemeral-storage")


class NodeResourcesFit:
    """Rejects nodes that are too full; prefers the emptiest (LeastAllocated).

    `ignored` names extended resources that only an extender counts (ignoredByScheduler).
    """

    name = "NodeResourcesFit"
    events: frozenset[ClusterEvent] = NODE_CHANGES | {ClusterEvent.ASSIGNED_POD_DELETE}
    weight = 1

    def __init__(self, ignored: frozenset[str] = frozenset()) -> None:
        self._ignored = ignored

    def filter(self, pod: PodView, node: NodeInfo) -> Status:
        """Return Success, or every resource that is short, in kube-scheduler's order."""
        reasons: list[str] = []
        code = Code.UNSCHEDULABLE
        if node.free(PODS) < 1:
            reasons.append("Too many pods")
        for name in self._asked(pod):
            wanted = pod.requests[name]
            if wanted > node.free(name):
                reasons.append(f"Insufficient {name}")
            if wanted > node.node.allocatable.get(name, 0):
                # More than the node has when empty: evicting pods would not help.
                code = Code.UNRESOLVABLE
        return Status(code, tuple(reasons)) if reasons else SUCCESS

    def score(self, pod: PodView, node: NodeInfo) -> int:
        """Return the mean share of cpu and memory that would be left, 0 to 100 (LeastAllocated)."""
        shares = [
            _left(node.node.allocatable.get(name, 0), node.scored.get(name, 0) + pod.scored[name])
            for name in (CPU, MEMORY)
            if node.node.allocatable.get(name, 0) > 0
        ]
        return sum(shares) // len(shares) if shares else 0

    def _asked(self, pod: PodView) -> list[str]:
        names = [n for n, amount in pod.requests.items() if amount > 0 and n not in self._ignored]
        return sorted(names, key=lambda name: (_rank(name), name))


def _rank(name: str) -> int:
    return _ORDER.index(name) if name in _ORDER else len(_ORDER)


def _left(allocatable: int, used: int) -> int:
    return max(allocatable - used, 0) * MAX_NODE_SCORE // allocatable
