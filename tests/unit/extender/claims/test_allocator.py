"""The allocator under answers that are lost, writes that are late, and processes that die."""

import math
import random
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from gpushare.core.model import NodeSpec
from gpushare.core.node_filters import PODS, NodeState
from gpushare.core.policy import load_policy
from gpushare.core.ranking import Ranking
from gpushare.errors import ApiError, ApiUnavailable
from gpushare.extender.claims import writer
from gpushare.extender.claims.allocator import Allocator
from gpushare.extender.claims.books import ClaimBooks
from gpushare.extender.claims.handlers import ClaimHandler, SliceHandler, WaitingPods
from gpushare.extender.claims.view import ClaimsView, Journal
from gpushare.extender.managed_resources import ManagedResources
from gpushare.wire.codec import Decoded, WatchEvent
from gpushare.wire.dra.objects import (
    ClaimsPod,
    ClaimsPodStatus,
    DeviceClass,
    ResourceClaim,
    ResourceSlice,
)
from gpushare.wire.dra.writes import allocation
from tests.support.waiting import poll
from tests.unit.extender.claims.store import ClaimStore, waiting_pod
from tests.unit.extender.kit import managed_resources
from tests.unit.wire.dra.objects import DRIVER, GIB, device, device_class, slice_of

NOT_LEADING = "another process leads"
SLICES = (slice_of(device(0, 80), device(1, 24)),)


class Process:
    """One process: its books and its allocator, over a store; the clock stands unless moved."""

    def __init__(self, store: ClaimStore, *slices: ResourceSlice, writers: int = 1) -> None:
        self.store, self.now, self.leads, self.problem = store, 0.0, math.inf, ""
        self.resources: ManagedResources = managed_resources()
        self.resources.node_states.put(NodeState("n1"))
        self.ledger = next(iter(self.resources)).ledger
        ranking = Ranking(load_policy("device-bestfit"))
        self.books = ClaimBooks(DRIVER, GIB, ranking, self.ledger.lend)
        changed = self.changed = threading.Event()
        self.pods = WaitingPods(changed.set)
        self.claims = ClaimHandler(self.books, changed.set)
        SliceHandler(self.books, changed.set).replace([Decoded(slices or SLICES, "")], 0.0)
        self.seen = 0
        self.relist()
        self.device_class: DeviceClass | None = device_class()
        self.journal = Journal()
        self.view = ClaimsView(
            DRIVER,
            self.books,
            self.journal,
            self.resources,
            policy="device-bestfit",
            ranking=ranking,
        )
        self.allocator = Allocator(
            store,
            self.books,
            self.pods,
            self.resources,
            changed,
            device_class=lambda: self.device_class,
            journal=self.journal,
            not_ready=lambda: self.problem,
            leads_until=lambda: self.leads,
            clock=lambda: self.now,
            writers=writers,
        )

    def relist(self) -> None:
        self.claims.replace([Decoded(self.store.listed(), "")], 0.0)
        self.seen = len(self.store.events)

    def show(self, most: float = math.inf) -> None:
        """Deliver events, the oldest first."""
        while self.seen < len(self.store.events) and most > 0:
            self.claims.apply(WatchEvent(*self.store.events[self.seen]))
            self.seen += 1
            most -= 1

    def waits(self, *pods: ClaimsPod) -> None:
        self.pods.replace([Decoded(pods, "")], 0.0)

    def round(self) -> None:
        self.now += 20.0
        self.allocator.round()


def test_three_pods_have_the_cards_that_first_fit_would_not_leave_them() -> None:
    store = ClaimStore()
    process = Process(store)
    for name, gib in (("a", 10), ("b", 10), ("c", 80)):
        store.create(name, gib)
        process.show()
        process.waits(waiting_pod(f"p{name}", name))
        process.round()
    assert store.given() == {"n1/gpu-0": 80, "n1/gpu-1": 20}
    status = store.read("a").status
    assert status
    assert status.reserved_for
    assert [each.uid for each in status.reserved_for] == ["uid-pa"]
    process.show()
    assert process.allocator.settled()


@pytest.mark.parametrize("why", ["not ready", "leads no more", "leads not long enough"])
def test_only_who_leads_writes(why: str) -> None:
    store = ClaimStore()
    store.create("a", 10)
    process = Process(store)
    process.waits(waiting_pod("p", "a"))
    process.problem = "nobody leads" if why == "not ready" else ""
    process.leads = {"leads no more": 0.0, "leads not long enough": 23.0}.get(why, math.inf)
    process.round()
    assert store.given() == {}
    assert process.allocator.settled()
    process.problem, process.leads = "", 100.0
    process.show()
    process.round()
    assert store.given() == {"n1/gpu-1": 10}


