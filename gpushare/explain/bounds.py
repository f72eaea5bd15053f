"""What no placement can do with less: the least cost of nodes that come, by sums.

Each measure is something of which the pods want a sum and each node gives an amount: units, CPU,
memory, compute, places for pods of a size. Pure.

Tested in `tests/unit/explain/test_need.py`.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import combinations
from math import ceil, gcd, lcm
from typing import NamedTuple

import numpy as np

from gpushare.core.decide import room_for
from gpushare.core.model import ALL_CORES, HOST_BOUND, Request
from gpushare.core.snapshot import Ints, Snapshot
from gpushare.explain.placer import Wanted

_MOST_SIZES = 64
"""Sizes of pods of which places are counted."""

_MOST_MEASURES = 24
"""Measures that are looked at two at a time."""


class Measure(NamedTuple):
    """One amount of which there is too little."""

    lack: int
    """What the pods want beyond what is there."""
    gives: tuple[int, ...]
    """What a node gives, by shape, at most all that is lacking: half a node does not come."""

    @staticmethod
    def of(wanted: int, available: int, gives: Iterable[int]) -> "Measure":
        """Return the measure of which so much is wanted, and so much is there."""
        lack = max(wanted - available, 0)
        return Measure(lack, tuple(min(each, lack) for each in gives))


def least_cost(every: Iterable[Measure], costs: Sequence[Fraction]) -> Fraction:
    """Return what nodes cost at least that give what is lacking by each measure.

    costs: of a node, by shape. It is a multiple of what all of them are multiples of.
    """
    lacking = [each for each in set(every) if each.lack > 0 and any(each.gives)]
    dear = sorted(lacking, key=lambda each: (-_alone(each, costs), each))[:_MOST_MEASURES]
    least = max((_alone(each, costs) for each in dear), default=Fraction(0))
    for pair in combinations(dear, 2):
        least = max([least, *_together(pair, costs)])
    step = _common_measure(costs)
    return ceil(least / step) * step


def _alone(measure: Measure, costs: Sequence[Fraction]) -> Fraction:
    """Return the least cost of nodes that give as much."""
    rates = [cost / gives for cost, gives in zip(costs, measure.gives, strict=True) if gives]
    return measure.lack * min(rates)


def _together(pair: Sequence[Measure], costs: Sequence[Fraction]) -> Iterator[Fraction]:
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


def _common_measure(costs: Sequence[Fraction]) -> Fraction:
    """Return the largest number of which all costs are multiples."""
    below = lcm(*(cost.denominator for cost in costs))
    return Fraction(gcd(*(int(cost * below) for cost in costs)), below)


def measures(
    existing: Snapshot, shapes: Sequence[Snapshot], pods: Sequence[Wanted]
) -> Iterator[Measure]:
    """Yield what these pods lack on the nodes that are there.

    shapes: one empty node of each. pods: each with a count.
    """
    # What one asks for besides is something else to sums: they do not see that it is of one node.
    pods = [
        *pods,
        *(replace(pod, request=more.request, also=()) for pod in pods for more in pod.also),
    ]
    yield from _sums(existing, shapes, pods)
    yield from _compute(existing, shapes, pods)
    asked = Counter[tuple[tuple[int, ...], int]]()
    for pod in pods:
        asked[pod.request.parts, pod.request.cores] += pod.count or 0
    # (units, on how many devices at least as many, cores).
    sizes = {
        (units, devices, cores)
        for parts, cores in asked
        for units, devices in {units: number for number, units in enumerate(parts, 1)}.items()
    }
    largest = sorted(sizes, key=lambda size: (-size[0] * size[1], size))
    for units, devices, cores in largest[:_MOST_SIZES]:
        # A device has as many places for these units as fit there; a part of more units takes as
        # many of them as fit into its own.
        places = sum(n * sum(part // units for part in parts) for (parts, _), n in asked.items())
        gives = tuple(_places(each, units) for each in shapes)
        yield Measure.of(places, _places(existing, units), gives)
        as_large = sum(
            n
            for (parts, c), n in asked.items()
            if parts[devices - 1 : devices] >= (units,) and c >= cores
        )
        request = Request(units, devices, cores=cores)
        room = tuple(room_for(each, request, as_large) for each in shapes)
        yield Measure.of(as_large, room_for(existing, request, as_large), room)


def _sums(
    existing: Snapshot, shapes: Sequence[Snapshot], pods: Sequence[Wanted]
) -> Iterator[Measure]:
    """Yield units, CPU and memory."""
    units = sum(pod.request.total * (pod.count or 0) for pod in pods)
    gives = tuple(int(each.free.sum()) for each in shapes)
    yield Measure.of(units, int(existing.free.sum()), gives)
    cpu = sum(pod.request.cpu * (pod.count or 0) for pod in pods)
    memory = sum(pod.request.memory * (pod.count or 0) for pod in pods)
    for asked, name in ((cpu, "cpu_free"), (memory, "memory_free")):
        every = [_total(getattr(each, name)) for each in (existing, *shapes)]
        if None not in every:
            available, *by_shape = (each or 0 for each in every)
            yield Measure.of(asked, available, by_shape)


def _compute(
    existing: Snapshot, shapes: Sequence[Snapshot], pods: Sequence[Wanted]
) -> Iterator[Measure]:
    """Yield the compute, and places for so much of it on one device."""
    wanted: dict[int, int] = {}
    for pod in pods:
        if cores := pod.request.cores:
            devices = pod.request.devices * (pod.count or 0)
            wanted[cores] = wanted.get(cores, 0) + devices
    for cores in {1, *wanted} if wanted else ():
        places = sum(devices * (asked // cores) for asked, devices in wanted.items())
        available, *gives = (_places_of_cores(each, cores) for each in (existing, *shapes))
        yield Measure.of(places, available, gives)


def _places_of_cores(snapshot: Snapshot, cores: int) -> int:
    """Return how many times so much compute can be had; all of a device only if it is empty."""
    places = snapshot.cores_free // cores
    if cores == ALL_CORES:
        places[snapshot.used > 0] = 0
    return int(places.sum())


def _total(free: Ints) -> int | None:
    """Return the sum; None if it is not known of some node."""
    return None if (free > HOST_BOUND // 2).any() else int(np.maximum(free, 0).sum())


def _places(snapshot: Snapshot, units: int) -> int:
    return int((snapshot.free // max(units, 1)).sum())
