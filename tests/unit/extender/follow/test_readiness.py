"""A process may answer when its books are there and fresh, and it leads."""

import json
import math
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from gpushare.errors import ApiError
from gpushare.extender.follow.readiness import MAX_UNSYNCED_SECONDS, STALE_AFTER, Readiness, Source
from gpushare.extender.verbs.bind.transaction import BUDGET
from gpushare.kube.api import Lines
from gpushare.kube.election import Create, Elector, Read, Term, Update, new_lease
from gpushare.kube.lease_runner import LeaseRunner
from gpushare.kube.listwatch import List, ListWatch, Timing
from gpushare.kube.reflector import Reflector
from gpushare.wire.codec import Decoded, WatchEvent
from gpushare.wire.objects import PODS, Pod
from tests.support.scripted_api import Call, ScriptedApi
from tests.support.waiting import poll

LIST = b'{"kind":"PodList","metadata":{"resourceVersion":"7"},"items":[]}'
NAMES = ("nodes", "pods", "configmaps")
CLAIMS = ("resourceslices", "resourceclaims", "devicetaintrules")

Following = ListWatch[Decoded[Pod], WatchEvent[Pod]]


class Nobody:
    """A sink that nothing matters to."""

    def replace(self, pages: Sequence[Decoded[Pod]], started: float) -> None:
        pass

    def apply(self, event: WatchEvent[Pod]) -> None:
        pass


class SilentApi(ScriptedApi):
    """A server with empty lists and watches that say nothing until they are closed."""

    def __init__(self) -> None:
        super().__init__(forever=self._answer, now=-math.inf)
        self.lists = 0
        self.writes = 0
        self.is_settled = True
        self.going = threading.Event()
        self.going.set()
        self.lease: ApiError = ApiError("forbidden", 403)

    def _answer(self, call: Call) -> bytes:
        if "leases" in call.path:
            self.writes += call.method == "PUT"
            raise self.lease
        self.lists += 1
        self.going.wait(30)
        return LIST

    @contextmanager
    def stream(self, path: str, query: Mapping[str, str], **_: Any) -> Iterator[Lines]:
        lines = SilentLines()
        yield lines
        lines.close()


class SilentLines:
    def __init__(self) -> None:
        self._closed = threading.Event()

    def __iter__(self) -> Iterator[bytes]:
        self._closed.wait(30)
        return iter(())

    def close(self) -> None:
        self._closed.set()


class World:
    """A gate with clock, collections and Lease in the test's hand; no thread runs."""

    def __init__(self, leads: bool = False, names: Sequence[str] = NAMES) -> None:
        self.now = 1000.0
        self.following: dict[str, Following] = {
            name: ListWatch(f"/api/v1/{name}", PODS) for name in names
        }
        sources = {
            name: Source(Reflector(SilentApi(), machine, Nobody()), name in ("configmaps", *CLAIMS))
            for name, machine in self.following.items()
        }
        self.elector = Elector("kube-system", "gpushare-extender", "me", BUDGET)
        leading = _leading(SilentApi(), self.elector) if leads else None
        self.gate = Readiness(sources, leading, lambda: self.now)

    def list(self, *names: str) -> None:
        """Let these be listed now."""
        for name in names:
            machine = self.following[name]
            machine.request_relist()
            self.now += machine.timing.relist_spacing
            assert isinstance(machine.next(self.now, 0.0), List)
            whole = machine.on_page(LIST, self.now)
            assert whole is not None
            machine.on_delivered(whole)

    def fail(self, name: str, status: int) -> None:
        """Let a list be answered with this status, or not at all (0)."""
        machine = self.following[name]
        self.now += machine.timing.longest_pause
        assert isinstance(machine.next(self.now, 0.0), List)
        machine.on_error(ApiError("no list", status), self.now)


def _leading(api: SilentApi, elector: Elector) -> LeaseRunner:
    return LeaseRunner(api, elector, namespace="kube-system", name="gpushare-extender")


def win(elector: Elector, now: float) -> None:
    """Let the elector take a Lease that its last holder has given away."""
    assert isinstance(elector.tick(now, now, 0.0), Read)
    given_away = json.loads(new_lease("kube-system", "gpushare-extender", "", now - 60, 1))
    given_away["metadata"]["resourceVersion"] = "1"
    elector.on_lease(json.dumps(given_away).encode(), now)
    action = elector.tick(now, now, 0.0)
    assert isinstance(action, Create | Update)
    elector.on_written(action.body, now)
    assert elector.term.until(now) > now


def test_nothing_is_ready_before_nodes_and_pods_are_listed() -> None:
    world = World()
    assert world.gate.not_ready() == "nodes are not listed yet"
    world.list("nodes")
    assert world.gate.not_ready() == "pods are not listed yet"
    world.list("pods")
    assert world.gate.not_ready() == "configmaps are not listed yet"
    world.list("configmaps")
    assert world.gate.not_ready() == ""
    assert world.gate.checks() == dict.fromkeys((*NAMES, "leadership"), "")


