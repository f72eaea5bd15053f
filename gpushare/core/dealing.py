"""Devices that deal out memory in amounts of their own, so that a request takes more of some.

A driver may round up what is asked for, on one card to other amounts than on another. What a
request takes of a device is told by the device's `Deals` alone: the allocator places by it, and
explanations judge by it.

Tested in `tests/unit/core/test_dealing.py`.
"""

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import compress
from types import MappingProxyType

import numpy as np

from gpushare.core.decide import best_row, place_parts, rows_of
from gpushare.core.held_snapshot import HeldSnapshot
from gpushare.core.model import MAX_UNITS, Deals, NodeSpec, Request, Shares
from gpushare.core.ranking import Scorer
from gpushare.core.snapshot import Rows, Snapshot

_TRIED_FIRST = 8
"""Nodes that are asked about one by one, the best first, before all others are asked about: where
most are allowed, asking about thousands would take the time."""

_NONE: Mapping[int, int] = MappingProxyType({})

Units = tuple[int, ...]
"""For each part of a request."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What is asked of devices that may deal out memory in amounts of their own."""

    request: Request
    """In units, rounded up."""
    exact: tuple[int, ...] = ()
    """What is asked of each device, as `Deals` compare it, the most first; (): so many units."""


class Dealing:
    """How the devices of nodes are dealt out: what a request takes of each.

    Of a node of which nothing is said it takes what it asks for.
    """

    def __init__(self, nodes: Iterable[NodeSpec] = ()) -> None:
        self._nodes = {spec.name: spec for spec in nodes if spec.capacity}
        numbers: dict[tuple[Deals, ...], int] = {}
        self._number = {
            name: numbers.setdefault(spec.deals, len(numbers)) for name, spec in self._nodes.items()
        }
        self._tuples = tuple(numbers)
        self.rounds = any(numbers)
        """Whether anything is said of any node."""
        # Nodes by the kinds of devices that they give out: mostly all have the same.
        self._alike: dict[frozenset[Deals], list[str]] = defaultdict(list)
        for name, spec in self._nodes.items():
            if any(spec.healthy):
                self._alike[frozenset(compress(spec.deals, spec.healthy))].append(name)

    def on(self, node: str) -> tuple[Deals, ...]:
        """Return how the devices of a node are dealt out; () if nothing is said of it."""
        spec = self._nodes.get(node)
        return spec.deals if spec else ()

    def takes(self, node: str, asked: Asked) -> list[list[int]]:
        """Return for each part, the largest first, the units that it takes of each device of the
        node; more than MAX_UNITS of one that deals out no such amount.
        """
        spec = self._nodes[node]
        if not spec.deals:
            return [[units] * len(spec.capacity) for units in asked.request.parts]
        return [[deals.takes(amount) for deals in spec.deals] for amount in asked.exact]

    def where(self, asked: Asked) -> list[tuple[Units, list[str]]]:
        """Return nodes by the units that each part takes of a device there, the least first; of a
        node with unlike devices it is the least that it takes of any.

        Nodes that give out no device, or deal out no such amounts, are left out.
        """
        by_units: dict[Units, list[str]] = defaultdict(list)
        for kinds, names in self._alike.items():
            least = asked.request.parts
            if kinds:
                least = tuple(min(deals.takes(amount) for deals in kinds) for amount in asked.exact)
            if max(least) <= MAX_UNITS:
                by_units[least] += names
        return sorted(by_units.items(), key=lambda each: sum(each[0]))

    def place(
        self, snapshot: Snapshot, asked: Asked, allowed: Callable[[str], bool], scorer: Scorer
    ) -> tuple[str, Shares] | None:
        """Return the best of the allowed nodes, and for each part the best device there with the
        units that it takes; None if no node has room now.

        What is rounded up more is taken where nothing else has room.
        """
        for units, names in self.where(asked):
            rows, request = rows_of(snapshot, names).copy(), asked.request.of_parts(units)
            while (at := _best(snapshot, rows, request, allowed, scorer)) is not None:
                node = snapshot.names[rows[at]]
                if shares := self._place_on(snapshot, node, asked, scorer):
                    return node, shares
                rows[at] = -1
        return None

    def all_fit(
        self, held: HeldSnapshot, node: str, claims: Iterable[Asked], scorer: Scorer
    ) -> bool:
        """Return whether the node has room for all of these, each placed as `place` does.

        held: nothing is taken from it afterwards; devices that have come since the nodes were read
        keep nothing out, since nobody knows yet how they are dealt out.
        """
        row, spec = held.row[node], self._nodes.get(node)
        if spec is None or held.capacity[row, len(spec.capacity) :].any():
            return True
        try:
            for asked in claims:
                shares = self._place_on(held, node, asked, scorer)
                if not shares:
                    return False
                held.take(row, shares, asked.request)
            return True
        finally:
            held.reset(row)

    def _place_on(self, snapshot: Snapshot, node: str, asked: Asked, scorer: Scorer) -> Shares:
        takes = self.takes(node, asked)
        devices = place_parts(snapshot, node, takes, scorer)
        if not devices:
            return ()
        return tuple(
            (device, on_each[device]) for on_each, device in zip(takes, devices, strict=True)
        )

    def view(self, snapshot: Snapshot, exact: Mapping[int, int] = _NONE) -> Snapshot:
        """Return the snapshot with what could be asked of a device in the place of what there is.

        Rounded down to units, but for the sizes of which `exact` tells what is asked for: where
        there is room for that, there is for the size.
        """
        numbers = np.array([self._number.get(name, -1) for name in snapshot.names])
        capacity = snapshot.capacity.copy()
        free = np.maximum(capacity - snapshot.used, 0)
        changed = False
        for number, by_device in enumerate(self._tuples):
            rows = np.flatnonzero(numbers == number)
            changed |= bool(by_device and len(rows))
            # What is known of a node may be older or newer than the snapshot.
            for device, deals in enumerate(by_device[: capacity.shape[1]] if len(rows) else ()):
                for units in (capacity, free):
                    values, places = np.unique(units[rows, device], return_inverse=True)
                    most = [_most(deals, each, exact) for each in values.tolist()]
                    units[rows, device] = np.array(most)[places]
        return replace(snapshot, capacity=capacity, used=capacity - free) if changed else snapshot


