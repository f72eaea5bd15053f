"""The arrays of earlier snapshots, to be brought up to date in place of a copy.

No snapshot changes while somebody holds it, so each has arrays of its own. For 5,000 nodes with 8
devices these are a megabyte: copies for each pod drive all else out of the caches of the CPU. Two
snapshots differ in a few rows, and most snapshots are soon held by nobody.

Tested in `tests/unit/core/test_spare_arrays.py`.
"""

from sys import getrefcount
from typing import Any, Generic, TypeVar

import numpy as np

_T = TypeVar("_T")

Arrays = dict[str, Any]
"""By name, arrays of numpy."""

MOST = 4
"""Sets of arrays; of more the oldest is left to those that hold it."""


def _most_holders(arrays: Arrays) -> int:
    return max([getrefcount(array) for array in arrays.values()])


_NOBODY_ELSE = _most_holders({"": np.empty(0)})
"""The count for arrays that only the mapping holds; it differs between versions of Python."""


class SpareArrays(Generic[_T]):
    """Sets of arrays of one shape, each with the state that it shows. One thread at a time may
    call a method.

    A view of an array holds the array: whatever somebody has got from a snapshot stays as it is.
    """

    def __init__(self) -> None:
        self._sets: list[tuple[_T, Arrays]] = []

    def keep(self, state: _T, arrays: Arrays) -> None:
        """Keep the arrays of a new snapshot, which is of that state."""
        self._sets.append((state, arrays))
        del self._sets[:-MOST]

    def take(self) -> tuple[_T, Arrays] | None:
        """Return a set that nobody holds, to be changed, and its state; None without one."""
        for number, (_, arrays) in enumerate(self._sets):
            if _most_holders(arrays) == _NOBODY_ELSE:
                for array in arrays.values():
                    array.flags.writeable = True
                return self._sets.pop(number)
        return None
