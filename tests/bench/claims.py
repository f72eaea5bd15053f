"""How fast claims are given out, beside the way by annotations and Kubernetes' own allocation.

On a real control plane, in turn: pods that ask by annotation and are bound by the extender, pods
with a claim that `gpushare serve --claims` allocates, and pods with the same claim of an ordinary
class, which kube-scheduler allocates. Each turn has nodes of its own, which go afterwards. Claims
are there before their pods; what counts is from the first pod's creation until the watch shows the
last one bound. kube-scheduler's client has no limit of requests. Only the ratios within one run are
to be trusted. Run as `python -m tests.bench.claims [--nodes 10] [--pods 150] [--rounds 3]
[--aside]`, with KUBERNETES_VERSION 1.37.0; two minutes.
"""

import argparse
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import yaml

from gpushare.kube.client import connect
from gpushare.kube.listwatch import ListWatch
from gpushare.kube.reflector import Reflector
from gpushare.wire.codec import Decoded, WatchEvent
from gpushare.wire.dra.claims import CLASS_ASIDE
from gpushare.wire.objects import PODS, Pod
from tests.bench.peers import usage
from tests.contract.apiserver.client import MERGE, Json
from tests.e2e.binaries import RELEASE, needed
from tests.e2e.claims import CLAIMS, CLASS, CLASSES, DRIVER, SLICES, ClaimWorld
from tests.e2e.extender import Extender
from tests.e2e.pair import HOME, printed
from tests.e2e.plane import ADMIN, SCHEDULER, Plane
from tests.e2e.processes import Process, until
from tests.e2e.world import account_token, give_lease_away
from tests.integration.process import free_port

_CARDS, _GIB, _ASKED = 8, 80, 4
_ALONE = 20
_AT_ONCE = 16
_OTHER = "other.example.com"
_PATIENCE = 120.0
_T = TypeVar("_T")
_R = TypeVar("_R")
WAYS = ("annotations", "claims", "Kubernetes' own")


class World(ClaimWorld):
    """A control plane with our process, and a kube-scheduler that calls it."""

    def __init__(self, plane: Plane, folder: Path, *, aside: bool = False) -> None:
        """aside: keep our class where kube-scheduler does not find it."""
        super().__init__(plane, folder)
        if aside:
            spec = self.api.get(f"{CLASSES}/{CLASS}").body["spec"]
            self.api.create(CLASSES, {"metadata": {"name": CLASS_ASIDE}, "spec": spec})
            self.api.delete(f"{CLASSES}/{CLASS}")
        self.scheduler.kill()
        port = free_port()
        text = printed(RELEASE, "--url", f"http://127.0.0.1:{port}/gpushare-scheduler")
        settings = yaml.safe_load(text.replace(HOME, str(plane.kubeconfig(SCHEDULER))))
        settings["clientConnection"] |= {"qps": 10_000, "burst": 10_000}
        settings["leaderElection"] = {"leaderElect": False}
        file = folder / "scheduler.yaml"
        file.write_text(yaml.safe_dump(settings))
        self.extender = Extender(
            folder,
            port,
            plane.kubeconfig("extender", account_token(self.api)),
            *("--scheduler-config", str(file), "--claims", DRIVER, "--leadership", "lease"),
        )
        give_lease_away(self.api)
        self.extender.start()
        command: list[str | Path] = [
            needed("kube-scheduler"),
            "--config",
            file,
            "--secure-port",
            "0",
        ]
        self.scheduler = Process("kube-scheduler", command, folder)
        self.ordinary = self.device_class(_OTHER)
        self.placed = _Bound(plane)

    def stop(self) -> None:
        self.placed.stop()
        self.extender.stop()
        super().stop()

    def cpu(self) -> dict[str, float]:
        """Seconds of CPU that each process has used."""
        running = {
            "kube-apiserver": self.plane.apiserver,
            "etcd": self.plane.etcd,
            "kube-scheduler": self.scheduler,
            "controllers": self.controllers,
            "gpushare": self.extender.process,
        }
        return {name: _cpu(each.pid) for name, each in running.items() if each}

    def nodes_of(self, way: str, count: int) -> None:
        """Make the nodes of a way."""

        def make(_: int) -> None:
            if way == WAYS[0]:
                self.objects.node(devices=_CARDS, units=_GIB)
            else:
                driver = DRIVER if way == WAYS[1] else _OTHER
                self.node(*[_GIB] * _CARDS, driver=driver)

        at_once(make, range(count))

    def wipe(self) -> None:
        """Remove all that a turn has made; the controller of claims alone would take long."""
        self.objects.clear()
        paths = [
            f"{path}/{item['metadata']['name']}"
            for path in (SLICES, CLAIMS)
            for item in self.api.get(path).body["items"]
        ]

        def remove(path: str) -> None:
            self.api.patch(path, {"metadata": {"finalizers": None}}, MERGE)
            self.api.delete(path)

        at_once(remove, paths)

    def makers(self, way: str, count: int) -> list[Callable[[], Json]]:
        """Return what makes each pod; their claims are made now."""
        if way == WAYS[0]:
            return [lambda: self.objects.pod(_ASKED)] * count
        of = CLASS if way == WAYS[1] else self.ordinary
        names = at_once(lambda _: self.claim(_ASKED, of), range(count))
        return [lambda name=name: self.pod(name) for name in names]  # type: ignore[misc]


