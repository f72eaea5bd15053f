"""A cache of documents that anybody may ask for: callers at nearly the same time share one.

Standard library only. Callers that ask all the time must not cost the verbs more than a share of
the interpreter, and must not hold threads of the verbs.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from gpushare.errors import NotReady

_CHEAP_SECONDS = 0.005
"""CPU seconds: a document that takes no longer to make is not kept."""
_MAX_AGE = 15.0
"""Seconds that a document is kept at most."""
_COST_FACTOR = 30
"""A document is kept for this many times the seconds of making it: the page, `inspect` and metrics
together take a tenth of the interpreter at most."""
_MAX_WAITING = 4
"""How many may wait for a document that is not cheap."""


@dataclass(frozen=True, slots=True, eq=False)
class DocumentCache:
    """Documents by name; a document is kept for thirty times the seconds of making it."""

    _slots: threading.BoundedSemaphore = field(
        default_factory=lambda: threading.BoundedSemaphore(_MAX_WAITING)
    )
    _making: threading.Lock = field(default_factory=threading.Lock)
    _documents: dict[str, tuple[float, bytes]] = field(default_factory=dict)
    _cheap: set[str] = field(default_factory=set)

    def get(self, name: str, make: Callable[[], bytes]) -> bytes:
        """Return the document of that name: the cached one, else a new one.

        Raises NotReady if too many wait already.
        """
        document = self._cached(name)
        if document is not None:
            return document
        if name in self._cheap:
            return self._make(name, make)
        if not self._slots.acquire(blocking=False):
            raise NotReady("gpushare: too many ask for this at once; ask again in a second")
        try:
            with self._making:
                return self._cached(name) or self._make(name, make)
        finally:
            self._slots.release()

    def _cached(self, name: str) -> bytes | None:
        until, document = self._documents.get(name, (0.0, b""))
        return document if time.monotonic() < until else None

    def _make(self, name: str, make: Callable[[], bytes]) -> bytes:
        begin = time.thread_time()
        document = make()
        cost = time.thread_time() - begin
        if cost < _CHEAP_SECONDS:
            self._cheap.add(name)
        else:
            self._cheap.discard(name)
            until = time.monotonic() + min(_MAX_AGE, cost * _COST_FACTOR)
            self._documents[name] = (until, document)
        return document
