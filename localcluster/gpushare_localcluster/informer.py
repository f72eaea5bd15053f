"""Informers, and a work queue of the keys of changed objects, as in client-go.

An informer lists and watches one resource, and calls a handler once per change of an object, with
the old state, also for objects that were deleted between two watches. Knows list, resourceVersion,
bookmarks and 410; knows no resource. In a work loop one thread handles each key; a queued key is
not added twice, and a failed step is repeated after a moment. The kubelet and the controllers are
such loops.
"""

import heapq
import http.client
import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Generic, TypeVar

from gpushare.errors import ApiError, ApiGone, WireError
from gpushare_localcluster.client import ApiClient, Json, Watch

log = logging.getLogger(__name__)

# The arguments of a handler: the old object (None: created) and the new one (None: deleted).
Handler = Callable[[Json | None, Json | None], None]

_SERVER_TIMEOUT = 300
_RETRY_SECONDS = 0.2


class Informer:
    """Keeps a copy of one resource, in its own thread after `start()`."""

    def __init__(
        self,
        api: ApiClient,
        path: str,
        handler: Handler,
        *,
        query: Mapping[str, str] | None = None,
    ) -> None:
        self._api = api
        self._path = path
        self._query = dict(query or {})
        self._handler = handler
        self._objects: dict[str, Json] = {}
        self._version = ""
        self._stopping = threading.Event()
        self._synced = threading.Event()
        self._lock = threading.Lock()
        self._watch: Watch | None = None
        self._thread = threading.Thread(target=self._run, name=f"informer {path}", daemon=True)

    def start(self) -> None:
        """Begin to list and watch."""
        self._thread.start()

    def wait_synced(self, timeout: float) -> bool:
        """Wait for the first list; return whether the handler got it within `timeout` seconds."""
        return self._synced.wait(timeout)

    def stop(self) -> None:
        """End the watch and the thread."""
        self._stopping.set()
        with self._lock:
            if self._watch is not None:
                self._watch.close()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(5)

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                if not self._version:
                    self._relist()
                self._follow()
            except ApiGone:
                self._version = ""
            except (ApiError, OSError, http.client.HTTPException, ValueError) as error:
                if not self._stopping.is_set():
                    log.info("watch interrupted path=%s error=%s", self._path, error)
            # A server that ends each stream at once must not cause a hot loop.
            self._stopping.wait(_RETRY_SECONDS)

    def _relist(self) -> None:
        answer = self._api.get(self._path, self._query)
        items = {_uid(item): item for item in answer.get("items") or ()}
        for uid in [uid for uid in self._objects if uid not in items]:
            self._tell(self._objects.pop(uid), None)
        for item in items.values():
            self._take(item)
        self._version = str((answer.get("metadata") or {}).get("resourceVersion", ""))
        self._synced.set()

    def _follow(self) -> None:
        query = {
            **self._query,
            "resourceVersion": self._version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(_SERVER_TIMEOUT),
        }
        watch = self._api.watch(self._path, query, read_timeout=_SERVER_TIMEOUT + 15)
        with self._lock:
            self._watch = watch
        if self._stopping.is_set():
            return
        for kind, item in watch:
            self._version = str(item["metadata"]["resourceVersion"])
            if kind == "DELETED":
                self._objects.pop(_uid(item), None)
                self._tell(item, None)
            elif kind != "BOOKMARK":
                self._take(item)

    def _take(self, item: Json) -> None:
        uid = _uid(item)
        before = self._objects.get(uid)
        self._objects[uid] = item
        if before is None or _version(before) != _version(item):
            self._tell(before, item)

    def _tell(self, before: Json | None, after: Json | None) -> None:
        try:
            self._handler(before, after)
        except Exception:
            # An error with one object must not keep the handler from other objects.
            log.exception("change not handled path=%s", self._path)


def _uid(item: Json) -> str:
    return str(item["metadata"].get("uid") or item["metadata"]["name"])


def _version(item: Json) -> str:
    return str(item["metadata"].get("resourceVersion", ""))


KeyT = TypeVar("KeyT", bound=str | tuple[str, ...])

_STEP_RETRY_SECONDS = 0.5


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
                later = _STEP_RETRY_SECONDS
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
