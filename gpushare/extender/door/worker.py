"""A gunicorn worker with slow clients that hold a socket and never a thread.

Knows gunicorn's gthread worker (27.x), not the application. connection.py has the requests.

In gunicorn's own gthread worker a pool thread reads the request without a deadline: a client that
sent one byte holds the thread for good, and as many such clients as threads stop the service. That
worker also lingers up to 2 s in the only accept loop for every closed connection. In this worker
the loop collects each request, a thread gets a request after the last byte, and the loop sends the
part of an answer that the client does not take at once.
"""

import errno
import re
import selectors
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, cast

from gunicorn import SERVER
from gunicorn.http import wsgi
from gunicorn.http.message import Request
from gunicorn.util import http_date
from gunicorn.workers.gthread import ThreadWorker

from gpushare.daemon.part import Part
from gpushare.extender.door.connection import CHUNK, Connection
from gpushare.extender.door.deferred import DeferredBody
from gpushare.extender.door.known_heads import KnownHeads

_HEAD_END = re.compile(rb"\r\n\r?\n")

_PARKED = object()
"""The result of a request with a later answer: no thread works on the request meanwhile."""

MAX_LOOKS = 60
"""Observations of the same request until the request counts as stuck."""

PendingRequest = tuple[int, float]
"""A request that waits for a thread or for its answer: (connection, time of the request)."""


