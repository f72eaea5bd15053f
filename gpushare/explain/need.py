"""Count the fewest new nodes of each shape that pods need.

A pod counts for the first shape that takes such a pod on an empty node. A number of nodes is tried
by placing all pods with the decisions of the extender (tries.py). More nodes may place all pods
otherwise, so a larger number of nodes may do worse: the answer was tried itself, and so was the
answer with one node fewer of each shape. No I/O.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil

import numpy as np

from gpushare.core.model import NodeSpec
from gpushare.core.node_filters import OwnFilters
from gpushare.core.policy import Policy
from gpushare.core.selectors import NO_DEMANDS, Demands
from gpushare.errors import SettingsError
from gpushare.explain.placer import PlacementResult, PodBatch
from gpushare.explain.tries import MAX_PLENTY, Counts, LeftOutPods, NewNode, Nodes, Progress, Tries
from gpushare.explain.whatif import (
    CurrentPods,
    DeviceSums,
    Shape,
    change_nodes,
    current_pods,
    sums_of,
)
from gpushare.ledger import Ledger


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeNeed:
    """The new nodes that pods need, and the cluster with these nodes."""

    before: DeviceSums
    after: DeviceSums
    shapes: tuple[Shape, ...]
    counts: Counts
    """Nodes by shape."""
    moved_pods: int
    """Pods of nodes that go."""
    pending_pods: int
    """Pending pods of the cluster."""
    gated: int
    """Pods with scheduling gates; no node is counted for them."""
    results: tuple[PlacementResult, ...]
    """Results of the moved, the pending and the requested pods, in this order."""
    left_out: tuple[LeftOutPods, ...]
    nodes: tuple[NewNode, ...]
    largest: tuple[int, ...]
    """Units of the largest pod without compute that still fits, by number of devices."""
    any_percents: bool
    """Whether a placed pod has compute, or another amount in percent."""


def need(
    ledger: Ledger,
    requested: Iterable[PodBatch],
    shapes: Sequence[Shape],
    policy: Policy,
    filters: OwnFilters,
    *,
    resource: str,
    without: Iterable[str] = (),
    added: Iterable[NodeSpec] = (),
    current: CurrentPods | None = None,
    progress: Progress = lambda _counts, _tries: None,
    demands: Demands = NO_DEMANDS,
) -> NodeNeed:
    """Return the fewest nodes of each shape that all pods need together.

    Pods that no shape takes on an empty node are left out, unless existing nodes take them.

    requested: pods that come, with numbers. shapes: at least one, the preferred one first.
    resource: the managed resource of the nodes. without, added: nodes that go and come in any case.
    current: the pods of the cluster; None: those of the ledger, without demands. demands: of the
    largest pod that still fits. The caller's ledger and the node states of `filters` are changed.
    Raises SettingsError as `whatif.change_nodes`, and if no number of nodes was found.
    """
    before = sums_of(ledger.snapshot())
    current = current or current_pods(ledger)
    moved_pods = change_nodes(ledger, current, without, added)
    nodes = Nodes(ledger, filters, shapes, resource)
    tries = Tries(nodes, [*moved_pods, *current.pending, *requested], policy, progress)
    counts = _fewest(tries)
    if counts is None:
        raise SettingsError("no number of these nodes takes all pods by this policy")
    if tries.require_places_elsewhere(counts):
        counts = _fewest(tries) or counts
    results, view = tries.result(counts)
    usable = nodes.filters.open_to(demands)[nodes.rows(counts)]
    free = -np.sort(-view.free[usable], axis=1)
    return NodeNeed(
        before=before,
        after=sums_of(view),
        shapes=tuple(shapes),
        counts=counts,
        moved_pods=len(moved_pods),
        pending_pods=len(current.pending),
        gated=current.gated,
        results=results,
        left_out=tuple(tries.left_out(results)),
        nodes=tuple(nodes.in_view(counts, view)),
        largest=tuple(units for units in free.max(axis=0, initial=0).tolist() if units),
        any_percents=view.any_percents,
    )


def more_of(pods: Iterable[PodBatch], share: Fraction) -> list[PodBatch]:
    """Return pods like this share of the running pods, large and small alike.

    Every 1/share-th pod counts, the largest first, and the first pod in any case: so together the
    returned pods request no less than this share of the memory.
    """
    by_kind: dict[object, PodBatch] = {}
    for place, pod in enumerate(sorted(pods, key=lambda pod: (-pod.request.total, pod.name))):
        number = ceil((place + 1) * share) - ceil(place * share)
        if number:
            first = replace(pod, name=f"more like {pod.name}", count=0)
            alike = by_kind.get((pod.kind, pod.priority), first)
            by_kind[pod.kind, pod.priority] = replace(alike, count=(alike.count or 0) + number)
    return list(by_kind.values())


def _fewest(tries: Tries) -> Counts | None:
    """Return counts that make all required pods fit, and with one node fewer of any shape do not.

    None: no counts were found, which happens only if more nodes do worse by this policy.
    """
    shapes = range(len(tries.nodes.shapes))
    limit = sum(pod.count or 0 for pod in tries.required) + MAX_PLENTY
    counts: Counts | None = (0,) * len(shapes)
    for shape in shapes:
        counts = counts and _grown(tries, counts, [shape], limit, shape + 1)
    if counts is None:
        counts = _grown(tries, (0,) * len(shapes), shapes, limit, len(shapes))
    return counts and _reduced(tries, counts)


def _grown(
    tries: Tries, counts: Counts, shapes: Sequence[int], limit: int, served: int
) -> Counts | None:
    """Return the counts with more nodes of these shapes, as many of each, so that pods fit.

    served: the pods of the first so many shapes have to fit. The number of nodes is not more than
    twice the lowest. None: none up to the limit does.
    """
    added, step = 0, 1
    while not tries.fits(_with_more(counts, shapes, added), served):
        if added >= limit:
            return None
        added, step = min(added + step, limit), step * 2
    return _with_more(counts, shapes, added)


def _reduced(tries: Tries, counts: Counts) -> Counts:
    """Return lower counts that make all required pods fit, and with one node fewer do not."""
    before = None
    while before != counts:
        before = counts
        for shape in range(len(counts)):
            counts = _lowered(tries, counts, shape)
    return counts


def _lowered(tries: Tries, counts: Counts, shape: int) -> Counts:
    """Return the counts with so few nodes of the shape that one fewer is too few."""

    def with_number(number: int) -> Counts:
        return (*counts[:shape], number, *counts[shape + 1 :])

    enough, step = counts[shape], 1
    while enough and tries.fits(with_number(max(enough - step, 0))):
        enough, step = max(enough - step, 0), step * 2
    too_few = max(enough - step, -1)
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        if tries.fits(with_number(middle)):
            enough = middle
        else:
            too_few = middle
    return with_number(enough)


def _with_more(counts: Counts, shapes: Iterable[int], added: int) -> Counts:
    return tuple(count + added * (shape in shapes) for shape, count in enumerate(counts))
