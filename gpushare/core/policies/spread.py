"""spread: the emptiest node, and on it the emptiest device.

For pods that suffer more from neighbours than from waiting; it strands memory.

Tested in `tests/contract/test_policies.py`.
"""

from gpushare.core.model import Request
from gpushare.core.policies.binpack import Binpack
from gpushare.core.snapshot import Floats, Rows, Snapshot


class Spread(Binpack):
    """Most free units on the node first; there, the device with the most free units."""

    def score(self, snapshot: Snapshot, rows: Rows, request: Request) -> Floats:
        """Return the free units of the node, plus a fraction below one for those of the device."""
        return -super().score(snapshot, rows, request)
