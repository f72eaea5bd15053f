"""A cluster of one GPU and extender processes in virtual time, where one bind can be stopped.

The API server answers at once, except at the stop; the scheduler retries every pending
pod through any process that is ready. After every write the units
that pods truly hold are checked, from the objects alone.
"""

import json
import logging
import math
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

from gpushare.core.pairing import Pairing
from gpushare.extender.follow.auditor import Finding
from gpushare.wire.inspect import encode_inspect
from gpushare_localcluster.api.deletion import DeleteOptions
from gpushare_localcluster.api.resources import NODES, PODS
from gpushare_localcluster.api.status import StatusError
from tests.integration.cluster import LEASES
from tests.integration.oracle import expected_inspect, over_capacity
from tests.simulation.leases import SchedulerLease
from tests.simulation.network import Network, Request
from tests.simulation.replica import Alarms, Replica, ReplicaShape
from tests.simulation.server import Server
from tests.simulation.tasks import Task, Tasks

NODE, MEM, COUNT = "n0", "aliyun.com/gpu-mem", "aliyun.com/gpu-count"
UNITS = 16
NAMESPACE = "default"
_BOOKMARK_EVERY = 60.0
_LONGEST = 150.0
"""Seconds until the cluster must be right."""

_ROUND = 2.0
"""Seconds between two rounds of the scheduler."""

_GIVES_UP = 5.0
"""Seconds after which kube-scheduler retries (httpTimeout)."""


_GIVEN_AWAY = {
    "metadata": {"name": "gpushare-extender"},
    "spec": {"holderIdentity": "", "leaseDurationSeconds": 1, "leaseTransitions": 3},
}


def _none(_: Request) -> bool:
    return False


