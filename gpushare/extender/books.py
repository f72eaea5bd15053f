"""The books of each managed resource, with what is needed to read and rank them.

A pod is judged by the books of the one managed resource it asks for.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gpushare.core.model import Request
from gpushare.core.ranking import Ranking
from gpushare.errors import MessageError
from gpushare.ledger import Ledger
from gpushare.wire.annotations import Names
from gpushare.wire.objects import Pod
from gpushare.wire.pods import request_of


@dataclass(frozen=True, slots=True)
class Books:
    """One managed resource: its names, its ledger, its policies by name, the cluster's default.

    rankings: replaced one by one when policies are made anew (see learning.py); a request keeps the
    one it has. counted: kube-scheduler counts the resource too (no ignoredByScheduler).
    """

    names: Names
    ledger: Ledger
    rankings: dict[str, Ranking]
    default_policy: str
    counted: bool = True

    def ranking(self, request: Request) -> Ranking:
        """The ranking by the policy the pod wishes, or by the default.

        Raises MessageError for a policy nobody has installed.
        """
        name = request.policy or self.default_policy
        ranking = self.rankings.get(name)
        if ranking is None:
            raise MessageError(
                f"{self.names.policy}: no policy is called {name!r};"
                f" there are: {', '.join(sorted(self.rankings))}"
            )
        return ranking


@dataclass(frozen=True, slots=True)
class Library:
    """All the books there are, in the order of the configuration."""

    shelves: tuple[Books, ...]

    def __iter__(self) -> Iterator[Books]:
        return iter(self.shelves)

    def find(self, resource: str) -> Books | None:
        """The books of that resource."""
        return next((books for books in self.shelves if books.names.resource == resource), None)

    def judge(self, pod: Pod) -> tuple[Books, Request] | None:
        """The books a pod belongs to, and what it asks there; None for a pod that asks for none.

        Raises WireError for a request that makes no sense or asks for two managed resources.
        """
        asked: list[tuple[Books, Request]] = []
        for books in self.shelves:
            request = request_of(pod, books.names)
            if request.devices:
                books.ranking(request)
                asked.append((books, request))
        if len(asked) > 1:
            names: Iterable[str] = (books.names.resource for books, _ in asked)
            raise MessageError(
                f"a pod may ask for one managed resource, not for {', '.join(names)}"
            )
        return asked[0] if asked else None
