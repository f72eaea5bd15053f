"""The local cluster's API server as an object that many threads call, and that answers badly.

The API server of production code (gpushare.kube.api.Api), without sockets, so
that all the time goes into the threads. Handles requests, answers, faults; not their meaning.
"""

import json
import math
import re
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from random import Random

from gpushare.errors import ApiConflict, ApiError, ApiUnavailable
from gpushare.kube.responses import response_error
from gpushare_localcluster.api.apiserver import Rest
from gpushare_localcluster.api.calls import Call
from gpushare_localcluster.api.reading import PodLogs
from gpushare_localcluster.api.registry import Registry
from gpushare_localcluster.api.status import StatusError
from gpushare_localcluster.api.store import Store

_PATH = re.compile(r"/apis?/(?:(?P<group>[^/]+\.[^/]+)/)?(?P<version>v[^/]+)/(?P<rest>.+)")
_LATE = 0.2
"""Upper bound of the delay of a late write, in seconds."""


class WatchReader:
    """The client's end of a call."""

    def __init__(self) -> None:
        self.gone = False

    def alive(self) -> bool:
        """Whether somebody reads on."""
        return not self.gone

    def stopping(self) -> bool:
        """Whether the call is to end."""
        return self.gone


class ThreadsApi:
    """faults: the share of Bindings that meet one."""

    def __init__(self, store: Store, faults: float) -> None:
        self.registry = Registry(store)
        self._store = store
        self._rest = Rest(self.registry, PodLogs(), 1.0)
        self._faults = faults
        self._chance = threading.local()
        self._late: list[tuple[float, tuple[str, str, bytes | None]]] = []

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = "application/json",
        timeout: float,
        not_after: float = math.inf,
    ) -> bytes:
        """The body of a 2xx answer; see gpushare.kube.api.Api."""
        del content_type, timeout, not_after
        fault = self._fault() if method == "POST" else ""
        if fault == "before":
            raise ApiUnavailable("on order", 0)
        if fault == "refused":
            raise ApiConflict("on order", 409)
        if fault == "late":
            self._late.append((time.monotonic() + _LATE * self._random(), (method, path, body)))
            raise ApiUnavailable("on order", 504)
        answer = self._answer(method, path, query or {}, body)
        if fault == "after":
            raise ApiUnavailable("on order", 0)
        return answer

    def stream(
        self,
        path: str,
        query: Mapping[str, str],
        *,
        connect_timeout: float,
        read_timeout: float,
    ) -> AbstractContextManager["_ThreadsStream"]:
        """An open watch; see gpushare.kube.api.Api."""
        del connect_timeout, read_timeout
        reader = WatchReader()
        pieces = self._pieces("GET", path, query, None, reader)
        assert not isinstance(pieces, bytes)
        return _ThreadsStream(pieces, reader, self._store)

    def apply_late(self) -> int:
        """How many late writes are still to come, after those that are due are applied."""
        now = time.monotonic()
        for item in list(self._late):
            due, (method, path, body) = item
            if due <= now:
                self._late.remove(item)
                try:
                    self._answer(method, path, {}, body)
                except ApiError:
                    continue
        return len(self._late)

    def _answer(
        self, method: str, path: str, query: Mapping[str, str], body: bytes | None
    ) -> bytes:
        answer = self._pieces(method, path, query, body, WatchReader())
        assert isinstance(answer, bytes)
        return answer

    def _pieces(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: bytes | None,
        reader: WatchReader,
    ) -> bytes | Iterator[bytes]:
        match = _PATH.fullmatch(path)
        assert match, path
        call = Call(method, query, "", "", body or b"", reader)
        try:
            return self._rest.answer(
                match["group"] or "", match["version"], match["rest"], call
            ).body
        except StatusError as error:
            text = json.dumps(error.body()).encode()
            raise response_error(f"{method} {path}", error.code, text) from error

    def _random(self) -> float:
        if not hasattr(self._chance, "random"):
            self._chance.random = Random(threading.get_ident())
        number: float = self._chance.random.random()
        return number

    def _fault(self) -> str:
        faults = ("before", "after", "refused", "late")
        drawn = self._random()
        return faults[int(drawn / self._faults * len(faults))] if drawn < self._faults else ""


class _ThreadsStream(AbstractContextManager["_ThreadsStream"]):
    """The lines of an open watch."""

    def __init__(self, pieces: Iterator[bytes], reader: WatchReader, store: Store) -> None:
        self._pieces = pieces
        self._reader = reader
        self._store = store

    def __exit__(self, *_: object) -> None:
        """Stop reading."""
        self.close()

    def __iter__(self) -> Iterator[bytes]:
        """The lines as they come."""
        for piece in self._pieces:
            yield from (line for line in piece.splitlines() if line)

    def close(self) -> None:
        """End the stream: a reader of the next line wakes."""
        self._reader.gone = True
        self._store.wake()
