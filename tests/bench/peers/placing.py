"""How many pods a real kube-scheduler places in a second: alone, and with each extender.

All pods are there before kube-scheduler starts; time runs from the first bind that is seen to the
last. Uses kube-scheduler's command line. The CPU of each process is counted too, because
on few cores the CPU decides the rate.

Our extender makes and tries its policies while it places the pods; with `settled` before, for it
tries them once an hour and makes them once a minute at most, and a run takes some seconds.
"""

import time
from pathlib import Path

from tests.bench.peers import usage
from tests.bench.peers.cluster import Cluster
from tests.bench.peers.contenders import (
    ALL,
    ALONE,
    BEST,
    LEAST,
    LEAST_ALL,
    ORIGINAL,
    Contender,
    contenders,
    scheduler_file,
)
from tests.bench.peers.table import Table
from tests.e2e.plane import SCHEDULER, Plane
from tests.e2e.processes import Process

_SIZES = (1, 2, 4, 8)
_PLANE = ("kube-apiserver", "etcd")
_FEWEST = 10
_PATIENCE = 60.0
_QUIET = 5.0
"""Seconds without a process that makes policies, after which there is nothing to be made."""


class Placing:
    """Runs of kube-scheduler on one control plane."""

    def __init__(
        self,
        plane: Plane,
        folder: Path,
        scheduler: Path,
        table: Table,
        *,
        settled: bool,
        percentage: int,
    ) -> None:
        self._percentage = percentage
        self._plane, self._folder, self._scheduler = plane, folder, scheduler
        self._table, self._settled = table, settled
        self._cluster = Cluster(plane)

    def measure(
        self, original: Path | None, *, nodes: int, pods: int, rounds: int, seconds: float
    ) -> None:
        """Fill in the rows of pods placed; the original's runs end after so many seconds."""
        self._cluster.nodes(nodes)
        modes = (LEAST, BEST, LEAST_ALL, ALL, ORIGINAL)
        try:
            for _ in range(rounds):
                self._run(None, nodes, pods, _PATIENCE)
                for contender in contenders(self._plane, self._folder, original, modes):
                    patience = seconds if contender.title == ORIGINAL else _PATIENCE
                    self._run(contender, nodes, pods, patience)
        finally:
            self._cluster.close()

    def _run(self, contender: Contender | None, nodes: int, pods: int, seconds: float) -> None:
        self._cluster.delete_pods()
        self._cluster.pods(_SIZES[number % len(_SIZES)] for number in range(pods))
        kubeconfig = self._plane.kubeconfig(SCHEDULER)
        file = scheduler_file(self._folder, kubeconfig, contender, self._percentage)
        flags = ("--config", file, "--secure-port", "0", "-v", "0")
        scheduler: Process | None = None
        if contender:
            contender.start()
            if self._settled:
                _settle(contender)
        try:
            with self._cluster.binds_seen() as times:
                scheduler = Process("kube-scheduler", (self._scheduler, *flags), self._folder)
                scheduler.wait(lambda: len(times) >= 1, "places no pod")
                before = self._used(contender)
                first = len(times)
                _finish(scheduler, times, pods, seconds)
                after = self._used(contender)
                count = len(times)
        finally:
            if scheduler:
                scheduler.kill()
            if contender:
                contender.stop()
        title = contender.title if contender else ALONE
        row = f"pods placed, {nodes:,} nodes"
        self._table.put(row, "/s", title, (count - 1) / (times[count - 1] - times[0]))
        used = {name: (after[name] - before[name]) / (count - first) * 1000 for name in after}
        for name, cost in {**used, "all together": sum(used.values())}.items():
            self._table.put(f"CPU for a pod placed: {name}", "ms", title, cost)

    def _used(self, contender: Contender | None) -> dict[str, float]:
        """CPU seconds by part."""
        cpu_by_process = {"kube-scheduler": usage.cpu_seconds(usage.started("kube-scheduler"))}
        cpu_by_process["API server, etcd"] = sum(
            usage.cpu_seconds(usage.started(name)) for name in _PLANE
        )
        if contender:
            pids = contender.own_pids()
            cpu_by_process["extender"] = usage.cpu_seconds(pids)
            cpu_by_process["extender's policies"] = usage.cpu_seconds(
                set(contender.pids()) - set(pids)
            )
        return cpu_by_process


def _settle(contender: Contender) -> None:
    """Return when the policies for the pods that wait are made and tried."""
    quiet = time.monotonic() + _QUIET
    while time.monotonic() < quiet:
        if set(contender.pids()) - set(contender.own_pids()):
            quiet = time.monotonic() + _QUIET
        time.sleep(0.1)


def _finish(scheduler: Process, times: list[float], pods: int, seconds: float) -> None:
    """Return when all pods are bound, or the time is over and enough are."""
    deadline = times[0] + seconds
    while len(times) < pods:
        scheduler.running()
        if time.monotonic() > deadline and len(times) >= _FEWEST:
            return
        if time.monotonic() > deadline + _PATIENCE:
            raise RuntimeError(f"{len(times)} of {pods} pods placed: {scheduler.last_lines()}")
        time.sleep(0.01)
