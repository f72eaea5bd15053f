"""A small HTTP listener with separate threads, so that slow callers of the verbs cannot block it.

Standard library only. The listener answers GET alone. A silent connection is closed after a few
seconds; if too many connections are open, the oldest is cut.

Tested in `tests/unit/daemon/test_health.py` and `tests/unit/extender/tell/page/test_server.py`.
"""

import contextlib
import logging
import socket
import ssl
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import cast
from urllib.parse import parse_qs

from gpushare.addresses import is_loopback
from gpushare.daemon.callers import is_this_machine
from gpushare.daemon.representations import Representations
from gpushare.logline import Line

log = logging.getLogger("gpushare.health")

_Accepted = socket.socket | tuple[bytes, socket.socket]  # socketserver's own type for TCP and UDP
_MAX_OPEN = 64
_PIECE = 1 << 16

Tls = Callable[[], ssl.SSLContext]
"""Returns the context for a connection."""


class Handler(BaseHTTPRequestHandler):
    """Answers the requests of one connection, by `page`."""

    timeout = 3
    # Head and body are two writes: the kernel would delay the second until the kernel of the caller
    # has acknowledged the first, after 40 ms.
    disable_nagle_algorithm = True
    protocol_version = "HTTP/1.1"
    representations = Representations()
    """Shared by all listeners of the process: the paths differ."""
    default_request_version = "HTTP/1.0"  # 0.9 has no status line, and a bad request no version

    def page(self, path: str, query: Mapping[str, list[str]]) -> tuple[int, str, bytes]:
        """Return (status, content type, body)."""
        raise NotImplementedError

    def headers_of(self, status: int, body: bytes) -> Mapping[str, str]:
        """Return more headers of an answer."""
        del status, body
        return {}

    def is_near(self) -> bool:
        """Return whether the caller is on this machine and uses an address of loopback.

        A page in a browser on this machine uses the name of the page instead, which resolves to
        loopback.
        """
        peer = str(self.client_address[0]).removeprefix("::ffff:")
        return is_loopback(peer) and is_this_machine(self.headers.get("Host", ""))

    def do_GET(self) -> None:
        """Answer."""
        path, _, query = self.path.partition("?")
        status, kind, body = self.page(path, parse_qs(query, keep_blank_values=True))
        self.send_response(status)
        for name, value in self.headers_of(status, body).items():
            self.send_header(name, value)
        if status == 304:  # the caller has the body
            self.end_headers()
            return
        self.send_header("Content-Type", kind)
        body, coding = self.representations.encoded(
            path, body, self.headers.get("Accept-Encoding", "")
        )
        if coding:
            self.send_header("Content-Encoding", coding)
        self.send_header("Vary", "Accept-Encoding")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        # In pieces, each with a separate time-out: the metrics of 5,000 nodes are 20 MB.
        for start in range(0, len(body), _PIECE):
            self.wfile.write(body[start : start + _PIECE])

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Refuse; an error of the caller is no 5xx, which would look like a failure of gpushare."""
        status = {501: 405, 505: 400}.get(code, code)
        super().send_error(status, message, explain)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 -- the base class's name
        """Log nothing: a probe every second is no news."""


class Listener(ThreadingHTTPServer):
    """Serves one port with a handler, with a thread for each connection.

    When too many are open, the oldest is cut.
    """

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128  # the default of 5 drops SYNs, and a probe then waits a second

    def __init__(
        self, host: str, port: int, handler: type[Handler], name: str, tls: Tls | None = None
    ) -> None:
        """Bind the socket: an address in use fails here. name: of the thread. tls: None for plain
        HTTP.
        """
        if ":" in host:
            self.address_family = socket.AF_INET6
        super().__init__((host, port), handler)
        self.port = int(self.server_address[1])
        """The port listened on."""
        self._open: deque[socket.socket] = deque()
        self._tls = tls
        self._name = name
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Answer from now on."""
        # Made here: Python 3.13 starts no thread that was made before a fork.
        self._thread = threading.Thread(target=self.serve_forever, name=self._name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Close the listener."""
        if self._thread is not None and self._thread.is_alive():
            self.shutdown()
        self.server_close()

    def server_bind(self) -> None:
        """Bind the socket; [::] takes IPv4 too, unless the system forbids that."""
        if self.address_family == socket.AF_INET6:
            with contextlib.suppress(OSError):
                self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()

    def process_request(self, request: _Accepted, client_address: object) -> None:
        """Serve the connection in a thread."""
        if isinstance(request, socket.socket):
            self._open.append(request)
        if len(self._open) > _MAX_OPEN:
            with contextlib.suppress(OSError, IndexError):  # the connection may be closing
                self._open.popleft().shutdown(socket.SHUT_RDWR)
        super().process_request(request, client_address)

    def shutdown_request(self, request: _Accepted) -> None:
        """Close the connection."""
        with contextlib.suppress(ValueError):
            self._open.remove(cast(socket.socket, request))
        super().shutdown_request(request)

    def get_request(self) -> tuple[socket.socket, object]:
        """Return (connection, address); with TLS the first read does the handshake."""
        plain, address = super().get_request()
        if self._tls is None:
            return plain, address
        context = self._tls()
        return context.wrap_socket(plain, server_side=True, do_handshake_on_connect=False), address

    def handle_error(self, request: object, client_address: object) -> None:
        """Log our bugs; a caller that goes away, or reads nothing, is no news."""
        if not isinstance(sys.exception(), OSError):
            line = Line("probe or scrape failed", client=client_address)
            log.warning(line, exc_info=sys.exception())