class _Bound:
    """When the watch showed each pod on a node first, by uid."""

    def __init__(self, plane: Plane) -> None:
        self.at: dict[str, float] = {}
        self._changed = threading.Condition()
        client = connect(str(plane.kubeconfig(ADMIN)), None, pool_size=2, user_agent="bench")
        self._reflector = Reflector(client, ListWatch("/api/v1/pods", PODS), self)
        self._reflector.start()
        until(lambda: self._reflector.status.synced, "pods are not listed")

    def stop(self) -> None:
        self._reflector.stop()

    def replace(self, pages: Sequence[Decoded[Pod]], started: float) -> None:
        for page in pages:
            for pod in page.items:
                self._see(pod)

    def apply(self, event: WatchEvent[Pod]) -> None:
        if event.object:
            self._see(event.object)

    def wait(self, pods: Sequence[Json]) -> float:
        """Return when the last of these pods was bound."""
        uids = [pod["metadata"]["uid"] for pod in pods]
        with self._changed:
            if not self._changed.wait_for(lambda: self.at.keys() >= {*uids}, _PATIENCE):
                left = len(set(uids) - self.at.keys())
                raise SystemExit(f"{left} of {len(uids)} pods are not bound")
        return max(self.at[uid] for uid in uids)

    def _see(self, pod: Pod) -> None:
        uid = pod.metadata and pod.metadata.uid
        if uid and pod.spec and pod.spec.node_name and uid not in self.at:
            with self._changed:
                self.at[uid] = time.monotonic()
                self._changed.notify_all()


def _cpu(pid: int) -> float:
    """Seconds of CPU of a process and its children."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return usage.cpu_seconds([pid, *map(int, children)])


def at_once(do: Callable[[_T], _R], each: Sequence[_T]) -> list[_R]:
    """Do it for each, in threads."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(do, each))


@dataclass(frozen=True, slots=True)
class Row:
    """What a turn has measured."""

    rate: float
    """Pods placed a second."""
    alone: float
    """Milliseconds of one alone, median."""
    cpu: Mapping[str, float]
    """Milliseconds of CPU a pod, by process, while many came at once."""


def measure(world: World, way: str, nodes: int, pods: int) -> Row:
    """Measure one way once."""
    world.nodes_of(way, nodes)
    time.sleep(2.0)  # the watches have shown the nodes
    taken: list[float] = []
    for make in world.makers(way, _ALONE):
        begun = time.monotonic()
        taken.append((world.placed.wait([make()]) - begun) * 1000)
    makers = world.makers(way, pods)
    time.sleep(1.0)
    used, begun = world.cpu(), time.monotonic()
    made = at_once(lambda make: make(), makers)
    rate = pods / (world.placed.wait(made) - begun)
    cpu = {name: (now - used[name]) * 1000 / pods for name, now in world.cpu().items()}
    world.wipe()
    row = Row(rate, statistics.median(taken), cpu)
    print(f"{way}: {rate:.0f} pods/s, {row.alone:.1f} ms", file=sys.stderr, flush=True)
    return row


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(prog="claims", description=__doc__)
    parser.add_argument("--nodes", type=int, default=10)
    parser.add_argument("--pods", type=int, default=150)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--aside", action="store_true", help="keep our class aside")
    asked = parser.parse_args()
    found: dict[str, list[Row]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as folder:
        plane = Plane(Path(folder), needed("etcd"), needed("kube-apiserver"))
        plane.start()
        world = World(plane, Path(folder) / "world", aside=asked.aside)
        try:
            for at in range(asked.rounds + 1):
                for way in WAYS:
                    row = measure(world, way, asked.nodes, asked.pods)
                    if at:  # the first round warms up
                        found[way].append(row)
        finally:
            world.stop()
            plane.stop()
    print(f"\n{asked.nodes} nodes, {asked.pods} pods, median of {asked.rounds} rounds")
    _tables(found)


def _tables(found: Mapping[str, Sequence[Row]]) -> None:
    print(f"{'':18}{'pods/s':>8}{'ratio':>7}{'alone ms':>10}{'ratio':>7}   pods/s of each round")
    rates = {way: statistics.median(row.rate for row in rows) for way, rows in found.items()}
    alone = {way: statistics.median(row.alone for row in rows) for way, rows in found.items()}
    own = WAYS[2]
    for way, rows in found.items():
        each = ", ".join(f"{row.rate:.0f}" for row in rows)
        ratios = rates[way] / rates[own], alone[way] / alone[own]
        print(
            f"{way:18}{rates[way]:8.0f}{ratios[0]:7.2f}{alone[way]:10.1f}{ratios[1]:7.2f}   {each}"
        )
    names = list(found[own][0].cpu)
    print("\nms of CPU a pod".ljust(19) + "".join(f"{name:>16}" for name in (*names, "all")))
    for way, rows in found.items():
        used = [statistics.median(row.cpu[name] for row in rows) for name in names]
        print(f"{way:18}" + "".join(f"{each:16.2f}" for each in (*used, sum(used))))


if __name__ == "__main__":
    main()