@pytest.mark.parametrize("left", [0, 1, "forbidden"])
def test_without_its_fence_nothing_is_given_out_until_it_is_back(left: int | str) -> None:
    store = ClaimStore()
    store.create("a", 10)
    process = Process(store)
    whole = store.fence
    assert isinstance(whole, list)
    store.fence = ApiError("forbidden", 403) if isinstance(left, str) else whole[:left]
    process.waits(waiting_pod("p", "a"))
    process.round()
    assert store.writes == 0
    said = ("no admission policy", "no binding")
    assert (said[left] if isinstance(left, int) else "forbidden") in process.allocator.held_back()
    store.fence = whole
    process.round()
    assert store.given() == {"n1/gpu-1": 10}
    assert process.allocator.held_back() == ""


def test_without_the_class_nothing_is_given_out_until_it_is_there() -> None:
    store = ClaimStore()
    store.create("a", 10)
    process = Process(store)
    process.device_class = None
    process.waits(waiting_pod("p", "a"))
    process.round()
    assert store.writes == 0
    assert process.journal.waiting()["uid-p"].why == "there is no DeviceClass gpushare.io"
    process.device_class = device_class()
    process.round()
    assert store.given() == {"n1/gpu-1": 10}


def test_pods_that_are_to_come_to_a_node_count_there_until_they_are_bound() -> None:
    store = ClaimStore()
    store.create_all("abc", lambda: 10)
    process = two_nodes(store)
    process.resources.node_states.put(NodeState("n1", allocatable={PODS: 1}))
    pods = [waiting_pod(f"p{name}", name) for name in "abc"]
    process.waits(*pods)
    process.round()
    # n1 has the tightest card, and one place; the other two are given cards of n2 at once.
    given = store.given()
    assert given == {"n1/gpu-1": 10, "n2/gpu-5": 20}
    process.show()
    # The first one has gone, or is bound, and is counted as such a moment later.
    process.waits(*pods[1:])
    process.round()
    store.create("d", 10)
    process.show()
    process.waits(*pods[1:], waiting_pod("pd", "d"))
    process.round()
    assert store.given() == {"n1/gpu-1": 20, "n2/gpu-5": 20}


def test_a_pod_that_was_not_shown_for_a_moment_counts_where_it_is_to_come() -> None:
    store = ClaimStore()
    store.create_all("ab", lambda: 10)
    process = two_nodes(store)
    process.resources.node_states.put(NodeState("n1", allocatable={PODS: 1}))
    pods = [waiting_pod(f"p{name}", name) for name in "ab"]
    process.waits(*pods)
    process.round()
    assert store.given() == {"n1/gpu-1": 10, "n2/gpu-5": 10}
    process.show()
    process.waits(pods[1])
    process.allocator.round()
    process.waits(*pods)
    process.round()
    store.create("d", 10)
    process.show()
    process.waits(*pods, waiting_pod("pd", "d"))
    process.round()
    assert store.given() == {"n1/gpu-1": 10, "n2/gpu-5": 20}


def test_a_write_that_hangs_holds_up_no_other_pod_and_is_not_settled_meanwhile() -> None:
    hangs, begun = threading.Event(), threading.Event()

    def fault(path: str) -> str:
        if path.endswith("/a/status"):
            begun.set()
            hangs.wait(60.0)
        return ""

    store = ClaimStore(fault)
    store.create_all("ab", lambda: 10)
    process = Process(store, writers=2)
    process.waits(waiting_pod("pa", "a"))
    process.allocator.start()
    process.changed.set()
    try:
        assert begun.wait(60.0)
        process.waits(waiting_pod("pa", "a"), waiting_pod("pb", "b"))
        poll(lambda: store.given() == {"n1/gpu-1": 10})
        # Protection and allocation of both, of which the first one's has not landed.
        assert store.writes == 4
    finally:
        hangs.set()
    poll(lambda: store.given() == {"n1/gpu-1": 20})
    process.allocator.stop()
    assert store.writes == 4


def test_a_fence_that_goes_is_seen_within_a_minute_and_no_answer_changes_nothing() -> None:
    store = ClaimStore()
    process = Process(store)
    process.round()
    whole, store.fence = store.fence, ApiUnavailable("no answer", 0)
    process.now += 60
    process.round()
    assert process.allocator.held_back() == ""
    store.fence = []
    process.now += 60
    process.round()
    assert "no admission policy" in process.allocator.held_back()
    store.fence = whole
    process.round()
    assert process.allocator.held_back() == ""


