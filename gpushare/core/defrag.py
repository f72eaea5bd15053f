"""Plans of few moves that make room for a pod that fits no node: pods to move, and their new
places.

A plan has one level: each moved pod has a place on another node, by the decision of the extender,
while every pod of the plan still occupies the old place and the places of earlier moves are
occupied. So a plan may stop after any move and leaves a valid cluster. No pod is moved without
need.

All sets of pods are tried, sets of one pod first, until the steps are used up: a plan that is found
before that has the fewest moves, and of these the least cost. The planner undoes every trial on the
cluster.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import combinations, permutations

import numpy as np

from gpushare.core.amounts import MEMORY as DEVICE_MEMORY
from gpushare.core.amounts import PERCENT_AMOUNTS, charged_units
from gpushare.core.decide import NO_ROOM, missing_units
from gpushare.core.model import ANY_CARD, Request
from gpushare.core.mutable_cluster import MutableCluster, Placement, fits
from gpushare.core.node_filters import CPU, MEMORY, amounts_of
from gpushare.core.preemption.victim_search import StepBudget
from gpushare.core.selectors import NO_DEMANDS, Demands
from gpushare.core.snapshot import PODS, Bools, Snapshot, fellows, has_accepted_model, has_cards

Resource = tuple[int, str]
"""(device, name): an amount in DEVICE_AMOUNTS, _PLACES, or a workload whose pods stay apart, one
for each pod; device -1: a resource of the host."""

Lack = dict[Resource, int]
"""How much must become free until there is room."""

_HOST = -1
_PLACES = "places"
"""The name of the places for pods on a device, as the most sharers of the node allow."""
_OF_A_PLACE = 50
"""Steps of one placement decision; a look at a pod is one step, 5 to 10 us."""


class Host:
    """The limits that kube-scheduler itself enforces on the rows of a cluster.

    This class excludes no pod: a MutableCluster counts CPU and memory itself. rows: number of rows.
    """

    def __init__(self, rows: int) -> None:
        self._every = np.ones(rows, dtype=bool)

    def open_to(self, _demands: Demands) -> Bools:
        """Return bool (N,): the rows that allow such pods, regardless of free amounts."""
        return self._every

    def among(self, _request: Request, _demands: Demands = NO_DEMANDS) -> Bools:
        """Return bool (N,): the rows of `open_to` that also have the requested host resources."""
        return self._every

    def lacks(self, _row: int, _request: Request) -> Mapping[str, int]:
        """Return by resource the amount that the row lacks for the request; empty if none."""
        return {}

    def take(self, row: int, request: Request, pods: int = 1) -> None:
        """Charge a row for `pods` pods with this request; -1: release one pod."""


@dataclass(frozen=True, slots=True)
class MovablePod:
    """A pod that may be moved."""

    name: str
    """Unique; of equally good plans the one with the first names is chosen."""
    placement: Placement
    """Exactly the charge of the pod on the cluster."""
    cost: float = 0.0
    demands: Demands = NO_DEMANDS


@dataclass(frozen=True, slots=True)
class Move:
    """A pod to move, and the new place."""

    mover: MovablePod
    to: Placement


@dataclass(frozen=True, slots=True)
class MovePlan:
    """Moves in order, and the place that is free after all of them."""

    hole: Placement
    moves: tuple[Move, ...]

    @property
    def cost(self) -> float:
        """The cost of all moves."""
        return sum(move.mover.cost for move in self.moves)


class Planner:
    """Finds plans on one cluster that nothing else changes meanwhile.

    movers: each is on a row of the cluster, and counted there.
    """

    def __init__(
        self, cluster: MutableCluster, movers: Iterable[MovablePod], host: Host | None = None
    ) -> None:
        self._cluster = cluster
        self._host = host or Host(len(cluster.view.names))
        self._movers: defaultdict[int, list[MovablePod]] = defaultdict(list)
        for mover in movers:
            self._movers[mover.placement.row].append(mover)
        self._rooms: dict[tuple[Request, Demands], Bools] = {}

    def has_place(self, mover: MovablePod) -> bool:
        """Return whether the pod fits on another node as things are."""
        request, kind = mover.placement.request, (mover.placement.request, mover.demands)
        if kind not in self._rooms:
            view = self._cluster.view
            room: Bools = fits(view, np.arange(len(view.names)), request).sum(axis=1) > 0
            self._rooms[kind] = room & self._host.among(request, mover.demands)
        return bool(np.delete(self._rooms[kind], mover.placement.row).any())

    def rows_for(self, request: Request, demands: Demands = NO_DEMANDS) -> list[int]:
        """Return the rows that would fit the request when empty, the least missing memory first."""
        view = self._cluster.view
        rows_of_view = np.arange(len(view.names))
        missing = missing_units(view, rows_of_view, request, view.open)
        able = (missing < NO_ROOM) & has_accepted_model(view, rows_of_view, request)
        rows = np.flatnonzero(able & self._host.open_to(demands))
        nearest: list[int] = rows[np.argsort(missing[rows], kind="stable")].tolist()
        return nearest

    def plan(
        self, request: Request, max_moves: int, steps: StepBudget, demands: Demands = NO_DEMANDS
    ) -> MovePlan | None:
        """Return the best plan of at most `max_moves` moves; None if none is found.

        The plan has no moves if the request fits now. steps: if none remain afterwards, the search
        was incomplete.
        """
        now = self._cluster.place(request, self._host.among(request, demands))
        if now is not None:
            self._cluster.release(now)
            return MovePlan(now, ())
        nodes: dict[int, _NodeMoves] = {}
        for size in range(1, max_moves + 1):
            # (sort key, plan) of the best plan; the key is cost, units and names.
            best: tuple[tuple[float, int, list[str]], MovePlan] | None = None
            for row in self.rows_for(request, demands):
                if steps.remaining <= 0:
                    break
                if row not in nodes:
                    movers = [pod for pod in self._movers.get(row, ()) if self.has_place(pod)]
                    nodes[row] = _NodeMoves(self._cluster, self._host, row, movers, request)
                    steps.remaining -= len(self._movers.get(row, ()))
                for chosen in nodes[row].sets(size, steps):
                    units = sum(mover.placement.request.total for mover in chosen)
                    names = sorted(mover.name for mover in chosen)
                    order = sum(mover.cost for mover in chosen), units, names
                    if best is None or order < best[0]:
                        plan = self._try_set(row, chosen, request, steps)
                        best = (order, plan) if plan else best
            if best is not None:
                return best[1]
        return None

    def _try_set(
        self, row: int, chosen: Sequence[MovablePod], request: Request, steps: StepBudget
    ) -> MovePlan | None:
        """Return the plan that moves these pods off the row, in the first order that works.

        None if no order has a place for each pod.
        """
        kinds = set()
        for order in permutations(chosen):
            kind = tuple((mover.placement.request, mover.demands) for mover in order)
            if kind in kinds:
                continue
            kinds.add(kind)
            with ExitStack() as undo:
                moves = self._moves(row, order, steps, undo)
                if moves is None:
                    continue
                for mover in order:
                    self._cluster.release(mover.placement)
                    undo.callback(self._cluster.put, *mover.placement)
                hole = self._cluster.place_on(row, request)
                if hole is not None:
                    self._cluster.release(hole)
                    return MovePlan(hole, moves)
        return None

    def _moves(
        self, row: int, order: Sequence[MovablePod], steps: StepBudget, undo: ExitStack
    ) -> tuple[Move, ...] | None:
        """Place the pods anew, one after the other; None if one has no place.

        undo: collects the callbacks that release the new places.
        """
        moves = []
        for mover in order:
            if steps.remaining <= 0:
                return None
            steps.remaining -= _OF_A_PLACE
            request = mover.placement.request
            among = self._host.among(request, mover.demands).copy()
            among[row] = False
            to = self._cluster.place(request, among)
            if to is None:
                return None
            self._host.take(to.row, request)
            undo.callback(self._host.take, to.row, request, -1)
            undo.callback(self._cluster.release, to)
            moves.append(Move(mover, to))
        return tuple(moves)


class _NodeMoves:
    """The movable pods of one node, and the sets of these pods that make room there."""

    def __init__(
        self,
        cluster: MutableCluster,
        host: Host,
        row: int,
        movers: Iterable[MovablePod],
        request: Request,
    ) -> None:
        self._movers = sorted(
            movers, key=lambda mover: (-mover.placement.request.total, mover.cost, mover.name)
        )
        self._alike = [(mover.placement, mover.demands) for mover in self._movers]
        view = cluster.view
        self._freed = [freed_amounts(mover.placement, view) for mover in self._movers]
        available = Counter[Resource]()
        for amounts in self._freed:
            available.update(amounts)
        # (units, how many) of the parts of the request, the largest first.
        self._parts = [*Counter(request.parts).items()]
        # By units of a part and by device, the amounts to free, if the movable pods can free them.
        self._lacks = {
            units: {
                device: lack
                for device, lack in device_lacks(cluster.view, row, request.part(units)).items()
                if _is_covered(lack, available)
            }
            for units, _ in self._parts
        }
        self._host = host_lack(cluster.view, host, row, request)

    def sets(self, size: int, steps: StepBudget) -> Iterator[tuple[MovablePod, ...]]:
        """Yield each minimal set of `size` pods that makes room, as long as steps remain.

        Of equal pods in equal places the cheapest are moved first.
        """
        yielded: set[tuple[int, ...]] = set()
        widest = max((len(mover.placement.devices) for mover in self._movers), default=0)
        for lack in self._targets(self._parts, size * widest, frozenset()):
            for chosen in self._covers(lack, size, (), frozenset(), steps):
                if steps.remaining <= 0:
                    return
                key = tuple(sorted(chosen))
                # Each pod of a minimal set is needed: without it the set makes no room.
                if key not in yielded and not any(
                    self._make_room(at for at in chosen if at != left_out) for left_out in chosen
                ):
                    yielded.add(key)
                    yield tuple(self._movers[at] for at in key)
            if steps.remaining <= 0:
                return

    def _targets(
        self, parts: Sequence[tuple[int, int]], max_devices: int, used_devices: frozenset[int]
    ) -> Iterator[Lack]:
        """Yield the lack, of the host too, for each choice of devices for these parts.

        max_devices: how many devices can be freed. used_devices: the devices of larger parts.
        """
        if not parts:
            yield self._host
            return
        (units, count), *smaller = parts
        free = {
            device: lack
            for device, lack in self._lacks[units].items()
            if device not in used_devices
        }
        # A device that lacks nothing is always used: any other device lacks more, and suits a
        # smaller part just as well.
        ready = [device for device, lack in free.items() if not lack][:count]
        missing = count - len(ready)
        if missing > max_devices:
            return
        for chosen in combinations([device for device, lack in free.items() if lack], missing):
            lacking = {name: amount for at in chosen for name, amount in free[at].items()}
            for lack in self._targets(
                smaller, max_devices - missing, used_devices.union(ready, chosen)
            ):
                yield lack | lacking

    def _covers(
        self,
        lack: Mapping[Resource, int],
        size: int,
        chosen: tuple[int, ...],
        barred: frozenset[int],
        steps: StepBudget,
    ) -> Iterator[tuple[int, ...]]:
        """Yield each extension of `chosen` by `size` pods that covers the lack, as positions."""
        lack = {name: amount for name, amount in lack.items() if amount > 0}
        if not lack or not size:
            if not lack and not size:
                yield chosen
            return
        helpful = {
            name: [
                at
                for at, amounts in enumerate(self._freed)
                if name in amounts and at not in chosen and at not in barred
            ]
            for name in lack
        }
        steps.remaining -= len(self._movers)
        for name, pods in helpful.items():
            largest = sorted((self._freed[at][name] for at in pods), reverse=True)
            if sum(largest[:size]) < lack[name] or steps.remaining <= 0:
                return
        name = min(lack, key=lambda resource: len(helpful[resource]))
        for at in helpful[name]:
            if not any(self._alike[at] == self._alike[barred_pod] for barred_pod in barred):
                amounts = self._freed[at]
                still_lacking = {
                    resource: amount - amounts.get(resource, 0) for resource, amount in lack.items()
                }
                yield from self._covers(still_lacking, size - 1, (*chosen, at), barred, steps)
            barred |= {at}

    def _make_room(self, pods: Iterable[int]) -> bool:
        """Return whether the request fits once these pods are gone."""
        freed = Counter[Resource]()
        for at in pods:
            freed.update(self._freed[at])
        if not _is_covered(self._host, freed):
            return False
        needed_devices = 0
        for units, count in self._parts:
            needed_devices += count
            # A device with room for a part has room for each smaller one.
            if (
                sum(_is_covered(lack, freed) for lack in self._lacks[units].values())
                < needed_devices
            ):
                return False
        return True


def _is_covered(lack: Lack, freed: Mapping[Resource, int]) -> bool:
    return all(freed[name] >= amount for name, amount in lack.items())


def freed_amounts(placement: Placement, view: Snapshot) -> dict[Resource, int]:
    """Return the amounts that become free on the node when the pod leaves this place."""
    row, shares, request = placement
    freed = {(_HOST, name): amount for name, amount in amounts_of(request).items()}
    charges = request.charges_on(shares, view.capacity[row].tolist())
    for (device, charged), percents in zip(charges, request.percents_on(shares), strict=True):
        freed[device, DEVICE_MEMORY.name] = charged
        freed[device, _PLACES] = 1
        for amount, percent in zip(PERCENT_AMOUNTS, percents, strict=False):
            freed[device, amount.name] = percent
        if request.apart is not None:
            freed[device, request.apart.workload] = 1
    return {name: amount for name, amount in freed.items() if amount}


def host_lack(view: Snapshot, host: Host, row: int, request: Request) -> Lack:
    """Return the amounts of the node's own resources to free for the request."""
    lacks = dict(host.lacks(row, request))
    for resource, requested, free in (
        (CPU, request.cpu, int(view.cpu_free[row])),
        (MEMORY, request.memory, int(view.memory_free[row])),
    ):
        if requested > free:
            lacks[resource] = max(lacks.get(resource, 0), requested - free)
    return {(_HOST, name): amount for name, amount in lacks.items()}