class BufferedThreadWorker(ThreadWorker):
    """gunicorn's gthread worker, with threads that never wait for the bytes of a client."""

    # accept() makes no other connections, hence the narrower types here and below.
    pending_conns: deque[Connection]  # type: ignore[assignment]
    keepalived_conns: deque[Connection]  # type: ignore[assignment]

    connection_class = Connection
    request_deadline = 5.0
    """Seconds from the first to the last byte of a request; then the connection is closed."""
    answer_deadline = 5.0
    """Seconds for a client to take an answer; then the connection is closed."""
    linger = 0.1
    """Seconds a thread that has answered waits for the client's next request.

    kube-scheduler sends one call after another. Each call that goes through the loop costs two
    more thread switches.
    """
    linger_crowded = 0.01
    """The same if more than half of the threads are taken."""
    max_held = 64 * 1024 * 1024
    """Bytes of unfinished and unanswered requests; beyond this the oldest request is dropped."""
    max_unsent = 64 * 1024 * 1024
    """Bytes of answers that clients have not taken; beyond this the oldest answer is dropped."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 -- as the base class
        """Begin without connections.

        A connection without a thread waits in one of four queues, oldest first: silent_conns before
        the first byte, pending_conns while a request comes, answering_conns while the client takes
        an answer, keepalived_conns between the two; or in the set parked_conns.
        """
        super().__init__(*args, **kwargs)
        self.silent_conns: deque[Connection] = deque()
        self.answering_conns: deque[Connection] = deque()
        self._pending_since: dict[Connection, float] = {}
        self.parked_conns: set[Connection] = set()
        """Connections that wait for a later answer."""
        self.on_stop: Callable[[], None] = lambda: None
        """Called once when the worker begins to stop: answers that wait have to be made."""
        self._heads = KnownHeads()
        self._notify_at = 0.0

    def notify(self) -> None:
        """Show the arbiter once a second that the loop turns; each time costs system calls."""
        now = time.monotonic()
        if now >= self._notify_at:
            self._notify_at = now + 1.0
            super().notify()

    def pending_requests(self) -> list[PendingRequest]:
        """Return the requests that wait for a thread or are being answered; for any thread."""
        # In one step of the interpreter: other threads change the set meanwhile.
        return [(id(conn), since) for conn, since in self._pending_since.copy().items()]

    def accept(self, listener: socket.socket) -> None:
        """Take one connection, at the cost of another one when full."""
        if self.nr_conns >= self.worker_connections - 1:
            self._drop_oldest()
        try:
            client_sock, client = listener.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):  # gunicorn would end the process
                self._drop_oldest()
            elif error.errno not in (errno.EAGAIN, errno.ECONNABORTED):
                raise
            return
        self.nr_conns += 1
        try:
            conn = self.connection_class(
                self.cfg, client_sock, client, listener.getsockname(), self._heads
            )
        except OSError:  # TLS: the client was gone before the handshake
            self.nr_conns -= 1
            client_sock.close()
            return
        try:
            # Go mostly sends the request as soon as it is connected; with TLS a handshake first.
            whole = not self.cfg.is_ssl and conn.receive()
        except (OSError, EOFError):
            self.nr_conns -= 1
            conn.close()
            return
        if whole:
            self.enqueue_req(conn)
            return
        # Before the first byte like an idle kept-alive connection: Go opens spare ones, too.
        conn.set_timeout()
        self.silent_conns.append(conn)
        first = partial(self._begin_request, self.silent_conns, conn)
        self.poller.register(conn.sock, selectors.EVENT_READ, first)
        if conn.received or conn.refused:  # the request has begun, and its deadline with it
            first(conn.sock)

    def on_client_socket_readable(  # type: ignore[override]
        self, conn: Connection, client: socket.socket
    ) -> None:
        """Collect the first bytes of the next request of a connection."""
        self._begin_request(self.keepalived_conns, conn, client)

    def _begin_request(
        self, connections: deque[Connection], conn: Connection, client: socket.socket
    ) -> None:
        del client
        if conn.closed:  # dropped for another connection in the same turn of the loop
            return
        connections.remove(conn)
        conn.timeout = time.monotonic() + self.request_deadline  # for murder_pending()
        self.pending_conns.append(conn)
        if self._collect(conn):
            more = partial(self.on_pending_socket_readable, conn)
            self.poller.modify(conn.sock, selectors.EVENT_READ, more)

    def on_pending_socket_readable(  # type: ignore[override]
        self, conn: Connection, client: socket.socket
    ) -> None:
        """Collect more bytes of a request."""
        del client
        if not conn.closed:
            self._collect(conn)

    def _collect(self, conn: Connection) -> bool:
        """Return whether the rest of the request is to come; one that is whole goes to a thread."""
        try:
            whole = conn.receive()
        except (OSError, EOFError):
            self._drop(conn, self.pending_conns)
            return False
        if conn.held_bytes > CHUNK:
            unanswered = (*self.pending_conns, *self._pending_since.copy())
            if sum(conn.held_bytes for conn in unanswered) > self.max_held:
                self._drop(self.pending_conns[0], self.pending_conns)
        if whole and not conn.closed:
            self.poller.unregister(conn.sock)
            self.pending_conns.remove(conn)
            self.enqueue_req(conn)
        return not (whole or conn.closed)

    def enqueue_req(self, conn: Connection) -> None:  # type: ignore[override]
        """Give a connection with a complete request to the next free thread."""
        self._pending_since[conn] = time.monotonic()
        super().enqueue_req(conn)

    def handle(self, conn: Connection) -> object:  # type: ignore[override]
        """Answer; return whether the connection may be kept once the answer is taken, or _PARKED if
        the answer is made later.
        """
        try:
            while True:
                request, conn.environ = conn.environ, None
                keep = self._answer(conn, request) if request else super().handle(conn)
                if keep is _PARKED:  # the connection may be in another thread already
                    return _PARKED
                conn.parsed = 0
                is_flushed = conn.outbox.flush()
                pending = len(self._pending_since)
                # While other requests wait for a thread, this one must not wait.
                if pending > self.cfg.threads or not (is_flushed and keep and self.alive):
                    return keep
                crowded = 2 * pending > self.cfg.threads
                if not conn.receive(self.linger_crowded if crowded else self.linger):
                    return True
                self._pending_since[conn] = time.monotonic()
        except (OSError, EOFError):
            return False

    def handle_error(  # type: ignore[override]
        self,
        req: Request | None,
        client: socket.socket,
        addr: Any,  # noqa: ANN401 -- as the base class
        exc: Exception,
    ) -> None:
        """Answer and log a request that gunicorn refuses, or that failed."""
        super().handle_error(req, cast(socket.socket, _WholeHead(client)), addr, exc)

    def handle_request(self, req: Request, conn: Connection) -> object:  # type: ignore[override]
        """Answer a request from gunicorn's parser, and cache the head."""
        if req.method != "POST":
            return bool(super().handle_request(req, conn))
        environ = dict(wsgi.create(req, conn.sock, conn.client, conn.server, self.cfg)[1])
        environ["wsgi.multithread"] = True
        conn.heads.add(conn.form, req, environ)
        return self._answer(conn, environ, closing=req.should_close())

    def _keepalive_after(self, conn: Connection, keepalive: object) -> object:
        # A verb has read the whole body.
        return _PARKED if keepalive is _PARKED else super()._keepalive_after(conn, keepalive)  # type: ignore[misc]

    def _answer(
        self, conn: Connection, environ: dict[str, Any], *, closing: bool = False
    ) -> object:
        """Answer a POST; return whether to keep the connection, or _PARKED.

        closing: the client wants the connection closed after the answer.
        """
        request = CachedRequest(environ["PATH_INFO"], closing=closing)
        heads: list[bytes] = []

        def start_response(
            status: str, headers: list[tuple[str, str]], exc_info: object = None
        ) -> Callable[[bytes], object]:
            """Make the head of the answer up to its length, as gunicorn does."""
            del exc_info
            lines = [f"HTTP/1.1 {status}", f"Server: {SERVER}", f"Date: {_date(int(time.time()))}"]
            lines.append("Connection: keep-alive" if keep else "Connection: close")
            lines += [
                f"{name}: {value}" for name, value in headers if name.lower() != "content-length"
            ]
            heads.append("\r\n".join([*lines, "Content-Length: "]).encode("latin-1"))
            return _refuse_write

        try:
            self.cfg.pre_request(self, request)
            full = not self.cfg.keepalive or len(self.keepalived_conns) >= self.max_keepalived
            keep = self.alive and not full and not request.closing
            parts = self.wsgi(environ, start_response)  # type: ignore[arg-type]
            if isinstance(parts, DeferredBody) and not parts.future.done():
                unpark = partial(self.method_queue.defer, self._unpark, conn, keep, heads[-1])
                conn.parsed = 0
                self._pending_since.pop(conn, None)
                self.parked_conns.add(conn)
                # Maybe at once, and in any thread; from here on the connection is the loop's.
                parts.future.add_done_callback(unpark)
                return _PARKED
            try:
                body = b"".join(parts)
            finally:
                if hasattr(parts, "close"):
                    parts.close()
            conn.outbox.parts.append(b"%s%d\r\n\r\n%s" % (heads[-1], len(body), body))
        except Exception as error:  # as gunicorn: the client gets a 500, and the log says why
            self.handle_error(None, conn.sock, conn.client, error)
            return False
        return keep

    def _unpark(self, conn: Connection, keep: bool, head: bytes, answer: Future[bytes]) -> None:
        """Send an answer that was made later."""
        self.parked_conns.discard(conn)
        result: Future[object] = Future()
        try:
            body = answer.result()
            conn.outbox.parts.append(b"%s%d\r\n\r\n%s" % (head, len(body), body))
            conn.outbox.flush()
            result.set_result(keep and self.alive)
        except OSError:
            result.set_result(False)
        self.finish_request(conn, result)

    def finish_request(self, conn: Connection, fs: Future[object]) -> None:  # type: ignore[override]
        """Take a connection back from the thread that has answered."""
        if not fs.cancelled() and fs.exception() is None and fs.result() is _PARKED:
            return
        self._pending_since.pop(conn, None)
        if not conn.outbox.unsent:
            self._finish(conn, fs)
            return
        conn.timeout = time.monotonic() + self.answer_deadline
        self.answering_conns.append(conn)
        more = partial(self._on_client_takes_more, conn, fs)
        self.poller.register(conn.sock, selectors.EVENT_WRITE, more)
        answering = self.answering_conns
        while len(answering) > 1 and sum(c.outbox.unsent for c in answering) > self.max_unsent:
            self._give_up(answering[0])

    def _on_client_takes_more(
        self, conn: Connection, fs: Future[object], client: socket.socket
    ) -> None:
        if conn.closed:
            return
        try:
            # One piece: the other connections come before the next.
            conn.outbox.flush(pieces=1)
        except OSError:
            self._drop(conn, self.answering_conns)
            return
        if not conn.outbox.unsent:
            self.poller.unregister(client)
            self.answering_conns.remove(conn)
            self._finish(conn, fs)

    def _finish(self, conn: Connection, fs: Future[object]) -> None:
        super().finish_request(conn, cast("Future[bool]", fs))
        kept_alive = bool(self.keepalived_conns) and self.keepalived_conns[-1] is conn
        if kept_alive and (conn.received or conn.refused):  # the next request has begun
            self.on_client_socket_readable(conn, conn.sock)

    def murder_pending(self) -> None:
        """Close the connections past their deadline."""
        now = time.monotonic()
        for connections in (self.silent_conns, self.pending_conns):
            while connections and cast(float, connections[0].timeout) <= now:
                self._drop(connections[0], connections)
        while self.answering_conns and cast(float, self.answering_conns[0].timeout) <= now:
            self._give_up(self.answering_conns[0])

    def _cap_keepalive(self, deadline: float) -> None:
        # gunicorn calls this once, at the begin of the stop.
        self.on_stop()
        super()._cap_keepalive(deadline)  # type: ignore[misc]
        for conn in self.silent_conns:
            conn.timeout = min(cast(float, conn.timeout), deadline)

    def _drop_oldest(self) -> None:
        """Close the connection that is least likely to be kube-scheduler's."""
        queues = (
            self.silent_conns,
            self.pending_conns,
            self.answering_conns,
            self.keepalived_conns,
        )
        for connections in queues:
            if connections:
                self._drop(connections[0], connections)
                return

    def _give_up(self, conn: Connection) -> None:
        self.log.warning("client took no answer client=%s", conn.client)
        self._drop(conn, self.answering_conns)

    def _drop(self, conn: Connection, connections: deque[Connection]) -> None:
        connections.remove(conn)
        self.poller.unregister(conn.sock)
        self.nr_conns -= 1
        conn.close()