def _best(
    snapshot: Snapshot,
    rows: Rows,
    request: Request,
    allowed: Callable[[str], bool],
    scorer: Scorer,
) -> int | None:
    """Return the place of the best of the rows that is allowed and has room; None if none.

    rows: those that are not allowed are made -1.
    """
    for tried in itertools.count(1):
        at = best_row(snapshot, rows, request, scorer)
        if at is None or allowed(snapshot.names[rows[at]]):
            return at
        rows[at] = -1
        if tried == _TRIED_FIRST:
            rows[[row < 0 or not allowed(snapshot.names[row]) for row in rows.tolist()]] = -1
    return None


def _most(deals: Deals, units: int, exact: Mapping[int, int]) -> int:
    """Return the most units that could be asked for to take so many of a device."""
    sizes = (size for size, asked in exact.items() if deals.takes(asked) <= units)
    return max(deals.most(units), *sizes, 0)


class AsDealt:
    """A request, as it stands on nodes whose devices deal out memory in amounts of their own.

    It fits there where it fits in a view, as any other request does.
    """

    def __init__(self, dealing: Dealing, asked: Asked) -> None:
        self._dealing = dealing
        self._exact: dict[int, int] = {}
        self.request = asked.request
        if not (asked.exact and dealing.rounds):
            return
        sizes = [*asked.request.parts]
        for at in range(len(sizes) - 2, -1, -1):
            # Of two unlike amounts within one unit the larger counts as one more: they may differ
            # in where they fit.
            more = asked.exact[at] > asked.exact[at + 1]
            sizes[at] = max(sizes[at], sizes[at + 1] + more)
        self._exact = dict(zip(sizes, asked.exact, strict=True))
        self.request = asked.request.of_parts(sizes)

    def view(self, snapshot: Snapshot) -> Snapshot:
        """Return the snapshot with what could be asked for in the place of what there is."""
        return self._dealing.view(snapshot, self._exact) if self._exact else snapshot

    def takes(self, node: str) -> dict[tuple[int, int], int]:
        """Return the units that the request's parts take of a node's devices, by device and size.

        More than MAX_UNITS of one that deals out no such amount.
        """
        return {
            (device, size): deals.takes(exact)
            for device, deals in enumerate(self._dealing.on(node))
            for size, exact in self._exact.items()
        }
