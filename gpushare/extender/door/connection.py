"""One connection of a client; a slow client costs memory, but no thread.

Knows gunicorn's connections (27.x), and neither the application nor the worker (worker.py).

One pass over the head finds the end of a request. The pass is stricter than HTTP demands: it
refuses a head that two parsers could read differently, so that gunicorn's parser behind this pass
can only agree.

Tested in `tests/unit/extender/door/test_worker.py` and `tests/unit/extender/door/test_framing.py`.
"""

import contextlib
import functools
import select
import socket
import ssl
import sys
import time
from io import BytesIO
from typing import TYPE_CHECKING, Any, cast

from gunicorn import http, sock, util
from gunicorn.config import Config
from gunicorn.workers.gthread import TConn

from gpushare.extender.door.known_heads import LENGTH, KnownHeads

if TYPE_CHECKING:
    from wsgiref.types import WSGIEnvironment

CHUNK = 256 * 1024
"""Bytes of one read from a client, or of one write to a client."""

HEAD_END = b"\r\n\r\n"

BAD_REQUEST = b"400 Bad Request"
LENGTH_REQUIRED = b"411 Length Required"
TOO_LARGE = b"413 Content Too Large"
HEAD_TOO_LARGE = b"431 Request Header Fields Too Large"

_CONTROLS = frozenset(range(0x20)) - {0x09} | {0x7F}
_NO_CONTROLS = bytes(sorted(frozenset(range(256)) - _CONTROLS))
_TOKEN = b"!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_DIGITS = b"0123456789"
_LARGEST = 15
"""Digits of a length; no body needs more."""
_TLS_HELLO = b"\x16"

Address = tuple[str, int]


@functools.lru_cache(maxsize=1)
def _empty_parser(cfg: Config) -> http.RequestParser:
    """Return a parser without bytes, for the connections whose heads are all cached."""
    return http.RequestParser(cfg, iter(()), ("", 0))


class FramingError(Exception):
    """The head is no request that can be answered; `status` is the answer's status line."""

    def __init__(self, status: bytes) -> None:
        super().__init__(status)
        self.status = status


def body_length(head: bytes) -> int:
    """Return the length in bytes of the body behind a head, which ends with HEAD_END.

    Raises FramingError.
    """
    lines = head[: -len(HEAD_END)].split(b"\r\n")
    # Control characters may only be the ends of these lines: no bare CR or LF, no NUL.
    if head.translate(None, _NO_CONTROLS) != b"\r\n" * (len(lines) + 1) or not lines[0]:
        raise FramingError(BAD_REQUEST)
    lengths = []
    for line in lines[1:]:
        name, colon, value = line.partition(b":")
        # A folded line begins with a blank, and a blank before the colon is an old trick.
        if not colon or not name or name.translate(None, _TOKEN):
            raise FramingError(BAD_REQUEST)
        name = name.lower()
        if name == b"transfer-encoding":
            raise FramingError(LENGTH_REQUIRED)  # Go's client always knows the length of JSON
        if name == b"content-length":
            lengths.append(value.strip(b" \t"))
    if not lengths:
        return 0
    digits = lengths[0]
    if len(lengths) > 1 or not digits or digits.translate(None, _DIGITS):
        raise FramingError(BAD_REQUEST)
    digits = digits.lstrip(b"0") or b"0"
    if len(digits) > _LARGEST:
        raise FramingError(TOO_LARGE)
    return int(digits)


class Outbox:
    """The socket of a client for gunicorn: never blocking, and an answer leaves in large pieces.

    Each system call lets another thread take the interpreter lock, and this thread then waits for
    the lock. Separate writes of head and body, and a change of blocking before and after, caused
    half of the changes of thread (64 binds at once: 60 changes a bind, now 40).
    """

    def __init__(self, sock: socket.socket) -> None:
        self.client_sock = sock
        self.parts: list[bytes | memoryview] = []
        """What the client has yet to take."""

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 -- whatever a socket has
        return getattr(self.client_sock, name)

    @property
    def unsent(self) -> int:
        """Bytes of the parts."""
        return sum(map(len, self.parts))

    def setblocking(self, flag: bool) -> None:
        """Do nothing: the socket never blocks."""

    def sendall(self, data: bytes) -> None:
        """Keep the data for `flush`."""
        if self.parts and len(self.parts[-1]) + len(data) <= CHUNK:
            data = bytes(self.parts.pop()) + data
        if data:  # no copy of a large body: many clients may get the same one
            self.parts.append(data)

    def flush(self, pieces: int = sys.maxsize) -> bool:
        """Send at most this many queued pieces; return whether the queue is empty.

        Stops when the client takes no more for now. Raises OSError if the client is gone.
        """
        try:
            for _ in range(pieces):
                if not self.parts:
                    break
                part = memoryview(self.parts[0])
                self.parts[0] = part[self.client_sock.send(part[:CHUNK]) :]
                if not self.parts[0]:
                    del self.parts[0]
        except (BlockingIOError, ssl.SSLWantWriteError):
            return False
        except OSError:
            self.parts.clear()
            raise
        return not self.parts