@dataclass(slots=True)
class CachedRequest:
    """A request for gunicorn's hook `pre_request`."""

    path: str
    method: str = "POST"
    closing: bool = False

    def force_close(self) -> None:
        """Ask for the connection to be closed after the answer."""
        self.closing = True


class _WholeHead:
    """The client of an error page of gunicorn; the head of the page ends as HTTP demands.

    gunicorn uses textwrap.dedent, which from Python 3.14 on leaves no CR in an empty line.
    """

    def __init__(self, client: socket.socket) -> None:
        self._client = client

    def __getattr__(self, name: str) -> object:
        return getattr(self._client, name)

    def sendall(self, data: bytes) -> None:
        """Send the page."""
        self._client.sendall(_HEAD_END.sub(b"\r\n\r\n", data, count=1))


def _refuse_write(data: bytes) -> object:
    raise NotImplementedError("an application returns its body")


@lru_cache(maxsize=1)
def _date(second: int) -> str:
    return str(http_date(second))


@dataclass(slots=True)
class UnansweredRequests(Part):
    """Counts the observations in a row of each request, to find hanging requests.

    A verb ends within seconds: bind has a budget, filter a limited hold, an answer a deadline. A
    request that runs for a minute hangs for ever, and a request that waits a minute for a thread
    waits for hanging requests; only a restart helps. Knows no time: the settle thread observes once
    a second, so a process that was stopped for an hour has no stuck requests.
    """

    max_looks: int = MAX_LOOKS
    pending: Callable[[], Iterable[PendingRequest]] = tuple
    """Returns the requests that have no answer yet."""
    _looks: dict[PendingRequest, int] = field(default_factory=dict)

    def tick(self, _is_ready: bool, /) -> None:
        """Observe the requests that have no answer yet."""
        self.observe(self.pending())

    def liveness(self) -> Mapping[str, str]:
        """Return the problem with requests that hang."""
        return {"verbs": self.stuck()}

    def observe(self, pending: Iterable[PendingRequest]) -> None:
        """Count the requests that have no answer yet."""
        self._looks = {request: self._looks.get(request, 0) + 1 for request in pending}

    def stuck(self) -> str:
        """Return a text for the liveness check about requests that hang, or ""."""
        stuck = sum(looks > self.max_looks for looks in self._looks.values())
        return f"requests without an answer for {self.max_looks} s: {stuck}" if stuck else ""
