"""TaintToleration: keeps pods from tainted nodes, and prefers nodes with fewer soft taints."""

from collections.abc import Mapping

from gpushare.core.selectors import untolerated
from gpushare_localcluster.scheduler.cache import NodeInfo
from gpushare_localcluster.scheduler.cluster_events import Action, Change, EventWithHint, Resource
from gpushare_localcluster.scheduler.cycle_state import CycleState
from gpushare_localcluster.scheduler.framework import SUCCESS, Code, Status
from gpushare_localcluster.scheduler.handle import PlainPlugin
from gpushare_localcluster.scheduler.objects import PodView
from gpushare_localcluster.scheduler.plugins.normalize import normalized

_SOFT_EFFECT = "PreferNoSchedule"


class TaintToleration(PlainPlugin):
    """Rejects nodes with a hard taint that the pod does not tolerate, and counts soft ones."""

    name = "TaintToleration"

    def events_to_register(self) -> tuple[EventWithHint, ...]:
        """Return that a node may come or lose a taint, or the pod tolerate more."""
        return (
            EventWithHint(Resource.NODE, Action.ADD | Action.UPDATE_NODE_TAINT, _let_in),
            EventWithHint(Resource.TARGET_POD, Action.UPDATE_POD_TOLERATION),
        )

    def filter(self, state: CycleState, pod: PodView, node: NodeInfo) -> Status:
        """Return Success, or that there is such a taint. Up to 1.35 it is named: `taint {KEY:
        VALUE}`.
        """
        if node.node.taints and untolerated(node.node.taints, pod.tolerations):
            return Status(Code.UNRESOLVABLE, ("node(s) had untolerated taint(s)",))
        return SUCCESS

    def score(self, state: CycleState, pod: PodView, node: NodeInfo) -> int:
        """Return how many soft taints of the node the pod does not tolerate."""
        return sum(
            taint.effect == _SOFT_EFFECT and not any(t.tolerates(taint) for t in pod.tolerations)
            for taint in node.node.taints
        )

    def normalize_score(
        self, state: CycleState, pod: PodView, scores: Mapping[str, int]
    ) -> dict[str, int]:
        """Return 100 for no such taint, 0 for the most of them."""
        return normalized(scores, reverse=True)


def _let_in(pod: PodView, change: Change) -> bool:
    """Return whether the node is new or kept the pod out, and does not keep it out now."""
    old, new = change.old_node, change.new_node
    was = old is None or untolerated(old.taints, pod.tolerations) is not None
    return was and new is not None and untolerated(new.taints, pod.tolerations) is None
