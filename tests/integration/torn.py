"""A TCP relay before an API server that tears answers apart on order, in the middle of a line.

Knows bytes only. Faults on order of the API server cut between two lines; a true network does not.
"""

import contextlib
import socket
import threading
from collections.abc import Callable
from pathlib import Path


class TornRelay:
    """Relays to `port`; after `tear`, the next answer that holds an event breaks off inside it."""

    def __init__(self, port: int) -> None:
        self._upstream = port
        self._tear = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._run(self._accept)

    def tear(self) -> None:
        """Break the next event that passes."""
        self._tear.set()

    def has_torn(self) -> bool:
        """Whether the order was carried out."""
        return not self._tear.is_set()

    def kubeconfig(self, folder: Path, original: str) -> str:
        """A kubeconfig that goes through the relay."""
        path = folder / "torn-kubeconfig"
        text = Path(original).read_text()
        path.write_text(text.replace(f":{self._upstream}", f":{self.port}"))
        return str(path)

    def stop(self) -> None:
        """Close everything; return when the threads have ended."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for sock in list(self._open):
            _end(sock)
        for thread in list(self._threads):
            thread.join(30)
        for sock in list(self._open):
            sock.close()

    def _run(self, target: Callable[..., None], *args: socket.socket) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._upstream))
            self._open += [client, server]
            self._run(self._relay, client, server)
            self._run(self._relay_answers, server, client)

    def _relay(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
        _end(target)

    def _relay_answers(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                at = data.find(b'{"type":')
                if at >= 0 and self._tear.is_set():
                    self._tear.clear()
                    target.sendall(data[: at + (len(data) - at) // 2])
                    break
                target.sendall(data)
        _end(target)
        _end(source)


def _end(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
