"""`python -m tests.simulation.threads --seconds 60`: the books under many real threads.

The production objects, with threads switched as often as Python can: filter, bind (now and then two
of one pod), pods deleted at any time, watches that list anew, the settling of doubts, audits. Every
change of the API server's own log is judged: no device may ever hold more than its capacity.
"""

import argparse
import json
import logging
import math
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any

from gpushare.core.policy import load_policy
from gpushare.core.ranking import Ranking
from gpushare.errors import NotReady
from gpushare.extender.follow.readiness import Readiness, Source
from gpushare.extender.follow.watch_handlers import NodeEventHandler, PodEventHandler
from gpushare.extender.managed_resources import ManagedResource, ManagedResources
from gpushare.extender.service import Service
from gpushare.extender.verbs.bind.binder import Binder
from gpushare.extender.verbs.tickets import BindSlots
from gpushare.kube.listwatch import ListWatch, Timing
from gpushare.kube.reflector import Reflector
from gpushare.ledger import Ledger
from gpushare.wire.annotations import ALIYUN
from gpushare.wire.objects import NODES as NODE_OBJECTS
from gpushare.wire.objects import PODS as POD_OBJECTS
from gpushare_localcluster.api.deletion import DeleteOptions
from gpushare_localcluster.api.objects import Change
from gpushare_localcluster.api.status import StatusError
from gpushare_localcluster.api.store import Store
from tests.integration.cluster import COUNT, MEM, NODES, PODS, Json
from tests.integration.oracle import asked, expected_inspect, placement
from tests.integration.verbs import bind_args, filter_args
from tests.simulation.threads_api import ThreadsApi
from tests.support.waiting import poll

_LIVE = (("fieldSelector", "status.phase!=Succeeded,status.phase!=Failed"),)
_QUICK = Timing(pause=0.02, longest_pause=0.2, relist_spacing=0.05)
DEVICES, UNITS = 4, 16


@dataclass
class Truth:
    """The units that pods hold, change by change, by the API server's log alone."""

    store: Store
    wrong: list[str] = field(default_factory=list)
    changes: int = 0
    _holding: dict[str, tuple[str, dict[int, int]]] = field(default_factory=dict)
    _used: Counter[tuple[str, int]] = field(default_factory=Counter)
    _position: int = 1

    def follow(self) -> None:
        """Take over all changes since the last call."""
        records, self._position = self.store.since(PODS.table, self._position)
        self.changes += len(records)
        for change in records:
            self._take(change)

    def _take(self, change: Change) -> None:
        pod: Any = change.record.body
        uid, node = pod["metadata"]["uid"], pod["spec"].get("nodeName")
        before = self._holding.pop(uid, None)
        if before:
            for device, units in before[1].items():
                self._used[before[0], device] -= units
        if change.type == "DELETED" or not node:
            return
        shares = placement(pod, MEM, asked(pod, MEM))
        if before and before != (node, shares):
            self.wrong.append(f"{uid} moved from {before} to {node} {shares}")
        self._holding[uid] = (node, shares)
        for device, units in shares.items():
            self._used[node, device] += units
            if self._used[node, device] > UNITS:
                self.wrong.append(f"{node}/{device} holds {self._used[node, device]} with {uid}")


