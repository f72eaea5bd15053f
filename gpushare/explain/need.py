"""How many more nodes are needed: the fewest of given shapes, or the cheapest, that take all pods.

A number of nodes is tried by placing all pods, with the decisions of the extender. That more nodes
never hurt is not taken for granted, since a policy may place all pods otherwise once there is one
more: so each answer was tried itself, and so was each with one node fewer. Sums tell below which
number no placement can do. No I/O.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil

import numpy as np

from gpushare.core.model import NodeSpec
from gpushare.core.node_filters import OwnFilters
from gpushare.core.policy import Policy
from gpushare.core.selectors import NO_DEMANDS
from gpushare.core.snapshot import Bools, Snapshot
from gpushare.errors import SettingsError
from gpushare.explain.packing import Search, cost_of
from gpushare.explain.placer import PlacementResult, Wanted
from gpushare.explain.shapes import Shape
from gpushare.explain.tries import Counts, LeftOut, NewNode, Nodes, Tell, Tries
from gpushare.explain.whatif import CurrentPods, Sums, change_nodes, current_pods, sums_of
from gpushare.ledger import Ledger


@dataclass(frozen=True, slots=True)
class Asked:
    """What is asked."""

    wanted: Sequence[Wanted]
    """Pods that come, each with a count."""
    shapes: Sequence[Shape]
    """At least one, with a price each or none."""
    resource: str
    """The name of the managed resource."""
    without: Iterable[str] = ()
    """Nodes that go in any case."""
    added: Iterable[NodeSpec] = ()
    """Nodes that come in any case."""
    current: CurrentPods | None = None
    """The pods that are there; None: those of the ledger, which demand nothing."""


@dataclass(frozen=True, slots=True)
class Need:
    """The answer."""

    before: Sums
    after: Sums
    shapes: tuple[Shape, ...]
    counts: Counts
    """Nodes by shape."""
    bound: Fraction
    """What the nodes cost at least, whatever the placement."""
    moved: int
    waiting: int
    gated: int
    """How many pods scheduling gates hold back."""
    placed: tuple[PlacementResult, ...]
    """Results of the pods of nodes that go, of those that wait and of the wanted ones, together."""
    left_out: tuple[LeftOut, ...]
    nodes: tuple[NewNode, ...]
    largest: tuple[int, ...]
    """Units of the largest pod without compute that still fits, by its number of devices, from one
    on."""
    any_cores: bool
    """Whether a pod has compute then."""

    @property
    def cost(self) -> Fraction:
        """The price of all nodes that come, or their number."""
        return cost_of(self.shapes, self.counts)

    @property
    def least(self) -> bool:
        """Whether nothing can do with less."""
        return self.cost <= self.bound


def need(
    ledger: Ledger,
    asked: Asked,
    policy: Policy,
    own: OwnFilters,
    tell: Tell = lambda _counts, _tries: None,
) -> Need:
    """Return the fewest nodes, or the cheapest, so that all pods fit which these nodes could take.

    The caller's ledger and the states of `own` are changed. Raises SettingsError as
    `whatif.change_nodes`.
    """
    before = sums_of(ledger.snapshot())
    current = asked.current or current_pods(ledger)
    moved = change_nodes(ledger, current, asked.without, asked.added)
    pods = [*moved, *current.waiting, *asked.wanted]
    nodes = Nodes(ledger, own, asked.shapes, asked.resource)
    tries = Tries(nodes, pods, policy, tell)
    search = Search(tries)
    counts = search.fewest()
    if counts is None:
        raise SettingsError("no number of these nodes takes all pods by this policy")
    if tries.taken_elsewhere(counts):
        counts = search.fewest() or counts
    placed, view = tries.result(counts)
    return Need(
        before,
        sums_of(view),
        tuple(asked.shapes),
        counts,
        search.bound,
        len(moved),
        len(current.waiting),
        current.gated,
        placed,
        tuple(tries.left_out(placed)),
        tuple(nodes.shown(counts, view)),
        _largest(
            nodes.dealing().view(view), nodes.filters().open_to(NO_DEMANDS)[nodes.rows(counts)]
        ),
        bool(view.cores_used.any()),
    )


def more_of(pods: Iterable[Wanted], share: Fraction) -> list[Wanted]:
    """Return as many pods as are this share of those that run, large and small alike.

    Of the pods by size, the largest first, every 1/share-th counts, the first among them: so
    together they ask for no less than this share of the memory.
    """
    by_kind: dict[object, Wanted] = {}
    for place, pod in enumerate(sorted(pods, key=lambda each: (-each.total, each.name))):
        times = ceil((place + 1) * share) - ceil(place * share)
        if times:
            first = replace(pod, name=f"more like {pod.name}", count=0)
            known = by_kind.get((pod.kind, pod.priority), first)
            by_kind[pod.kind, pod.priority] = replace(known, count=(known.count or 0) + times)
    return list(by_kind.values())


def _largest(view: Snapshot, usable: Bools) -> tuple[int, ...]:
    """Return the units of the largest pod that still fits, by its number of devices."""
    free = -np.sort(-view.free[usable], axis=1)
    return tuple(each for each in free.max(axis=0, initial=0).tolist() if each)
