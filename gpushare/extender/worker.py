"""A gunicorn worker in which a slow client holds a socket and never a thread.

Knows gunicorn's gthread worker (27.x) and where an HTTP/1.1 request ends; must not know what is
served, nor anything else of this package.

gunicorn's own gthread worker lets a pool thread read the request with no deadline: a client that
sent one byte holds that thread for good, and as many such clients as there are threads stop the
service. It also lingers up to 2 s in its only accept loop for every connection that it closes.
Here that loop collects each request, and a thread gets it when its last byte has come.
"""

import contextlib
import errno
import re
import selectors
import socket
import ssl
import time
from collections import deque
from functools import partial
from typing import Any, cast

from gunicorn import http, sock, util
from gunicorn.config import Config
from gunicorn.workers.gthread import TConn, ThreadWorker

_CHUNK = 256 * 1024
_HEAD_END = b"\r\n\r\n"
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*0*([0-9]+)[ \t]*\r\n", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding:", re.IGNORECASE)

Address = tuple[str, int]


class _Outbox:
    """A client's socket as gunicorn sees it: it never blocks, and an answer leaves in one piece.

    Whatever goes to the kernel lets another thread take the interpreter lock, and one has to wait
    to get it back: head and body sent apart, and a change of blocking before and after, were half
    of what a request handed over (64 binds at once: 60 changes of thread a bind, now 40).
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._parts: list[bytes] = []

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 -- whatever a socket has
        return getattr(self._sock, name)

    def setblocking(self, flag: bool) -> None:
        """Nothing: it stays as it is."""

    def sendall(self, data: bytes) -> None:
        """Nothing: keeps it for `flush`."""
        self._parts.append(data)

    def flush(self, seconds: float) -> None:
        """Nothing: sends what was kept. Raises OSError if the client does not take it in time."""
        data = memoryview(b"".join(self._parts))
        self._parts.clear()
        sent = 0
        if data:
            with contextlib.suppress(BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                sent = self._sock.send(data)
        if sent < len(data):
            self._sock.settimeout(seconds)  # sendall() counts it over all that is left
            self._sock.sendall(data[sent:])
            self._sock.setblocking(False)


class Connection(TConn):
    """One client: its socket, and what it has sent of its next request."""

    max_head = 32 * 1024
    max_body = 16 * 1024 * 1024

    def __init__(
        self, cfg: Config, client_sock: socket.socket, client: Address, server: Address
    ) -> None:
        client_sock.setblocking(False)
        if cfg.is_ssl:  # the handshake comes with the first recv(), in the loop, and never blocks
            client_sock = sock.ssl_wrap_socket(client_sock, cfg)
        self.outbox = _Outbox(client_sock)
        super().__init__(cfg, cast(socket.socket, self.outbox), client, server)
        self.received = bytearray()
        self.refused = self.closed = False
        # handle() would otherwise wait for data, and make a parser that reads from the socket.
        self.initialized = self.data_ready = True

    def receive(self) -> bool:
        """True once a whole request is here; OSError or EOFError when the client is gone."""
        try:
            data = self.sock.recv(_CHUNK)
        except (BlockingIOError, ssl.SSLWantReadError):
            return False
        if not data:
            raise EOFError
        if self.refused:  # closing while the client still sends would destroy our answer
            return False
        self.received += data
        return self._whole()

    def _whole(self) -> bool:
        head = self.received.find(_HEAD_END, 0, self.max_head)
        if head < 0:
            if len(self.received) >= self.max_head:
                self._refuse(b"431 Request Header Fields Too Large")
            return False
        body = head + len(_HEAD_END)
        if _CHUNKED.search(self.received, 0, body):
            self._refuse(b"411 Length Required")  # Go's client always knows the length of JSON
            return False
        length = _LENGTH.search(self.received, 0, body)
        size = int(length[1][:16]) if length else 0  # 16 digits are too many for any limit
        if size > self.max_body:
            self._refuse(b"413 Content Too Large")
            return False
        if len(self.received) < body + size:
            return False
        # A second request behind this one stays in the parser, and gunicorn asks it for that.
        cut = body if size else len(self.received)
        parts = bytes(self.received[:cut]), bytes(self.received[cut:])
        self.parser = http.get_parser(self.cfg, iter(parts), self.client)
        self.received.clear()
        return True

    def _refuse(self, status: bytes) -> None:
        self.refused = True
        self.received.clear()
        with contextlib.suppress(OSError):
            self.sock.send(
                b"HTTP/1.1 " + status + b"\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
            )
            self.sock.shutdown(socket.SHUT_WR)

    def close(self, graceful: bool = False) -> None:
        """Nothing: closes at once; the request was read to its end, so nothing may linger."""
        del graceful
        self.closed = True
        util.close(self.sock)


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
    max_held = 64 * 1024 * 1024
    """Bytes of unfinished requests held at once; beyond it the oldest is dropped."""

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
        except OSError:  # TLS: it was gone before the handshake
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
        elif len(conn.received) > _CHUNK and self._held() > self.max_held:
            self._drop_oldest()
        return not (whole or conn.closed)

    def handle(self, conn: Connection) -> bool:  # type: ignore[override]
        """Whether the connection may be kept, after the answer was taken within its deadline."""
        keep = bool(super().handle(conn))
        try:
            conn.outbox.flush(self.answer_deadline)
        except OSError as error:
            if isinstance(error, TimeoutError):
                self.log.warning("client took no answer client=%s", conn.client)
            return False
        return keep

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
