"""What a request takes of devices that deal out memory in amounts of their own."""

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pytest

from gpushare.core.dealing import AsDealt, Asked, Dealing
from gpushare.core.decide import filter_nodes
from gpushare.core.held_snapshot import HeldSnapshot
from gpushare.core.model import MAX_UNITS, Deals, NodeSpec, ObservedPod, PodRef, Request
from gpushare.core.pairing import Pairing
from gpushare.core.policies.device_bestfit import DeviceBestFit
from gpushare.core.preemption.selection import VictimSelection
from gpushare.core.ranking import Ranking
from gpushare.ledger import Ledger
from tests.unit.core.clusters import node

GRAIN = 4
"""What is asked for counts in fourths of a unit."""


@dataclass(frozen=True, slots=True)
class Steps:
    """Multiples of so many fourths of a unit, and at most so many."""

    step: int
    most_of_all: int

    def takes(self, asked: int) -> int:
        amount = -(-asked // self.step) * self.step
        return -(-amount // GRAIN) if amount <= self.most_of_all else MAX_UNITS + 1

    def most(self, units: int) -> int:
        return min(units * GRAIN, self.most_of_all) // self.step * self.step // GRAIN


def dealt(name: str, *devices: tuple[int, Deals]) -> NodeSpec:
    spec = node(name, *(units for units, _ in devices))
    return NodeSpec(
        name, spec.capacity, spec.healthy, spec.models, deals=tuple(each for _, each in devices)
    )


def asks(*exact: int) -> Asked:
    """So many fourths of a unit on each device."""
    amounts = sorted(exact, reverse=True)
    return Asked(Request().of_parts(-(-each // GRAIN) for each in amounts), tuple(amounts))


def books(*nodes: NodeSpec, **used: Sequence[int]) -> Ledger:
    """Nodes, and a pod on each device that is used; used: units by node."""
    ledger = Ledger(Pairing.OFF)
    for spec in nodes:
        ledger.node_changed(spec)
    for name, units in used.items():
        for device, amount in enumerate(units):
            if amount:
                ref = PodRef("t", f"{name}-{device}", f"{name}-{device}")
                pod = ObservedPod(ref, Request(amount, 1), name, ((device, amount),), assigned=True)
                ledger.pod_changed(pod)
    return ledger


FINE, COARSE = Steps(1, 400), Steps(10 * GRAIN, 400)


def test_each_part_takes_what_the_device_makes_of_it() -> None:
    nodes = [dealt("a", (80, COARSE), (80, FINE)), node("plain", 80, 80)]
    asked = asks(7 * GRAIN, 1)
    assert Dealing(nodes).takes("a", asked) == [[10, 7], [10, 1]]
    assert Dealing(nodes).takes("plain", asked) == [[7, 7], [1, 1]]
    assert Dealing(nodes).where(asked) == [((7, 1), ["a", "plain"])]
    closed = NodeSpec("b", (80, 80), (False, True), ("", ""), deals=(FINE, COARSE))
    coarse = dealt("c", (80, COARSE))
    gone = NodeSpec("d", (80,), (False,), ("",), deals=(FINE,))
    assert Dealing([coarse, closed, gone, nodes[1]]).where(asks(7 * GRAIN)) == [
        ((7,), ["plain"]),
        ((10,), ["c", "b"]),
    ]


def test_what_is_rounded_up_most_is_taken_last() -> None:
    nodes = [dealt("a", (16, COARSE)), dealt("b", (14, FINE))]
    ledger, ranking = books(*nodes), Ranking(DeviceBestFit())
    dealing, asked = Dealing(nodes), asks(7 * GRAIN)
    given = []
    for number in range(4):
        found = dealing.place(ledger.snapshot(), asked, lambda _: True, ranking)
        given.append(found)
        if found:
            name, shares = found
            ref = PodRef("t", str(number), str(number))
            request = Request(shares[0][1], 1)
            ledger.pod_changed(ObservedPod(ref, request, name, shares, assigned=True))
    assert given == [("b", ((0, 7),)), ("b", ((0, 7),)), ("a", ((0, 10),)), None]
    assert dealing.place(books(*nodes).snapshot(), asked, "a".__eq__, ranking) == given[2]


def test_a_view_has_what_could_be_asked_for() -> None:
    ledger = books(dealt("a", (38, COARSE), (8, FINE)), node("plain", 38), a=(20, 3))
    dealing = Dealing(ledger.entries_and_specs()[1].values())
    view = dealing.view(ledger.snapshot())
    row, plain = view.row["a"], view.row["plain"]
    assert view.capacity[row].tolist() == [30, 8]
    assert view.free[row].tolist() == [10, 5]
    assert (view.capacity[plain, 0], view.free[plain, 0]) == (38, 38)
    assert Dealing([node("plain", 38)]).view(ledger.snapshot()) is not view


@pytest.mark.parametrize(
    ("exact", "free", "fits"),
    [
        ((6, 6), (2, 2), True),
        ((7, 6), (2, 2), False),
        ((7, 6), (3, 2), True),
        ((7, 7), (3, 2), False),
        ((8, 7, 6), (3, 2, 3), True),
        ((8, 7, 6), (3, 2, 2), False),
    ],
)
def test_amounts_within_one_unit_are_told_apart(
    exact: tuple[int, ...], free: tuple[int, ...], fits: bool
) -> None:
    ledger = books(dealt("a", *[(8, Steps(6, 32))] * len(free)), a=[8 - units for units in free])
    as_dealt = AsDealt(Dealing(ledger.entries_and_specs()[1].values()), asks(*exact))
    view = as_dealt.view(ledger.snapshot())
    assert bool(filter_nodes(view, ["a"], as_dealt.request).fit) == fits


def _cluster(chance: random.Random) -> Ledger:
    nodes, used = [], {}
    for name in "abc"[: chance.randint(1, 3)]:
        devices = [
            (chance.choice((8, 16, 24)), Steps(chance.choice((1, 2, 4, 6, 16, 24)), 4 * most))
            for most in (chance.choice((5, 16, 24)) for _ in range(chance.randint(1, 3)))
        ]
        nodes.append(dealt(name, *devices))
        used[name] = [chance.randint(0, units) for units, _ in devices]
    return books(*nodes, **used)


def _fits(takes: Sequence[Sequence[int]], free: Sequence[int]) -> bool:
    """Whether each part has another device with room, by trying everything."""
    return any(
        all(takes[part][device] <= free[device] for part, device in enumerate(places))
        for places in itertools.permutations(range(len(free)), len(takes))
    )


def _worlds() -> Iterator[tuple[random.Random, Ledger, Dealing, Asked]]:
    for seed in range(600):
        chance = random.Random(seed)
        ledger = _cluster(chance)
        most = chance.randint(1, 50)
        others = (max(most - chance.randint(0, 9), 1) for _ in range(chance.randint(0, 2)))
        asked = asks(most, *others)
        yield chance, ledger, Dealing(ledger.entries_and_specs()[1].values()), asked


def test_what_fits_in_a_view_is_what_is_placed_and_what_has_room_however_it_is_tried() -> None:
    fitted = 0
    for _, ledger, dealing, asked in _worlds():
        snapshot, ranking = ledger.snapshot(), Ranking(DeviceBestFit())
        as_dealt = AsDealt(dealing, asked)
        judged = filter_nodes(as_dealt.view(snapshot), sorted(snapshot.row), as_dealt.request)
        for name, row in snapshot.row.items():
            takes = dealing.takes(name, asked)
            free = snapshot.free[row, : len(takes[0])].tolist()
            room = _fits(takes, free)
            assert (name in judged.fit) == room
            placed = dealing.place(snapshot, asked, name.__eq__, ranking)
            assert (placed is not None) == room
            for part, (device, units) in enumerate(placed[1] if placed else ()):
                assert units == takes[part][device] <= free[device]
            fitted += room
    assert 200 < fitted < 1000


def test_the_pods_whose_end_makes_room_are_told_by_what_each_device_takes() -> None:
    found = 0
    for _, ledger, dealing, asked in _worlds():
        as_dealt = AsDealt(dealing, asked)
        for one in ledger.dump():
            takes = dealing.takes(one.spec.name, asked)
            selection = VictimSelection(one, as_dealt.request, takes=as_dealt.takes(one.spec.name))
            for count in range(len(one.entries) + 1):
                for gone in itertools.combinations(one.entries, count):
                    ended = {entry.placement[0][0] for entry in gone if entry.placement}
                    free = [
                        units if device in ended else units - used
                        for device, (units, used) in enumerate(
                            zip(one.spec.capacity, one.used, strict=True)
                        )
                    ]
                    assert selection.fits(gone) == _fits(takes, free)
                    found += 1
    assert found > 1000


def test_where_nothing_is_said_a_request_is_judged_by_what_it_asks_for() -> None:
    ledger = books(node("plain", 8, 8), plain=(7, 7))
    dealing = Dealing(ledger.entries_and_specs()[1].values())
    as_dealt = AsDealt(dealing, asks(4, 3))
    assert as_dealt.view(ledger.snapshot()) is ledger.snapshot()
    assert (as_dealt.request, as_dealt.takes("plain")) == (Request(1, 2), {})
    assert dealing.place(ledger.snapshot(), asks(4, 3), "plain".__eq__, Ranking(DeviceBestFit()))


def test_a_node_that_came_since_keeps_nothing_out_until_it_is_known() -> None:
    snapshot, ranking = books(node("a", 8), node("b", 8)).snapshot(), Ranking(DeviceBestFit())
    dealing, held = Dealing([node("a", 8)]), HeldSnapshot.of(snapshot)
    assert dealing.all_fit(held, "a", [asks(4), asks(8)], ranking)
    assert not dealing.all_fit(held, "a", [asks(20), asks(16)], ranking)
    assert dealing.all_fit(held, "b", [asks(20), asks(16)], ranking)
    assert dealing.place(snapshot, asks(4), "b".__eq__, ranking) is None
    assert held.free.tolist() == snapshot.free.tolist()


@pytest.mark.parametrize("seed", range(40))
def test_the_most_that_could_be_asked_for_has_room_and_one_more_has_not(seed: int) -> None:
    chance = random.Random(seed)
    ledger = _cluster(chance)
    dealing = Dealing(ledger.entries_and_specs()[1].values())
    snapshot = ledger.snapshot()
    view = dealing.view(snapshot)
    for name, row in snapshot.row.items():
        most, free = int(view.free[row].max()), snapshot.free[row].tolist()
        for units, room in ((most, most > 0), (most + 1, False)):
            takes = dealing.takes(name, asks(units * GRAIN)) if units else [[MAX_UNITS]]
            assert _fits(takes, free[: len(takes[0])]) == room
