"""A JSON client of the API server: calls, watches and events, over kept-alive connections.

Knows HTTP/1.1, time limits and the API server's statuses; knows no resource but events. All parts
of the cluster use this client over real sockets, so that a user can watch real traffic.
"""

import gzip
import hashlib
import http.client
import json
import select
import socket
import ssl
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import msgspec

from gpushare.errors import ApiConflict, ApiError, ApiGone, ApiNotFound, ApiUnavailable
from gpushare_localcluster.api.objects import timestamp


@dataclass(frozen=True)
class Response:
    """Status and body of one answer; a gzip body is unpacked."""

    status: int
    body: bytes


class HttpClient:
    """Calls one server over a pool of kept-alive connections. Safe for many threads.

    tls: the trust in an https server; None for plain http.
    """

    def __init__(
        self,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        parts = urllib.parse.urlsplit(url)
        self._host = parts.hostname or "127.0.0.1"
        self._port = parts.port or (80 if tls is None else 443)
        self._tls = tls
        self._prefix = parts.path.rstrip("/")
        self._headers = dict(headers or {})
        self._lock = threading.Lock()
        self._idle: list[http.client.HTTPConnection] = []
        self._closed = False

    def call(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        timeout: float,
        headers: Mapping[str, str] | None = None,
    ) -> Response:
        """Send a call and return the answer with any status.

        Raises OSError or http.client.HTTPException if no answer came.

        `timeout` (seconds) covers everything from connecting to the end of the body.
        """
        deadline = time.monotonic() + timeout
        connection = self._take(timeout)
        try:
            connection.request(
                method, self._prefix + path, body=body, headers={**self._headers, **(headers or {})}
            )
            response = connection.getresponse()
            content = _read_until(connection, response, deadline)
        except BaseException:
            connection.close()
            raise
        if response.will_close:
            connection.close()
        else:
            self._put_back(connection)
        if response.getheader("Content-Encoding") == "gzip":
            content = gzip.decompress(content)
        return Response(response.status, content)

    @contextmanager
    def stream(
        self, path: str, *, timeout: float, opened: Callable[[socket.socket], None]
    ) -> Iterator[http.client.HTTPResponse]:
        """Open a GET on a new connection, and yield the answer.

        opened: called with the socket before the first wait, so that another thread can shut the
        socket down. timeout: seconds for connecting and for each read.
        """
        connection = self._connect(timeout)
        try:
            opened(connection.sock)
            connection.request("GET", self._prefix + path, headers=self._headers)
            with connection.getresponse() as response:
                yield response
        finally:
            connection.close()

    def close(self) -> None:
        """Close the idle connections; running calls close their connections at the end."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _take(self, timeout: float) -> http.client.HTTPConnection:
        while True:
            with self._lock:
                connection = self._idle.pop() if self._idle else None
            if connection is None:
                return self._connect(timeout)
            if not _dropped(connection):
                _limit(connection.sock, timeout)
                return connection
            connection.close()

    def _connect(self, timeout: float) -> http.client.HTTPConnection:
        connection = _Connection(self._host, self._port, timeout=timeout)
        connection.connect()
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._tls is not None:
            try:
                tls_socket = self._tls.wrap_socket(connection.sock, server_hostname=self._host)
            except BaseException:
                connection.close()
                raise
            connection.sock = tls_socket
        return connection

    def _put_back(self, connection: http.client.HTTPConnection) -> None:
        with self._lock:
            if not self._closed:
                self._idle.append(connection)
                return
        connection.close()


class _Connection(http.client.HTTPConnection):
    """Sends head and body of a request in one write, so that the server wakes up once."""

    def request(self, *args: Any, **options: Any) -> None:  # noqa: ANN401 -- the base's
        """Send a request."""
        self._parts: list[bytes] = []
        super().request(*args, **options)
        self.sock.sendall(b"".join(self._parts))

    def send(self, data: Any) -> None:  # noqa: ANN401 -- the base's
        """Keep a part of the request."""
        self._parts.append(data)


def _dropped(connection: http.client.HTTPConnection) -> bool:
    """Return whether the server closed an idle connection, which is readable then."""
    if connection.sock is None:
        return True
    # poll, since select knows no descriptor above 1023.
    watched = select.poll()
    watched.register(connection.sock, select.POLLIN)
    return bool(watched.poll(0))


def _limit(sock: socket.socket, seconds: float) -> None:
    """Limit the waits of the socket to so many seconds, or a ninth more.

    A new limit is a system call, at which a busy thread loses the interpreter to another one.
    """
    now = sock.gettimeout()
    if now is None or not 0.9 * now <= seconds <= now:
        sock.settimeout(seconds)


def _read_until(
    connection: http.client.HTTPConnection,
    response: http.client.HTTPResponse,
    deadline: float,
) -> bytes:
    """Return the whole body. Raises TimeoutError at the deadline, even while bytes arrive."""
    chunks: list[bytes] = []
    while not response.isclosed():
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            raise TimeoutError("timed out reading the answer")
        if connection.sock is not None:
            _limit(connection.sock, remaining)
        chunk = response.read1(65536)
        if not chunk:
            break
        chunks.append(chunk)
    if response.length:
        raise http.client.IncompleteRead(b"".join(chunks), response.length)
    # read1() leaves a fully read answer open, and the connection with it.
    response.close()
    return b"".join(chunks)


Json = dict[str, Any]

MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
_PIECE = 1 << 16
"""Upper bound on the bytes of one read of a watch."""
_ERRORS: dict[int, type[ApiError]] = {404: ApiNotFound, 409: ApiConflict, 410: ApiGone}


class ApiClient:
    """JSON calls to the API server; unsuccessful answers raise subclasses of ApiError. token and
    tls are for a server with authentication, such as a real one.
    """

    def __init__(
        self,
        url: str,
        *,
        user_agent: str,
        timeout: float = 10.0,
        token: str = "",
        tls: ssl.SSLContext | None = None,
    ) -> None:
        headers = {"Accept": "application/json", "User-Agent": user_agent}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        self._http = HttpClient(url, headers=headers, tls=tls)
        self._timeout = timeout

    def get(self, path: str, query: Mapping[str, str] | None = None) -> Json:
        """Return the object or list at the path."""
        return self._json("GET", path, query=query)

    def create(self, path: str, body: Json) -> Json:
        """Create the object, and return the stored object (for a Binding: a Status)."""
        return self._json("POST", path, body)

    def patch(self, path: str, body: Json, content_type: str = STRATEGIC_PATCH) -> Json:
        """Patch the object, and return the stored object."""
        return self._json("PATCH", path, body, content_type=content_type)

    def delete(
        self,
        path: str,
        *,
        grace_seconds: int | None = None,
        uid: str | None = None,
        propagation: str = "",
    ) -> Json:
        """Delete the object, with `uid` only the object of this uid; return the deleted or
        terminating object.

        propagation: the policy for dependents.
        """
        options: Json = {"kind": "DeleteOptions", "apiVersion": "v1"}
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        if uid is not None:
            options["preconditions"] = {"uid": uid}
        if propagation:
            options["propagationPolicy"] = propagation
        return self._json("DELETE", path, options)

    def watch(self, path: str, query: Mapping[str, str], *, read_timeout: float) -> "Watch":
        """Open a stream of watch events. Raises ApiGone for a version that is too old."""
        full = _with_query(path, {**query, "watch": "true"})
        return Watch(self._http, full, read_timeout)

    def close(self) -> None:
        """Close the idle connections."""
        self._http.close()

    def _json(
        self,
        method: str,
        path: str,
        body: Json | None = None,
        *,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
    ) -> Json:
        data = None if body is None else msgspec.json.encode(body)
        headers = {} if body is None else {"Content-Type": content_type}
        full = _with_query(path, query or {})
        try:
            answer = self._http.call(method, full, data, timeout=self._timeout, headers=headers)
        except (OSError, http.client.HTTPException) as error:
            raise ApiUnavailable(f"{method} {path}: {_told(error)}", 0) from error
        if answer.status >= 300:
            raise api_error(method, path, answer)
        return _object(answer.body, f"{method} {path}")


class Watch:
    """One watch; an iteration yields `(type, object)`; `close()` from any thread ends it."""

    def __init__(self, client: HttpClient, path: str, read_timeout: float) -> None:
        self._client = client
        self._path = path
        self._timeout = read_timeout
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._closed = False

    def __iter__(self) -> Iterator[tuple[str, Json]]:
        """Yield events until the server ends the stream or `close()` is called. Raises ApiError."""
        with self._client.stream(
            self._path, timeout=self._timeout, opened=self._opened
        ) as response:
            if response.status != 200:
                raise api_error("GET", self._path, Response(response.status, response.read()))
            yield from self._events(response)

    def close(self) -> None:
        """End the stream; a reader in another thread returns at once."""
        with self._lock:
            self._closed = True
            if self._socket is not None:
                with suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)

    def _opened(self, sock: socket.socket) -> None:
        with self._lock:
            self._socket = sock
            is_closed = self._closed
        if is_closed:
            raise ConnectionAbortedError("the watch was closed")

    def _events(self, response: http.client.HTTPResponse) -> Iterator[tuple[str, Json]]:
        # Reads pieces, since readline() parses the length of the chunk again for each line.
        partial = b""
        while piece := response.read1(_PIECE):
            *lines, partial = (partial + piece).split(b"\n")
            for line in lines:
                yield self._event(line)

    def _event(self, line: bytes) -> tuple[str, Json]:
        event = _object(line, self._path)
        kind, body = str(event.get("type", "")), event.get("object") or {}
        if kind == "ERROR":
            status = int(body.get("code") or 500)
            raise _ERRORS.get(status, ApiUnavailable)(str(body.get("message")), status)
        return kind, body


def api_error(method: str, path: str, answer: Response) -> ApiError:
    """Return the error for an unsuccessful answer, with the message of the server."""
    try:
        message = str(msgspec.json.decode(answer.body)["message"])
    except (ValueError, KeyError, TypeError):
        message = f"{method} {path}: HTTP {answer.status}"
    kind = ApiUnavailable if answer.status >= 500 else _ERRORS.get(answer.status, ApiError)
    return kind(message, answer.status)


def _object(data: bytes, request: str) -> Json:
    try:
        value = msgspec.json.decode(data)
    except ValueError as error:
        raise ApiUnavailable(f"{request}: the answer is no JSON", 0) from error
    if not isinstance(value, dict):
        raise ApiUnavailable(f"{request}: the answer is no JSON object", 0)
    return value


def _with_query(path: str, query: Mapping[str, str]) -> str:
    return f"{path}?{urllib.parse.urlencode(query)}" if query else path


def _told(error: Exception) -> str:
    return str(error) or type(error).__name__


def write_event(
    api: ApiClient, about: Json, reason: str, message: str, *, kind: str, component: str
) -> None:
    """Write an event about an object, or count it once more. Raises ApiError."""
    meta, now = about["metadata"], timestamp()
    path = f"/api/v1/namespaces/{meta.get('namespace') or 'default'}/events"
    digest = hashlib.sha256(json.dumps([meta["uid"], reason, message]).encode()).hexdigest()
    name = f"{meta['name']}.{digest[:16]}"
    involved = {field: about[field] for field in ("kind", "apiVersion")}
    for field in ("namespace", "name", "uid", "resourceVersion"):
        if field in meta:
            involved[field] = meta[field]
    event = {
        "kind": "Event",
        "apiVersion": "v1",
        "metadata": {"name": name},
        "involvedObject": involved,
        "reason": reason,
        "message": message,
        "source": {"component": component},
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
        "type": kind,
        "eventTime": None,
        "reportingComponent": component,
        "reportingInstance": "",
    }
    try:
        api.create(path, event)
    except ApiConflict:
        again = {"count": api.get(f"{path}/{name}")["count"] + 1, "lastTimestamp": now}
        api.patch(f"{path}/{name}", again, MERGE_PATCH)
