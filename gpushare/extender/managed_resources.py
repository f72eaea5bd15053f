"""The books of each managed resource, with what is needed to read and rank them.

A pod is judged by the books of the one managed resource it asks for.
"""

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from gpushare.core.guarded import Guarded, Indifferent
from gpushare.core.model import Request
from gpushare.core.ranking import Judge, Ranking
from gpushare.errors import MessageError
from gpushare.extender.logs.formatters import Line
from gpushare.ledger import Ledger
from gpushare.wire.annotations import Names
from gpushare.wire.objects import Pod
from gpushare.wire.pods import names_any, request_of, scheduler_of

log = logging.getLogger("gpushare.policies")

_ANY = "any device that fits"


@dataclass(frozen=True, slots=True)
class Books:
    """One managed resource: its names, its ledger, its policies by name, the cluster's default.

    rankings: replaced one by one when policies are made anew (see learning.py); a request keeps the
    one it has. counted: kube-scheduler counts the resource too (no ignoredByScheduler). left_out:
    names of installed policies that could not be made at the start.
    """

    names: Names
    ledger: Ledger
    rankings: dict[str, Ranking]
    default_policy: str
    counted: bool = True
    left_out: frozenset[str] = frozenset()
    # By name, the ranking that has failed: asked no more until another has taken its place.
    _failed: dict[str, Judge] = field(default_factory=dict, repr=False)
    _indifferent: Ranking = field(default_factory=lambda: Ranking(Indifferent()), repr=False)

    def ranking(self, request: Request) -> Ranking:
        """The ranking by the policy the pod wishes, or by the default.

        Raises MessageError for a policy nobody has installed, or that was left out.
        """
        name = request.policy or self.default_policy
        ranking = self.rankings.get(name)
        if ranking is None:
            wrong = f"no policy is called {name!r}"
            if name in self.left_out:
                wrong = (
                    f"policy {name!r} could not be made when gpushare started (its log says why)"
                )
            there_are = ", ".join(sorted(self.rankings))
            raise MessageError(f"{self.names.policy}: {wrong}; there are: {there_are}")
        return ranking

    def judge(self, request: Request) -> Judge:
        """The ranking of the request, and what judges in its place should its policy fail: the
        default policy, and then none at all.

        Raises MessageError as `ranking` does.
        """
        self.ranking(request)
        names = dict.fromkeys((request.policy or self.default_policy, self.default_policy))
        rankings = ((name, self.rankings.get(name)) for name in names)
        sound = [
            (name, ranking)
            for name, ranking in rankings
            if ranking is not None and self._failed.get(name) is not ranking
        ]
        return Guarded([*sound, (_ANY, self._indifferent)], self._tell_failed)

    def _tell_failed(self, name: str, judge: Judge, error: BaseException) -> None:
        """Ask this ranking no more; said once for each policy, and for debugging ever after."""
        level = logging.DEBUG if name in self._failed else logging.WARNING
        self._failed[name] = judge
        said = f"{type(error).__name__}: {error}"
        text = "policy failed and is not used until it is made anew; the default judges, or none"
        log.log(level, Line(text, policy=name, resource=self.names.resource, error=said))


@dataclass(frozen=True, slots=True)
class Served:
    """Which pods kube-scheduler sends us, as far as its configuration says.

    managed: our managedResources; empty: all pods come. schedulers: the names of its profiles;
    empty: not known.
    """

    managed: frozenset[str] = frozenset()
    schedulers: frozenset[str] = frozenset()

    def refusal(self, pod: Pod) -> str:
        """Why kube-scheduler does not send us this pod, or ""."""
        scheduler = scheduler_of(pod)
        if self.schedulers and scheduler not in self.schedulers:
            ours = ", ".join(sorted(self.schedulers))
            return (
                f"its schedulerName is {scheduler[:80]!r}, and --scheduler-config has profiles for"
                f" {ours} alone; have its own scheduler bind it"
            )
        if self.managed and not names_any(pod, self.managed):
            ours = ", ".join(sorted(self.managed))
            return (
                f"it names none of the managedResources ({ours}), so kube-scheduler does not have"
                " it bound here; look who calls, and at managedResources in --scheduler-config"
            )
        return ""


@dataclass(frozen=True, slots=True)
class Library:
    """All the books there are, in the order of the configuration. served: whose pods come."""

    shelves: tuple[Books, ...]
    served: Served = Served()

    def __iter__(self) -> Iterator[Books]:
        return iter(self.shelves)

    def find(self, resource: str) -> Books | None:
        """The books of that resource."""
        return next((books for books in self.shelves if books.names.resource == resource), None)

    def knows(self, node: str) -> bool:
        """Whether the API server has shown such a node."""
        return any(books.ledger.knows(node) for books in self.shelves)

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
