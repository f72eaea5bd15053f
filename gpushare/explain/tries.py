"""Tries of node counts: whether all pods fit with so many new nodes of each shape.

Tested in `tests/unit/explain/test_need.py`.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gpushare.core.node_filters import OwnFilters
from gpushare.core.policy import Policy
from gpushare.core.snapshot import Rows, Snapshot
from gpushare.explain.placer import HostFilters, PlacementResult, Placer, PodBatch
from gpushare.explain.whatif import Shape, new_names, turn_order
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


@dataclass(frozen=True, slots=True)
class LeftOutPods:
    """Pods that no number of new nodes takes, with the number of shapes by reason."""

    batch: PodBatch
    count: int
    reasons: Mapping[str, int]


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
        """Take a new snapshot of the ledger's nodes."""
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
        lost = _lost(results)
        if not lost or not movable:
            return False
        plenty = tuple(count + min(movable, MAX_PLENTY) for count in counts)
        self._progress(plenty, len(self._results))
        with_plenty, _ = self.result(plenty)
        if _lost(with_plenty) >= lost or not all(
            with_plenty[place].all_fit for place in self._shape_of
        ):
            return False
        self._max_lost = _lost(with_plenty)
        self._results = {(plenty, len(plenty)): True}
        return True

    def left_out(self, results: Sequence[PlacementResult]) -> Iterator[LeftOutPods]:
        """Yield the pods without a place, with the reasons why no shape takes them."""
        for result in results:
            if not result.all_fit:
                reasons: Counter[str] = Counter()
                for shape in range(len(self.nodes.shapes)):
                    placer = self._placer(self.nodes.single(shape))
                    reasons.update(placer.placed(result.batch).reasons)
                yield LeftOutPods(result.batch, (result.batch.count or 0) - result.fit, reasons)

    def _placer(self, rows: Rows) -> Placer:
        """Return a placer over these nodes, without new pods."""
        nodes = self.nodes
        return Placer(nodes.snapshot, rows, nodes.filters, self._policy)


def _lost(results: Iterable[PlacementResult]) -> int:
    """Return the number of pods without a place."""
    return sum((result.batch.count or 0) - result.fit for result in results)
