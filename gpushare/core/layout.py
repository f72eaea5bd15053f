"""The layout: the part of the arrays that only the nodes' shapes make, kept by row.

A node that comes, goes or changes costs its own row and a few copies, not a walk over all nodes.
Unchanged parts are shared with the layout before, so that readers see changes by identity.
`capacity` is another array whenever anything has changed that a policy may read of other rows:
names, capacity, models, groups, CPU and memory. It stays the same when devices only close or open.

Knows numpy and the model, no charges. Tested in `tests/unit/core/test_layout.py`.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
import numpy.typing as npt

from gpushare.core.model import ANY_SHARERS, NodeSpec

_GIB_BITS = 30
_ROWS = 64
_MOST_CHANGES = 16
"""Changes of the nodes' names that are remembered."""

_A = TypeVar("_A", bound=npt.NDArray[Any])


class NodeRows(Mapping[str, int]):
    """The row of each node by its name, and the names that differ from earlier layouts.

    It is never changed. It has a copy of the dict and is no dict: Python copies the memory of a
    dict by `copy` alone, and each item once a name was removed where a subclass is made.
    """

    def __init__(
        self, rows: dict[str, int], before: "NodeRows | None", renamed: Iterable[str]
    ) -> None:
        self._rows = rows.copy()
        # Thousands of names are looked up at once.
        self.get = self._rows.get  # type: ignore[method-assign]
        self.lineage: object = object() if before is None else before.lineage
        self.serial: int = 0 if before is None else before.serial + 1
        history = () if before is None else before.history[1 - _MOST_CHANGES :]
        self.history: tuple[tuple[str, ...], ...] = (*history, tuple(renamed))

    def __getitem__(self, name: str) -> int:
        """Return the row of the node."""
        return self._rows[name]

    def __iter__(self) -> Iterator[str]:
        """Return the names."""
        return iter(self._rows)

    def __len__(self) -> int:
        """Return the number of nodes."""
        return len(self._rows)

    def changed_since(self, rows: Mapping[str, int]) -> Iterable[str] | None:
        """Return the names that may be in other rows than in an earlier one, or in one of both
        alone; None if that is not known.
        """
        if not isinstance(rows, NodeRows) or rows.lineage is not self.lineage:
            return None
        changes = self.serial - rows.serial
        if not 0 <= changes <= len(self.history):
            return None
        return chain.from_iterable(self.history[len(self.history) - changes :])


class Layout(NamedTuple):
    """The fields of a Snapshot that only nodes change."""

    names: tuple[str, ...]
    row: NodeRows
    capacity: npt.NDArray[np.int64]
    healthy: npt.NDArray[np.bool_]
    model: npt.NDArray[np.int16]
    models: tuple[str, ...]
    uuids: tuple[tuple[str, ...], ...]
    cpu_capacity: npt.NDArray[np.int64]
    memory_capacity: npt.NDArray[np.int64]
    group: npt.NDArray[np.int32]
    sharers: npt.NDArray[np.int16]
    closed: npt.NDArray[np.int8]
    order: npt.NDArray[np.int64]