class Connection(TConn):
    """One client: the socket, the received part of a request, the unsent part of an answer."""

    max_head = 32 * 1024
    max_body = 16 * 1024 * 1024

    def __init__(
        self,
        cfg: Config,
        client_sock: socket.socket,
        client: Address,
        server: Address,
        heads: KnownHeads | None = None,
    ) -> None:
        """Take a socket over. heads: those that need not be parsed again."""
        client_sock.setblocking(False)
        if cfg.is_ssl:  # the handshake comes with the first recv(), in the loop, and never blocks
            client_sock = sock.ssl_wrap_socket(client_sock, cfg)
        self.outbox = Outbox(client_sock)
        super().__init__(cfg, cast(socket.socket, self.outbox), client, server)
        self.heads = KnownHeads() if heads is None else heads
        self.received = bytearray()
        self._scanned = self._body = self._end = 0
        self.parsed = 0
        """Bytes of the last complete request, while the request is held."""
        # The cached WSGI environment of the last head; None: gunicorn has to parse the head.
        self._known: dict[str, Any] | None = None
        self.form = b""
        """The form of the last head; empty for a head that is never cached."""
        self.environ: WSGIEnvironment | None = None
        """The WSGI environment of the last complete request; None if gunicorn's parser makes it."""
        # gunicorn takes the bytes behind a request from this parser.
        self.parser = _empty_parser(cfg)
        self.refused = self.closed = False
        # handle() would otherwise wait for data, and make a parser that reads from the socket.
        self.initialized = self.data_ready = True

    @property
    def held_bytes(self) -> int:
        """Bytes of the unanswered request, and of the next requests."""
        return self.parsed + len(self.received)

    def receive(self, patience: float = 0.0) -> bool:
        """Return whether a whole request is here; OSError or EOFError when the client is gone.

        patience: seconds to wait for the whole request, or for CHUNK bytes of a large one; 0 takes
        the bytes that are here.
        """
        self.parsed = 0
        if self.received and self._request_complete():  # came together with the last request
            return True
        sock = self.outbox.client_sock
        if not patience:
            return self._receive_chunk(sock)
        readable = select.poll()
        readable.register(sock, select.POLLIN)
        end = time.monotonic() + patience
        # Go sends a body of more than 4 KiB in several pieces.
        while patience > 0 and not self.refused and readable.poll(patience * 1000):
            if self._receive_chunk(sock):
                return True
            if self.held_bytes >= CHUNK:  # only the loop knows how much all connections hold
                return False
            patience = end - time.monotonic()
        return False

    def _receive_chunk(self, sock: socket.socket) -> bool:
        """Take the bytes that are here; return whether a whole request is here."""
        try:
            data = sock.recv(CHUNK)
        except (BlockingIOError, ssl.SSLWantReadError):
            return False
        if not data:
            raise EOFError
        if self.refused:  # closing while the client still sends would destroy our answer
            return False
        self.received += data
        return self._request_complete()

    def _request_complete(self) -> bool:
        """Return whether a request is complete, and then pass this request to gunicorn's parser.

        Later bytes stay for the next request.
        """
        try:
            if not self._end and not self._find_end():
                return False
        except FramingError as error:
            self._refuse(error.status)
            return False
        if len(self.received) < self._end:
            return False
        with memoryview(self.received) as view:
            head, body = bytes(view[: self._body]), bytes(view[self._body : self._end])
        if self._known is not None:
            client, server = cast(Address, self.client), cast(Address, self.server)
            self.environ = self._known | {
                "gunicorn.socket": self.sock,
                "REMOTE_ADDR": client[0],
                "REMOTE_PORT": str(client[1]),
                "SERVER_NAME": server[0],
                "SERVER_PORT": str(server[1]),
                "CONTENT_LENGTH": str(len(body)),
                "wsgi.input": BytesIO(body),
            }
        else:
            # Popped: an idle connection must not keep the body of its last request.
            parts = [b"", body, head]
            self.parser = http.get_parser(self.cfg, iter(parts.pop, b""), self.client)
        del self.received[: self._end]
        self.parsed = self._end
        self._scanned = self._body = self._end = 0
        return True

    def _find_end(self) -> bool:
        """Return whether the head is complete, so that the request's end is known.

        Raises FramingError.
        """
        if self.received.startswith(_TLS_HELLO):
            # At once, or kube-scheduler would stand still till the deadline. Go says of this
            # answer "server gave HTTP response to HTTPS client".
            raise FramingError(BAD_REQUEST)
        # From where the last look ended, so that a client that drips costs no more than another.
        start = max(0, self._scanned - len(HEAD_END) + 1)
        at = self.received.find(HEAD_END, start, self.max_head)
        self._scanned = len(self.received)
        if at < 0:
            if self._scanned >= self.max_head:
                raise FramingError(HEAD_TOO_LARGE)
            return False
        self._body = at + len(HEAD_END)
        head = bytes(self.received[: self._body])
        length = LENGTH.search(head)
        self.form = head[: length.start(1)] + head[length.end(1) :] if length else b""
        self._known = self.heads.environs.get(self.form)
        size = int(length[1]) if length and self._known is not None else body_length(head)
        if size > self.max_body:
            raise FramingError(TOO_LARGE)
        self._end = self._body + size
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
        """Close at once; the request was read to the end, so the socket need not linger."""
        del graceful
        self.closed = True
        util.close(self.sock)
