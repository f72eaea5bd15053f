"""Chance as one number for each step of a story: all draws of a step come out of the number.

So a story is a list of numbers. Removing a step from the list does not change the draws of other
steps, so a failing story can be shrunk. The number 0 always draws the first, tamest choice.
"""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from random import Random
from typing import TypeVar

_T = TypeVar("_T")

BITS = 128
"""Bits of one step's number: enough for some twenty draws; later draws are zeros."""


class Chance:
    """The draws out of one number."""

    __slots__ = ("_left",)

    def __init__(self, number: int) -> None:
        self._left = number

    def below(self, limit: int) -> int:
        """A number from 0 to limit - 1."""
        self._left, drawn = divmod(self._left, limit)
        return drawn

    def once_in(self, limit: int) -> bool:
        """Return True once in so many times; never out of 0."""
        return self.below(limit) == limit - 1

    def apart(self) -> Random:
        """Further draws out of the same number, without effect on the draws here."""
        return Random(self._left)

    def pick(self, things: Sequence[_T]) -> _T:
        """One of the things."""
        return things[self.below(len(things))]


class Weighted:
    """Names with whole weights, to be drawn by."""

    def __init__(self, weights: dict[str, int]) -> None:
        positive = {name: weight for name, weight in weights.items() if weight > 0}
        self._names = list(positive)
        self._ends = list(accumulate(positive.values()))

    def draw(self, chance: Chance) -> str:
        """One of the names; "" where there is none."""
        if not self._names:
            return ""
        return self._names[bisect_right(self._ends, chance.below(self._ends[-1]))]


def numbers(seed: int, steps: int) -> list[int]:
    """The story of a seed: first the number of the world, then one number for each step."""
    source = Random(seed)
    return [source.getrandbits(BITS) for _ in range(steps + 1)]
