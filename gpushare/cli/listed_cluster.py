"""Fill ledgers from the lists of a live cluster: of nodes and pods by annotation, and of the cards
of a DRA driver.

The ledger counts as in the extender. Only the extender knows binds and allocations under way, the
first annotations of pods with edited ones, earlier indices of devices, and its policy.

Tested in `tests/unit/cli/test_whatif.py` and `tests/unit/cli/test_whatif_claims.py`.
"""

import argparse
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpushare.cli.claims import Claims, books_of, drivers_with_memory, list_claims, list_slices
from gpushare.cli.cluster import NOT_ENDED, OF_A_DAEMON, items
from gpushare.cli.parsers import DEFAULT_POLICY
from gpushare.core.claims.model import Slice
from gpushare.core.model import NodeSpec, Request
from gpushare.core.node_filters import NodeStates, OwnFilters, amounts_of
from gpushare.core.policy import load_policy
from gpushare.core.ranking import Ranking
from gpushare.core.selectors import Demands, Taint
from gpushare.core.workload_names import workload_name
from gpushare.errors import (
    AnnotationError,
    ApiError,
    ApiNotFound,
    MessageError,
    SettingsError,
    WireError,
)
from gpushare.explain import claim_pods
from gpushare.explain.claim_placer import ClaimPlacer
from gpushare.explain.claims import NOT_SHOWN
from gpushare.explain.defrag import ListedRules
from gpushare.explain.placer import Placer, PlacerOver
from gpushare.explain.whatif import CurrentPods, current_pods
from gpushare.kube.api import Getter
from gpushare.ledger import Ledger
from gpushare.wire import objects
from gpushare.wire.annotations import ALIYUN, Names
from gpushare.wire.budgets import DisruptionBudget, read_budget
from gpushare.wire.demands import demands_of, node_state
from gpushare.wire.dra.objects import CLASS
from gpushare.wire.gpu_models import labelled_gpus
from gpushare.wire.inventory import decode_unhealthy, mib_of
from gpushare.wire.nodes import node_spec, share_by_labels, unit_of
from gpushare.wire.objects import PODS
from gpushare.wire.pods import names_any, observe_pod, pod_ref
from gpushare.wire.request_mistakes import is_whole

_TIMEOUT = 30.0
_FORBIDDEN = 403
_NO_SLICES = "no ResourceSlice has a device with memory"

_BUDGETS = "/apis/policy/v1/poddisruptionbudgets"
_CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"

_MOST_NAMED = 3
"""The most names of left-out pods in a note."""


@dataclass(frozen=True)
class DriverCards:
    """The slices of DRA drivers, and the driver of the counted devices."""

    driver: str = ""
    slices: tuple[Slice, ...] = ()
    """Of all drivers."""
    why_not: str = ""
    """Why no devices count, or ""."""
    notes: tuple[str, ...] = ()
    """Notes about unreadable slices; () for a cluster without slices."""

    @property
    def nodes(self) -> set[str]:
        """The nodes with devices of the driver."""
        return {
            device_slice.nodes.node
            for device_slice in self.slices
            if device_slice.nodes and device_slice.nodes.node and device_slice.driver == self.driver
        }


def list_cards(api: Getter, driver: str) -> DriverCards:
    """Return the slices for a driver. driver: "" for the only driver with devices with memory."""
    notes: list[str] = []
    try:
        slices = list_slices(api, notes)
    except ApiNotFound:
        return DriverCards(why_not=_NO_SLICES)
    except ApiError as error:
        why_not = f"claims are not known: {error}"
        return DriverCards(why_not=why_not, notes=() if error.refusal == _FORBIDDEN else (why_not,))
    drivers = drivers_with_memory(slices)
    if not driver and len(drivers) > 1:
        why_not = f"of the drivers {' and '.join(drivers)} one has to be named by --claims"
        notes.append(f"claims do not count: {why_not}")
        return DriverCards("", slices, why_not, tuple(notes))
    driver = driver or next(iter(drivers), "")
    if driver not in drivers:
        why_not = f"no slice of {driver} has a device with memory" if driver else _NO_SLICES
        return DriverCards(driver, slices, why_not, tuple(notes))
    return DriverCards(driver, slices, "", tuple(notes))


