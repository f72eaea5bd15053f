"""Answer what-if questions: which pods would fit if some nodes went and others came.

It places pods on a copy of the books with the decisions of the extender, as the simulator does.
What kube-scheduler enforces is enforced as far as the books know it: CPU, memory and the GPU model.
No I/O.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from gpushare.core.decide import filter_nodes
from gpushare.core.entry import Entry
from gpushare.core.model import NodeSpec, Request
from gpushare.core.mutable_cluster import MutableCluster, fits
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
class Sums:
    """The nodes with open devices, and of these devices their number, units and free units."""

    nodes: int
    devices: int
    total: int
    free: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """The answer. moved: the pods of nodes that go, one by one. placed: the wanted pods."""

    before: Sums
    after: Sums
    moved: tuple[PlacementResult, ...]
    placed: tuple[PlacementResult, ...]


def what_if(
    ledger: Ledger,
    wanted: Sequence[Wanted],
    policy: Policy,
    *,
    without: Iterable[str] = (),
    added: Iterable[NodeSpec] = (),
) -> Outcome:
    """Return the outcome if these nodes go and come, and then these pods come, in this order.

    The pods of nodes that go are placed first, the most important one before all others. The
    caller's ledger is changed. Raises SettingsError for a node to remove that is not there, or a
    node to add that is there already.
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
    moved = [_place(cluster, Wanted(str(entry.ref), entry.request)) for entry in homeless]
    placed = [_place(cluster, each) for each in wanted]
    return Outcome(before, _sums(view), tuple(moved), tuple(placed))


def _place(cluster: MutableCluster, wanted: Wanted) -> PlacementResult:
    on: Counter[str] = Counter()
    count = MOST if wanted.count is None else wanted.count
    while on.total() < count:
        placement = cluster.place(wanted.request)
        if placement is None:
            return PlacementResult(wanted, on.total(), on, _reasons(cluster.view, wanted.request))
        on[cluster.view.names[placement.row]] += 1
    return PlacementResult(wanted, on.total(), on)


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
