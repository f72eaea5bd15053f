"""A JSON client of the API server: calls on objects, and watches.

Knows the API server's statuses; knows no resource.
"""

import http.client
import socket
import ssl
import threading
import urllib.parse
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import msgspec

from gpushare.errors import (
    ApiConflict,
    ApiError,
    ApiGone,
    ApiNotFound,
    ApiUnavailable,
)
from gpushare_localcluster.http_client import HttpClient, Response

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
    """One watch; an iteration yields `(type, object)`, and `close()` from any thread ends the
    watch.
    """

    def __init__(self, client: HttpClient, path: str, read_timeout: float) -> None:
        self._client = client
        self._path = path
        self._timeout = read_timeout
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._closed = False

    def __iter__(self) -> Iterator[tuple[str, Json]]:
        """Yield events until the server ends the stream or `close()` is called.

        Raises ApiError for an ERROR event.
        """
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
