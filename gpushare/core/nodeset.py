"""Sets of nodes as bits: a node of the ledger takes one bit in each of thousands of sets.

Pure and without a lock: threads that share one need a lock of their own.

Tested in `tests/unit/extender/verbs/bind/test_tickets.py`.
"""

from collections.abc import Collection

import numpy as np

from gpushare.core.node_names import NodeNames, looked_up
from gpushare.core.snapshot import Rows


class NodeNumbers:
    """Numbers of node names: the first name gets 0. A name keeps its number."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def __len__(self) -> int:
        """Return how many names have numbers."""
        return len(self._numbers)

    def bits(self, nodes: Collection[str]) -> bytes:
        """Return the set of these nodes; new names get numbers."""
        if not nodes:
            return b""
        if isinstance(nodes, NodeNames) and nodes.packed and nodes.packed[0] is self._numbers:
            return nodes.packed[1]
        numbers = self._numbered(nodes)
        if (numbers < 0).any():
            for name in nodes:
                self._numbers.setdefault(name, len(self._numbers))
            numbers = self._numbered(nodes)
        bits = np.zeros(int(numbers.max()) + 1, dtype=bool)
        bits[numbers] = True
        packed = np.packbits(bits, bitorder="little").tobytes()
        if isinstance(nodes, NodeNames):  # it never changes
            nodes.packed = self._numbers, packed
        return packed

    def has(self, bits: bytes, node: str) -> bool:
        """Return whether the node is in the set."""
        place, bit = divmod(self._numbers.get(node, 8 * len(bits)), 8)
        return place < len(bits) and bool(bits[place] >> bit & 1)

    def _numbered(self, nodes: Collection[str]) -> Rows:
        if isinstance(nodes, NodeNames):
            return nodes.looked_up(self._numbers)
        return looked_up(nodes, self._numbers)
