"""The clients of the mixed-load bench: a scheduler's filters and binds, probes, stalled sockets.

Each kind runs in a process of its own and prints one JSON line of latencies in milliseconds. Knows
how Go's HTTP client keeps connections (at most 2 idle ones a host, which is what kube-scheduler's
extender transport has); knows nothing of the service's inside.
Run as `python mixed_clients.py KIND JSON`.
"""

import asyncio
import contextlib
import json
import random
import selectors
import socket
import sys
import time
from typing import Any

_GO_IDLE_PER_HOST = 2


def request(path: str, body: bytes) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nUser-Agent: Go-http-client/1.1\r\n"
    head += f"Content-Length: {len(body)}\r\nContent-Type: application/json\r\n"
    return head.encode() + b"Accept-Encoding: gzip\r\n\r\n" + body


def filter_body() -> bytes:
    names = [f"node-{i:05d}.cluster.local" for i in range(5000)]
    pod = {"metadata": {"name": "p", "uid": "u"}, "spec": {}}
    return json.dumps({"Pod": pod, "Nodes": None, "NodeNames": names}).encode()


def summary(samples: list[float], errors: int, seconds: float) -> dict[str, float]:
    ordered = sorted(samples) or [float("nan")]
    return {
        "n": len(samples),
        "errors": errors,
        "per_s": len(samples) / seconds,
        "p50": ordered[len(ordered) // 2],
        "p99": ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))],
        "max": ordered[-1],
    }


