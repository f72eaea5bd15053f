"""The time of filter by the number of named nodes, and the memory of all those nodes.

One extender runs at a time, all of them several times in turn: side by side, each would wait for
the leftover work of others after their answers. Uses the verb's JSON; the answer is read to the
end, not decoded.
"""

import http.client
import json
import random
import socket
import time
from pathlib import Path

from tests.bench.clients import summary
from tests.bench.peers import usage
from tests.bench.peers.cluster import Cluster, Json
from tests.bench.peers.contenders import (
    ALL,
    BEST,
    LEAST,
    ORIGINAL,
    PREFIX,
    Contender,
    contenders,
)
from tests.bench.peers.table import Table
from tests.e2e.plane import Plane

_SIZES = (1, 2, 4, 8)
_WARM = 5
_MADE = 5.0
"""Seconds until our policies for the nodes are made, after the start and in another process."""


def measure(
    plane: Plane,
    folder: Path,
    original: Path | None,
    table: Table,
    *,
    nodes: int,
    pods: int,
    rounds: int,
    repeat: int,
) -> None:
    """Fill in the rows of filter by names (100, 500, 1,000, all nodes), in the same order and in
    any, and those of memory.
    """
    cluster = Cluster(plane)
    names = cluster.nodes(nodes)
    cluster.pods((_SIZES[number % len(_SIZES)] for number in range(pods)), names)
    cluster.pods(_SIZES)
    pending = cluster.pending()
    cluster.close()
    for _ in range(repeat):
        for contender in contenders(plane, folder, original, (LEAST, BEST, ALL, ORIGINAL)):
            contender.start()
            try:
                time.sleep(_MADE)
                for count in sorted({min(count, nodes) for count in (100, 500, 1000, nodes)}):
                    for any_order in (False, True):
                        _row(table, contender, pending, names[:count], rounds, any_order=any_order)
                _memory(table, contender, f"{nodes:,} nodes, {pods:,} pods")
            finally:
                contender.stop()


def _row(
    table: Table,
    contender: Contender,
    pods: list[Json],
    names: list[str],
    rounds: int,
    *,
    any_order: bool,
) -> None:
    """Fill in the rows of one list of names.

    any_order: another order in each call, as from kube-scheduler's goroutines.
    """
    shuffled, bodies = random.Random(0), []
    for turn in range(-_WARM, rounds):
        ordered = shuffled.sample(names, len(names)) if any_order else names
        argument = {"Pod": pods[turn % len(pods)], "Nodes": None, "NodeNames": ordered}
        # Without blanks, as Go writes it.
        bodies.append(json.dumps(argument, separators=(",", ":")).encode())
    client = FilterClient(contender.port)
    # The first calls are not counted: they open connections and fill caches.
    answers = [client.post("filter", body) for body in bodies][_WARM:]
    client.close()
    row = summary(answers, 0, 1)
    for part in ("p50", "p99"):
        order = " in any order" if any_order else ""
        table.put(f"filter, {len(names):,} names{order}: {part}", "ms", contender.title, row[part])


def _memory(table: Table, contender: Contender, sizes: str) -> None:
    pids = contender.pids()
    table.put(f"memory, {sizes}: peak", "MiB", contender.title, usage.peak_mib(pids))
    table.put(f"memory, {sizes}: all processes", "MiB", contender.title, usage.together_mib(pids))


class FilterClient:
    """One kept-alive connection: kube-scheduler's filters are serial."""

    def __init__(self, port: int) -> None:
        self._http = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self._http.connect()
        self._http.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def post(self, verb: str, body: bytes) -> float:
        """Milliseconds until the last byte of the answer."""
        start = time.perf_counter()
        headers = {"Content-Type": "application/json"}
        self._http.request("POST", f"{PREFIX}/{verb}", body, headers)
        answer = self._http.getresponse()
        answer.read()
        if answer.status != 200:
            raise RuntimeError(f"{verb}: {answer.status}")
        return (time.perf_counter() - start) * 1000

    def close(self) -> None:
        self._http.close()
