"""HTTP calls and streams over a pool of kept-alive connections.

Knows HTTP/1.1 and time limits; knows nothing of the API server. All parts of the cluster use this
client over real sockets, so that a user can watch real traffic.
"""

import gzip
import http.client
import select
import socket
import ssl
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


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