@pytest.mark.parametrize("fault", ["lost", "late"])
def test_an_allocation_without_an_answer_keeps_its_charge_and_lands_once(fault: str) -> None:
    faults = [fault, ""]
    store = ClaimStore(lambda path: faults.pop(0) if path.endswith("/status") and faults else "")
    store.create("a", 24)
    store.create("b", 80)
    store.create("c", 24)
    process = Process(store)
    process.waits(waiting_pod("pa", "a"))
    process.round()
    assert not process.allocator.settled()
    process.waits(waiting_pod("pb", "b"), waiting_pod("pc", "c"))
    process.problem = "not now"
    process.round()
    process.problem = ""
    process.round()
    store.land()
    process.show()
    assert store.given() == {"n1/gpu-1": 24, "n1/gpu-0": 80}
    assert process.allocator.settled()


@pytest.mark.parametrize("fault", ["lost", "late", "never"])
def test_an_allocation_that_lands_without_an_answer_is_told_once(fault: str) -> None:
    faults = [fault.replace("never", "late")]
    store = ClaimStore(lambda path: faults.pop() if path.endswith("/status") and faults else "")
    store.create("a", 24)
    process = Process(store)
    process.waits(waiting_pod("pa", "a"))
    process.round()
    assert process.journal.take_given() == []
    if fault == "never":
        store.delete("a")
    store.land()
    for _ in range(3):
        process.show()
        process.round()
    told = [each.claim.name for each in process.journal.take_given()]
    assert told == ([] if fault == "never" else ["a"])
    assert process.journal.outcomes()[0] == {
        "allocated": len(told),
        "refused": 0,
        "in_doubt": 1,
    }


def test_an_allocation_that_was_refused_gives_its_charge_back() -> None:
    faults = ["refused"]
    store = ClaimStore(lambda path: faults.pop() if path.endswith("/status") and faults else "")
    store.create("a", 24)
    process = Process(store)
    process.waits(waiting_pod("pa", "a"))
    process.round()
    assert process.allocator.settled()
    process.show()
    process.round()
    assert store.given() == {"n1/gpu-1": 24}


@pytest.mark.parametrize("fault", ["", "lost", "late", "refused"])
def test_the_requests_of_a_claim_are_allocated_and_freed_together(fault: str) -> None:
    faults = [fault]
    store = ClaimStore(lambda path: faults.pop() if path.endswith("/status") and faults else "")
    store.create("a", 20, 70)
    store.create("b", 24)
    process = Process(store)
    process.waits(waiting_pod("pa", "a"))
    process.round()
    store.land()
    process.waits(waiting_pod("pa", "a"), waiting_pod("pb", "b"))
    for _ in range(2):
        process.show()
        process.round()
    assert store.given() == {"n1/gpu-0": 70, "n1/gpu-1": 20}
    anew = Process(store)
    for each in (process, anew):
        (node,) = each.books.ledger.dump()
        assert node.used == (70, 20)
    store.delete("a")
    anew.show()
    anew.waits(waiting_pod("pb", "b"))
    anew.round()
    assert store.given() == {"n1/gpu-1": 24}


def test_a_claim_that_was_taken_back_is_given_other_cards() -> None:
    other = slice_of(device(5, 80), node="n2")
    assert other.metadata
    other.metadata.name = "other"
    store = ClaimStore()
    store.create("a", 10)
    process = Process(store, *SLICES, other)
    process.resources.node_states.put(NodeState("n2"))
    process.waits(waiting_pod("p", "a"))
    process.round()
    assert store.given() == {"n1/gpu-1": 10}
    store.take_back("a")
    process.show()
    process.round()
    assert store.given() == {"n2/gpu-5": 10}
    store.take_back("a")
    process.show()
    process.round()
    process.round()
    assert store.given() == {"n1/gpu-1": 10}


@pytest.mark.parametrize("nominated", ["n1", "n2"])
def test_a_pod_goes_first_where_kube_scheduler_makes_room_for_it(nominated: str) -> None:
    store = ClaimStore()
    store.create("a", 10)
    process = two_nodes(store)
    pod = waiting_pod("p", "a")
    process.waits(pod)
    process.round()
    # It preempts for CPU, and gives the devices back before it evicts.
    store.take_back("a")
    process.show()
    pod.status = ClaimsPodStatus(nominated_node_name=nominated)
    process.waits(pod)
    process.round()
    assert {key[:2] for key in store.given()} == {nominated}
    store.take_back("a")
    process.show()
    process.resources.node_states.put(NodeState(nominated, cordoned=True))
    process.round()
    process.round()
    assert {key[:2] for key in store.given()} == {"n1", "n2"} - {nominated}, "no room there"


