"""DefaultPreemption: evicts pods of lower priority for a pod that fits nowhere.

The texts are those of kube-scheduler, so that a pending pod reads as in a real cluster.
"""

from collections.abc import Mapping

from gpushare.errors import ApiError, SettingsError
from gpushare.wire.fields import Fields, number
from gpushare_localcluster.scheduler.cycle_state import CycleState
from gpushare_localcluster.scheduler.framework import Code, Status
from gpushare_localcluster.scheduler.handle import Handle
from gpushare_localcluster.scheduler.objects import PodView
from gpushare_localcluster.scheduler.preemption import NoPreemption, Preemption


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
