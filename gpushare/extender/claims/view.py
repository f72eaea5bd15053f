"""What may be told of claims: the driver's devices and their holders, and how well filter predicts.

Nothing is decided or changed by this. Any thread may call, and none waits.

Tested in `tests/unit/extender/claims/test_view.py`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from gpushare.core.ranking import Ranking
from gpushare.explain.claim_books import ClaimBooks
from gpushare.extender.managed_resources import ManagedResource, ManagedResources
from gpushare.wire.annotations import ALIYUN
from gpushare.wire.dra.objects import CLASS


@dataclass(frozen=True, slots=True)
class ClaimCounts:
    """The figures of claims, for metrics."""

    claims: int
    """Claims that have devices of the driver."""
    offers: int
    """Pods with a node that filter has offered, and without an allocation."""
    predictions: Mapping[str, int]
    """Allocations of pods that filter had offered a node, by how they compare with the prediction:
    `right`, `other_device`, `other_node`."""
    pods: Mapping[str, int]
    """Filter calls about pods with claims, by outcome: `ranked`, `not_ranked`."""
    unevaluated_selectors: int
    """CEL selectors that could not be evaluated and counted as true."""
    unmodelled_nodes: int
    """Nodes with more devices than are modelled; they rank last."""


class ClaimsView:
    """The books of claims, for events, metrics, pages and commands.

    driver: the name of the DRA driver. source: the driver's nodes as a resource named after the
    class, whose pods are claims (uid `CLAIM_UID/NODE`); it serves no verb. books: the slices and
    the claims as last shown, with what first fit needs of each node.
    """

    def __init__(
        self,
        books: ClaimBooks,
        resources: ManagedResources,
        *,
        policy: str,
        ranking: Ranking,
        counts: Callable[[], ClaimCounts],
    ) -> None:
        self.driver = books.driver
        self.books = books
        self.counts = counts
        """Returns the figures as they are now."""
        self.source = ManagedResource(
            replace(ALIYUN, resource=CLASS),
            books.ledger,
            {policy: ranking},
            policy,
            filters=next(iter(resources)).filters,
        )

    def users(self) -> dict[str, tuple[str, ...]]:
        """Return the names of the pods for which each claim with devices is reserved, by the
        claim's uid.
        """
        return {
            uid: tuple(consumer.name or "" for consumer in claim.reserved)
            for uid, claim in self.books.allocated().items()
        }

    def reserved(self) -> dict[str, tuple[str, ...]]:
        """Return the uids of the pods for which each claim with devices is reserved, by the claim's
        uid.
        """
        return {
            uid: tuple(consumer.uid or "" for consumer in claim.reserved)
            for uid, claim in self.books.allocated().items()
        }
