"""Answer what-if questions: which pods would fit if some nodes went and others came.

A node that comes is of a shape: like one that is there, or of so many devices of a size.

It places pods on a copy of the books with the decisions of the extender, as the simulator does.
What kube-scheduler's own filters enforce is enforced as far as nodes and pods tell it. No I/O.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import chain, count, groupby, islice
from operator import attrgetter
from types import MappingProxyType

import numpy as np

from gpushare.core.amounts import PERCENT_AMOUNTS
from gpushare.core.model import NodeSpec
from gpushare.core.node_filters import NodeState, OwnFilters
from gpushare.core.policy import Policy
from gpushare.core.selectors import NO_DEMANDS, Demands
from gpushare.core.snapshot import Snapshot, has_accepted_model
from gpushare.errors import SettingsError
from gpushare.explain.placer import GangResult, PlacementResult, Placer, PlacerOver, Wanted
from gpushare.ledger import Ledger
from gpushare.wire.annotations import Names
from gpushare.wire.dra.objects import CLASS

_NO_DEMANDS: Mapping[str, Demands] = MappingProxyType({})
_HOSTNAME = "kubernetes.io/hostname"
_OF_CONTROLLERS = "node.kubernetes.io/"
"""Taints that kube-controller-manager writes and removes by the state of a node."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What a node that could come is like."""

    name: str
    spec: NodeSpec
    """As `bare` returns it."""
    like: NodeState | None = None
    """What kube-scheduler sees of a node that is there and is like it; None: nothing is known that
    keeps pods out."""
    price: Fraction | None = None
    """That of one node, None if none has a price."""

    @property
    def units(self) -> int:
        """Units of all devices."""
        return sum(self.spec.capacity)

    @property
    def cost(self) -> Fraction:
        """What counts against one node: its price, else that it is one."""
        return Fraction(1) if self.price is None else self.price

    def node(self, name: str, resource: str) -> tuple[NodeSpec, NodeState]:
        """Return a node of this shape; resource: the managed one."""
        spec = replace(self.spec, name=name)
        return spec, state_like(spec, self.like, resource)


def bare(spec: NodeSpec) -> NodeSpec:
    """Return what another node like this one is before any pod is there: all devices healthy."""
    size = len(spec.capacity)
    return replace(
        spec,
        healthy=(True,) * size,
        uuids=("",) * size,
        closed=None,
        counted=False,
        gone=(),
    )


def new_names(taken: Collection[str], prefix: str = "new") -> Iterator[str]:
    """Yield names for nodes that come, which no other node has."""
    return (name for number in count(1) if (name := f"{prefix}-{number}") not in taken)


def state_like(spec: NodeSpec, like: NodeState | None, resource: str) -> NodeState:
    """Return what kube-scheduler sees of a node that comes: like one that is there, but in order.

    Of one that is like none that is there nothing is known that keeps pods out.
    """
    if like is None:
        return NodeState(spec.name)
    labels = None if like.labels is None else dict(like.labels) | {_HOSTNAME: spec.name}
    amounts = like.allocatable
    if amounts is not None and resource != CLASS:  # cards of claims are no resource of the node
        names = Names.for_resource(resource)
        amounts = dict(amounts) | {resource: sum(spec.capacity)}
        for amount, of_amount in zip(PERCENT_AMOUNTS, names.percents, strict=True):
            if of_amount.resource in amounts:
                amounts[of_amount.resource] = amount.whole * len(spec.capacity)
    taints = tuple(each for each in like.taints if not each.key.startswith(_OF_CONTROLLERS))
    return NodeState(spec.name, labels, taints, allocatable=amounts)


@dataclass(frozen=True, slots=True)
class Sums:
    """The nodes with open devices, and of these devices their number, units and free units."""

    nodes: int
    devices: int
    total: int
    free: int
    stranded: int = 0
    """Units that would be free, if all compute of their devices were not given."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The answer."""

    before: Sums
    after: Sums
    moved: tuple[PlacementResult, ...]
    """The pods of nodes that go, one by one."""
    waiting: tuple[PlacementResult, ...]
    """Those that wait already."""
    placed: tuple[PlacementResult, ...]
    """The wanted pods."""
    gangs: tuple[GangResult, ...] = ()
    """The wanted groups."""
    gated: int = 0
    """How many more wait that scheduling gates hold back."""
    unknown: Mapping[str, int] = field(default_factory=dict)
    """By models that a pod accepts, joined by "|", how many of all these pods accept none that a
    node has."""


