"""A small real HTTP server on loopback; the test scripts every answer.

Knows no Kubernetes: a script takes the connection and the request, and sends bytes or does not.
"""

import json
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Seen:
    """A received request; `connection` counts connections, from 0."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes
    connection: int


Script = Callable[[socket.socket, Seen], bool | None]


class ScriptedServer:
    """Answers each request by the script; a script that returns False ends the connection."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        self.script: Script = reply()
        self.seen: list[Seen] = []
        self.stopped = threading.Event()
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._threads = [threading.Thread(target=self._accept)]
        self._open: list[socket.socket] = []

    @property
    def url(self) -> str:
        host, port = self._socket.getsockname()
        return f"{'https' if self._tls else 'http'}://{host}:{port}"

    def __enter__(self) -> "ScriptedServer":
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopped.set()
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        for connection in self._open:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(30)

    def _accept(self) -> None:
        while not self.stopped.is_set():
            try:
                connection, _ = self._socket.accept()
                if self._tls:
                    connection = self._tls.wrap_socket(
                        connection, server_side=True, do_handshake_on_connect=False
                    )
            except OSError:
                return
            number = len(self._open)
            self._open.append(connection)
            thread = threading.Thread(target=self._serve, args=(connection, number))
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket, number: int) -> None:
        with connection, suppress(OSError), connection.makefile("rb") as stream:
            while (request := _read(stream, number)) is not None:
                self.seen.append(request)
                if self.script(connection, request) is False:
                    return


def _read(stream: Any, number: int) -> Seen | None:
    first = stream.readline().split()
    if len(first) != 3:
        return None
    headers: dict[str, str] = {}
    while (line := stream.readline().strip()) != b"":
        name, _, value = line.decode().partition(":")
        earlier = headers.get(name.lower())
        headers[name.lower()] = f"{earlier}, {value.strip()}" if earlier else value.strip()
    body = stream.read(int(headers.get("content-length", 0)))
    return Seen(first[0].decode(), first[1].decode(), headers, body, number)


def answer(status: int, body: bytes = b"{}", headers: str = "") -> bytes:
    """The bytes of a whole answer."""
    head = f"HTTP/1.1 {status} Any\r\nContent-Length: {len(body)}\r\n{headers}\r\n"
    return head.encode() + body


def reply(status: int = 200, body: bytes = b"{}", headers: str = "") -> Script:
    """A script that gives every request the same answer."""
    return send(answer(status, body, headers))


def send(whole: bytes, *, then_close: bool = False) -> Script:
    """A script that sends these bytes, and perhaps ends the connection."""

    def script(connection: socket.socket, _: Seen) -> bool:
        connection.sendall(whole)
        return not then_close

    return script


def reset(connection: socket.socket) -> bool:
    """Cut the connection with RST."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()
    return False


def chunked(*chunks: bytes, end: bool = True) -> bytes:
    """Return the bytes of a chunked answer, with or without the end."""
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    body = b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks if chunk)
    return head + body + (b"0\r\n\r\n" if end else b"")


def write_kubeconfig(
    file: Path, server: str, user: dict[str, Any] | None = None, **cluster: Any
) -> str:
    """The path of a kubeconfig with one context, `only`."""
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "only",
        "contexts": [{"name": "only", "context": {"cluster": "here", "user": "me"}}],
        "clusters": [{"name": "here", "cluster": {"server": server, **cluster}}],
        "users": [{"name": "me", "user": user or {}}],
    }
    file.write_text(json.dumps(document))
    return str(file)


@contextmanager
def scripted_server(tls: ssl.SSLContext | None = None) -> Iterator[ScriptedServer]:
    """Yield a running server; all threads of the server end with the test."""
    with ScriptedServer(tls) as server:
        yield server
