"""What the users of claims are told: which devices, or why none, once while it is the same."""

from typing import Any

import pytest

from gpushare.core.explain import Explanation
from gpushare.core.model import NodeSpec
from gpushare.core.node_filters import NodeState
from gpushare.explain.claims import ClaimsLack, DriverNodes
from gpushare.extender.claims.view import ClaimsView
from gpushare.extender.tell.events.messages import ClaimEvents, EventMessages
from gpushare.wire.dra.objects import ResourceSlice
from tests.unit.extender.claims.store import ClaimStore, waiting_pod
from tests.unit.extender.claims.test_allocator import Process
from tests.unit.extender.scripted_extender import Heard
from tests.unit.wire.dra.objects import slice_of, stepped


class World:
    """An allocator over a store, and the events that are written of it."""

    def __init__(self, *slices: ResourceSlice) -> None:
        self.store, self.heard, self.now = ClaimStore(), Heard(), 0.0
        self.process = Process(self.store, *slices)
        messages = EventMessages(self.heard, self.process.resources, "GiB", clock=lambda: self.now)
        self.view: ClaimsView = self.process.view
        self.events = ClaimEvents(messages, self.view, clock=lambda: self.now)

    def wait(self, *pods: tuple[str, int], **request: object) -> None:
        """Let pods wait, each with a claim of its name."""
        for name, gib in pods:
            self.store.create(name, gib, **request)
        self.process.show()
        self.process.waits(*(waiting_pod(f"p{name}", name) for name, _ in pods))

    def seconds(self, number: int, *, ready: bool = True) -> list[tuple[str, str, str]]:
        """Let time pass; return the events of it."""
        before = len(self.heard.events)
        for _ in range(number):
            self.now += 1.0
            self.process.round()
            self.process.show()
            self.events.tick(ready)
        return self.heard.events[before:]


def test_who_is_given_devices_is_told_which() -> None:
    world = World()
    world.wait(("a", 10))
    assert world.seconds(5) == [
        (
            "Pod pa",
            "GPUShareAllocated",
            "claim default/a: node n1: 10 GiB on gpu-1 (GPU-101)",
        )
    ]


def test_of_several_requests_each_device_is_told_with_its_own_amount() -> None:
    world = World()
    world.store.create("a", 5, 40)
    world.wait(("b", 60))
    world.process.waits(waiting_pod("pa", "a"))
    (event,) = world.seconds(5)
    assert event[2] == (
        "claim default/a: node n1: 40 GiB on gpu-0 (GPU-100), 5 GiB on gpu-1 (GPU-101)"
    )
    world.store.create("c", 30, 20)
    world.process.waits(waiting_pod("pc", "c"))
    (event,) = world.seconds(5)
    assert event[2] == (
        "0 of 1 nodes take the pod with its claim default/c: 1 Insufficient GPU Memory in enough"
        " devices; free now: at most 40 GiB on n1 device 0, and 30 + 19 GiB on 2 devices of one"
        " node; it would fit on n1 once claim default/a (45 GiB) is freed"
    )


def test_who_is_rounded_up_is_told_what_he_has_and_who_finds_no_room_for_it_is_told_so() -> None:
    world = World(slice_of(stepped(0, 78, 10)))
    world.wait(("a", 65))
    (event,) = world.seconds(1)
    assert event[2] == "claim default/a: node n1: 70 GiB on gpu-0 (GPU-100)"
    world.wait(("b", 7))
    (event,) = world.seconds(30)
    assert event[1:] == (
        "GPUShareNoFit",
        "0 of 1 nodes take the pod with its claim default/b: 1 Insufficient GPU Memory in one"
        " device; free now: at most 8 GiB on n1 device 0; as the driver rounds amounts up, no claim"
        " fits now; it would fit on n1 once claim default/a (70 GiB) is freed",
    )


