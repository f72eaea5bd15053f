"""HTTP with the API server: bytes in, bytes out, failures as `gpushare.errors.Api*`.

Knows nothing of the meaning of the bytes: no nodes, pods or ledger.

The calls go to the urllib3 pool of the official client directly. The call path of the official
client validates typed models (a successful Binding raises there, since the server answers with a
Status), retries unseen (connect errors three times, 429 after Retry-After), and costs more.
"""

import logging
import math
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from functools import partial
from urllib.parse import quote, urlencode

import urllib3
from urllib3.exceptions import HTTPError, SSLError

from gpushare.errors import ApiError, ApiTooLarge, ApiUnavailable, ApiUnreachable, SettingsError
from gpushare.kube import responses
from gpushare.kube.session import (
    ConnectionFlags,
    Session,
    TooLateError,
    load,
    reading,
    send_deadline,
)
from gpushare.logline import Line

log = logging.getLogger(__name__)

MOST_BYTES = 16 << 20
"""Bytes of an answer. An object has at most some 1.5 MiB (`--max-request-bytes` of etcd), so a list
of few objects always fits, and 500 usual pods have a third of these bytes."""

# Seconds until a client without credentials looks for credentials again.
_ANONYMOUS_SECONDS = 5.0
# For the rest of all answers' bodies, when connections are warmed.
_BODY_READ_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class _Call:
    """One call."""

    method: str
    path: str
    query: Mapping[str, str] | None
    step_timeout: float
    """Seconds for the connection, and then for the answer's head."""
    deadline: float
    """The monotonic time of the end of the call."""
    not_after: float
    """The monotonic time after which the call is not sent any more."""
    body: bytes | None = None
    content_type: str | None = None

    @property
    def where(self) -> str:
        """The name of the call in messages; without the query, which may have a long token."""
        return f"{self.method} {self.path}"


class KubeClient:
    """Calls and streams to one API server; every method may be called by any thread."""

    def __init__(self, flags: ConnectionFlags, pool_size: int, user_agent: str) -> None:
        self._load = partial(load, flags, pool_size, user_agent)
        self._timeout = flags.request_timeout
        self._reload_lock = threading.Lock()
        self._session = self._load()
        self._loaded_at = time.monotonic()
        self._reading: threading.Thread | None = None

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
        """Return the body of a 2xx answer; `timeout` is seconds for connection, answer and body.

        Sent once, and not after the time-out nor after `not_after` (monotonic). Only a call refused
        for lack of credentials (401, or 403 if there were none) is repeated, once, with credentials
        read again. Raises ApiNotFound, ApiConflict, ApiGone; ApiUnreachable if nothing was sent;
        ApiUnavailable for 5xx, a redirect, 4xx without a Status, no answer, a body cut short, time
        over, more bytes than are read at once in answer to a write (the outcome is unknown);
        ApiTooLarge for so many bytes in answer to a read; ApiError for any other refusal, 429 too.
        The caller checks the content of a 2xx: it may be a proxy's. An answer whose head comes
        slowly may take longer than `timeout`. Names in `path` must have been checked: a `..` would
        reach another object.
        """
        timeout = self._timeout or timeout
        deadline = time.monotonic() + timeout
        sent_type = content_type if body is not None else None
        latest = min(deadline, not_after)
        call = _Call(method, path, query, timeout, deadline, latest, body, sent_type)
        response = self._send(call)
        data = _read_all(response, call, deadline)
        if not 200 <= response.status < 300:
            raise responses.response_error(call.where, response.status, data)
        return data

    @contextmanager
    def stream(
        self,
        path: str,
        query: Mapping[str, str],
        *,
        connect_timeout: float,
        read_timeout: float,
    ) -> Iterator[responses.LineStream]:
        """Return the lines of a watch while the `with` lasts; errors as of `request`.

        `connect_timeout` bounds the connection, and then the wait for the head of the answer (the
        API server sends the head before the first event); `read_timeout` bounds later silence.
        """
        deadline = time.monotonic() + 2 * connect_timeout
        call = _Call("GET", path, query, connect_timeout, deadline, deadline)
        response = self._send(call)
        try:
            if response.status != 200:
                raise responses.response_error(
                    call.where, response.status, responses.read_beginning(response)
                )
            lines = responses.LineStream(response, call.where, read_timeout)
        except OSError as error:
            response.close()
            raise responses.no_response_error(call.where, error) from error
        except ApiError:
            response.close()
            raise
        try:
            yield lines
        finally:
            lines.release()

    def warm(self, count: int, *, timeout: float = 5.0) -> int:
        """Make a call on each of `count` connections, so that a burst of binds needs no handshakes;
        return how many are open. `timeout` is seconds for all calls together, one after another;
        those that have no time left are for the next time.

        To be repeated within the server's idle timeout (90 s in kube-apiserver): the call keeps the
        idle ones open. `count` beyond the pool's size is of no use. Raises as `request` does when
        the first cannot be opened.
        """
        answers: list[responses.Response] = []
        deadline = time.monotonic() + timeout
        call = _Call("GET", "/version", None, timeout, deadline, deadline)
        try:
            while len(answers) < count:
                # An answer that is held makes the pool open another connection for the next call.
                # The status does not matter.
                answers.append(self._send(call))
        except ApiError:
            if not answers:
                raise
        finally:
            # An answer in time has read the body already.
            deadline, warmed = time.monotonic() + _BODY_READ_SECONDS, 0
            for answer in answers:
                with suppress(ApiError):
                    _read_all(answer, call, deadline)
                    warmed += 1
        return warmed

    def close(self) -> None:
        """Close the idle connections; calls after this raise ApiUnreachable."""
        self._session.pool.close()

    def _send(self, call: _Call) -> responses.Response:
        """Return the answer with an unread body.

        A second try follows if credentials or certificates may be out of date, and the first try
        cannot have had an effect.
        """
        started = time.monotonic()
        session = self._session
        try:
            response = self._send_once(session, call)
        except ApiError as error:
            if not isinstance(error.__cause__, SSLError | ssl.SSLError):
                raise
            # The CA or our certificate may have been rotated.
            session = self._reload(started, call.deadline)
            if not isinstance(error, ApiUnreachable):
                raise
            return self._send_once(session, call)
        if response.status == 401:
            session = self._reload(started, call.deadline)
        elif response.status == 403 and session.anonymous:
            session = self._reload(started - _ANONYMOUS_SECONDS, call.deadline)
            if session.anonymous:
                return response
        else:
            return response
        with suppress(ApiError):
            _read_all(response, call, call.deadline)
        return self._send_once(session, call)

    def _send_once(self, session: Session, call: _Call) -> responses.Response:
        send_deadline.not_after, send_deadline.sent = call.not_after, False
        try:
            headers = session.headers(call.content_type)
            remaining = call.deadline - time.monotonic()
            if remaining <= 0:
                raise TooLateError
            target = quote(call.path, safe="/:@!$&'()*+,;=~%")
            if call.query:
                target = f"{target}?{urlencode(call.query)}"
            return session.pool.urlopen(
                call.method,
                session.prefix + target,
                body=call.body,
                headers=headers,
                retries=False,
                redirect=False,  # a redirect would carry our token elsewhere
                assert_same_host=False,
                timeout=urllib3.Timeout(
                    connect=call.step_timeout, read=call.step_timeout, total=remaining
                ),
                preload_content=False,
            )
        except (HTTPError, OSError) as error:
            if not send_deadline.sent:
                raise ApiUnreachable(f"{call.where}: {responses.one_line(error)}", 0) from error
            raise responses.no_response_error(call.where, error) from error

    def _reload(self, since: float, deadline: float) -> Session:
        """Return a session with credentials read after `since`; read the credentials if need be.

        Old connections end with the old session: a connection keeps its client certificate. No
        credentials never replace credentials: the official client reports neither a failing plug-in
        nor an empty token file, and an anonymous call gets no 401. An exec plug-in may hang, so a
        thread reads, and after `deadline` (monotonic) the session is the old one.
        """
        with self._reload_lock:
            if self._loaded_at >= since:
                return self._session
            self._reading = thread = reading(self._reading, self._read)
        thread.join(max(deadline - time.monotonic(), 0.0))
        return self._session

    def _read(self) -> None:
        try:
            session = self._load()
            if session.anonymous and not self._session.anonymous:
                raise SettingsError("no token and no certificate could be read")
            self._session = session
        except SettingsError as error:
            log.warning(Line("credentials not read again", error=error))
        self._loaded_at = time.monotonic()


