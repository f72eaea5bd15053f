"""NodeNumber, the first plug-in of kube-scheduler tutorials, for the small scheduler.

The tour (docs/scheduler-tour.md) adds the plug-in to a scheduler point by point. An entry point in
setup.cfg registers it, as for any plug-in of another package. Tested in
`localcluster/tests/test_scheduler_profiles.py`.
"""

from collections.abc import Sequence
from threading import Timer

from gpushare.wire.fields import Fields
from gpushare_localcluster.scheduler.cache import NodeInfo
from gpushare_localcluster.scheduler.framework import SKIP, SUCCESS, Code, CycleState, Status
from gpushare_localcluster.scheduler.handle import Handle
from gpushare_localcluster.scheduler.objects import PodView

SCORE_OF_A_MATCH = 10
PATIENCE = 10.0
"""Seconds after the plug-in's own delay until Permit times out."""


class NodeNumber:
    """Prefers the node that ends with the pod's digit; the node's digit delays the binding."""

    name = "NodeNumber"

    def __init__(self, _args: Fields, handle: Handle) -> None:
        """Keep the handle, which has the waiting pods."""
        self._handle = handle

    def pre_score(self, state: CycleState, pod: PodView, _nodes: Sequence[NodeInfo]) -> Status:
        """Write the pod's last digit; return Skip for a name without one."""
        digit = pod.name[-1]
        if not digit.isdecimal():
            return SKIP
        state.write(self.name, digit)
        return SUCCESS

    def score(self, state: CycleState, _pod: PodView, node: NodeInfo) -> int:
        """Return 10 for a node that ends with the pod's digit, else 0."""
        return SCORE_OF_A_MATCH if node.name.endswith(state.read(self.name, str)) else 0

    def permit(self, _state: CycleState, pod: PodView, node_name: str) -> tuple[Status, float]:
        """Delay the binding by the node's last digit, in seconds."""
        digit = node_name[-1]
        if not digit.isdecimal() or digit == "0":
            return SUCCESS, 0.0
        timer = Timer(float(digit), self._allow, [pod.uid])
        timer.daemon = True
        timer.start()
        return Status(Code.WAIT), float(digit) + PATIENCE

    def _allow(self, uid: str) -> None:
        waiting_pod = self._handle.waiting_pods.get(uid)
        if waiting_pod is not None:
            waiting_pod.allow(self.name)
