"""A whole cluster in one thread and virtual time: what can happen in it, one step after the other.

A story is a list of numbers (see chance.py): the first says how the world is, each other one is a
step. `World.step` does what the number says and has the oracle judge. Which of all the things that
may happen are likely differs from story to story, so that some stories are all crashes and others
have none.
"""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from gpushare.core.pairing import Pairing
from gpushare.errors import ApiUnavailable
from tests.simulation.chance import Chance, Weighted
from tests.simulation.kubelets import Kubelets
from tests.simulation.leases import SchedulerLease
from tests.simulation.network import LEASE_FAULTS, Late, Network, Request, Stream
from tests.simulation.oracle import Oracle
from tests.simulation.replica import PATHS, Replica, Shape
from tests.simulation.scheduler import Scheduler
from tests.simulation.server import Feed, Line, Server, error_line
from tests.simulation.tasks import Tasks
from tests.simulation.truth import Known
from tests.simulation.users import NODE_NAMES, Users, first_shapes

WEIGHTS = {
    "answer": 96, "apply": 20, "deliver": 32, "fault": 24, "show": 80, "late": 24,
    "schedule": 56, "bind": 72, "bind_again": 12, "strange": 6,
    "admit": 40, "stop": 24, "finish": 20,
    "create": 32, "forge": 4, "delete": 12, "force": 8, "edit": 4, "other_binds": 4,
    "node": 8, "collect": 4, "close": 4,
    "wait": 40, "linger": 6, "sit_out": 1,
    "cut": 4, "end": 4, "bad_line": 4, "error_event": 4, "again": 4, "blind": 2, "bookmark": 2,
    "compact": 4, "relist": 4, "sink": 3,
    "crash": 4, "freeze": 2, "thaw": 8, "pause": 6, "lease": 4, "fail_over": 4,
}  # fmt: skip
_FAULTS = {
    "fault", "late", "cut", "end", "bad_line", "error_event", "again", "blind", "compact", "sink",
    "crash", "freeze", "pause", "lease", "fail_over", "node", "close", "forge", "edit", "force",
    "other_binds", "linger", "sit_out", "relist", "strange", "collect",
}  # fmt: skip
_HELD = 0.005
"""Seconds one step takes."""
_BOOKMARK_EVERY = 60.0
"""Seconds between the bookmarks of a quiet watch, as kube-apiserver sends them."""


@dataclass(frozen=True, slots=True)
class Setting:
    """How the world of a story is; all of it comes from the story's first number."""

    shape: Shape
    replicas: int
    small: bool
    weights: Weighted

    @staticmethod
    def of(number: int) -> "Setting":
        """The setting that the number means."""
        source = Random(number)
        leadership = source.choice(("lease", "lease", "scheduler", "off"))
        shape = Shape(
            source.choice((Pairing.AUTO, Pairing.AUTO, Pairing.ON, Pairing.OFF)),
            leadership,
            source.choice(("device-bestfit", "binpack", "spread")),
            source.choice((False, False, False, True)),
            source.choice((False, False, True)),
            source.choice((500, 500, 2)),
        )
        replicas = 1 if leadership == "off" else source.choice((1, 2, 2))
        factors = {name: source.choice((0, 0, 0, 1, 1, 3)) for name in sorted(_FAULTS)}
        weights = {name: weight * factors.get(name, 1) for name, weight in WEIGHTS.items()}
        return Setting(shape, replicas, source.choice((True, True, False)), Weighted(weights))