class GroupRows(NamedTuple):
    """The nodes of each group. They are equal when empty, so one represents all."""

    row: npt.NDArray[np.intp]
    """intp (groups,): the row of one of the nodes, 0 if there is none."""
    nodes: npt.NDArray[np.int64]
    """int64 (groups,): the number of nodes."""
    shapes: object
    """An object that layouts of the same arrays share until a group is new or gone."""

    @staticmethod
    def of(group: npt.NDArray[np.int32], order: npt.NDArray[np.int64]) -> "GroupRows":
        """Return the groups of all nodes. group, order: (N,), as in a Snapshot."""
        rows, size = np.flatnonzero(order >= 0), int(group.max(initial=-1)) + 1
        row = np.zeros(size, dtype=np.intp)
        row[group[rows]] = rows
        nodes = np.bincount(group[rows], minlength=size).astype(np.int64)
        return GroupRows(row, nodes, object())

    def largest(self, capacity: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return int64 (groups,): units of the largest device of a node, 0 without devices.

        capacity: as in a Snapshot.
        """
        units: npt.NDArray[np.int64] = capacity.take(self.row, axis=0).max(axis=1, initial=0)
        units[self.nodes == 0] = 0
        return units


class Numbers:
    """Numbers of values, from 0 on; that of a value nobody uses any more goes to a new one."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._users: list[int] = []
        self._values: list[Any] = []
        self._spare: list[int] = []

    def take(self, value: Hashable) -> int:
        """Return the number of the value, and count one more user of it."""
        number = self._numbers.get(value)
        if number is None:
            if self._spare:
                number = self._spare.pop()
            else:
                number = len(self._values)
                self._values.append(None)
                self._users.append(0)
            self._numbers[value] = number
            self._values[number] = value
        self._users[number] += 1
        return number

    def release(self, number: int) -> None:
        """Count one user less of the value with that number."""
        self._users[number] -= 1
        if not self._users[number]:
            del self._numbers[self._values[number]]
            self._values[number] = None
            self._spare.append(number)

    def values(self, missing: str = "") -> tuple[Any, ...]:
        """Return the values by number; `missing` where nobody uses a number."""
        return tuple(missing if value is None else value for value in self._values)


class LayoutRows:
    """The shapes of nodes by row, except for what NodeArrays counts itself."""

    def __init__(self) -> None:
        self.specs: list[NodeSpec | None] = []
        """By row, the node as it was set; None for an empty row."""
        self._names: list[str] = []
        self._sorted: list[str] = []
        self._uuids: list[tuple[str, ...]] = []
        self._groups, self._models = Numbers(), Numbers()
        self._group = np.zeros(_ROWS, dtype=np.int32)
        self._sharers = np.full(_ROWS, ANY_SHARERS, dtype=np.int16)
        self._order = np.full(_ROWS, -1, dtype=np.int64)
        self._model = np.full((_ROWS, 1), -1, dtype=np.int16)
        # The rows of each group, in the order in which they came.
        self._rows_of_group: dict[int, dict[int, None]] = {}
        self._group_row = np.zeros(_ROWS, dtype=np.intp)
        self._group_nodes = np.zeros(_ROWS, dtype=np.int64)
        self._group_shapes = object()
        self.group_rows = GroupRows.of(self._group[:0], self._order[:0])
        """The nodes by group in the last layout."""
        self._last: Layout | None = None
        # The fields that are not as in the last layout.
        self._changed = set[str]()
        # The names that have come or gone since.
        self._renamed = set[str]()

    def append(self) -> int:
        """Add an empty row and return its number."""
        row = len(self.specs)
        self._changed |= _SHAPES | {"uuids"}
        self.specs.append(None)
        self._names.append("")
        self._uuids.append(())
        if row == len(self._group):
            self._group = np.pad(self._group, (0, row))
            self._sharers = np.pad(self._sharers, (0, row), constant_values=ANY_SHARERS)
            self._order = np.pad(self._order, (0, row), constant_values=-1)
            self._model = np.pad(self._model, ((0, row), (0, 0)), constant_values=-1)
        return row

    def set(self, row: int, spec: NodeSpec | None) -> None:
        """Put a node into the row in place of the one there; None leaves the row empty."""
        before, self.specs[row] = self.specs[row], spec
        self._rename(row, spec.name if spec else "")
        if spec is None or before is None or spec.uuids != before.uuids:
            self._uuids[row] = spec.uuids if spec else ()
            self._changed.add("uuids")
        if spec is not None and before is not None and _rest(spec) == _rest(before):
            return
        self._changed |= _OF_ROWS
        # The used value goes to no other value in between.
        group = self._groups.take(_shape(spec)) if spec else 0
        models = [self._models.take(name) for name in spec.models] if spec else []
        if before is not None:
            self._leave_group(int(self._group[row]), row)
            for number in self._model[row, : len(before.models)].tolist():
                self._models.release(number)
        if spec is not None:
            self._join_group(group, row)
        self._group[row] = group
        self._sharers[row] = spec.max_sharers if spec else ANY_SHARERS
        width = len(models)
        if width > self._model.shape[1]:
            more = width - self._model.shape[1]
            self._model = np.pad(self._model, ((0, 0), (0, more)), constant_values=-1)
        self._model[row] = -1
        self._model[row, :width] = models

    def layout(
        self,
        row: dict[str, int],
        capacity: npt.NDArray[np.int64],
        healthy: npt.NDArray[np.bool_],
        host: npt.NDArray[np.int64],
        closed: npt.NDArray[np.int8],
    ) -> Layout:
        """Return the layout as it is now.

        row: the row by the name of the node. capacity, healthy: (N, D). host: (N, 2), CPU and
        memory that nodes have. closed: (N,), as in a Snapshot. All are copied if they have changed.
        """
        last, count = self._last, len(self.specs)
        changes, self._changed = self._changed, set()
        if last is None:
            changes = {*Layout._fields}
        elif last.model.shape != capacity.shape:
            changes.add("model")
        makes: dict[str, Callable[[], object]] = {
            "names": lambda: tuple(self._names),
            "row": lambda: NodeRows(row, last and last.row, self._renamed),
            "model": lambda: self._models_of_devices(*capacity.shape),
            "models": self._models.values,
            "uuids": lambda: tuple(self._uuids),
            "cpu_capacity": lambda: _frozen(host[:, 0]),
            "memory_capacity": lambda: _frozen(host[:, 1]),
            "group": lambda: _frozen(self._group[:count]),
            "sharers": lambda: _frozen(self._sharers[:count]),
            "order": lambda: _frozen(self._order[:count]),
        }
        values: dict[str, Any] = {
            name: make() if name in changes else getattr(last, name) for name, make in makes.items()
        }
        self._renamed = set()
        # These three may have been counted otherwise than the specs say (NodeArrays.recount).
        for name, array in (("capacity", capacity), ("healthy", healthy), ("closed", closed)):
            before = getattr(last, name, None)
            # A policy sees by this array that something has changed that it may read.
            is_copied = name == "capacity" and bool(changes & _SHAPES)
            is_same = before is not None and not is_copied and np.array_equal(before, array)
            values[name] = before if is_same else _frozen(array)
        self._last = layout = Layout(**values)
        if "group" in changes:
            size = int(layout.group.max(initial=-1)) + 1
            self.group_rows = GroupRows(
                _frozen(self._group_row[:size]),
                _frozen(self._group_nodes[:size]),
                self._group_shapes,
            )
        return layout

    def _models_of_devices(self, count: int, width: int) -> npt.NDArray[np.int16]:
        known = self._model[:count, :width]
        if known.shape[1] < width:
            known = np.pad(known, ((0, 0), (0, width - known.shape[1])), constant_values=-1)
        return _frozen(known)

    def _join_group(self, group: int, row: int) -> None:
        if group == len(self._group_row):
            self._group_row, self._group_nodes = (
                with_rows(array, group) for array in (self._group_row, self._group_nodes)
            )
        rows = self._rows_of_group.setdefault(group, {})
        if not rows:
            self._group_shapes = object()
        rows[row] = None
        self._group_row[group], self._group_nodes[group] = next(iter(rows)), len(rows)

    def _leave_group(self, group: int, row: int) -> None:
        rows = self._rows_of_group[group]
        del rows[row]
        if not rows:
            self._group_shapes = object()
        self._group_row[group], self._group_nodes[group] = next(iter(rows), 0), len(rows)
        self._groups.release(group)

    def _rename(self, row: int, name: str) -> None:
        """Name the node of the row, "" for none, and keep the order of all names."""
        before, self._names[row] = self._names[row], name
        if before == name:
            return
        self._changed |= _OF_NAMES
        self._renamed |= {before, name} - {""}
        order = self._order
        if before:
            place = bisect_left(self._sorted, before)
            del self._sorted[place]
            order[order > place] -= 1
            order[row] = -1
        if name:
            place = bisect_left(self._sorted, name)
            insort(self._sorted, name)
            order[order >= place] += 1
            order[row] = place


_OF_NAMES = frozenset({"names", "row", "order"})
_OF_ROWS = frozenset({"cpu_capacity", "memory_capacity", "group", "sharers", "model", "models"})
_SHAPES = _OF_NAMES | _OF_ROWS
"""The other fields of rows, besides `capacity`, that a policy may read."""


def _rest(spec: NodeSpec) -> Hashable:
    """Return the base of `_OF_ROWS`."""
    return spec.capacity, spec.models, spec.cpu, spec.memory, spec.max_sharers


def _shape(spec: NodeSpec) -> Hashable:
    """Return the common part of the nodes of one group."""
    # Machines of one kind differ by some KiB, and each would be its own group.
    memory = None if spec.memory is None else spec.memory >> _GIB_BITS
    return spec.capacity, spec.models, spec.cpu, memory


def _frozen(array: _A) -> _A:
    copy = array.copy()
    copy.flags.writeable = False
    return copy


def with_rows(array: _A, more: int) -> _A:
    """Return a copy of an array (N, ...) with so many rows of zeros more; np.pad is slower."""
    grown = np.empty((len(array) + more, *array.shape[1:]), dtype=array.dtype)
    grown[: len(array)] = array
    grown[len(array) :] = 0
    return cast(_A, grown)