@dataclass(frozen=True)
class ListedResource:
    """One managed resource of a listed cluster (see `explain.pod.ExplainSource`)."""

    names: Names
    ledger: Ledger
    unit: str
    """The unit of all amounts."""
    ranking_policy: str = DEFAULT_POLICY
    notes: list[str] = field(default_factory=list)
    """Notes about unreadable objects, and about limits of the answer."""
    states: NodeStates = field(default_factory=NodeStates)
    """The states of the nodes for kube-scheduler's own filters."""
    demands: dict[str, Demands] = field(default_factory=dict)
    """Demands of running pods on nodes, by uid."""
    daemons: dict[str, Counter[str]] = field(default_factory=dict)
    """Amounts of DaemonSet pods by resource, by node name."""
    pods: dict[str, objects.Pod] = field(default_factory=dict)
    """Listed pods with devices, by uid."""
    claiming: set[str] = field(default_factory=set)
    """The uids of pods with claims."""
    driver: str = ""
    """The DRA driver of the cards, or ""."""
    held_nodes: dict[str, str] = field(default_factory=dict)
    """The nodes where filter holds places for pending pods, by uid."""
    workloads: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Number of pods that have devices or wait for some, by (namespace, KIND/NAME)."""

    @property
    def shares(self) -> bool:
        """Whether some node shares devices."""
        snapshot = self.ledger.snapshot()
        return bool(snapshot.capacity.any() or snapshot.closed.any())

    @property
    def filters(self) -> OwnFilters:
        """kube-scheduler's own filters over the nodes and pods that were listed.

        If no node advertises an amount in percent, such as compute, kube-scheduler is assumed to
        ignore the amount.
        """
        advertised = {name for state in self.states.values() for name in state.allocatable or ()}
        percents = {of_amount.resource for of_amount in self.names.percents}
        return OwnFilters(self.states, self.ledger.taken, frozenset(percents - advertised))

    @property
    def current_pods(self) -> CurrentPods:
        """The pods that have devices, and those that wait for some."""
        return current_pods(self.ledger, self.demands, self.held_nodes)

    @property
    def placer_over(self) -> PlacerOver:
        """The constructor of a placer over a snapshot of the ledger."""
        return Placer.over

    def left_out(self, spec: NodeSpec, tolerated: Collection[Taint] = ()) -> str:
        """Return what kube-scheduler's filters object to on the node, or "".

        tolerated: taints that keep no pod out.
        """
        state = self.states.get(spec.name)
        return state.without(tolerated).judge(self.names.resource, spec)[1] if state else ""

    def ranking(self, request: Request) -> Ranking:
        """Return the ranking for the request. Raises MessageError for an unknown policy."""
        try:
            return Ranking(load_policy(request.policy or self.ranking_policy))
        except SettingsError as error:
            raise MessageError(f"{self.names.policy}: {error}") from error


def list_resources(
    api: Getter, resource_names: Sequence[Names], options: argparse.Namespace
) -> list[ListedResource]:
    """List the cluster; return these resources. options: unit ("" for the inventories' unit, or a
    guess), policy, and extender_namespace.

    Raises ApiError, MessageError for an unreadable answer, and SettingsError for nodes with several
    units, or without a node that shares any of the resources.
    """
    resources = list_books(api, resource_names, list_cards(api, ""), options)
    check_shared(resources)
    return resources


def list_books(
    api: Getter,
    resource_names: Sequence[Names],
    cards: DriverCards,
    options: argparse.Namespace,
    *,
    as_shared: bool = False,
) -> list[ListedResource]:
    """Return these resources as `list_resources` does, also without a node that shares any of them.

    cards: of a DRA driver; the nodes with these cards take no pods by annotation. as_shared: nodes
    with labels of GPUs alone count as if they shared their GPUs by the first resource.
    """
    namespace = options.extender_namespace
    notes: list[str] = [*cards.notes]
    nodes = list(items(api, "/api/v1/nodes", objects.NODES, {}, notes))
    pods = list(items(api, "/api/v1/pods", objects.PODS, NOT_ENDED, notes))
    try:
        path = f"/api/v1/namespaces/{namespace}/configmaps"
        maps = list(items(api, path, objects.CONFIG_MAPS, {}, notes))
    except ApiError as error:
        maps = []
        notes.append(f"devices that ConfigMaps in {namespace} close count as open: {error}")
    unit = options.unit or unit_of(nodes, resource_names)
    if as_shared:
        others = [
            node for node in nodes if (node.metadata and node.metadata.name) not in cards.nodes
        ]
        shared = share_by_labels(others, resource_names[0], unit)
        users = sum(_has_whole_gpus(pod, shared) for pod in pods)
        on_nodes = f"{len(shared)} node{'s' * (len(shared) != 1)}"
        notes.append(f"{sum(shared.values())} GPUs on {on_nodes} count as shared by labels alone")
        if users:
            notes.append(f"pods with whole GPUs there keep none of them: {users}")
    states, policy = NodeStates(map(node_state, nodes)), options.policy or DEFAULT_POLICY
    resources = [
        ListedResource(names, Ledger(), unit, policy, notes, states) for names in resource_names
    ]
    for books in resources:
        specs = [node_spec(node, books.names, unit) for node in nodes]
        books.ledger.replace_nodes(specs)
        for config_map in maps:
            name = (config_map.metadata and config_map.metadata.name) or ""
            node_name = name.removeprefix(books.names.unhealthy)
            if node_name != name:
                try:
                    unhealthy = decode_unhealthy(config_map.data or {})
                    books.ledger.set_unhealthy(node_name, unhealthy)
                except AnnotationError as error:
                    notes.append(f"ConfigMap {name} closes no device: {error}")
        for name in cards.nodes:
            books.ledger.lend(name)
        for pod in pods:
            _take(books, pod)
    return resources


def check_shared(every: Sequence[ListedResource]) -> None:
    """Raise SettingsError if no node shares any of the resources."""
    if not any(books.shares for books in every):
        resources = ", ".join(books.names.resource for books in every)
        labelled = sum(
            labelled_gpus(state.labels or {}) > (0, 0) for state in every[0].states.values()
        )
        hint = f" ({labelled} have labels of GPUs: whatif --as-shared)" if labelled else ""
        raise SettingsError(
            f"no node shares {resources}: does a device plug-in run on the nodes with GPUs?{hint}"
        )


@dataclass(frozen=True)
class Priorities:
    """The numbers of PriorityClasses, and the default number."""

    classes: Mapping[str, int] = field(default_factory=dict)
    default: int = 0


def list_priorities(api: Getter, notes: list[str]) -> Priorities:
    """Return the priorities of the cluster's PriorityClasses; without rights none, and a note."""
    classes: dict[str, int] = {}
    default = 0
    try:
        for item in items(api, _CLASSES, objects.PRIORITY_CLASSES, {}, notes):
            classes[(item.metadata and item.metadata.name) or ""] = item.value
            default = item.value if item.global_default else default
    except ApiError as error:
        notes.append(f"PriorityClasses are not known: {error}")
    return Priorities(classes, default)


