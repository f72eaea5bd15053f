"""Names of nodes as kube-scheduler lists them: the same names for each pod, in any order.

Its sixteen goroutines append to one list, so the order differs from pod to pod. prioritize is
called with exactly the list that filter returned.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import compress, islice, repeat

import numpy as np

from gpushare.core.layout import NodeRows
from gpushare.core.snapshot import Bools, Rows

MAX_PARTS = 8
"""Parts of a list that are remembered: the nodes that fit, for this many kinds of pod."""
_TABLES = 4
"""Mappings of names for which a table is kept: the rows of each resource, the bits of tickets."""


class NodeNames(tuple[str, ...]):
    """Names of nodes, each once, with a memo of the last lookups.

    The names never change. If two threads look up at once, both compute; either result is right.
    """

    known: "tuple[KnownNames, Rows] | None" = None
    """Where each name is among names that were seen before, if all were."""
    _packed: tuple[object, bytes] | None = None
    _last_rows: tuple[Mapping[str, int], Rows] | None = None
    _parts: tuple[tuple[bytes, "NodeNames"], ...] | None = ()

    def rows(self, row: Mapping[str, int]) -> Rows:
        """Return intp (len(self),): the row of each name, -1 for an unknown one.

        row: of a snapshot; recognized by identity, since snapshots share it.
        """
        last = self._last_rows
        if last is None or last[0] is not row:
            self._last_rows = last = row, looked_up(self, row)
        return last[1]

    def bits(self, numbers: dict[str, int]) -> bytes:
        """Return the names as a set: a bit for each, by its number, from the lowest on.

        numbers: by name, from 0 on; new names get the next ones. It may only grow.
        """
        if not self:
            return b""
        packed = self._packed
        if packed is None or packed[0] is not numbers:
            places = looked_up(self, numbers)
            if (places < 0).any():
                for name in self:
                    numbers.setdefault(name, len(numbers))
                places = looked_up(self, numbers)
            bits = np.zeros(int(places.max()) + 1, dtype=bool)
            bits[places] = True
            self._packed = packed = numbers, np.packbits(bits, bitorder="little").tobytes()
        return packed[1]

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
            if self.known is not None:
                names.known = self.known[0], self.known[1][mask]
            if self._last_rows is not None:
                rows = self._last_rows[1][mask]
                rows.flags.writeable = False
                names._last_rows = self._last_rows[0], rows
        if parts is not None:
            others = (part for part in parts if part[0] != key)
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
        named = NodeNames(self._names[places].tolist())
        named.known = self, places
        return named, int(self._lengths[places].sum())

    def joined(self, names: Sequence[str]) -> "KnownNames":
        """Return these names together with the given ones."""
        return KnownNames([*self._places, *names])

    def table(self, mapping: Mapping[str, int]) -> Rows:
        """Return intp: the mapping's value for each name, -1 if it has none."""
        size, tables = len(mapping), self._tables
        for known, length, table in tables:
            if known is mapping and length == size:
                return table
        table = self._table_again(mapping)
        others = (each for each in tables if each[0] is not mapping)
        self._tables = ((mapping, size, table), *islice(others, _TABLES - 1))
        return table

    def _table_again(self, mapping: Mapping[str, int]) -> Rows:
        """Return the table of a mapping that has none, from that of an earlier one if it can."""
        if isinstance(mapping, NodeRows):
            for known, _, earlier in self._tables:
                changed = mapping.changed_since(known)
                if changed is not None:
                    table = earlier.copy()
                    for name in self._places.keys() & set(changed):
                        table[self._places[name]] = mapping.get(name, -1)
                    table.flags.writeable = False
                    return table
        return looked_up(self._places, mapping)


def looked_up(names: Collection[str], mapping: Mapping[str, int]) -> Rows:
    """Return intp (len(names),): the mapping's value for each name, -1 if it has none.

    mapping: of NodeNames one that never changes, or only grows.
    """
    if isinstance(names, NodeNames) and names.known is not None:
        known, places = names.known
        values = known.table(mapping)[places]
    else:
        values = np.fromiter(map(mapping.get, names, repeat(-1)), np.intp, len(names))
    values.flags.writeable = False
    return values
