"""NodeNumber, the plug-in with which tutorials of kube-scheduler begin, as a plug-in of ours.

The tour (docs/scheduler-tour.md) adds it to a scheduler point by point. It is found as any plug-in
of another package is: by its entry point in setup.cfg.
Tested in `localcluster/tests/test_scheduler_profiles.py`.
"""

from collections.abc import Sequence
from threading import Timer

from gpushare.wire.fields import Fields
from gpushare_localcluster.scheduler.cache import NodeInfo
from gpushare_localcluster.scheduler.cycle_state import CycleState
from gpushare_localcluster.scheduler.framework import SKIP, SUCCESS, Code, Status
from gpushare_localcluster.scheduler.handle import Handle
from gpushare_localcluster.scheduler.objects import PodView

SCORE_OF_A_MATCH = 10
PATIENCE = 10.0
"""Seconds for which Permit waits longer than the plug-in means to, before it gives up."""


class NodeNumber:
    """Prefers the node that ends with the pod's digit; the node's digit delays the binding."""

    name = "NodeNumber"

    def __init__(self, _args: Fields, handle: Handle) -> None:
        """Keep the handle, by which waiting pods are found."""
        self._handle = handle

    def pre_score(self, state: CycleState, pod: PodView, _nodes: Sequence[NodeInfo]) -> Status:
        """Write down the pod's last digit; return Skip for a name that ends with none."""
        digit = pod.name[-1]
        if not digit.isdecimal():
            return SKIP
        state.write(self.name, digit)
        return SUCCESS

    def score(self, state: CycleState, _pod: PodView, node: NodeInfo) -> int:
        """Return 10 for a node that ends with the pod's digit, else 0."""
        return SCORE_OF_A_MATCH if node.name.endswith(state.read(self.name, str)) else 0

    def permit(self, _state: CycleState, pod: PodView, node_name: str) -> tuple[Status, float]:
        """Have the binding wait as many seconds as the node's last digit says."""
        digit = node_name[-1]
        if not digit.isdecimal() or digit == "0":
            return SUCCESS, 0.0
        timer = Timer(float(digit), self._allow, [pod.uid])
        timer.daemon = True
        timer.start()
        return Status(Code.WAIT), float(digit) + PATIENCE

    def _allow(self, uid: str) -> None:
        waiting_pod = self._handle.waiting.get(uid)
        if waiting_pod is not None:
            waiting_pod.allow(self.name)
