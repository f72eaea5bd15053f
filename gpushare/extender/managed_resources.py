"""The managed resources of this process, each with a ledger and rankings.

A pod belongs to the managed resource of its request.

Tested in `tests/unit/extender/test_service.py`.
"""

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from gpushare.core.decide import filter_nodes
from gpushare.core.model import ANY_NEIGHBOURS, NodeSpec, Request
from gpushare.core.node_filters import Availability, NodeState, NodeStates, OwnFilters
from gpushare.core.ranking import FallbackScorer, NoPreference, Ranking, Scorer
from gpushare.core.selectors import Demands
from gpushare.core.states.entry import Entry
from gpushare.core.trial import AUTO, Choice
from gpushare.errors import MessageError
from gpushare.extender.verbs.bind.gate import Gate
from gpushare.extender.verbs.holds import Holds
from gpushare.ledger import Ledger
from gpushare.logline import Line
from gpushare.wire.annotations import Names
from gpushare.wire.device_request import NEIGHBOURS
from gpushare.wire.objects import Pod
from gpushare.wire.pods import names_any, request_among, scheduler_of

log = logging.getLogger("gpushare.policies")

_ANY = "any device that fits"
_MAX_PLACES = 1000
"""Upper bound of the nodes with room that `allowed` checks: some 5 ms."""


@dataclass(slots=True)
class ManagedResource:
    """One managed resource: its names, its ledger, its rankings by policy, the cluster's default
    policy.
    """

    names: Names
    ledger: Ledger
    rankings: dict[str, Ranking]
    """Replaced one by one when new policies are made (see policy_refresher.py); a call under way
    keeps its ranking."""
    default_policy: str
    counted_by_scheduler: bool = True
    """Whether kube-scheduler counts the memory, too (no ignoredByScheduler)."""
    uncounted_percents: tuple[str, ...] = ()
    """The resources of the amounts in percent that kube-scheduler does not count."""
    unavailable_policies: frozenset[str] = frozenset()
    """Names of installed policies that could not be made at the start."""
    candidates: tuple[str, ...] = ()
    """The policies that `auto` chooses from."""
    choice: Choice | None = None
    """The choice of the last trial, None before the first trial."""
    pod_policies: frozenset[str] | None = None
    """The policies that a pod may choose; None: all."""
    neighbours: int = ANY_NEIGHBOURS
    """The limit of neighbours of pods that name none."""
    holds: Holds = field(default_factory=Holds)
    """The nodes that filter has offered to pods that are not bound yet."""
    filters: OwnFilters = field(default_factory=OwnFilters)
    """kube-scheduler's own node filters, for explain; verbs skip them because kube-scheduler has
    already applied them."""
    # By policy, the ranking that has failed: not used until a new ranking replaces it.
    _failed_scorers: dict[str, Scorer] = field(default_factory=dict, repr=False)
    _no_preference: Ranking = field(default_factory=lambda: Ranking(NoPreference()), repr=False)

    @property
    def ranking_policy(self) -> str:
        """The name of the policy that ranks pods that name none."""
        default = self.rankings.get(self.default_policy)
        names = (name for name, ranking in self.rankings.items() if ranking is default)
        return next((name for name in names if name != AUTO), self.default_policy)

    def ranking(self, request: Request) -> Ranking:
        """Return the ranking by the request's policy, or by the default policy.

        Raises MessageError for a policy that is not installed, that could not be made, or that
        pods may not choose here; and for a limit of neighbours where pods may not choose every
        policy.
        """
        if request.neighbours is not None and self.pod_policies is not None:
            raise MessageError(
                f"{NEIGHBOURS}: pods may not choose neighbours in this cluster: leave the"
                " annotation out"
            )
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

    def concerns(self, spec: NodeSpec, entries: Iterable[Entry]) -> bool:
        """Return whether the node shares devices, or has pods with devices that it shows no more.

        entries: the pods of the node.
        """
        if spec.capacity or spec.closed is not None:
            return True
        state = self.filters.states.get(spec.name)
        is_advertised = state is not None and state.advertises(self.names.resource)
        return is_advertised and any(entry.request.total for entry in entries)

    def judge(self, spec: NodeSpec) -> tuple[Availability, str]:
        """Return whether the node takes pods, and what kube-scheduler's own filters object to."""
        state = self.filters.states.get(spec.name) or NodeState(spec.name)
        return state.judge(self.names.resource, spec, is_counted=self.counted_by_scheduler)

    def places(
        self, request: Request, demands: Demands, names: Sequence[str] | None = None
    ) -> Iterator[str]:
        """Yield the nodes with room for the request now that kube-scheduler's own filters allow.

        names: the nodes to consider; None: all nodes. Only the first _MAX_PLACES nodes with room
        are checked.
        """
        snapshot = self.ledger.snapshot()
        candidates = [name for name in snapshot.names if name] if names is None else names
        return self.allowed(filter_nodes(snapshot, candidates, request).fit, request, demands)

    def allowed(self, names: Sequence[str], request: Request, demands: Demands) -> Iterator[str]:
        """Yield the nodes, of the first _MAX_PLACES names, that kube-scheduler's own filters
        allow.
        """
        for node in names[:_MAX_PLACES]:
            if not self.filters.obstacles(node, request, demands):
                yield node

    def scorer(self, request: Request) -> Scorer:
        """Return a scorer by the request's policy, with two fallbacks if the policy fails: the
        default policy, and no preference.

        Raises MessageError as `ranking` does.
        """
        if request.policy or request.neighbours is not None:
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
        """Stop using this ranking; log a warning once per policy, later only for debugging."""
        level = logging.DEBUG if name in self._failed_scorers else logging.WARNING
        self._failed_scorers[name] = scorer
        error_text = f"{type(error).__name__}: {error}"
        text = "policy failed and is not used until it is made anew; the default judges, or none"
        log.log(level, Line(text, policy=name, resource=self.names.resource, error=error_text))


