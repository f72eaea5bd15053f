"""Binds with a write that fails in every way an API server can fail: charged once, or not at all.

The extender's own objects against a true API server with faults on order. At the end of each test
the faults end, and the books must be as the API server's objects say.
"""

import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.integration.cluster import MARK, MEM, NODES, PODS, Cluster, Json
from tests.integration.oracle import expected_inspect, over_capacity
from tests.integration.wired import Wired
from tests.support import faults
from tests.support.faults import Fault, FaultRequest, Refusal
from tests.support.waiting import PATIENCE, poll

UNANSWERED = {
    "500": faults.status(500),
    "503": faults.status(503, "ServiceUnavailable", retry_after=1),
    "504": faults.status(504, "Timeout"),
    "dropped before it acted": faults.drop_before(),
}


class Case:
    """A node with one device, and a pod remembered from filter (so that bind reads nothing)."""

    def __init__(self, cluster: Cluster, wired: Wired) -> None:
        self.cluster, self.wired = cluster, wired
        self.node = cluster.node(devices=1, total=16)
        wired.knows(self.node)
        self.pod = cluster.pod(10)
        self.name = str(self.pod["metadata"]["name"])
        assert wired.fit(self.pod, [self.node]) == [self.node]

    def post(self, fault: Fault, times: int = 1) -> None:
        """Let the pod's next Bindings meet the fault."""
        self.cluster.faults.on("POST", f"/{self.name}/binding$", fault, times=times)

    def get(self, fault: Fault, times: int = 1) -> None:
        """Let the next reads of the pod meet the fault."""
        self.cluster.faults.on("GET", f"/pods/{self.name}$", fault, times=times)

    def bind(self) -> str:
        return self.wired.bind(self.pod, self.node)

    def used(self) -> int:
        return self.wired.used(self.node)[0]

    def bound(self) -> bool:
        return self.cluster.node_of(self.pod) == self.node

    def state(self) -> dict[str, int]:
        """The number of charges in each state."""
        counts = self.wired.ledger.counts()
        return {name: counts[name] for name in ("assumed", "in_doubt", "bound") if counts[name]}


@pytest.fixture
def case(cluster: Cluster, wired: Wired) -> Case:
    return Case(cluster, wired)


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (400, "BadRequest"),
        (403, "Forbidden"),
        (404, "NotFound"),
        (409, "Conflict"),
        (422, "Invalid"),
    ],
)
def test_a_definite_refusal_frees_the_charge_at_once(case: Case, code: int, reason: str) -> None:
    case.post(faults.status(code, reason))
    assert "a fault on order" in case.bind()
    assert case.used() == 0
    assert case.wired.ledger.counts()["assumed"] == 0
    assert case.bind() == ""
    assert case.used() == 10


def test_a_server_that_is_too_busy_is_not_asked_twice(case: Case) -> None:
    case.post(faults.status(429, "TooManyRequests", retry_after=30))
    begin = time.monotonic()
    assert "429" in case.bind()
    assert time.monotonic() - begin < 25  # the API server did not wait as long as requested
    assert case.cluster.bindings() == [case.name]
    assert case.used() == 0
    assert case.bind() == ""


@pytest.mark.parametrize("fault", UNANSWERED.values(), ids=UNANSWERED.keys())
def test_a_bind_without_an_answer_stays_charged_until_the_same_bind_again(
    case: Case, fault: Fault
) -> None:
    case.post(fault)
    assert "did not say whether the binding" in case.bind()
    case.wired.settle()  # the pod reads as unbound, which proves nothing yet
    assert case.used() == 10
    assert case.state() == {"assumed": 1, "in_doubt": 1}
    other_node = case.cluster.node()
    case.wired.knows(other_node)
    assert "has not ended" in case.wired.bind(case.pod, other_node)
    assert not case.wired.fit(case.cluster.pod(7), [case.node])
    assert case.bind() == ""
    assert case.bound()
    assert case.used() == 10
    assert case.cluster.bindings() == [case.name] * 2


def test_a_lost_answer_is_found_out_by_reading_back(case: Case) -> None:
    case.post(faults.drop_after())
    assert case.bind() == ""
    assert case.used() == 10
    assert case.bind() == ""
    assert case.cluster.bindings() == [case.name]


@pytest.mark.parametrize("fault", [faults.drop_before(), faults.drop_after()], ids=["lost", "done"])
def test_where_the_pod_cannot_be_read_back_the_charge_stays(case: Case, fault: Fault) -> None:
    case.post(fault)
    case.get(faults.status(503))
    assert "cannot be read either" in case.bind()
    assert case.used() == 10
    assert case.bind() == ""
    assert case.used() == 10


def test_a_conflict_that_cannot_be_looked_into_stays_charged(case: Case) -> None:
    case.post(faults.status(409, "Conflict"))
    case.get(faults.drop_before())
    assert case.bind() != ""
    assert case.used() == 10
    assert case.bind() == ""


@pytest.mark.parametrize("answer", [None, Refusal(504, "Timeout")], ids=["dropped", "504"])
def test_a_write_that_lands_late_is_settled_as_bound(case: Case, answer: Refusal | None) -> None:
    case.post(faults.apply_late(2.5, answer=answer))
    assert "reads as not bound so far" in case.bind()
    case.wired.settle()
    assert case.used() == 10
    poll(case.bound, "the late write has landed")
    poll(lambda: case.state() == {"bound": 1}, "the watch has settled it")
    assert case.bind() == ""
    assert case.cluster.bindings() == [case.name]


