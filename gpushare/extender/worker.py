"""A gunicorn worker in which a slow client holds a socket and never a thread.

Knows gunicorn's gthread worker (27.x); nothing of what is served. A request is connection.py's.

gunicorn's own gthread worker lets a pool thread read the request with no deadline: a client that
sent one byte holds that thread for good, and as many such clients as there are threads stop the
service. It also lingers up to 2 s in its only accept loop for every connection that it closes.
Here that loop collects each request, and a thread gets it when its last byte has come.
"""

import errno
import selectors
import socket
import time
from collections import deque
from concurrent.futures import Future
from functools import partial

from gunicorn.workers.gthread import ThreadWorker

from gpushare.extender.connection import CHUNK, Connection
from gpushare.extender.unanswered import Asked


class BufferedThreadWorker(ThreadWorker):
    """gunicorn's gthread worker, whose threads never wait for a client's bytes."""

    # accept() makes no other connections, hence the narrower types here and below.
    pending_conns: deque[Connection]  # type: ignore[assignment]
    keepalived_conns: deque[Connection]  # type: ignore[assignment]

    connection_class = Connection
    request_deadline = 5.0
    """Seconds from a request's first byte to its last; then the connection is closed."""
    answer_deadline = 5.0
    """Seconds a client has to take its answer; then its thread is freed."""
    linger = 0.01
    """Seconds a thread that has answered waits for the client's next request.

    kube-scheduler's calls follow each other; by the loop each costs two changes of thread more.
    """
    max_held = 64 * 1024 * 1024
    """Bytes of unfinished requests held at once; beyond it the oldest is dropped."""

    def init_process(self) -> None:
        """Serve, until the process ends."""
        self._asked: dict[Connection, float] = {}
        super().init_process()

    def asked(self) -> list[Asked]:
        """The requests that wait for a thread or are being answered. Any thread may ask."""
        # In one step of the interpreter: others change it meanwhile.
        return [(id(conn), since) for conn, since in self._asked.copy().items()]

    def enqueue_req(self, conn: Connection) -> None:  # type: ignore[override]
        """Give the connection's request to a thread."""
        self._asked[conn] = time.monotonic()
        super().enqueue_req(conn)

    def accept(self, listener: socket.socket) -> None:
        """Nothing: takes one connection, at the cost of the oldest unfinished one when full."""
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
            conn = self.connection_class(self.cfg, client_sock, client, listener.getsockname())
        except OSError as error:  # TLS: it was gone before the handshake, or our files are
            if not isinstance(error, ConnectionError):
                self.log.warning("no certificate can be shown client=%s error=%s", client, error)
            self.nr_conns -= 1
            client_sock.close()
            return
        # Until its first byte it is what an idle kept-alive connection is: Go keeps spare ones too.
        conn.set_timeout()
        self.keepalived_conns.append(conn)
        self.poller.register(
            conn.sock, selectors.EVENT_READ, partial(self.on_client_socket_readable, conn)
        )

    def on_client_socket_readable(  # type: ignore[override]
        self, conn: Connection, client: socket.socket
    ) -> None:
        """Nothing: the first bytes of a connection's next request have come."""
        if conn.closed:  # dropped for another one whose event came in the same turn of the loop
            return
        self.keepalived_conns.remove(conn)
        conn.timeout = time.monotonic() + self.request_deadline  # murder_pending() closes it then
        self.pending_conns.append(conn)
        if self._collect(conn):
            more = partial(self.on_pending_socket_readable, conn)
            self.poller.modify(client, selectors.EVENT_READ, more)

    def on_pending_socket_readable(  # type: ignore[override]
        self, conn: Connection, client: socket.socket
    ) -> None:
        """Nothing: more of a request has come."""
        del client
        if not conn.closed:
            self._collect(conn)

    def _collect(self, conn: Connection) -> bool:
        """Whether the rest of the request is still to come; one that is whole goes to a thread."""
        try:
            whole = conn.receive()
        except (OSError, EOFError):
            self._drop(conn, self.pending_conns)
            return False
        if whole:
            self.poller.unregister(conn.sock)
            self.pending_conns.remove(conn)
            self.enqueue_req(conn)
        elif len(conn.received) > CHUNK and self._held() > self.max_held:
            self._drop_oldest()
        return not (whole or conn.closed)

    def handle(self, conn: Connection) -> bool:  # type: ignore[override]
        """Whether the connection may be kept, after the answer was taken within its deadline."""
        while True:
            keep = bool(super().handle(conn))
            try:
                conn.outbox.flush(self.answer_deadline)
                if not (keep and self.alive and conn.asks_within(self.linger)):
                    return keep
                self._asked[conn] = time.monotonic()
            except (OSError, EOFError) as error:
                if isinstance(error, TimeoutError):
                    self.log.warning("client took no answer client=%s", conn.client)
                return False

    def finish_request(self, conn: Connection, fs: Future[bool]) -> None:  # type: ignore[override]
        """Nothing: the thread is done with a connection, which may have begun another request."""
        self._asked.pop(conn, None)
        super().finish_request(conn, fs)
        # One whose next request is in the parser has gone to a thread again: that is its owner now.
        kept = bool(self.keepalived_conns) and self.keepalived_conns[-1] is conn
        if kept and (conn.received or conn.refused):
            self.on_client_socket_readable(conn, conn.sock)

    def _held(self) -> int:
        return sum(len(conn.received) for conn in self.pending_conns)

    def _drop_oldest(self) -> None:
        for waiting in (self.pending_conns, self.keepalived_conns):
            if waiting:
                self._drop(waiting[0], waiting)
                return

    def _drop(self, conn: Connection, waiting: deque[Connection]) -> None:
        waiting.remove(conn)
        self.poller.unregister(conn.sock)
        self.nr_conns -= 1
        conn.close()
