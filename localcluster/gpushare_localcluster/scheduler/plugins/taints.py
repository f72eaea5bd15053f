"""TaintToleration: rejects tainted nodes, and prefers nodes with fewer soft taints."""

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
    """Rejects nodes with an untolerated hard taint, and scores by untolerated soft taints."""

    name = "TaintToleration"

    def events_to_register(self) -> tuple[EventWithHint, ...]:
        """Return the events: a new node, a removed taint, or a new toleration of the pod."""
        return (
            EventWithHint(Resource.NODE, Action.ADD | Action.UPDATE_NODE_TAINT, _let_in),
            EventWithHint(Resource.TARGET_POD, Action.UPDATE_POD_TOLERATION),
        )

    def filter(self, state: CycleState, pod: PodView, node: NodeInfo) -> Status:
        """Return Success, or the objection to a taint; up to 1.35 with its name: `taint {KEY:
        VALUE}`.
        """
        if node.node.taints and untolerated(node.node.taints, pod.tolerations):
            return Status(Code.UNRESOLVABLE, ("node(s) had untolerated taint(s)",))
        return SUCCESS

    def score(self, state: CycleState, pod: PodView, node: NodeInfo) -> int:
        """Return the number of untolerated soft taints of the node."""
        return sum(
            taint.effect == _SOFT_EFFECT and not any(t.tolerates(taint) for t in pod.tolerations)
            for taint in node.node.taints
        )

    def normalize_score(
        self, state: CycleState, pod: PodView, scores: Mapping[str, int]
    ) -> dict[str, int]:
        """Return 100 for no such taint, 0 for the largest number."""
        return normalized(scores, reverse=True)


def _let_in(pod: PodView, change: Change) -> bool:
    """Return whether the pod tolerates the node now, and did not before or the node is new."""
    old, new = change.old_node, change.new_node
    was = old is None or untolerated(old.taints, pod.tolerations) is not None
    return was and new is not None and untolerated(new.taints, pod.tolerations) is None
