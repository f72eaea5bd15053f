"""The network between our processes and the API server: requests on the way, and faults.

`Network.outcome` decides the fate of one request, well or badly; `SimApi` is the API that
production code calls (gpushare.kube.api.Api) and waits in as a task. The content of requests does
not matter here, except that a read may be garbled and a write may be applied late or twice.
"""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from gpushare.errors import (
    ApiConflict,
    ApiError,
    ApiGone,
    ApiUnavailable,
    ApiUnreachable,
)
from gpushare.kube import responses
from gpushare.kube.api import Lines
from tests.simulation.server import Feed, Line, Server, seconds_allowed
from tests.simulation.tasks import Owner, Task, Tasks, TimedOut

LEASES = "/apis/coordination.k8s.io/"

READ_FAULTS = (
    "reset",
    "unreachable",
    "silent",
    "500",
    "503",
    "429",
    "403",
    "401",
    "garbled",
    "slow",
    "html",
    "empty",
    "other-kind",
    "html-404",
)
LIST_FAULTS = (*READ_FAULTS, "410")
WATCH_FAULTS = ("reset", "unreachable", "silent", "500", "429", "403", "404", "410")
WRITE_FAULTS = (
    "reset",
    "unreachable",
    "silent",
    "reply-lost",
    "reply-reset",
    "504-applied",
    "500-applied",
    "late",
    "late-silent",
    "late-504",
    "very-late",
    "twice",
    "again-late",
    "500",
    "503",
    "429",
    "403",
    "422",
    "401",
    "409",
    "html",
    "empty",
    "other-kind",
    "garbled",
    "html-applied",
    "empty-applied",
    "other-kind-applied",
    "twice-empty",
    "html-404",
    "html-404-applied",
)
LEASE_FAULTS = (
    "silent",
    "reset",
    "500",
    "409",
    "reply-lost",
    "reply-reset",
    "late",
    "again-late",
    "slow-request",
    "slow-reply",
    "stopped",
    "garbled",
    "html",
    "empty",
    "other-kind",
    "html-applied",
)
_PAGE = b"<!DOCTYPE html><html><body><form>Sign in</form></body></html>"
_GARBLED: Mapping[str, bytes] = {
    "html": _PAGE,
    "empty": b"",
    "other-kind": b'{"kind":"Namespace","apiVersion":"v1","metadata":{"name":"default",'
    b'"uid":"uid-0","resourceVersion":"1"},"spec":{},"status":{"phase":"Active"}}',
}
"""2xx answers by an intermediary that is no API server, or asked another one."""

_SLOW = 0.9
"""The shares of a call's timeout before the server begins, and before the answer is back."""

_Errors = Mapping[str, Callable[[], ApiError]]
"""A new error each time: a raised error keeps the frames of all stories that raised it."""

_BEFORE: _Errors = {
    "reset": partial(ApiUnavailable, "connection reset", 0),
    "unreachable": partial(ApiUnreachable, "connection refused", 0),
    "410": partial(ApiGone, "410 the version is gone", 410),
    "409": partial(ApiConflict, "409 the object has been modified", 409),
    **{code: partial(ApiUnavailable, f"{code} on order", int(code)) for code in ("500", "503")},
    **{
        code: partial(ApiError, f"{code} on order", int(code))
        for code in ("401", "403", "404", "422", "429")
    },
    "html-404": lambda: responses.response_error("a page", 404, _PAGE),
}
_AFTER: _Errors = {
    "reply-reset": partial(ApiUnavailable, "connection reset", 0),
    "504-applied": partial(ApiUnavailable, "504 on order", 504),
    "500-applied": partial(ApiUnavailable, "500 on order", 500),
    "html-404-applied": lambda: responses.response_error("a page", 404, _PAGE),
}
_LATE: _Errors = {
    "late": partial(ApiUnavailable, "connection reset", 0),
    "late-504": partial(ApiUnavailable, "504 on order", 504),
    "very-late": partial(ApiUnavailable, "connection reset", 0),
}


class Client(Owner, Protocol):
    """A process that calls: the name is unique for ever.

    The process may be stopped in the middle of a call, and finds the answer when it continues.
    """

    frozen: bool

    @property
    def identity(self) -> str:
        """The name."""
        ...