@dataclass(frozen=True, slots=True)
class CurrentPods:
    """The pods of books."""

    on: Mapping[str, Sequence[Wanted]]
    """Those that have devices, by node."""
    waiting: Sequence[Wanted]
    """Those that have none yet, the oldest first."""
    gated: int = 0
    """How many more wait that scheduling gates hold back."""


def current_pods(ledger: Ledger, demands: Mapping[str, Demands] = _NO_DEMANDS) -> CurrentPods:
    """Return the pods of a ledger that has pods. demands: of those that run, by uid."""
    on = defaultdict[str, list[Wanted]](list)
    for uid, entry in ledger.entries_and_specs()[0].items():
        known = demands.get(uid, NO_DEMANDS)
        on[entry.node].append(Wanted(str(entry.ref), entry.request, 1, known, entry.priority))
    unbound = ledger.waiting()
    waiting = [
        Wanted(str(pod.ref), pod.request, 1, pod.demands, pod.priority)
        for pod in unbound
        if not pod.demands.gated
    ]
    return CurrentPods(on, waiting, len(unbound) - len(waiting))


def what_if(
    ledger: Ledger,
    wanted: Sequence[Wanted],
    policy: Policy,
    *,
    without: Iterable[str] = (),
    added: Iterable[NodeSpec] = (),
    gangs: Iterable[Sequence[Wanted]] = (),
    own: OwnFilters | None = None,
    current: CurrentPods | None = None,
    placer_over: PlacerOver = Placer.over,
) -> Outcome:
    """Return the outcome if these nodes go and come, and then these pods come.

    The most important pods are placed first. Of equal ones those of nodes that go come first, then
    those that wait already, the oldest first, then the wanted ones in this order. gangs: groups
    that come last, each whole or not at all. own: kube-scheduler's filters; None: they keep no pod
    out. current: None: the pods of the ledger, which demand nothing. placer_over: makes the placer
    over the nodes of a snapshot. The caller's ledger is changed. Raises SettingsError as
    `change_nodes`.
    """
    before = sums_of(ledger.snapshot())
    current = current or current_pods(ledger)
    moved = change_nodes(ledger, current, without, added)
    placer = placer_over(ledger.snapshot(), own or OwnFilters(), policy)
    every = [*moved, *current.waiting, *wanted]
    by_place: dict[int, PlacementResult] = {}
    for place in in_turn(every):
        by_place[place] = placer.placed(every[place])
    results = iter(by_place[place] for place in range(len(every)))
    gangs = list(gangs)
    whole = tuple(placer.placed_at_once(gang) for gang in gangs)
    return Outcome(
        before,
        sums_of(placer.view),
        tuple(islice(results, len(moved))),
        tuple(islice(results, len(current.waiting))),
        tuple(results),
        whole,
        current.gated,
        _unknown(placer.view, [*every, *chain(*gangs)]),
    )


def change_nodes(
    ledger: Ledger, current: CurrentPods, without: Iterable[str], added: Iterable[NodeSpec]
) -> list[Wanted]:
    """Let nodes go and come in the ledger; return the pods of those that go, the most important
    first.

    Raises SettingsError for a node to remove that is not there, or a node to add that is there
    already.
    """
    homeless: list[Wanted] = []
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


def _unknown(view: Snapshot, pods: Iterable[Wanted]) -> Counter[str]:
    """Return by accepted models how many pods accept none that a node has."""
    rows = np.arange(len(view.names))
    counts: Counter[str] = Counter()
    models_of = attrgetter("request.models")
    for models, alike in groupby(sorted(pods, key=models_of), key=models_of):
        members = [*alike]
        if models and not has_accepted_model(view, rows, members[0].request).any():
            counts["|".join(models)] = sum(1 if pod.count is None else pod.count for pod in members)
    return counts


def in_turn(pods: Sequence[Wanted]) -> list[int]:
    """Return the places of the pods in the order in which they are placed: by priority."""
    return sorted(range(len(pods)), key=lambda place: -pods[place].priority)


def sums_of(view: Snapshot) -> Sums:
    """Return the sums of a cluster."""
    capacity = np.where(view.open, view.capacity, 0)
    nodes, devices = int(capacity.any(axis=1).sum()), int((capacity > 0).sum())
    unused = np.maximum(capacity - view.used, 0)
    stranded = int((unused - view.free).sum())
    return Sums(nodes, devices, int(capacity.sum()), int(view.free.sum()), stranded)
