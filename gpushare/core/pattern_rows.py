"""What a placement takes from each node, as an index into a few patterns.

Equal nodes, such as all empty ones, lose the same. One price for each pattern is enough for all of
them; a price for each node would cost as much as the rest of a request.

Tested in `tests/unit/core/test_ranking.py`.
"""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from gpushare.core.policy import Taken
from gpushare.core.snapshot import Rows

_SPARE = 64
"""Patterns without a row that are tolerated before the unused ones are dropped."""


@dataclass(frozen=True, slots=True)
class PatternRows:
    """What is taken from each of N rows; immutable.

    patterns: int8 (P, Y), the first all zeros. index: int32 (N,), the pattern of each row. numbers:
    the number of each pattern, by its bytes. least: how many patterns there were when each had a
    row.
    """

    patterns: Taken
    index: npt.NDArray[np.int32]
    numbers: dict[bytes, int]
    least: int

    @staticmethod
    def of(taken: Taken) -> "PatternRows":
        """Return the patterns and the index of int8 (N, Y)."""
        nothing = np.zeros((1, taken.shape[1]), dtype=np.int8)
        empty = PatternRows(nothing, np.zeros(0, np.int32), {nothing.tobytes(): 0}, 1)
        made = empty._with(taken)
        return replace(made, least=len(made.patterns))

    def patched(self, rows: Rows, taken: Taken) -> "PatternRows":
        """Return the same with these rows replaced, by int8 (K, Y) in their order."""
        if not len(taken):
            return self
        known = self._with(taken)
        index = self.index.copy()
        index[rows] = known.index
        if len(known.patterns) > known.least + _SPARE:
            return PatternRows.of(known.patterns.take(index, axis=0))
        return PatternRows(known.patterns, index, known.numbers, self.least)

    def row(self, row: int) -> Taken:
        """Return int8 (Y,): what is taken from one row."""
        taken: Taken = self.patterns[self.index[row]]
        return taken

    def _with(self, taken: Taken) -> "PatternRows":
        """Return the patterns with those of int8 (K, Y) added, and the index of these K rows."""
        width, data = taken.shape[1], taken.tobytes()
        keys = [data[at * width : (at + 1) * width] for at in range(len(taken))]
        numbers = self.numbers
        new = [key for key in dict.fromkeys(keys) if key not in numbers]
        patterns = self.patterns
        if new:
            numbers = numbers | {key: len(numbers) + at for at, key in enumerate(new)}
            added = np.frombuffer(b"".join(new), np.int8).reshape(len(new), width)
            patterns = np.concatenate([patterns, added])
        index = np.fromiter(map(numbers.__getitem__, keys), np.int32, len(keys))
        return PatternRows(patterns, index, numbers, self.least)