def _read_all(response: responses.Response, call: _Call, deadline: float) -> bytes:
    """Return the whole body, and the connection to the pool; errors as of `KubeClient.request`.

    The body is read in pieces, so that a slow server cannot exceed the deadline.
    """
    parts, size = [], 0
    length = response.headers.get("Content-Length", "")
    plain = "Content-Encoding" not in response.headers
    try:
        if not (response.chunked or length.isdigit() or response.status == 204):
            # http.client takes an answer with a cut head for one that ends with the connection.
            raise OSError("the answer does not say where it ends")
        while True:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise TimeoutError("the answer's body did not end in time")
            # Asked each time: a connection that has gone back to the pool is another call's.
            live = getattr(response.connection, "live", None)
            if isinstance(live, socket.socket):
                live.settimeout(remaining)
            part = response.read1(responses.CHUNK, decode_content=True)
            parts.append(part)
            size += len(part)
            if not part or size > MOST_BYTES or (plain and response.length_remaining == 0):
                break
    except (HTTPError, OSError) as error:
        response.close()
        raise responses.no_response_error(call.where, error) from error
    if size > MOST_BYTES:
        response.close()
        # Whatever the answer to a write would say, the write may have been done.
        error_class = ApiTooLarge if call.method == "GET" else ApiUnavailable
        problem = f"the answer has more than {MOST_BYTES >> 20} MiB"
        raise error_class(f"{call.where}: {problem}", response.status)
    response.release_conn()
    return b"".join(parts)


class ServerTimeClient(KubeClient):
    """A KubeClient for one thread that records the server's time.

    `server_time` is the Date header of the last response in seconds since the epoch (whole seconds:
    HTTP has no finer ones), or None if the response had no such header.
    """

    server_time: float | None = None

    def _send(self, call: _Call) -> responses.Response:
        response = super()._send(call)
        try:
            self.server_time = parsedate_to_datetime(response.headers["Date"]).timestamp()
        except (KeyError, ValueError):
            self.server_time = None
        return response


def connect(
    kubeconfig: str | None, context: str | None = None, *, pool_size: int, user_agent: str
) -> KubeClient:
    """Return a client for the cluster of a kubeconfig (several files joined by `:` are merged), or,
    without one, for the cluster this pod runs in. Opens no connection.

    `pool_size` is how many connections are kept open. Raises SettingsError with one line.
    """
    return KubeClient(ConnectionFlags(kubeconfig or "", context or ""), pool_size, user_agent)
