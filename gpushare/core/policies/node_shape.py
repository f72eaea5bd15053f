"""What policies read of a node, in the units that they are published in.

It knows the arrays and no judgement. Published policies count a device as 1000 *milli*. Where cards
differ, one of the largest counts so much and any other by its units (`even`), so that a unit is
worth the same wherever it lies; policies that are here for comparison alone count by the devices of
each node (`milli`). Node-wide facts that only the nodes change are worked out once per layout.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from gpushare.core.model import MAX_UNITS, Request
from gpushare.core.policies.device_bestfit import DeviceBestFit
from gpushare.core.snapshot import Bools, Floats, Ints, Rows, Snapshot

MILLI = 1000
"""What one device counts."""

BLIND = -1e9
"""Added to the value of a node whose CPU is unknown: it ranks after every other, whose values are
of another scale."""

BEFORE_AFTER: Ints = np.array([[0], [1]])
"""Times what is taken: a column for states before and after, one beside the other."""

HALF = 0.5 + 1e-9
"""What rounds to the nearest whole number, halves up even where a quotient misses one by a hair: in
other units it misses it by another."""

HAIR = 1e-9
"""The same, for what is rounded down."""

_Made = TypeVar("_Made")


class PerLayout(Generic[_Made]):
    """What is made of the nodes' shapes, kept until they change: a memo of the last layout."""

    def __init__(self, make: Callable[[Snapshot], _Made]) -> None:
        self._make = make
        self._last: tuple[Ints, _Made] | None = None

    def __call__(self, snapshot: Snapshot) -> _Made:
        """Return what was made for the layout of this snapshot."""
        last = self._last
        # Snapshots between two changes of nodes share these arrays.
        if last is None or last[0] is not snapshot.capacity:
            last = self._last = (snapshot.capacity, self._make(snapshot))
        return last[1]

    def __getstate__(self) -> dict[str, object]:
        """Return what is pickled: everything but the memo."""
        return {"_make": self._make, "_last": None}


@dataclass(frozen=True, slots=True, eq=False)
class Ground:
    """Facts of each row that only nodes change.

    capacity: int64 (N,) units of the node's largest device, at least 1. milli: float64 (N,) what
    one unit counts there. even: what one unit counts wherever it lies: a device of the largest
    capacity counts 1000. blind: bool (N,) nodes whose CPU is unknown, any_blind whether there are
    any.
    """

    capacity: Ints
    milli: Floats
    even: float
    blind: Bools
    any_blind: bool


def ground(snapshot: Snapshot) -> Ground:
    """Return the facts of the nodes of a snapshot."""
    capacity = np.maximum(snapshot.capacity.max(axis=1, initial=0), 1)
    blind = snapshot.cpu_capacity < 0
    even = MILLI / int(capacity.max(initial=1))
    return Ground(capacity, MILLI / capacity, even, blind, bool(blind.any()))


def tightest(free: Ints, request: Request) -> Bools:
    """Return bool (K, D): the devices with the least room among those where the request fits.

    As many as it asks for, the lowest index among equals; for one device all that are equal.
    """
    room = np.where(free >= max(request.units, 1), free, MAX_UNITS)
    if request.devices <= 1:
        alike: Bools = room == room.min(axis=1, keepdims=True, initial=MAX_UNITS)
        return alike
    order = np.argsort(room, axis=1, kind="stable")[:, : request.devices]
    chosen = np.zeros(room.shape, dtype=bool)
    np.put_along_axis(chosen, order, values=True, axis=1)
    return chosen


def on_tightest(values: npt.NDArray[np.generic], free: Ints, request: Request) -> Floats:
    """Return float64 (K, D): a node's value (K,) on its tightest devices, less on the others."""
    column = values[:, None].astype(np.float64)
    if not request.devices:
        return np.repeat(column, free.shape[1], axis=1)
    return np.where(tightest(free, request), column, column - 1)


def with_blind(
    values: Floats, ground_: Ground, snapshot: Snapshot, rows: Rows, request: Request
) -> Floats:
    """Return float64 (K, D): the values, but those of DeviceBestFit on nodes whose CPU is unknown.

    Without CPU the policies that price it are worse than that one.
    """
    if not ground_.any_blind:
        return values
    tight = BLIND + DeviceBestFit().score(snapshot, rows, request)
    return np.where(ground_.blind[rows][:, None], tight, values)
