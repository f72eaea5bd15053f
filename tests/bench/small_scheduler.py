"""How fast the local cluster places pods: with the extender in the loop, and among many nodes.

`extender`: the demo's whole cluster, 1,000 pods of GPU memory on 100 nodes. `nodes`: API server and
scheduler alone, 5,000 nodes and 1,000 pods without GPU memory. Time runs from the first pod made to
the last one bound. Each part runs in a process of its own; its CPU time (without the processes of
extender and device plug-ins) and peak of memory are shown. Run as
`python -m tests.bench.small_scheduler`; a minute.
"""

import argparse
import io
import resource
import subprocess
import sys
import time

from gpushare_localcluster.api.apiserver import ApiServer
from gpushare_localcluster.api.store import Store
from gpushare_localcluster.client import ApiClient
from gpushare_localcluster.demo.board import Board, PodState
from gpushare_localcluster.demo.cluster import running
from gpushare_localcluster.demo.manifests import NAMESPACE, node_document, pod_document
from gpushare_localcluster.demo.plan import NodePlan, PodPlan, Scenario, Step, WaitFor
from gpushare_localcluster.demo.report import Report
from gpushare_localcluster.scheduler.profiles import SchedulerOptions
from gpushare_localcluster.scheduler.scheduler import Scheduler

_LONGEST = 600.0
_DEVICES = (16,) * 8


class _BenchClock(Report):
    """A report that prints nothing, and knows when the scenario spoke."""

    spoke = cpu = 0.0

    def say(self, text: str) -> None:
        self.spoke, self.cpu = time.monotonic(), time.process_time()


def with_extender(nodes: int, pods: int) -> tuple[float, float]:
    """Seconds, and those of CPU, until the demo's cluster has bound the pods to devices."""
    report = _BenchClock(io.StringIO())
    plans = tuple(NodePlan(name=f"node-{number}", gpu_memory=_DEVICES) for number in range(nodes))
    wanted = tuple(PodPlan(f"pod-{number}", 1 + number % 4) for number in range(pods))
    steps = (Step(say="now"), Step(apply=wanted), Step(wait_for=WaitFor("*", "bound", _LONGEST)))
    with running(report, lambda _cycle: None, {}, ui=False) as cluster:
        if not cluster.runner.run(Scenario(steps, plans)):
            raise SystemExit("the pods are not bound")
        return time.monotonic() - report.spoke, time.process_time() - report.cpu


def among_nodes(nodes: int, pods: int) -> tuple[float, float]:
    """Seconds, and those of CPU, until API server and scheduler alone have bound the pods."""
    server = ApiServer(Store())
    server.start()
    api = ApiClient(server.url, user_agent="bench")
    for number in range(nodes):
        api.create("/api/v1/nodes", node_document(NodePlan(name=f"node-{number}", gpus=0), number))
    scheduler = Scheduler(server.url, SchedulerOptions(seed=1))
    board = Board(api, lambda _before, _after: None)
    try:
        scheduler.start()
        board.start()
        if not scheduler.wait_synced(_LONGEST):
            raise SystemExit("the scheduler does not see the nodes")
        start, cpu = time.monotonic(), time.process_time()
        for number in range(pods):
            pod = pod_document(PodPlan(f"pod-{number}"))
            api.create(f"/api/v1/namespaces/{NAMESPACE}/pods", pod)

        def bound(states: dict[str, PodState]) -> bool:
            return len(states) == pods and all(pod.node for pod in states.values())

        if not board.wait_until(bound, _LONGEST):
            raise SystemExit("the pods are not bound")
        return time.monotonic() - start, time.process_time() - cpu
    finally:
        board.stop()
        scheduler.stop()
        api.close()
        server.stop()


_PARTS = {"extender": (with_extender, 100), "nodes": (among_nodes, 5000)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", nargs="*", choices=[[], *_PARTS], help="by default all")
    parser.add_argument("--pods", type=int, default=1000)
    parser.add_argument("--nodes", type=int, help="in the place of 100 and 5,000")
    options = parser.parse_args()
    if len(options.part) != 1:
        print("| part | nodes | pods | seconds | pods a second | CPU s | peak of memory, MiB |")
        print("| --- | --- | --- | --- | --- | --- | --- |", flush=True)
        for part in options.part or _PARTS:
            words = [word for word in sys.argv[1:] if word not in _PARTS]
            subprocess.run([sys.executable, "-m", __spec__.name, part, *words], check=True)
        return
    run, nodes = _PARTS[options.part[0]]
    nodes = options.nodes or nodes
    seconds, cpu = run(nodes, options.pods)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    rate = options.pods / seconds
    print(
        f"| {options.part[0]} | {nodes} | {options.pods} | {seconds:.1f}"
        f" | {rate:.0f} | {cpu:.1f} | {peak:.0f} |"
    )


if __name__ == "__main__":
    main()
