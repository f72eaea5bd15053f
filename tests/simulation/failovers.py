"""`python -m tests.simulation.failovers --failovers 1000`: leaders that die, sleep or are cut off.

Two processes in virtual time, in both wirings, and pods that come and go on a device that has room
for few. Each time the leader is struck, often in the middle of a bind, and the next leader binds.
No device may ever hold more than its capacity, and two processes may never lead at one time.
"""

import argparse
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from random import Random

from tests.simulation.crash_points.points import SERVED, Point, passing
from tests.simulation.crash_points.stage import Stage
from tests.simulation.replica import Replica
from tests.simulation.tasks import Task

WIRINGS = ("lease", "scheduler")
_POINTS = [point for point in Point if point not in SERVED]
_STEP = 0.25


@dataclass
class Failovers:
    """One history, decided by the seed. struck: faults by kind. count: changes of leader."""

    wiring: str
    seed: int
    count: int = 0
    struck: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._chance = Random(self.seed)
        self._stage = Stage(self.wiring)
        self._named = 0
        self._last = ""
        self._later: list[tuple[float, Callable[[], None]]] = []
        self._stopped: Task | None = None

    def run(self, failovers: int) -> None:
        """Go on until so many are done. Raises AssertionError where a promise is broken."""
        with closing(self._stage) as stage:
            for host in ("host-0", "host-1"):
                stage.start(host)
            while self.count < failovers:
                stage.until(stage.leader, "somebody leads")
                self._pass(self._chance.uniform(0.5, 4.0))
                leader = stage.leader()
                if leader is not None:
                    self._strike(leader)
                self._pass(self._chance.uniform(0.0, 45.0))
                while self._later:
                    self._pass(_STEP)
            stage.network.late.clear()
            stage.check()

    @property
    def binds(self) -> int:
        """How many pods were bound."""
        return len(self._stage.bound_by)

    # -- the blows ------------------------------------------------------------------------------

    def _strike(self, leader: Replica) -> None:
        blow = self._chance.choice(("kill", "pause", "pause", "pause", "cut", "lease"))
        point = self._chance.choice([*_POINTS, None, None, None])
        arm = (
            nullcontext()
            if point is None or blow in ("cut", "lease")
            else self._armed(leader, point)
        )
        with arm:
            self._pass(self._chance.uniform(0.0, 3.0))
        if leader not in self._stage.replicas:
            return
        self.struck[f"{blow} {point.name if self._stopped and point else 'anywhere'}"] += 1
        getattr(self, f"_{blow}")(leader)

    @contextmanager
    def _armed(self, leader: Replica, point: Point) -> Iterator[None]:
        """Stop the leader at the point."""
        tasks = self._stage.tasks

        def reached() -> None:
            if self._stopped is None and tasks.current().owner is leader:
                self._stopped, leader.frozen = tasks.current(), True
                tasks.wait(math.inf)

        with passing(point, reached):
            yield

    def _kill(self, leader: Replica) -> None:
        self._stopped = None
        self._stage.kill(leader)
        self._host_ends(leader)
        self._at(self._chance.uniform(0.0, 30.0), lambda: self._start(leader.host))

    def _start(self, host: str) -> None:
        self._stage.start(host)

    def _pause(self, leader: Replica) -> None:
        leader.frozen = True
        self._host_ends(leader)
        self._at(self._chance.uniform(1.0, 45.0), lambda: self._wake(leader))

    def _wake(self, leader: Replica) -> None:
        stopped, self._stopped = self._stopped, None
        leader.frozen = False
        if stopped is not None:
            self._stage.tasks.resume(stopped, None)

    def _cut(self, leader: Replica) -> None:
        self._stage.cut.add(leader)
        self._lease(leader, 12)
        self._at(self._chance.uniform(1.0, 45.0), lambda: self._mend(leader))

    def _mend(self, leader: Replica) -> None:
        self._stage.cut.discard(leader)
        self._stage.network.armed.pop(leader.identity, None)

    def _lease(self, leader: Replica, max_steps: int = 6) -> None:
        faults = ["silent"] * self._chance.randint(1, max_steps)
        self._stage.network.armed.setdefault(leader.identity, []).extend(faults)

    def _host_ends(self, leader: Replica) -> None:
        """kube-scheduler is in the same pod, or on the same host."""
        lease = self._stage.lease
        if self.wiring == "scheduler" and lease.host == leader.host and not lease.heir:
            lease.heir = "host-1" if leader.host == "host-0" else "host-0"
            lease.silent_until = lease.renewed + 16.0

    # -- time -----------------------------------------------------------------------------------

    def _at(self, seconds: float, action: Callable[[], None]) -> None:
        self._later.append((self._stage.tasks.now + seconds, action))

    def _pass(self, seconds: float) -> None:
        stage = self._stage
        end = stage.tasks.now + seconds
        while stage.tasks.now < end:
            # Any pod may be the first that the next leader is asked for.
            stage.pass_time(_STEP, self._chance.choice([*stage.there(), "none"]))
            for due, action in list(self._later):
                if due <= stage.tasks.now:
                    self._later.remove((due, action))
                    action()
            self._let_land()
            self._come_and_go()
            self._look()

    def _let_land(self) -> None:
        """A request of a sender that has given up is applied at the last moment, or never."""
        late = self._stage.network.late
        for item in list(late):
            if item.until - self._stage.tasks.now < 2 * _STEP:
                if self._chance.random() < 0.5:
                    self._stage.network.apply_late(item)
                else:
                    late.remove(item)

    def _come_and_go(self) -> None:
        stage = self._stage
        for name in stage.bound():
            if self._chance.random() < 0.04:
                stage.delete(name)
        if len(stage.there()) < 4:
            self._named += 1
            stage.create(f"pod-{self._named}", self._chance.randint(5, 12))

    def _look(self) -> None:
        stage = self._stage
        leaders = [replica.identity for replica in stage.replicas if replica.leads()]
        assert len(leaders) <= 1, f"S5 {leaders} lead at one time"
        assert stage.wrong == [], stage.wrong
        assert stage.alarms.said == [], stage.alarms.said
        who = stage.bound_by[-1][0] if stage.bound_by else ""
        self.count += bool(self._last) and who != self._last
        self._last = who


def main() -> int:
    """The exit code: 1 where a promise was broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--failovers", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    for wiring in WIRINGS:
        stories, seed, struck, binds = 0, options.seed, Counter[str](), 0
        while stories < options.failovers // len(WIRINGS):
            history = Failovers(wiring, seed)
            history.run(25)
            stories, seed = stories + history.count, seed + 1
            struck += history.struck
            binds += history.binds
        blows = ", ".join(f"{count} {blow}" for blow, count in sorted(struck.items()))
        print(f"{wiring}: seeds {options.seed}:{seed}, {stories} failovers, {binds} binds; {blows}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
