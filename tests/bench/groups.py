"""How much longer a group takes to be bound than as many plain pods, on a real kube-scheduler.

    .venv/bin/python -m tests.bench.groups [--pods 200] [--nodes 1000] [--times 3]

Both are created at once and wait for nothing but kube-scheduler and the extender. The time is from
before the first create until the API server shows all of them bound. Needs Kubernetes' own programs
(`make controlplane`).
"""

import argparse
import contextlib
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.contract.apiserver.client import Json
from tests.e2e.binaries import program
from tests.e2e.groups import job_owner, member
from tests.e2e.objects import Objects, fresh
from tests.e2e.plane import Plane
from tests.e2e.processes import until
from tests.e2e.world import World

_DEVICES, _UNITS = 2, 16
_AT_ONCE = 16
_LONGEST = 600.0

Make = Callable[[Objects, int], list[Json]]


def plain(objects: Objects, count: int) -> list[Json]:
    """Return so many new pods of no group."""
    return objects.many([10] * count)


def group(objects: Objects, count: int) -> list[Json]:
    """Return the new pods of a Job that has to start whole."""
    name, owner = fresh("job"), job_owner()
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        makers = [pool.submit(member, objects, 10, name, count, owner) for _ in range(count)]
        return [maker.result() for maker in makers]


def seconds_until_bound(world: World, make: Make, count: int) -> float:
    """Return the seconds until new pods are bound; the pods are deleted afterwards."""
    begin = time.monotonic()
    pods = make(world.objects, count)

    def bound() -> int:
        return sum(bool(pod["spec"].get("nodeName")) for pod in world.objects.pods())

    until(lambda: bound() == count, world.told, _LONGEST)
    seconds = time.monotonic() - begin
    world.objects.delete(*pods)
    world.agrees()
    return seconds


def main() -> None:
    """Print the times and the ratio."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pods", type=int, default=200)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--times", type=int, default=3)
    options = parser.parse_args()
    etcd, apiserver = program("etcd"), program("kube-apiserver")
    if etcd is None or apiserver is None:
        print("no kube-apiserver: `make controlplane` builds it")
        return
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as ends:
        plane = Plane(Path(folder), etcd, apiserver)
        ends.callback(plane.stop)
        plane.start()
        world = World(plane, Path(folder) / "world", flags=("--leadership", "off"))
        ends.callback(world.stop)
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            for _ in range(options.nodes):
                pool.submit(world.objects.node, devices=_DEVICES, units=_UNITS)
        world.start()
        seconds_until_bound(world, plain, 10)  # connections are open from here on
        times: dict[str, list[float]] = {"plain pods": [], "a group": []}
        for _ in range(options.times):
            times["plain pods"].append(seconds_until_bound(world, plain, options.pods))
            times["a group"].append(seconds_until_bound(world, group, options.pods))
    print(f"{options.pods} pods on {options.nodes} nodes, seconds until all are bound:")
    for name, taken in times.items():
        row = " ".join(f"{seconds:6.1f}" for seconds in taken)
        print(f"  {name:12} {row}   median {statistics.median(taken):6.1f}")
    plain_median, group_median = (statistics.median(taken) for taken in times.values())
    print(f"  ratio of the medians: {group_median / plain_median:.2f}")


if __name__ == "__main__":
    main()
