"""How many pods are bound in a second, 64 asked for at once: on one node, and on many.

Each extender runs alone and gets pods of its own; each pod is filtered first, as kube-scheduler
does it. Only binds that were made count. Where there is no extender, the same client sends the
Bindings to the API server itself: nobody can be faster. Knows the verbs' JSON, and a Binding's.
"""

import asyncio
import json
import ssl
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.bench.clients import summary
from tests.bench.peers import usage
from tests.bench.peers.cluster import Cluster, Json
from tests.bench.peers.contenders import ALL, ALONE, ORIGINAL, PREFIX, Contender, contenders
from tests.bench.peers.table import Table
from tests.e2e.objects import PODS
from tests.e2e.plane import EXTENDER, Plane

_AT_ONCE = 64
_AHEAD = 8
_MANY = 100
_ROOMY = 2000
"""Units a device, so that one node has room for all."""
_LEAST = 20
"""Binds a second as an upper bound for the original: the client there sends 5 requests a second."""


@dataclass
class Target:
    """The receiver of binds; message: the request for a pod and a node."""

    port: int
    message: Callable[[Json, str], bytes]
    tls: ssl.SSLContext | None = None


def measure(
    plane: Plane,
    folder: Path,
    original: Path | None,
    table: Table,
    *,
    binds: int,
    rounds: int,
    seconds: float,
) -> None:
    """Fill in the rows of binds a second; each run ends after so many binds, or seconds."""
    cluster = Cluster(plane)
    places = {"one node": cluster.nodes(1, _ROOMY), f"{_MANY} nodes": cluster.nodes(_MANY)}
    direct = _direct(plane)
    try:
        for _ in range(rounds):
            for title, nodes in places.items():
                cluster.delete_pods()
                cluster.pods([1] * binds)
                crowd = BindCrowd(direct, cluster.pending(), nodes)
                asyncio.run(crowd.bind(seconds))
                _fill(table, title, ALONE, crowd)
                for contender in contenders(plane, folder, original, (ALL, ORIGINAL)):
                    cluster.delete_pods()
                    count = min(binds, int(_AT_ONCE + _LEAST * seconds))
                    cluster.pods([1] * (count if contender.title == ORIGINAL else binds))
                    _run(
                        table,
                        title,
                        contender,
                        BindCrowd(_target(contender), cluster.pending(), nodes),
                        seconds,
                    )
    finally:
        cluster.close()


def _run(
    table: Table, title: str, contender: Contender, crowd: "BindCrowd", seconds: float
) -> None:
    contender.start()
    try:
        asyncio.run(crowd.filter())
        before = usage.cpu_seconds(contender.pids())
        asyncio.run(crowd.bind(seconds))
        used = usage.cpu_seconds(contender.pids()) - before
    finally:
        contender.stop()
    _fill(table, title, contender.title, crowd)
    cost = used / max(len(crowd.taken), 1) * 1000
    table.put(f"binds on {title}: CPU of the extender for one", "ms", contender.title, cost)


def _fill(table: Table, title: str, column: str, crowd: "BindCrowd") -> None:
    row = summary(crowd.taken, crowd.refused, crowd.seconds)
    table.put(f"binds on {title}", "/s", column, row["per_s"])
    table.put(f"binds on {title}: p50", "ms", column, row["p50"])
    table.put(f"binds on {title}: p99", "ms", column, row["p99"])
    if crowd.refused:
        table.note(f"{column}, binds on {title}: {crowd.refused} refused")


@dataclass
class BindCrowd:
    """64 clients that bind pods; then `taken` (ms of each bind made), `refused` and `seconds`."""

    target: Target
    pods: list[Json]
    nodes: Sequence[str]
    taken: list[float] = field(default_factory=list)
    refused: int = 0
    seconds: float = 0.0

    async def filter(self) -> None:
        """Have each pod filtered, by a few at once."""
        todo = self._todo()

        async def one(stream: "BindStream") -> None:
            while todo:
                pod, node = todo.pop()
                body = {"Pod": pod, "Nodes": None, "NodeNames": [node]}
                await stream.ask(post(f"{PREFIX}/filter", body))

        streams = [await BindStream.open(self.target) for _ in range(_AHEAD)]
        await asyncio.gather(*map(one, streams))
        _close(streams)

    async def bind(self, seconds: float) -> None:
        """Have the pods bound, until all are or the time is over."""
        todo = self._todo()
        streams = [await BindStream.open(self.target) for _ in range(_AT_ONCE)]
        start = time.perf_counter()

        async def one(stream: BindStream) -> None:
            while todo:
                message = self.target.message(*todo.pop())
                begin = time.perf_counter()
                answer = await stream.ask(message)
                end = time.perf_counter()
                self.seconds = end - start
                if answer:
                    self.taken.append((end - begin) * 1000)
                else:
                    self.refused += 1

        tasks = [asyncio.create_task(one(stream)) for stream in streams]
        finished, late = await asyncio.wait(tasks, timeout=seconds)
        for task in late:
            task.cancel()
            self.seconds = seconds
        await asyncio.gather(*late, return_exceptions=True)
        _close(streams)
        for task in finished:
            task.result()

    def _todo(self) -> list[tuple[Json, str]]:
        return [(pod, self.nodes[n % len(self.nodes)]) for n, pod in enumerate(self.pods)]


class BindStream:
    """A kept-alive connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def open(cls, target: Target) -> "BindStream":
        return cls(*await asyncio.open_connection("127.0.0.1", target.port, ssl=target.tls))

    async def ask(self, message: bytes) -> bool:
        """Whether the answer is one of success, without an Error."""
        self._writer.write(message)
        head = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        length = int(head.split(b"content-length: ")[1].split(b"\r\n")[0])
        body = json.loads(await self._reader.readexactly(length))
        return head.split()[1] in {b"200", b"201"} and not body.get("Error")

    def close(self) -> None:
        self._writer.transport.abort()


def _close(streams: list[BindStream]) -> None:
    for stream in streams:
        stream.close()


def post(path: str, body: Json, headers: str = "") -> bytes:
    """The bytes of a call."""
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(data)}\r\n{headers}"
    return f"{head}Content-Type: application/json\r\n\r\n".encode() + data


def _target(contender: Contender) -> Target:
    def message(pod: Json, node: str) -> bytes:
        meta = pod["metadata"]
        names = {"PodName": meta["name"], "PodNamespace": meta["namespace"], "PodUID": meta["uid"]}
        return post(f"{PREFIX}/bind", {**names, "Node": node})

    return Target(contender.port, message)


def _direct(plane: Plane) -> Target:
    """The API server, called as the extenders' user with the extender's writes."""
    api = plane.api(plane.token(EXTENDER))
    headers = "".join(f"{name}: {value}\r\n" for name, value in api.headers.items())

    def message(pod: Json, node: str) -> bytes:
        meta = pod["metadata"]
        notes = {"ALIYUN_COM_GPU_MEM_IDX": "0", "ALIYUN_COM_GPU_MEM_POD": "1"}
        names = {"name": meta["name"], "uid": meta["uid"], "annotations": notes}
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": names, "target": target}
        return post(f"{PODS}/{meta['name']}/binding", body, headers)

    return Target(int(plane.url.rpartition(":")[2]), message, api.tls)