def test_who_finds_no_room_is_told_once_by_kinds_of_nodes_and_what_would_help() -> None:
    world = World()
    world.wait(("a", 70), ("b", 70))
    world.seconds(1)
    (event,) = world.seconds(200)
    assert event == (
        "Pod pb",
        "GPUShareNoFit",
        "0 of 1 nodes take the pod with its claim default/b: 1 Insufficient GPU Memory in one"
        " device; free now: at most 24 GiB on n1 device 1; it would fit on n1 once"
        " claim default/a (70 GiB) is freed",
    )
    world.process.resources.node_states.put(NodeState("n1", cordoned=True))
    (event,) = world.seconds(200)
    assert event[2].startswith("0 of 1 nodes take the pod with its claim default/b: 1 cordoned;")


def test_who_waits_only_a_moment_is_told_nothing() -> None:
    world = World()
    world.wait(("a", 70), ("b", 70))
    world.seconds(2)
    world.store.delete("a")
    world.process.show()
    assert [reason for _, reason, _ in world.seconds(5)] == ["GPUShareAllocated"]


def test_who_asks_for_what_cannot_be_given_is_told_what_to_do() -> None:
    world = World()
    world.wait(("a", 10), selectors=[{"cel": {"expression": "true"}}])
    (event,) = world.seconds(200)
    assert event[:2] == ("Pod pa", "GPUShareMistake")
    assert event[2] == (
        "claim default/a: request gpu of class gpushare.io may have no selectors; what a claim asks"
        " for cannot be changed: correct it, or its template, and create it and the pod again"
    )


def test_a_claim_that_nobody_can_read_is_why_the_others_wait() -> None:
    world = World()
    world.process.books.claim_unread("uid-x")
    world.wait(("a", 10))
    (event,) = world.seconds(200)
    assert event == (
        "Pod pa",
        "GPUShareNoFit",
        "it cannot be read which cards claim uid-x has: nothing is given out",
    )


def test_who_does_not_lead_tells_nothing() -> None:
    world = World()
    world.wait(("a", 10), ("b", 100))
    assert world.seconds(10, ready=False) == []
    assert [reason for _, reason, _ in world.seconds(10)] == ["GPUShareNoFit"]


def test_of_very_many_that_wait_a_few_are_explained_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, explained, original = World(), list[ClaimsLack](), DriverNodes.explanation

    def explain(nodes: DriverNodes, lack: ClaimsLack, *more: Any) -> Explanation:
        explained.append(lack)
        return original(nodes, lack, *more)

    monkeypatch.setattr(DriverNodes, "explanation", explain)
    world.wait(*((f"c{at:03}", 100) for at in range(60)))
    world.seconds(3)
    assert len(explained) == 4
    world.seconds(30)
    assert len(explained) == 60


def test_a_node_of_both_worlds_is_told_of() -> None:
    world = World()
    world.process.ledger.node_changed(NodeSpec("n1", (80,), (True,), ("",), ("GPU-100",)))
    world.wait(("a", 10))
    (event,) = world.seconds(30)
    assert "1 shares devices by annotation; " in event[2]


def test_who_has_room_for_each_claim_and_not_for_all_is_told_so() -> None:
    world = World()
    world.wait(("full", 76))  # 4 GiB are left of one card, and the other one has 24
    world.seconds(5)
    for name in ("a", "b"):
        world.store.create(name, 20)
    world.process.show()
    world.process.waits(waiting_pod("p", "a", "b"))
    (event,) = world.seconds(200)
    assert event == (
        "Pod p",
        "GPUShareNoFit",
        "0 of 1 nodes take the pod with its claims default/a, default/b: 1 room for the pod's"
        " largest claim, not for all of them; free now: at most 24 GiB on n1 device 1; it would fit"
        " once one node has room for all its claims",
    )


def test_of_whose_claims_are_on_two_nodes_no_node_is_counted() -> None:
    world = World(slice_of(stepped(0, 80, 1)), slice_of(stepped(1, 80, 1), node="n2"))
    world.process.resources.node_states.put(NodeState("n2"))
    world.wait(("a", 60), ("b", 60))
    assert len(world.seconds(1)) == 2
    world.store.create("c", 5)
    world.process.show()
    world.process.waits(waiting_pod("p", "a", "b", "c"))
    (event,) = world.seconds(200)
    assert event[:2] == ("Pod p", "GPUShareNoFit")
    assert event[2].startswith("its claims have devices on different nodes, and other pods use")
