"""Names of nodes as kube-scheduler lists them: the same list comes for each verb and each pod."""

from collections.abc import Mapping
from itertools import compress, islice, repeat

import numpy as np

from gpushare.core.snapshot import Bools, Rows

KEPT = 8
"""Parts of a list that are known again: the nodes that fit, for as many kinds of pod."""


class NodeNames(tuple[str, ...]):
    """Names of nodes, each once; it remembers what was asked about them last.

    Never changed. Two threads that ask at once both look; either result is right.
    """

    packed: tuple[object, bytes] | None = None
    """For `NodeNumbers`: the numbers by which they were packed, and the bits."""
    _found: tuple[Mapping[str, int], Rows] | None = None
    _parts: tuple[tuple[bytes, "NodeNames"], ...] | None = ()

    def rows(self, row: Mapping[str, int]) -> Rows:
        """Return intp (len(self),): the row of each name, -1 for one that is not there.

        row: of a snapshot; it is known again by identity, as snapshots share it.
        """
        found = self._found
        if found is None or found[0] is not row:
            self._found = found = row, _fixed(_looked_up(self, row))
        return found[1]

    def part(self, mask: Bools) -> "NodeNames":
        """Return the names where bool (len(self),) is true: for one of the last KEPT masks the same
        object again.
        """
        key = np.packbits(mask).tobytes()
        parts = self._parts
        names = next((names for known, names in parts or () if known == key), None)
        if names is None:
            names = NodeNames(compress(self, mask.tolist()))
            names._parts = None  # one level is remembered: parts of parts would be many
            found = self._found
            if found is not None:
                names._found = found[0], _fixed(found[1][mask])
        if parts is not None:
            others = (each for each in parts if each[0] != key)
            self._parts = ((key, names), *islice(others, KEPT - 1))
        return names


def _looked_up(names: NodeNames, row: Mapping[str, int]) -> Rows:
    return np.fromiter(map(row.get, names, repeat(-1)), np.intp, len(names))


def _fixed(rows: Rows) -> Rows:
    rows.flags.writeable = False
    return rows