def list_rules(api: Getter, books: ListedResource, notes: list[str], now: float) -> ListedRules:
    """Return the rules for moves of pods. now: seconds since the epoch.

    A kind without the right to list it is noted, and no pod may be moved for it.
    """
    namespaces: dict[str, Mapping[str, str]] = {}
    budgets: list[DisruptionBudget] = []
    try:
        for item in items(api, "/api/v1/namespaces", objects.NAMESPACES, {}, notes):
            metadata = item.metadata or objects.Metadata()
            namespaces[metadata.name or ""] = metadata.labels or {}
    except ApiError as error:
        notes.append(f"labels of namespaces are not known: {error}")
    try:
        for budget in items(api, _BUDGETS, objects.BUDGETS, {}, notes):
            namespace = (budget.metadata and budget.metadata.namespace) or ""
            budgets.append(read_budget(namespace, budget.spec, budget.status))
    except ApiError as error:
        notes.append(f"PodDisruptionBudgets are not known, so no pod may be moved: {error}")
    return ListedRules(books.pods, namespaces, budgets, now)


def _has_whole_gpus(pod: objects.Pod, nodes: Collection[str]) -> bool:
    """Return whether the pod is on one of the nodes and asks for whole GPUs."""
    spec = pod.spec or objects.PodSpec()
    return spec.node_name in nodes and any(
        is_whole(resource)
        for container in spec.containers or ()
        for resource in (container.resources and container.resources.limits) or ()
    )


def _take(books: ListedResource, pod: objects.Pod) -> None:
    try:
        observed = observe_pod(pod, books.names)
        books.ledger.pod_changed(observed)
    except WireError as error:
        node = pod.spec and pod.spec.node_name
        if node:  # a pending pod holds nothing
            books.notes.append(f"a pod on {node} is left out: {error}")
        return
    labels = (pod.metadata and pod.metadata.labels) or {}
    if pod.spec and pod.spec.resource_claims:
        books.claiming.add(observed.ref.uid)
    if observed.request.devices:
        books.workloads[observed.ref.namespace, workload_name(observed.ref.name, labels)] += 1
    if observed.node and observed.request.devices:
        books.demands[observed.ref.uid] = demands_of(pod)
        books.pods[observed.ref.uid] = pod
    elif observed.node and OF_A_DAEMON in labels:
        books.daemons.setdefault(observed.node, Counter()).update(amounts_of(observed.request))


