"""Threads that wait for changes of one resource.

A watch of one node's pods requires a value of one field. Such a waiter is indexed by field and
value, so that a change checks only the waiters with a matching value: a hundred kubelets and device
plug-ins watch the pods of one node each. The owner has the lock.
"""

import threading
from collections.abc import Callable, Iterable
from typing import TypeAlias

from gpushare_localcluster.api.objects import Object
from gpushare_localcluster.api.records import Change
from gpushare_localcluster.api.selectors import field_value

Interest: TypeAlias = Callable[[Change], bool]
"""Whether a change concerns a waiter."""

Place: TypeAlias = tuple[str, str]
"""A field, as field selectors name it, and a value."""


class Waiter:
    """A thread that waits from the version `cursor` on; the first change of concern opens the gate.

    Then `cursor` is the version before that change: no change up to it concerns the waiter.
    """

    __slots__ = ("concerns", "cursor", "gate", "place")

    def __init__(self, cursor: int, concerns: Interest, place: Place | None) -> None:
        self.cursor = cursor
        self.concerns = concerns
        self.place = place
        self.gate = threading.Lock()
        self.gate.acquire()


class Waiters:
    """The current waiters."""

    def __init__(self) -> None:
        self._at: dict[Place | None, set[Waiter]] = {}
        self._read: dict[str, Callable[[Object], str]] = {}

    def add(self, waiter: Waiter) -> None:
        """Add a waiter.

        Only changes of objects with its field and value, before or after, can wake it.
        """
        self._at.setdefault(waiter.place, set()).add(waiter)
        if waiter.place is not None and waiter.place[0] not in self._read:
            self._read[waiter.place[0]] = field_value(waiter.place[0])

    def remove(self, waiter: Waiter) -> bool:
        """Remove a waiter; return whether it was still waiting."""
        waiters = self._at.get(waiter.place, set())
        if waiter not in waiters:
            return False
        waiters.remove(waiter)
        if not waiters:
            del self._at[waiter.place]
        return True

    def tell(self, change: Change) -> None:
        """Wake the waiters that the change concerns."""
        bodies = [record.body for record in (change.record, change.previous) if record]
        places: set[Place | None] = {None}
        places |= {
            (field, text_of(body)) for field, text_of in self._read.items() for body in bodies
        }
        candidates = [waiter for place in places for waiter in self._at.get(place, ())]
        woken = [waiter for waiter in candidates if waiter.concerns(change)]
        for waiter in woken:
            waiter.cursor = change.version - 1
        self._open(woken)

    def wake(self) -> None:
        """Wake all waiters."""
        self._open([waiter for waiters in self._at.values() for waiter in waiters])

    def _open(self, waiters: Iterable[Waiter]) -> None:
        for waiter in waiters:
            self.remove(waiter)
            waiter.gate.release()
