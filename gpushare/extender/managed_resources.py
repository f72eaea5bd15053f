"""The managed resources of this process: each with its ledger and its rankings.

A pod belongs to the one managed resource that it asks for.

Tested in `tests/unit/extender/test_service.py`.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from gpushare.core.decide import filter_nodes
from gpushare.core.model import Request
from gpushare.core.node_filters import NodeStates, OwnFilters
from gpushare.core.ranking import FallbackScorer, NoPreference, Ranking, Scorer
from gpushare.core.selectors import Demands
from gpushare.core.trial import AUTO, Choice
from gpushare.errors import MessageError
from gpushare.explain.pod import resolve
from gpushare.extender.verbs.bind.gate import Gate
from gpushare.extender.verbs.holds import Holds
from gpushare.ledger import Ledger
from gpushare.logline import Line
from gpushare.wire.annotations import Names
from gpushare.wire.objects import Pod
from gpushare.wire.pods import names_any, scheduler_of

log = logging.getLogger("gpushare.policies")

_ANY = "any device that fits"
_MOST_PLACES = 1000
"""Nodes with room that are looked at: some 5 ms."""


@dataclass(slots=True)
class ManagedResource:
    """One managed resource: its names, its ledger, its rankings by policy, the cluster's default
    policy.
    """

    names: Names
    ledger: Ledger
    rankings: dict[str, Ranking]
    """Replaced one by one when new policies are made (see policy_refresher.py); a request keeps the
    one it has."""
    default_policy: str
    counted_by_scheduler: bool = True
    """Whether kube-scheduler counts the memory, too (no ignoredByScheduler)."""
    cores_counted_by_scheduler: bool = True
    """The same of the compute."""
    unavailable_policies: frozenset[str] = frozenset()
    """Names of installed policies that could not be made at the start."""
    candidates: tuple[str, ...] = ()
    """The policies that `auto` chooses from."""
    choice: Choice | None = None
    """What the last trial chose, None before the first one."""
    pod_policies: frozenset[str] | None = None
    """The policies that a pod may choose; None: all."""
    holds: Holds = field(default_factory=Holds)
    """What filter has promised to pods that are not bound yet."""
    filters: OwnFilters = field(default_factory=OwnFilters)
    """Kube-scheduler's own, which no verb asks: kube-scheduler has asked them before."""
    # By name, the ranking that has failed: not used until another has replaced it.
    _failed_scorers: dict[str, Scorer] = field(default_factory=dict, repr=False)
    _no_preference: Ranking = field(default_factory=lambda: Ranking(NoPreference()), repr=False)

    @property
    def ranking_policy(self) -> str:
        """The name of the policy that ranks pods that name none."""
        default = self.rankings.get(self.default_policy)
        own = (name for name, ranking in self.rankings.items() if ranking is default)
        return next((name for name in own if name != AUTO), self.default_policy)

    def ranking(self, request: Request) -> Ranking:
        """Return the ranking by the policy that the pod asks for, or by the default.

        Raises MessageError for a policy that is not installed, that could not be made, or that
        pods may not choose here.
        """
        name = request.policy or self.default_policy
        if request.policy and self.pod_policies is not None and name not in self.pod_policies:
            may = ", ".join(sorted(self.pod_policies)) or "none"
            raise MessageError(
                f"{self.names.policy}: pods may not choose {name!r} in this cluster; they may"
                f" choose: {may}; or leave the annotation out"
            )
        ranking = self.rankings.get(name)
        if ranking is None:
            wrong = f"no policy is called {name!r}"
            if name in self.unavailable_policies:
                wrong = (
                    f"policy {name!r} could not be made when gpushare started (its log says why)"
                )
            there_are = ", ".join(sorted(self.rankings))
            raise MessageError(f"{self.names.policy}: {wrong}; there are: {there_are}")
        return ranking

    def places(
        self, request: Request, demands: Demands, names: Sequence[str] | None = None
    ) -> Iterator[str]:
        """Return the nodes (of those named, else of all) with room for such a pod now that
        kube-scheduler does not leave out; of very many with room the first are looked at.
        """
        snapshot = self.ledger.snapshot()
        named = [name for name in snapshot.names if name] if names is None else names
        return self.allowed(filter_nodes(snapshot, named, request).fit, request, demands)

    def allowed(self, names: Sequence[str], request: Request, demands: Demands) -> Iterator[str]:
        """Yield those of the first named nodes that kube-scheduler does not leave out itself."""
        for node in names[:_MOST_PLACES]:
            if not self.filters.obstacles(node, request, demands):
                yield node

    def scorer(self, request: Request) -> Scorer:
        """Return the ranking of the request with its fallbacks, should its policy fail: the default
        policy, and then no preference.

        Raises MessageError as `ranking` does.
        """
        self.ranking(request)
        names = dict.fromkeys((request.policy or self.default_policy, self.default_policy))
        rankings = ((name, self.rankings.get(name)) for name in names)
        sound = [
            (name, ranking)
            for name, ranking in rankings
            if ranking is not None and self._failed_scorers.get(name) is not ranking
        ]
        return FallbackScorer([*sound, (_ANY, self._no_preference)], self._disable)

    def _disable(self, name: str, scorer: Scorer, error: BaseException) -> None:
        """Stop using this ranking; log it once for each policy, later only for debugging."""
        level = logging.DEBUG if name in self._failed_scorers else logging.WARNING
        self._failed_scorers[name] = scorer
        error_text = f"{type(error).__name__}: {error}"
        text = "policy failed and is not used until it is made anew; the default judges, or none"
        log.log(level, Line(text, policy=name, resource=self.names.resource, error=error_text))


