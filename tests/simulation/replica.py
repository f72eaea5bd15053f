"""One process of ours: the production objects, wired like in gpushare.extender.process.

The threads are tasks, the clock is the story's, the API server is the simulated one. Everything
else is the production code itself.
"""

import logging
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import Any, cast

from gpushare.core.pairing import Pairing
from gpushare.core.policy import load_policy
from gpushare.core.ranking import Ranking
from gpushare.extender.follow.auditor import AUDIT_INTERVAL, Auditor, Report
from gpushare.extender.follow.readiness import Readiness, Source
from gpushare.extender.follow.watch_handlers import (
    NodeEventHandler,
    PodEventHandler,
    UnhealthyEventHandler,
)
from gpushare.extender.managed_resources import ExtenderScope, ManagedResource, ManagedResources
from gpushare.extender.service import Service
from gpushare.extender.verbs.bind.binder import Binder
from gpushare.extender.verbs.bind.transaction import BUDGET
from gpushare.extender.verbs.filter import FilterOptions
from gpushare.extender.verbs.holds import FLOOR
from gpushare.extender.verbs.tickets import BindSlots
from gpushare.extender.verbs.wait_budget import WaitBudget
from gpushare.kube.election import Elector, SchedulerLease
from gpushare.kube.lease_runner import LeaseRunner
from gpushare.kube.listwatch import ListWatch, Timing
from gpushare.kube.reflector import Reflector
from gpushare.ledger import Changes, Ledger
from gpushare.wire.annotations import ALIYUN
from gpushare.wire.objects import CONFIG_MAPS, NODES, PODS
from tests.simulation.network import Network, SimApi
from tests.simulation.server import EPOCH
from tests.simulation.tasks import Task, Tasks, Wake

NAMESPACE = "kube-system"
PATHS = {
    "nodes": "/api/v1/nodes",
    "pods": "/api/v1/pods",
    "configmaps": f"/api/v1/namespaces/{NAMESPACE}/configmaps",
}
LEASE_NAMES = {"lease": "gpushare-extender", "scheduler": "kube-scheduler"}
_LIVE_PODS = (("fieldSelector", "status.phase!=Succeeded,status.phase!=Failed"),)
POLICIES = {name: load_policy(name) for name in ("device-bestfit", "binpack", "spread")}
SERVED = "default-scheduler"
"""The scheduler that calls the process; the processes of some stories know the name."""
AUDIT = "audit"
"""The name of the audit thread: deliveries to this thread are not for the books."""

_SETTLE_EVERY = 1.0
_LOOK_EVERY = 0.1
"""Seconds between two looks for the end of a thread."""
_KEPT = 1 / 3
"""Of how many looks into crowded books a thread is kept waiting."""


class SinkFault(Exception):
    """An exception in the receiver of a delivery, thrown by the story."""


@dataclass(frozen=True, slots=True)
class ReplicaShape:
    """How the processes of a story are set up.

    slow: seconds to take over one object of a list. crowded: upper bound of the seconds that a
    thread which handles a request, or audits, waits for other threads at each call of the books.
    audit: seconds between two audits. scoped: the process knows whose schedulers' pods are ours.
    """

    pairing: Pairing
    leadership: str
    policy: str
    best_only: bool
    patient: bool
    page_limit: int
    slow: float = 0.0
    crowded: float = 0.0
    audit: float = AUDIT_INTERVAL
    scoped: bool = False


class _Books(Ledger):
    """Lists are short in a story, and are to be taken over in parts all the same."""

    CHUNK = 2


class _Crowded:
    """The books as seen by a thread while other threads may run first.

    turn: called before each call of the books. Changes meanwhile fall between two calls
    of one thread, as at any lock.
    """

    def __init__(self, ledger: Ledger, turn: Callable[[], None]) -> None:
        self._ledger = ledger
        self._turn = turn

    def __getattr__(self, name: str) -> Any:
        self._turn()
        return getattr(self._ledger, name)


class _Slowly(list[Any]):
    """Objects with a pause before each."""

    def __init__(self, objects: Sequence[Any], pause: Callable[[], None]) -> None:
        super().__init__(objects)
        self._pause = pause

    def __iter__(self) -> Iterator[Any]:
        for item in super().__iter__():
            self._pause()
            yield item


