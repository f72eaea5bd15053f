"""A work queue as in client-go: informers add keys of changed objects, one thread handles each key.

A queued key is not added twice; a failed step is repeated after a moment. The kubelet and the
controllers are such loops.
"""

import heapq
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from gpushare.errors import ApiError, WireError
from gpushare_localcluster.informer import Informer

log = logging.getLogger(__name__)

KeyT = TypeVar("KeyT", bound=str | tuple[str, ...])

_RETRY_SECONDS = 0.5


class WorkLoop(Generic[KeyT]):
    """Calls `step` for each key that was added, from `start` to `stop`.

    `step` returns the seconds until the next step with the key, None for no step before it is added
    again. ApiError and WireError mean half a second.
    """

    def __init__(
        self, name: str, informers: Sequence[Informer], step: Callable[[KeyT], float | None]
    ) -> None:
        self._informers = informers
        self._step = step
        self._lock = threading.Lock()
        self._waiting: set[KeyT] = set()
        self._inbox: queue.SimpleQueue[KeyT | None] = queue.SimpleQueue()
        self._times: dict[KeyT, float] = {}
        self._due: list[tuple[float, KeyT]] = []
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the informers and the thread."""
        for informer in self._informers:
            informer.start()
        self._thread.start()

    def stop(self) -> None:
        """End all threads; the running step is finished."""
        for informer in self._informers:
            informer.stop()
        self._inbox.put(None)
        if self._thread.is_alive():
            self._thread.join(5)

    def add(self, key: KeyT) -> None:
        """Queue the key; any thread may call this."""
        with self._lock:
            if key in self._waiting:
                return
            self._waiting.add(key)
        self._inbox.put(key)

    def _run(self) -> None:
        while (key := self._next()) is not None:
            with self._lock:
                self._waiting.discard(key)
            try:
                later = self._step(key)
            except (ApiError, WireError) as error:
                log.info("not done loop=%s key=%s error=%s", self._thread.name, key, error)
                later = _RETRY_SECONDS
            except Exception:
                # An error with one object must not stop the loop.
                log.exception("not done loop=%s key=%s", self._thread.name, key)
                continue
            if later is not None:
                self._times[key] = time.monotonic() + later
                heapq.heappush(self._due, (self._times[key], key))

    def _next(self) -> KeyT | None:
        """Return the next key, None at the end."""
        while True:
            now = time.monotonic()
            while self._due and self._due[0][0] <= now:
                at, key = heapq.heappop(self._due)
                if self._times.get(key) == at:
                    del self._times[key]
                    return key
            try:
                return self._inbox.get(timeout=self._due[0][0] - now if self._due else None)
            except queue.Empty:
                continue
