"""Count the fewest new nodes of each shape that pods need.

A pod counts for the first shape that takes such a pod on an empty node. A number of nodes is tried
by placing all pods with the decisions of the extender. More nodes may place all pods otherwise, so
a larger number of nodes may do worse: the answer was tried itself, and so was the answer with one
node fewer of each shape. No I/O.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil

import numpy as np

from gpushare.core.model import NodeSpec
from gpushare.core.node_filters import OwnFilters
from gpushare.core.policy import Policy
from gpushare.core.selectors import NO_DEMANDS, Demands
from gpushare.core.snapshot import Rows, Snapshot
from gpushare.errors import SettingsError
from gpushare.explain.placer import HostFilters, PlacementResult, Placer, PodBatch
from gpushare.explain.whatif import (
    CurrentPods,
    DeviceSums,
    Shape,
    change_nodes,
    current_pods,
    new_names,
    sums_of,
    turn_order,
)
from gpushare.ledger import Ledger

Counts = tuple[int, ...]
"""The number of new nodes by shape."""

Progress = Callable[[Counts, int], object]
"""Called before each try with the node counts and the number of earlier tries."""

MAX_PLENTY = 2_000
"""Nodes of each shape in the try that shows which pods fit if others move to new nodes."""


@dataclass(frozen=True, slots=True)
class NewNode:
    """A new node: the index of its shape, and what is in use on each device."""

    name: str
    shape: int
    used: tuple[int, ...]
    """Units by device."""
    percents: tuple[tuple[int, ...], ...]
    """For each of `PERCENT_AMOUNTS`, percent by device."""


class Nodes:
    """The existing nodes, and as many new nodes of each shape as a try has needed so far.

    New nodes stand among the existing ones as if `whatif --add` had named them. snapshot, filters:
    of all these nodes.
    """

    def __init__(
        self, ledger: Ledger, filters: OwnFilters, shapes: Sequence[Shape], resource: str
    ) -> None:
        self._ledger = ledger
        self._own_filters = filters
        self._resource = resource
        self.shapes = shapes
        self._existing = ledger.snapshot().row.keys()
        self._created = [0] * len(shapes)
        self._take_snapshot()

    def _take_snapshot(self) -> None:
        self.snapshot = self._ledger.snapshot()
        self.filters = HostFilters(self._own_filters, self.snapshot.names)

    def rows(self, counts: Counts) -> Rows:
        """Return intp (K,): the existing nodes and this many of each shape, sorted by name."""
        created = self._created
        for shape, count in enumerate(counts):
            for place in range(created[shape], count):
                name = _ledger_name(shape, place)
                spec, state = self.shapes[shape].node(name, self._resource)
                self._ledger.node_changed(spec)
                self._own_filters.states.put(state)
        self._created = [max(pair) for pair in zip(created, counts, strict=True)]
        if self._created != created:
            self._take_snapshot()
        row = self.snapshot.row
        by_name = {name: row[name] for name in self._existing}
        by_name |= {new_name: row[name] for name, new_name in self.new_names(counts).items()}
        return np.array([by_name[name] for name in sorted(by_name)], dtype=np.intp)

    def new_names(self, counts: Counts) -> dict[str, str]:
        """Return the names of the new nodes by their names in the ledger."""
        names = (
            _ledger_name(shape, place)
            for shape, count in enumerate(counts)
            for place in range(count)
        )
        return dict(zip(names, new_names(self._existing), strict=False))

    def single(self, shape: int) -> Rows:
        """Return intp (1,): one node of the shape."""
        self.rows(tuple(int(index == shape) for index in range(len(self.shapes))))
        return np.array([self.snapshot.row[_ledger_name(shape, 0)]], dtype=np.intp)

    def in_view(self, counts: Counts, view: Snapshot) -> list[NewNode]:
        """Return the new nodes with what is in use there in this view."""
        shapes = [shape for shape, count in enumerate(counts) for _ in range(count)]
        nodes = []
        for (name, new_name), shape in zip(self.new_names(counts).items(), shapes, strict=True):
            row, devices = view.row[name], len(self.shapes[shape].spec.capacity)
            used = tuple(view.used[row, :devices].tolist())
            percents = tuple(tuple(array[row, :devices].tolist()) for array in view.percents_used)
            nodes.append(NewNode(new_name, shape, used, percents))
        return nodes


def _ledger_name(shape: int, place: int) -> str:
    """Return a name that no node of a cluster has."""
    return f"{shape} {place}"


class Tries:
    """Tries of node counts. Each try places all pods; its result is cached.

    pods: in the order of the answer. required: the pods that an empty node of some shape takes.
    """

    def __init__(
        self, nodes: Nodes, pods: Sequence[PodBatch], policy: Policy, progress: Progress
    ) -> None:
        self.nodes = nodes
        self._pods = pods
        self._policy = policy
        self._progress = progress
        self._order = turn_order(pods)
        self._results: dict[tuple[Counts, int], bool] = {}
        by_kind: dict[object, int | None] = {}
        for pod in pods:
            if pod.kind not in by_kind:
                by_kind[pod.kind] = self._first_shape(pod)
        self._shape_of = {
            place: shape
            for place, pod in enumerate(pods)
            if (shape := by_kind[pod.kind]) is not None
        }
        self.required = [pods[place] for place in self._shape_of]
        self._max_lost = sum(pod.count or 0 for pod in pods)
        self._last: tuple[Counts, tuple[PlacementResult, ...], Snapshot] | None = None

    def _first_shape(self, pod: PodBatch) -> int | None:
        """Return the first shape that takes such a pod on an empty node; None if there is none."""
        single = replace(pod, count=1)
        shapes = range(len(self.nodes.shapes))
        return next((n for n in shapes if self._placer(self.nodes.single(n)).put(single)), None)

    def fits(self, counts: Counts, served: int | None = None) -> bool:
        """Return whether all required pods fit with these new nodes.

        served: only the pods of the first so many shapes have to fit. None: the pods of all shapes,
        and of the pods that no new node takes as many as are known to fit.
        """
        number = len(counts) if served is None else served
        key = counts, number
        if key not in self._results:
            self._progress(counts, len(self._results))
            self._results[key] = self._all_fit(counts, number)
        return self._results[key]

    def _all_fit(self, counts: Counts, served: int) -> bool:
        placer, lost = self._placer(self.nodes.rows(counts)), 0
        for place in self._order:
            pod = self._pods[place]
            missing = (pod.count or 0) - len(placer.put(pod))
            shape = self._shape_of.get(place)
            if shape is None:
                lost += missing
            elif missing and shape < served:
                return False
            if lost > self._max_lost and served == len(counts):
                return False
        return True

    def result(self, counts: Counts) -> tuple[tuple[PlacementResult, ...], Snapshot]:
        """Return the results of all pods with these new nodes, and the nodes with the pods."""
        if self._last is None or self._last[0] != counts:
            placer = self._placer(self.nodes.rows(counts))
            results = {place: placer.placed(self._pods[place]) for place in self._order}
            names = self.nodes.new_names(counts)
            for place, result in results.items():
                on = {names.get(name, name): pods for name, pods in result.on.items()}
                results[place] = replace(result, on=on)
            in_order = tuple(results[place] for place in range(len(self._pods)))
            self._last = counts, in_order, placer.view
        return self._last[1:]

    def require_places_elsewhere(self, counts: Counts) -> bool:
        """Require places for pods that no new node takes, but that existing nodes have room for
        once other pods move to new nodes. Return whether there are such pods.
        """
        results, view = self.result(counts)
        new = {node.name for node in self.nodes.in_view(counts, view)}
        movable = sum(
            sum(pods for name, pods in results[place].on.items() if name not in new)
            for place in self._shape_of
        )
        lost = sum(result.missing for result in results)
        if not lost or not movable:
            return False
        plenty = tuple(count + min(movable, MAX_PLENTY) for count in counts)
        self._progress(plenty, len(self._results))
        with_plenty, _ = self.result(plenty)
        lost_with_plenty = sum(result.missing for result in with_plenty)
        if lost_with_plenty >= lost or not all(
            with_plenty[place].all_fit for place in self._shape_of
        ):
            return False
        self._max_lost = lost_with_plenty
        self._results = {(plenty, len(plenty)): True}
        return True

    def left_out(self, results: Sequence[PlacementResult]) -> Iterator[PlacementResult]:
        """Yield the pods without a place, with the reasons why no shape takes them."""
        for result in results:
            if not result.all_fit:
                reasons: Counter[str] = Counter()
                for shape in range(len(self.nodes.shapes)):
                    placer = self._placer(self.nodes.single(shape))
                    reasons.update(placer.placed(result.batch).reasons)
                yield replace(result, on={}, reasons=reasons)

    def _placer(self, rows: Rows) -> Placer:
        """Return a placer over these nodes, without new pods."""
        nodes = self.nodes
        return Placer(nodes.snapshot, rows, nodes.filters, self._policy)


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
    left_out: tuple[PlacementResult, ...]
    """Pods that no number of new nodes takes, with the number of shapes by reason."""
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