@dataclass(eq=False, slots=True, repr=False)
class Request:
    """One call. answer: on the way. silent: there will never be one. binding: the body."""

    client: Client
    method: str
    path: str
    query: Mapping[str, str]
    body: bytes | None
    sent: float
    task: Task | None = None
    silent: bool = False
    answer: bytes | ApiError | Feed | None = None
    binding: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        """Decode a Binding once: every step looks at it."""
        if self.method == "POST" and self.path.endswith("/binding"):
            self.binding = json.loads(self.body or b"")

    @property
    def watch(self) -> bool:
        """Whether the request is a watch."""
        return "watch" in self.query

    @property
    def faults(self) -> tuple[str, ...]:
        """The possible faults."""
        if self.watch:
            return WATCH_FAULTS
        if self.method != "GET":
            return WRITE_FAULTS
        return LIST_FAULTS if "limit" in self.query else READ_FAULTS


@dataclass(eq=False, slots=True, repr=False)
class Late:
    """A write that the server still handles for a client that has given up; until: the end."""

    request: Request
    until: float

    @property
    def allowed(self) -> float:
        """The server's timeout in seconds."""
        return seconds_allowed(self.request.query)


Applied = Callable[[Request, bytes | ApiError], None]
"""Called with every request that the server has handled, and the answer."""


@dataclass(repr=False)
class Network:
    """Requests under way, watches open, and writes that may still be applied."""

    tasks: Tasks
    server: Server
    applied: Applied
    sent: Callable[[Request], None]
    fired: Counter[str]
    waiting: list[Request] = field(default_factory=list)
    streams: list["WatchStream"] = field(default_factory=list)
    late: list[Late] = field(default_factory=list)
    armed: dict[str, list[str]] = field(default_factory=dict)

    def serve(self, request: Request) -> bytes | ApiError | Feed:
        """The server handles a request, unless the timeout is over."""
        if self.tasks.now > request.sent + seconds_allowed(request.query):
            return ApiUnavailable("504 the request timed out", 504)
        return self._work_on(request)

    def _work_on(self, request: Request) -> bytes | ApiError | Feed:
        try:
            if request.watch:
                return self.server.watch(request.path, request.query)
            answer: bytes | ApiError = self.server.answer(
                request.method, request.path, request.query, request.body
            )
        except ApiError as error:
            answer = error
        self.applied(request, answer)
        return answer

    def outcome(self, request: Request, fault: str) -> bytes | ApiError | Feed | None:
        """The result; None: nothing, until the client gives up."""
        self.fired[f"{_kind(request)} {fault}"] += 1
        if fault == "silent":
            return None
        if fault in _BEFORE:
            return _BEFORE[fault]()
        if fault in ("late", "late-silent", "late-504", "very-late"):
            longest = 60.0 if fault == "very-late" else seconds_allowed(request.query)
            self.late.append(Late(request, request.sent + longest))
            return _LATE[fault]() if fault in _LATE else None
        if fault in _GARBLED:
            return _GARBLED[fault]
        answer = self.serve(request)
        if fault.startswith("twice"):
            answer = self.serve(request)
        if fault == "again-late":
            self.late.append(Late(request, request.sent + seconds_allowed(request.query)))
        return _returned(fault, answer)

    def deliver(self, request: Request) -> None:
        """The answer has come: the client goes on."""
        self.waiting.remove(request)
        assert request.task is not None
        self.tasks.resume(request.task, request.answer)

    def apply_late(self, late: Late) -> None:
        """The server begins."""
        self.late.remove(late)
        if self.tasks.now < late.until:
            self._work_on(late.request)

    def give_up(self, request: Request) -> None:
        """Nobody waits for the request any more; a write on the way may still be applied."""
        self.waiting.remove(request)
        if request.answer is None and not request.silent and request.method != "GET":
            self.fired["bind timed out"] += 1
            self.late.append(Late(request, request.sent + seconds_allowed(request.query)))

    def drop(self, client: Client) -> None:
        """A process has ended: nobody waits for the calls, or reads the watches any more.

        The connections are closed, so kube-apiserver gives up the running requests; a request that
        is far enough is still applied, within the time the server was given.
        """
        for request in [request for request in self.waiting if request.client is client]:
            self.give_up(request)
        self.streams = [stream for stream in self.streams if stream.client is not client]


