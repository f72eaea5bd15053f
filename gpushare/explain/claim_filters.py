"""Which nodes of a DRA driver take pods with claims: kube-scheduler's own filters, and the modes.

Tested in `tests/unit/explain/test_claim_filters.py`.
"""

from collections.abc import Callable, Iterable
from types import MappingProxyType

from gpushare.core.model import Amounts, Request
from gpushare.core.node_filters import Obstacle, OwnFilters
from gpushare.core.selectors import NO_DEMANDS, Demands

BY_ANNOTATION = Obstacle(
    "shares devices by annotation", "its device plug-in and the pods by annotation are gone"
)
UNKNOWN_NODE = Obstacle("known by slices alone", "the API server shows the node")

_NOTHING: Amounts = MappingProxyType({})


class ClaimFilters(OwnFilters):
    """kube-scheduler's own filters, and which nodes take no claims whatever is free there.

    own: over the same nodes and all their pods. by_annotation: returns whether a node has devices
    by annotation, or pods that hold some.
    """

    def __init__(self, own: OwnFilters, by_annotation: Callable[[str], bool]) -> None:
        super().__init__(own.states)
        self._own = own
        self._by_annotation = by_annotation

    def obstacles(
        self,
        node: str,
        request: Request,
        demands: Demands = NO_DEMANDS,
        more: Amounts = _NOTHING,
    ) -> tuple[Obstacle, ...]:
        """Return all that keeps the pod from the node, the gravest first."""
        if node not in self.states:
            return (UNKNOWN_NODE,)
        both = (BY_ANNOTATION,) * self._by_annotation(node)
        return both + self._own.obstacles(node, request, demands, more)

    def refuses(self, node: str, demands: Demands) -> bool:
        """Return whether the node is kept from a pod with these demands, whatever is free there."""
        closed = node not in self.states or self._by_annotation(node)
        return closed or self._own.refuses(node, demands)

    def free(self, node: str, resource: str) -> int | None:
        """Return how much of a resource is left for pods; None if it is not counted there."""
        return self._own.free(node, resource)

    def shortages(
        self, node: str, request: Request, *, less: Iterable[Request] = (), more: Amounts = _NOTHING
    ) -> tuple[Obstacle, ...]:
        """Return the resources of which the node has too little; the end of claims frees none."""
        del less
        return self._own.shortages(node, request, more=more)
