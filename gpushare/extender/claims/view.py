"""What may be told of claims: the one view of their books for events, metrics, pages and commands.

It changes nothing.

Tested in `tests/unit/extender/claims/test_view.py`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from gpushare.core.dealing import Asked
from gpushare.core.ranking import Ranking
from gpushare.errors import MessageError
from gpushare.explain.claims import ClaimFilters, DriverNodes
from gpushare.extender.claims.books import ClaimBooks, claim_ref
from gpushare.extender.claims.journal import Journal
from gpushare.extender.managed_resources import ManagedResource, ManagedResources
from gpushare.wire.annotations import ALIYUN
from gpushare.wire.dra.claims import CLASS, claim_request
from gpushare.wire.dra.objects import Consumer


class ClaimsView:
    """The books of claims, and what the allocator found.

    driver: whose cards they are. source: the driver's nodes as a resource named after the class,
    whose pods are claims; it serves no verb. ranking: by the policy of that name.
    """

    def __init__(
        self,
        driver: str,
        books: ClaimBooks,
        journal: Journal,
        resources: ManagedResources,
        *,
        policy: str,
        ranking: Ranking,
    ) -> None:
        self.driver = driver
        self.alone = resources.scope.claims_alone
        """Whether claims are all that is served."""
        self.books = books
        self.journal = journal
        self.problems: Callable[[], Mapping[str, str]] = lambda: {"unread": books.held_back()}
        """Returns by kind what keeps back all claims; the allocator knows more than the books."""
        self.source = ManagedResource(
            replace(ALIYUN, resource=CLASS),
            books.ledger,
            {policy: ranking},
            policy,
            filters=ClaimFilters(
                next(iter(resources)).filters,
                lambda node: any(managed.ledger.serves(node) for managed in resources),
            ),
        )

    @property
    def nodes(self) -> DriverNodes:
        """The driver's nodes, as claims are explained on them."""
        return DriverNodes(self.source, self.books.dealing)

    def users(self) -> dict[str, tuple[str, ...]]:
        """Return the pods for which each claim that has devices is reserved: names by its uid."""
        return {
            uid: tuple(each.name or "" for each in pods) for uid, pods in self._reserved().items()
        }

    def reserved(self) -> dict[str, tuple[str, ...]]:
        """Return the same with the uids of the pods."""
        return {
            uid: tuple(each.uid or "" for each in pods) for uid, pods in self._reserved().items()
        }

    def asked(self) -> dict[str, Asked]:
        """Return what each claim that has devices asks for, by its uid, if that can be told."""
        asked = {}
        for claim in self.books.allocated():
            try:
                request = claim_request(claim, CLASS)
                if request is not None:
                    asked[claim_ref(claim).uid] = request.asked(self.books.unit)
            except MessageError:
                continue
        return asked

    def held_back(self) -> dict[str, bool]:
        """Return by kind of reason whether nothing is given out because of it."""
        return {kind: bool(why) for kind, why in self.problems().items()}

    def why_held_back(self) -> str:
        """Return why nothing is given out, whatever is free; "" if that is not so."""
        why = next(filter(None, self.problems().values()), "")
        return why and f"{why}: nothing is given out"

    def why(self, uid: str) -> str:
        """Return why the pod waits, as was last found; "" if nothing was."""
        wait = self.journal.why(uid)
        if wait is not None and wait.refused:
            return wait.why
        return self.why_held_back() or (wait.why if wait else "")

    def _reserved(self) -> dict[str, Sequence[Consumer]]:
        return {claim_ref(claim).uid: claim.reserved for claim in self.books.allocated()}
