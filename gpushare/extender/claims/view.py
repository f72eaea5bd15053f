"""A view of claims for texts: the driver's devices, the claims that hold them, and the counts.

The view decides and changes nothing. Any thread may call, and none waits.

Tested in `tests/unit/extender/tell/test_explainer.py` and `test_claims_metrics.py`.
"""

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass

from gpushare.core.claims.first_fit import Matcher
from gpushare.explain.claim_books import ClaimBooks
from gpushare.extender.claims.waiting import WaitingPods
from gpushare.extender.managed_resources import ManagedResource


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimCounts:
    """The figures of claims, for metrics."""

    claims: int
    """Claims that have devices of the driver."""
    offers: int
    """Pods with a node that filter has answered, and without a shown allocation."""
    predictions: Mapping[str, int]
    """Allocations of claims that filter had offered a node, by comparison with the prediction:
    `right`, `other_device`, `other_node`."""
    pods: Mapping[str, int]
    """Filter calls about pods with claims: `ranked`, `not_ranked`."""
    unevaluated_selectors: Mapping[str, int]
    """CEL selectors that could not be evaluated and counted as true, by reason."""
    unmodelled_nodes: int
    """Nodes with too many or too large slices, which rank last."""


@dataclass(eq=False)
class ClaimsView:
    """The books of claims, for metrics, pages and commands.

    driver: the name of the DRA driver. source: the driver's nodes as a resource named after the
    class, whose pods are claims (uid `CLAIM_UID/NODE`); it serves no verb. books: the slices and
    the claims as last shown, with the values that first fit needs of each node. matches: evaluates
    selectors. counts: returns the figures as they are now. waiting: pods that may wait for devices
    of claims.
    """

    books: ClaimBooks
    source: ManagedResource
    _: KW_ONLY
    matches: Matcher
    counts: Callable[[], ClaimCounts]

    def __post_init__(self) -> None:
        self.waiting = WaitingPods()
        self.driver = self.books.driver

    def users(self) -> dict[str, tuple[str, ...]]:
        """Return the names of the pods for which each claim with devices is reserved, by the
        claim's uid.
        """
        return {
            uid: tuple(name for name, _ in claim.users)
            for uid, claim in self.books.allocated().items()
        }
