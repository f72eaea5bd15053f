"""The speed of the device plug-in's answers, the delay until devices exist, and the cost of the
process.

    python -m tests.bench.device_plugin

A real `gpushare device-plugin` process with 8 cards of 141 GiB, the local cluster's device manager
over unix sockets, an API server in memory. 110 pods come to the node; 109 stay, and another is
bound, admitted, started and deleted again and again. Times are the kubelet's: from its call to the
answer.
"""

import random
import statistics
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from tests.integration.cluster import Cluster
from tests.integration.plugin_world import PluginNode, card

PODS = 110
ROUNDS = 300
IDLE_SECONDS = 20.0


def measured(node: PluginNode) -> dict[str, list[float]]:
    """Seconds of each call of the kubelet, by method, from now on."""
    seconds: dict[str, list[float]] = defaultdict(list)
    call = node.kubelet.call

    def timed(method: str, request: Any, answer: Any) -> Any:
        began = time.perf_counter()
        try:
            return call(method, request, answer)
        finally:
            seconds[method].append(time.perf_counter() - began)

    node.kubelet.call = timed  # type: ignore[method-assign]
    return seconds


def status(node: PluginNode, key: str) -> int:
    """A number of KiB that the kernel knows of the process."""
    assert node.process
    text = Path(f"/proc/{node.process.pid}/status").read_text()
    (line,) = (line for line in text.splitlines() if line.startswith(f"{key}:"))
    return int(line.split()[1])


def cpu_seconds(node: PluginNode) -> float:
    assert node.process
    fields = Path(f"/proc/{node.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def waited_seconds(node: PluginNode) -> float:
    """The time that the threads were ready to run without CPU."""
    assert node.process
    tasks = Path(f"/proc/{node.process.pid}/task")
    return sum(int((task / "schedstat").read_text().split()[1]) for task in tasks.iterdir()) / 1e9


def main() -> int:
    cluster = Cluster()
    flags = ("--pods-api-socket", "@") if "--pods-api" in sys.argv else ()
    node = PluginNode(cluster, *flags, cards=[card(index, 141) for index in range(8)])
    try:
        node.kubelet.start()
        began = time.perf_counter()
        node.start_plugin(wait=False)
        node.kubelet.wait(lambda: node.kubelet.registered > 0, "registers")
        registered = time.perf_counter()
        node.kubelet.wait_advertised(8 * 141)
        advertised = time.perf_counter()
        print(f"start to registered {registered - began:.2f} s")
        print(f"registered to {8 * 141} devices advertised {advertised - registered:.3f} s")

        dice = random.Random(1)
        pods = [node.pod(8, devices=[dice.randrange(8)]) for _ in range(PODS - 1)]
        for pod in pods:
            node.kubelet.add(pod)
        seconds = measured(node)
        cpu, waited = cpu_seconds(node), waited_seconds(node)
        for _ in range(ROUNDS):
            last = node.pod(8, devices=[dice.randrange(8)])
            node.knows(*pods, last)
            node.kubelet.add(last)
            node.kubelet.start_container(last["metadata"]["uid"], "c0")
            cluster.delete_pod(last)
            node.kubelet.remove(last["metadata"]["uid"])
            node.knows(*pods)
        for method, times in seconds.items():
            p50, p99 = statistics.median(times), statistics.quantiles(times, n=100)[98]
            print(
                f"{method}: p50 {1000 * p50:.1f} ms, p99 {1000 * p99:.1f} ms,"
                f" most {1000 * max(times):.1f} ms of {len(times)}"
            )
        cpu, waited = cpu_seconds(node) - cpu, waited_seconds(node) - waited
        print(f"each pod, with its watch and its mark: CPU {1000 * cpu / ROUNDS:.1f} ms;")
        print(f"  for want of a CPU its threads waited {1000 * waited / ROUNDS:.1f} ms")
        now, peak = (status(node, key) / 1024 for key in ("VmRSS", "VmHWM"))
        print(f"RSS {now:.0f} MiB, most {peak:.0f} MiB")
        before = cpu_seconds(node)
        time.sleep(IDLE_SECONDS)
        print(f"idle CPU {100 * (cpu_seconds(node) - before) / IDLE_SECONDS:.2f} % of a core")
    finally:
        node.stop()
        cluster.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
