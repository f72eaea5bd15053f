"""What no placement can do with less: the least cost of nodes that come, by sums.

Each measure is something of which the pods want a sum and each node gives an amount: units, CPU,
memory, places for pods of a size. Pure.

Tested in `tests/unit/explain/test_need.py`.
"""

from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from gpushare.core.decide import room_for
from gpushare.core.model import HOST_BOUND, Request
from gpushare.core.snapshot import Ints, Snapshot
from gpushare.explain.placer import Wanted

_MOST_SIZES = 64
"""Sizes of pods of which places are counted."""


class Measure(NamedTuple):
    """lack: what the pods want beyond what is there. gives: what a node gives, by shape."""

    lack: int
    gives: tuple[int, ...]

    def cost(self, costs: Sequence[Fraction]) -> Fraction:
        """Return the least cost of nodes that give as much."""
        rates = [cost / gives for cost, gives in zip(costs, self.gives, strict=True) if gives]
        return self.lack * min(rates, default=Fraction(0))


def measures(
    there: Snapshot, shapes: Sequence[Snapshot], pods: Sequence[Wanted]
) -> Iterator[Measure]:
    """Yield what these pods lack on the nodes that are there.

    shapes: one empty node of each. pods: each with a count.
    """
    yield from _sums(there, shapes, pods)
    sizes: dict[tuple[int, int], int] = {}
    for each in pods:
        size = each.request.units, each.request.devices
        sizes[size] = sizes.get(size, 0) + (each.count or 0)
    largest = sorted((size for size in sizes if size[1]), key=lambda size: -size[0] * size[1])
    for units, devices in largest[:_MOST_SIZES]:
        # A device has as many places for these units as they fit there, whoever takes them.
        places = sum(n * k for (u, k), n in sizes.items() if u >= units)
        gives = tuple(_places(each, units) for each in shapes)
        yield Measure(max(places - _places(there, units), 0), gives)
        as_large = sum(n for (u, k), n in sizes.items() if u >= units and k >= devices)
        request = Request(units, devices)
        room = tuple(room_for(each, request, as_large) for each in shapes)
        yield Measure(as_large - room_for(there, request, as_large), room)


def _sums(there: Snapshot, shapes: Sequence[Snapshot], pods: Sequence[Wanted]) -> Iterator[Measure]:
    """Yield units, CPU and memory."""
    units = sum(each.request.total * (each.count or 0) for each in pods)
    gives = tuple(int(each.free.sum()) for each in shapes)
    yield Measure(max(units - int(there.free.sum()), 0), gives)
    cpu = sum(each.request.cpu * (each.count or 0) for each in pods)
    memory = sum(each.request.memory * (each.count or 0) for each in pods)
    for asked, name in ((cpu, "cpu_free"), (memory, "memory_free")):
        every = [_left(getattr(each, name)) for each in (there, *shapes)]
        if None not in every:
            left, *given = (each or 0 for each in every)
            yield Measure(max(asked - left, 0), tuple(given))


def _left(free: Ints) -> int | None:
    """Return the sum; None if it is not known of some node."""
    return None if (free > HOST_BOUND // 2).any() else int(np.maximum(free, 0).sum())


def _places(snapshot: Snapshot, units: int) -> int:
    return int((snapshot.free // max(units, 1)).sum())
