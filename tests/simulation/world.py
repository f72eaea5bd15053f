"""A whole cluster in one thread and virtual time: server, network, processes, nodes and people.

This module has the parts and the passing of time; the events are in calls.py, people.py and
processes.py. All events come from numbers (see chance.py).
"""

from collections import Counter
from collections.abc import Callable
from functools import partial

from gpushare.core.pairing import Pairing
from gpushare.errors import ApiUnavailable
from tests.simulation.chance import Chance
from tests.simulation.kubelets import Kubelets
from tests.simulation.leases import SchedulerLease
from tests.simulation.machines import NODE_NAMES, Machines, first_shapes, with_ours, with_sharers
from tests.simulation.network import Late, Network, Request, WatchStream, told
from tests.simulation.oracle import Oracle
from tests.simulation.replica import Replica
from tests.simulation.scheduler import Scheduler
from tests.simulation.server import Line, Server
from tests.simulation.setting import Setting
from tests.simulation.tasks import Tasks
from tests.simulation.tenants import Tenant
from tests.simulation.truth import Known
from tests.simulation.users import Users

_OF_TENANT = 8
"""Pods that the tenant who means harm has at a time."""

_STEP = 0.005
"""Seconds one step takes."""

_BOOKMARK_EVERY = 60.0
"""Seconds between the bookmarks of a quiet watch, as in kube-apiserver."""