class FaultySink:
    """A sink that fails if the story says so, and takes time for lists.

    pause: called before each object of a list; None: lists are taken over in no time. taken: called
    when the books hold a list.
    """

    def __init__(self, sink: Any, pause: Callable[[], None] | None) -> None:
        self._sink = sink
        self.pause = pause
        self.taken: Callable[[], None] = lambda: None
        self.failures = 0
        self.failed = False

    def replace(self, pages: Sequence[Any], started: float) -> None:
        """Hand on, or fail."""
        self._fail()
        if self.pause is not None:
            pages = [replace(page, items=_Slowly(page.items, self.pause)) for page in pages]
        self._sink.replace(pages, started)
        self.taken()

    def apply(self, event: Any) -> None:
        """Hand on, or fail."""
        self._fail()
        self._sink.apply(event)

    def _fail(self) -> None:
        if self.failures:
            self.failures -= 1
            self.failed = True
            raise SinkFault


class _Joined(threading.Thread):
    """A task where production code waits for the end of a started thread."""

    def __init__(self, tasks: Tasks, task: Task) -> None:
        super().__init__()
        self._tasks, self._task = tasks, task

    def is_alive(self) -> bool:
        """Whether the task has not ended."""
        return not self._task.ended

    def join(self, timeout: float | None = None) -> None:
        """Wait for the end of the task."""
        end = self._tasks.now + (math.inf if timeout is None else timeout)
        while self.is_alive() and self._tasks.now < end:
            self._tasks.sleep(_LOOK_EVERY)


