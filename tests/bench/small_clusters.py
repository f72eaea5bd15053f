"""Small clusters of common kinds, and the events there.

Three to ten nodes, with at most 88 cards, which a family and a seed give, always the same.
For some families the experiments of the simulator are enough. In the others something changes
meanwhile: whole Deployments come and are rolled out, the mixture of the pods alternates or becomes
another one for good, nodes come and go. Their events are drawn before anything is placed.
"""

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count

import numpy as np

from gpushare.core.model import Request
from gpushare.core.mutable_cluster import Placement
from gpushare.sim.engine import Cluster
from gpushare.sim.experiments import node_order
from gpushare.sim.scorers import LearningScorer
from gpushare.trace.nodes_and_pods import TraceNode, TracePod
from tests.bench.clusters import drawn

STILL = ("equal", "whole", "odd", "MiB", "unequal", "unequal MiB", "by chance")
"""Families where nothing changes but the pods.

equal: shares of one kind of card. whole: the same, and pods of whole cards, one or several. odd:
sizes that divide no card. MiB: equal, counted in MiB. unequal: cards of two sizes, also in MiB. by
chance: tests/bench/clusters.py, with scarce CPU, models and pods of several devices.
"""
CHANGING = ("roll-outs", "day and night", "shift", "nodes")
"""Families with other changes.

roll-outs: Deployments of equal pods; a quarter after the other is replaced, by other sizes and
numbers at times; notebooks beside them. day and night: two mixtures in turn, each for a lifetime.
shift: another mixture for good from the middle on; the measure is of the time after. nodes: a node
is drained, and comes back empty; while a cluster fills its nodes come one by one.
"""
FAMILIES = (*STILL, *CHANGING)

_MIB = 1024
_CARDS = (16, 24, 32, 40, 48, 80)
_NODES = (3, 11)
_PODS = 400
_MAX_NODES, _MAX_CARDS = 10, 88
_SHARES = (1, 2, 4, 6, 8, 10, 12, 16)
_ODD = (3, 5, 7, 9, 11, 13)

WARMUP, END, _SHIFT = 1.0, 5.0, 3.0
"""Times in mean lifetimes if pods come and go: the measurement begins with the warm-up's end."""
_FULL = 1.3
_FLEETS, _NOTEBOOKS = 0.7, 0.35
"""Shares of the memory that Deployments ask for, and notebooks beside them."""
_QUARTER_TAKES = 0.005
_DRAINS, _AWAY = 0.25, 0.3
"""The rate of drains of a node in a lifetime, and the mean time of absence."""

Mixture = tuple[list[Request], list[float]]
"""Requests, and how often each comes; the sum is 1."""


@dataclass(frozen=True, slots=True)
class Comes:
    """A pod comes; life: its lifetime; fleet: the Deployment and revision."""

    request: Request
    life: float
    fleet: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Ends:
    """So many pods of a revision of a Deployment are removed."""

    fleet: tuple[int, int]
    pods: int


@dataclass(frozen=True, slots=True)
class NodeIs:
    """A node comes, empty; or the node is drained and goes."""

    node: int
    there: bool


Event = Comes | Ends | NodeIs
Events = list[tuple[float, Event]]


def still(family: str, seed: int) -> tuple[list[TraceNode], list[TracePod]]:
    """Return the nodes of one small cluster of the STILL families, and the pods."""
    if family == "by chance":
        return _by_chance(seed)
    rng = np.random.default_rng([seed, FAMILIES.index(family)])
    nodes = _nodes(rng, family)
    requests, weights = _shapes(rng, family, nodes)
    which = rng.choice(len(requests), _PODS, p=weights).tolist()
    return nodes, [
        TracePod(f"p-{at}", kind.cpu, 2048, kind.devices, kind.units, (), None, None, None)
        for at, kind in enumerate(requests[one] for one in which)
    ]