def device_lacks(view: Snapshot, row: int, part: Request) -> dict[int, Lack]:
    """Return by device the amounts to free for one part; only devices that fit it when empty."""
    usable = view.open[row] & (view.capacity[row] >= max(part.units, 1))
    if part.cards != ANY_CARD:
        usable &= has_cards(view, np.array([row]), part.cards)[0]
    pods_of_workload = fellows(view, np.array([row]), part)[0].tolist()
    by_device = {}
    for device in np.flatnonzero(usable).tolist():
        used, capacity = int(view.used[row, device]), int(view.capacity[row, device])
        charged = charged_units(part.units, part.percents, capacity)
        room = 0 if part.alone else capacity - charged
        lack = {(device, DEVICE_MEMORY.name): used - room}
        lack[device, _PLACES] = int(view.pods[row, device, PODS]) + 1 - int(view.sharers[row])
        for amount, percents_used, percent in zip(
            PERCENT_AMOUNTS, view.percents_used, part.every_percent, strict=True
        ):
            left = amount.whole - int(percents_used[row, device])
            lack[device, amount.name] = amount.needed(percent) - left
        if part.apart is not None and part.apart.required:
            lack[device, part.apart.workload] = pods_of_workload[device]
        by_device[device] = {resource: amount for resource, amount in lack.items() if amount > 0}
    return by_device
