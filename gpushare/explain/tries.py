"""Tries: whether all pods fit if so many nodes of each shape come. Each places all pods.

Tested in `tests/unit/explain/test_need.py`.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gpushare.core.node_filters import OwnFilters
from gpushare.core.policy import Policy
from gpushare.core.snapshot import Rows, Snapshot
from gpushare.explain.placer import HostFilters, PlacementResult, Placer, Wanted
from gpushare.explain.whatif import Shape, in_turn, new_names
from gpushare.ledger import Ledger

Counts = tuple[int, ...]
"""How many nodes come, by shape."""

Tell = Callable[[Counts, int], object]
"""Called before each try with its nodes by shape, and how many tries there were."""

_OF_A_POD = 500
"""Nodes in whose time a pod is placed, however few nodes there are."""

MOST_PLENTY = 2_000
"""Nodes of each shape that are tried to see what pods would fit if others went elsewhere."""


@dataclass(frozen=True, slots=True)
class NewNode:
    """A node that comes: the number of its shape, the units in use on each device, and for each
    amount in percent the percents in use on each device.
    """

    name: str
    shape: int
    used: tuple[int, ...]
    percents: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Pods that no number of these nodes takes, how many, and why, by reason on how many shapes."""

    wanted: Wanted
    count: int
    reasons: Mapping[str, int]


class Nodes:
    """The nodes that are there, and as many of each shape as have been asked for so far.

    Those that come stand among the others as if they were named as `whatif --add` names them.
    snapshot, filters: of all of them.
    """

    def __init__(
        self, ledger: Ledger, own: OwnFilters, shapes: Sequence[Shape], resource: str
    ) -> None:
        self._ledger = ledger
        self._own = own
        self._resource = resource
        self.shapes = shapes
        self._existing = ledger.snapshot().row.keys()
        self._created = [0] * len(shapes)
        self._look()

    def _look(self) -> None:
        """Look anew at the nodes of the ledger."""
        self.snapshot = self._ledger.snapshot()
        self.filters = HostFilters(self._own, self.snapshot.names)

    def rows(self, counts: Counts) -> Rows:
        """Return intp (K,): the nodes that are there and this many of each shape, by name."""
        created = self._created
        for number, count in enumerate(counts):
            for place in range(created[number], count):
                name = _ledger_name(number, place)
                spec, state = self.shapes[number].node(name, self._resource)
                self._ledger.node_changed(spec)
                self._own.states.put(state)
        self._created = [max(pair) for pair in zip(created, counts, strict=True)]
        if self._created != created:
            self._look()
        row = self.snapshot.row
        by_name = {name: row[name] for name in self._existing}
        by_name |= {shown: row[name] for name, shown in self.names(counts).items()}
        return np.array([by_name[name] for name in sorted(by_name)], dtype=np.intp)

    def names(self, counts: Counts) -> dict[str, str]:
        """Return by name in the ledger how the nodes that come are called."""
        names = (
            _ledger_name(number, n) for number, count in enumerate(counts) for n in range(count)
        )
        return dict(zip(names, new_names(self._existing), strict=False))

    def alone(self, number: int) -> Rows:
        """Return intp (1,): one node of the shape."""
        self.rows(tuple(int(each == number) for each in range(len(self.shapes))))
        return np.array([self.snapshot.row[_ledger_name(number, 0)]], dtype=np.intp)

    def shown(self, counts: Counts, view: Snapshot) -> list[NewNode]:
        """Return the nodes that come, as they are in this view."""
        shapes = [number for number, count in enumerate(counts) for _ in range(count)]
        nodes = []
        for (name, shown), number in zip(self.names(counts).items(), shapes, strict=True):
            row, devices = view.row[name], len(self.shapes[number].spec.capacity)
            used = tuple(view.used[row, :devices].tolist())
            percents = tuple(tuple(array[row, :devices].tolist()) for array in view.percents_used)
            nodes.append(NewNode(shown, number, used, percents))
        return nodes


def _ledger_name(shape: int, place: int) -> str:
    """Return a name that no node of a cluster has."""
    return f"{shape} {place}"