def _by_chance(seed: int) -> tuple[list[TraceNode], list[TracePod]]:
    """Return the first small cluster of those from 100 times the seed on."""
    cluster = next(
        found
        for found in map(drawn, count(100 * seed))
        if len(found.nodes) <= _MAX_NODES and found.devices <= _MAX_CARDS
    )
    return [*cluster.nodes], [*cluster.pods]


def _nodes(rng: np.random.Generator, family: str) -> list[TraceNode]:
    kinds = rng.choice(_CARDS, 2 if "unequal" in family else 1, replace=False).tolist()
    scale = _MIB if "MiB" in family else 1
    cards_of_node = int(rng.choice((2, 4, 8)))
    return [
        TraceNode(f"n-{at}", 128_000, 2**20, cards_of_node, scale * kinds[at % len(kinds)], "card")
        for at in range(int(rng.integers(*_NODES)))
    ]


def _shapes(rng: np.random.Generator, family: str, nodes: Sequence[TraceNode]) -> Mixture:
    largest = max(node.capacity for node in nodes)
    scale = _MIB if "MiB" in family else 1
    shares = _ODD if family == "odd" else _SHARES
    fitting = [size for size in shares if size * scale <= largest]
    if family == "odd":
        fitting = [size for size in fitting if largest % size]
    sizes = rng.choice(fitting, 4, replace=False).tolist()
    shapes = [(1, size * scale) for size in sizes]
    weights = rng.dirichlet([1.0] * len(shapes)).tolist()
    if family == "whole" or "unequal" in family:
        shapes += [(1, largest), (2, largest)]
        weights = [0.8 * weight for weight in weights] + [0.15, 0.05]
    return [Request(units, devices, 1000 * devices, 2**31) for devices, units in shapes], weights


@dataclass(frozen=True, slots=True)
class ClusterEvents:
    """A small cluster of the CHANGING families, with all that will happen.

    events: in the order of time. If pods stay, the time of an event is the share of all memory that
    was requested before. start, end: the measure is the mean between them. there: the nodes
    at first.
    """

    nodes: list[TraceNode]
    events: Events
    start: float
    end: float
    there: list[bool]


