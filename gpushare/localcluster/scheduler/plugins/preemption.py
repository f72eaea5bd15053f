"""DefaultPreemption: when no node is left, room is made by evicting pods of lower priority.

Its texts are kube-scheduler's, so that a pending pod reads as in a real cluster.
"""

from collections.abc import Callable, Mapping

from gpushare.errors import ApiError
from gpushare.localcluster.scheduler.cache import Snapshot
from gpushare.localcluster.scheduler.candidates import Candidate
from gpushare.localcluster.scheduler.framework import (
    ANY_EVENT,
    SUCCESS,
    ClusterEvent,
    Code,
    Status,
)
from gpushare.localcluster.scheduler.objects import PodView
from gpushare.localcluster.scheduler.preemption import NoPreemption, Preemption

Evict = Callable[[PodView, Candidate], None]


class DefaultPreemption:
    """Chooses victims by `preemption` and has `evict` end them."""

    name = "DefaultPreemption"
    events: frozenset[ClusterEvent] = ANY_EVENT

    def __init__(self, preemption: Preemption, evict: Evict) -> None:
        self._preemption = preemption
        self._evict = evict

    def post_filter(
        self, pod: PodView, snapshot: Snapshot, statuses: Mapping[str, Status]
    ) -> Status:
        """Evict victims; return Success when some were, else why not, after `preemption: `."""
        try:
            self._evict(pod, self._preemption.choose(pod, snapshot, statuses))
        except NoPreemption as reason:
            return Status(Code.UNSCHEDULABLE, (f"preemption: {reason}",))
        except ApiError as error:
            return Status(Code.ERROR, (f"preemption: {error}",))
        return SUCCESS
