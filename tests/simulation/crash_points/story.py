"""One case: a bind is stopped at a point, something happens, and in the end nothing may be wrong.

The device has room for one of the two pods. So a process that forgets the promise of the stopped
bind, or promises the device again, hands the device out twice; a process that never releases it
loses it.
"""

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass
from itertools import groupby, product

from gpushare.errors import ApiUnavailable
from tests.simulation.crash_points.points import SERVED, Point, passing
from tests.simulation.crash_points.stage import Stage
from tests.simulation.network import Late, Request
from tests.simulation.replica import PATHS
from tests.simulation.server import REQUEST_TIMEOUT, seconds_allowed
from tests.simulation.tasks import Task

ENDS = ("kill", "pause")
FAULTS = ("nothing", "relist", "delete", "recreate", "failover")
PAUSE = 30.0
_UNITS, _SUCCESSOR = 10, 12
_STALL = 45.0


@dataclass(frozen=True, slots=True)
class CrashCase:
    """end: how the process ends. fault: the event meanwhile."""

    point: Point
    end: str
    fault: str

    def __str__(self) -> str:
        """The name."""
        return f"{self.point.name}-{self.end}-{self.fault}"


@dataclass(frozen=True, slots=True)
class Turn:
    """How a case may turn out.

    fate: of the request on the way: the API server applies it "soon" (before the fault), "late" (as
    late as possible), "overdue" (after a minute, despite the timeout; only if nobody else leads
    meanwhile) or "never". first: the pod the scheduler asks for first. wake: which of the stopped
    process's threads runs first, "bind" or the "others"; "stalled": long after all others.
    """

    wiring: str
    fate: str
    first: str
    wake: str


def _no_request(_: Request) -> bool:
    return False


CASES = [CrashCase(*values) for values in product(Point, ENDS, FAULTS)]


def turns(case: CrashCase) -> Iterator[Turn]:
    """All possible courses of a case."""
    fates = ["soon"]
    if case.point is Point.K6:
        alone = case.end == "pause" and case.fault != "failover"
        fates += ["late", "never"] + ["overdue"] * alone
    wakes: tuple[str, ...] = ("bind", "others", "stalled") if case.end == "pause" else ("",)
    if case.point is Point.K3:
        # Who holds the lock of the books holds up all others.
        wakes = wakes[:1]
    if case.point in SERVED:
        # The thread waits for the answer: when the thread wakes the answer is there, or the time is
        # over.
        wakes = wakes[:2]
    for wiring, fate, wake in product(("lease", "scheduler"), fates, wakes):
        yield Turn(wiring, fate, "rival", wake)
        if wake in ("", "bind"):
            yield Turn(wiring, fate, "web", wake)


