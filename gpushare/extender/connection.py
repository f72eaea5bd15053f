"""One client of the service: it sends requests as slowly as it likes, and costs memory, no thread.

Knows gunicorn's connections (27.x) and where an HTTP/1.1 request ends; nothing of what is served,
nor of who asks for it (worker.py).
"""

import contextlib
import re
import select
import socket
import ssl
from typing import Any, cast

from gunicorn import http, sock, util
from gunicorn.config import Config
from gunicorn.http.parser import RequestParser
from gunicorn.workers.gthread import TConn

CHUNK = 256 * 1024
"""Bytes read from a client at once."""

_HEAD_END = b"\r\n\r\n"
_TLS_HELLO = b"\x16"
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*0*([0-9]+)[ \t]*\r\n", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding:", re.IGNORECASE)

Address = tuple[str, int]


class Outbox:
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
        self.outbox = Outbox(client_sock)
        super().__init__(cfg, cast(socket.socket, self.outbox), client, server)
        self.received = bytearray()
        self.refused = self.closed = False
        # handle() would otherwise wait for data, and make a parser that reads from the socket.
        self.initialized = self.data_ready = True

    def asks_within(self, seconds: float) -> bool:
        """Whether the next request is whole by then; as receive().

        Never where one came along with the last and is in the parser still: that has its turn.
        """
        if cast(RequestParser, self.parser).unreader.buf.getvalue():
            return False
        something = select.poll()
        something.register(self.sock, select.POLLIN)
        return bool(something.poll(seconds * 1000)) and self.receive()

    def receive(self) -> bool:
        """True once a whole request is here; OSError or EOFError when the client is gone."""
        try:
            data = self.sock.recv(CHUNK)
        except (BlockingIOError, ssl.SSLWantReadError):
            return False
        if not data:
            raise EOFError
        if self.refused:  # closing while the client still sends would destroy our answer
            return False
        self.received += data
        return self._whole()

    def _whole(self) -> bool:
        if self.received.startswith(_TLS_HELLO):
            # At once, or kube-scheduler would stand still till the deadline. Go says of this
            # answer "server gave HTTP response to HTTPS client".
            self._refuse(b"400 Bad Request")
            return False
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
        # Popped: a connection that stays idle must not hold on to the body that it has brought.
        parts = [b"", bytes(self.received[cut:]), bytes(self.received[:cut])]
        self.parser = http.get_parser(self.cfg, iter(parts.pop, b""), self.client)
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
