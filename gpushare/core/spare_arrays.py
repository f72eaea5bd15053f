"""The arrays of earlier snapshots, to be brought up to date in place of a copy.

No snapshot changes while somebody holds it, so each has arrays of its own. For 5,000 nodes with 8
devices these are a megabyte: copies for each pod drive all else out of the caches of the CPU. Two
snapshots differ in a few rows, and most snapshots are soon held by nobody.

Tested in `tests/unit/core/test_spare_arrays.py`.
"""

import sys
from typing import Any, Generic, TypeVar

import numpy as np

_T = TypeVar("_T")

Arrays = dict[str, Any]
"""By name, arrays of numpy."""

MOST = 4
"""Sets of arrays; of more the oldest is left to its holders."""

_HELD_BY_NOBODY: Arrays = {"": np.empty(0)}
"""An array to compare others with: the count has the references of the function that counts, too,
and these differ between versions of Python and with a debugger."""
_COUNTS_HOLDERS = getattr(sys, "_is_gil_enabled", lambda: True)()
"""Whether the number of holders is exact: not where threads run without the interpreter lock."""


def _most_holders(arrays: Arrays) -> int:
    return max([sys.getrefcount(array) for array in arrays.values()])


class SpareArrays(Generic[_T]):
    """Keeps sets of arrays of one shape, each with the state that it shows.

    One thread at a time may call a method. A view of an array holds the array: whatever somebody
    has got from a snapshot stays as it is. Nobody may hold the mapping alone.
    """

    def __init__(self) -> None:
        self._sets: list[tuple[_T, Arrays]] = []

    def keep(self, state: _T, arrays: Arrays) -> None:
        """Keep the arrays of a new snapshot, which is of that state."""
        self._sets.append((state, arrays))
        del self._sets[:-MOST]

    def take(self) -> tuple[_T, Arrays] | None:
        """Return a set that nobody holds, to be changed, and its state; None without one."""
        nobody = _most_holders(_HELD_BY_NOBODY)
        for number, (_, arrays) in enumerate(self._sets if _COUNTS_HOLDERS else ()):
            if _most_holders(arrays) == nobody:
                for array in arrays.values():
                    array.flags.writeable = True
                return self._sets.pop(number)
        return None
