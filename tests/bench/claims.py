"""How fast pods with claims are bound with our choice of the node, beside kube-scheduler alone.

On a real control plane, in turn: kube-scheduler alone, with the least extender there can be (it
answers at once with the first node name), and with ours, all by the same entry of kube-scheduler's
file. kube-scheduler allocates the same claims on the same nodes. The claims exist before their
pods; seconds count from the first pod's creation until a watch shows the last pod bound.
kube-scheduler's client has no limit of requests. CPU is that of each process tree in a fixed time
from the first pod on, so a slow turn costs no more for its length; `requests` and `events` are
those of the API server for a pod in that time: ours must cause no request.

Only ratios within one run are to be trusted, and on a busy machine only the CPU. Run as
`python -m tests.bench.claims [--nodes 100] [--pods 200] [--rounds 3] [--percentage 0]`, with
KUBERNETES_VERSION 1.37.0 and after `make limit`; two minutes, and five with 1,000 nodes.
"""

import argparse
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from tests.bench.peers import usage
from tests.contract.apiserver.client import Json
from tests.e2e.binaries import needed
from tests.e2e.claims import ALONE, WITH_LIMIT, WITH_US, ClaimWorld, memory_request
from tests.e2e.plane import Plane

_CARDS, _GIB, _CLAIM_GIB = 8, 80, 4
_ALONE = 20
_AT_ONCE = 16
_PATIENCE = 300.0
_Made = TypeVar("_Made")
WAYS = (ALONE, WITH_US)
_BENCH_WAYS = (ALONE, WITH_LIMIT, WITH_US)
_WINDOW = 5.0
"""Seconds over which the CPU of a turn is counted, at least."""
_COUNTED = re.compile(r"apiserver_(request|watch_events)_total\{.*\} ([0-9.e+]+)")


@dataclass(frozen=True, slots=True)
class Row:
    """The figures of a turn."""

    rate: float
    """Pods bound a second."""
    alone: float
    """Milliseconds until a pod that comes alone is bound, median."""
    cpu: Mapping[str, float]
    """Milliseconds of CPU a pod, by process, while many come at once."""
    served: Mapping[str, float]
    """Requests and watch events of the API server a pod, in the same time."""


def at_once(make: Callable[[int], _Made], count: int) -> list[_Made]:
    """Make so many in threads; make is given the number of each."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(make, range(count)))


def measure(world: ClaimWorld, way: str, pods: int) -> Row:
    """Measure one way once."""
    world.schedule(way)
    seconds: list[float] = []

    def bound(pods: Sequence[Json], begun: float) -> float:
        return world.placed.wait(pods, world.told, _PATIENCE) - begun

    bound([world.pod(world.claim(memory_request(_CLAIM_GIB)))], 0.0)  # the scheduler has begun
    for claim in at_once(lambda _: world.claim(memory_request(_CLAIM_GIB)), _ALONE):
        begun = time.monotonic()
        seconds.append(bound([world.pod(claim)], begun) * 1000)
    claims = at_once(lambda _: world.claim(memory_request(_CLAIM_GIB)), pods)
    time.sleep(1.0)  # the watches have shown the claims
    served, used, begun = _served(world), _cpu(world), time.monotonic()
    rate = pods / bound(at_once(lambda at: world.pod(claims[at]), pods), begun)
    time.sleep(max(_WINDOW - (time.monotonic() - begun), 0.0))
    cpu = {name: (now - used[name]) * 1000 / pods for name, now in _cpu(world).items()}
    served = {name: (now - served[name]) / pods for name, now in _served(world).items()}
    world.sound()
    world.clear_pods()
    row = Row(rate, statistics.median(seconds), cpu, served)
    print(f"{way}: {rate:.0f} pods/s, {row.alone:.1f} ms", file=sys.stderr, flush=True)
    return row


def _served(world: ClaimWorld) -> dict[str, float]:
    """Return how many requests and watch events the API server has served."""
    counts = _COUNTED.findall(world.api.call("GET", "/metrics", accept="").body["text"])
    return {
        name: sum(float(number) for metric, number in counts if metric == key)
        for name, key in (("requests", "request"), ("events", "watch_events"))
    }


def _cpu(world: ClaimWorld) -> dict[str, float]:
    """Return the seconds of CPU of each process, with its children."""
    running = {
        "kube-apiserver": world.plane.apiserver,
        "etcd": world.plane.etcd,
        "kube-scheduler": world.scheduler,
        "extender": {WITH_US: world.extender.process, WITH_LIMIT: world.limit}.get(world.by),
    }
    usage_by_name = {}
    for name, process in running.items():
        pids = []
        if process:
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
            pids = [process.pid, *map(int, children.split())]
        usage_by_name[name] = usage.cpu_seconds(pids)
    return usage_by_name


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(prog="claims", description=__doc__)
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--pods", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--percentage", type=int, default=0, help="percentageOfNodesToScore, 0 for the default"
    )
    options = parser.parse_args()
    rows_by_way: dict[str, list[Row]] = {way: [] for way in _BENCH_WAYS}
    with tempfile.TemporaryDirectory() as folder:
        plane = Plane(Path(folder), needed("etcd"), needed("kube-apiserver"))
        plane.start()
        world = ClaimWorld(plane, Path(folder) / "world", percentage=options.percentage)
        try:
            at_once(lambda _: world.node(*[_GIB] * _CARDS), options.nodes)
            for turn in range(options.rounds + 1):
                for way in _BENCH_WAYS:
                    row = measure(world, way, options.pods)
                    if turn:  # the first round warms up
                        rows_by_way[way].append(row)
        finally:
            world.stop()
            plane.stop()
    print(f"\n{options.nodes} nodes, {options.pods} pods, median of {options.rounds} rounds")
    _tables(rows_by_way)


def _tables(rows_by_way: Mapping[str, Sequence[Row]]) -> None:
    print(f"{'':22}{'pods/s':>8}{'ratio':>7}{'alone ms':>10}{'more ms':>9}   pods/s of each round")
    rates = {way: statistics.median(row.rate for row in rows) for way, rows in rows_by_way.items()}
    alone = {way: statistics.median(row.alone for row in rows) for way, rows in rows_by_way.items()}
    for way, rows in rows_by_way.items():
        each = ", ".join(f"{row.rate:.0f}" for row in rows)
        ratio, more = rates[way] / rates[ALONE], alone[way] - alone[ALONE]
        print(f"{way:22}{rates[way]:8.0f}{ratio:7.2f}{alone[way]:10.1f}{more:9.1f}   {each}")
    names = list(rows_by_way[ALONE][0].cpu)
    print("\nms of CPU a pod".ljust(23) + "".join(f"{name:>16}" for name in (*names, "all")))
    for way, rows in rows_by_way.items():
        used = [statistics.median(row.cpu[name] for row in rows) for name in names]
        print(f"{way:22}" + "".join(f"{each:16.2f}" for each in (*used, sum(used))))
    print(
        "\nserved a pod".ljust(23) + "".join(f"{name:>16}" for name in rows_by_way[ALONE][0].served)
    )
    for way, rows in rows_by_way.items():
        served = [statistics.median(row.served[name] for row in rows) for name in rows[0].served]
        print(f"{way:22}" + "".join(f"{each:16.2f}" for each in served))


if __name__ == "__main__":
    main()
