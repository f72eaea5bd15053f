"""The place of DefaultPreemption: says why evicting pods does not help. It evicts nobody yet.

Texts are kube-scheduler's, so that a pending pod reads as in a real cluster.
"""

from collections.abc import Mapping

from gpushare.localcluster.scheduler.cache import Snapshot
from gpushare.localcluster.scheduler.diagnosis import unschedulable_message
from gpushare.localcluster.scheduler.framework import ANY_EVENT, ClusterEvent, Code, Status
from gpushare.localcluster.scheduler.objects import PodView

_NOT_HELPFUL = "Preemption is not helpful for scheduling"
_NO_VICTIMS = "No preemption victims found for incoming pod"
_NOT_OFFERED = "Preemption is not offered by this scheduler"


class PreemptionDiagnosis:
    """Explains, node by node, why no pod is evicted."""

    name = "DefaultPreemption"
    events: frozenset[ClusterEvent] = ANY_EVENT

    def post_filter(
        self, pod: PodView, snapshot: Snapshot, statuses: Mapping[str, Status]
    ) -> Status:
        """Unschedulable, with `preemption: 0/N nodes are available: ...`."""
        texts: dict[str, Status] = {}
        for node in snapshot.nodes:
            if statuses.get(node.name, Status()).code is not Code.UNSCHEDULABLE:
                reason = _NOT_HELPFUL
            elif any(other.priority < pod.priority for other in node.pods.values()):
                reason = _NOT_OFFERED
            else:
                reason = _NO_VICTIMS
            texts[node.name] = Status(Code.UNSCHEDULABLE, (reason,))
        message = unschedulable_message(len(snapshot.nodes), texts)
        return Status(Code.UNSCHEDULABLE, (f"preemption: {message}",))
