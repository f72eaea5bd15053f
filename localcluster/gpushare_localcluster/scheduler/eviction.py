"""The evictions of a preemption: victims are deleted, the pod is nominated for their node.

Writes the same as kube-scheduler: the condition DisruptionTarget, a DELETE with the victim's own
grace period, an event, and status.nominatedNodeName of the pending pod. The pod is tried again
after the end of the victims.
"""

from collections.abc import Callable

from gpushare.errors import ApiConflict, ApiNotFound
from gpushare_localcluster.api.records import timestamp
from gpushare_localcluster.client import ApiClient, Json
from gpushare_localcluster.scheduler.candidates import Candidate
from gpushare_localcluster.scheduler.objects import PodView

Told = Callable[[PodView, str], None]


class Evictor:
    """Evicts through the API server. report: called with each victim and the text of the event."""

    def __init__(self, api: ApiClient, report: Told) -> None:
        self._api = api
        self._told = report

    def carry_out(self, pod: PodView, candidate: Candidate) -> None:
        """Evict the victims and nominate the pod. Raises ApiError."""
        for victim in candidate.pods:
            self._evict(victim, pod, candidate.node)
        change = {"status": {"nominatedNodeName": candidate.node}}
        self._api.patch(f"{pod.path}/status", change)

    def _evict(self, victim: PodView, pod: PodView, node: str) -> None:
        condition: Json = {
            "type": "DisruptionTarget",
            "status": "True",
            "reason": "PreemptionByScheduler",
            "message": f"{pod.scheduler_name}: preempting to accommodate a higher priority pod",
            "lastProbeTime": None,
            "lastTransitionTime": timestamp(),
        }
        try:
            self._api.patch(f"{victim.path}/status", {"status": {"conditions": [condition]}})
            self._api.delete(victim.path, uid=victim.uid)
        except (ApiNotFound, ApiConflict):
            return  # the victim has ended, or another pod has its name
        self._told(victim, f"Preempted by pod {pod.uid} on node {node}")
