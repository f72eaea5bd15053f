"""The cost of a shadow policy: filter and pods a second with and without a shadow, in turn.

Two real processes, each before a stand-in for the API server of its own, which shows each Binding
on its watch. One client filters and binds one pod after the other, as fast as it is answered, with
all nodes named; the processes take turns of some pods. So both meet the same machine; only the
ratios are worth anything. The shadow goes on while the other one is asked: CPU counts that too.
Run as `python -m tests.bench.beside_shadow [--nodes 5000]`; a minute or two.
"""

import argparse
import http.client
import json
import os
import random
import statistics
import time
from pathlib import Path
from typing import Any

from tests.bench.mixed_clients import summary
from tests.bench.pod_cpu import appended
from tests.bench.speed import extender, free_port
from tests.bench.speed_api_server import node_name, waiting_pod

_JSON = {"Content-Type": "application/json"}
_ORDERS = 40


class ShadowSide:
    """One extender with a client; of each part of the run, filter's times, and the seconds."""

    def __init__(self, port: int, ui: int, pid: int) -> None:
        self._client = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        self._ui, self._pid = ui, pid
        self.filters: list[list[float]] = []
        self.seconds: list[float] = []
        self.cpus: list[float] = []

    def begin(self) -> None:
        """Begin another part."""
        self.filters.append([])
        self.seconds.append(0.0)
        self.cpus.append(self.cpu())

    def end(self) -> None:
        """End the part: the CPU is that of the whole part."""
        self.cpus[-1] = self.cpu() - self.cpus[-1]

    def place(self, numbers: range, orders: list[list[str]], pause: float) -> None:
        """Place these pods, with a pause after each."""
        for number in numbers:
            pod = waiting_pod(number)
            names = orders[number % len(orders)]
            start = time.perf_counter()
            answer = self._ask("filter", {"Pod": pod, "Nodes": None, "NodeNames": names})
            self.filters[-1].append((time.perf_counter() - start) * 1000)
            arguments = {"PodName": pod["metadata"]["name"], "PodNamespace": "default"}
            node = answer["NodeNames"][0]
            bind_seconds = self._ask(
                "bind", arguments | {"PodUID": pod["metadata"]["uid"], "Node": node}
            )
            self.seconds[-1] += time.perf_counter() - start
            if bind_seconds["Error"]:
                raise SystemExit(f"bind: {bind_seconds['Error']}")
            time.sleep(pause)

    def _ask(self, name: str, body: dict[str, Any]) -> Any:
        text = json.dumps(body, separators=(",", ":"))
        self._client.request("POST", f"/gpushare-scheduler/{name}", text, _JSON)
        return json.loads(self._client.getresponse().read())

    def megabytes(self) -> float:
        """The resident memory of the worker."""
        return int(self._worker("status").split("VmRSS:")[1].split()[0]) / 1024

    def cpu(self) -> float:
        """Seconds of CPU that the worker has used."""
        user, system = self._worker("stat").rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def _worker(self, file: str) -> str:
        children = Path(f"/proc/{self._pid}/task/{self._pid}/children").read_text("utf-8")
        return Path(f"/proc/{children.split()[0]}/{file}").read_text(encoding="utf-8")

    def found(self) -> Any:
        """The page's figures of the shadow."""
        client = http.client.HTTPConnection("127.0.0.1", self._ui, timeout=30)
        client.request("GET", "/ui/books.json")
        return json.loads(client.getresponse().read())["resources"][0]["shadow"]


def main() -> None:
    """Print a line for each side, and the ratios."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--turns", type=int, default=50, help="of each side in each part")
    parser.add_argument("--pods", type=int, default=12, help="of each turn")
    parser.add_argument("--policy", default="binpack")
    parser.add_argument("--shadow", default="spread")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds between two pods")
    options = parser.parse_args()
    dice = random.Random(1)
    names = [node_name(number) for number in range(options.nodes)]
    orders = [appended(names, dice) for _ in range(_ORDERS)]
    total = options.pods * options.turns * (_PARTS + 1)
    sizes = {"nodes": options.nodes, "pods": 2000, "gpu_pods": 2000, "waiting": total}
    flags = ("--policy", options.policy, "--filter-answer", "best", "--ui-listen")
    one, two = (f"127.0.0.1:{free_port()}" for _ in range(2))
    with (
        extender(*flags, one, **sizes) as (port, _, child),
        extender(*flags, two, "--shadow", options.shadow, **sizes) as (port2, _, child2),
    ):
        without = ShadowSide(port, int(one.rpartition(":")[2]), child.pid)
        with_shadow = ShadowSide(port2, int(two.rpartition(":")[2]), child2.pid)
        sides, first = [without, with_shadow], 0
        for _ in range(_PARTS + 1):
            for side in sides:
                side.begin()
            for turn in range(options.turns):
                for side in sides if turn % 2 else sides[::-1]:
                    side.place(range(first, first + options.pods), orders, options.pause)
                first += options.pods
            for side in sides:
                side.end()
        time.sleep(3)
        print(f"{options.nodes} nodes, {options.policy} with {options.shadow} as a shadow")
        pods = options.pods * options.turns
        figures = {title: _figures(side, pods) for title, side in zip(_TITLES, sides, strict=True)}
        for title, side in zip(_TITLES, sides, strict=True):
            told = (
                f"{verb} {statistics.median(times):.2f}" for verb, times in figures[title].items()
            )
            print(f"{title:8}", "; ".join(told), f"; {side.megabytes():.0f} MiB")
        for verb, times in figures["with"].items():
            ratios = [b / a for a, b in zip(figures["without"][verb], times, strict=True)]
            low, middle, high = min(ratios), statistics.median(ratios), max(ratios)
            print(f"{verb}, with / without: {middle:.2f} ({low:.2f} to {high:.2f})")
        print(json.dumps(with_shadow.found()))


_PARTS = 5
"""Rounds, each with a ratio; one more round goes before and does not count."""
_TITLES = ("without", "with")


def _figures(side: ShadowSide, pods: int) -> dict[str, list[float]]:
    """The measures of each part."""
    rows = [summary(times, 0, 1) for times in side.filters[1:]]
    return {
        "filter p50 ms": [row["p50"] for row in rows],
        "filter p99 ms": [row["p99"] for row in rows],
        "pods/s": [pods / seconds for seconds in side.seconds[1:]],
        "CPU ms a pod": [1000 * cpu / pods for cpu in side.cpus[1:]],
    }


if __name__ == "__main__":
    main()