class World:
    """Everything there is in a story."""

    def __init__(self, number: int, told: Callable[[str], None] | None = None) -> None:
        self.setting = setting = Setting.of(number)
        self._told = told
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
        self.users = Users(self.server, self.oracle, self.kubelets, setting.small)
        self.scheduler = Scheduler(self.server, self.oracle, self.replicas)
        self.lease = SchedulerLease(self.server, self.tasks)
        self._started = 0
        self._bookmarks = self.tasks.now + _BOOKMARK_EVERY
        self._begin(Chance(number))

    def _begin(self, chance: Chance) -> None:
        """Nodes and processes, all well and ready."""
        self.users.shapes = first_shapes(chance)
        for name in NODE_NAMES:
            self.users.put_node(name, self.users.shapes[name])
        if self.setting.shape.leadership == "scheduler":
            self.lease.take("host-0")
        for index in range(self.setting.replicas):
            self._start(f"host-{index}")
        for _ in range(60):
            if any(replica.ready() for replica in self.replicas):
                break
            self.settle()
            self.pass_time(1.0)

    # -- a step ---------------------------------------------------------------------------------

    def step(self, number: int) -> None:
        """Do what the number says, and judge. Raises Violation."""
        chance = Chance(number)
        for _ in range(8):
            name = self.setting.weights.draw(chance)
            what = getattr(self, f"_do_{name}")(chance)
            if what:
                if self._told is not None:
                    self._told(f"{self.tasks.now:9.3f} {name} {what}")
                if name in _FAULTS and name != "fault":
                    self.fired[name] += 1
                break
        self.tasks.now += _HELD
        self.run_timers()
        self.judge()

    def close(self) -> None:
        """End all tasks."""
        for replica in self.replicas:
            self.tasks.kill(replica)

    def judge(self) -> None:
        """Have the oracle look. Raises Violation."""
        self.oracle.follow()
        self._end_overdue()
        self.oracle.check()
        self.oracle.check_flight(
            [*self.network.waiting, *(late.request for late in self.network.late)]
        )

    def run_timers(self) -> None:
        """Let those go on whose time has come."""
        while self.tasks.run_due():
            pass

    def pass_time(self, seconds: float) -> None:
        """Let time pass, and those go on whose time comes meanwhile."""
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
                self._do_bookmark(Chance(0))
            self.oracle.follow()
            self._end_overdue()
        self.tasks.now = end
        self.run_timers()

    def settle(self) -> None:
        """Serve and show all there is, well."""
        for _ in range(400):
            if not self._do_answer(Chance(0)) and not self._do_show(Chance(7)):
                return
            self.run_timers()
        raise AssertionError("requests without end")

    # -- calls and watches ----------------------------------------------------------------------

    def _waiting(self, answered: bool) -> list[Request]:
        return [
            request
            for request in self.network.waiting
            if (request.answer is not None) == answered
            and not request.silent
            and not (answered and request.client.frozen)
        ]

    def _do_apply(self, chance: Chance) -> str:
        requests = self._waiting(answered=False)
        if not requests:
            return ""
        request = chance.pick(requests)
        request.answer = self.network.serve(request)
        return _shown(request)

    def _do_deliver(self, chance: Chance) -> str:
        requests = self._waiting(answered=True)
        if not requests:
            return ""
        request = chance.pick(requests)
        if request.answer is not None and isinstance(request.client, Replica):
            self.oracle.shown_list(request.client, request)
        shown = _shown(request)
        self.network.deliver(request)
        return shown

    def _do_answer(self, chance: Chance) -> str:
        requests = [request for request in self.network.waiting if not request.client.frozen]
        requests = [request for request in requests if not request.silent]
        if not requests:
            return ""
        request = chance.pick(requests)
        if request.answer is None:
            request.answer = self.network.serve(request)
        if isinstance(request.client, Replica):
            self.oracle.shown_list(request.client, request)
        shown = _shown(request)
        self.network.deliver(request)
        return shown

    def _do_fault(self, chance: Chance) -> str:
        requests = self._waiting(answered=False)
        if not requests:
            return ""
        request = chance.pick(requests)
        fault = chance.pick(request.faults)
        if fault == "slow":
            request.answer = self.network.serve(request)
            return f"slow {_shown(request)}"
        request.answer = self.network.outcome(request, fault)
        request.silent = request.answer is None
        shown = f"{fault} {_shown(request)}"
        if request.answer is not None and not request.client.frozen:
            if isinstance(request.client, Replica):
                self.oracle.shown_list(request.client, request)
            self.network.deliver(request)
        return shown

    def _do_late(self, chance: Chance) -> str:
        if not self.network.late:
            return ""
        late = chance.pick(self.network.late)
        self.network.apply_late(late)
        return _shown(late.request)

    def _streams(self) -> list[Stream]:
        return [stream for stream in self.network.streams if not stream.client.frozen]

    def _do_show(self, chance: Chance) -> str:
        streams = [item for item in self._streams() if not item.blind and item.feed.behind()]
        if not streams:
            return ""
        stream = chance.pick(streams)
        most = chance.pick((1, 1, 2, 100))
        shown = 0
        while shown < most and stream in self.network.streams and stream.feed.behind():
            self._show(stream, stream.feed.take())
            shown += 1
        return f"{stream.path} {shown} lines to {stream.client.identity}"

    def _show(self, stream: Stream, line: Line | ApiUnavailable) -> None:
        if isinstance(line, Line) and isinstance(stream.client, Replica):
            self.oracle.shown_line(stream.client, stream.path, line)
        stream.show(line)

    def _do_again(self, chance: Chance) -> str:
        """What was shown last is shown once more."""
        streams = [item for item in self._streams() if not item.blind and item.feed.last]
        if not streams:
            return ""
        stream = chance.pick(streams)
        lines = list(stream.feed.last)
        for line in lines:
            if stream in self.network.streams:
                self._show(stream, line)
        return f"{stream.path} {len(lines)} lines to {stream.client.identity}"

    def _on_stream(self, chance: Chance, line: Line | ApiUnavailable) -> str:
        streams = self._streams()
        if not streams:
            return ""
        stream = chance.pick(streams)
        self._show(stream, line)
        return f"{stream.path} of {stream.client.identity}"

    def _do_cut(self, chance: Chance) -> str:
        return self._on_stream(chance, ApiUnavailable("the stream was cut", 0))

    def _do_bad_line(self, chance: Chance) -> str:
        """A line comes cut off, or one that is none."""
        streams = [item for item in self._streams() if not item.blind and item.feed.behind()]
        if streams and chance.below(2):
            stream = chance.pick(streams)
            line = stream.feed.take()
            self._show(stream, Line(line.text[: len(line.text) // 2]))
            return f"{stream.path} of {stream.client.identity}, half a line"
        texts = (b'{"type":"MODI', b"[]", b'{"type":"MODIFIED","object":{}}', b"\xff")
        return self._on_stream(chance, Line(chance.pick(texts)))

    def _do_error_event(self, chance: Chance) -> str:
        return self._on_stream(chance, error_line(chance.pick((410, 500, 403))))

    def _do_end(self, chance: Chance) -> str:
        streams = self._streams()
        if not streams:
            return ""
        stream = chance.pick(streams)
        stream.feed.ends = self.tasks.now
        assert stream.task is not None
        stream.task.until = self.tasks.now
        return f"{stream.path} of {stream.client.identity}"

    def _do_blind(self, chance: Chance) -> str:
        streams = [stream for stream in self._streams() if not stream.blind]
        if not streams:
            return ""
        stream = chance.pick(streams)
        stream.blind = True
        return f"{stream.path} of {stream.client.identity}"

    def _do_bookmark(self, chance: Chance) -> str:
        streams = [stream for stream in self._streams() if not stream.blind]
        for stream in streams:
            stream.feed.bookmark()
        del chance
        return "on all watches" if streams else ""

    def _do_compact(self, chance: Chance) -> str:
        del chance
        self.oracle.follow()
        self.server.store.compact()
        return "history"

    def _do_relist(self, chance: Chance) -> str:
        if not self.replicas:
            return ""
        replica = chance.pick(self.replicas)
        name = chance.pick(("pods", "pods", "nodes"))
        replica.reflectors[name].request_relist()
        return f"{name} by {replica.identity}"

    def _do_sink(self, chance: Chance) -> str:
        if not self.replicas:
            return ""
        replica = chance.pick(self.replicas)
        name = chance.pick(("pods", "nodes"))
        replica.sinks[name].failures = 1
        return f"{name} of {replica.identity} will fail"

    # -- scheduler, kubelets, users -------------------------------------------------------------

    def _do_schedule(self, chance: Chance) -> str:
        busy = {placed.pod.uid for placed in (*self.scheduler.placed, *self.scheduler.binding)}
        pods = self.users.waiting()
        if not chance.once_in(8):
            pods = [pod for pod in pods if pod.uid not in busy]
        return self.scheduler.schedule(chance, pods)

    def _do_bind(self, chance: Chance) -> str:
        return self.scheduler.bind(chance)

    def _do_bind_again(self, chance: Chance) -> str:
        return self.scheduler.bind_again(chance)

    def _do_strange(self, chance: Chance) -> str:
        return self.scheduler.strange(chance)

    def _do_admit(self, chance: Chance) -> str:
        pods = self.kubelets.admissible()
        if not pods:
            return ""
        pod = chance.pick(pods)
        return f"{pod.uid} on {pod.node}: {self.kubelets.admit(pod)}"

    def _do_stop(self, chance: Chance) -> str:
        pods = self.kubelets.stoppable()
        if not pods:
            return ""
        pod = chance.pick(pods)
        return f"{pod.uid}: {self.kubelets.stop(pod)}"

    def _do_finish(self, chance: Chance) -> str:
        pods = self.kubelets.started()
        if not pods:
            return ""
        pod = chance.pick(pods)
        return f"{pod.uid}: {self.kubelets.finish(pod, chance.pick(('Succeeded', 'Failed')))}"

    def _do_create(self, chance: Chance) -> str:
        return self.users.create(chance)

    def _do_forge(self, chance: Chance) -> str:
        return self.users.create(chance, forge=True)

    def _do_delete(self, chance: Chance) -> str:
        return self.users.delete(chance, 30)

    def _do_force(self, chance: Chance) -> str:
        return self.users.delete(chance, 0)

    def _do_edit(self, chance: Chance) -> str:
        return self.users.edit(chance)

    def _do_other_binds(self, chance: Chance) -> str:
        return self.users.bind(chance)

    def _do_node(self, chance: Chance) -> str:
        return self.users.change_node(chance)

    def _do_collect(self, chance: Chance) -> str:
        del chance
        return self.users.collect()

    def _do_close(self, chance: Chance) -> str:
        return self.users.close_devices(chance)

    # -- time, processes, leases ----------------------------------------------------------------

    def _do_wait(self, chance: Chance) -> str:
        due = min(self.tasks.next_timer(), self.lease.next_renewal())
        answering = any(replica.ready() for replica in self.replicas)
        seconds = chance.pick((0.05, 0.5, 2.0, 0.0) if answering else (0.5, 2.0, 7.0, 0.0))
        if not seconds and due < math.inf:
            seconds = max(due - self.tasks.now, 0.01)
        self.pass_time(seconds)
        return f"{seconds:.2f} s"

    def _do_linger(self, chance: Chance) -> str:
        seconds = chance.pick((5.0, 12.0, 20.0))
        self.pass_time(seconds)
        return f"{seconds} s"

    def _do_sit_out(self, chance: Chance) -> str:
        seconds = chance.pick((66.0, 160.0))
        self.pass_time(seconds)
        return f"{seconds} s"

    def _do_crash(self, chance: Chance) -> str:
        replica = chance.pick(self.replicas)
        self.tasks.kill(replica)
        self.network.drop(replica)
        self.replicas.remove(replica)
        if replica.leading is None:
            # Nobody waits for what it sent: this is how to wire it only where nothing else binds.
            self.network.late = [
                late for late in self.network.late if late.request.client is not replica
            ]
        self._start(replica.host)
        return f"{replica.identity}, after which {self.replicas[-1].identity} starts"

    def _do_freeze(self, chance: Chance) -> str:
        awake = [replica for replica in self.replicas if not replica.frozen]
        if not awake:
            return ""
        replica = chance.pick(awake)
        replica.frozen = True
        return replica.identity

    def _do_pause(self, chance: Chance) -> str:
        """A process stands still for a while, mostly in the middle of a bind."""
        awake = [replica for replica in self.replicas if not replica.frozen]
        if not awake:
            return ""
        busy = [request.client for request in self.network.waiting if _of_a_bind(request)]
        among = [replica for replica in awake if replica in busy] or awake
        replica, seconds = chance.pick(among), chance.pick((22.0, 31.0, 6.0, 12.0))
        replica.frozen = True
        self.pass_time(seconds)
        for request in self._waiting(answered=False):
            if request.client is replica and chance.below(2):
                request.answer = self.network.serve(request)
        self.thaw(replica)
        return f"{replica.identity} for {seconds} s"

    def _do_thaw(self, chance: Chance) -> str:
        frozen = [replica for replica in self.replicas if replica.frozen]
        if not frozen:
            return ""
        replica = chance.pick(frozen)
        self.thaw(replica)
        return replica.identity

    def thaw(self, replica: Replica) -> None:
        """Let a stopped process go on: what came meanwhile lies in its sockets, and is read."""
        replica.frozen = False
        for request in list(self._waiting(answered=True)):
            if request.client is replica and request in self.network.waiting:
                self.oracle.shown_list(replica, request)
                self.network.deliver(request)

    def _do_lease(self, chance: Chance) -> str:
        if not self.replicas:
            return ""
        replica = chance.pick(self.replicas)
        chosen = [chance.pick(LEASE_FAULTS) for _ in range(1 + chance.below(6))]
        self.network.armed.setdefault(replica.identity, []).extend(chosen)
        return f"{chosen} for {replica.identity}"

    def _do_fail_over(self, chance: Chance) -> str:
        if self.setting.shape.leadership != "scheduler":
            return ""
        return self.lease.fail_over(chance)

    def _start(self, host: str) -> None:
        self._started += 1
        identity = f"{host}-{self._started}"
        skew = 3.0 * (self._started % 3)
        replica = Replica(identity, host, self.setting.shape, self.tasks, self.network, skew)
        self.oracle.known[identity] = Known()
        self.replicas.append(replica)
        replica.start()

    def _end_overdue(self) -> None:
        """Writes the server works on no more: their time is up, or their sender leads no more.

        A server that takes longer than it was told is survived by the process that sent the
        write; the one that leads after it cannot know of it.
        """
        if not self.network.late:
            return
        leaders = [replica for replica in self.replicas if replica.leads()]

        def over(late: Late) -> bool:
            request = late.request
            overrun = self.tasks.now > request.sent + late.allowed
            succeeded = any(leader is not request.client for leader in leaders)
            gone = request.client not in self.replicas
            return self.tasks.now >= late.until or (overrun and (succeeded or gone))

        self.network.late = [late for late in self.network.late if not over(late)]


def _of_a_bind(request: Request) -> bool:
    return request.task is not None and request.task.name.startswith("bind")


def _shown(request: Request) -> str:
    answer: object = request.answer
    if isinstance(answer, bytes | Feed):
        answer = "ok"
    who = request.client.identity
    what = "watch" if request.watch else request.method
    return f"{what} {request.path} of {who} sent {request.sent:.3f}: {answer}"


assert set(PATHS) == {"nodes", "pods", "configmaps"}
