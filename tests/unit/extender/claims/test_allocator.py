"""The allocator under answers that are lost, writes that are late, and processes that die."""

import math
import random
import threading
from collections.abc import Callable

import pytest

from gpushare.core.model import NodeSpec
from gpushare.core.node_filters import NodeState
from gpushare.core.policy import load_policy
from gpushare.core.ranking import Ranking
from gpushare.extender.claims.allocator import Allocator
from gpushare.extender.claims.books import ClaimBooks
from gpushare.extender.claims.handlers import ClaimHandler, SliceHandler, WaitingPods
from gpushare.extender.managed_resources import ManagedResources
from gpushare.wire.codec import Decoded, WatchEvent
from gpushare.wire.dra.objects import ClaimsPod, ResourceSlice
from tests.unit.extender.claims.store import ClaimStore, waiting_pod
from tests.unit.extender.kit import make_library
from tests.unit.wire.dra.objects import DRIVER, GIB, device, slice_of

NOT_LEADING = "another process leads"
SLICES = (slice_of(device(0, 80), device(1, 24)),)


class Process:
    """One process: its books and its allocator, over a store; the clock stands unless moved."""

    def __init__(self, store: ClaimStore, *slices: ResourceSlice) -> None:
        self.store, self.now, self.leads, self.problem = store, 0.0, math.inf, ""
        self.resources: ManagedResources = make_library()
        self.resources.node_states.put(NodeState("n1"))
        self.ledger = next(iter(self.resources)).ledger
        ranking = Ranking(load_policy("device-bestfit"))
        self.books = ClaimBooks(DRIVER, GIB, ranking, self.ledger.lend)
        changed = threading.Event()
        self.pods = WaitingPods(changed.set)
        self.claims = ClaimHandler(self.books, changed.set)
        SliceHandler(self.books, changed.set).replace([Decoded(slices or SLICES, "")], 0.0)
        self.seen = 0
        self.relist()
        self.allocator = Allocator(
            store,
            self.books,
            self.pods,
            self.resources,
            changed,
            not_ready=lambda: self.problem,
            leads_until=lambda: self.leads,
            clock=lambda: self.now,
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
        (waiting_pod("p", "a", "b"), {}),
        (waiting_pod("p", "a"), {"selectors": [{"cel": {"expression": "true"}}]}),
        (waiting_pod("p", "a"), {"count": 2, "memory": "30Gi"}),
        (waiting_pod("p", "nobody"), {}),
    ],
    ids=["two claims", "selectors", "too large", "no claim"],
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
        store.create(name, chance.choice((3, 8, 13, 24, 50)))
        pods[name] = waiting_pod(f"p-{name}", name)
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
