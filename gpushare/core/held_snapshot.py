"""The cluster as filter offers it: a snapshot of the books, less what is promised to other pods.

Knows no pods and no rules, only what is taken from which devices. The books underneath stay as they
are, and whatever is kept by their generation (rankings, prices) is made of them alone.

Tested in `tests/unit/extender/verbs/test_offers.py`.
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import count
from typing import Any, Self, TypeVar, cast

import numpy as np
import numpy.typing as npt

from gpushare.core.amounts import PERCENT_AMOUNTS
from gpushare.core.model import Request, Shares
from gpushare.core.snapshot import Bools, Ints, PercentArray, Rows, Snapshot, pod_kind

_A = TypeVar("_A", bound=npt.NDArray[Any])
_STAMPS = count(1)
_TAKEN = ("free", "kinds", "cpu_free", "memory_free")
"""What is taken from: copies of the arrays of the books."""
_OF_TAKEN = ("used", "percents_free")
"""Made anew of what is taken when they are asked for, which is rare: copies are dear."""


@dataclass(frozen=True, eq=False)
class HeldSnapshot(Snapshot):
    """A snapshot from which places are taken one after the other, by whoever has made it.

    Its generation is that of the books.
    """

    base: Snapshot
    """The books."""
    held: Bools
    """bool (N,) rows that differ from it."""
    stamps: Ints
    """int64 (N,) another number with each change of the row, in whichever copy; 0 as in the books.
    """

    @property
    def rows(self) -> Rows:
        """intp (K,): the rows that differ from the books."""
        return np.flatnonzero(self.held)

    @classmethod
    def of(cls, base: Snapshot) -> Self:
        """Return a copy of the books from which nothing is taken yet."""
        size = len(base.names)
        return cls._copy(base, base, np.zeros(size, dtype=bool), np.zeros(size, dtype=np.int64))

    @classmethod
    def _copy(cls, base: Snapshot, values: Snapshot, held: Bools, stamps: Ints) -> Self:
        taken = {name: getattr(values, name).copy() for name in _TAKEN}
        copy = object.__new__(cls)
        # With what the books have computed of themselves, such as `open`.
        vars(copy).update(vars(base) | taken, base=base, held=held, stamps=stamps)
        if isinstance(values, HeldSnapshot) and values.takes_percents:
            copy._own_percents(values.percents_used)
        del vars(copy)["used"]
        return copy

    @property
    def takes_percents(self) -> bool:
        """Whether percents are taken: else the arrays of the books are used, without a copy."""
        return self.percents_used is not self.base.percents_used

    def own_percents(self) -> None:
        """Copy the percents of the books, so that percents can be taken."""
        if not self.takes_percents:
            self._own_percents(self.base.percents_used)

    def _own_percents(self, values: tuple[PercentArray, ...]) -> None:
        vars(self).update(percents_used=tuple(array.copy() for array in values), any_percents=True)
        vars(self).pop("percents_free", None)

    @cached_property  # type: ignore[misc]  # made when it is asked for, not given
    def used(self) -> Ints:
        """int64 (N, D): units in use or taken; all units of a device of which an exclusive amount
        is taken whole.
        """
        # Only what is free is taken.
        return self.base.used + (self.base.free - self.free)

    def on(self, books: Snapshot) -> tuple[Self, set[int]]:
        """Return what is taken, on other books of the same layout, and rows to place again.

        These are the held rows that have changed; nothing is taken from them.
        """
        copy = self._copy(books, self, self.held.copy(), self.stamps.copy())
        rows = np.flatnonzero(books.row_generation != self.base.row_generation)
        again = set(rows[self.held[rows]].tolist())
        copy.reset(rows)
        return copy, again

    def take(self, row: int, shares: Shares, request: Request) -> None:
        """Take these units of the row's devices, the percents of the request there, and the
        request's CPU.
        """
        self.hold(row)
        free, wanted = self.free[row], [device for device, _ in shares]
        free[wanted] -= [units for _, units in shares]
        if request.percents:
            self.own_percents()
            for amount, used, percent in zip(
                PERCENT_AMOUNTS, self.percents_used, request.percents, strict=True
            ):
                used[row, wanted] += percent
                if amount.is_exclusive:
                    free[used[row] >= amount.whole] = 0
        self.kinds[row, pod_kind(request, int(self.capacity[row].max(initial=0)))] += 1
        self.cpu_free[row] = max(int(self.cpu_free[row]) - request.cpu, 0)
        self.memory_free[row] = max(int(self.memory_free[row]) - request.memory, 0)
        self._forget()

    def give(self, row: int, shares: Shares, request: Request) -> None:
        """Free these units of the row's devices, as if a pod that the books charge were gone."""
        self.hold(row)
        given = [device for device, _ in shares]
        self.free[row, given] += [units for _, units in shares]
        if request.percents and shares:
            self.own_percents()
            by_device = zip(*request.percents_on(shares), strict=True)
            for used, percents in zip(self.percents_used, by_device, strict=True):
                used[row, given] -= np.array(percents, dtype=np.int32)
        self._forget()

    def reset(self, rows: Rows | int) -> None:
        """Make these rows as they are in the books."""
        self.held[rows] = False
        self.stamps[rows] = 0
        for name in _TAKEN:
            getattr(self, name)[rows] = getattr(self.base, name)[rows]
        if self.takes_percents:
            for used, of_base in zip(self.percents_used, self.base.percents_used, strict=True):
                used[rows] = of_base[rows]
        self._forget()

    def _forget(self) -> None:
        for name in _OF_TAKEN:
            vars(self).pop(name, None)

    def differing_rows(self, other: "HeldSnapshot") -> Rows:
        """Return intp (K,): the rows that may not be as in another one of the same layout."""
        differs = self.stamps != other.stamps
        if self.base is not other.base:
            differs |= self.base.row_generation != other.base.row_generation
        return np.flatnonzero(differs)

    def hold(self, row: int) -> None:
        """Count the row as different from the books, even if nothing fits there now."""
        self.held[row] = True
        self.stamps[row] = next(_STAMPS)