ResourceRequest = tuple[ManagedResource, Request]
"""The managed resource that a pod asks for, and its request there."""


@dataclass(frozen=True, slots=True)
class ExtenderScope:
    """Which pods kube-scheduler sends to the extender, as far as its configuration says."""

    managed: frozenset[str] = frozenset()
    """Our managedResources; empty: all pods."""
    schedulers: frozenset[str] = frozenset()
    """The names of its profiles; empty: not known."""
    binds_every_pod: bool = False
    """Bind is called for pods as well that name none of the managed resources."""

    def refusal(self, pod: Pod, *, to_bind: bool = False) -> str:
        """Return why kube-scheduler does not send this pod to the extender, or "".

        to_bind: to have it bound, else for any other verb.
        """
        scheduler = scheduler_of(pod)
        if self.schedulers and scheduler not in self.schedulers:
            names = ", ".join(sorted(self.schedulers))
            return (
                f"its schedulerName is {scheduler[:80]!r}, and only pods of {names} are bound here:"
                " the profiles of --scheduler-config, without it default-scheduler; have its own"
                " scheduler bind it, or give that one's file"
            )
        if to_bind and self.binds_every_pod:
            return ""
        if self.managed and not names_any(pod, self.managed):
            names = ", ".join(sorted(self.managed))
            return (
                f"it names none of the managedResources ({names}), so kube-scheduler does not have"
                " it bound here; look who calls, and at managedResources in --scheduler-config;"
                " if kube-scheduler has all pods bound here, give its file"
            )
        return ""


@dataclass(frozen=True, slots=True)
class ManagedResources:
    """All managed resources, in the order of the configuration."""

    resources: tuple[ManagedResource, ...]
    scope: ExtenderScope = ExtenderScope()
    """Which pods are sent here."""
    node_states: NodeStates = field(default_factory=NodeStates)
    """What kube-scheduler's own filters see of the nodes."""
    gate: Gate = field(default_factory=Gate)
    """Where the pods of a group wait for each other; a group may need several resources."""

    def __post_init__(self) -> None:
        uncounted = [m.names.resource for m in self.resources if not m.counted_by_scheduler]
        uncounted += [m.names.cores for m in self.resources if not m.cores_counted_by_scheduler]
        ignored = frozenset(uncounted)
        for managed in self.resources:
            managed.filters = OwnFilters(self.node_states, managed.ledger.taken, ignored)

    def __iter__(self) -> Iterator[ManagedResource]:
        return iter(self.resources)

    def find(self, resource: str) -> ManagedResource | None:
        """Return the managed resource of that name."""
        return next(
            (managed for managed in self.resources if managed.names.resource == resource), None
        )

    def knows(self, node: str) -> bool:
        """Return whether the API server has shown such a node."""
        return any(managed.ledger.has_node(node) for managed in self.resources)

    def resolve(self, pod: Pod) -> ResourceRequest | None:
        """Return the managed resource that a pod asks for, and its request there; None if it
        asks for none.

        Raises WireError for a request that makes no sense or asks for two managed resources.
        """
        return resolve(pod, self.resources)
