"""The API server of the simulation: the local cluster's own, without sockets and in virtual time.

Handles paths, bytes and versions. Faults on the way are network.py's; the truth of the
devices is not known here.
"""

import json
import math
import re
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count

from gpushare.errors import ApiGone
from gpushare.kube.responses import response_error
from gpushare_localcluster.api.apiserver import Rest
from gpushare_localcluster.api.calls import Call, target_of
from gpushare_localcluster.api.objects import Change, Record
from gpushare_localcluster.api.reading import PodLogs, Scope, Watch, event_line, selection
from gpushare_localcluster.api.registry import Registry
from gpushare_localcluster.api.status import StatusError
from gpushare_localcluster.api.store import Store
from tests.simulation.tasks import Tasks

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
_PATH = re.compile(r"/apis?/(?:(?P<group>[^/]+\.[^/]+)/)?(?P<version>v[^/]+)/(?P<rest>.+)")
_SECONDS = re.compile(r"(?P<number>[0-9.]+)s")

REQUEST_TIMEOUT = 60.0
"""Seconds after which kube-apiserver ends a request that names no timeout (--request-timeout)."""


class _ImmediateClient:
    """The client of a request that is answered at once."""

    def alive(self) -> bool:
        return True

    def stopping(self) -> bool:
        return False


def seconds_allowed(query: Mapping[str, str]) -> float:
    """Seconds the server works on a request: kube-apiserver's filter reads the query `timeout`."""
    match = _SECONDS.fullmatch(query.get("timeout", ""))
    return min(float(match["number"]), REQUEST_TIMEOUT) if match else REQUEST_TIMEOUT


@dataclass(slots=True)
class Line:
    """One line of a watch: the bytes, and the object, if any."""

    text: bytes
    kind: str = ""
    record: Record | None = None


class Server:
    """Objects, and the answers about these."""

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks
        numbers = count(1)
        self.store = Store(
            clock=lambda: EPOCH + timedelta(seconds=tasks.now),
            new_uid=lambda: f"uid-{next(numbers)}",
        )
        self.registry = Registry(self.store, suffix=lambda: "x")
        self._rest = Rest(self.registry, PodLogs(), 60.0)

    def answer(self, method: str, path: str, query: Mapping[str, str], body: bytes | None) -> bytes:
        """The body of a 2xx answer. Raises ApiError, like the HTTP client."""
        match = _PATH.fullmatch(path)
        assert match, path
        call = Call(method, query, "", "", body or b"", _ImmediateClient())
        try:
            answer = self._rest.answer(match["group"] or "", match["version"], match["rest"], call)
        except StatusError as error:
            text = json.dumps(error.body()).encode()
            raise response_error(f"{method} {path}", error.code, text) from error
        assert isinstance(answer.body, bytes)
        return answer.body

    def watch(self, path: str, query: Mapping[str, str]) -> "Feed":
        """An open watch. Raises ApiError if the version is compacted."""
        match = _PATH.fullmatch(path)
        assert match, path
        target = target_of(match["group"] or "", match["version"], match["rest"])
        call = Call("GET", query, "", "", b"", _ImmediateClient())
        records: list[Record] = []

        def encode(record: Record) -> bytes:
            records.append(record)
            return record.encoded()

        scope = Scope(target.resource, target.namespace, selection(target, call), encode)
        watch = Watch(self.store, scope, call.number("resourceVersion"))
        ends = self._tasks.now + call.number("timeoutSeconds")
        feed = Feed(watch, lambda: self.store.version, records, target.resource.kind, ends)
        feed.pull()
        if feed.lost:
            raise ApiGone(f"watch {path}: 410 too old resource version", 410)
        return feed

    def changes(self, table: str, version: int) -> list[Change]:
        """The changes since that version."""
        return self.store.since(table, version)[0]


@dataclass(repr=False)
class Feed:
    """The server's end of a watch: lines on the way to the client. ends: the time of the end."""

    _watch: Watch
    _version: Callable[[], int]
    _records: list[Record]
    _kind: str
    ends: float = math.inf
    lines: deque[Line] = field(default_factory=deque)
    last: list[Line] = field(default_factory=list)
    lost: bool = False

    def pull(self) -> None:
        """Put the new changes on the way."""
        if self.lost or self._watch.cursor == self._version():
            return
        self._records.clear()
        try:
            texts = self._watch.step()
        except StatusError:
            self.lost = True
            return
        for text, record in zip(texts, self._records, strict=True):
            self.lines.append(Line(text, text[9 : text.index(b'"', 9)].decode(), record))

    def behind(self) -> bool:
        """Whether there is something to show."""
        self.pull()
        return bool(self.lines) or self.lost

    def bookmark(self) -> None:
        """Put a bookmark on the way."""
        self.pull()
        meta = {"resourceVersion": str(self._watch.cursor), "creationTimestamp": None}
        self.lines.append(Line(event_line("BOOKMARK", {"kind": self._kind, "metadata": meta})))

    def take(self) -> Line:
        """The next line; after the last one kept, the ERROR that the history is lost."""
        if not self.lines:
            return error_line(410)
        line = self.lines.popleft()
        self.last = [*self.last[-3:], line]
        return line


def error_line(code: int) -> Line:
    """An ERROR event with that status."""
    status = {"kind": "Status", "code": code, "message": "a fault on order", "status": "Failure"}
    return Line(event_line("ERROR", status))