def changing(family: str, cluster: int, seed: int, fills: bool) -> ClusterEvents:
    """Return one small cluster of the CHANGING families.

    cluster: decides nodes and mixtures; seed: decides the pods. fills: the pods stay.
    """
    rng = np.random.default_rng([cluster, FAMILIES.index(family)])
    of_chance = rng.choice(("equal", "whole", "odd", "MiB", "unequal"))
    nodes = _nodes(rng, of_chance)
    mixtures = [_shapes(rng, of_chance, nodes) for _ in range(2)]
    fleets = int(rng.integers(4, 9))
    rng = np.random.default_rng([cluster, FAMILIES.index(family), seed])
    units = sum(node.devices * node.capacity for node in nodes)
    presence = [True] * len(nodes)
    events: Events
    match family:
        case "roll-outs" if fills:
            events = _whole_fleets(rng, mixtures[0], units)
        case "roll-outs":
            events = _rolled_out(rng, mixtures[0], units, fleets)
            events += _coming(rng, mixtures[1], units * _NOTEBOOKS, (0.0, END))
        case _ if fills:
            turns = [0, 1] * 3 if family == "day and night" else [0, 1]
            events = _filling(
                rng, mixtures if family != "nodes" else mixtures[:1] * 2, units, turns
            )
        case "shift":
            events = _coming(rng, mixtures[0], units, (0.0, _SHIFT))
            events += _coming(rng, mixtures[1], units, (_SHIFT, END))
        case "day and night":
            events = []
            for at in range(int(END)):
                events += _coming(rng, mixtures[at % 2], units, (at, at + 1.0))
        case _:
            events = _coming(rng, mixtures[0], units, (0.0, END))
            events += _drained(rng, len(nodes))
    if family == "nodes" and fills:
        first = max(len(nodes) // 3, 1)
        presence = [at < first for at in range(len(nodes))]
        late = range(first, len(nodes))
        events += [(0.9 * at / len(nodes), NodeIs(at, True)) for at in late]
    events.sort(key=lambda event: event[0])
    if fills:
        return ClusterEvents(nodes, events, 0.95, 1.05, presence)
    return ClusterEvents(nodes, events, _SHIFT if family == "shift" else WARMUP, END, presence)


def _coming(
    rng: np.random.Generator, mixture: Mixture, units: float, between: tuple[float, float]
) -> Events:
    """Draw pods that would hold so many units at a time, each for a mean time of 1."""
    requests, weights = mixture
    mean = sum(weight * one.total for one, weight in zip(requests, weights, strict=True))
    start, end = between
    number = rng.poisson(units / mean * (end - start))
    times = rng.uniform(start, end, number).tolist()
    which = rng.choice(len(requests), number, p=weights).tolist()
    lives = rng.exponential(1, number).tolist()
    arrivals = zip(times, which, lives, strict=True)
    return [(time, Comes(requests[one], life)) for time, one, life in arrivals]


def _filling(
    rng: np.random.Generator, mixtures: Sequence[Mixture], units: int, turns: Sequence[int]
) -> Events:
    """Draw pods that stay, of the mixtures in turn, until the requests exceed the capacity."""
    events: Events = []
    requested_units = 0.0
    while requested_units < _FULL:
        turn = min(int(requested_units * len(turns)), len(turns) - 1)
        requests, weights = mixtures[turns[turn]]
        request = requests[int(rng.choice(len(requests), p=weights))]
        events.append((requested_units, Comes(request, np.inf)))
        requested_units += request.total / units
    return events


def _whole_fleets(rng: np.random.Generator, mixture: Mixture, units: int) -> Events:
    """Draw Deployments that come whole and stay, one after the other."""
    events: Events = []
    requested_units = 0.0
    while requested_units < _FULL:
        request, pods = _fleet(rng, mixture, units / 8)
        events += [
            (requested_units + at * request.total / units, Comes(request, np.inf))
            for at in range(pods)
        ]
        requested_units += pods * request.total / units
    return events


def _fleet(rng: np.random.Generator, mixture: Mixture, units: float) -> tuple[Request, int]:
    """Draw the request of a pod of a Deployment, and the number of pods: of so many units or so."""
    requests, weights = mixture
    request = requests[int(rng.choice(len(requests), p=weights))]
    return request, max(round(units * float(rng.uniform(0.6, 1.4)) / request.total), 1)


def _rolled_out(rng: np.random.Generator, mixture: Mixture, units: int, fleets: int) -> Events:
    """Draw Deployments and their roll-outs, one of each in a lifetime or so."""
    events: Events = []
    for number, share in enumerate(rng.dirichlet([3.0] * fleets).tolist()):
        fleet_units = units * _FLEETS * share
        request, pods = _fleet(rng, mixture, fleet_units)
        time = float(rng.uniform(0, 0.5))
        events += [(time, Comes(request, np.inf, (number, 0))) for _ in range(pods)]
        for revision in count():
            time += float(rng.exponential(1)) + 5 * _QUARTER_TAKES
            if time >= END:
                break
            before = pods
            if rng.random() < 0.3:
                request, pods = _fleet(rng, mixture, fleet_units)
            for quarter in range(4):
                at = time + quarter * _QUARTER_TAKES
                old, new = ((n * (quarter + 1)) // 4 - n * quarter // 4 for n in (before, pods))
                events.append((at, Ends((number, revision), old)))
                comes = Comes(request, np.inf, (number, revision + 1))
                events += [(at, comes) for _ in range(new)]
            # A refused pod leaves nothing behind.
            events.append((time + 4 * _QUARTER_TAKES, Ends((number, revision), before)))
    return events


def _drained(rng: np.random.Generator, nodes: int) -> Events:
    events: Events = []
    for node in range(nodes):
        time = float(rng.exponential(1 / _DRAINS))
        while time < END:
            back = time + float(rng.exponential(_AWAY))
            events += [(time, NodeIs(node, False)), (back, NodeIs(node, True))]
            time = back + float(rng.exponential(1 / _DRAINS))
    return events


class Learner(LearningScorer):
    """A learner that is told of nodes."""

    def told(self, cluster: Cluster) -> None:
        """Note which devices there are."""
        sizes = cluster.view.capacity[cluster.view.capacity > 0].tolist()
        self._learned.devices = Counter(sizes)


class SmallRun:
    """A world under one policy."""

    def __init__(self, world: ClusterEvents, policy: str, seed: int) -> None:
        self._world = world
        sizes = Counter(size for node in world.nodes for size in node.sizes)
        self._learner = Learner(policy, sizes, len(world.nodes))
        # The order breaks ties; the events name nodes by their place before it.
        named_nodes = [replace(node, name=str(at)) for at, node in enumerate(world.nodes)]
        self._cluster = Cluster(node_order(named_nodes, seed), self._learner, self._learner.moved)
        self._whole = self._cluster.view
        self._row = {int(name): row for name, row in self._whole.row.items()}
        self._numbers = count()
        self._there: dict[int, Placement] = {}
        self._leaving: list[tuple[float, int]] = []
        self._fleets: dict[tuple[int, int], list[int]] = defaultdict(list)
        self._set_nodes([at for at, is_present in enumerate(world.there) if not is_present], False)

    def allocated(self) -> float:
        """Return the mean allocation, in % of the capacity.

        Over time if pods come and go; over requested GPU if pods stay.
        """
        held_time = present_time = now = 0.0
        for time in self._times():
            span = min(time, self._world.end) - max(now, self._world.start)
            if span > 0:
                held_time += span * self._cluster.allocated
                present_time += span * self._cluster.capacity
            now = self._learner.now = time
            while self._leaving and self._leaving[0][0] <= now:
                self._remove(heapq.heappop(self._leaving)[1])
        return 100 * held_time / present_time

    def _times(self) -> Iterator[float]:
        """Yield the time of each change before the change, and the end."""
        for time, event in self._world.events:
            if time >= self._world.end:
                break
            while self._leaving and self._leaving[0][0] <= time:
                yield self._leaving[0][0]
            yield time
            self._happens(time, event)
        while self._leaving and self._leaving[0][0] <= self._world.end:
            yield self._leaving[0][0]
        yield self._world.end

    def _happens(self, time: float, event: Event) -> None:
        match event:
            case Comes(request, life, fleet):
                placement = self._cluster.place(request)
                if placement is None:
                    return
                number = next(self._numbers)
                self._there[number] = placement
                heapq.heappush(self._leaving, (time + life, number))
                if fleet is not None:
                    self._fleets[fleet].append(number)
            case Ends(fleet, pods):
                for number in self._fleets[fleet][:pods]:
                    self._remove(number)
                del self._fleets[fleet][:pods]
            case NodeIs(node, there):
                row = self._row[node]
                for number in [n for n, pod in self._there.items() if pod.row == row]:
                    self._remove(number)
                self._set_nodes([node], there)

    def _remove(self, number: int) -> None:
        """Free the units of the pod, unless the pod was removed early."""
        placement = self._there.pop(number, None)
        if placement is not None:
            self._cluster.release(placement)

    def _set_nodes(self, nodes: Sequence[int], is_present: bool) -> None:
        view = self._cluster.view
        capacity, healthy = view.capacity.copy(), view.healthy.copy()
        rows = [self._row[node] for node in nodes]
        capacity[rows] = self._whole.capacity[rows] * is_present
        healthy[rows] = self._whole.healthy[rows] & is_present
        view = replace(view, capacity=capacity, healthy=healthy)
        view.free.flags.writeable = True
        self._cluster.view = view
        self._cluster.capacity = int(capacity.sum())
        self._learner.told(self._cluster)
