"""A plug-in that joins many points: pods of a gang are bound together, or not at all.

A pod says by the labels of the coscheduling plug-in to which gang it belongs, and how many pods it
has. gpushare reads them too, and offers a gang nothing unless all of it fits.
"""

import logging
from collections.abc import Iterator, Sequence

from gpushare.errors import SettingsError
from gpushare.wire.fields import Fields
from gpushare_localcluster.scheduler.cache import NodeInfo
from gpushare_localcluster.scheduler.cluster_events import (
    Action,
    Change,
    EventWithHint,
    Resource,
)
from gpushare_localcluster.scheduler.framework import (
    SKIP,
    SUCCESS,
    Code,
    CycleState,
    NodeNames,
    Status,
)
from gpushare_localcluster.scheduler.handle import Handle, WaitingPod
from gpushare_localcluster.scheduler.objects import PodView

_GANG = "scheduling.x-k8s.io/pod-group"
_SIZE = "pod-group.scheduling.sigs.k8s.io/min-available"

log = logging.getLogger(__name__)


class Gang:
    """Has the first pods of a gang wait at Permit until the last one has a node.

    args: `waitSeconds`, how long (60).
    """

    name = "Gang"

    def __init__(self, args: Fields, handle: Handle) -> None:
        """Read the arguments. Raises SettingsError."""
        seconds = args.get("waitSeconds", 60)
        if type(seconds) is not int or seconds < 1:
            raise SettingsError(f"waitSeconds: {seconds!r} is no whole number of seconds from 1")
        self._seconds = float(seconds)
        self._handle = handle

    def events_to_register(self) -> Sequence[EventWithHint]:
        """Say after what a pod that this plug-in rejected is worth another try."""

        def same_gang(pod: PodView, change: Change) -> bool:
            return change.new_pod is not None and _same(pod, change.new_pod)

        return (
            EventWithHint(Resource.NODE, Action.ADD),
            EventWithHint(Resource.ASSIGNED_POD, Action.DELETE),
            EventWithHint(Resource.ASSIGNED_POD, Action.ADD, same_gang),
        )

    def pre_filter(
        self, state: CycleState, pod: PodView, _nodes: Sequence[NodeInfo]
    ) -> tuple[NodeNames | None, Status]:
        """Write down how many pods the gang has; Skip for a pod of no gang."""
        if _GANG not in pod.labels:
            return None, SKIP
        size = pod.labels.get(_SIZE, "")
        if not size.isdecimal():
            reason = f"label {_SIZE}: {size!r} is no number"
            return None, Status(Code.UNRESOLVABLE, (reason,))
        state.write(self.name, int(size))
        return None, SUCCESS

    def reserve(self, _state: CycleState, _pod: PodView, _node_name: str) -> Status:
        """Set nothing aside; unreserve belongs to the same point."""
        return SUCCESS

    def unreserve(self, _state: CycleState, pod: PodView, _node_name: str) -> None:
        """Reject the others that wait: one of the gang could not be bound."""
        for other in self._waiting(pod):
            other.reject(self.name, f"{pod.name} of the same gang was not bound")

    def permit(self, state: CycleState, pod: PodView, _node_name: str) -> tuple[Status, float]:
        """Wait; the last pod of the gang has all of them bound."""
        size = state.find(self.name, int)
        if size is None:
            return SUCCESS, 0.0
        # The snapshot has the pods that wait on their nodes: they are assumed.
        there = sum(
            _same(pod, other)
            for node in self._handle.snapshot.nodes
            for other in node.pods.values()
        )
        if there + 1 < size:
            return Status(Code.WAIT), self._seconds
        for other in self._waiting(pod):
            other.allow(self.name)
        return SUCCESS, 0.0

    def post_bind(self, _state: CycleState, pod: PodView, node_name: str) -> None:
        """Tell the log."""
        log.info("gang member bound pod=%s node=%s", pod.key, node_name)

    def _waiting(self, pod: PodView) -> Iterator[WaitingPod]:
        waiting_pods = tuple(self._handle.waiting_pods.values())
        return (other for other in waiting_pods if _same(pod, other.pod))


def _same(pod: PodView, other: PodView) -> bool:
    """Return whether both are of one gang."""
    gang = pod.labels.get(_GANG)
    return gang is not None and (pod.namespace, gang) == (other.namespace, other.labels.get(_GANG))
