"""Responses: the lines of watches, and refusals as errors.

Knows urllib3's answers with their sockets, and of all documents only the Status. Only a Status
comes from the API server: another body with a status of 4xx may be of a proxy, and does not tell
the outcome of the call. The HTTP status alone decides on the class of `gpushare.errors.Api*`; the
message is for people.

A watch is one JSON document a line; the network may cut the stream anywhere. A rest without a line
end at the end of the stream was cut off, and is never delivered.

Tested in `tests/unit/kube/test_client_in_time.py`, `tests/unit/kube/test_client.py` and
`tests/unit/kube/test_line_splitter.py`.
"""

import json
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import urllib3
from urllib3.exceptions import HTTPError

from gpushare.errors import ApiConflict, ApiError, ApiGone, ApiNotFound, ApiUnavailable

TEXT_LIMIT = 500
# A Status fits easily; a proxy's error page need not be read whole.
BODY_LIMIT = 64 << 10
# An object in etcd is at most 1.5 MiB by default (`--max-request-bytes`); a line many times that
# is not a watch, and must not fill our memory.
LINE_LIMIT = 16 << 20
CHUNK = 256 << 10
_BY_STATUS = {404: ApiNotFound, 409: ApiConflict, 410: ApiGone}
_TOO_MANY_REQUESTS = 429
"""The plain text of kube-apiserver's filters for requests in flight, which had no effect."""

Response = urllib3.BaseHTTPResponse


@dataclass(slots=True, eq=False)
class LineSplitter:
    """Cuts a stream of chunks into lines without line ends; empty lines are dropped."""

    limit: int = LINE_LIMIT
    """Bytes of a line."""
    _parts: list[bytes] = field(default_factory=list)
    _held_bytes: int = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the lines completed by `chunk`, in order.

        Raises ValueError when a line grows past the limit (bytes).
        """
        head, *later_parts = chunk.split(b"\n")
        self._hold(head)
        if not later_parts:
            return []
        lines = [b"".join(self._parts), *later_parts[:-1]]
        self._parts = []
        self._held_bytes = 0
        self._hold(later_parts[-1])
        return [line for line in lines if line.strip()]

    def _hold(self, part: bytes) -> None:
        """Keep a piece of a line; pieces are joined once, so a line cut often costs no more."""
        if part:
            self._parts.append(part)
            self._held_bytes += len(part)
        if self._held_bytes > self.limit:
            raise ValueError(f"a line of the stream is longer than {self.limit} bytes")


class LineStream:
    """The lines of an open watch; `close` may come from another thread.

    silence: upper bound of the seconds between two lines. Raises OSError for a closed socket.
    """

    def __init__(self, response: Response, call_name: str, silence: float) -> None:
        live = getattr(response.connection, "live", None)
        if not isinstance(live, socket.socket):
            raise OSError("the connection has no socket any more")
        live.settimeout(silence)
        self._response = response
        self._where = call_name
        self._closed = False
        # A duplicate of the socket: its shutdown wakes a blocked reader, for TLS too, and no other
        # file can get its number meanwhile.
        self._handle = socket.socket(fileno=os.dup(live.fileno()))
        self._lock = threading.Lock()

    def __iter__(self) -> Iterator[bytes]:
        """Return the lines; a cut or silent stream raises ApiUnavailable, a clean end just ends."""
        splitter, chunks = LineSplitter(), self._chunks()
        while True:
            try:
                chunk = next(chunks, b"")
                if self._closed or not chunk:
                    return
                lines = splitter.feed(chunk)
            except (HTTPError, OSError, ValueError) as error:
                if self._closed:
                    return
                raise no_response_error(self._where, error) from error
            for line in lines:
                if self._closed:
                    return
                yield line

    def _chunks(self) -> Iterator[bytes]:
        """Return the pieces of the body as they come."""
        if self._response.chunked:
            # A third of the cost of `read1` for each chunk; kube-apiserver sends a chunk a line.
            return self._response.read_chunked(CHUNK, decode_content=True)
        return iter(partial(self._response.read1, CHUNK, decode_content=True), b"")

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


def response_error(call_name: str, status: int, body: bytes) -> ApiError:
    """Return the error for an answer with `status`: ApiNotFound, ApiConflict, ApiGone, and plain
    ApiError for any other definite refusal.

    The outcome is unknown (ApiUnavailable) for 5xx, for a redirect, and for 4xx without a Status.
    """
    message = _message(body)
    text = body[:TEXT_LIMIT].decode(errors="replace") if message is None else message
    definite = 400 <= status < 500 and (message is not None or status == _TOO_MANY_REQUESTS)
    error_class = _BY_STATUS.get(status, ApiError) if definite else ApiUnavailable
    return error_class(f"{call_name}: {status} {one_line(text)}".rstrip(), status)


def _message(body: bytes) -> str | None:
    """Return the message of a Status that reports a failure; None if the body is none."""
    try:
        document = json.loads(body[:BODY_LIMIT])
        if document["kind"] != "Status" or document.get("status") == "Success":
            return None
        return str(document.get("message", ""))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def no_response_error(call_name: str, cause: Exception) -> ApiUnavailable:
    """Return the error for a call that got no whole answer."""
    return ApiUnavailable(f"{call_name}: {one_line(cause) or type(cause).__name__}", 0)


def one_line(text: object) -> str:
    """Return a printable line of bounded length."""
    words = " ".join(str(text).split())
    return "".join(c if c.isprintable() else "?" for c in words[:TEXT_LIMIT])
