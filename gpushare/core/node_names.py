"""Names of nodes as kube-scheduler lists them: the same list comes for each verb and each pod."""

from collections.abc import Mapping
from itertools import repeat

import numpy as np

from gpushare.core.snapshot import Rows


class NodeNames(tuple[str, ...]):
    """Names of nodes, each once; it remembers their rows in the layout that was asked about last.

    Never changed. Two threads that ask at once both look; either result is right.
    """

    _found: tuple[Mapping[str, int], Rows] | None = None

    def rows(self, row: Mapping[str, int]) -> Rows:
        """Return intp (len(self),): the row of each name, -1 for one that is not there.

        row: of a snapshot; it is known again by identity, as snapshots share it.
        """
        found = self._found
        if found is None or found[0] is not row:
            rows = np.fromiter(map(row.get, self, repeat(-1)), np.intp, len(self))
            rows.flags.writeable = False
            self._found = found = row, rows
        return found[1]