class Stage:
    """The cluster. wiring: "lease" or "scheduler", as for --leadership.

    keep: requests that the server does not handle yet. carry: requests with answers on the way.
    cut: processes that nothing comes from and nothing gets to.
    """

    def __init__(self, wiring: str) -> None:
        self.tasks = Tasks()
        self.server = Server(self.tasks)
        self.replicas: list[Replica] = []
        self.lease = SchedulerLease(self.server, self.tasks)
        self.network = Network(self.tasks, self.server, self._applied, lambda _: None, Counter())
        self.keep: Callable[[Request], bool] = _none
        self.carry: Callable[[Request], bool] = _none
        self.cut: set[Replica] = set()
        self.wrong: list[str] = []
        self.bound_by: list[tuple[str, float]] = []
        self._shape = ReplicaShape(Pairing.AUTO, wiring, "device-bestfit", False, False, 500)
        self._started = 0
        self._shown: tuple[object, ...] = ()
        self._next_round = 0.0
        self._bookmarks = self.tasks.now + _BOOKMARK_EVERY
        self._asked: dict[str, float] = {}
        self.alarms = Alarms()
        self._log = logging.getLogger("gpushare")
        self._log_before = (self._log.level, self._log.propagate)
        self._log.setLevel(logging.ERROR)
        self._log.propagate = False
        self._log.addHandler(self.alarms)
        amounts = {"cpu": "8", "memory": "64Gi", "pods": "110", MEM: str(UNITS), COUNT: "1"}
        status = {"capacity": amounts, "allocatable": amounts}
        self.server.registry.create(NODES, "", {"metadata": {"name": NODE}, "status": status})
        if wiring == "scheduler":
            self.lease.take("host-0")
        else:
            self.server.registry.create(LEASES, "kube-system", _GIVEN_AWAY)

    def close(self) -> None:
        """End everything."""
        for replica in self.replicas:
            self.tasks.kill(replica)
        self._log.removeHandler(self.alarms)
        self._log.setLevel(self._log_before[0])
        self._log.propagate = self._log_before[1]

    # -- processes ------------------------------------------------------------------------------

    def start(self, host: str) -> Replica:
        """A new process on that host."""
        self._started += 1
        name = f"{host}-{self._started}"
        audit = partial(self._audited, name)
        replica = Replica(name, host, self._shape, self.tasks, self.network, 0.0, audit)
        self.replicas.append(replica)
        replica.start()
        return replica

    def kill(self, replica: Replica) -> None:
        """SIGKILL: the connections are closed; requests on the way may still be applied."""
        self.tasks.kill(replica)
        self.replicas.remove(replica)
        self.network.drop(replica)

    def leader(self) -> Replica | None:
        """The process that is ready."""
        awake = [replica for replica in self.replicas if not replica.frozen]
        return next((replica for replica in awake if replica.ready()), None)

    def _audited(self, name: str, finding: Finding, healed: bool) -> None:
        self.wrong.append(f"X2 {name} tells of {finding}, healed: {healed}")

    # -- pods -----------------------------------------------------------------------------------

    def create(self, name: str, units: int) -> str:
        """The uid of a new pod."""
        limits = {"limits": {MEM: str(units)}}
        spec = {"containers": [{"name": "c", "image": "i", "resources": limits}]}
        record = self.server.registry.create(
            PODS, NAMESPACE, {"metadata": {"name": name}, "spec": spec}
        )
        return str(record.body["metadata"]["uid"])

    def delete(self, name: str) -> None:
        """Delete the pod at once, if present."""
        if self.pod(name):
            self.server.registry.delete(PODS, NAMESPACE, name, DeleteOptions(0))

    def pod(self, name: str) -> dict[str, Any]:
        """The pod's object; {} where there is none."""
        try:
            return dict(self.server.registry.get(PODS, NAMESPACE, name).body)
        except StatusError:
            return {}

    def node_of(self, name: str) -> str:
        """The node of the pod; "" if unbound or deleted."""
        return str(self.pod(name).get("spec", {}).get("nodeName", ""))

    def there(self) -> list[str]:
        """The names of the pods."""
        records = self.server.store.records(PODS.table)[0]
        return [str(record.body["metadata"]["name"]) for record in records]

    def bound(self) -> list[str]:
        """The names of the pods that are bound."""
        return [name for name in self.there() if self.node_of(name)]

    # -- calls ----------------------------------------------------------------------------------

    def call_bind(self, replica: Replica, name: str) -> Task | None:
        """Ask for the pod as kube-scheduler does: filter, and where there is room, bind."""
        record = self.server.registry.get(PODS, NAMESPACE, name)
        uid = record.body["metadata"]["uid"]
        names = {"PodName": name, "PodNamespace": NAMESPACE, "PodUID": uid}
        body = json.dumps({**names, "Node": NODE}).encode()
        verdict = json.loads(
            replica.service.filter(b'{"Pod":%s,"NodeNames":["n0"]}' % record.encoded())
        )
        if verdict["Error"] or not verdict["NodeNames"]:
            return None

        def bind() -> None:
            error = json.loads(replica.service.bind(body))["Error"]
            now = self.pod(name)
            if not error and now and now["metadata"]["uid"] == uid and not self.node_of(name):
                self.wrong.append(f"X1 {name} is said bound and is not")

        return replica.call(f"bind {name}", bind)

    def _ask_for_all(self, first: str) -> None:
        """A round of the scheduler: who waits is asked for, `first` first."""
        for name in sorted(self.there(), key=lambda name: name != first):
            leader, before = self.leader(), self._asked.get(name, -math.inf)
            if leader and not self.node_of(name) and self.tasks.now >= before + _GIVES_UP:
                task = self.call_bind(leader, name)
                self.turn()
                if task is not None and not task.ended:
                    self._asked[name] = self.tasks.now

    # -- time -----------------------------------------------------------------------------------

    def turn(self) -> None:
        """Let everything happen that needs no time."""
        for _ in range(1000):
            if not (self._serve() or self._show() or self.tasks.run_due()):
                return
        raise AssertionError("it never comes to rest")

    def pass_time(self, seconds: float, first: str = "") -> None:
        """Let time pass; where a pod is named the scheduler asks for all, that one first."""
        end = self.tasks.now + seconds
        while True:
            self.turn()
            due = min(self.tasks.next_timer(), self.lease.next_renewal(), self._bookmarks)
            if first:
                due = min(due, self._next_round)
            if due > end:
                break
            self.tasks.now = max(self.tasks.now, due)
            self.lease.renew()
            if self.tasks.now >= self._bookmarks:
                self._bookmarks = self.tasks.now + _BOOKMARK_EVERY
                for stream in self.network.streams:
                    stream.feed.bookmark()
            if first and self.tasks.now >= self._next_round:
                self._next_round = self.tasks.now + _ROUND
                self._ask_for_all(first)
        self.tasks.now = end
        self.turn()

    def until(self, condition: Callable[[], object], condition_name: str, first: str = "") -> None:
        """Let time pass until the condition is true; fail if it never is."""
        end = self.tasks.now + _LONGEST
        self.turn()
        while not condition():
            assert self.tasks.now < end, f"L4 not within {_LONGEST} s: {condition_name}"
            self.pass_time(0.5, first)

    def _serve(self) -> bool:
        for request in list(self.network.waiting):
            if request.client in self.cut:
                continue
            if request.answer is None and not self.keep(request):
                request.answer = self.network.serve(request)
                return True
            if request.answer is None or request.client.frozen or self.carry(request):
                continue
            self.network.deliver(request)
            return True
        return False

    def _show(self) -> bool:
        away = self.cut
        streams = [
            stream
            for stream in self.network.streams
            if not stream.client.frozen and stream.client not in away
        ]
        state = (self.server.store.version, self._bookmarks, streams)
        if state == self._shown:
            return False
        for stream in streams:
            while stream in self.network.streams and stream.feed.behind():
                stream.show(stream.feed.take())
        self._shown = state
        return True

    # -- invariants ----------------------------------------------------------------------------

    def _applied(self, request: Request, answer: object) -> None:
        if request.method == "POST" and request.path.endswith("/binding"):
            if isinstance(answer, bytes):
                self.bound_by.append((request.client.identity, self.tasks.now))
            over = over_capacity(self.truth())
            if over:
                self.wrong.append(f"S1 {over} at {self.tasks.now} by {request.client.identity}")

    def truth(self) -> dict[str, Any]:
        """The inspect document that the API server's objects call for."""
        nodes = [record.body for record in self.server.store.records(NODES.table)[0]]
        pods = [record.body for record in self.server.store.records(PODS.table)[0]]
        return expected_inspect(nodes, pods, MEM)

    def check(self) -> None:
        """Once all is quiet: every process has the books that the objects call for, no doubts."""
        self.until(lambda: self._rests() and self.leader(), "all is settled")
        assert self.wrong == []
        assert self.alarms.said == []
        for replica in self.replicas:
            replica.ledger.check()
            if replica.ready():
                # Not by the service, whose document may be of the check before.
                assert json.loads(encode_inspect(replica.ledger.dump())) == self.truth(), "L1"

    def _rests(self) -> bool:
        if self.network.late or any(stream.feed.behind() for stream in self.network.streams):
            return False
        return not any(replica.ledger.counts()["assumed"] for replica in self.replicas)
