"""A document that anybody may ask for, made for all who ask within a moment.

Standard library only. Whoever asks without end must not cost the verbs more than a share of the
interpreter, and must not hold their threads.
"""

import threading
import time
from collections.abc import Callable

from gpushare.errors import NotReady

_CHEAP = 0.005
"""CPU seconds of a making that nobody notices: such a document is not kept."""
_LONGEST = 1.0
"""Seconds that a document is kept at most."""
_TIMES = 10
"""A document is kept for so many times what it cost."""
_AT_ONCE = 4
"""How many may wait for a document that is not cheap."""


class Kept:
    """Documents by name, each made anew once it has been kept for ten times what it cost."""

    def __init__(self) -> None:
        self._turns = threading.BoundedSemaphore(_AT_ONCE)
        self._making = threading.Lock()
        self._documents: dict[str, tuple[float, bytes]] = {}
        self._cheap: set[str] = set()

    def get(self, name: str, make: Callable[[], bytes]) -> bytes:
        """Return the document of that name: one that is kept, else made now.

        Raises NotReady where some wait for their turn already.
        """
        found = self._found(name)
        if found is not None:
            return found
        if name in self._cheap:
            return self._made(name, make)
        if not self._turns.acquire(blocking=False):
            raise NotReady("gpushare: too many ask for this at once; ask again in a second")
        try:
            with self._making:
                return self._found(name) or self._made(name, make)
        finally:
            self._turns.release()

    def _found(self, name: str) -> bytes | None:
        until, document = self._documents.get(name, (0.0, b""))
        return document if time.monotonic() < until else None

    def _made(self, name: str, make: Callable[[], bytes]) -> bytes:
        begin = time.thread_time()
        document = make()
        cost = time.thread_time() - begin
        if cost < _CHEAP:
            self._cheap.add(name)
        else:
            self._cheap.discard(name)
            until = time.monotonic() + min(_LONGEST, cost * _TIMES)
            self._documents[name] = (until, document)
        return document
