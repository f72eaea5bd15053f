"""A thousand clients that stall or drip, while binds and probes go on.

A part of `python -m tests.badinput.proof`.
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


class _StalledClient:
    """One connection with an unfinished request; the client reconnects after a close."""

    def __init__(self, port: int, number: int) -> None:
        self._port, self._kind = port, number % len(_STARTS)
        self._open()

    def _open(self) -> None:
        self._at = 0
        self._socket = socket.create_connection(("127.0.0.1", self._port), 20)
        self._socket.sendall(_STARTS[self._kind])
        self._socket.setblocking(False)

    def turn(self) -> bool:
        """Whether the client reconnected, after the server closed the slow connection."""
        try:
            closed_nodes = self._socket.recv(1 << 16) == b""
        except BlockingIOError:
            closed_nodes = False
        except OSError:
            closed_nodes = True
        if closed_nodes:
            self.close()
            self._open()
        elif self._kind == len(_STARTS) - 1:
            with contextlib.suppress(OSError):
                self._socket.send(_WHOLE[self._at : self._at + 1])
            self._at = min(self._at + 1, len(_WHOLE) - 2)
        return closed_nodes

    def close(self) -> None:
        self._socket.close()


def stalled(world: BadWorld, clients: int, seconds: float) -> tuple[Counter[str], list[str]]:
    """(summary, findings)."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    crowd = [_StalledClient(world.extender.port, number) for number in range(clients)]
    finished, findings, stop = Counter(clients=clients), list[str](), threading.Event()

    def drip() -> None:
        while not stop.wait(0.2):
            finished["closed for being slow"] += sum(client.turn() for client in crowd)

    thread = threading.Thread(target=drip)
    thread.start()
    try:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            findings += _probe(world, finished) + _bind(world, finished)
    finally:
        stop.set()
        thread.join()
        for client in crowd:
            client.close()
    poll(lambda: not world.books_changed(), "the books are as before once the pods are gone")
    return finished, findings + world.changes()


def _probe(world: BadWorld, finished: Counter[str]) -> list[str]:
    begin = time.monotonic()
    statuses = [world.extender.probe(path).status for path in ("/livez", "/readyz")]
    finished["probes"] += 2
    return _late("a probe", begin, finished) + (
        [] if statuses == [200, 200] else [f"probes answered {statuses}"]
    )


def _bind(world: BadWorld, finished: Counter[str]) -> list[str]:
    pod = world.cluster.pod(1)
    begin = time.monotonic()
    fit = world.extender.fit(pod, world.targets.nodes)
    error = world.extender.bind(pod, fit[0]) if fit else "no node fits"
    finished["binds"] += 1
    late = _late("filter and bind", begin, finished)
    world.cluster.delete_pod(pod)
    return late + ([f"a bind failed: {error}"] if error else [])


def _late(kind: str, begin: float, finished: Counter[str]) -> list[str]:
    took = time.monotonic() - begin
    worst = f"milliseconds {kind} took at most"
    finished[worst] = max(finished[worst], round(took * 1000))
    return [f"{kind} took {took:.1f} s"] if took > PATIENCE else []