@dataclass(frozen=True)
class ListedCards(ListedResource):
    """The devices of a driver as a resource with the name of the class; claims hold the devices."""

    claims: Claims = field(kw_only=True)
    users: CurrentPods = field(kw_only=True)
    """Pods with allocated claims, and pending pods with claims."""
    host: ListedResource = field(kw_only=True)
    """The same nodes, with the pods by annotation."""
    like: dict[str, str] = field(default_factory=dict)
    """The existing node with the same devices, by the name of a new node."""

    @property
    def filters(self) -> OwnFilters:
        """kube-scheduler's own filters over the nodes and pods that were listed."""
        return self.host.filters

    @property
    def current_pods(self) -> CurrentPods:
        """The pods that have devices, and those that wait for some."""
        return self.users

    @property
    def placer_over(self) -> PlacerOver:
        """The constructor of a placer of pods with claims over a snapshot of the ledger."""
        return ClaimPlacer.over_books(self.claims.books, self.claims.matches, self.like)

    def left_out(self, spec: NodeSpec, tolerated: Collection[Taint] = ()) -> str:
        """Return what kube-scheduler's filters object to on the node, or ""."""
        state = self.states.get(spec.name)
        if spec.name in self.like:
            return ""
        return (
            state.without(tolerated).judge(CLASS, spec, is_counted=False)[1] if state else NOT_SHOWN
        )


def list_card_books(
    api: Getter,
    host: ListedResource,
    cards: DriverCards,
    policy: str,
    namespace: Callable[[], str] = lambda: "default",
) -> ListedCards:
    """Return the driver's devices with their claims and pods.

    host: the listed nodes. namespace: returns the default namespace of manifests. Raises ApiError,
    MessageError.
    """
    notes = [*cards.notes]
    books = books_of(cards.driver, mib_of(host.unit) << 20, host.states)
    claims = list_claims(api, books, cards.slices, notes, namespace)
    users = _users(api, host, claims, notes) if host.claiming else CurrentPods({}, ())
    return ListedCards(
        replace(ALIYUN, resource=CLASS),
        books.ledger,
        host.unit,
        policy,
        notes,
        host.states,
        daemons=host.daemons,
        driver=cards.driver,
        claims=claims,
        users=users,
        host=host,
    )


def _users(api: Getter, host: ListedResource, claims: Claims, notes: list[str]) -> CurrentPods:
    """Return the pods with claims and without device memory by annotation."""
    on = defaultdict[str, list[claim_pods.ClaimsUser]](list)
    pending: list[tuple[str, claim_pods.ClaimsUser]] = []
    wrong: list[str] = []
    gated = 0
    for pod in items(api, "/api/v1/pods", PODS, NOT_ENDED, notes):
        metadata, node = pod.metadata or objects.Metadata(), (pod.spec and pod.spec.node_name) or ""
        if not (pod.spec and pod.spec.resource_claims) or (
            metadata.deletion_timestamp and not node
        ):
            continue
        try:
            if names_any(pod, [host.names.resource]):
                continue
            ref = pod_ref(pod)
            user = claim_pods.user_of(
                pod, host.names, claims, name=str(ref), namespace=ref.namespace, anew=bool(node)
            )
        except WireError as error:
            wrong.append(f"{metadata.namespace}/{metadata.name}: {error}")
            continue
        if user is None or not user.claims:
            continue
        if node:
            on[node].append(user)
        elif user.demands.gated:
            gated += 1
        else:
            pending.append((metadata.creation_timestamp or "", user))
    if wrong:
        more = f"; and {len(wrong) - _MOST_NAMED} more" if len(wrong) > _MOST_NAMED else ""
        notes.append(f"pods with claims are left out: {'; '.join(wrong[:_MOST_NAMED])}{more}")
    pending.sort(key=lambda each: each[0])
    unit = claims.books.unit
    return CurrentPods(
        {name: claim_pods.wanted_of(users, unit) for name, users in on.items()},
        claim_pods.wanted_of((user for _, user in pending), unit),
        gated,
    )
