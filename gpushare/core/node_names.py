"""Names of nodes as kube-scheduler lists them: the same names for each pod, in any order.

Its sixteen goroutines append to one list, so the order differs from pod to pod. prioritize is
called with exactly the list that filter returned.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import compress, islice, repeat

import numpy as np

from gpushare.core.snapshot import Bools, Rows

MAX_PARTS = 8
"""Parts of a list that are remembered: the nodes that fit, for this many kinds of pod."""
_TABLES = 4
"""Mappings of names for which a table is kept: the rows of each resource, the bits of tickets."""


class NodeNames(tuple[str, ...]):
    """Names of nodes, each once, with a memo of the last lookups.

    The names never change. If two threads look up at once, both compute; either result is right.
    """

    packed: tuple[object, bytes] | None = None
    """For `NodeNumbers`: the numbers by which they were packed, and the bits."""
    _known: "tuple[KnownNames, Rows] | None" = None
    _found: tuple[Mapping[str, int], Rows] | None = None
    _parts: tuple[tuple[bytes, "NodeNames"], ...] | None = ()

    def rows(self, row: Mapping[str, int]) -> Rows:
        """Return intp (len(self),): the row of each name, -1 for an unknown one.

        row: of a snapshot; recognized by identity, since snapshots share it.
        """
        found = self._found
        if found is None or found[0] is not row:
            self._found = found = row, self.looked_up(row)
        return found[1]

    def looked_up(self, mapping: Mapping[str, int]) -> Rows:
        """Return intp (len(self),): the mapping's value for each name, -1 if it has none.

        mapping: never changes, or only grows.
        """
        if self._known is None:
            return looked_up(self, mapping)
        known, places = self._known
        found = known.table(mapping)[places]
        found.flags.writeable = False
        return found

    def part(self, mask: Bools) -> "NodeNames":
        """Return the names where bool (len(self),) is true: itself, if it is so everywhere.

        For one of the last MAX_PARTS masks it returns the same object again.
        """
        if mask.all():
            return self
        key = np.packbits(mask).tobytes()
        parts = self._parts
        names = next((names for known, names in parts or () if known == key), None)
        if names is None:
            names = NodeNames(compress(self, mask.tolist()))
            names._parts = None  # one level is remembered: parts of parts would be many
            if self._known is not None:
                names._known = self._known[0], self._known[1][mask]
            if self._found is not None:
                rows = self._found[1][mask]
                rows.flags.writeable = False
                names._found = self._found[0], rows
        if parts is not None:
            others = (each for each in parts if each[0] != key)
            self._parts = ((key, names), *islice(others, MAX_PARTS - 1))
        return names


class KnownNames:
    """Names that were seen before, recognized in any order.

    Only the tables of lookups change.
    """

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._places = {name: place for place, name in enumerate(dict.fromkeys(names))}
        self._names = np.array([*self._places, None], dtype=object)
        self._lengths = np.fromiter(map(len, self._places), np.intp, len(self._places))
        self._tables: tuple[tuple[Mapping[str, int], int, Rows], ...] = ()

    def __len__(self) -> int:
        """Return the number of names."""
        return len(self._places)

    def find(self, names: Sequence[str]) -> tuple[NodeNames, int] | None:
        """Return the names and their characters in total; None if one is unknown or comes twice."""
        places = looked_up(names, self._places)
        seen = np.zeros(len(self._names), dtype=bool)
        seen[places] = True
        if seen[-1] or np.count_nonzero(seen) < len(names):
            return None
        found = NodeNames(self._names[places].tolist())
        found._known = self, places  # noqa: SLF001 -- the other half of this class
        return found, int(self._lengths[places].sum())

    def joined(self, names: Sequence[str]) -> "KnownNames":
        """Return these names together with the given ones."""
        return KnownNames([*self._places, *names])

    def table(self, mapping: Mapping[str, int]) -> Rows:
        """Return intp: the mapping's value for each name, -1 if it has none."""
        size, tables = len(mapping), self._tables
        for known, length, table in tables:
            if known is mapping and length == size:
                return table
        table = looked_up(self._places, mapping)
        others = (each for each in tables if each[0] is not mapping)
        self._tables = ((mapping, size, table), *islice(others, _TABLES - 1))
        return table


class NodeNumbers:
    """Sets of nodes as bits: a node of the ledger takes one bit in each of thousands of sets.

    The first name gets number 0, and a name keeps its number. Threads that share one need a lock.
    """

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def __len__(self) -> int:
        """Return how many names have numbers."""
        return len(self._numbers)

    def bits(self, nodes: NodeNames) -> bytes:
        """Return the set of these nodes; new names get numbers."""
        if not nodes:
            return b""
        if nodes.packed and nodes.packed[0] is self._numbers:
            return nodes.packed[1]
        numbers = nodes.looked_up(self._numbers)
        if (numbers < 0).any():
            for name in nodes:
                self._numbers.setdefault(name, len(self._numbers))
            numbers = nodes.looked_up(self._numbers)
        bits = np.zeros(int(numbers.max()) + 1, dtype=bool)
        bits[numbers] = True
        packed = np.packbits(bits, bitorder="little").tobytes()
        nodes.packed = self._numbers, packed
        return packed

    def has(self, bits: bytes, node: str) -> bool:
        """Return whether the node is in the set."""
        place, bit = divmod(self._numbers.get(node, 8 * len(bits)), 8)
        return place < len(bits) and bool(bits[place] >> bit & 1)


def looked_up(names: Collection[str], mapping: Mapping[str, int]) -> Rows:
    """Return intp (len(names),): the mapping's value for each name, -1 if it has none."""
    found = np.fromiter(map(mapping.get, names, repeat(-1)), np.intp, len(names))
    found.flags.writeable = False
    return found
