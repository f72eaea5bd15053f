"""Responses, read in time: bodies whole or not at all, watches line by line.

Knows urllib3's answers and their sockets, and nothing of what the bytes mean.

Tested in `tests/unit/kube/test_client_in_time.py`.
"""

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import urllib3
from urllib3.exceptions import HTTPError

from gpushare.kube.api_errors import BODY_LIMIT, no_response_error
from gpushare.kube.line_splitter import LineSplitter

_CHUNK = 256 << 10

Response = urllib3.BaseHTTPResponse


class LineStream:
    """The lines of an open watch; `close` may come from another thread."""

    def __init__(self, response: Response, live: socket.socket, where: str) -> None:
        self._response = response
        self._where = where
        self._closed = False
        # A duplicate of our own: shutting it down wakes a reader blocked on the other, for TLS too,
        # and its number cannot be given to another file meanwhile.
        self._handle = socket.socket(fileno=os.dup(live.fileno()))
        self._lock = threading.Lock()

    def __iter__(self) -> Iterator[bytes]:
        """Return the lines; a cut or silent stream raises ApiUnavailable, a clean end just ends."""
        splitter = LineSplitter()
        while True:
            lines = self._read(splitter)
            if lines is None:
                return
            for line in lines:
                if self._closed:
                    return
                yield line

    def _read(self, splitter: LineSplitter) -> list[bytes] | None:
        """Return the lines that one read completes; None at the end."""
        try:
            chunk = self._response.read1(_CHUNK, decode_content=True)
            return splitter.feed(chunk) if chunk and not self._closed else None
        except (HTTPError, OSError, ValueError) as error:
            if self._closed:
                return None
            raise no_response_error(self._where, error) from error

    def close(self) -> None:
        """End the iteration at once."""
        self._closed = True
        with self._lock, suppress(OSError):
            self._handle.shutdown(socket.SHUT_RDWR)

    def release(self) -> None:
        """Close the sockets; only for the thread that reads."""
        with self._lock:
            self._handle.close()
        self._response.close()


def socket_of_response(response: Response) -> socket.socket:
    """Return the socket an unread answer comes from."""
    live = getattr(response.connection, "live", None)
    if not isinstance(live, socket.socket):
        raise OSError("the connection has no socket any more")
    return live


MOST_BYTES = 16 << 20
"""Bytes of an answer. An object has at most some 1.5 MiB (`--max-request-bytes` of etcd), so that a
list of few objects is less whatever stands in them, and 500 usual pods are a third of it."""


class TooLargeError(Exception):
    """A body has more than MOST_BYTES."""


def read_all(response: Response, deadline: float) -> bytes:
    """Return the whole body; read in pieces, so that a slow server cannot exceed the deadline.

    Raises TooLargeError.
    """
    length = response.headers.get("Content-Length", "")
    if not (response.chunked or length.isdigit() or response.status == 204):
        # http.client takes an answer cut within its head for one that ends with the connection.
        raise OSError("the answer does not say where it ends")
    parts, size = [], 0
    plain = "Content-Encoding" not in response.headers
    while part := _read_piece(response, deadline):
        parts.append(part)
        size += len(part)
        if size > MOST_BYTES:
            raise TooLargeError
        if plain and response.length_remaining == 0:
            break
    return b"".join(parts)


def _read_piece(response: Response, deadline: float) -> bytes:
    """Return the bytes of the body that have come, b"" at its end. Raises TimeoutError."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("the answer's body did not end in time")
    live = getattr(response.connection, "live", None)
    if isinstance(live, socket.socket):
        live.settimeout(left)
    return response.read1(_CHUNK, decode_content=True)


def read_beginning(response: Response) -> bytes:
    """Return the beginning of a refusal's body, as much as can be read."""
    parts: list[bytes] = []
    with suppress(HTTPError, OSError):
        while sum(map(len, parts)) < BODY_LIMIT:
            part = response.read1(BODY_LIMIT, decode_content=True)
            if not part:
                break
            parts.append(part)
    return b"".join(parts)


def return_to_pool(response: Response, deadline: float) -> bool:
    """Return whether the answer's connection went back to the pool alive."""
    try:
        read_all(response, deadline)
    except (HTTPError, OSError, TooLargeError):
        response.close()
        return False
    response.release_conn()
    return True
