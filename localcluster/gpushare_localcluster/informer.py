"""An informer: lists and watches one resource, and calls a handler for every change.

Knows list, resourceVersion, bookmarks and 410; knows no resource. The handler is called once per
change of an object, with the old state, also for objects that were deleted between two watches.
"""

import http.client
import logging
import threading
from collections.abc import Callable, Mapping

from gpushare.errors import ApiError, ApiGone
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
        """Wait for the first list; return whether the handler got the list within `timeout`
        seconds.
        """
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
