"""Answer what-if questions: which pods would fit if some nodes went and others came.

It places pods on a copy of the books with the decisions of the extender, as the simulator does.
What kube-scheduler's own filters enforce is enforced as far as nodes and pods tell it. No I/O.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice

import numpy as np

from gpushare.core.decide import filter_nodes
from gpushare.core.model import NodeSpec, Reason, Request
from gpushare.core.mutable_cluster import MutableCluster, Placement, fits
from gpushare.core.node_filters import Obstacle, OwnFilters, amounts_of
from gpushare.core.policy import Policy
from gpushare.core.ranking import Ranking
from gpushare.core.selectors import NO_DEMANDS, Demands
from gpushare.core.snapshot import Snapshot
from gpushare.core.states.entry import Entry
from gpushare.core.trial_streams import mutable
from gpushare.errors import SettingsError
from gpushare.ledger import Ledger

MOST = 10_000
"""Pods that are placed at most if the question is how many fit."""

HOST = "too little CPU or memory, or another GPU model"
"""The reason if devices have room but the node still does not fit."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Equal pods to be placed.

    count: how many; None: as many as fit, at most MOST. demands: of nodes. priority: those of a
    higher one are placed first.
    """

    name: str
    request: Request
    count: int | None = 1
    demands: Demands = NO_DEMANDS
    priority: int = 0


@dataclass(frozen=True, slots=True)
class PlacementResult:
    """How many of the wanted pods fit.

    on: how many on each node. reasons: by reason, how many nodes have no room for one more.
    """

    wanted: Wanted
    fit: int
    on: Mapping[str, int] = field(default_factory=dict)
    reasons: Mapping[str, int] = field(default_factory=dict)

    @property
    def all_fit(self) -> bool:
        """Whether all wanted pods fit."""
        return self.wanted.count is None or self.fit == self.wanted.count


@dataclass(frozen=True, slots=True)
class GangResult:
    """How many pods of a group fit at once, one result for each kind of them.

    None of them is placed unless all fit.
    """

    placed: tuple[PlacementResult, ...]

    @property
    def fits(self) -> bool:
        """Whether the group fits whole."""
        return all(each.all_fit for each in self.placed)


@dataclass(frozen=True, slots=True)
class Sums:
    """The nodes with open devices, and of these devices their number, units and free units."""

    nodes: int
    devices: int
    total: int
    free: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """The answer. moved: the pods of nodes that go, one by one; waiting: those that wait already.
    placed: the wanted pods. gangs: the wanted groups. gated: how many more wait that scheduling
    gates hold back.
    """

    before: Sums
    after: Sums
    moved: tuple[PlacementResult, ...]
    waiting: tuple[PlacementResult, ...]
    placed: tuple[PlacementResult, ...]
    gangs: tuple[GangResult, ...] = ()
    gated: int = 0


def what_if(
    ledger: Ledger,
    wanted: Sequence[Wanted],
    policy: Policy,
    *,
    without: Iterable[str] = (),
    added: Iterable[NodeSpec] = (),
    gangs: Iterable[Sequence[Wanted]] = (),
    own: OwnFilters | None = None,
) -> Outcome:
    """Return the outcome if these nodes go and come, and then these pods come.

    The most important pods are placed first. Of equal ones those of nodes that go come first, then
    those that wait already, the oldest first, then the wanted ones in this order. gangs: groups
    that come last, each whole or not at all. own: kube-scheduler's filters; None: they keep no pod
    out. The caller's ledger is changed. Raises
    SettingsError for a node to remove that is not there, or a node to add that is there already.
    """
    before = _sums(ledger.snapshot())
    homeless: list[Entry] = []
    for name in without:
        if not ledger.has_node(name):
            raise SettingsError(f"there is no node {name!r} that could go")
        homeless += [entry for books in ledger.dump(name) for entry in books.entries]
        ledger.node_gone(name)
    for spec in added:
        if ledger.has_node(spec.name):
            raise SettingsError(f"there is a node {spec.name!r} already")
        ledger.node_changed(spec)
    homeless.sort(key=lambda entry: (-entry.priority, str(entry.ref)))
    moved = [Wanted(str(each.ref), each.request, priority=each.priority) for each in homeless]
    there = ledger.waiting()
    waiting = [
        Wanted(str(pod.ref), pod.request, 1, pod.demands, pod.priority)
        for pod in there
        if not pod.demands.gated
    ]
    snapshot = ledger.snapshot()
    rows = np.array(sorted(snapshot.row.values(), key=snapshot.names.__getitem__), dtype=np.intp)
    view = mutable(snapshot, rows, empty=False)
    placer = _Placer(MutableCluster(view, Ranking(policy, fits=fits)), own or OwnFilters())
    every = [*moved, *waiting, *wanted]
    found: dict[int, PlacementResult] = {}
    for place in sorted(range(len(every)), key=lambda place: -every[place].priority):
        found[place] = placer.placed(every[place])
    results = iter(found[place] for place in range(len(every)))
    whole = tuple(placer.placed_at_once(gang) for gang in gangs)
    return Outcome(
        before,
        _sums(view),
        tuple(islice(results, len(moved))),
        tuple(islice(results, len(waiting))),
        tuple(results),
        whole,
        len(there) - len(waiting),
    )


class _Placer:
    """Places pods on a cluster, where kube-scheduler's own filters let them."""

    def __init__(self, cluster: MutableCluster, own: OwnFilters) -> None:
        self._cluster = cluster
        self._own = own
        self._more: defaultdict[str, Counter[str]] = defaultdict(Counter)

    def placed(self, wanted: Wanted) -> PlacementResult:
        """Place pods as long as they fit, and return where they are."""
        return self._place(wanted)[0]

    def placed_at_once(self, gang: Sequence[Wanted]) -> GangResult:
        """Place all pods of the group, or none; return where they would be."""
        results, made = zip(*(self._place(each) for each in gang), strict=True)
        found = GangResult(results)
        if not found.fits:
            for placement in chain(*made):
                self._cluster.release(placement)
                name = self._cluster.view.names[placement.row]
                self._more[name].subtract(amounts_of(placement.request))
        return found

    def _place(self, wanted: Wanted) -> tuple[PlacementResult, list[Placement]]:
        view, made = self._cluster.view, list[Placement]()
        count = MOST if wanted.count is None else wanted.count
        among = np.array([not self._obstacles(name, wanted) for name in view.names], dtype=bool)
        reasons: Mapping[str, int] = {}
        while len(made) < count:
            placement = self._cluster.place(wanted.request, among)
            if placement is None:
                reasons = self._reasons(wanted)
                break
            made.append(placement)
            name = view.names[placement.row]
            self._more[name].update(amounts_of(wanted.request))
            among[placement.row] = not self._obstacles(name, wanted)
        on = Counter(view.names[placement.row] for placement in made)
        return PlacementResult(wanted, len(made), on, reasons), made

    def _obstacles(self, name: str, wanted: Wanted) -> tuple[Obstacle, ...]:
        return self._own.obstacles(name, wanted.request, wanted.demands, self._more[name])

    def _reasons(self, wanted: Wanted) -> dict[str, int]:
        view = self._cluster.view
        result = filter_nodes(view, view.names, wanted.request)
        reasons = Counter[str]()
        for name in view.names:
            refused, obstacles = result.failed.get(name), self._obstacles(name, wanted)
            if refused is not Reason.NO_DEVICE and any(each.lasting for each in obstacles):
                reasons[obstacles[0].text] += 1
            elif refused is not None:
                reasons[refused.value] += 1
            else:
                reasons[obstacles[0].text if obstacles else HOST] += 1
        return dict(reasons)


def _sums(view: Snapshot) -> Sums:
    capacity = np.where(view.open, view.capacity, 0)
    nodes, devices = int(capacity.any(axis=1).sum()), int((capacity > 0).sum())
    return Sums(nodes, devices, int(capacity.sum()), int(view.free.sum()))
