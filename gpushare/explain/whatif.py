"""Answer what-if questions: which pods would fit if some nodes went and others came.

It places pods on a copy of the books with the decisions of the extender, as the simulator does.
What kube-scheduler enforces is enforced as far as the books know it: CPU, memory and the GPU model.
No I/O.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np

from gpushare.core.decide import filter_nodes
from gpushare.core.entry import Entry
from gpushare.core.model import NodeSpec, Request
from gpushare.core.mutable_cluster import MutableCluster, Placement, fits
from gpushare.core.policy import Policy
from gpushare.core.ranking import Ranking
from gpushare.core.snapshot import Snapshot
from gpushare.core.trial_streams import mutable
from gpushare.errors import SettingsError
from gpushare.ledger import Ledger

MOST = 10_000
"""Pods that are placed at most if the question is how many fit."""

HOST = "too little CPU or memory, or another GPU model"
"""The reason if devices have room but the node still does not fit."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Equal pods to be placed. count: how many; None: as many as fit, at most MOST."""

    name: str
    request: Request
    count: int | None = 1


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
    """The answer.

    moved: the pods of nodes that go, one by one. placed: the wanted pods. gangs: the wanted groups.
    """

    before: Sums
    after: Sums
    moved: tuple[PlacementResult, ...]
    placed: tuple[PlacementResult, ...]
    gangs: tuple[GangResult, ...] = ()


def what_if(
    ledger: Ledger,
    wanted: Sequence[Wanted],
    policy: Policy,
    *,
    without: Iterable[str] = (),
    added: Iterable[NodeSpec] = (),
    gangs: Iterable[Sequence[Wanted]] = (),
) -> Outcome:
    """Return the outcome if these nodes go and come, and then these pods come, in this order.

    The pods of nodes that go are placed first, the most important one before all others. gangs:
    groups that come last, each whole or not at all. The caller's ledger is changed. Raises
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
    snapshot = ledger.snapshot()
    rows = np.array(sorted(snapshot.row.values(), key=snapshot.names.__getitem__), dtype=np.intp)
    view = mutable(snapshot, rows, empty=False)
    cluster = MutableCluster(view, Ranking(policy, fits=fits))
    homeless.sort(key=lambda entry: (-entry.priority, str(entry.ref)))
    moved = [_place(cluster, Wanted(str(entry.ref), entry.request))[0] for entry in homeless]
    placed = [_place(cluster, each)[0] for each in wanted]
    whole = [_place_gang(cluster, each) for each in gangs]
    return Outcome(before, _sums(view), tuple(moved), tuple(placed), tuple(whole))


def _place(cluster: MutableCluster, wanted: Wanted) -> tuple[PlacementResult, list[Placement]]:
    made: list[Placement] = []
    reasons: Mapping[str, int] = {}
    count = MOST if wanted.count is None else wanted.count
    while len(made) < count:
        placement = cluster.place(wanted.request)
        if placement is None:
            reasons = _reasons(cluster.view, wanted.request)
            break
        made.append(placement)
    on = Counter(cluster.view.names[placement.row] for placement in made)
    return PlacementResult(wanted, len(made), on, reasons), made


def _place_gang(cluster: MutableCluster, wanted: Sequence[Wanted]) -> GangResult:
    results, made = zip(*(_place(cluster, each) for each in wanted), strict=True)
    found = GangResult(results)
    if not found.fits:
        for placement in chain(*made):
            cluster.release(placement)
    return found


def _reasons(view: Snapshot, request: Request) -> dict[str, int]:
    result = filter_nodes(view, view.names, request)
    reasons = Counter(reason.value for reason in result.failed.values())
    if result.fit:
        reasons[HOST] = len(result.fit)
    return dict(reasons)


def _sums(view: Snapshot) -> Sums:
    capacity = np.where(view.open, view.capacity, 0)
    nodes, devices = int(capacity.any(axis=1).sum()), int((capacity > 0).sum())
    return Sums(nodes, devices, int(capacity.sum()), int(view.free.sum()))