class CrashStory:
    """One course of a case."""

    def __init__(self, case: CrashCase, turn: Turn) -> None:
        self._case, self._turn = case, turn
        self._stage = Stage(turn.wiring)
        self._leader = self._stage.start("host-0")
        self._stopped: Task | None = None
        self._kept: Request | None = None

    def tell(self) -> None:
        """Run the case to the end. Raises AssertionError for a broken promise."""
        with closing(self._stage) as stage:
            stage.until(self._leader.ready, "the first leads")
            self._prepare()
            stage.create("web", _UNITS)
            with self._stopping():
                stage.call_bind(self._leader, "web")
                stage.turn()
            assert self._leader.frozen, "the point was not reached"
            stage.create("rival", _UNITS)
            if self._case.end == "kill":
                self._kill()
            else:
                self._pause()
            self._come_right()

    def _prepare(self) -> None:
        stage, case = self._stage, self._case
        if case.fault == "failover":
            stage.start("host-1")
            stage.pass_time(3.0)
        if case.fault == "relist" and case.end == "pause":
            # A list of pods is answered before the bind, and read when the process goes on.
            stage.carry = lambda request: request.path == PATHS["pods"] and not request.watch
            self._leader.reflectors["pods"].request_relist()
            stage.until(lambda: any(map(stage.carry, stage.network.waiting)), "a list is asked for")

    # -- the stop -------------------------------------------------------------------------------

    def _stopping(self) -> AbstractContextManager[None]:
        if self._case.point in SERVED:
            self._stage.keep = self._keep_binding
            return nullcontext()
        return passing(self._case.point, self._stop_here)

    def _stop_here(self) -> None:
        tasks = self._stage.tasks
        if self._stopped is None and tasks.current().owner is self._leader:
            self._stopped, self._leader.frozen = tasks.current(), True
            tasks.wait(math.inf)

    def _keep_binding(self, request: Request) -> bool:
        if request.client is not self._leader or not request.path.endswith("/binding"):
            return False
        if self._kept is None:
            self._kept, self._leader.frozen = request, True
            if self._case.point is Point.K7:
                request.answer = self._stage.network.serve(request)
        return True

    # -- events -------------------------------------------------------------------------------

    def _kill(self) -> None:
        stage, fault = self._stage, self._case.fault
        if self._turn.fate == "soon":
            self._apply()
        stage.kill(self._leader)
        stage.network.late.clear()
        self._happens()
        if fault != "failover":
            self._restart()
        if self._turn.fate == "late":
            self._pass_to_the_last_moment()
            self._apply()
        stage.pass_time(PAUSE, self._turn.first)
        if fault == "failover":
            self._restart()

    def _restart(self) -> None:
        process = self._stage.start("host-0")
        if self._case.fault == "relist":
            for _ in range(3):
                self._stage.pass_time(0.5, self._turn.first)
                process.reflectors["pods"].request_relist()

    def _pause(self) -> None:
        stage = self._stage
        begin = stage.tasks.now
        if self._turn.fate == "soon":
            self._apply()
        self._happens()
        if self._turn.fate in ("late", "never"):
            self._pass_to_the_last_moment()
            self._end_request()
        stage.pass_time(begin + PAUSE - stage.tasks.now, self._turn.first)
        self._wake()
        if self._turn.fate == "overdue":
            stage.pass_time(begin + REQUEST_TIMEOUT - 0.1 - stage.tasks.now, self._turn.first)
            self._land_overdue()

    def _land_overdue(self) -> None:
        """The server handled the request for longer than the timeout."""
        network, facts = self._stage.network, self._kept
        assert facts is not None
        self._stage.keep = _no_request
        network.late[:] = [Late(facts, math.inf)]
        network.apply_late(network.late[0])

    def _end_request(self) -> None:
        """The server handled the request for exactly the timeout."""
        assert self._kept is not None
        if self._turn.fate == "late":
            self._apply()
        else:
            self._kept.answer = ApiUnavailable("504 its time is over", 504)

    def _happens(self) -> None:
        stage, fault = self._stage, self._case.fault
        if fault in ("delete", "recreate"):
            stage.delete("web")
        if fault == "recreate":
            stage.create("web", _SUCCESSOR)
        if fault == "relist":
            stage.server.store.compact()
        if fault == "failover":
            # kube-scheduler is in the same pod, or on the same host.
            stage.lease.heir = "host-1"
            stage.lease.silent_until = stage.lease.renewed + 16.0

    def _apply(self) -> None:
        if self._kept is not None and self._kept.answer is None:
            self._kept.answer = self._stage.network.serve(self._kept)

    def _pass_to_the_last_moment(self) -> None:
        facts, stage = self._kept, self._stage
        assert facts is not None
        last = facts.sent + seconds_allowed(facts.query) - 0.01
        stage.pass_time(max(0.0, last - stage.tasks.now), self._turn.first)

    def _wake(self) -> None:
        stage = self._stage
        self._leader.frozen = False
        if self._turn.wake == "bind":
            self._go_on()
        stage.keep = stage.carry = _no_request
        if self._turn.fate == "overdue":
            stage.keep = lambda request: request is self._kept
        if self._turn.wake == "others" and self._kept in stage.network.waiting:
            stage.carry = lambda request: request is self._kept
        stage.turn()
        if self._turn.wake == "stalled":
            stage.pass_time(_STALL, self._turn.first)
        if self._turn.wake != "bind":
            self._go_on()

    def _go_on(self) -> None:
        stage, facts = self._stage, self._kept
        if self._stopped is not None:
            stage.tasks.resume(self._stopped, None)
        elif facts in stage.network.waiting and facts is not None and facts.answer is not None:
            stage.network.deliver(facts)

    # -- the end --------------------------------------------------------------------------------

    def _come_right(self) -> None:
        stage, first = self._stage, self._turn.first
        stage.keep = stage.carry = _no_request
        for _ in range(2):
            # There is room for one: when that one goes, for the other.
            stage.until(lambda: bool(stage.bound()) or not stage.there(), "L3", first)
            stage.pass_time(5.0, first)
            stage.check()
            for name in stage.bound():
                stage.delete(name)
        assert not stage.there(), "L3 there was room, and it was not bound"
        stage.pass_time(1.0)
        stage.check()
        terms = [who for who, _ in groupby(who for who, _ in stage.bound_by)]
        assert len(terms) == len(set(terms)), f"S5 bound by {terms}"
