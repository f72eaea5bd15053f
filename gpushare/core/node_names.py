"""Names of nodes as kube-scheduler lists them: the same names for each pod, in any order.

The sixteen goroutines of kube-scheduler append to one list, so the order differs from pod to pod.
kube-scheduler calls prioritize with exactly the list that filter returned.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import compress, islice, repeat

import numpy as np

from gpushare.core.layout import NodeRows
from gpushare.core.snapshot import Bools, Rows

MAX_PARTS = 8
"""Cached parts of a list: the nodes that fit, for this many kinds of pod."""
_TABLES = 4
"""Cached tables of mappings by name: the rows of each resource, the bits of tickets."""


class NodeNames(tuple[str, ...]):
    """Names of nodes, each once, with a memo of the last lookups.

    The names never change. If two threads look up at once, both compute; either result is right.
    """

    known_names: "tuple[KnownNames, Rows] | None" = None
    """(names seen before, place of each name among them); None if a name is new."""
    _packed: tuple[object, bytes] | None = None
    _last_rows: tuple[Mapping[str, int], Rows] | None = None
    _parts: tuple[tuple[bytes, "NodeNames"], ...] | None = ()

    def rows(self, row: Mapping[str, int]) -> Rows:
        """Return intp (len(self),): the row of each name, -1 for an unknown one.

        row: `Snapshot.row`; recognized by identity, since snapshots share one mapping.
        """
        last = self._last_rows
        if last is None or last[0] is not row:
            self._last_rows = last = row, looked_up(self, row)
        return last[1]

    def bits(self, numbers: dict[str, int]) -> bytes:
        """Return the names as a bit set: bit n, from the lowest on, is the name with number n.

        numbers: number of each name, from 0 on; new names are added. The dict may only grow.
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
        """Return the names where the mask, bool (len(self),), is true; self if all are.

        Returns the identical object for each of the last MAX_PARTS masks.
        """
        if mask.all():
            return self
        key = np.packbits(mask).tobytes()
        parts = self._parts
        names = next((names for cached_key, names in parts or () if cached_key == key), None)
        if names is None:
            names = NodeNames(compress(self, mask.tolist()))
            names._parts = None  # one level is cached: parts of parts would be many
            if self.known_names is not None:
                names.known_names = self.known_names[0], self.known_names[1][mask]
            if self._last_rows is not None:
                rows = self._last_rows[1][mask]
                rows.flags.writeable = False
                names._last_rows = self._last_rows[0], rows
        if parts is not None:
            older = (part for part in parts if part[0] != key)
            self._parts = ((key, names), *islice(older, MAX_PARTS - 1))
        return names


class KnownNames:
    """Names of nodes from earlier requests, recognized in any order.

    The names are fixed; only the tables of lookups change.
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
        """Return (names, total characters); None if a name is unknown or comes twice."""
        places = looked_up(names, self._places)
        is_listed = np.zeros(len(self._names), dtype=bool)
        is_listed[places] = True
        if is_listed[-1] or np.count_nonzero(is_listed) < len(names):
            return None
        found_names = NodeNames(self._names[places].tolist())
        found_names.known_names = self, places
        return found_names, int(self._lengths[places].sum())

    def joined(self, names: Sequence[str]) -> "KnownNames":
        """Return these names and the names of `names`."""
        return KnownNames([*self._places, *names])

    def table(self, mapping: Mapping[str, int]) -> Rows:
        """Return intp (len(self),): the mapping's value for each name, -1 if missing."""
        size, tables = len(mapping), self._tables
        for cached_mapping, length, table in tables:
            if cached_mapping is mapping and length == size:
                return table
        table = self._table_again(mapping)
        older = (entry for entry in tables if entry[0] is not mapping)
        self._tables = ((mapping, size, table), *islice(older, _TABLES - 1))
        return table

    def _table_again(self, mapping: Mapping[str, int]) -> Rows:
        """Return a new table of a mapping, derived from an earlier table if possible."""
        if isinstance(mapping, NodeRows):
            for earlier_mapping, _, earlier in self._tables:
                changed_names = mapping.changed_since(earlier_mapping)
                if changed_names is not None:
                    table = earlier.copy()
                    for name in self._places.keys() & set(changed_names):
                        table[self._places[name]] = mapping.get(name, -1)
                    table.flags.writeable = False
                    return table
        return looked_up(self._places, mapping)


def looked_up(names: Collection[str], mapping: Mapping[str, int]) -> Rows:
    """Return intp (len(names),): the mapping's value for each name, -1 if missing.

    mapping: for NodeNames a mapping that never changes or only grows.
    """
    if isinstance(names, NodeNames) and names.known_names is not None:
        all_names, places = names.known_names
        values = all_names.table(mapping)[places]
    else:
        values = np.fromiter(map(mapping.get, names, repeat(-1)), np.intp, len(names))
    values.flags.writeable = False
    return values
