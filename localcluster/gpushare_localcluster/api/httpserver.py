"""A WSGI server with one thread per connection: HTTP/1.1, keep-alive, streams.

Knows sockets and HTTP framing, nothing of Kubernetes. The server of werkzeug closes the connection
after every answer and does not tell a stream that the client has left.
"""

import io
import re
import socket
import socketserver
import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from typing import Any, TypeAlias
from urllib.parse import unquote_to_bytes

Environ: TypeAlias = dict[str, Any]
StartResponse: TypeAlias = Callable[..., Callable[[bytes], object]]
WsgiApp: TypeAlias = Callable[[Environ, StartResponse], Iterable[bytes]]

CONNECTION = "gpushare.connection"
"""Key of the `ClientConnection` in the WSGI environment."""

BODY_LIMIT = 3 * 1024 * 1024
"""Upper bound on the bytes of a request body, as in a real API server."""

DRAIN_LIMIT = 8 * BODY_LIMIT
JOIN_SECONDS = 5.0
_LONGEST_LINE = 1 << 16
_MOST_FIELDS = 100


class ConnectionDropped(Exception):
    """Raised by an application to close the connection without sending more bytes."""


class ClientConnection:
    """The client of a request; `closing` is set when the server stops."""

    def __init__(self, sock: socket.socket, closing: threading.Event) -> None:
        """Keep the socket and the flag of the server."""
        self._socket = sock
        self.closing = closing

    def stopping(self) -> bool:
        """Return whether the server is stopping."""
        return self.closing.is_set()

    def alive(self) -> bool:
        """Return whether the client is connected and the server is not stopping."""
        if self.stopping():
            return False
        try:
            return self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) != b""
        except BlockingIOError:
            return True
        except OSError:
            return False


