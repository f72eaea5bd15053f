"""What is left on a device, priced by the pieces that could still be cut from it.

Cutting stock: how many devices do the pods that share devices need at least? Its linear programme
is solved by generating columns (a column is one way to cut a device), and its duals say which
fraction of a device a piece costs in the best cutting. The worth of a residue is the dearest set of
pieces that fits it; a placement that ruins a pattern loses more worth than its own piece has.

The programme is given to HiGHS; everything here is counted in *steps*, about hundredths of a
device, sizes rounded up and residues down.
"""

from collections.abc import Iterable

import highspy
import numpy as np

from gpushare.core.snapshot import Floats
from gpushare.core.workload import PodClass

_STEPS = 100
_NO_GAIN = 1 + 1e-9


def step_of(capacity: int) -> int:
    """Units of a step on devices of this capacity."""
    return -(-capacity // _STEPS)


def worth(classes: Iterable[tuple[PodClass, int]], capacity: int) -> Floats:
    """float64 (steps + 1,): what a residue of so many steps is worth, in milli of a device.

    At least 1000 for a whole device, though no piece may need one.
    """
    step = step_of(capacity)
    steps = capacity // step
    demand: dict[int, int] = {}
    for cls, count in classes:
        if cls.devices and cls.units < capacity:
            size = min(-(-cls.units // step), steps)
            demand[size] = demand.get(size, 0) + cls.devices * count
    sizes = sorted(demand)
    prices = _prices(sizes, [demand[size] for size in sizes], steps) if sizes else []
    best, _ = _fill(sizes, prices, steps)
    values = 1000 * np.array(best)
    values[steps] = max(values[steps], 1000)
    return values


def _prices(sizes: list[int], demand: list[int], steps: int) -> list[float]:
    """What a piece of each size costs in the best cutting, as a fraction of a device."""
    programme = highspy.Highs()  # type: ignore[no-untyped-call]  # as the library is
    programme.silent()
    # One thread: others may be running, and a programme this small gains nothing.
    programme.setOptionValue("threads", 1)
    for wanted in demand:
        programme.addRow(wanted, highspy.kHighsInf, 0, [], [])
    for index, size in enumerate(sizes):
        programme.addCol(1, 0, highspy.kHighsInf, 1, [index], [steps // size])
    while True:
        programme.run()
        prices = [float(price) for price in programme.getSolution().row_dual]
        best, pieces = _fill(sizes, prices, steps)
        if best[steps] <= _NO_GAIN:
            return prices
        used = sorted(set(pieces))
        counts = [float(pieces.count(index)) for index in used]
        programme.addCol(1, 0, highspy.kHighsInf, len(used), used, counts)


def _fill(sizes: list[int], prices: list[float], steps: int) -> tuple[list[float], list[int]]:
    """(the dearest set of pieces by room in steps, the pieces of the one for all steps)."""
    best, last = [0.0] * (steps + 1), [-1] * (steps + 1)
    pieces = list(enumerate(zip(sizes, prices, strict=True)))
    for room in range(1, steps + 1):
        best[room] = best[room - 1]
        for index, (size, price) in pieces:
            if size <= room and best[room - size] + price > best[room]:
                best[room], last[room] = best[room - size] + price, index
    chosen, room = [], steps
    while room > 0:
        if last[room] < 0:
            room -= 1
        else:
            chosen.append(last[room])
            room -= sizes[last[room]]
    return best, chosen