def _returned(fault: str, answer: bytes | ApiError | Feed) -> bytes | ApiError | Feed | None:
    """The answer that arrives for the answer of the server."""
    if fault == "reply-lost":
        return None
    if fault in _AFTER:
        return _AFTER[fault]()
    if fault == "garbled" and isinstance(answer, bytes):
        return answer[: len(answer) // 2]
    return _GARBLED.get(fault.removeprefix("twice-").removesuffix("-applied"), answer)


def told(request: Request) -> str:
    """The request in words."""
    answer: object = request.answer
    if isinstance(answer, bytes | Feed):
        answer = "ok"
    verb = "watch" if request.watch else request.method
    return f"{verb} {request.path} of {request.client.identity} sent {request.sent:.3f}: {answer}"


def _kind(request: Request) -> str:
    if request.path.startswith(LEASES):
        return "lease"
    if request.watch:
        return "watch"
    return {"GET": "list" if "limit" in request.query else "read"}.get(request.method, "bind")


class SimApi:
    """One process's API server: every call is a task's wait until it is served."""

    def __init__(self, network: Network, client: Client) -> None:
        self._network = network
        self._client = client

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
        del content_type
        network = self._network
        if network.tasks.now > not_after:
            raise ApiUnreachable("not sent: its time was over", 0)
        request = Request(self._client, method, path, query or {}, body, network.tasks.now)
        if path.startswith(LEASES):
            # Leases are kept in the background: a story that told of every renewal would tell
            # little else. Faults are drawn before.
            armed = network.armed.get(self._client.identity)
            fault = armed.pop() if armed else ""
            if fault == "slow-request":
                network.tasks.sleep(_SLOW * timeout)
            answer = network.outcome(request, fault) if fault else network.serve(request)
            if fault == "slow-reply":
                network.tasks.sleep(_SLOW * timeout)
            if fault == "stopped":
                self._client.frozen = True
                network.tasks.sleep(0.0)
            if answer is None:
                network.tasks.sleep(timeout)
                raise ApiUnavailable("no answer", 0)
            if isinstance(answer, ApiError):
                raise answer
        else:
            answer = self._wait(request, timeout)
        assert isinstance(answer, bytes)
        return answer

    def stream(
        self,
        path: str,
        query: Mapping[str, str],
        *,
        connect_timeout: float,
        read_timeout: float,
    ) -> AbstractContextManager[Lines]:
        """An open watch; see gpushare.kube.api.Api."""
        request = Request(self._client, "GET", path, query, None, self._network.tasks.now)
        feed = self._wait(request, connect_timeout)
        assert isinstance(feed, Feed)
        return WatchStream(self._network, self._client, path, feed, read_timeout)

    def _wait(self, request: Request, timeout: float) -> bytes | Feed:
        network = self._network
        request.task = network.tasks.current()
        network.sent(request)
        network.waiting.append(request)
        answer = network.tasks.wait(network.tasks.now + timeout)
        if isinstance(answer, TimedOut):
            network.give_up(request)
            raise ApiUnavailable("no answer in time", 0)
        if isinstance(answer, ApiError):
            raise answer
        assert isinstance(answer, bytes | Feed)
        return answer


@dataclass(eq=False, repr=False)
class WatchStream(AbstractContextManager["WatchStream"]):
    """The client's end of a watch. blind: nothing more comes, and nobody says so. closed: the
    reader takes no line any more.
    """

    network: Network
    client: Client
    path: str
    feed: Feed
    silence: float
    blind: bool = False
    task: Task | None = None
    closed: bool = False

    def __enter__(self) -> "WatchStream":
        """Begin to read."""
        self.network.streams.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        """Stop reading."""
        if self in self.network.streams:
            self.network.streams.remove(self)

    def __iter__(self) -> Iterator[bytes]:
        """The lines as delivered; see gpushare.kube.api.Lines."""
        tasks = self.network.tasks
        while not self.closed:
            self.task = tasks.current()
            ends = self.feed.ends if not self.blind else float("inf")
            line = tasks.wait(min(ends, tasks.now + self.silence))
            if self.closed or (isinstance(line, TimedOut) and tasks.now >= ends):
                return
            if isinstance(line, TimedOut):
                raise ApiUnavailable("nothing came any more", 0)
            if isinstance(line, ApiError):
                raise line
            assert isinstance(line, Line)
            yield line.text

    def close(self) -> None:
        """End the stream; the reader notices with the next look at the clock."""
        self.closed = True
        if self.task is not None:
            self.task.until = self.network.tasks.now

    def show(self, line: Line | ApiError) -> None:
        """A line comes, or the cut."""
        assert self.task is not None
        self.network.tasks.resume(self.task, line)
