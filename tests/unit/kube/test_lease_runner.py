"""The thread around the election, on a true server through the true client."""

import json
import math
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from gpushare.errors import ApiError
from gpushare.kube.client import KubeClient
from gpushare.kube.election import ElectionTiming, Elector, SchedulerLease
from gpushare.kube.lease_runner import LeaseRunner
from tests.support.waiting import poll
from tests.unit.kube.lease_store import LeaseStore
from tests.unit.kube.scripted_server import (
    ScriptedServer,
    Seen,
    answer,
    reset,
)

PATH = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"
QUICK = ElectionTiming(duration=2.0, renew_deadline=1.5, retry=0.1)


class LeaseServer:
    """The Lease behind HTTP; `mood` may be to stall or to cut."""

    def __init__(self, server: ScriptedServer) -> None:
        self.store = LeaseStore()
        self.mood = ""
        self.paths: set[tuple[str, str]] = set()
        self._stopped = server.stopped
        self._lock = threading.Lock()
        server.script = self.script

    def script(self, connection: socket.socket, request: Seen) -> bool:
        if self.mood == "cut":
            return reset(connection)
        if self.mood == "stall":
            self._stopped.wait(60)
            return False
        self.paths.add((request.method, request.target))
        with self._lock:
            try:
                connection.sendall(answer(200, self.answer(request)))
            except ApiError as error:
                connection.sendall(answer(error.status, b'{"kind":"Status"}'))
        return True

    def answer(self, request: Seen) -> bytes:
        if request.method == "GET":
            return self.store.get()
        return (self.store.create if request.method == "POST" else self.store.update)(request.body)


@pytest.fixture
def lease(server: ScriptedServer) -> LeaseServer:
    lease_server = LeaseServer(server)
    lease_server.store.write("", leaseDurationSeconds=1)
    return lease_server


@pytest.fixture
def leading(client: KubeClient, lease: LeaseServer) -> Iterator[LeaseRunner]:
    assert lease
    machine = Elector("kube-system", "gpushare", "me_1", 0.1, QUICK)
    lease_runner = LeaseRunner(
        client, machine, namespace="kube-system", name="gpushare", call_timeout=0.7
    )
    yield lease_runner
    lease_runner.stop(release=False)


def leads(leading: LeaseRunner) -> bool:
    now = time.monotonic()
    return leading.leads_until(now) > now


def test_the_lease_is_won_renewed_and_given_away(leading: LeaseRunner, lease: LeaseServer) -> None:
    leading.start()
    poll(lambda: leads(leading))
    assert leading.fenced_until() <= time.monotonic()
    first = lease.store.spec["renewTime"]
    poll(lambda: lease.store.spec["renewTime"] != first)
    assert leading.alive(time.monotonic())
    assert leading.stop()
    assert not leads(leading)
    assert not leading.alive(time.monotonic())
    assert lease.store.spec["holderIdentity"] == ""
    assert lease.paths == {("GET", f"{PATH}/gpushare"), ("PUT", f"{PATH}/gpushare")}


def test_the_end_of_the_term_of_the_holder_before_is_kept(
    leading: LeaseRunner, lease: LeaseServer
) -> None:
    lease.store.write("", renewTime="2026-01-01T00:00:00.000000Z")
    assert math.isnan(leading.earlier_end())
    leading.start()
    poll(lambda: leads(leading))
    age = time.time() - 1767225600
    assert leading.earlier_end() == pytest.approx(time.monotonic() - age, abs=60)


def test_of_a_lease_of_kube_scheduler_no_end_is_told(client: KubeClient) -> None:
    machine = SchedulerLease("host", 0.1)
    runner = LeaseRunner(client, machine, namespace="kube-system", name="kube-scheduler")
    assert math.isinf(runner.earlier_end())


def test_the_log_tells_when_it_leads_and_when_no_more(
    leading: LeaseRunner, lease: LeaseServer, caplog: pytest.LogCaptureFixture
) -> None:
    """The term of another process has to end first, so the clock makes this one lead, no call."""
    caplog.set_level("INFO")
    lease.store.write("other_1", leaseDurationSeconds=1)
    leading.start()
    poll(lambda: leads(leading))
    poll(lambda: "leading=True" in caplog.text)
    lease.mood = "cut"
    poll(lambda: "leading=False" in caplog.text)
    assert caplog.text.count("leading=") == 2


def test_a_lease_that_does_not_exist_is_made(leading: LeaseRunner, lease: LeaseServer) -> None:
    lease.store.document = None
    leading.start()
    poll(lambda: lease.store.document is not None)
    assert lease.store.spec["holderIdentity"] == "me_1"
    assert ("POST", PATH) in lease.paths


def test_halted_it_leads_no_more_and_keeps_the_lease(
    leading: LeaseRunner, lease: LeaseServer
) -> None:
    leading.start()
    poll(lambda: leads(leading))
    leading.halt()
    assert not leads(leading)
    renewed = lease.store.spec["renewTime"]
    poll(lambda: lease.store.spec["renewTime"] != renewed)
    assert lease.store.spec["holderIdentity"] == "me_1"


def test_without_release_the_lease_is_left_to_run_out(
    leading: LeaseRunner, lease: LeaseServer
) -> None:
    leading.start()
    poll(lambda: leads(leading))
    assert leading.stop(release=False)
    assert not leads(leading)
    assert lease.store.spec["holderIdentity"] == "me_1"


@pytest.mark.parametrize("mood", ["cut", "stall"])
def test_a_leader_that_cannot_reach_the_server_stops_leading_and_comes_back(
    leading: LeaseRunner, lease: LeaseServer, mood: str
) -> None:
    leading.start()
    poll(lambda: leads(leading))
    lease.mood = mood
    poll(lambda: not leads(leading))
    assert leading.alive(time.monotonic())
    lease.mood = ""
    poll(lambda: leads(leading))


def test_a_stalled_server_does_not_delay_the_end(leading: LeaseRunner, lease: LeaseServer) -> None:
    lease.mood = "stall"
    leading.start()
    assert leading.stop(timeout=30)


def test_an_answer_that_is_no_lease_does_not_end_the_thread(
    leading: LeaseRunner, lease: LeaseServer
) -> None:
    good = lease.store.document
    lease.store.document = {"kind": "Pod"}
    leading.start()
    poll(lambda: lease.paths)
    time.sleep(0.1)
    assert leading.alive(time.monotonic())
    lease.store.document = good
    poll(lambda: leads(leading))


def test_the_schedulers_lease_is_followed(client: KubeClient, lease: LeaseServer) -> None:
    follower = SchedulerLease("here", bind_budget=0.1, poll=0.05)
    leading = LeaseRunner(client, follower, namespace="kube-system", name="kube-scheduler")
    old = "2020-01-01T00:00:00.000000Z"
    lease.store.write("here_1", acquireTime=old, leaseDurationSeconds=1)
    leading.start()
    poll(lambda: lease.paths == {("GET", f"{PATH}/kube-scheduler")})
    time.sleep(0.2)
    assert not leads(leading)

    def renewed() -> bool:
        lease.store.write("here_1", acquireTime=old, leaseDurationSeconds=1)
        return leads(leading)

    poll(renewed)
    lease.store.write("there_1", leaseDurationSeconds=1)
    poll(lambda: not leads(leading))
    assert leading.stop()
    assert json.loads(lease.store.get())["spec"]["holderIdentity"] == "there_1"
