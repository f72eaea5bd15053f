"""How many more nodes are needed: the fewest of given shapes, or the cheapest, that take all pods.

A number of nodes is tried by placing all pods, with the decisions of the extender (tries.py). That
more nodes never hurt is not taken for granted, since a policy may place all pods otherwise once
there is one more: so each answer was tried itself, and so was each with one node fewer. Sums tell
below which number no placement can do: each measure is something of which the pods want a sum and
each node gives an amount, as units, CPU, memory, compute, places for pods of a size. No I/O.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import combinations
from math import ceil, gcd, lcm
from operator import ge
from typing import NamedTuple

import numpy as np

from gpushare.core.amounts import NO_PERCENTS, PERCENT_AMOUNTS, Percents
from gpushare.core.decide import room_for
from gpushare.core.model import HOST_BOUND, NodeSpec, Request
from gpushare.core.node_filters import OwnFilters
from gpushare.core.policy import Policy
from gpushare.core.selectors import NO_DEMANDS
from gpushare.core.snapshot import Snapshot
from gpushare.errors import SettingsError
from gpushare.explain.placer import PlacementResult, Wanted
from gpushare.explain.tries import MOST_PLENTY, Counts, LeftOut, NewNode, Nodes, Tell, Tries
from gpushare.explain.whatif import CurrentPods, Shape, Sums, change_nodes, current_pods, sums_of
from gpushare.ledger import Ledger

_MOST_SIZES = 64
"""Sizes of pods of which places are counted."""

_MOST_MEASURES = 24
"""Measures that are looked at two at a time."""

_MOST_WORK = 100_000_000
"""Work, as `Tries.work` counts it, until no better mix of shapes is looked for: half a minute."""


def _cost_of(shapes: Sequence[Shape], counts: Counts) -> Fraction:
    """Return the price of this many nodes of each shape, or their number if none has a price."""
    costs = (count * shape.cost for shape, count in zip(shapes, counts, strict=True))
    return sum(costs, Fraction(0))


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
    any_percents: bool
    """Whether a pod has compute, or another amount in percent, then."""

    @property
    def cost(self) -> Fraction:
        """The price of all nodes that come, or their number."""
        return _cost_of(self.shapes, self.counts)

    @property
    def least(self) -> bool:
        """Whether nothing can do with less."""
        return self.cost <= self.bound


def need(
    ledger: Ledger,
    wanted: Iterable[Wanted],
    shapes: Sequence[Shape],
    policy: Policy,
    own: OwnFilters,
    *,
    resource: str,
    without: Iterable[str] = (),
    added: Iterable[NodeSpec] = (),
    current: CurrentPods | None = None,
    tell: Tell = lambda _counts, _tries: None,
) -> Need:
    """Return the fewest nodes, or the cheapest, so that all pods fit which these nodes could take.

    wanted: pods that come, each with a count. shapes: at least one, with a price each or none.
    resource: the name of the managed one. without, added: nodes that go and come in any case.
    current: the pods that are there; None: those of the ledger, which demand nothing. The caller's
    ledger and the states of `own` are changed. Raises SettingsError as `whatif.change_nodes`.
    """
    before = sums_of(ledger.snapshot())
    current = current or current_pods(ledger)
    moved = change_nodes(ledger, current, without, added)
    nodes = Nodes(ledger, own, shapes, resource)
    tries = Tries(nodes, [*moved, *current.waiting, *wanted], policy, tell)
    search = _Search(tries)
    counts = search.fewest()
    if counts is None:
        raise SettingsError("no number of these nodes takes all pods by this policy")
    if tries.taken_elsewhere(counts):
        counts = search.fewest() or counts
    placed, view = tries.result(counts)
    usable = nodes.filters.open_to(NO_DEMANDS)[nodes.rows(counts)]
    free = -np.sort(-view.free[usable], axis=1)
    return Need(
        before,
        sums_of(view),
        tuple(shapes),
        counts,
        search.bound,
        len(moved),
        len(current.waiting),
        current.gated,
        placed,
        tuple(tries.left_out(placed)),
        tuple(nodes.shown(counts, view)),
        tuple(each for each in free.max(axis=0, initial=0).tolist() if each),
        view.any_percents,
    )


def more_of(pods: Iterable[Wanted], share: Fraction) -> list[Wanted]:
    """Return as many pods as are this share of those that run, large and small alike.

    Of the pods by size, the largest first, every 1/share-th counts, the first among them: so
    together they ask for no less than this share of the memory.
    """
    by_kind: dict[object, Wanted] = {}
    for place, pod in enumerate(sorted(pods, key=lambda each: (-each.request.total, each.name))):
        times = ceil((place + 1) * share) - ceil(place * share)
        if times:
            first = replace(pod, name=f"more like {pod.name}", count=0)
            known = by_kind.get((pod.kind, pod.priority), first)
            by_kind[pod.kind, pod.priority] = replace(known, count=(known.count or 0) + times)
    return list(by_kind.values())


class _Search:
    """Looks for numbers of nodes by tries. bound: what they cost at least, by sums."""

    def __init__(self, tries: Tries) -> None:
        self._tries = tries
        self._shapes = shapes = tries.nodes.shapes
        self._most = sum(pod.count or 0 for pod in tries.taken) + MOST_PLENTY
        alone = map(tries.nodes.alone, range(len(shapes)))
        empty = [tries.placer(rows).view for rows in alone]
        self._measures = list(_measures(tries.existing(), empty, tries.taken))
        self.bound = _least_cost(self._measures, [shape.cost for shape in shapes])

    def fewest(self) -> Counts | None:
        """Return the best numbers of nodes that are found. All pods fit with them that have to, and
        not with one node fewer of any shape. None if no number does, which cannot be for pods that
        an empty node takes.
        """
        none = (0,) * len(self._shapes)
        if self._tries.fits(none):
            return none
        best: Counts | None = None
        # The shapes that may do alone, those first that may do best.
        takers = [set(self._tries.takers(pod)) for pod in self._tries.taken]
        able = set(range(len(self._shapes))).intersection(*takers)
        at_least = {each: self._key(_with(none, each, self._least(none, each))) for each in able}
        for number in sorted(able, key=lambda each: (at_least[each], each)):
            if best is None or (at_least[number] < self._key(best) and not self._spent):
                found = [each for each in (best, self._grown(number)) if each]
                best = min(found, key=self._key, default=None)
        several = len(self._shapes) > 1
        if several and (best is None or _cost_of(self._shapes, best) > self.bound):
            dear = sorted(
                range(len(self._shapes)),
                key=lambda number: -self._shapes[number].cost / max(self._shapes[number].units, 1),
            )
            # The dearest for its memory is reduced first, or last.
            for order in (dear, dear[::-1]):
                rich = None if best and self._spent else self._rich()
                found = [each for each in (best, rich and self._reduced(rich, order)) if each]
                best = min(found, key=self._key, default=None)
        while best and not self._spent and (exchanged := self._exchanged(best)):
            best = exchanged
        return best

    @property
    def _spent(self) -> bool:
        """Whether so much has been tried that no better counts are looked for."""
        return self._tries.work > _MOST_WORK

    def _key(self, counts: Counts) -> tuple[Fraction, int]:
        """Return what is to be low: the cost, then the units of all nodes."""
        units = (shape.units * count for shape, count in zip(self._shapes, counts, strict=True))
        return _cost_of(self._shapes, counts), sum(units)

    def _least(self, counts: Counts, number: int) -> int:
        """Return how many nodes of the shape there are at least beside so many of the others."""
        least = 0
        for lack, gives in self._measures:
            others = sum(
                gives[other] * count for other, count in enumerate(counts) if other != number
            )
            if gives[number] and lack > others:
                least = max(least, -(-(lack - others) // gives[number]))
        return least

    def _grown(self, number: int) -> Counts | None:
        """Return as many of this shape alone as it takes; None if no number does."""
        counts = (0,) * len(self._shapes)
        low = self._least(counts, number)
        bad, good, step = low - 1, low, 1
        while not self._tries.fits(_with(counts, number, good)):
            if good >= self._most:
                return None
            bad, good, step = good, min(good + step, self._most), step * 2
        return self._between(counts, number, bad, good)

    def _between(self, counts: Counts, number: int, bad: int, good: int) -> Counts:
        """Return counts that fit, with one of the shape fewer they do not; `good` fits."""
        while good - bad > 1:
            middle = (bad + good) // 2
            if self._tries.fits(_with(counts, number, middle)):
                good = middle
            else:
                bad = middle
        return _with(counts, number, good)

    def _rich(self) -> Counts | None:
        """Return counts of all shapes that fit."""
        count = max(ceil(self.bound / sum(shape.cost for shape in self._shapes)), 1)
        while not self._tries.fits(counts := (count,) * len(self._shapes)):
            if count > self._most:
                return None
            count *= 2
        # Without those that no pod is on, if the others do alone.
        shown = self._tries.nodes.shown(counts, self._tries.result(counts)[1])
        with_pods = Counter(each.shape for each in shown if any(each.used))
        used = tuple(with_pods[number] for number in range(len(counts)))
        return used if self._tries.fits(used) else counts

    def _reduced(self, counts: Counts, order: Sequence[int]) -> Counts:
        """Return counts that fit, and with one node fewer of any shape they do not."""
        before = None
        while before != counts:
            before = counts
            for number in order:
                low, good, step = self._least(counts, number), counts[number], 1
                while good > low and self._tries.fits(_with(counts, number, max(good - step, low))):
                    good, step = max(good - step, low), step * 2
                counts = self._between(counts, number, max(good - step, low - 1), good)
        return counts

    def _exchanged(self, counts: Counts) -> Counts | None:
        """Return better counts, with nodes of one shape in the place of some of another."""
        every = range(len(counts))
        for old, new in ((old, new) for old in every if counts[old] for new in every if new != old):
            for gone in sorted({counts[old], (counts[old] + 1) // 2, 1}, reverse=True):
                comes = int(gone * self._shapes[old].cost / self._shapes[new].cost)
                for come in (comes, comes - 1):
                    mix = _with(_with(counts, old, counts[old] - gone), new, counts[new] + come)
                    better = come >= 0 and self._key(mix) < self._key(counts)
                    if better and not self._spent and self._tries.fits(mix):
                        return self._reduced(mix, [old, new, *every])
        return None


def _with(counts: Counts, number: int, count: int) -> Counts:
    return (*counts[:number], count, *counts[number + 1 :])


class _Measure(NamedTuple):
    """One amount of which there is too little."""

    lack: int
    """What the pods want beyond what is there."""
    gives: tuple[int, ...]
    """What a node gives, by shape, at most all that is lacking: half a node does not come."""


def _least_cost(every: Iterable[_Measure], costs: Sequence[Fraction]) -> Fraction:
    """Return what nodes cost at least that give what is lacking by each measure.

    costs: of a node, by shape. It is a multiple of what all of them are multiples of.
    """
    lacking = [each for each in set(every) if each.lack > 0 and any(each.gives)]
    dear = sorted(lacking, key=lambda each: (-_alone(each, costs), each))[:_MOST_MEASURES]
    least = max((_alone(each, costs) for each in dear), default=Fraction(0))
    for pair in combinations(dear, 2):
        least = max([least, *_together(pair, costs)])
    below = lcm(*(cost.denominator for cost in costs))
    step = Fraction(gcd(*(int(cost * below) for cost in costs)), below)
    return ceil(least / step) * step


def _alone(measure: _Measure, costs: Sequence[Fraction]) -> Fraction:
    """Return the least cost of nodes that give as much."""
    rates = [cost / gives for cost, gives in zip(costs, measure.gives, strict=True) if gives]
    return measure.lack * min(rates)


def _together(pair: Sequence[_Measure], costs: Sequence[Fraction]) -> Iterator[Fraction]:
    """Yield what nodes cost at least that give as much by both measures.

    If each thing of the one measure is worth x and of the other y, and no shape gives more worth
    than it costs, then the nodes cost at least the worth of what is lacking. The best x and y are
    those for which two of the shapes give exactly what they cost.
    """
    first, second = pair
    shapes = [*zip(first.gives, second.gives, costs, strict=True)]
    for (a, b, cost), (c, d, price) in combinations(shapes, 2):
        both = a * d - b * c
        if both:
            x, y = (cost * d - b * price) / both, (a * price - cost * c) / both
            if x >= 0 <= y and all(x * e + y * f <= most for e, f, most in shapes):
                yield x * first.lack + y * second.lack


def _measures(
    existing: Snapshot, shapes: Sequence[Snapshot], pods: Sequence[Wanted]
) -> Iterator[_Measure]:
    """Yield what these pods lack on the nodes that are there.

    shapes: one empty node of each. pods: each with a count.
    """
    every = (existing, *shapes)
    yield from _sums(every, pods)
    asked = Counter[tuple[tuple[int, ...], Percents]]()
    for pod in pods:
        asked[pod.request.parts, pod.request.percents] += pod.count or 0
    # (units, on how many devices at least as many, percents).
    sizes = {
        (units, devices, percents)
        for parts, percents in asked
        for units, devices in {units: number for number, units in enumerate(parts, 1)}.items()
    }
    largest = sorted(sizes, key=lambda size: (-size[0] * size[1], size))
    for units, devices, percents in largest[:_MOST_SIZES]:
        # A device has as many places for these units as fit there; a part of more units takes as
        # many of them as fit into its own.
        places = sum(n * sum(part // units for part in parts) for (parts, _), n in asked.items())
        yield _measure(places, [int((each.free // max(units, 1)).sum()) for each in every])
        as_large = sum(
            n
            for (parts, others), n in asked.items()
            if parts[devices - 1 : devices] >= (units,)
            and all(map(ge, others or NO_PERCENTS, percents))
        )
        request = Request(units, devices, percents=percents)
        yield _measure(as_large, [room_for(each, request, as_large) for each in every])


def _sums(every: Sequence[Snapshot], pods: Sequence[Wanted]) -> Iterator[_Measure]:
    """Yield units, CPU, memory, percents, and places for so many percents on one device."""
    units = sum(pod.request.total * (pod.count or 0) for pod in pods)
    yield _measure(units, [int(each.free.sum()) for each in every])
    cpu = sum(pod.request.cpu * (pod.count or 0) for pod in pods)
    memory = sum(pod.request.memory * (pod.count or 0) for pod in pods)
    for asked, name in ((cpu, "cpu_free"), (memory, "memory_free")):
        free = [getattr(each, name) for each in every]
        if not any((each > HOST_BOUND // 2).any() for each in free):  # else it is not known
            yield _measure(asked, [int(np.maximum(each, 0).sum()) for each in free])
    for index in range(len(PERCENT_AMOUNTS)):
        devices = Counter[int]()
        for pod in pods:
            if requested := pod.request.every_percent[index]:
                devices[requested] += pod.request.devices * (pod.count or 0)
        for percent in {1, *devices} if devices else ():
            places = sum(number * (part // percent) for part, number in devices.items())
            yield _measure(places, [_places_of(index, each, percent) for each in every])


def _measure(wanted: int, amounts: Sequence[int]) -> _Measure:
    """Return the measure of which so much is wanted. amounts: what is there, and then what a node
    gives, by shape.
    """
    lack = max(wanted - amounts[0], 0)
    return _Measure(lack, tuple(min(each, lack) for each in amounts[1:]))


def _places_of(index: int, snapshot: Snapshot, percent: int) -> int:
    """Return how many times `percent` of PERCENT_AMOUNTS[index] is free; the whole of an exclusive
    amount only on an empty device.
    """
    amount, places = PERCENT_AMOUNTS[index], snapshot.percents_free[index] // percent
    if amount.is_exclusive and percent == amount.whole:
        places[snapshot.used > 0] = 0
    return int(places.sum())
