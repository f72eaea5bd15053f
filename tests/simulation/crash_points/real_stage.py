"""A cluster of one GPU over HTTP with real extender processes, where one bind can be stopped.

A scheduler asks for every pod that waits, again and again, through whichever process is ready.
After every write the units that pods truly hold are checked, from the objects alone.
"""

import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path

from gpushare_localcluster.api.objects import Object, Record
from tests.integration.cluster import LEASES, MEM, NODES, PODS, Cluster
from tests.integration.oracle import expected_inspect, over_capacity
from tests.integration.process import Extender
from tests.simulation.crash_points.points import SERVED, Point
from tests.support import faults
from tests.support.faults import Fault, FaultRequest
from tests.support.waiting import poll

UNITS = 16
LATE = 2.8
"""Seconds after which a late write is applied: the longest a server works on one is 3."""

_GIVEN_AWAY = {
    "metadata": {"name": "gpushare-extender"},
    "spec": {"holderIdentity": "", "leaseDurationSeconds": 1, "leaseTransitions": 3},
}


class RealStage:
    """The cluster. The first bind is stopped at `point` by `number`; fate: see story.py."""

    def __init__(self, folder: Path, point: Point, number: signal.Signals, fate: str) -> None:
        self.cluster = Cluster()
        self.node = self.cluster.node(devices=1, total=UNITS)
        self.cluster.create(LEASES, "kube-system", _GIVEN_AWAY)
        self.wrong: list[str] = []
        self.running: list[Extender] = []
        self._started: list[Extender] = []
        self._folder = folder
        self._point, self._number, self._fate = point, number, fate
        self._served = threading.Semaphore()
        self._ended = threading.Event()
        self._judge_bindings()
        self._scheduler = threading.Thread(target=self._schedule)
        if point in SERVED:
            self.victim = self.start()
            self.cluster.hook = self._stop_before if point is Point.K6 else None
        else:
            wrapper = "tests.simulation.crash_points.stoppable"
            self.victim = self.start(wrapper, point.name, number.name)

    def start(self, *program: str) -> Extender:
        """A new process, with that in place of the plain program."""
        kubeconfig = self.cluster.kubeconfig(self._folder)
        flags = ("--leadership", "lease")
        words = program or ("gpushare.cli.main",)
        started = Extender(self._folder, kubeconfig, *flags, program=words)
        self._started.append(started)
        self.running.append(started)
        return started

    def close(self) -> None:
        """End everything."""
        self._ended.set()
        if self._scheduler.ident is not None:
            self._scheduler.join()
        for extender in self._started:
            extender.kill()
        self.cluster.stop()

    def wait_stopped(self) -> None:
        """Return once the first process is dead, or asleep."""
        stat = Path(f"/proc/{self.victim.pid}/stat")

        def stopped() -> bool:
            if self._number is signal.SIGKILL:
                return self.victim.ended()
            return stat.read_text().rpartition(")")[2].split()[0] == "T"

        poll(stopped, "the point is reached")
        self.running.remove(self.victim)

    def wake(self) -> None:
        """Let the first process go on."""
        self.victim.signal(signal.SIGCONT)
        self.running.append(self.victim)

    def has_acted(self) -> bool:
        """Whether the stopped bind is over: the answer came, or the worker was ended."""
        log = self.victim.log
        return "pod=default/web" in log.partition(" bind ")[2] or "WORKER TIMEOUT" in log

    def restart_server(self) -> None:
        """Cut all connections and forget the history, so that everybody lists anew."""
        self.cluster.stop()
        self.cluster.store.compact()
        self.cluster.restart()
        self._judge_bindings()

    def begin_to_schedule(self) -> None:
        """From here on whatever waits is asked for."""
        self._scheduler.start()

    def bound(self) -> list[str]:
        """The names of the pods that are bound."""
        pods = self.cluster.all(PODS)
        return [str(pod["metadata"]["name"]) for pod in pods if pod["spec"].get("nodeName")]

    def there(self) -> list[str]:
        """The names of the pods."""
        return [str(pod["metadata"]["name"]) for pod in self.cluster.all(PODS)]

    def told(self, pattern: str) -> str:
        """The failure, with the logs of all processes."""
        return "\n".join([pattern, *(extender.log for extender in self._started)])

    def ready(self) -> list[Extender]:
        """The processes that are ready."""
        return [extender for extender in list(self.running) if extender.ready()]

    def _schedule(self) -> None:
        while not self._ended.wait(0.5):
            # The rival first: a device that is promised to the other pod would be handed out to the
            # rival.
            for pod in sorted(self.cluster.all(PODS), key=lambda pod: str(pod["metadata"]["name"])):
                if pod["spec"].get("nodeName"):
                    continue
                for extender in self.ready()[:1]:
                    # The process may end, and the API server too, at any time.
                    with suppress(OSError, HTTPException):
                        if extender.filter(pod, [self.node])["NodeNames"]:
                            extender.bind(pod, self.node)

    # -- the API server -------------------------------------------------------------------------

    def _judge_bindings(self) -> None:
        registry = self.cluster.server.registry
        bind = registry.bind

        def judged(namespace: str, name: str, body: Object, *, dry_run: bool = False) -> Record:
            record = bind(namespace, name, body, dry_run=dry_run)
            over = over_capacity(self.truth())
            if over:
                self.wrong.append(f"S1 {over}: {name} is bound")
            if self._point is Point.K7 and self._served.acquire(blocking=False):
                self._stop_victim()
            return record

        self._replace(registry, judged)

    @staticmethod
    def _replace(registry: object, bind: Callable[..., Record]) -> None:
        setattr(registry, "bind", bind)  # noqa: B010 -- a method of one object, not of its class

    def _stop_before(self, request: FaultRequest) -> Fault | None:
        binding = request.method == "POST" and request.path.endswith("/binding")
        if not binding or not self._served.acquire(blocking=False):
            return None
        self._stop_victim()
        fates = {"soon": None, "late": faults.apply_late(LATE), "never": faults.drop_before()}
        return fates[self._fate]

    def _stop_victim(self) -> None:
        self.victim.signal(self._number)

    def truth(self) -> dict[str, object]:
        """The inspect document that the API server's objects call for."""
        return expected_inspect(self.cluster.all(NODES), self.cluster.all(PODS), MEM)
