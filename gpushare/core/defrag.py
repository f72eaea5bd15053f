"""Few moves that open a place for a pod that fits nowhere: which pods go, and where each goes.

A plan has one level: each pod that is moved has a place on another node, by the decision of the
extender, while every pod of the plan still stands where it is and the places of earlier moves are
taken. So whoever stops after any move leaves a lawful cluster. No pod is moved without need.

All sets of pods are tried, those of one pod first, until the steps are used up: a plan that was
found before that has the fewest moves, and of these the least cost. Whoever asks keeps the cluster:
what is tried on it is taken back.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import combinations, permutations

import numpy as np

from gpushare.core.amounts import MEMORY as DEVICE_MEMORY
from gpushare.core.amounts import PERCENT_AMOUNTS
from gpushare.core.decide import NO_ROOM, missing_units
from gpushare.core.model import ANY_CARD, Request
from gpushare.core.mutable_cluster import MutableCluster, Placement, fits
from gpushare.core.node_filters import CPU, MEMORY, amounts_of
from gpushare.core.preemption.victim_search import StepBudget
from gpushare.core.selectors import NO_DEMANDS, Demands
from gpushare.core.snapshot import Bools, Snapshot, has_accepted_model, has_cards

Resource = tuple[int, str]
"""What a node may have too little of: (device, name in DEVICE_AMOUNTS), or (-1, a resource of the
host)."""

_Lack = dict[Resource, int]
"""How much has to go until there is room."""

_HOST = -1
_OF_A_PLACE = 50
"""Steps of one decision where a pod goes; a look at a pod is one, 5 to 10 us."""


class Host:
    """What kube-scheduler itself enforces on the rows of a cluster.

    This one keeps no pod out: CPU and memory of a cluster in memory count without it. rows: their
    number.
    """

    def __init__(self, rows: int) -> None:
        self._every = np.ones(rows, dtype=bool)

    def open_to(self, _demands: Demands) -> Bools:
        """Return bool (N,): the rows that are not kept from such pods, whatever is free there."""
        return self._every

    def among(self, _request: Request, _demands: Demands = NO_DEMANDS) -> Bools:
        """Return bool (N,): the rows of these that have what the pod asks of the host, too."""
        return self._every

    def lacks(self, _row: int, _request: Request) -> Mapping[str, int]:
        """Return by resource how much too little the row has for the request, if it has."""
        return {}

    def take(self, row: int, request: Request, pods: int = 1) -> None:
        """Count what so many pods take of a row; -1: give back what one took."""


@dataclass(frozen=True, slots=True)
class Mover:
    """A pod that may be moved."""

    name: str
    """Of this pod alone; of equally good plans that of the first names is chosen."""
    placement: Placement
    """Exactly what the cluster counts for it."""
    cost: float = 0.0
    demands: Demands = NO_DEMANDS


@dataclass(frozen=True, slots=True)
class Move:
    """A pod that is moved, and its new place."""

    mover: Mover
    to: Placement


@dataclass(frozen=True, slots=True)
class Plan:
    """Moves in their order, and the place that is open once all are made."""

    hole: Placement
    moves: tuple[Move, ...]

    @property
    def cost(self) -> float:
        """The cost of all moves."""
        return sum(move.mover.cost for move in self.moves)


class Planner:
    """Finds plans on one cluster, on which nothing changes meanwhile.

    movers: each is on a row of the cluster, and counted there.
    """

    def __init__(
        self, cluster: MutableCluster, movers: Iterable[Mover], host: Host | None = None
    ) -> None:
        self._cluster = cluster
        self._host = host or Host(len(cluster.view.names))
        self._movers: defaultdict[int, list[Mover]] = defaultdict(list)
        for mover in movers:
            self._movers[mover.placement.row].append(mover)
        self._rooms: dict[tuple[Request, Demands], Bools] = {}

    def has_place(self, mover: Mover) -> bool:
        """Return whether the pod fits on another node as things are."""
        request, kind = mover.placement.request, (mover.placement.request, mover.demands)
        if kind not in self._rooms:
            view = self._cluster.view
            room: Bools = fits(view, np.arange(len(view.names)), request).sum(axis=1) > 0
            self._rooms[kind] = room & self._host.among(request, mover.demands)
        return bool(np.delete(self._rooms[kind], mover.placement.row).any())

    def rows_for(self, request: Request, demands: Demands = NO_DEMANDS) -> list[int]:
        """Return the rows that would fit the request if they were empty, those that miss least
        memory first.
        """
        view = self._cluster.view
        every = np.arange(len(view.names))
        missing = missing_units(view, every, request, view.open)
        able = (missing < NO_ROOM) & has_accepted_model(view, every, request)
        rows = np.flatnonzero(able & self._host.open_to(demands))
        nearest: list[int] = rows[np.argsort(missing[rows], kind="stable")].tolist()
        return nearest

    def plan(
        self, request: Request, most: int, steps: StepBudget, demands: Demands = NO_DEMANDS
    ) -> Plan | None:
        """Return the best plan of at most so many moves; None if none is found.

        It has no moves if the request fits now. steps: if none are left afterwards, not everything
        was tried.
        """
        now = self._cluster.place(request, self._host.among(request, demands))
        if now is not None:
            self._cluster.release(now)
            return Plan(now, ())
        nodes: dict[int, _Node] = {}
        for size in range(1, most + 1):
            # The best, by what it is sorted by: its cost, units and names.
            best: tuple[tuple[float, int, list[str]], Plan] | None = None
            for row in self.rows_for(request, demands):
                if steps.left <= 0:
                    break
                if row not in nodes:
                    movers = [each for each in self._movers.get(row, ()) if self.has_place(each)]
                    nodes[row] = _Node(self._cluster, self._host, row, movers, request)
                    steps.left -= len(self._movers.get(row, ()))
                for chosen in nodes[row].sets(size, steps):
                    units = sum(mover.placement.request.total for mover in chosen)
                    names = sorted(mover.name for mover in chosen)
                    order = sum(mover.cost for mover in chosen), units, names
                    if best is None or order < best[0]:
                        plan = self._tried(row, chosen, request, steps)
                        best = (order, plan) if plan else best
            if best is not None:
                return best[1]
        return None

    def _tried(
        self, row: int, chosen: Sequence[Mover], request: Request, steps: StepBudget
    ) -> Plan | None:
        """Return the plan that moves these pods off the row, in the first order in which each has
        a place; None if there is none.
        """
        kinds = set()
        for order in permutations(chosen):
            kind = tuple((mover.placement.request, mover.demands) for mover in order)
            if kind in kinds:
                continue
            kinds.add(kind)
            with ExitStack() as taken:
                moves = self._moves(row, order, steps, taken)
                if moves is None:
                    continue
                for mover in order:
                    self._cluster.release(mover.placement)
                    taken.callback(self._cluster.put, *mover.placement)
                hole = self._cluster.place_on(row, request)
                if hole is not None:
                    self._cluster.release(hole)
                    return Plan(hole, moves)
        return None

    def _moves(
        self, row: int, order: Sequence[Mover], steps: StepBudget, taken: ExitStack
    ) -> tuple[Move, ...] | None:
        """Place the pods anew, one after the other; None if one has no place. taken: gives back."""
        moves = []
        for mover in order:
            if steps.left <= 0:
                return None
            steps.left -= _OF_A_PLACE
            wanted = mover.placement.request
            among = self._host.among(wanted, mover.demands).copy()
            among[row] = False
            to = self._cluster.place(wanted, among)
            if to is None:
                return None
            self._host.take(to.row, wanted)
            taken.callback(self._host.take, to.row, wanted, -1)
            taken.callback(self._cluster.release, to)
            moves.append(Move(mover, to))
        return tuple(moves)


class _Node:
    """The pods of one node that may be moved, and the sets of them that make room there."""

    def __init__(
        self,
        cluster: MutableCluster,
        host: Host,
        row: int,
        movers: Iterable[Mover],
        request: Request,
    ) -> None:
        self._movers = sorted(
            movers, key=lambda mover: (-mover.placement.request.total, mover.cost, mover.name)
        )
        self._alike = [(mover.placement, mover.demands) for mover in self._movers]
        self._gives = [_gives(mover) for mover in self._movers]
        most = Counter[Resource]()
        for gives in self._gives:
            most.update(gives)
        # (units, how many) of the parts of the request, the largest first.
        self._parts = [*Counter(request.parts).items()]
        # By the units of a part and by device, what has to go for it, if it can.
        self._lacks = {
            units: {
                device: lack
                for device, lack in _lacks(cluster.view, row, request.part(units)).items()
                if _is_covered(lack, most)
            }
            for units, _ in self._parts
        }
        view = cluster.view
        host_lacks = dict(host.lacks(row, request))
        for resource, wanted, free in (
            (CPU, request.cpu, int(view.cpu_free[row])),
            (MEMORY, request.memory, int(view.memory_free[row])),
        ):
            if wanted > free:
                host_lacks[resource] = max(host_lacks.get(resource, 0), wanted - free)
        self._host = {(_HOST, name): amount for name, amount in host_lacks.items()}

    def sets(self, size: int, steps: StepBudget) -> Iterator[tuple[Mover, ...]]:
        """Yield each set of so many pods that makes room and has none without need, as long as
        there are steps.

        Of equal pods in equal places the cheapest go first.
        """
        yielded: set[tuple[int, ...]] = set()
        widest = max((len(mover.placement.devices) for mover in self._movers), default=0)
        for lack in self._targets(self._parts, size * widest, frozenset()):
            for chosen in self._covers(lack, size, (), frozenset(), steps):
                if steps.left <= 0:
                    return
                key = tuple(sorted(chosen))
                # Each of them is needed: without it the others make no room.
                if key not in yielded and not any(
                    self._make_room(at for at in chosen if at != left_out) for left_out in chosen
                ):
                    yielded.add(key)
                    yield tuple(self._movers[at] for at in key)
            if steps.left <= 0:
                return

    def _targets(
        self, parts: Sequence[tuple[int, int]], most: int, taken: frozenset[int]
    ) -> Iterator[_Lack]:
        """Yield what is lacking, on the host too, for each choice of devices for these parts.

        most: how many devices can be freed. taken: those that larger parts have.
        """
        if not parts:
            yield self._host
            return
        (units, count), *smaller = parts
        free = {device: lack for device, lack in self._lacks[units].items() if device not in taken}
        # A device that lacks nothing is taken in any case: any other one lacks more, and would do
        # as well for the smaller part that could have had it.
        ready = [device for device, lack in free.items() if not lack][:count]
        wanted = count - len(ready)
        if wanted > most:
            return
        for chosen in combinations([device for device, lack in free.items() if lack], wanted):
            lacking = {name: amount for at in chosen for name, amount in free[at].items()}
            for lack in self._targets(smaller, most - wanted, taken.union(ready, chosen)):
                yield lack | lacking

    def _covers(
        self,
        lack: Mapping[Resource, int],
        size: int,
        chosen: tuple[int, ...],
        barred: frozenset[int],
        steps: StepBudget,
    ) -> Iterator[tuple[int, ...]]:
        """Yield each set of `size` pods more that covers what is lacking, as positions."""
        lack = {name: amount for name, amount in lack.items() if amount > 0}
        if not lack or not size:
            if not lack and not size:
                yield chosen
            return
        helpful = {
            name: [
                at
                for at, gives in enumerate(self._gives)
                if name in gives and at not in chosen and at not in barred
            ]
            for name in lack
        }
        steps.left -= len(self._movers)
        for name, pods in helpful.items():
            largest = sorted((self._gives[at][name] for at in pods), reverse=True)
            if sum(largest[:size]) < lack[name] or steps.left <= 0:
                return
        name = min(lack, key=lambda resource: len(helpful[resource]))
        for at in helpful[name]:
            if not any(self._alike[at] == self._alike[other] for other in barred):
                gives = self._gives[at]
                still_lacking = {
                    resource: amount - gives.get(resource, 0) for resource, amount in lack.items()
                }
                yield from self._covers(still_lacking, size - 1, (*chosen, at), barred, steps)
            barred |= {at}

    def _make_room(self, gone: Iterable[int]) -> bool:
        """Return whether the request fits once these pods are gone."""
        freed = Counter[Resource]()
        for at in gone:
            freed.update(self._gives[at])
        if not _is_covered(self._host, freed):
            return False
        wanted = 0
        for units, count in self._parts:
            wanted += count
            # A device with room for a part has room for each smaller one.
            if sum(_is_covered(lack, freed) for lack in self._lacks[units].values()) < wanted:
                return False
        return True


def _is_covered(lack: _Lack, freed: Mapping[Resource, int]) -> bool:
    return all(freed[name] >= amount for name, amount in lack.items())


def _gives(mover: Mover) -> dict[Resource, int]:
    """Return what a node has more once the pod is gone."""
    request = mover.placement.request
    gives = {(_HOST, name): amount for name, amount in amounts_of(request).items()}
    for device, units in mover.placement.shares:
        gives[device, DEVICE_MEMORY.name] = units
        for amount, percent in zip(PERCENT_AMOUNTS, request.percents, strict=False):
            gives[device, amount.name] = percent
    return {name: amount for name, amount in gives.items() if amount}


def _lacks(view: Snapshot, row: int, part: Request) -> dict[int, _Lack]:
    """Return what has to go from each device that has room for the one part if it is empty."""
    usable = view.open[row] & (view.capacity[row] >= max(part.units, 1))
    if part.cards != ANY_CARD:
        usable &= has_cards(view, np.array([row]), part.cards)[0]
    by_device = {}
    for device in np.flatnonzero(usable).tolist():
        used = int(view.used[row, device])
        room = 0 if part.alone else int(view.capacity[row, device]) - part.units
        lack = {(device, DEVICE_MEMORY.name): used - room}
        for amount, percents_used, percent in zip(
            PERCENT_AMOUNTS, view.percents_used, part.every_percent, strict=True
        ):
            left = amount.whole - int(percents_used[row, device])
            lack[device, amount.name] = amount.needed(percent) - left
        by_device[device] = {resource: amount for resource, amount in lack.items() if amount > 0}
    return by_device