@pytest.mark.parametrize("status", [403, 404])
def test_what_is_forbidden_or_not_there_is_not_waited_for(status: int) -> None:
    world = World()
    world.list("nodes", "pods")
    assert world.gate.not_ready() == "configmaps are not listed yet"
    world.fail("configmaps", status)
    assert world.gate.not_ready() == ""
    world.list("nodes", "pods")
    assert world.gate.not_ready() == ""


@pytest.mark.parametrize("status", [0, 401, 429, 500, 503])
def test_what_gets_no_answer_is_waited_for_as_long_as_it_takes(status: int) -> None:
    world = World()
    world.list("nodes", "pods")
    for _ in range(100):
        world.fail("configmaps", status)
        assert world.gate.checks()["configmaps"] == "configmaps are not listed yet"
    world.now += 30.0
    world.list(*NAMES)
    assert world.gate.not_ready() == ""


def test_what_was_refused_before_the_rest_was_listed_is_asked_for_once_more() -> None:
    world = World()
    assert world.gate.not_ready() == "nodes are not listed yet"
    for name in NAMES:  # as by an API server that has not read its roles yet
        world.fail(name, 403)
    world.list("nodes", "pods")
    assert world.gate.not_ready() == "configmaps are not listed yet"
    world.fail("configmaps", 0)
    assert world.gate.not_ready() == "configmaps are not listed yet"
    world.fail("configmaps", 403)
    assert world.gate.not_ready() == ""


def test_books_nobody_spoke_of_for_long_are_out_of_date() -> None:
    world = World()
    world.list(*NAMES)
    world.now = world.following["nodes"].last_contact + STALE_AFTER
    assert world.gate.not_ready() == ""
    world.now += 0.1
    assert world.gate.not_ready() == "no word from the API server about nodes"
    world.list("nodes", "pods")
    # The ConfigMaps are as old, and only say which devices not to use.
    assert world.gate.not_ready() == ""


def test_who_always_leads_may_always_bind() -> None:
    world = World()
    assert world.gate.leads_until() == math.inf
    world.gate.tick()
    assert "leadership" not in world.gate.liveness()


def test_who_does_not_lead_is_not_ready_and_may_not_bind() -> None:
    world = World(leads=True)
    world.list(*NAMES)
    assert world.gate.not_ready() == "another process leads, or nobody does yet"
    assert world.gate.leads_until() <= world.now
    world.gate.tick()


def test_a_new_leader_waits_for_a_list_begun_after_its_fence() -> None:
    world = World(leads=True)
    world.list(*NAMES)
    world.now += 1.0
    win(world.elector, world.now)
    assert world.gate.not_ready() == "pods are listed once more after a change of leader"
    assert world.gate.leads_until() == -math.inf
    # A list of nodes is no list of pods.
    world.list("nodes")
    assert world.gate.not_ready() != ""
    world.list("pods")
    assert world.gate.not_ready() == ""
    assert world.gate.leads_until() == world.elector.term.until(world.now) > world.now


@pytest.mark.parametrize("missing", CLAIMS)
@pytest.mark.parametrize("status", [403, 404])
def test_without_a_right_to_claims_pods_by_annotation_are_served(missing: str, status: int) -> None:
    world = World(names=(*NAMES, *CLAIMS))
    world.list(*NAMES, *{*CLAIMS} - {missing})
    assert world.gate.not_ready() == f"{missing} are not listed yet"
    world.fail(missing, 0)
    assert world.gate.not_ready() == f"{missing} are not listed yet"
    world.fail(missing, status)
    assert world.gate.not_ready() == ""
    world.list(missing)
    world.now += 200.0
    world.list(*NAMES)
    assert world.gate.not_ready() == ""


def test_a_term_that_begins_while_a_bind_asks_counts_with_its_own_fence() -> None:
    world = World(leads=True)
    world.list(*NAMES)
    world.now += 1.0
    looks: list[float] = []

    def clock() -> float:
        looks.append(world.now)
        if len(looks) == 2:
            win(world.elector, world.now)
        return world.now

    world.gate.clock = clock
    assert world.gate.leads_until() <= world.now
    assert world.elector.term.until(world.now) > world.now


def test_a_term_that_ends_makes_it_not_ready_again() -> None:
    world = World(leads=True)
    win(world.elector, world.now)
    world.list(*NAMES)
    assert world.gate.not_ready() == ""
    world.now = world.elector.term.end
    assert world.gate.not_ready() == "another process leads, or nobody does yet"