class Blocking:
    """One kept-alive connection, used by one thread: the scheduling cycle is serial."""

    def __init__(self, port: int, timeout: float) -> None:
        self._address, self._timeout = ("127.0.0.1", port), timeout
        self._sock: socket.socket | None = None

    def ask(self, message: bytes) -> float | None:
        """Milliseconds that the answer took, None when there was none."""
        start = time.perf_counter()
        try:
            if self._sock is None:
                self._sock = socket.create_connection(self._address, self._timeout)
            self._sock.sendall(message)
            answer = self._sock.recv(1 << 20)
            while (head := answer.find(b"\r\n\r\n")) < 0 and answer:
                answer += self._sock.recv(1 << 20)
            length = int(answer[:head].lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            missing = head + 4 + length - len(answer)
            while missing > 0:
                missing -= len(self._sock.recv(1 << 20)) or missing
        except (OSError, IndexError, ValueError):
            if self._sock is not None:
                self._sock.close()
            self._sock = None
            return None
        return (time.perf_counter() - start) * 1000 if answer[9:12] == b"200" else None


def run_filter(options: dict[str, Any]) -> dict[str, Any]:
    """Filters and echoes of the same bytes in turn, so that both meet the same load."""
    body, client = filter_body(), Blocking(options["port"], 5)
    samples: dict[str, list[float]] = {"/filter": [], "/echo": []}
    failed = {"/filter": 0, "/echo": 0}
    end = time.monotonic() + options["seconds"]
    while time.monotonic() < end:
        for path, times in samples.items():
            took = client.ask(request(path, body))
            if took is None:
                failed[path] += 1
            else:
                times.append(took)
            time.sleep(options["pause_s"])
    return {
        path[1:]: summary(times, failed[path], options["seconds"])
        for path, times in samples.items()
    }


def run_probe(options: dict[str, Any]) -> dict[str, Any]:
    samples, errors = [], 0
    end = time.monotonic() + options["seconds"]
    while time.monotonic() < end:
        client = Blocking(options["probe_port"], 1)  # the kubelet's probes do not keep connections
        took = client.ask(b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
        if took is None:
            errors += 1
        else:
            samples.append(took)
        time.sleep(0.05)
    return {"probe": summary(samples, errors, options["seconds"])}


class Binds:
    """Binds from many goroutines over connections kept as Go keeps them."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._options = options
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self._samples: list[float] = []
        self._errors = self._number = self._in_time = 0
        self._end = 0.0
        self._in_flight = asyncio.Semaphore(options["in_flight"])

    async def one(self) -> None:
        self._number += 1
        bind = {"PodName": f"pod-{self._number}", "PodNamespace": "default"}
        bind |= {"PodUID": f"uid-{self._number}", "Node": "node-00007.cluster.local"}
        start = time.perf_counter()
        try:
            async with asyncio.timeout(5):
                idle_client = self._idle.pop() if self._idle else None
                idle_client = idle_client or await asyncio.open_connection(
                    "127.0.0.1", self._options["port"]
                )
                reader, writer = idle_client
                writer.write(request("/bind", json.dumps(bind).encode()))
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                answer = await reader.readexactly(length)
        except (OSError, TimeoutError, EOFError):
            self._errors += 1
            return
        if head[9:12] != b"200" or answer != b'{"Error":""}':
            self._errors += 1
        self._samples.append((time.perf_counter() - start) * 1000)
        self._in_time += time.monotonic() <= self._end
        if len(self._idle) < _GO_IDLE_PER_HOST and b"connection: close" not in head.lower():
            self._idle.append(idle_client)
        else:
            writer.close()

    async def closed_loop(self, end: float) -> None:
        while time.monotonic() < end:
            await self.one()

    async def paced(self, end: float) -> None:
        """The given number a second, at random moments, at most `in_flight` at once."""
        async with asyncio.TaskGroup() as group:
            due = time.monotonic()
            while (due := due + random.expovariate(self._options["rate"])) < end:
                await asyncio.sleep(due - time.monotonic())
                await self._in_flight.acquire()
                if time.monotonic() > end:
                    break
                group.create_task(self.one()).add_done_callback(lambda _: self._in_flight.release())

    async def run(self) -> dict[str, Any]:
        seconds = self._options["seconds"]
        self._end = end = time.monotonic() + seconds
        if self._options["rate"]:
            await self.paced(end)
        else:
            loops = (self.closed_loop(end) for _ in range(self._options["in_flight"]))
            await asyncio.gather(*loops)
        figures = summary(self._samples, self._errors, seconds)
        # Requests unfinished at the end count in the latency, not in the rate.
        return {"bind": {**figures, "per_s": self._in_time / seconds}}


class Stalled:
    """Sockets that stop at every stage of a request, and return after a close."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._address, self._count = ("127.0.0.1", options["port"]), options["stalled"]
        self._selector = selectors.DefaultSelector()
        self._whole = request("/filter", filter_body())

    def run(self) -> None:
        """Nothing, and never: the bench ends this process."""
        for number in range(self._count):
            self._open(number)
        position, tick = 3000, time.monotonic() + 1
        close_seconds: list[int] = []
        while True:
            for key, _ in self._selector.select(0.2):
                self._selector.unregister(key.fileobj)
                key.fileobj.close()  # type: ignore[union-attr]  # we registered sockets only
                close_seconds.append(key.data)
            if time.monotonic() > tick:
                position, tick = position + 1, time.monotonic() + 1
                self._drip(self._whole[position : position + 1])
                while close_seconds:
                    self._open(close_seconds.pop())

    def _open(self, number: int) -> None:
        stages = (b"", self._whole[:1], self._whole[:60], self._whole[:3000])
        with contextlib.suppress(OSError):
            stalled = socket.create_connection(self._address, 5)
            stalled.sendall(stages[number % len(stages)])
            self._selector.register(stalled, selectors.EVENT_READ, number)

    def _drip(self, byte: bytes) -> None:
        for key in list(self._selector.get_map().values()):
            if key.data % 4 == 3:
                with contextlib.suppress(OSError):
                    key.fileobj.send(byte)  # type: ignore[union-attr]  # as above


def main(kind: str, options: dict[str, Any]) -> None:
    if kind == "bind":
        result = asyncio.run(Binds(options).run())
    elif kind == "stall":
        Stalled(options).run()
    else:
        result = {"filter": run_filter, "probe": run_probe}[kind](options)
    print(json.dumps(result))


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
