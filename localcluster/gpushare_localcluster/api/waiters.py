"""Who waits for changes of one resource, and whom a change wakes.

A watch of one node's pods asks for a field to have a value. Such a waiter is kept under that field
and value, so that a change looks only at the waiters whose value it has: a hundred kubelets and
device plug-ins each watch the pods of their own node. No lock: the owner has one.
"""

import threading
from collections.abc import Callable, Iterable
from typing import TypeAlias

from gpushare_localcluster.api.objects import Object
from gpushare_localcluster.api.records import Change
from gpushare_localcluster.api.selectors import field_value

Interest: TypeAlias = Callable[[Change], bool]
"""Which changes a waiter wants to hear of."""

Place: TypeAlias = tuple[str, str]
"""A field, as field selectors name it, and a value."""


class Waiter:
    """One who waits from `cursor` on; its gate opens with the first change that concerns it.

    Then `cursor` is the version before that change: nothing up to it concerns the waiter.
    """

    __slots__ = ("concerns", "cursor", "gate", "place")

    def __init__(self, cursor: int, concerns: Interest, place: Place | None) -> None:
        self.cursor = cursor
        self.concerns = concerns
        self.place = place
        self.gate = threading.Lock()
        self.gate.acquire()


class Waiters:
    """Those who wait now."""

    def __init__(self) -> None:
        self._at: dict[Place | None, set[Waiter]] = {}
        self._read: dict[str, Callable[[Object], str]] = {}

    def add(self, waiter: Waiter) -> None:
        """Have changes wake it; those whose objects have not its place, before or after, do not."""
        self._at.setdefault(waiter.place, set()).add(waiter)
        if waiter.place is not None and waiter.place[0] not in self._read:
            self._read[waiter.place[0]] = field_value(waiter.place[0])

    def remove(self, waiter: Waiter) -> bool:
        """Return whether it still waited; it does not from now on."""
        here = self._at.get(waiter.place, set())
        if waiter not in here:
            return False
        here.remove(waiter)
        if not here:
            del self._at[waiter.place]
        return True

    def tell(self, change: Change) -> None:
        """Wake those whom the change concerns."""
        bodies = [record.body for record in (change.record, change.previous) if record]
        places: set[Place | None] = {None}
        places |= {(field, read(body)) for field, read in self._read.items() for body in bodies}
        found = [waiter for place in places for waiter in self._at.get(place, ())]
        woken = [waiter for waiter in found if waiter.concerns(change)]
        for waiter in woken:
            waiter.cursor = change.version - 1
        self._open(woken)

    def wake(self) -> None:
        """Wake all."""
        self._open([waiter for here in self._at.values() for waiter in here])

    def _open(self, waiters: Iterable[Waiter]) -> None:
        for waiter in waiters:
            self.remove(waiter)
            waiter.gate.release()