class RowStates:
    """The states of rows of held snapshots, each with a priority, to be put into other snapshots.

    All snapshots are of the layout of `like`. Of each row the states of lower priorities follow
    from those of higher ones.
    """

    def __init__(self, like: Snapshot) -> None:
        # The arrays of _TAKEN, and those of PERCENT_AMOUNTS.
        self._arrays = [_without_rows(getattr(like, name)) for name in _TAKEN]
        self._percents = [_without_rows(array) for array in like.percents_used]
        self._rows = np.empty(0, dtype=np.intp)
        self._stamps = np.empty(0, dtype=np.int64)
        self._spare: list[int] = []
        self._takes_percents = False
        # By row, the slots of its states; by slot, its priority.
        self._slots: dict[int, list[int]] = {}
        self._priorities: dict[int, int] = {}
        # Slots and minus their priorities, the highest priority first; None: to be made anew.
        self._order: tuple[Rows, Ints] | None = None

    def save(self, snapshot: HeldSnapshot, row: int, priority: int) -> None:
        """Keep the row as it is in the snapshot for pods of that priority, and of a lower one as
        far as no state of the row is kept for them.
        """
        if not self._spare:
            self._grow()
        slot = self._spare.pop()
        for name, values in zip(_TAKEN, self._arrays, strict=True):
            values[slot] = getattr(snapshot, name)[row]
        for values, used in zip(self._percents, snapshot.percents_used, strict=True):
            values[slot] = used[row]
        self._rows[slot], self._stamps[slot] = row, snapshot.stamps[row]
        self._takes_percents |= snapshot.takes_percents
        self._slots.setdefault(row, []).append(slot)
        self._priorities[slot] = priority
        self._order = None

    def forget(self, row: int) -> None:
        """Forget the states of the row."""
        for slot in self._slots.pop(row, ()):
            self._spare.append(slot)
            del self._priorities[slot]
            self._order = None

    def seen_by(self, priority: int, books: Snapshot) -> HeldSnapshot | None:
        """Return the books with the state of each row for pods of that priority; None if all states
        count for them.
        """
        if self._order is None:
            slots = np.fromiter(self._priorities.keys(), np.intp, len(self._priorities))
            ranks = -np.fromiter(self._priorities.values(), np.int64, len(slots))
            order = np.argsort(ranks, kind="stable")
            self._order = slots[order], ranks[order]
        slots, ranks = self._order
        count = int(np.searchsorted(ranks, -priority, side="right"))
        if count == len(slots):
            return None
        offered = HeldSnapshot.of(books)
        self._put_into(offered, slots[:count])
        return offered

    def _put_into(self, snapshot: HeldSnapshot, slots: Rows) -> None:
        # Of a row with several slots the last one counts.
        rows = self._rows[slots]
        for name, values in zip(_TAKEN, self._arrays, strict=True):
            getattr(snapshot, name)[rows] = values[slots]
        if self._takes_percents:
            snapshot.own_percents()
            for used, percents in zip(snapshot.percents_used, self._percents, strict=True):
                used[rows] = percents[slots]
        snapshot.held[rows] = True
        snapshot.stamps[rows] = self._stamps[slots]

    def _grow(self) -> None:
        size = len(self._rows)
        larger = max(2 * size, 64)
        for arrays in (self._arrays, self._percents):
            arrays[:] = [np.resize(values, (larger, *values.shape[1:])) for values in arrays]
        self._rows = np.resize(self._rows, larger)
        self._stamps = np.resize(self._stamps, larger)
        self._spare = list(range(larger - 1, size - 1, -1))


def _without_rows(array: _A) -> _A:
    """Return an array of the same type and width with no rows."""
    return cast(_A, np.empty((0, *array.shape[1:]), array.dtype))
