"""What a shadow policy costs: filter and pods a second with one and without, in turn.

Two real processes, each before a stand-in for the API server of its own, which shows each Binding
on its watch. One client filters and binds one pod after the other, as fast as it is answered, with
all nodes named; the processes take turns. So both meet the same machine; only the ratios are worth
anything. Run as `python -m tests.bench.beside_shadow [--nodes 5000]`; two minutes.
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


class Side:
    """One extender and its client."""

    def __init__(self, port: int, ui: int, pid: int) -> None:
        self._client = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        self._ui, self._pid = ui, pid
        self.filters: list[list[float]] = []
        self.rates: list[float] = []
        self.cpus: list[float] = []

    def round(self, first: int, pods: int, orders: list[list[str]], pause: float) -> None:
        """Place so many pods; remember what filter took, and the pods a second."""
        taken: list[float] = []
        cpu = self.cpu()
        rested, start = 0.0, time.perf_counter()
        for number in range(first, first + pods):
            pod = waiting_pod(number)
            names = orders[number % len(orders)]
            began = time.perf_counter()
            answer = self._ask("filter", {"Pod": pod, "Nodes": None, "NodeNames": names})
            taken.append((time.perf_counter() - began) * 1000)
            named = {"PodName": pod["metadata"]["name"], "PodNamespace": "default"}
            node = answer["NodeNames"][0]
            bound = self._ask("bind", named | {"PodUID": pod["metadata"]["uid"], "Node": node})
            if bound["Error"]:
                raise SystemExit(f"bind: {bound['Error']}")
            time.sleep(pause)
            rested += pause
        self.filters.append(taken)
        self.cpus.append((self.cpu() - cpu) / pods * 1000)
        self.rates.append(pods / (time.perf_counter() - start - rested))

    def _ask(self, name: str, body: dict[str, Any]) -> Any:
        text = json.dumps(body, separators=(",", ":"))
        self._client.request("POST", f"/gpushare-scheduler/{name}", text, _JSON)
        return json.loads(self._client.getresponse().read())

    def megabytes(self) -> float:
        """What is resident of the worker."""
        return int(self._worker("status").split("VmRSS:")[1].split()[0]) / 1024

    def cpu(self) -> float:
        """Seconds of CPU that the worker has used."""
        user, system = self._worker("stat").rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def _worker(self, file: str) -> str:
        children = Path(f"/proc/{self._pid}/task/{self._pid}/children").read_text("utf-8")
        return Path(f"/proc/{children.split()[0]}/{file}").read_text(encoding="utf-8")

    def found(self) -> Any:
        """What the page says of the shadow."""
        client = http.client.HTTPConnection("127.0.0.1", self._ui, timeout=30)
        client.request("GET", "/ui/books.json")
        return json.loads(client.getresponse().read())["resources"][0]["shadow"]


def main() -> None:
    """Print a line for each side, and the ratios of the rounds."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--pods", type=int, default=400, help="of each round")
    parser.add_argument("--rounds", type=int, default=8, help="of each side")
    parser.add_argument("--policy", default="binpack")
    parser.add_argument("--shadow", default="spread")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds between two pods")
    options = parser.parse_args()
    dice = random.Random(1)
    names = [node_name(number) for number in range(options.nodes)]
    orders = [appended(names, dice) for _ in range(_ORDERS)]
    total = options.pods * (options.rounds + 1)
    sizes = {"nodes": options.nodes, "pods": 2000, "gpu_pods": 2000, "waiting": total}
    flags = ("--policy", options.policy, "--filter-answer", "best", "--ui-listen")
    one, other = (f"127.0.0.1:{free_port()}" for _ in range(2))
    with (
        extender(*flags, one, **sizes) as (port, _, child),
        extender(*flags, other, "--shadow", options.shadow, **sizes) as (port2, _, child2),
    ):
        without = Side(port, int(one.rpartition(":")[2]), child.pid)
        beside = Side(port2, int(other.rpartition(":")[2]), child2.pid)
        sides = [without, beside]
        for turn in range(options.rounds + 1):
            for side in sides if turn % 2 else sides[::-1]:
                side.round(turn * options.pods, options.pods, orders, options.pause)
        time.sleep(3)
        print(f"{options.nodes} nodes, {options.policy} with {options.shadow} as a shadow")
        for title, side in (("without", without), ("with", beside)):
            row = summary([ms for taken in side.filters[1:] for ms in taken], 0, 1)
            print(
                f"{title:8} filter p50 {row['p50']:6.2f} ms  p99 {row['p99']:6.2f} ms"
                f"  {statistics.median(side.rates[1:]):6.1f} pods/s"
                f"  {statistics.median(side.cpus[1:]):5.2f} ms of CPU a pod"
                f"  {side.megabytes():6.1f} MiB"
            )
        pairs = list(zip(without.filters[1:], beside.filters[1:], strict=True))
        for point in ("p50", "p99"):
            told = [summary(b, 0, 1)[point] / summary(a, 0, 1)[point] for a, b in pairs]
            print(f"filter {point}, with / without: {_spread(told)}")
        cpus = zip(without.cpus[1:], beside.cpus[1:], strict=True)
        print(f"CPU a pod, with / without: {_spread([b / a for a, b in cpus])}")
        rates = zip(without.rates[1:], beside.rates[1:], strict=True)
        print(f"pods/s, with / without: {_spread([b / a for a, b in rates])}")
        print(json.dumps(beside.found()))


def _spread(ratios: list[float]) -> str:
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


if __name__ == "__main__":
    main()
