"""A thousand clients that stall or drip, while binds and probes go on.

python -m tests.badinput.proof does this too; here are the clients and their checks.
"""

import contextlib
import resource
import socket
import threading
import time
from collections import Counter

from tests.badinput.attempt import PREFIX, framed
from tests.badinput.world import BadWorld
from tests.support.waiting import poll

PATIENCE = 5.0
"""Seconds: kube-scheduler's own time-out of a call, and more than a probe may take."""

_WHOLE = framed(b'{"Pod":{},"NodeNames":[]}', f"{PREFIX}/filter")
_STARTS = (b"", b"P", _WHOLE[:40], _WHOLE[:-1], b"")
"""Silent, one byte, half a head, all but the last byte; the last one drips byte by byte."""


class _Client:
    """One connection that begins a request and does not end it; it connects again when closed."""

    def __init__(self, port: int, number: int) -> None:
        self._port, self._kind = port, number % len(_STARTS)
        self._open()

    def _open(self) -> None:
        self._at = 0
        self._socket = socket.create_connection(("127.0.0.1", self._port), 20)
        self._socket.sendall(_STARTS[self._kind])
        self._socket.setblocking(False)

    def turn(self) -> bool:
        """Whether the client had to connect again: it was closed for being so slow."""
        try:
            is_closed = self._socket.recv(1 << 16) == b""
        except BlockingIOError:
            is_closed = False
        except OSError:
            is_closed = True
        if is_closed:
            self.close()
            self._open()
        elif self._kind == len(_STARTS) - 1:
            with contextlib.suppress(OSError):
                self._socket.send(_WHOLE[self._at : self._at + 1])
            self._at = min(self._at + 1, len(_WHOLE) - 2)
        return is_closed

    def close(self) -> None:
        self._socket.close()


def stalled(world: BadWorld, clients: int, seconds: float) -> tuple[Counter[str], list[str]]:
    """(connections by kind, findings)."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    crowd = [_Client(world.extender.port, number) for number in range(clients)]
    counter, findings, stop = Counter(clients=clients), list[str](), threading.Event()

    def drip() -> None:
        while not stop.wait(0.2):
            counter["closed for being slow"] += sum(client.turn() for client in crowd)

    thread = threading.Thread(target=drip)
    thread.start()
    try:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            findings += _probe(world, counter) + _bind(world, counter)
    finally:
        stop.set()
        thread.join()
        for client in crowd:
            client.close()
    poll(lambda: not world.books_changed(), "the books are as before once the pods are gone")
    return counter, findings + world.changes()


def _probe(world: BadWorld, completed: Counter[str]) -> list[str]:
    begin = time.monotonic()
    statuses = [world.extender.probe(path).status for path in ("/livez", "/readyz")]
    completed["probes"] += 2
    return _late("a probe", begin, completed) + (
        [] if statuses == [200, 200] else [f"probes answered {statuses}"]
    )


def _bind(world: BadWorld, done: Counter[str]) -> list[str]:
    pod = world.cluster.pod(1)
    begin = time.monotonic()
    fit = world.extender.fit(pod, world.targets.nodes)
    error = world.extender.bind(pod, fit[0]) if fit else "no node fits"
    done["binds"] += 1
    late = _late("filter and bind", begin, done)
    world.cluster.delete_pod(pod)
    return late + ([f"a bind failed: {error}"] if error else [])


def _late(what: str, begin: float, done: Counter[str]) -> list[str]:
    took = time.monotonic() - begin
    worst = f"milliseconds {what} took at most"
    done[worst] = max(done[worst], round(took * 1000))
    return [f"{what} took {took:.1f} s"] if took > PATIENCE else []
