"""The value of the residue of a device: of the pieces that could still be cut from the residue.

This is cutting stock: which cutting of the devices into the pods to come is cheapest? The demand of
the pods, in the proportions of the workload, is as many units as exist. The cost of a device is the
number of units; devices beyond the existing ones cost DEARER times as much. The duals of this
linear programme are the price of a piece of each size, in units, on any device. So devices that
large pods need are dear if few such devices are left, and on average a unit costs one. The value of
a residue is the dearest set of pieces that fits. A placement that ruins a pattern therefore loses
more value than the placed piece has.

The programme is solved by column generation (a column is one way to cut a device of one capacity)
with HiGHS. Each device is divided into *steps*: pieces are rounded up and residues down, but the
number of pieces of one size that fit stays right.

Tested in `tests/unit/core/test_prices.py`.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import highspy
import numpy as np

from gpushare.core.snapshot import Floats
from gpushare.core.workload import PodClass

DEARER = 2.0
"""The price of a device beyond the existing ones, as a multiple of an existing one's."""

_MAX_STEPS = 1024
_MAX_SIZES = 64
"""Upper bound of the sizes: users choose the sizes of pods, and 64 sizes and four capacities take a
third of a second."""
_NO_GAIN = 1 + 1e-9


@dataclass(frozen=True, slots=True)
class _CardSize:
    """Devices of one capacity."""

    capacity: int
    number: int
    """Number of devices."""
    steps: int
    """Steps of each device."""
    which: tuple[int, ...]
    """Indices of the sizes that fit a device."""
    sizes: tuple[int, ...]
    """The steps of these sizes."""


def worth(classes: Iterable[tuple[PodClass, int]], devices: Mapping[int, int]) -> dict[int, Floats]:
    """Return by capacity float64 (steps + 1,): the value of a residue, in units, by steps.

    A residue of r units has `r * steps // capacity` steps. devices: number of devices by capacity.
    If no pod fits a device, the value of the whole device is the number of units.
    """
    largest = max(devices, default=0)
    demand: dict[int, int] = {}
    for cls, count in classes:
        if cls.devices > 0 and cls.units <= largest:
            demand[cls.units] = demand.get(cls.units, 0) + cls.devices * count
    if len(demand) > _MAX_SIZES:
        demand = _coarser(demand, devices)
    # Counted in the largest unit that divides all: several duals may be best, and which one is
    # found must not depend on whether the cluster counts in GiB or in MiB.
    unit = math.gcd(*devices, *demand)
    pieces = [(size // unit, demand[size]) for size in sorted(demand)]
    sizes = [size for size, _ in pieces]
    cards = [_cards(capacity // unit, devices[capacity], sizes) for capacity in sorted(devices)]
    prices = _Programme(cards, pieces).prices() if pieces else []
    values: dict[int, Floats] = {}
    for one in cards:
        by_steps = np.array(_fill(one, prices)[0])
        if not one.which:
            by_steps[one.steps] = one.capacity
        values[one.capacity * unit] = unit * by_steps
    return values


def _coarser(demand: Mapping[int, int], capacities: Iterable[int]) -> dict[int, int]:
    """Return the demand by size, with sizes rounded up to parts of the largest size.

    No size is rounded beyond the smallest card that the size fits.
    """
    largest, coarser = max(demand), dict[int, int]()
    for size, count in demand.items():
        part = -(-size * _MAX_SIZES // largest)
        card = min(capacity for capacity in capacities if capacity >= size)
        rounded = min(-(-part * largest // _MAX_SIZES), card)
        coarser[rounded] = coarser.get(rounded, 0) + count
    return coarser


def _cards(capacity: int, number: int, sizes: Sequence[int]) -> _CardSize:
    steps = min(capacity, _MAX_STEPS)
    which = tuple(index for index, size in enumerate(sizes) if size <= capacity)
    rounded = [
        # The same number fits in steps as in units; tiny pieces take one step each.
        min(-(-sizes[index] * steps // capacity), max(steps // (capacity // sizes[index]), 1))
        for index in which
    ]
    return _CardSize(capacity, number, steps, which, tuple(rounded))


class _Programme:
    """The linear programme. demand: (size, number of pieces that come)."""

    def __init__(self, cards: Sequence[_CardSize], demand: Sequence[tuple[int, int]]) -> None:
        self._cards = cards
        self._sizes = len(demand)
        self._units = sum(one.number * one.capacity for one in cards)
        requested_units = sum(size * count for size, count in demand)
        self._highs = highspy.Highs()  # type: ignore[no-untyped-call]  # as the library is
        self._highs.silent()
        # One thread: other work may be running, and such a small programme gains nothing.
        self._highs.setOptionValue("threads", 1)
        # Rows: the demand of each size, then the existing devices of each capacity.
        for _, count in demand:
            self._highs.addRow(count * self._units / requested_units, highspy.kHighsInf, 0, [], [])
        for row, one in enumerate(cards, self._sizes):
            self._highs.addRow(-one.number, highspy.kHighsInf, 0, [], [])
            more = (DEARER - 1) * one.capacity
            self._highs.addCol(more, 0, highspy.kHighsInf, 1, [row], [1.0])
            for index, size in zip(one.which, one.sizes, strict=True):
                self._cut(row, one, {index: one.steps // size})

    def prices(self) -> list[float]:
        """Return the price of a piece of each size in the best cutting, in units."""
        improved = True
        while improved:
            self._highs.run()
            duals = [float(dual) for dual in self._highs.getSolution().row_dual]
            prices, scarce = duals[: self._sizes], duals[self._sizes :]
            improved = False
            # Add each cut with a value above the price of the device.
            for row, (one, more) in enumerate(zip(self._cards, scarce, strict=True), self._sizes):
                best, pieces = _fill(one, prices)
                if best[one.steps] > (one.capacity + more) * _NO_GAIN:
                    self._cut(row, one, {index: pieces.count(index) for index in pieces})
                    improved = True
        cost = sum(
            one.number * (one.capacity + more)
            for one, more in zip(self._cards, scarce, strict=True)
        )
        return [price * self._units / cost for price in prices]

    def _cut(self, row: int, cards: _CardSize, pieces: Mapping[int, int]) -> None:
        """Add a way to cut a device. pieces: how many of each size."""
        rows, counts = [*sorted(pieces), row], [float(pieces[index]) for index in sorted(pieces)]
        cost, no_limit = cards.capacity, highspy.kHighsInf
        self._highs.addCol(cost, 0, no_limit, len(rows), rows, [*counts, -1.0])


def _fill(cards: _CardSize, prices: Sequence[float]) -> tuple[list[float], list[int]]:
    """Return (the price of the dearest pieces by room in steps, the pieces for a whole device)."""
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
