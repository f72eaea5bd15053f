"""The order of nodes for a pod with claims: by the policy's score of the devices of first fit.

kube-scheduler allocates the devices. This only orders the nodes that kube-scheduler offers. A node
whose allocation cannot be predicted ranks last.

Tested in `tests/unit/extender/claims/test_ranker.py`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from gpushare.core.node_names import NodeNames
from gpushare.wire.dra.objects import ClaimsPod


@dataclass(frozen=True, slots=True)
class Ranked:
    """The order of some nodes for a pod."""

    best: str
    """The best node."""
    scores: dict[int, Sequence[str]]
    """Nodes by score, from 10 down to 1, as the extender protocol has them; others score 0."""


class ClaimRanker:
    """Ranks nodes for pods with claims. Any thread may call."""

    def rank(self, pod: ClaimsPod, names: NodeNames) -> Ranked | None:
        """Return the order of the named nodes; None if nothing can be said of any of them.

        The best node counts as taken, with the devices that first fit predicts there, until a claim
        of the pod shows an allocation, the pod is gone, this is called again for the pod, or a
        minute is over.
        """
        raise NotImplementedError