def test_a_node_of_both_worlds_takes_nothing_new() -> None:
    store = ClaimStore()
    store.create("a", 10)
    process = Process(store)
    process.ledger.node_changed(NodeSpec("n1", (80,), (True,), ("",), ("GPU-100",)))
    process.waits(waiting_pod("p", "a"))
    process.round()
    assert store.given() == {}
    assert process.ledger.snapshot().healthy.tolist() == [[False]]


@pytest.mark.parametrize(
    ("pod", "making"),
    [
        (waiting_pod("p", "a"), {"selectors": [{"cel": {"expression": "true"}}]}),
        (waiting_pod("p", "a"), {"count": 2, "memory": "30Gi"}),
        (waiting_pod("p", "nobody"), {}),
    ],
    ids=["selectors", "too large", "no claim"],
)
def test_what_cannot_be_given_out_is_not_written(pod: ClaimsPod, making: dict[str, object]) -> None:
    store = ClaimStore()
    store.create(
        "a",
        10 if "memory" not in making else 30,
        **{key: value for key, value in making.items() if key != "memory"},
    )
    store.create("b", 10)
    process = Process(store)
    process.waits(pod)
    process.round()
    assert store.writes == 0
    assert process.allocator.settled()


def two_nodes(store: ClaimStore) -> Process:
    """n1 with cards of 80 and 24, n2 with two of 40."""
    other = slice_of(device(5, 40), device(6, 40), node="n2")
    assert other.metadata
    other.metadata.name = "other"
    process = Process(store, *SLICES, other)
    process.resources.node_states.put(NodeState("n2"))
    return process


def test_all_claims_of_a_pod_are_on_one_node() -> None:
    store = ClaimStore()
    store.create("a", 24)
    store.create("b", 40)
    process = two_nodes(store)
    process.waits(waiting_pod("p", "a", "b", "a"))
    process.round()
    assert len({key[:2] for key in store.given()}) == 1
    assert sum(store.given().values()) == 64


def test_a_pod_whose_claims_fit_together_nowhere_has_none() -> None:
    store = ClaimStore()
    store.create("a", 80)
    store.create("b", 40)
    store.create("c", 24)
    process = two_nodes(store)
    process.waits(waiting_pod("p", "a", "b"), waiting_pod("q", "c"))
    process.round()
    assert store.given() == {"n1/gpu-1": 24}
    assert process.allocator.settled()


@pytest.mark.parametrize("fault", ["refused", "lost", "late"])
def test_what_the_second_allocation_met_is_made_good(fault: str) -> None:
    faults = ["", fault]
    store = ClaimStore(lambda path: faults.pop(0) if path.endswith("/status") and faults else "")
    store.create("a", 24)
    store.create("b", 40)
    process = two_nodes(store)
    process.waits(waiting_pod("p", "a", "b"))
    process.round()
    assert len(faults) == 0
    for _ in range(4):
        process.show()
        process.round()
        store.land()
    assert len({key[:2] for key in store.given()}) == 1
    assert sum(store.given().values()) == 64
    assert process.allocator.settled()


def test_where_the_second_has_no_room_any_more_the_first_is_taken_back() -> None:
    faults = ["", "refused"]
    store = ClaimStore(lambda path: faults.pop(0) if path.endswith("/status") and faults else "")
    store.create("a", 40)
    store.create("b", 24)
    process = two_nodes(store)
    process.waits(waiting_pod("p", "a", "b"))
    process.round()
    ((key, gib),) = store.given().items()
    assert gib == 40
    node = key[:2]
    process.show()
    for name, state in (("n1", NodeState("n1")), ("n2", NodeState("n2"))):
        if name == node:
            process.resources.node_states.put(replace(state, cordoned=True))
    for _ in range(3):
        process.round()
        process.show()
    assert {key[:2] for key in store.given()} == {"n1", "n2"} - {node}
    assert sum(store.given().values()) == 64


def test_if_one_of_two_is_taken_back_both_go_elsewhere() -> None:
    store = ClaimStore()
    store.create("a", 40)
    store.create("b", 24)
    process = two_nodes(store)
    process.waits(waiting_pod("p", "a", "b"))
    process.round()
    first = {key[:2] for key in store.given()}
    store.take_back("b")
    process.show()
    for _ in range(3):
        process.round()
        process.show()
    assert {key[:2] for key in store.given()} == {"n1", "n2"} - first
    assert sum(store.given().values()) == 64


