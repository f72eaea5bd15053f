"""Two plug-ins that score. How much each counts is the matter of the profile, by weights."""

from gpushare_localcluster.scheduler.cache import NodeInfo
from gpushare_localcluster.scheduler.framework import MAX_NODE_SCORE, CycleState, PluginError
from gpushare_localcluster.scheduler.handle import PlainPlugin
from gpushare_localcluster.scheduler.objects import PodView

_POINTS_LOST_BY_POD = 10


class Price(PlainPlugin):
    """Prefers cheap nodes, by their label `price`: 0 to 100."""

    name = "Price"

    def score(self, _state: CycleState, _pod: PodView, node: NodeInfo) -> int:
        """Return 100 for a node that costs nothing. Raises PluginError for a label that is odd."""
        price = node.node.labels.get("price", "0")
        if not price.isdecimal() or int(price) > MAX_NODE_SCORE:
            raise PluginError(f"node {node.name}: label price: {price!r} is no number up to 100")
        return MAX_NODE_SCORE - int(price)


class Quiet(PlainPlugin):
    """Prefers nodes with few pods."""

    name = "Quiet"

    def score(self, _state: CycleState, _pod: PodView, node: NodeInfo) -> int:
        """Return 100 for an empty node, 10 less for each pod, at least 0."""
        return max(MAX_NODE_SCORE - _POINTS_LOST_BY_POD * len(node.pods), 0)
