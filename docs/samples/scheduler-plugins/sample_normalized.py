"""A plug-in whose raw scores have no upper limit: NormalizeScore brings them into 0 to 100."""

from collections.abc import Mapping

from gpushare_localcluster.scheduler.cache import NodeInfo
from gpushare_localcluster.scheduler.framework import MAX_NODE_SCORE, CycleState
from gpushare_localcluster.scheduler.handle import PlainPlugin
from gpushare_localcluster.scheduler.objects import CPU, PodView


class FreeCpu(PlainPlugin):
    """Prefers the node with the most free CPU, however large the nodes are."""

    name = "FreeCpu"

    def score(self, _state: CycleState, _pod: PodView, node: NodeInfo) -> int:
        """Return the free CPU in thousandths."""
        return max(node.free(CPU), 0)

    def normalize_score(
        self, _state: CycleState, _pod: PodView, scores: Mapping[str, int]
    ) -> dict[str, int]:
        """Return 100 for the best node, and for the others their share of it."""
        best = max(scores.values()) or 1
        return {node: score * MAX_NODE_SCORE // best for node, score in scores.items()}