class Tries:
    """Tries of numbers of nodes: each places all pods. Tries are remembered.

    pods: in the order of the answer. taken: those that an empty node of some shape takes. work:
    pods that were placed, each with the nodes that were looked at.
    """

    def __init__(self, nodes: Nodes, pods: Sequence[Wanted], policy: Policy, tell: Tell) -> None:
        self.nodes = nodes
        self._pods = pods
        self._policy = policy
        self._tell = tell
        self._turn = in_turn(pods)
        self._known: dict[Counts, bool] = {}
        self._takers: dict[object, tuple[int, ...]] = {}
        self._have_to_fit = {place for place, pod in enumerate(pods) if self.takers(pod)}
        self.taken = [pod for pod in pods if self.takers(pod)]
        self._most_lost = sum(pod.count or 0 for pod in pods)
        self._last: tuple[Counts, tuple[PlacementResult, ...], Snapshot] | None = None
        self.work = 0

    def takers(self, pod: Wanted) -> tuple[int, ...]:
        """Return the shapes of which an empty node takes such a pod."""
        if pod.kind not in self._takers:
            single = replace(pod, count=1)
            every = range(len(self.nodes.shapes))
            self._takers[pod.kind] = tuple(
                n for n in every if self.placer(self.nodes.alone(n)).put(single)
            )
        return self._takers[pod.kind]

    def fits(self, counts: Counts) -> bool:
        """Return whether all pods fit that a new node takes, and of the others as many as are
        known to, if this many nodes come.
        """
        if counts in self._known:
            return self._known[counts]
        self._tell(counts, len(self._known))
        placer, lost = self.placer(self.nodes.rows(counts)), 0
        self._known[counts] = True
        for place in self._turn:
            pod = self._pods[place]
            put = len(placer.put(pod))
            self.work += put * (_OF_A_POD + len(placer.view.names))
            lost += (pod.count or 0) - put
            if put != pod.count and (place in self._have_to_fit or lost > self._most_lost):
                self._known[counts] = False
                break
        return self._known[counts]

    def result(self, counts: Counts) -> tuple[tuple[PlacementResult, ...], Snapshot]:
        """Return where the pods are if this many nodes come, and the nodes then."""
        if self._last is None or self._last[0] != counts:
            placer = self.placer(self.nodes.rows(counts))
            results = {place: placer.placed(self._pods[place]) for place in self._turn}
            names = self.nodes.names(counts)
            for place, result in results.items():
                on = {names.get(name, name): pods for name, pods in result.on.items()}
                results[place] = replace(result, on=on)
            placed = tuple(results[place] for place in range(len(self._pods)))
            self._last = counts, placed, placer.view
        return self._last[1:]

    def taken_elsewhere(self, counts: Counts) -> bool:
        """Have as many as possible fit, too, of the pods that no new node takes: some may fit on
        others if there are more new ones for the pods there. Return whether there are such pods.
        """
        placed, view = self.result(counts)
        new = {each.name for each in self.nodes.shown(counts, view)}
        movable = sum(
            sum(pods for name, pods in placed[place].on.items() if name not in new)
            for place in self._have_to_fit
        )
        lost = _lost(placed)
        if not lost or not movable:
            return False
        plenty = tuple(each + min(movable, MOST_PLENTY) for each in counts)
        self._tell(plenty, len(self._known))
        with_plenty, _ = self.result(plenty)
        if _lost(with_plenty) >= lost or not all(
            with_plenty[place].all_fit for place in self._have_to_fit
        ):
            return False
        self._most_lost = _lost(with_plenty)
        self._known = {plenty: True}
        return True

    def left_out(self, placed: Sequence[PlacementResult]) -> Iterator[LeftOut]:
        """Yield the pods without a place, with the reasons why no shape takes them."""
        for result in placed:
            if not result.all_fit:
                reasons: Counter[str] = Counter()
                for number in range(len(self.nodes.shapes)):
                    alone = self.placer(self.nodes.alone(number))
                    reasons.update(alone.placed(result.wanted).reasons)
                yield LeftOut(result.wanted, (result.wanted.count or 0) - result.fit, reasons)

    def existing(self) -> Snapshot:
        """Return the nodes that are there and that some of the pods may use."""
        rows, filters = self.nodes.rows((0,) * len(self.nodes.shapes)), self.nodes.filters
        usable = np.zeros(len(rows), dtype=bool)
        for demands in {pod.demands for pod in self._pods}:
            usable |= filters.open_to(demands)[rows]
        return Placer(self.nodes.snapshot, rows[usable], filters, self._policy).view

    def placer(self, rows: Rows) -> Placer:
        """Return one over these of the nodes, on which nothing is placed yet."""
        nodes = self.nodes
        return Placer(nodes.snapshot, rows, nodes.filters, self._policy)


def _lost(placed: Iterable[PlacementResult]) -> int:
    """Return how many pods have no place."""
    return sum((each.wanted.count or 0) - each.fit for each in placed)
