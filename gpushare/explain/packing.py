"""The search for the fewest nodes, or the cheapest, that take all pods.

Tested in `tests/unit/explain/test_need.py`.
"""

from collections.abc import Iterator, Sequence
from fractions import Fraction
from math import ceil

from gpushare.explain.bounds import least_cost, measures
from gpushare.explain.shapes import Shape
from gpushare.explain.tries import MOST_PLENTY, Counts, Tries

_MOST_WORK = 100_000_000
"""Work, as `Tries.work` counts it, until no better mix of shapes is looked for: half a minute."""


def cost_of(shapes: Sequence[Shape], counts: Counts) -> Fraction:
    """Return the price of this many nodes of each shape, or their number if none has a price."""
    costs = (count * shape.cost for shape, count in zip(shapes, counts, strict=True))
    return sum(costs, Fraction(0))


class Search:
    """Looks for numbers of nodes by tries. bound: what they cost at least, by sums."""

    def __init__(self, tries: Tries) -> None:
        self._tries = tries
        self._shapes = shapes = tries.nodes.shapes
        self._most = sum(pod.count or 0 for pod in tries.taken) + MOST_PLENTY
        empty = [tries.empty(number) for number in range(len(shapes))]
        self._measures = list(measures(tries.existing(), empty, tries.taken))
        self.bound = least_cost(self._measures, [shape.cost for shape in shapes])

    def fewest(self) -> Counts | None:
        """Return the best numbers of nodes that are found. All pods fit with them that have to, and
        not with one node fewer of any shape. None if no number does, which cannot be for pods that
        an empty node takes.
        """
        none = (0,) * len(self._shapes)
        if self._tries.fits(none):
            return none
        best: Counts | None = None
        for number in self._promising():
            least = _with(none, number, self._least(none, number))
            if best is None or (self._key(least) < self._key(best) and not self._spent):
                best = self._better(best, self._grown(none, number))
        several = len(self._shapes) > 1
        if several and (best is None or cost_of(self._shapes, best) > self.bound):
            for order in self._orders():
                rich = None if best and self._spent else self._rich()
                best = self._better(best, rich and self._reduced(rich, order))
        while best and not self._spent and (exchanged := self._exchanged(best)):
            best = exchanged
        return best

    @property
    def _spent(self) -> bool:
        """Whether so much has been tried that no better counts are looked for."""
        return self._tries.work > _MOST_WORK

    def _better(self, best: Counts | None, other: Counts | None) -> Counts | None:
        known = [each for each in (best, other) if each is not None]
        return min(known, key=self._key, default=None)

    def _key(self, counts: Counts) -> tuple[Fraction, int]:
        """Return what is to be low: the cost, then the units of all nodes."""
        units = (shape.units * count for shape, count in zip(self._shapes, counts, strict=True))
        return cost_of(self._shapes, counts), sum(units)

    def _promising(self) -> list[int]:
        """Return the shapes that may do alone, those first that may do best."""
        every = [set(self._tries.takers(pod)) for pod in self._tries.taken]
        able = set(range(len(self._shapes))).intersection(*every)
        none = (0,) * len(self._shapes)
        at_least = {each: _with(none, each, self._least(none, each)) for each in able}
        return sorted(able, key=lambda number: (self._key(at_least[number]), number))

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

    def _grown(self, counts: Counts, number: int) -> Counts | None:
        """Return the counts with as many of this shape as it takes; None if no number does."""
        low = self._least(counts, number)
        bad, good, step = low - 1, low, 1
        while not self._tries.fits(_with(counts, number, good)):
            if good >= self._most:
                return None
            bad, good, step = good, min(good + step, self._most), step * 2
        return self._between(counts, number, bad, good)

    def _shrunk(self, counts: Counts, number: int) -> Counts:
        """Return the counts with as few of this shape as it takes; these counts fit."""
        low, good, step = self._least(counts, number), counts[number], 1
        while good > low and self._tries.fits(_with(counts, number, max(good - step, low))):
            good, step = max(good - step, low), step * 2
        return self._between(counts, number, max(good - step, low - 1), good)

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
        used = self._tries.used(counts)
        return used if self._tries.fits(used) else counts

    def _orders(self) -> Iterator[list[int]]:
        """Yield orders in which shapes are reduced: the dearest for its memory first, or last."""
        dear = sorted(
            range(len(self._shapes)),
            key=lambda number: -self._shapes[number].cost / max(self._shapes[number].units, 1),
        )
        yield dear
        yield dear[::-1]

    def _reduced(self, counts: Counts, order: Sequence[int]) -> Counts:
        """Return counts that fit, and with one node fewer of any shape they do not."""
        before = None
        while before != counts:
            before = counts
            for number in order:
                counts = self._shrunk(counts, number)
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