class ThreadCrowd:
    """The cluster, our process, and all callers. bound: number of answered binds."""

    def __init__(self, nodes: int, threads: int, faults: float) -> None:
        self.store = Store(history=10_000_000)
        self.truth = Truth(self.store)
        self.api = ThreadsApi(self.store, faults)
        self.nodes = [f"node-{number}" for number in range(nodes)]
        amounts = {"cpu": "900", "memory": "900Gi", MEM: str(DEVICES * UNITS), COUNT: str(DEVICES)}
        status = {"capacity": amounts, "allocatable": amounts}
        for name in self.nodes:
            self.api.registry.create(NODES, "", {"metadata": {"name": name}, "status": status})
        self.ledger = Ledger()
        rankings = {"device-bestfit": Ranking(load_policy("device-bestfit"))}
        resources = ManagedResources(
            (ManagedResource(ALIYUN, self.ledger, rankings, "device-bestfit"),)
        )
        pods = ListWatch("/api/v1/pods", POD_OBJECTS, _LIVE, _QUICK)
        self.pods = Reflector(self.api, pods, PodEventHandler(resources))
        list_watch = ListWatch("/api/v1/nodes", NODE_OBJECTS, timing=_QUICK)
        reflector = Reflector(self.api, list_watch, NodeEventHandler(resources, "GiB"))
        self.readiness = Readiness({"nodes": Source(reflector), "pods": Source(self.pods)}, None)
        self.binder = Binder(self.api, resources, lambda: math.inf)
        self.service = Service(
            resources,
            self.binder,
            not_ready=self.readiness.not_ready,
            bind_slots=BindSlots(threads),
        )
        self.answers: Counter[str] = Counter()
        self.raised: list[BaseException] = []
        self._threads = threads
        self._recent: list[tuple[Json, str]] = []
        self._ended = threading.Event()

    def run(self, seconds: float) -> None:
        """Let everybody loose, then see that all comes right. Raises AssertionError."""
        self.readiness.start()
        try:
            poll(lambda: not self.readiness.not_ready(), "the books are filled")
            self._loose(seconds)
            assert self.raised == [], self.raised[:3]
            self._come_right()
        finally:
            self.readiness.stop()

    def _loose(self, seconds: float) -> None:
        work: list[Callable[[], None]] = [self._judge, self._settle, self._audit, self._relist]
        work += [self._client(number) for number in range(self._threads)]
        threads = [threading.Thread(target=self._guarded, args=(task,)) for task in work]
        for thread in threads:
            thread.start()
        self._ended.wait(seconds)
        self._ended.set()
        for thread in threads:
            thread.join()

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            self.raised.append(error)
            self._ended.set()

    # -- actors -------------------------------------------------------------------------------

    def _client(self, number: int) -> Callable[[], None]:
        chance = Random(number)

        def work() -> None:
            mine: list[Json] = []
            while not self._ended.is_set():
                mine.append(self._create(chance, f"pod-{number}-{chance.getrandbits(64)}"))
                self._place(chance, mine[-1])
                if self._recent and chance.random() < 0.3:
                    self._bind(*chance.choice(self._recent))
                while len(mine) > chance.randrange(4):
                    self._delete(mine.pop(chance.randrange(len(mine))))
            for pod in mine:
                self._delete(pod)

        return work

    def _create(self, chance: Random, name: str) -> Json:
        limits = {"limits": {MEM: str(chance.randint(1, 9))}}
        spec = {"containers": [{"name": "c", "image": "i", "resources": limits}]}
        body = {"metadata": {"name": name}, "spec": spec}
        return dict(self.api.registry.create(PODS, "default", body).body)

    def _place(self, chance: Random, pod: Json) -> None:
        for _ in range(3):
            answer = self.service.filter(json.dumps(filter_args(pod, self.nodes)).encode())
            fit = json.loads(answer)["NodeNames"]
            if not fit:
                self.answers["no room"] += 1
                return
            node = chance.choice(fit)
            self._recent = [*self._recent[-20:], (pod, node)]
            if self._bind(pod, node):
                return

    def _bind(self, pod: Json, node: str) -> bool:
        error = json.loads(self.service.bind(json.dumps(bind_args(pod, node)).encode()))["Error"]
        self.answers["refused" if error else "bound"] += 1
        return not error

    def _delete(self, pod: Json) -> None:
        meta = pod["metadata"]
        with suppress(StatusError):
            options = DeleteOptions(0, meta["uid"])
            self.api.registry.delete(PODS, "default", meta["name"], options)

    def _judge(self) -> None:
        while not self._ended.wait(0.01):
            self.truth.follow()

    def _settle(self) -> None:
        while not self._ended.wait(0.02):
            self.api.apply_late()
            self.binder.settle_overdue()

    def _audit(self) -> None:
        while not self._ended.wait(0.01):
            # Not whether a device is overfull in the books: a pod that was read to be gone may be
            # delivered once more by a late watch, when the room belongs to another pod already.
            self.ledger.check()
            with suppress(NotReady):
                self.service.inspect(None, None)

    def _relist(self) -> None:
        while not self._ended.wait(0.3):
            self.pods.request_relist()

    # -- the end --------------------------------------------------------------------------------

    def _come_right(self) -> None:
        poll(lambda: self.api.apply_late() == 0, "late writes are applied")
        poll(self._agrees, lambda: f"the books are wrong: {self.ledger.counts()}", 60.0)
        self.ledger.check()
        self.truth.follow()
        assert self.truth.wrong == [], self.truth.wrong[:3]

    def _agrees(self) -> bool:
        self.binder.settle_overdue()
        if self.readiness.not_ready():
            return False
        nodes = [dict(record.body) for record in self.store.records(NODES.table)[0]]
        pods = [dict(record.body) for record in self.store.records(PODS.table)[0]]
        books = json.loads(self.service.inspect(None, None))
        expected: Json = expected_inspect(nodes, pods, MEM)
        return bool(books == expected and not self.ledger.counts()["assumed"])


@contextmanager
def switching_often() -> Iterator[None]:
    """Threads switch as often as Python can, and intended errors are not logged."""
    before, log = sys.getswitchinterval(), logging.getLogger("gpushare")
    level = log.level
    sys.setswitchinterval(1e-6)
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
        log.setLevel(level)


def main() -> int:
    """The exit code: 1 where a promise was broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--threads", type=int, default=64)
    options = parser.parse_args()
    for nodes in (1, 16):
        crowd = ThreadCrowd(nodes, options.threads, 0.1)
        with switching_often():
            crowd.run(options.seconds / 2)
        summary = ", ".join(f"{count} {event}" for event, count in sorted(crowd.answers.items()))
        print(f"{options.threads} threads, {nodes} nodes: {summary}; {crowd.truth.changes} changes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
