"""Answer what-if questions: which pods would fit if some nodes went and others came.

A new node has a shape: that of an existing node, or a number of devices of one size.

Pods are placed on a copy of the books by the decisions of the extender, and by kube-scheduler's own
filters as far as the listed nodes and pods tell. No I/O.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, count, groupby, islice
from operator import attrgetter
from types import MappingProxyType

import numpy as np

from gpushare.core.amounts import PERCENT_AMOUNTS
from gpushare.core.explain import explain
from gpushare.core.model import NodeSpec
from gpushare.core.node_filters import NodeState, OwnFilters
from gpushare.core.policy import Policy
from gpushare.core.selectors import NO_DEMANDS, Demands
from gpushare.core.snapshot import Snapshot, has_accepted_model, units_stranded_by
from gpushare.errors import SettingsError
from gpushare.explain.placer import GangResult, PlacementResult, Placer, PlacerOver, PodBatch
from gpushare.explain.pod import node_books
from gpushare.ledger import Ledger
from gpushare.wire.annotations import Names
from gpushare.wire.dra.objects import CLASS

_NO_DEMANDS: Mapping[str, Demands] = MappingProxyType({})
_NO_HOLDS: Mapping[str, str] = MappingProxyType({})
_HOSTNAME = "kubernetes.io/hostname"
OF_CONTROLLERS = "node.kubernetes.io/"
"""Prefix of taints that kube-controller-manager writes and removes by the state of a node."""
_MAX_EXPLAINED = 5
"""The most requested batches without a place that are explained: up to 0.3 s each."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape of a possible new node."""

    name: str
    spec: NodeSpec
    """A spec that `bare` returned."""
    like: NodeState | None = None
    """The state of an existing node of this shape; None: nothing is known that keeps pods out."""

    @property
    def units(self) -> int:
        """Units of all devices."""
        return sum(self.spec.capacity)

    def node(self, name: str, resource: str) -> tuple[NodeSpec, NodeState]:
        """Return a node of this shape. resource: the managed resource."""
        spec = replace(self.spec, name=name)
        return spec, state_like(spec, self.like, resource)


def bare(spec: NodeSpec) -> NodeSpec:
    """Return the spec of a new node like this one: all devices healthy, no pods."""
    size = len(spec.capacity)
    return replace(
        spec, healthy=(True,) * size, uuids=("",) * size, closed=None, counted=False, gone=()
    )


def new_names(existing: Collection[str], prefix: str = "new") -> Iterator[str]:
    """Yield names for new nodes, different from the existing names."""
    return (name for number in count(1) if (name := f"{prefix}-{number}") not in existing)


def state_like(spec: NodeSpec, like: NodeState | None, resource: str) -> NodeState:
    """Return the state of a new node: that of an existing node, but ready and not cordoned.

    like: None: nothing is known that keeps pods out.
    """
    if like is None:
        return NodeState(spec.name)
    labels = None if like.labels is None else dict(like.labels) | {_HOSTNAME: spec.name}
    amounts = like.allocatable
    if amounts is not None and resource != CLASS:  # cards of claims are not allocatable
        names = Names.for_resource(resource)
        amounts = dict(amounts) | {resource: sum(spec.capacity)}
        for amount, of_amount in zip(PERCENT_AMOUNTS, names.percents, strict=True):
            if of_amount.resource in amounts:
                amounts[of_amount.resource] = amount.whole * len(spec.capacity)
    taints = tuple(taint for taint in like.taints if not taint.key.startswith(OF_CONTROLLERS))
    return NodeState(spec.name, labels, taints, allocatable=amounts)


@dataclass(frozen=True, slots=True)
class DeviceSums:
    """Sums over the open devices of a cluster. nodes: with open devices. total, free: units."""

    nodes: int
    devices: int
    total: int
    free: int
    stranded: int = 0
    """Units that nobody can get because all compute of their devices is allocated."""


@dataclass(frozen=True, slots=True)
class WhatIfAnswer:
    """The answer to a what-if question."""

    before: DeviceSums
    after: DeviceSums
    moved_results: tuple[PlacementResult, ...]
    """The pods of nodes that go, one result for each pod."""
    pending_results: tuple[PlacementResult, ...]
    """The pending pods."""
    requested_results: tuple[PlacementResult, ...]
    """The requested pods."""
    gangs: tuple[GangResult, ...] = ()
    """The requested groups."""
    gated: int = 0
    """Pending pods with scheduling gates; they are not placed."""
    unknown: Mapping[str, int] = field(default_factory=dict)
    """Number of pods that accept only models of no node, by these models joined by "|"."""

    @property
    def all_fit(self) -> bool:
        """Whether all requested pods and groups fit, and the pods of nodes that go."""
        results = [*self.moved_results, *self.requested_results]
        return all(result.all_fit for result in results) and all(gang.fits for gang in self.gangs)


@dataclass(frozen=True, slots=True)
class CurrentPods:
    """The pods of a cluster."""

    on: Mapping[str, Sequence[PodBatch]]
    """The pods that have devices, by node."""
    pending: Sequence[PodBatch]
    """The pending pods without scheduling gates, the oldest first."""
    gated: int = 0
    """The number of pending pods with scheduling gates."""