class Replica:
    """One process, from start to end. frozen: stopped by SIGSTOP.

    ending: the process was told to end, and answers only earlier requests. ended: only
    the removal remains.
    """

    def __init__(  # noqa: PLR0917 -- each is of its own type
        self,
        identity: str,
        host: str,
        shape: ReplicaShape,
        tasks: Tasks,
        network: Network,
        skew: float,
        tell: Report,
        created: Callable[[int], None] = lambda cpu: None,
    ) -> None:
        self.identity, self.host = identity, host
        self.frozen = self.ending = self.ended = False
        self._calls: list[Task] = []
        self._tasks = tasks
        self._jitter = 0
        self._skew = skew
        self._crowded, self._turns = shape.crowded, Random(identity)
        api = SimApi(network, self)
        self.ledger: Ledger = _Books(shape.pairing)
        rankings = {name: Ranking(policy) for name, policy in POLICIES.items()}
        resource = ManagedResource(ALIYUN, self.ledger, rankings, shape.policy)
        scope = ExtenderScope(schedulers=frozenset({SERVED} if shape.scoped else ()))

        def learn(_: ManagedResource, changes: Changes, first: bool) -> None:
            for pod, on_node in changes.new:
                if not (first and on_node):
                    created(pod.request.cpu)

        self.resources = ManagedResources((resource,), scope)
        if shape.crowded:
            resource = replace(
                resource, ledger=cast(Ledger, _Crowded(self.ledger, self._wait_turn))
            )
        resources = ManagedResources((resource,), scope)
        pause = partial(tasks.sleep, shape.slow) if shape.slow else None
        self.sinks = {
            "nodes": FaultySink(NodeEventHandler(self.resources, "GiB"), pause),
            "pods": FaultySink(
                PodEventHandler(self.resources, learn, clock=tasks.clock),
                pause,
            ),
            "configmaps": FaultySink(UnhealthyEventHandler(self.resources), pause),
        }
        timing = Timing(page_limit=shape.page_limit)
        machines: dict[str, Any] = {
            "nodes": ListWatch(PATHS["nodes"], NODES, timing=timing),
            "pods": ListWatch(PATHS["pods"], PODS, _LIVE_PODS, timing),
            "configmaps": ListWatch(PATHS["configmaps"], CONFIG_MAPS, timing=timing),
        }
        wake: Callable[[], Wake] = lambda: Wake(tasks)  # noqa: E731 -- it goes to five places
        self.reflectors = {
            name: Reflector(
                api,
                machine,
                self.sinks[name],
                clock=tasks.clock,
                jitter=self._next_jitter,
                wake=wake,
            )
            for name, machine in machines.items()
        }
        self.leading = self._leads(shape.leadership, api, wake)
        sources = {
            name: Source(reflector, optional=name == "configmaps")
            for name, reflector in self.reflectors.items()
        }
        self.readiness = Readiness(
            sources,
            self.leading,
            tasks.clock,
            is_settled=lambda: self.binder.settled(),  # noqa: PLW0108 -- made below
        )
        self.binder = Binder(
            api, resources, self.readiness.leads_until, tasks.clock, lambda: int(self._wall() * 1e9)
        )
        self.new_auditor = partial(
            Auditor,
            api,
            resources,
            "GiB",
            not_ready=self.readiness.not_ready,
            watch_version=self.readiness.last_resource_version,
            clock=tasks.clock,
            interval=shape.audit,
            page=shape.page_limit,
            event=wake,
        )
        self.auditor = self.new_auditor(report=tell)
        self.service = Service(
            resources,
            self.binder,
            not_ready=self.readiness.not_ready,
            bind_slots=BindSlots(64, max_wait=0),
            filter_options=FilterOptions(
                best_only=shape.best_only,
                room_wait=WaitBudget(clock=tasks.clock, sleep=tasks.sleep)
                if shape.patient
                else None,
                hold_wait=WaitBudget(FLOOR, clock=tasks.clock, sleep=tasks.sleep)
                if shape.patient
                else None,
            ),
            clock=tasks.clock,
            wall=self._wall,
        )

    def start(self) -> None:
        """Start the threads."""
        for name, reflector in self.reflectors.items():
            self._tasks.spawn(self, name, reflector.run)
        if self.leading is not None:
            task = self._tasks.spawn(self, "leading", self.leading.run)
            self.leading._thread = _Joined(self._tasks, task)  # noqa: SLF001
        task = self._tasks.spawn(self, AUDIT, self.auditor.loop.run)
        self.auditor.loop._thread = _Joined(self._tasks, task)  # noqa: SLF001
        self._tasks.spawn(self, "settle", self._settle)

    def call(self, name: str, work: Callable[[], object]) -> Task:
        """Have a request handled by a new thread."""
        task = self._tasks.spawn(self, name, work)
        self._calls = [*(call for call in self._calls if not call.ended), task]
        return task

    def end(self, drain: float) -> None:
        """End like after SIGTERM: running requests have so many seconds, then the threads end."""
        self.ending = True
        self._tasks.spawn(self, "end", lambda: self._end(drain))

    def ready(self) -> bool:
        """Whether the process answers, by its own account."""
        return not self.readiness.not_ready()

    def leads(self) -> bool:
        """Whether the process leads, by its own account."""
        return self.leading is None or self.leading.leads_until(self._tasks.now) > self._tasks.now

    def _leads(self, how: str, api: SimApi, wake: Callable[[], Wake]) -> LeaseRunner | None:
        if how == "off":
            return None
        machine: Elector | SchedulerLease
        name = LEASE_NAMES[how]
        if how == "scheduler":
            machine = SchedulerLease(self.host, BUDGET)
        else:
            machine = Elector(NAMESPACE, name, self.identity, BUDGET)
        return LeaseRunner(
            api,
            machine,
            namespace=NAMESPACE,
            name=name,
            clock=self._tasks.clock,
            wall=self._wall,
            jitter=self._next_jitter,
            wake=wake,
        )

    def _settle(self) -> None:
        """The loop of gpushare.extender.process."""
        while True:
            self.readiness.tick()
            self.binder.settle_overdue()
            self._tasks.sleep(_SETTLE_EVERY)

    def _end(self, drain: float) -> None:
        """The end of gpushare.extender.process."""
        until = self._tasks.now + drain
        while self._tasks.now < until and any(not call.ended for call in self._calls):
            self._tasks.sleep(_LOOK_EVERY)
        self.readiness.stop()
        self.auditor.stop()
        self.ended = True

    def _wait_turn(self) -> None:
        """Let other threads run first, mostly not: different each time, the same in each run."""
        if self._turns.random() < _KEPT:
            self._tasks.sleep(self._turns.uniform(0.0, self._crowded))

    def _wall(self) -> float:
        return EPOCH.timestamp() + self._tasks.now + self._skew

    def _next_jitter(self) -> float:
        """Different each time, the same in each run."""
        self._jitter = (self._jitter + 3) % 8
        return self._jitter / 8


class Alarms(logging.Handler):
    """Errors that production code logs because they must not end it."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep errors that no fault of the story explains."""
        error = record.exc_info[1] if record.exc_info else None
        if not isinstance(error, SinkFault):
            self.said.append(f"{record.getMessage()}: {error!r}")
