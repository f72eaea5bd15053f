"""Calls over a connection that is open already, for half the CPU that urllib3 takes.

urllib3 opens each connection, makes the first call over it and keeps it while it is idle: it
handles proxies, TLS and certificates. The next calls on the same connection need none of that: the
call is written directly, and http.client reads the answer.

Knows urllib3's pool and http.client; no credentials, and nothing of what is sent.
"""

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPException, HTTPMessage, HTTPResponse

import urllib3
from urllib3 import HTTPConnectionPool, HTTPHeaderDict
from urllib3.exceptions import ProtocolError

from gpushare.kube.connection import OneWriteConnection, send_deadline


class KeptResponse:
    """An answer on a kept connection, with what responses.py uses of urllib3's answers."""

    def __init__(
        self, pool: HTTPConnectionPool, connection: OneWriteConnection, answer: HTTPResponse
    ) -> None:
        self._pool = pool
        self._answer = answer
        self.connection = connection
        self.status = answer.status
        self.headers: HTTPMessage = answer.headers
        self.chunked = bool(answer.chunked)

    @property
    def length_remaining(self) -> int | None:
        """How many bytes of the body are to come; None if that is not known."""
        return self._answer.length

    def read1(self, amount: int, decode_content: bool = True) -> bytes:
        """Return the bytes of the body that are here, b"" at its end. Raises HTTPError, OSError."""
        del decode_content  # what is encoded is urllib3's
        try:
            piece = self._answer.read1(amount)
        except HTTPException as error:
            raise ProtocolError(f"the answer broke: {error!r}", error) from error
        if not piece and self._answer.length:
            raise ProtocolError(f"the answer ended {self._answer.length} bytes too early")
        return piece

    def release_conn(self) -> None:
        """Keep the connection for the next call, if this answer has been read to its end."""
        if self._answer.isclosed() or self._answer.length == 0:
            self._answer.close()
        else:
            self.close()
        self._pool._put_conn(self.connection)  # noqa: SLF001 -- there is no other way back

    def close(self) -> None:
        """Close the connection."""
        self._answer.close()
        self.connection.close()


@dataclass(frozen=True, slots=True)
class KeptConnection:
    """An open connection, taken from its pool for one call."""

    pool: HTTPConnectionPool
    connection: OneWriteConnection

    def call(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: bytes | None,
        timeout: float,
    ) -> KeptResponse | urllib3.BaseHTTPResponse:
        """Send a call and return its answer, the body unread; `timeout` is seconds for its head.

        `headers` has the host. Raises TooLateError if nothing was sent; HTTPError, OSError.
        """
        sock = self.connection.sock
        try:
            message = _message(method, target, headers, body)
            sock.settimeout(timeout)
            send_deadline.mark_sent()
            sock.sendall(message)
            answer = _answer_on(sock, method)
        except HTTPException as error:
            self.connection.close()
            raise ProtocolError("Connection aborted.", error) from error
        except BaseException:
            self.connection.close()
            raise
        if answer.will_close:
            self.connection.close()  # the answer holds the socket until it has been read
        if "Content-Encoding" in answer.headers:
            return self._encoded(answer)
        return KeptResponse(self.pool, self.connection, answer)

    def _encoded(self, answer: HTTPResponse) -> urllib3.BaseHTTPResponse:
        """Return the answer for urllib3 to decode: some proxies encode it, though nobody asked."""
        return urllib3.HTTPResponse(
            body=answer,
            headers=HTTPHeaderDict(answer.headers.items()),
            status=answer.status,
            preload_content=False,
            original_response=answer,
            connection=self.connection,
            pool=self.pool,
        )


def take_open(pool: HTTPConnectionPool) -> KeptConnection | None:
    """Return an idle connection that its server has not closed, or None if urllib3 must open
    one. Raises HTTPError when the pool is closed.
    """
    connection = pool._get_conn()  # noqa: SLF001 -- it closes what its server has closed
    # A proxy that forwards calls wants headers of its own.
    if (
        isinstance(connection, OneWriteConnection)
        and not connection.is_closed
        and not connection.proxy_is_forwarding
    ):
        return KeptConnection(pool, connection)
    pool._put_conn(connection)  # noqa: SLF001 -- there is no other way back
    return None


def _answer_on(sock: socket.socket, method: str) -> HTTPResponse:
    """Return the next answer, its head read."""
    answer = HTTPResponse(sock, method=method)
    try:
        answer.begin()
    except BaseException:
        answer.close()  # it holds the socket
        raise
    return answer


def _message(method: str, target: str, headers: Mapping[str, str], body: bytes | None) -> bytes:
    """Return a call in one piece."""
    lines = [f"{method} {target} HTTP/1.1", "Accept-Encoding: identity"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    if body is not None or method != "GET":
        lines.append(f"Content-Length: {len(body or b'')}")
    return "\r\n".join([*lines, "\r\n"]).encode("latin-1") + (body or b"")
