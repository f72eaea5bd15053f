"""What is left on a device, priced by the pieces that could still be cut from it.

Cutting stock: what do the pods that come take of the devices, in the cheapest cutting? They ask, in
their mix, for as many units as there are; a device costs its units, and DEARER times as much beyond
those that there are. The duals of this linear programme say what a piece of each size costs, in
units, whichever device it is cut from. So devices that large pods need are dear where few are left
for these, and in the mean a unit costs one. The worth of a residue is the dearest set of pieces
that fits it; a placement that ruins a pattern loses more worth than its own piece has.

The programme is solved by generating columns (a column is one way to cut a device of one capacity)
and given to HiGHS. Each device is counted in *steps* of its own: pieces rounded up, residues down,
but so that as many pieces of a size fit as do.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import highspy
import numpy as np

from gpushare.core.snapshot import Floats
from gpushare.core.workload import PodClass

DEARER = 2.0
"""What a device costs beyond those that there are, in the price of one that there is."""

_MOST_STEPS = 1024
_MOST_SIZES = 64
"""Whoever creates pods chooses their sizes, and the time that prices take grows with these: with 64
sizes and four capacities a third of a second.
"""
_NO_GAIN = 1 + 1e-9


@dataclass(frozen=True, slots=True)
class _Cards:
    """Devices of one capacity: how many, into how many steps each is divided; of the sizes that fit
    one which they are, and their steps.
    """

    capacity: int
    number: int
    steps: int
    which: tuple[int, ...]
    sizes: tuple[int, ...]


def worth(classes: Iterable[tuple[PodClass, int]], devices: Mapping[int, int]) -> dict[int, Floats]:
    """Return by capacity float64 (steps + 1,): what a residue of so many steps is worth, in units.

    A residue of r units has `r * steps // capacity` of them. devices: how many there are of each
    capacity. Where nothing that comes fits a device, it is worth its units while it is whole.
    """
    largest = max(devices, default=0)
    demand: dict[int, int] = {}
    for cls, count in classes:
        if cls.devices > 0 and cls.units <= largest:
            demand[cls.units] = demand.get(cls.units, 0) + cls.devices * count
    if len(demand) > _MOST_SIZES:
        demand = _coarser(demand, devices)
    # Counted in the largest unit that divides all. Several duals may be best, and which of them is
    # found must not depend on whether a cluster counts in GiB or in MiB.
    unit = math.gcd(*devices, *demand)
    wanted = [(size // unit, demand[size]) for size in sorted(demand)]
    sizes = [size for size, _ in wanted]
    cards = [_cards(capacity // unit, devices[capacity], sizes) for capacity in sorted(devices)]
    prices = _Programme(cards, wanted).prices() if wanted else []
    return {one.capacity * unit: unit * _worth(one, prices) for one in cards}


def _coarser(demand: Mapping[int, int], capacities: Iterable[int]) -> dict[int, int]:
    """Return the pieces wanted by size, rounded up to parts of the largest, but to
    no larger card.
    """
    largest, found = max(demand), dict[int, int]()
    for size, count in demand.items():
        part = -(-size * _MOST_SIZES // largest)
        card = min(capacity for capacity in capacities if capacity >= size)
        rounded = min(-(-part * largest // _MOST_SIZES), card)
        found[rounded] = found.get(rounded, 0) + count
    return found


def _cards(capacity: int, number: int, sizes: Sequence[int]) -> _Cards:
    steps = min(capacity, _MOST_STEPS)
    which = tuple(index for index, size in enumerate(sizes) if size <= capacity)
    rounded = [
        # As many as fit do so in steps too; of tiny ones, of which there are many, one a step.
        min(-(-sizes[index] * steps // capacity), max(steps // (capacity // sizes[index]), 1))
        for index in which
    ]
    return _Cards(capacity, number, steps, which, tuple(rounded))


def _worth(cards: _Cards, prices: Sequence[float]) -> Floats:
    values = np.array(_fill(cards, prices)[0])
    if not cards.which:
        values[cards.steps] = cards.capacity
    return values


class _Programme:
    """The linear programme; demand: sizes, and how many pieces of each come."""

    def __init__(self, cards: Sequence[_Cards], demand: Sequence[tuple[int, int]]) -> None:
        self._cards = cards
        self._sizes = len(demand)
        self._units = sum(one.number * one.capacity for one in cards)
        asked = sum(size * count for size, count in demand)
        self._highs = highspy.Highs()  # type: ignore[no-untyped-call]  # as the library is
        self._highs.silent()
        # One thread: others may be running, and a programme this small gains nothing.
        self._highs.setOptionValue("threads", 1)
        # Rows: of each size the pieces wanted, then of each capacity the devices that there are.
        for _, count in demand:
            self._highs.addRow(count * self._units / asked, highspy.kHighsInf, 0, [], [])
        for row, one in enumerate(cards, self._sizes):
            self._highs.addRow(-one.number, highspy.kHighsInf, 0, [], [])
            more = (DEARER - 1) * one.capacity
            self._highs.addCol(more, 0, highspy.kHighsInf, 1, [row], [1.0])
            for index, size in zip(one.which, one.sizes, strict=True):
                self._cut(row, one, {index: one.steps // size})

    def prices(self) -> list[float]:
        """Return what a piece of each size costs in the best cutting, in units."""
        while True:
            self._highs.run()
            duals = [float(dual) for dual in self._highs.getSolution().row_dual]
            prices, scarce = duals[: self._sizes], duals[self._sizes :]
            if not self._improved(prices, scarce):
                break
        cost = sum(
            one.number * (one.capacity + more)
            for one, more in zip(self._cards, scarce, strict=True)
        )
        return [price * self._units / cost for price in prices]

    def _improved(self, prices: Sequence[float], scarce: Sequence[float]) -> bool:
        """Add the ways to cut that are worth more than their device; return whether
        there were any.
        """
        found = False
        for row, (one, more) in enumerate(zip(self._cards, scarce, strict=True), self._sizes):
            best, pieces = _fill(one, prices)
            if best[one.steps] > (one.capacity + more) * _NO_GAIN:
                self._cut(row, one, {index: pieces.count(index) for index in pieces})
                found = True
        return found

    def _cut(self, row: int, cards: _Cards, pieces: Mapping[int, int]) -> None:
        """Add a way to cut a device into so many pieces of each size."""
        rows, counts = [*sorted(pieces), row], [float(pieces[index]) for index in sorted(pieces)]
        cost, most = cards.capacity, highspy.kHighsInf
        self._highs.addCol(cost, 0, most, len(rows), rows, [*counts, -1.0])


def _fill(cards: _Cards, prices: Sequence[float]) -> tuple[list[float], list[int]]:
    """Return (the dearest set of pieces by room in steps, the pieces of the one for all steps)."""
    steps = cards.steps
    best, last = [0.0] * (steps + 1), [-1] * (steps + 1)
    pieces = [
        (index, size, prices[index]) for index, size in zip(cards.which, cards.sizes, strict=True)
    ]
    for room in range(1, steps + 1):
        best[room] = best[room - 1]
        for at, (_, size, price) in enumerate(pieces):
            if size <= room and best[room - size] + price > best[room]:
                best[room], last[room] = best[room - size] + price, at
    chosen, room = [], steps
    while room > 0:
        if last[room] < 0:
            room -= 1
        else:
            index, size, _ = pieces[last[room]]
            chosen.append(index)
            room -= size
    return best, chosen