def test_what_other_pods_have_reserved_is_not_taken_back() -> None:
    store = ClaimStore()
    store.create("a", 80)
    store.create("b", 40)
    process = two_nodes(store)
    process.waits(waiting_pod("other", "a"))
    process.round()
    process.show()
    process.waits(waiting_pod("p", "a", "b"))
    process.round()
    assert store.given() == {"n1/gpu-0": 80}
    store.delete("b")
    store.create("b", 24)
    process.show()
    process.round()
    assert store.given() == {"n1/gpu-0": 80, "n1/gpu-1": 24}
    store.take_back("b")
    process.show()
    for _ in range(3):
        process.round()
        process.show()
    assert store.given() == {"n1/gpu-0": 80, "n1/gpu-1": 24}


def test_a_pod_that_nobody_can_cope_with_keeps_no_other_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = ClaimStore()
    store.create("bad", 10)
    store.create("good", 10)
    process = Process(store)

    def allocated(claim: ResourceClaim, *args: Any, **more: Any) -> bytes:
        if claim.metadata and claim.metadata.name == "bad":
            raise RecursionError("its parameters are nested too deeply")
        return allocation(claim, *args, **more)

    monkeypatch.setattr(writer, "allocation", allocated)
    process.waits(waiting_pod("a", "bad"), waiting_pod("b", "good"))
    process.round()
    process.show()
    assert store.given() == {"n1/gpu-1": 10}
    assert process.allocator.settled()


@pytest.mark.parametrize("seed", range(60))
def test_no_card_has_more_than_it_has_whatever_is_lost(seed: int) -> None:
    chance = random.Random(seed)
    store = ClaimStore(lambda _: chance.choice(("", "", "", "lost", "late", "refused")))
    process, other, pods = Process(store), Process(store), dict[str, ClaimsPod]()
    other.problem = NOT_LEADING

    def checked() -> None:
        given = store.given()
        assert given.get("n1/gpu-0", 0) <= 80, given
        assert given.get("n1/gpu-1", 0) <= 24, given
        process.books.ledger.check()

    def create() -> None:
        name = f"c{len(pods)}"
        names = [name, f"{name}-b"][: chance.choice((1, 1, 2))]
        store.create(name, *chance.choices((3, 8, 13, 24, 50), k=chance.choice((1, 1, 2))))
        store.create_all(names[1:], lambda: chance.choice((3, 8, 13, 24, 50)))
        pods[name] = waiting_pod(f"p-{name}", *names)
        for each in (process, other):
            each.waits(*pods.values())

    def delete() -> None:
        store.delete(chance.choice(sorted(store.claims)))

    def die() -> None:
        nonlocal process
        store.land()  # the fence: who leads next waits for them
        process = Process(store)
        process.waits(*pods.values())

    def lead() -> None:
        nonlocal process, other
        store.land()  # as above
        process, other = other, process
        process.problem, other.problem = "", NOT_LEADING
        process.relist()

    def go_round() -> None:
        other.round()
        process.round()

    steps: list[tuple[Callable[[], None], float]] = [
        (create, 3),
        (go_round, 6),
        (lambda: process.show(chance.randrange(1, 5)), 6),
        (store.land, 2),
        (lambda: store.take_back(chance.choice(sorted(store.claims))), 1),
        (delete, 1),
        (lambda: other.show(chance.randrange(1, 5)), 2),
        (die, 0.5),
        (lead, 0.5),
    ]
    create()
    for _ in range(150):
        (step,) = chance.choices([each for each, _ in steps], [weight for _, weight in steps])
        if store.claims or step is create:
            step()
        checked()
    store.fault = lambda _: ""
    for _ in range(40):
        store.land()
        process.show()
        go_round()
        checked()
    process.show()
    assert process.allocator.settled()
    free = {"n1/gpu-0": 80, "n1/gpu-1": 24}
    for key, gib in store.given().items():
        free[key] -= gib
    used = {
        f"n1/gpu-{int(uuid[4:]) - 100}": units
        for each in process.books.ledger.dump()
        for uuid, units in zip(each.spec.uuids, each.used, strict=True)
    }
    assert {key: free[key] + units for key, units in used.items()} == {
        "n1/gpu-0": 80,
        "n1/gpu-1": 24,
    }