class _Handler(BaseHTTPRequestHandler):
    """One connection: requests one after another."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: "HttpServer"
    raw_requestline: bytes

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  -- the base's name
        """Stay quiet: tests read the recorder instead."""

    def serve(self) -> None:
        """Answer one request."""
        read = self._read_body()
        if read is None:
            self.close_connection = True
            return
        try:
            self._respond(self._environ(*read))
        except ConnectionDropped:
            self.close_connection = True

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = serve  # noqa: N815  -- the base's names

    def parse_request(self) -> bool:
        """Return whether the head could be parsed; otherwise the request has been refused.

        The base class parses heads as email, which takes longer than most answers.
        """
        words = self.raw_requestline.decode("latin-1").split()
        if len(words) != 3 or words[2] not in ("HTTP/1.1", "HTTP/1.0"):
            self.requestline, self.request_version = "", "HTTP/1.1"
            self.send_error(400)
            return False
        self.requestline = " ".join(words)
        self.command, self.path, self.request_version = words
        try:
            self.fields = _read_fields(self.rfile)
        except ValueError as error:
            self.send_error(400, explain=str(error))
            return False
        option = self.fields.get("connection", "").lower()
        self.close_connection = option == "close" or (
            self.request_version == "HTTP/1.0" and option != "keep-alive"
        )
        if self.fields.get("expect", "").lower() == "100-continue":
            return self.handle_expect_100()
        return True

    def _read_body(self) -> tuple[bytes, int] | None:
        """Return the body and its length, None for one that was refused or is incomplete.

        The application refuses a body over the limit by its length. The bytes are still read, so
        that the client gets the answer and not a reset.
        """
        if "transfer-encoding" in self.fields:
            return self._read_chunks()
        length_text = self.fields.get("content-length", "0")
        if not re.fullmatch("[0-9]{1,17}", length_text):
            self.send_error(400)
            return None
        length = int(length_text)
        if length <= BODY_LIMIT:
            body = self.rfile.read(length)
            return (body, length) if len(body) == length else None
        remaining = min(length, DRAIN_LIMIT)
        while remaining > 0 and (piece := self.rfile.read(min(remaining, 65536))):
            remaining -= len(piece)
        self.close_connection = True
        return b"", length

    def _read_chunks(self) -> tuple[bytes, int] | None:
        """Return a body in chunks, as `kubectl create --raw` of `gpushare defrag` sends it."""
        if self.fields["transfer-encoding"].lower() != "chunked":
            self.send_error(411)
            return None
        body = b""
        while True:
            size = self.rfile.readline(_LONGEST_LINE).partition(b";")[0].strip()
            if not re.fullmatch(b"[0-9a-fA-F]{1,8}", size):
                self.send_error(400)
                return None
            length = int(size, 16)
            if len(body) + length > BODY_LIMIT:
                self.send_error(413)
                return None
            body += self.rfile.read(length)
            if self.rfile.readline(_LONGEST_LINE) != b"\r\n":
                return None
            if not length:
                return body, len(body)

    def _environ(self, body: bytes, length: int) -> Environ:
        """Return the parts of a WSGI environment that the applications here read."""
        path, _, query = self.path.partition("?")
        fields = {
            f"HTTP_{name.upper().replace('-', '_')}": value for name, value in self.fields.items()
        }
        return {
            **fields,
            "REQUEST_METHOD": self.command,
            "PATH_INFO": unquote_to_bytes(path).decode("latin-1"),
            "QUERY_STRING": query,
            "CONTENT_TYPE": self.fields.get("content-type", ""),
            "CONTENT_LENGTH": str(length),
            "wsgi.input": io.BytesIO(body),
            CONNECTION: ClientConnection(self.connection, self.server.closing),
        }

    def _respond(self, environ: Environ) -> None:
        status, headers = "", []

        def start_response(
            code: str, fields: list[tuple[str, str]], _: object = None
        ) -> Callable[[bytes], object]:
            nonlocal status, headers
            status, headers = code, fields
            return self.wfile.write

        pieces = self.server.app(environ, start_response)
        try:
            if any(name.lower() == "content-length" for name, _ in headers):
                self._send_head(status, headers, b"".join(pieces))
            else:
                self._send_stream(status, headers, pieces)
        finally:
            getattr(pieces, "close", lambda: None)()

    def _send_stream(
        self, status: str, headers: list[tuple[str, str]], pieces: Iterable[bytes]
    ) -> None:
        """Send the head at once, so that the client of a quiet watch sees the open stream."""
        chunked = self.request_version == "HTTP/1.1"
        framing = [("Transfer-Encoding", "chunked")] if chunked else [("Connection", "close")]
        self.close_connection = self.close_connection or not chunked
        self._send_head(status, headers + framing, b"")
        for piece in pieces:
            if piece:
                self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece) if chunked else piece)
        if chunked:
            self.wfile.write(b"0\r\n\r\n")

    def _send_head(self, status: str, headers: list[tuple[str, str]], body: bytes) -> None:
        fields = "".join(f"{name}: {value}\r\n" for name, value in headers)
        head = f"HTTP/1.1 {status}\r\nDate: {self.date_time_string()}\r\n{fields}\r\n"
        self.wfile.write(head.encode("latin-1") + body)


def _read_fields(stream: io.BufferedIOBase) -> dict[str, str]:
    """Return the fields up to the empty line by lower-case name; the values of a repeated field are
    joined by commas.

    Raises ValueError for a malformed or too long head.
    """
    fields: dict[str, str] = {}
    for _ in range(_MOST_FIELDS):
        line = stream.readline(_LONGEST_LINE).decode("latin-1")
        if line in ("\r\n", "\n"):
            return fields
        name, colon, value = line.partition(":")
        if not colon or not line.endswith("\n") or not name or name.split() != [name]:
            raise ValueError(f"no field of a head: {line[:100]!r}")
        name, value = name.lower(), value.strip()
        fields[name] = f"{fields[name]},{value}" if name in fields else value
    raise ValueError(f"a head of more than {_MOST_FIELDS} fields")


class HttpServer(socketserver.ThreadingTCPServer):
    """Serves a WSGI application until `stop`; `closing` is set from then on."""

    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 1024

    def __init__(self, host: str, port: int, app: WsgiApp) -> None:
        """Listen at once (port 0: any free one); serve after `start`."""
        super().__init__((host, port), _Handler)
        self.app = app
        self.closing = threading.Event()
        self._guard = threading.Lock()
        self._connections: dict[threading.Thread, socket.socket] = {}
        self._acceptor = threading.Thread(
            target=self.serve_forever, args=(0.05,), name="apiserver-accept", daemon=True
        )

    def start(self) -> None:
        """Accept connections in a thread of the server."""
        self._acceptor.start()

    def stop(self) -> None:
        """Close the listener and all connections; return when the threads have ended."""
        self.closing.set()
        if self._acceptor.ident is not None:
            self.shutdown()
            self._acceptor.join()
        self.server_close()
        with self._guard:
            open_now = dict(self._connections)
        for sock in open_now.values():
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in open_now:
            thread.join(JOIN_SECONDS)

    def process_request(self, request: Any, client_address: Any) -> None:  # noqa: ANN401  -- base
        """Serve a connection in a new thread."""
        thread = threading.Thread(
            target=self._converse,
            args=(request, client_address),
            name="apiserver-connection",
            daemon=True,
        )
        with self._guard:
            self._connections[thread] = request
        thread.start()

    def _converse(self, request: socket.socket, client_address: tuple[str, int]) -> None:
        try:
            self.process_request_thread(request, client_address)
        finally:
            with self._guard:
                self._connections.pop(threading.current_thread(), None)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401  -- base
        """Ignore clients that have left; print other errors, which are bugs."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)