def test_the_same_bind_again_overtakes_its_own_late_write(case: Case) -> None:
    case.post(faults.apply_late(0.5))
    assert case.bind() != ""
    assert case.bind() == ""
    notes = case.cluster.annotations(case.pod)
    case.wired.agrees(case.cluster)
    time.sleep(0.7)  # by now the first write has come, and was refused
    assert case.cluster.annotations(case.pod) == notes
    assert case.used() == 10


def test_a_doubt_ends_when_the_pod_is_deleted(case: Case) -> None:
    case.post(faults.drop_before())
    assert case.bind() != ""
    case.cluster.delete_pod(case.pod)
    poll(lambda: case.used() == 0, "the charge is gone")
    assert case.bind() != ""


def test_a_doubt_ends_when_somebody_else_binds_the_pod(case: Case) -> None:
    other_node = case.cluster.node()
    case.wired.knows(other_node)
    case.post(faults.drop_before())
    assert case.bind() != ""
    case.cluster.server.registry.bind(
        "default",
        case.name,
        {
            "metadata": {"name": case.name, "annotations": {f"{MARK}IDX": "1"}},
            "target": {"kind": "Node", "name": other_node},
        },
    )
    case.wired.agrees(case.cluster)
    assert (case.used(), case.wired.used(other_node)) == (0, [0, 10])
    assert f"already bound to node '{other_node}'" in case.bind()


def test_a_pod_made_anew_under_its_name_during_the_bind_is_left_alone(case: Case) -> None:
    case.post(faults.delay(0.6))
    with ThreadPoolExecutor(1) as pool:
        binding = pool.submit(case.bind)
        poll(lambda: case.cluster.bindings() == [case.name], "the Binding is on its way")
        case.cluster.delete_pod(case.pod)
        successor = case.cluster.pod(4, name=case.name)
        assert binding.result(PATIENCE) != ""
    assert case.cluster.node_of(successor) == ""
    assert case.used() == 0
    assert case.wired.bind(successor, case.node) == ""
    assert case.used() == 4


def test_a_stalled_server_holds_a_bind_no_longer_than_the_scheduler_waits(case: Case) -> None:
    case.post(faults.delay(8.0))
    with ThreadPoolExecutor(1) as pool:
        begin = time.monotonic()
        binding = pool.submit(case.bind)
        poll(lambda: case.cluster.bindings() == [case.name], "the Binding is on its way")
        assert case.wired.fit(case.cluster.pod(7), [case.node]) == []  # the pod counts meanwhile
        assert not binding.done(), "filter has waited for a bind"
        assert "did not say" in binding.result(PATIENCE)
        assert time.monotonic() - begin < 7.5, "it has waited for the answer"
    poll(lambda: case.state() == {"bound": 1}, "it landed after all")


def test_one_pod_bound_by_many_at_once_is_bound_once(case: Case) -> None:
    case.post(faults.delay(0.2), times=64)
    with ThreadPoolExecutor(16) as pool:
        errors = list(pool.map(lambda _: case.bind(), range(16)))
    assert "" in errors
    assert case.cluster.bindings() == [case.name]
    assert case.used() == 10
    assert case.bind() == ""


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_books_hold_through_a_storm_of_faults(cluster: Cluster, wired: Wired, seed: int) -> None:
    """Whatever fails, no device is ever promised twice, and in the end everything is known."""
    nodes = [cluster.node(devices=4, total=64) for _ in range(3)]
    wired.knows(*nodes)
    pods = [cluster.pod(3 + number % 6) for number in range(60)]
    cluster.hook = storm(seed)
    with ThreadPoolExecutor(8) as pool:
        placements = list(pool.map(lambda pod: schedule(wired, pod, nodes), pods))
    document = expected_inspect(cluster.all(NODES), cluster.all(PODS), MEM)
    assert over_capacity(document) == []
    cluster.hook = None
    assert sum(placements) > 20
    wired.agrees(cluster)
    assert [cluster.node_of(pod) != "" for pod in pods] == placements


def storm(seed: int) -> Callable[[FaultRequest], Fault | None]:
    """A hook that lets about half of all calls fail, each in another way."""
    chance = random.Random(seed)
    turns = threading.Lock()
    kinds = (
        *(faults.drop_before(), faults.drop_after(), faults.apply_late(0.05)),
        *(faults.status(503), faults.status(409, "Conflict"), faults.status(429, "TooMany")),
        *(faults.delay(0.05), faults.delay(0.05) | faults.drop_after()),
    )

    def fault(request: FaultRequest) -> Fault | None:
        with turns:
            chosen, lucky = chance.choice(kinds), chance.random() < 0.4
        if "watch" in request.query:
            return faults.cut_watch(7)
        if request.method == "POST":
            return None if lucky else chosen
        return faults.status(503) if "/pods/" in request.path and not lucky else None

    return fault


def schedule(wired: Wired, pod: Json, nodes: list[str]) -> bool:
    """Whether the pod found a place: asks as kube-scheduler does, again and again."""
    home, error = "", ""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        targets = [home] if home else wired.fit(pod, nodes)
        if not targets:
            return False
        error = wired.bind(pod, targets[0])
        if error == "":
            return True
        standing = wired.ledger.entry(pod["metadata"]["uid"])
        home = standing.node if standing else ""  # in doubt: a bind to another node is refused
        time.sleep(0.01)
    raise AssertionError(f"{pod['metadata']['name']} is never settled: {error}")
