"""Injected faults between a client and an API server.

Knows WSGI and time, and of Kubernetes only the Status of a refusal. A hook may return a `Fault` for
each request; the parts of a fault apply in the order delay, refuse or drop, act, cut.
"""

import io
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, TypeAlias
from urllib.parse import parse_qsl

from gpushare_localcluster.api.httpserver import (
    CONNECTION,
    ClientConnection,
    ConnectionDropped,
    Environ,
    StartResponse,
    WsgiApp,
)
from gpushare_localcluster.api.objects import to_json
from gpushare_localcluster.api.status import StatusError


@dataclass(frozen=True, slots=True)
class FaultRequest:
    """The request as a hook gets it."""

    method: str
    path: str
    query: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Refusal:
    """An answer in the server's place; `retry_after` is in seconds."""

    code: int
    reason: str = "InternalError"
    retry_after: int | None = None


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of one request; `|` combines two faults.

    Attributes:
        delay: seconds before anything happens.
        refuse: the answer instead of acting.
        drop: close the connection "before" the server acts, or "after" that without an answer.
        cut_after: events of a watch after which the connection is closed in mid-stream.
        late: seconds until the server acts, after closing the connection at once.
    """

    delay: float = 0.0
    refuse: Refusal | None = None
    drop: Literal["before", "after"] | None = None
    cut_after: int | None = None
    late: float | None = None

    def __or__(self, second: "Fault") -> "Fault":
        """Return both faults in one; where both say something, the other one counts."""
        changes = {name: getattr(second, name) for name in _FIELDS}
        default = Fault()
        text = {name: value for name, value in changes.items() if value != getattr(default, name)}
        return replace(self, **text)


_FIELDS = ("delay", "refuse", "drop", "cut_after", "late")


def delay(seconds: float) -> Fault:
    """Return a fault that makes the request wait."""
    return Fault(delay=seconds)


def drop_before() -> Fault:
    """Return a fault that closes the connection without acting."""
    return Fault(drop="before")


def drop_after() -> Fault:
    """Return a fault that acts and closes the connection without answering."""
    return Fault(drop="after")


def status(code: int, reason: str = "InternalError", retry_after: int | None = None) -> Fault:
    """Return a fault that refuses the request without acting."""
    return Fault(refuse=Refusal(code, reason, retry_after))


def cut_watch(after_events: int) -> Fault:
    """Return a fault that cuts a watch after some events."""
    return Fault(cut_after=after_events)


def apply_late(seconds: float, *, answer: Refusal | None = None) -> Fault:
    """Return a fault that acts after the client saw a lost connection, or `answer`."""
    return Fault(late=seconds, refuse=answer)


Hook: TypeAlias = Callable[[FaultRequest], Fault | None]


class FaultPlan:
    """A hook with rules: the first matching rule that is not used up returns its fault."""

    def __init__(self) -> None:
        """Start with no rule: nothing goes wrong."""
        self._guard = threading.Lock()
        self._rules: list[tuple[str, re.Pattern[str], Fault, list[int]]] = []

    def on(self, method: str, path: str, fault: Fault, *, times: int = 1) -> None:
        """Add a rule: a fault for the next `times` requests with a path that contains the pattern
        `path`.
        """
        with self._guard:
            self._rules.append((method, re.compile(path), fault, [times]))

    def clear(self) -> None:
        """Let nothing go wrong any more."""
        with self._guard:
            self._rules.clear()

    def __call__(self, request: FaultRequest) -> Fault | None:
        """Return the fault for a request, None for none."""
        with self._guard:
            for method, path, fault, remaining in self._rules:
                if remaining[0] > 0 and method == request.method and path.search(request.path):
                    remaining[0] -= 1
                    return fault
        return None


class FaultInjector:
    """A WSGI application around another one, with the faults of a hook.

    The end of the server ends all delays; pending requests then never act.
    """

    def __init__(self, hook: Hook, app: WsgiApp) -> None:
        """Ask `hook` about every request."""
        self._app = app
        self._hook = hook

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        """Answer a request, well or badly."""
        fault = self._fault(environ)
        if fault is None:
            return self._app(environ, start_response)
        stopped = _closing(environ).wait(fault.delay) if fault.delay else False
        if stopped or fault.drop == "before":
            raise ConnectionDropped
        if fault.late is not None:
            self._act_late(environ, fault.late)
        if fault.refuse is not None:
            return _refuse(fault.refuse, start_response)
        if fault.late is not None:
            raise ConnectionDropped
        if fault.drop == "after":
            _consume(self._app(environ, _ignore))
            raise ConnectionDropped
        answer = self._app(environ, start_response)
        return answer if fault.cut_after is None else _cut(answer, fault.cut_after)

    def _fault(self, environ: Environ) -> Fault | None:
        query = dict(parse_qsl(environ["QUERY_STRING"], keep_blank_values=True))
        return self._hook(FaultRequest(environ["REQUEST_METHOD"], environ["PATH_INFO"], query))

    def _act_late(self, environ: Environ, seconds: float) -> None:
        later = {**environ, "wsgi.input": io.BytesIO(environ["wsgi.input"].read())}

        def act() -> None:
            if not _closing(environ).wait(seconds):
                _consume(self._app(later, _ignore))

        threading.Thread(target=act, name="apiserver-late", daemon=True).start()


def faulty(hook: Hook) -> Callable[[WsgiApp], WsgiApp]:
    """Return the wrapper of an `ApiServer` for the faults of the hook."""
    return partial(FaultInjector, hook)


def _closing(environ: Environ) -> threading.Event:
    connection: ClientConnection = environ[CONNECTION]
    return connection.closing


def _ignore(_status: str, _headers: object, _: object = None) -> Callable[[bytes], object]:
    return lambda data: data


def _close(pieces: Iterable[bytes]) -> None:
    getattr(pieces, "close", lambda: None)()


def _consume(pieces: Iterable[bytes]) -> None:
    try:
        for _ in pieces:
            pass
    finally:
        _close(pieces)


def _refuse(refusal: Refusal, start_response: StartResponse) -> Iterable[bytes]:
    error = StatusError(
        refusal.code, refusal.reason, "a fault on order", retry_after=refusal.retry_after
    )
    body = to_json(error.body())
    headers = [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
    if refusal.retry_after is not None:
        headers.append(("Retry-After", str(refusal.retry_after)))
    start_response(f"{refusal.code} {refusal.reason}", headers)
    return [body]


def _cut(pieces: Iterable[bytes], events: int) -> Iterator[bytes]:
    """Yield a stream up to its n-th line, then break it off."""
    remaining, source = events, iter(pieces)
    try:
        # Cut as soon as the last line is out: the next one may be long in coming.
        while remaining > 0 and (piece := next(source, None)) is not None:
            lines = piece.splitlines(keepends=True)[:remaining]
            remaining -= len(lines)
            yield b"".join(lines)
    finally:
        _close(pieces)
    raise ConnectionDropped