def test_who_leads_for_long_without_books_is_restarted_so_that_another_leads() -> None:
    world = World(leads=True)
    word = "it leads, and has had no books for long"

    def after(seconds: float) -> str:
        world.now += seconds
        world.elector.term = Term(end=world.now + 10.0)  # the elector renews its Lease all the time
        world.gate.tick()
        return world.gate.liveness()["leadership"]

    world.list("nodes")
    assert after(0.0) != word
    assert after(MAX_UNSYNCED_SECONDS) != word
    assert after(0.1) == word
    world.list("nodes", "pods")
    assert after(0.0) != word
    # A watch that says nothing any more, while the Lease is renewed.
    assert after(STALE_AFTER + 0.1) != word
    assert after(MAX_UNSYNCED_SECONDS + 0.1) == word


def test_who_does_not_lead_may_wait_for_its_books_as_long_as_it_takes() -> None:
    world = World(leads=True)
    for _ in range(3):
        world.gate.tick()
        world.now += MAX_UNSYNCED_SECONDS
    assert (
        world.gate.liveness()["leadership"] == "its thread is stuck"
    )  # the thread was never started


def test_the_gauges_tell_what_the_checks_do() -> None:
    world = World(leads=True)
    world.now += 5.0
    state = world.gate.state()
    assert (state["ready"], state["leader"], state["pods_synced"]) == (0, 0, 0)
    assert state["pods_age_seconds"] == 5.0
    assert set(state) == {"ready", "leader"} | {
        f"{name}_{item}"
        for name in NAMES
        for item in ("synced", "age_seconds", "relists_total", "decode_errors_total")
    }
    win(world.elector, world.now)
    world.list(*NAMES)
    state = world.gate.state()
    assert (state["ready"], state["leader"], state["pods_synced"]) == (1, 1, 1)
    assert (state["pods_relists_total"], state["pods_decode_errors_total"]) == (1, 0)
    assert state["pods_age_seconds"] < 5.0


@pytest.fixture
def api() -> SilentApi:
    return SilentApi()


@pytest.fixture
def elector() -> Elector:
    return Elector("kube-system", "gpushare-extender", "me", BUDGET)


@pytest.fixture
def pods(api: SilentApi) -> Reflector[Decoded[Pod], WatchEvent[Pod]]:
    machine: Following = ListWatch("/api/v1/pods", PODS, timing=Timing(relist_spacing=0.01))
    return Reflector(api, machine, Nobody())


@pytest.fixture
def gate(
    api: SilentApi, elector: Elector, pods: Reflector[Decoded[Pod], WatchEvent[Pod]]
) -> Iterator[Readiness]:
    readiness = Readiness(
        {"pods": Source(pods)},
        _leading(api, elector),
        is_settled=lambda: api.is_settled and readiness.leads_until() < 0,
    )
    yield readiness
    readiness.stop()


def test_threads_are_alive_from_start_to_stop(gate: Readiness) -> None:
    stuck = dict.fromkeys(("pods", "leadership"), "its thread is stuck")
    assert gate.liveness() == stuck
    gate.start()
    poll(lambda: gate.liveness() == dict.fromkeys(("pods", "leadership"), ""))
    gate.stop()
    assert gate.liveness() == stuck


def test_ages_count_from_the_start_and_not_from_the_making() -> None:
    world = World()
    world.gate.stop()  # no thread asks anything
    world.now += 300.0
    world.gate.start()
    assert world.gate.state()["nodes_age_seconds"] == 0.0


@pytest.mark.parametrize("settled", [True, False])
def test_the_lease_is_given_away_only_when_nothing_may_land_any_more(
    api: SilentApi, elector: Elector, gate: Readiness, settled: bool
) -> None:
    win(elector, time.monotonic())
    gate.start()
    api.is_settled = settled
    gate.stop()
    assert api.writes == settled


def test_a_new_leadership_has_pods_listed_once(
    api: SilentApi,
    elector: Elector,
    pods: Reflector[Decoded[Pod], WatchEvent[Pod]],
    gate: Readiness,
) -> None:
    pods.start()
    poll(lambda: api.lists == 1 and gate.checks()["pods"] == "")
    win(elector, time.monotonic())
    api.going.clear()
    gate.tick()
    poll(lambda: api.lists == 2)
    gate.tick()  # while that list is under way
    api.going.set()
    poll(lambda: gate.not_ready() == "")
    gate.tick()
    time.sleep(1.2)  # lists are at least a second apart
    assert api.lists == 2


def test_an_api_that_is_not_there_is_neither_waited_for_nor_counted() -> None:
    world = World()
    world.fail("configmaps", 404)
    world.list("nodes", "pods")
    assert world.gate.not_ready() == ""
    assert "configmaps_synced" not in world.gate.state()
    world.list("configmaps")
    assert world.gate.state()["configmaps_synced"] == 1


def test_the_end_of_the_term_before_is_told() -> None:
    cluster = World(leads=True)
    assert math.isnan(cluster.gate.earlier_end())
    win(cluster.elector, cluster.now)
    assert cluster.gate.earlier_end() == cluster.now - 60
    assert math.isnan(World().gate.earlier_end())
