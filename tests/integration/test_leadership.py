"""Three extender processes and one Lease: one binds, and never does another at the same time.

The times are the Lease's own (15 s, and a fence of 4 s), so one story has all cases: the leader is
asked to end, the next one is stopped in a bind and wakes too late. A leader that is killed
is one that never wakes up.
"""

import itertools
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

import pytest

from tests.integration.cluster import Cluster
from tests.integration.conftest import StartExtender
from tests.integration.process import Extender
from tests.support import faults
from tests.support.faults import Fault, FaultRequest
from tests.support.waiting import poll


class Arrivals:
    """Binds small pods through all processes all the time; records which Bindings arrive."""

    def __init__(self, cluster: Cluster, extenders: Mapping[str, Extender]) -> None:
        self._cluster = cluster
        self._extenders = extenders
        self._node = cluster.node(devices=64, total=64 * 900)
        self._ended = threading.Event()
        self._numbers = itertools.count()
        self._arrived: list[tuple[str, float]] = []
        cluster.hook = self._record

    @contextmanager
    def binding(self) -> Iterator[None]:
        """Bind meanwhile."""
        names = self._extenders
        threads = [threading.Thread(target=self._bind_on, args=(name,)) for name in names]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._ended.set()
            for thread in threads:
                thread.join()

    def bind(self, name: str) -> str:
        """The error of a bind through the process of that name."""
        pod = self._cluster.pod(1, name=f"{name}-{next(self._numbers)}")
        return self._extenders[name].bind(pod, self._node)

    def names(self) -> list[str]:
        """Who bound, in order, without repetitions."""
        return [name for name, _ in itertools.groupby(name for name, _ in self._arrived)]

    def count(self, name: str) -> int:
        """How many Bindings of the process have arrived."""
        return sum(by == name for by, _ in self._arrived)

    def gap(self, before: str, after: str) -> float:
        """Seconds between the last Binding of one and the first of the other."""
        last = max(when for name, when in self._arrived if name == before)
        return min(when for name, when in self._arrived if name == after) - last

    def _record(self, request: FaultRequest) -> Fault | None:
        if request.method == "POST" and request.path.endswith("/binding"):
            pod = request.path.split("/")[-2]
            self._arrived.append((pod.split("-")[0], time.monotonic()))
        return None

    def _bind_on(self, name: str) -> None:
        while not self._ended.wait(0.2):
            with suppress(OSError):  # the process sleeps, or has ended
                self.bind(name)


def ready(extenders: Mapping[str, Extender]) -> list[str]:
    """The names of those that are ready."""
    return [name for name, extender in extenders.items() if extender.ready()]


@pytest.mark.long
def test_one_leads_at_a_time_whatever_becomes_of_the_leader(
    start_extender: StartExtender, cluster: Cluster
) -> None:
    cluster.release_lease()
    extenders = {"a": start_extender(leadership="lease")}
    extenders["a"].wait_ready()
    extenders |= {name: start_extender(leadership="lease") for name in ("b", "c")}
    for name in ("b", "c"):
        extenders[name].wait_answering()
    arrivals = Arrivals(cluster, extenders)
    with arrivals.binding():
        poll(lambda: arrivals.names() == ["a"], "the leader binds")
        assert ready(extenders) == ["a"]

        extenders["a"].signal(signal.SIGTERM)
        poll(lambda: len(arrivals.names()) > 1, "another one binds")
        second = arrivals.names()[1]
        poll(extenders["a"].ended, "the first has ended")
        assert ready(extenders) == [second]

        third = "c" if second == "b" else "b"
        extenders[second].signal(signal.SIGSTOP)
        poll(lambda: arrivals.names()[-1] == third, "the third binds", 100)
        assert arrivals.names() == ["a", second, third]
        assert arrivals.gap(second, third) > 15
        assert arrivals.gap("a", second) < 15, "asked to end, a leader gives its Lease away"
        before = arrivals.count(second)
        extenders[second].signal(signal.SIGCONT)
        # The process meets requests that came during its sleep, and must not serve them.
        assert arrivals.bind(second) != ""
        assert ready(extenders) == [third]
    # One request may have been past its last look at the clock when the process fell asleep.
    assert arrivals.count(second) - before <= 1
    assert set(arrivals.names()) == {"a", second, third}


@pytest.mark.long
def test_no_bind_begins_that_may_outlast_the_term(
    start_extender: StartExtender, cluster: Cluster
) -> None:
    cluster.release_lease()
    extenders = {"a": start_extender(leadership="lease")}
    extenders["a"].wait_ready()
    arrivals = Arrivals(cluster, extenders)
    poll(lambda: arrivals.bind("a") == "", "it binds")
    cluster.hook = lambda request: faults.status(503) if request.method == "PUT" else None
    errors: list[str] = []

    def is_over() -> bool:
        errors.append(arrivals.bind("a"))
        return "another process leads" in errors[-1]

    poll(is_over, "its term is over")
    last = [error for error, _ in itertools.groupby(errors)][-2:]
    assert "this gpushare extender does not lead (any more)" in last[0]
