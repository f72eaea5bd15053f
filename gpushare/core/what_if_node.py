"""One node, counted as if a remedy had happened.

All its pods are counted once. To try a remedy, its pods are subtracted from the sums and added
again. With 10,000 pods on a node a try would otherwise take a third of a second.

Tested in `tests/unit/core/test_explain.py`.
"""

from collections.abc import Collection
from dataclasses import replace

from gpushare.core.explanation import Remedy
from gpushare.core.snapshot import NodeArrays, Snapshot
from gpushare.core.states.entry import NodeBooks


class WhatIfNode:
    """A node on which remedies are tried. pairs: pairing applies there."""

    def __init__(self, books: NodeBooks, *, pairs: bool) -> None:
        self._books = books
        self._charges = {entry.ref.uid: entry.charge for entry in books.entries}
        self._pins = {
            uid: (charge.request.sizes, charge.pinned)
            for uid, charge in self._charges.items()
            if pairs and charge.pinned is not None
        }
        self._arrays: dict[tuple[int, ...], NodeArrays] = {}

    def after(self, remedy: Remedy) -> Snapshot:
        """Return the node, counted as if the remedy had happened."""
        arrays = self._counted(remedy.opens)
        ended = [self._charges[entry.ref.uid] for entry in remedy.ends]
        for charge in ended:
            arrays.add(charge, -1)
        remaining = self._pins.keys() - {entry.ref.uid for entry in (*remedy.ends, *remedy.serves)}
        pins = tuple(pin for uid, pin in self._pins.items() if uid in remaining)
        view = arrays.snapshot({self._books.spec.name: pins} if pins else {})
        for charge in ended:
            arrays.add(charge)
        return view

    def _counted(self, opens: tuple[int, ...]) -> NodeArrays:
        """Return the sums of all pods, with these closed devices open again."""
        if opens not in self._arrays:
            arrays = NodeArrays()
            spec = replace(self._books.spec, healthy=healthy_with(self._books, opens))
            arrays.set_node(spec, self._charges.values())
            self._arrays[opens] = arrays
        return self._arrays[opens]


def healthy_with(books: NodeBooks, opens: Collection[int]) -> tuple[bool, ...]:
    """Return which devices are healthy once these closed ones have returned."""
    return tuple(ok or device in opens for device, ok in enumerate(books.spec.healthy))