class World:
    """Everything there is in a story."""

    def __init__(self, number: int, listener: Callable[[str], None] | None = None) -> None:
        self.setting = setting = Setting.of(number)
        self._told = listener
        self.fired: Counter[str] = Counter()
        self.tasks = Tasks()
        self.server = Server(self.tasks)
        self.replicas: list[Replica] = []
        self.oracle = Oracle(self.tasks, self.server, self.replicas)
        self.network = Network(
            self.tasks, self.server, self.oracle.applied, self.oracle.sent, self.fired
        )
        pairing = setting.shape.pairing is not Pairing.OFF
        self.kubelets = Kubelets(self.server, self.oracle, {}, pairing)
        self.machines = Machines(self.server, self.oracle, self.kubelets, {})
        names = tuple(f"p{number}" for number in range(setting.pods))
        self.users = Users(
            *(self.server, self.oracle, self.kubelets, setting.small, names, setting.preempts),
            cores=setting.cores,
            shares=setting.shares,
        )
        self.tenant = Tenant(
            *(self.server, self.oracle, self.kubelets, setting.shape.scoped),
            *(tuple(f"t{number}" for number in range(_OF_TENANT)), setting.preempts),
        )
        if setting.hostile:
            self.tenant.move_in()
        if setting.preempts:
            self.users.rank()
        self.scheduler = Scheduler(
            *(self.server, self.oracle, self.replicas, setting.shape.best_only),
            evict=self.kubelets.delete if setting.preempts else None,
        )
        self.lease = SchedulerLease(self.server, self.tasks)
        self._started = 0
        self._bookmarks = self.tasks.now + _BOOKMARK_EVERY
        self._begin(Chance(number))

    def _begin(self, chance: Chance) -> None:
        """Nodes and processes, all well and ready."""
        self.machines.shapes |= first_shapes(chance)
        if self.setting.ours:
            self.machines.shapes |= with_ours(self.machines.shapes)
        if self.setting.sharers:
            self.machines.shapes |= with_sharers(self.machines.shapes, chance.apart())
        for name in NODE_NAMES:
            self.machines.put(name, self.machines.shapes[name])
        if self.setting.shape.leadership == "scheduler":
            self.lease.take("host-0")
        for index in range(self.setting.replicas):
            self.start(f"host-{index}")
        for _ in range(60):
            if any(replica.ready() for replica in self.replicas):
                break
            self.settle()
            self.pass_time(1.0)

    def tell(self, message: str) -> None:
        """Report an event to the listener."""
        if self._told is not None:
            self._told(f"{self.tasks.now:9.3f} {message}")

    def end_step(self) -> None:
        """Let a moment pass, and judge. Raises Violation."""
        self.tasks.now += _STEP
        self.run_timers()
        self.replace_ended()
        self.judge()

    def replace_ended(self) -> None:
        """Remove the processes that have ended by themselves."""
        for replica in [replica for replica in self.replicas if replica.ended]:
            self.take_away(replica)

    def take_away(self, replica: Replica) -> None:
        """A process is gone; another starts instead, unless one is there already."""
        self.tasks.kill(replica)
        self.network.drop(replica)
        self.replicas.remove(replica)
        if all(remaining.host != replica.host for remaining in self.replicas):
            self.start(replica.host)

    def close(self) -> None:
        """End all tasks."""
        for replica in self.replicas:
            self.tasks.kill(replica)

    def judge(self) -> None:
        """Have the oracle look. Raises Violation."""
        self.oracle.follow()
        for replica in self.replicas:
            if replica.sinks["pods"].failed:
                replica.sinks["pods"].failed = False
                self.oracle.sink_failed(replica)
        self._end_overdue()
        self.oracle.check()
        self.oracle.check_flight(
            [*self.network.waiting, *(late.request for late in self.network.late)]
        )

    def run_timers(self) -> None:
        """Resume the tasks that are due."""
        while self.tasks.run_due():
            pass

    def pass_time(self, seconds: float) -> None:
        """Let time pass, and resume the tasks that become due."""
        end = self.tasks.now + seconds
        while True:
            self.run_timers()
            due = min(self.tasks.next_timer(), self.lease.next_renewal(), self._bookmarks)
            if due > end:
                break
            self.tasks.now = max(self.tasks.now, due)
            self.lease.renew()
            if self.tasks.now >= self._bookmarks:
                self._bookmarks = self.tasks.now + _BOOKMARK_EVERY
                self.bookmark()
            self.oracle.follow()
            self._end_overdue()
        self.tasks.now = end
        self.run_timers()

    def settle(self) -> None:
        """Serve and show all there is, well."""
        for _ in range(400):
            streams = [item for item in self.streams() if not item.blind and item.feed.behind()]
            requests = self.answerable()
            if not (streams or requests):
                return
            if requests:
                self.answer(requests[0])
            else:
                self.show(streams[0], streams[0].feed.take())
            self.run_timers()
        raise AssertionError("requests without end")

    def answerable(self) -> list[Request]:
        """The requests that can be answered at once."""
        return [
            request
            for request in self.network.waiting
            if not (request.silent or request.client.frozen)
        ]

    def answer(self, request: Request) -> str:
        """Handle the request if that has not been done, and deliver the answer."""
        if request.answer is None:
            request.answer = self.network.serve(request)
        return self.deliver(request)

    def deliver(self, request: Request) -> str:
        """The answer reaches the process."""
        if isinstance(request.client, Replica):
            self.oracle.shown_list(request.client, request)
        description = told(request)
        self.network.deliver(request)
        return description

    def bookmark(self) -> bool:
        """Whether a bookmark was put on any watch."""
        streams = [stream for stream in self.streams() if not stream.blind]
        for stream in streams:
            stream.feed.bookmark()
        return bool(streams)

    def waiting(self, answered: bool) -> list[Request]:
        """The running requests with the answer (or nothing) on the way back."""
        return [
            request
            for request in self.network.waiting
            if (request.answer is not None) == answered
            and not request.silent
            and not (answered and request.client.frozen)
        ]

    def streams(self) -> list[WatchStream]:
        """The watches with reading processes."""
        return [stream for stream in self.network.streams if not stream.client.frozen]

    def show(self, stream: WatchStream, line: Line | ApiUnavailable) -> None:
        """A line reaches the process, or the cut."""
        if isinstance(line, Line) and isinstance(stream.client, Replica) and not stream.closed:
            self.oracle.shown_line(stream.client, stream.path, line)
        stream.show(line)

    def thaw(self, replica: Replica) -> None:
        """Continue a stopped process: deliveries meanwhile lie in the sockets, and are read."""
        replica.frozen = False
        for request in self.waiting(answered=True):
            if request.client is replica and request in self.network.waiting:
                self.deliver(request)

    def start(self, host: str) -> None:
        """Start a process on a host."""
        self._started += 1
        identity = f"{host}-{self._started}"
        skew = 3.0 * (self._started % 3)
        audit = partial(self.oracle.audited, identity)
        replica = Replica(
            *(identity, host, self.setting.shape, self.tasks, self.network, skew),
            tell=audit,
            created=partial(self.oracle.counted, identity),
        )
        self.oracle.known[identity] = Known(identity)
        self.replicas.append(replica)
        replica.start()

    def _end_overdue(self) -> None:
        """Writes that the server no longer handles: the timeout is over, or the sender leads no
        more.

        A server that exceeds the timeout is survived by the process that sent the
        write; the next leader cannot know of the write.
        """
        if not self.network.late:
            return
        leaders = [replica for replica in self.replicas if replica.leads()]

        def over(late: Late) -> bool:
            request = late.request
            overrun = self.tasks.now > request.sent + late.allowed
            succeeded = any(leader is not request.client for leader in leaders)
            is_gone = request.client not in self.replicas
            return self.tasks.now >= late.until or (overrun and (succeeded or is_gone))

        self.network.late = [late for late in self.network.late if not over(late)]