def current_pods(
    ledger: Ledger,
    demands: Mapping[str, Demands] = _NO_DEMANDS,
    held_nodes: Mapping[str, str] = _NO_HOLDS,
) -> CurrentPods:
    """Return the pods of a ledger. demands: of running pods, by uid. held_nodes: the nodes where
    filter holds places for pending pods, by uid.
    """
    on = defaultdict[str, list[PodBatch]](list)
    for uid, entry in ledger.entries_and_specs()[0].items():
        pod_demands = demands.get(uid, NO_DEMANDS)
        on[entry.node].append(
            PodBatch(str(entry.ref), entry.request, 1, pod_demands, entry.priority)
        )
    unbound = ledger.waiting()
    pending = [
        PodBatch(
            str(pod.ref),
            pod.request,
            demands=pod.demands,
            priority=pod.priority,
            held_node=held_nodes.get(pod.ref.uid, ""),
        )
        for pod in unbound
        if not pod.demands.gated
    ]
    return CurrentPods(on, pending, len(unbound) - len(pending))


def what_if(
    ledger: Ledger,
    requested: Sequence[PodBatch],
    policy: Policy,
    *,
    without: Iterable[str] = (),
    added: Iterable[NodeSpec] = (),
    gangs: Iterable[Sequence[PodBatch]] = (),
    filters: OwnFilters | None = None,
    current: CurrentPods | None = None,
    placer_over: PlacerOver = Placer.over,
) -> WhatIfAnswer:
    """Return the answer if these nodes go and come, and then these pods come.

    Pods are placed by priority. Of equal priority the pods that filter holds places for come first,
    then the pods of nodes that go, then the pending pods, the oldest first, then the requested pods
    in this order. gangs: groups that come last, each whole or not at all. filters: kube-scheduler's
    filters; None: they keep no pod out. current: the pods of the cluster; None: those of the
    ledger, without demands. placer_over: makes the placer over the nodes of a snapshot. The
    caller's ledger is changed. Raises SettingsError as `change_nodes`.
    """
    before, added = sums_of(ledger.snapshot()), list(added)
    current = current or current_pods(ledger)
    moved_pods = change_nodes(ledger, current, without, added)
    filters = filters or OwnFilters()
    placer = placer_over(ledger.snapshot(), filters, policy)
    pods = [*moved_pods, *current.pending, *requested]
    by_place: dict[int, PlacementResult] = {}
    for place in turn_order(pods):
        by_place[place] = placer.placed(pods[place])
    results = iter(by_place[place] for place in range(len(pods)))
    is_first = not (added or any(result.fit for result in by_place.values()))
    gangs = list(gangs)
    gang_results = tuple(placer.placed_at_once(gang) for gang in gangs)
    return WhatIfAnswer(
        before=before,
        after=sums_of(placer.view),
        moved_results=tuple(islice(results, len(moved_pods))),
        pending_results=tuple(islice(results, len(current.pending))),
        requested_results=tuple(_explained(results, ledger, filters, is_first=is_first)),
        gangs=gang_results,
        gated=current.gated,
        unknown=_unknown_models(placer.view, [*pods, *chain(*gangs)]),
    )


def _explained(
    results: Iterable[PlacementResult], ledger: Ledger, filters: OwnFilters, *, is_first: bool
) -> Iterator[PlacementResult]:
    """Yield the results, the first ones without a place with the explanation of a pod that waits.

    is_first: no node has come and no pod was placed. Otherwise remedies are not known to help.
    """
    remaining, snapshot = _MAX_EXPLAINED, ledger.snapshot()
    names = sorted(filter(None, snapshot.names))
    for result in results:
        batch = result.batch
        if result.fit or not remaining or batch.claims is not None or not batch.request.devices:
            yield result
            continue
        remaining -= 1
        books_of = partial(node_books, ledger)
        explanation = explain(
            snapshot, names, batch.request, books_of, own=filters, demands=batch.demands
        )
        is_sure = explanation.never or (is_first and explanation.remedies)
        yield replace(result, explanation=explanation if is_sure else None)


def change_nodes(
    ledger: Ledger, current: CurrentPods, without: Iterable[str], added: Iterable[NodeSpec]
) -> list[PodBatch]:
    """Remove and add nodes in the ledger; return the pods of the removed nodes by priority.

    Raises SettingsError if a node to remove does not exist, or a node to add exists already.
    """
    homeless: list[PodBatch] = []
    for name in without:
        if not ledger.has_node(name):
            raise SettingsError(f"there is no node {name!r} that could go")
        homeless += current.on.get(name, ())
        ledger.node_gone(name)
    for spec in added:
        if ledger.has_node(spec.name):
            raise SettingsError(f"there is a node {spec.name!r} already")
        ledger.node_changed(spec)
    return sorted(homeless, key=lambda pod: (-pod.priority, pod.name))


def _unknown_models(view: Snapshot, pods: Iterable[PodBatch]) -> Counter[str]:
    """Return the number of pods that accept only models of no node, by these models."""
    rows = np.arange(len(view.names))
    counts: Counter[str] = Counter()
    models_of = attrgetter("request.models")
    for models, alike in groupby(sorted(pods, key=models_of), key=models_of):
        members = [*alike]
        if models and not has_accepted_model(view, rows, members[0].request).any():
            counts["|".join(models)] = sum(1 if pod.count is None else pod.count for pod in members)
    return counts


def turn_order(pods: Sequence[PodBatch]) -> list[int]:
    """Return the indices of the pods in the order of their placement: by priority, and of equal
    priority first the pods that filter holds a place for.
    """
    return sorted(
        range(len(pods)), key=lambda place: (-pods[place].priority, not pods[place].held_node)
    )


def sums_of(view: Snapshot) -> DeviceSums:
    """Return the sums over the open devices of a cluster."""
    capacity = np.where(view.open, view.capacity, 0)
    nodes, devices = int(capacity.any(axis=1).sum()), int((capacity > 0).sum())
    stranded = sum(units_stranded_by(view, row) for row in PERCENT_AMOUNTS if row.is_exclusive)
    return DeviceSums(nodes, devices, int(capacity.sum()), int(view.free.sum()), stranded)