ResourceRequest = tuple[ManagedResource, Request]
"""The managed resource of a pod, and the pod's request."""


@dataclass(frozen=True, slots=True)
class ExtenderScope:
    """The pods that kube-scheduler sends to the extender, by kube-scheduler's configuration."""

    managed: frozenset[str] = frozenset()
    """Our managedResources; empty: all pods."""
    schedulers: frozenset[str] = frozenset()
    """The scheduler names of the profiles; empty: not known."""
    binds_every_pod: bool = False
    """kube-scheduler calls bind also for pods that name no managed resource."""

    def refusal(self, pod: Pod, *, to_bind: bool = False) -> str:
        """Return why kube-scheduler does not send this pod to the extender, or "".

        to_bind: for the verb bind, otherwise for any other verb.
        """
        if self.schedulers and (scheduler := scheduler_of(pod)) not in self.schedulers:
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
    """The pods that are sent here."""
    node_states: NodeStates = field(default_factory=NodeStates)
    """The input of kube-scheduler's own node filters."""
    gate: Gate = field(default_factory=Gate)
    """The gate of groups; a group may need several resources."""

    def __post_init__(self) -> None:
        uncounted = [m.names.resource for m in self.resources if not m.counted_by_scheduler]
        uncounted += [name for m in self.resources for name in m.uncounted_percents]
        ignored = frozenset(uncounted)
        for resource in self.resources:
            resource.filters = OwnFilters(self.node_states, resource.ledger.taken, ignored)

    def __iter__(self) -> Iterator[ManagedResource]:
        return iter(self.resources)

    def find(self, name: str) -> ManagedResource | None:
        """Return the managed resource of that name."""
        return next(
            (resource for resource in self.resources if resource.names.resource == name), None
        )

    def knows(self, node: str) -> bool:
        """Return whether the API server has shown such a node."""
        return any(resource.ledger.has_node(node) for resource in self.resources)

    def resolve(self, pod: Pod) -> ResourceRequest | None:
        """Return the managed resource of a pod, and the pod's request; None for a pod without one.

        Raises WireError for a request that makes no sense or asks for two managed resources.
        """
        match = request_among(pod, [resource.names for resource in self.resources])
        if match is None:
            return None
        resource, request = self.resources[match[0]], match[1]
        if request.policy or request.neighbours is not None:  # the default policy is always there
            resource.ranking(request)
        return resource, request
