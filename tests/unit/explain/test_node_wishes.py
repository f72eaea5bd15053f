"""Which pods need a node that sums do not ask for."""

from typing import Any

import pytest

from gpushare.core.model import Cards, NodeSpec, ObservedPod, PodRef, Request
from gpushare.core.node_filters import NodeStates, OwnFilters
from gpushare.core.selectors import Demands
from gpushare.explain.autoscalers import MOST_NODES, Wish, Wishes, node_wishes
from gpushare.ledger import Ledger
from tests.unit.core.clusters import node, state_of
from tests.unit.explain.test_whatif import MEM, POLICY, bind, books

NODE = node("a", 16, 16)


def waits(ledger: Ledger, name: str, units: int, devices: int = 1, **more: Any) -> None:
    amounts = ((MEM, units * devices),)
    request = Request(units, devices, resources=amounts, cards=more.pop("cards", Cards()))
    ref = PodRef("default", name, f"uid-{name}")
    ledger.pod_changed(ObservedPod(ref, request, created=1.0)._replace(**more))


def wishes(ledger: Ledger, *specs: NodeSpec, limit: int = 10) -> list[Wish]:
    return asked(ledger, *specs, limit=limit).wishes


def why_not(ledger: Ledger, *specs: NodeSpec, limit: int = 10) -> dict[str, str]:
    return asked(ledger, *specs, limit=limit).why_not


def asked(ledger: Ledger, *specs: NodeSpec, limit: int = 10) -> Wishes:
    states = NodeStates(map(state_of, specs or (NODE,)))
    return node_wishes(ledger.view(), OwnFilters(states, ledger.taken), POLICY, limit)


def full(*specs: NodeSpec) -> Ledger:
    """Two pods on each node, of more than half a device: 10 of 16."""
    ledger = books(*(specs or (NODE,)))
    for spec in specs or (NODE,):
        units = spec.capacity[0] * 5 // 8
        for number in range(2):
            limit = Request(units, 1, resources=((MEM, units),))
            bind(ledger, f"{spec.name}-{number}", limit, spec.name)
    return ledger


def names(answer: list[Wish]) -> list[str]:
    return [wish.ref.name for wish in answer]


def test_of_a_split_pod_each_part_counts_by_itself() -> None:
    ledger = full()
    split = Request(resources=((MEM, 10),))
    for name, parts in (("fits", (6, 4)), ("large", (8, 2)), ("never", (17, 1))):
        ref = PodRef("default", name, f"uid-{name}")
        ledger.pod_changed(ObservedPod(ref, split.of_parts(parts), created=1.0))
    ledger.pod_gone("uid-fits")
    assert names(wishes(ledger)) == ["large"]
    assert why_not(ledger) == {
        "uid-never": "it would not fit an empty node like those that are there"
    }
    pending = full()
    pending.pod_changed(ObservedPod(PodRef("default", "f", "f"), split.of_parts((6, 4))))
    assert asked(pending) == Wishes()


def test_who_fits_by_the_sum_alone_needs_a_node() -> None:
    ledger = full()
    waits(ledger, "web", 8)
    (wish,) = wishes(ledger)
    assert wish.ref.name == "web"
    assert wish.full == wish.nodes == {"a"}


def test_who_does_not_fit_by_the_sum_is_seen_by_the_autoscaler_itself() -> None:
    ledger = full()
    waits(ledger, "web", 13)
    assert wishes(ledger) == []


def test_who_has_room_needs_none_and_of_two_the_second_does() -> None:
    ledger = books(NODE)
    ten = Request(10, 1, resources=((MEM, 10),))
    bind(ledger, "ten", ten, "a")
    waits(ledger, "first", 9)
    assert wishes(ledger) == []
    waits(ledger, "second", 9, created=2.0)
    assert names(wishes(ledger)) == ["second"]
    waits(ledger, "urgent", 9, created=3.0, priority=5)
    # The sum has 4 left once the pod has a place.
    assert names(wishes(ledger)) == ["first", "second"]


@pytest.mark.parametrize(
    "more",
    [
        {"demands": Demands(gated=True)},
        {"served": False},
        {"demands": Demands(node_selector=(("zone", "none"),))},
        {"cards": Cards(uuids=("GPU-1",))},
    ],
    ids=["gated", "of another scheduler", "let in nowhere", "a card by its name"],
)
def test_for_whom_no_node_would_help_none_is_asked(more: dict[str, Any]) -> None:
    ledger = full()
    waits(ledger, "web", 8, **more)
    assert wishes(ledger) == []


def test_who_is_larger_than_any_device_never_has_one() -> None:
    ledger = books(NODE)
    waits(ledger, "giant", 20)
    assert wishes(ledger) == []
    reason = "it would not fit an empty node like those that are there"
    assert why_not(ledger) == {"uid-giant": reason}
    ledger = full(NODE, larger := node("b", 32, 32))
    waits(ledger, "giant", 20)
    (wish,) = wishes(ledger, NODE, larger)
    assert wish.full == {"b"}
    assert wish.nodes == {"a", "b"}


def test_no_more_are_told_than_asked_for() -> None:
    ledger = full()
    for number in range(5):
        waits(ledger, f"web-{number}", 8)
    assert names(wishes(ledger, limit=2)) == ["web-0", "web-1"]
    reason = "2 other pods that need one come first"
    assert why_not(ledger, limit=2) == dict.fromkeys(
        ("uid-web-2", "uid-web-3", "uid-web-4"), reason
    )


def test_of_very_many_nodes_only_those_that_mislead_are_listed() -> None:
    remaining = [node(f"n{number}", 4) for number in range(MOST_NODES)]
    ledger = full()
    for spec in remaining:
        ledger.node_changed(spec)
    waits(ledger, "web", 8)
    (wish,) = wishes(ledger, NODE, *remaining)
    assert wish.nodes == wish.full == {"a"}
    many = [node(f"m{number}", 16, 16) for number in range(MOST_NODES)]
    crowded = full(NODE, *many)
    waits(crowded, "web", 8)
    assert wishes(crowded, NODE, *many) == []
    assert why_not(crowded, NODE, *many) == {
        "uid-web": "more than 300 nodes have room by sum alone"
    }
