"""The most sharers of a device: a device with so many pods takes no more, whatever is free."""

import numpy as np
import pytest

from gpushare.core.amounts import compute
from gpushare.core.decide import (
    filter_nodes,
    fits_somewhere,
    missing_units,
    place,
    room_for,
    take_best,
)
from gpushare.core.held_snapshot import HeldSnapshotBuilder
from gpushare.core.model import Allocation, Charge, PodRef, Reason, Request
from gpushare.core.mutable_cluster import MutableCluster, ranking
from gpushare.core.node_arrays import NodeArrays
from gpushare.core.preemption.selection import VictimSelection
from gpushare.core.preemption.victim_search import StepBudget
from gpushare.core.ranking import NoPreference, Ranking
from gpushare.core.states.entry import NodeBooks
from gpushare.core.trial_streams import mutable
from gpushare.errors import InsufficientMemory
from gpushare.ledger import Ledger
from tests.unit.core.clusters import node
from tests.unit.core.preempting import NODE, filled, pod

ANY = Ranking(NoPreference())
ONE = Request(1, 1)


def arrays(*capacity: int, limit: int = 2) -> NodeArrays:
    tally = NodeArrays()
    tally.set_node(node("n", *capacity, max_sharers=limit, cpu=1000, memory=2**30), ())
    return tally


def test_a_device_with_the_most_pods_takes_no_more_until_one_leaves() -> None:
    tally = arrays(16)
    charges = [Charge("n", ONE, ((0, 1),)) for _ in range(2)]
    for charge in charges:
        assert filter_nodes(tally.snapshot({}), ["n"], ONE).fit == ("n",)
        assert tally.has_room("n", 0, 1, ONE)
        tally.add(charge)
    full = tally.snapshot({})
    assert filter_nodes(full, ["n"], ONE).failed == {"n": Reason.MOST_SHARERS}
    assert not tally.has_room("n", 0, 1, ONE)
    with pytest.raises(InsufficientMemory, match="the most pods"):
        place(full, "n", ONE, ANY)
    tally.add(charges[0], -1)
    assert tally.has_room("n", 0, 15, ONE)
    assert tally.snapshot({}).free.tolist() == [[15]]


def test_a_pod_with_unknown_devices_counts_on_each() -> None:
    tally = arrays(16, 16, limit=1)
    tally.add(Charge("n", ONE, None))
    assert not fits_somewhere(tally.snapshot({}), ONE)


def test_too_little_memory_is_said_before_the_most_sharers() -> None:
    tally = arrays(4)
    for _ in range(2):
        tally.add(Charge("n", ONE, ((0, 1),)))
    failed = filter_nodes(tally.snapshot({}), ["n"], Request(3, 1)).failed
    assert failed == {"n": Reason.INSUFFICIENT_MEMORY}


def test_a_device_with_the_most_sharers_has_all_its_unused_memory_when_a_pod_leaves() -> None:
    tally = arrays(80, limit=2)
    ten = Request(10, 1)
    for _ in range(3):
        tally.add(Charge("n", ten, ((0, 10),)))
    builder = HeldSnapshotBuilder(tally.snapshot({}))
    builder.give(0, ((0, 10),), ten)
    assert builder.free.tolist() == [[0]], "as many pods as allowed are left"
    tally = arrays(80, limit=2)
    whole = Request(10, 1, percents=compute(100))
    for one in (whole, ten):
        tally.add(Charge("n", one, ((0, 10),)))
    for one in (whole, ten):
        builder = HeldSnapshotBuilder(tally.snapshot({}))
        builder.give(0, ((0, 10),), one)
        assert builder.free.tolist() == [[70 if one is whole else 0]]
    assert builder.build().used.tolist() == [[20]]


def test_a_device_that_a_pod_alone_leaves_is_unused() -> None:
    tally = arrays(16)
    whole = Request(1, 1, percents=compute(100))
    tally.add(Charge("n", whole, ((0, 1),)))
    builder = HeldSnapshotBuilder(tally.snapshot({}))
    builder.give(0, ((0, 1),), whole)
    assert builder.build().used.tolist() == [[0]]
    assert fits_somewhere(builder.build(), whole)


def test_a_limit_that_changes_counts_at_once() -> None:
    tally = arrays(16)
    charges = [Charge("n", ONE, ((0, 1),)) for _ in range(2)]
    for limit, fits in ((2, False), (3, True), (1, False)):
        tally.set_node(node("n", 16, max_sharers=limit), charges)
        assert fits_somewhere(tally.snapshot({}), ONE) is fits


def test_a_group_has_no_more_places_than_the_devices_have_left() -> None:
    tally = arrays(16, 16)
    tally.add(Charge("n", ONE, ((0, 1),)))
    assert room_for(tally.snapshot({}), ONE, 9) == 3
    assert room_for(tally.snapshot({}), Request(1, 2), 9) == 1


def test_a_hold_takes_a_place() -> None:
    view = arrays(16, limit=1).snapshot({})
    builder = HeldSnapshotBuilder(view)
    take_best(builder, 0, ONE, ANY)
    held = builder.build()
    assert filter_nodes(held, ["n"], ONE).failed == {"n": Reason.PROMISED}
    assert room_for(held, ONE, 9) == 0


def test_a_missing_place_counts_as_the_part_of_one_pod() -> None:
    tally = arrays(16)
    for _ in range(3):
        tally.add(Charge("n", ONE, ((0, 1),)))
    view, rows = tally.snapshot({}), np.arange(1)
    # Two of three pods have to go, each with half of the device.
    assert missing_units(view, rows, ONE, view.open).tolist() == [16]


def test_a_cluster_that_changes_in_place_keeps_the_limit() -> None:
    view = mutable(arrays(16).snapshot({}), np.arange(1), empty=False)
    cluster = MutableCluster(view, ranking(NoPreference(), 1))
    first, second, third = (cluster.place(ONE) for _ in range(3))
    assert first is not None
    assert second is not None
    assert third is None
    cluster.release(first)
    assert cluster.place(Request(15, 1)) is not None


def books(limit: int) -> NodeBooks:
    pods = [pod("low", 4, 0, priority=1), pod("high", 2, 0, priority=2)]
    return filled(node(NODE, 16, max_sharers=limit, cpu=1000, memory=1000), pods).dump(NODE)[0]


@pytest.mark.parametrize(("limit", "victims"), [(3, []), (2, ["low"]), (1, ["high", "low"])])
def test_as_many_pods_go_as_there_are_too_many(limit: int, victims: list[str]) -> None:
    chosen = VictimSelection(books(limit), ONE).choose((), books(limit).entries, StepBudget(1000))
    assert chosen is not None
    assert sorted(entry.ref.uid for entry in chosen) == victims


def test_the_books_refuse_a_charge_beyond_the_limit() -> None:
    ledger = Ledger()
    ledger.node_changed(node("n", 16, max_sharers=1))
    ledger.assume(PodRef("ns", "a", "a"), ONE, Allocation("n", ((0, 1),)), 0.0)
    with pytest.raises(InsufficientMemory, match="no room"):
        ledger.assume(PodRef("ns", "b", "b"), ONE, Allocation("n", ((0, 1),)), 0.0)
