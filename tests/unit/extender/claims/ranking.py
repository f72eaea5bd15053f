"""A ranker over books that a test fills, with time that a test sets."""

from gpushare.core.claims.model import ClassRecord, Holding
from gpushare.core.node_names import NodeNames
from gpushare.core.policy import Policy, load_policy
from gpushare.core.ranking import Ranking
from gpushare.explain.claim_books import ClaimBooks
from gpushare.explain.claim_records import ClaimRecord
from gpushare.extender.claims.ranker import ClaimRanker, Ranked
from gpushare.extender.managed_resources import ManagedResource
from gpushare.wire.annotations import ALIYUN
from gpushare.wire.dra.selectors import Selectors
from tests.support.claim_values import DRIVER, GIB, allocated, device, pod_with, slice_of

OURS = ClassRecord("gpu", (f"device.driver == '{DRIVER}'",))


class RankingWorld:
    """Books, and a ranker over them."""

    def __init__(self, policy: Policy | None = None) -> None:
        self.now = 0.0
        self.is_ready = True
        self.books = ClaimBooks(DRIVER, GIB)
        self.books.replace_classes([OURS])
        source = ManagedResource(
            ALIYUN,
            self.books.ledger,
            {"device-bestfit": Ranking(policy or load_policy("device-bestfit"))},
            "device-bestfit",
        )
        self.ranker = ClaimRanker(
            self.books,
            source,
            Selectors(lambda: 0.0),
            is_ready=lambda: self.is_ready,
            clock=lambda: self.now,
        )

    def nodes(self, **sizes: tuple[int, ...]) -> None:
        """Publish nodes with cards of so many GiB."""
        for node, cards in sizes.items():
            devices = (device(f"gpu-{at}", gib, node=node) for at, gib in enumerate(cards))
            self.books.slice_changed(slice_of(node, *devices))

    def claims(self, *claims: ClaimRecord) -> None:
        """Show claims as the API server does."""
        for claim in claims:
            self.books.claim_changed(claim)
            self.ranker.shown(claim)

    def rank(self, *numbers: int, uid: str = "", names: str = "a b c") -> Ranked | None:
        """Rank nodes for a pod with these claims."""
        pod = pod_with(*numbers, uid=uid or f"pod-{numbers[0]}")
        return self.ranker.rank(pod, NodeNames(names.split()))

    def best(self, *numbers: int, uid: str = "", names: str = "a b c") -> str:
        """Return the best node; "" if none is ranked."""
        ranked = self.rank(*numbers, uid=uid, names=names)
        return ranked.best if ranked is not None else ""

    def show(self, number: int, *holdings: Holding, user: str = "") -> None:
        """Show that kube-scheduler has allocated a claim."""
        users = ((f"name-{user}", user),) if user else ()
        self.claims(allocated(number, *holdings, users=users))
