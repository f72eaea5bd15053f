"""A percentage of memory costs other units on each size of device, wherever units are counted."""

from dataclasses import replace

import numpy as np
import pytest

from gpushare.core.decide import filter_nodes, missing_units, place, room_for, take_best
from gpushare.core.defrag import freed_amounts
from gpushare.core.held_snapshot import HeldSnapshotBuilder
from gpushare.core.model import Allocation, Charge, ObservedPod, PodRef, Reason, Request
from gpushare.core.mutable_cluster import MutableCluster, Placement, ranking
from gpushare.core.node_arrays import NodeArrays
from gpushare.core.pairing import Pairing
from gpushare.core.policy import Taken
from gpushare.core.preemption.selection import VictimSelection
from gpushare.core.preemption.victim_search import StepBudget
from gpushare.core.ranking import NoPreference, Ranking
from gpushare.core.snapshot import Floats, Ints, Rows, Snapshot
from gpushare.core.trial_streams import mutable
from gpushare.errors import InsufficientMemory
from gpushare.ledger import Ledger
from tests.unit.core.clusters import POLICIES, node, with_share
from tests.unit.core.preempting import filled

SIXTY = Request(1, 1, percents=with_share(0, 60))
"""60 percent: 10 of 16 units, 24 of 40."""
NODES = (node("small", 16, cpu=1000, memory=2**30), node("large", 40, cpu=1000, memory=2**30))
NAMES = ["small", "large"]


def arrays(*charges: Charge) -> NodeArrays:
    tally = NodeArrays()
    for spec in NODES:
        tally.set_node(spec, [charge for charge in charges if charge.node == spec.name])
    return tally


def test_each_card_is_charged_its_part_rounded_up() -> None:
    charges = [Charge(name, SIXTY, ((0, 1),)) for name in NAMES]
    tally = arrays(*charges)
    assert tally.snapshot({}).free.tolist() == [[6], [16]]
    for charge in charges:
        tally.add(charge, -1)
    assert not tally.snapshot({}).used.any()


def test_on_unknown_devices_each_is_charged_its_part() -> None:
    tally = NodeArrays()
    tally.set_node(node("n", 16, 40), [Charge("n", SIXTY, None)])
    assert tally.snapshot({}).used.tolist() == [[10, 24]]


def test_a_card_with_less_than_the_part_is_refused() -> None:
    tally = arrays(*(Charge(name, Request(7, 1), ((0, 7),)) for name in NAMES))
    view = tally.snapshot({})
    verdict = filter_nodes(view, NAMES, SIXTY)
    assert (verdict.fit, verdict.failed) == (("large",), {"small": Reason.INSUFFICIENT_MEMORY})
    assert not tally.has_room("small", 0, 1, SIXTY)
    assert tally.has_room("large", 0, 1, SIXTY)
    assert missing_units(view, np.arange(2), SIXTY, view.open).tolist() == [1, 0]
    assert room_for(view, SIXTY, 9) == 1


def test_a_hold_takes_the_part_and_gives_it_back() -> None:
    builder = HeldSnapshotBuilder(arrays().snapshot({}))
    for row in (0, 1):
        take_best(builder, row, SIXTY, Ranking(NoPreference()))
    assert builder.draft().free.tolist() == [[6], [16]]
    builder.give(1, ((0, 1),), SIXTY)
    assert builder.build().free.tolist() == [[6], [40]]


def test_a_cluster_that_changes_in_place_charges_the_part() -> None:
    cluster = MutableCluster(
        mutable(arrays().snapshot({}), np.arange(2), empty=False), ranking(NoPreference(), 2)
    )
    placements = [cluster.place(SIXTY) for _ in range(3)]
    assert placements[2] is None
    assert (cluster.view.free.tolist(), cluster.allocated) == ([[6], [16]], 34)
    for placement in placements[:2]:
        assert placement is not None
        cluster.release(placement)
    assert (cluster.view.free.tolist(), cluster.allocated) == ([[16], [40]], 0)


def test_a_pod_that_leaves_frees_what_its_shares_are_charged() -> None:
    # Annotations name three devices for a pod that asks for two.
    request = Request(
        6,
        2,
        containers=((0, 12),),
        percents=with_share(50, 50),
        percent_containers=(((0, 100),),) * 2,
    )
    shares = ((0, 4), (1, 4), (2, 4))
    books = NodeArrays()
    books.set_node(node("n", 16, 16, 16), [Charge("n", request, shares)])
    view = mutable(books.snapshot({}), np.arange(1), empty=False)
    cluster, placement = (
        MutableCluster(view, ranking(NoPreference(), 1)),
        Placement(0, shares, request),
    )
    assert freed_amounts(placement, view) == {(-1, "pods"): 1} | {
        (device, name): amount
        for device in range(3)
        for name, amount in (("memory", 6), ("places", 1), ("cores", 34), ("share", 34))
    }
    cluster.release(placement)
    assert not view.used.any()
    assert not any(used.any() for used in view.percents_used)
    cluster.put(*placement)
    assert view.used.tolist() == [[6, 6, 6]]
    assert view.cores_used.tolist() == [[34, 34, 34]]


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_a_policy_scores_each_card_with_the_units_that_it_costs(policy: str) -> None:
    view, rows, judge = arrays().snapshot({}), np.arange(2), Ranking(POLICIES[policy])
    scores = judge._value(view, rows, SIXTY)  # noqa: SLF001 -- before prices of the whole cluster
    for row, units in enumerate((10, 24)):
        alone = POLICIES[policy].score(view, rows, Request(units, 1, percents=SIXTY.percents))
        assert scores[row, 0] == alone[row, 0]


def test_as_many_pods_go_as_free_the_part() -> None:
    pods = [
        ObservedPod(PodRef("ns", f"p{at}", f"p{at}"), Request(1, 1), "small", ((0, 1),))
        for at in range(8)
    ]
    (books,) = filled(NODES[0], pods).dump("small")
    chosen = VictimSelection(books, SIXTY).choose((), books.entries, StepBudget(10_000))
    assert chosen is not None
    assert len(chosen) == 2
    shared = ObservedPod(PodRef("ns", "share", "share"), SIXTY, "small", ((0, 1),))
    (books,) = filled(NODES[0], [shared]).dump("small")
    selection = VictimSelection(books, Request(16, 1))
    assert [*selection.frees(books.entries[0]).values()] == [10, 60]


def test_the_books_tell_the_charged_units_and_check_the_part() -> None:
    ledger = Ledger()
    ledger.node_changed(NODES[0])
    ref = PodRef("ns", "a", "a")
    ledger.assume(ref, SIXTY, Allocation("small", ((0, 1),)), 0.0)
    (entry,) = ledger.dump("small")[0].entries
    assert (entry.placement, entry.charges((16,)), entry.charges(())) == (
        ((0, 1),),
        ((0, 10),),
        ((0, 1),),
    )
    with pytest.raises(InsufficientMemory, match="device 0 has no room for 60 % of the memory"):
        ledger.assume(PodRef("ns", "b", "b"), SIXTY, Allocation("small", ((0, 1),)), 0.0)
    ledger.check()


def test_the_best_place_is_in_requested_units() -> None:
    chosen = place(arrays().snapshot({}), "large", SIXTY, Ranking(NoPreference()))
    assert chosen.shares == ((0, 1),)


def test_the_refusal_of_a_node_says_the_percentage() -> None:
    view = arrays(Charge("small", Request(7, 1), ((0, 7),))).snapshot({})
    with pytest.raises(InsufficientMemory) as refused:
        place(view, "small", replace(SIXTY, percents=with_share(20, 60)), Ranking(NoPreference()))
    assert str(refused.value).endswith(
        ": 60 % of the memory on 1 device(s) asked,"
        " with 20 % of each one's cores (free: 100 %), free by device: 9"
    )


class Counting:
    """A policy that counts the scored rows."""

    def __init__(self) -> None:
        self.rows = 0

    def score(self, snapshot: Snapshot, rows: Rows, request: Request) -> Floats:
        self.rows += len(rows)
        return np.full((len(rows), snapshot.capacity.shape[1]), float(request.units))


def test_each_node_is_scored_once_however_many_sizes_the_cluster_has() -> None:
    tally, sizes = NodeArrays(), range(10, 40)
    for size in sizes:
        tally.set_node(node(f"n{size}", size, size), ())
    policy = Counting()
    scores = Ranking(policy).scores(tally.snapshot({}), SIXTY)
    assert policy.rows == len(sizes)
    assert scores.values.tolist() == [-(-60 * size // 100) for size in sizes]


class Pricing(Counting):
    """A policy without preferences whose price of a node is the units of a request."""

    def score(self, snapshot: Snapshot, rows: Rows, _request: Request) -> Floats:
        return np.zeros((len(rows), snapshot.capacity.shape[1]))

    def supply(self, _snapshot: Snapshot, rows: Rows) -> Ints:
        return np.zeros((len(rows), 1), dtype=np.int64)

    def taken(self, _snapshot: Snapshot, rows: Rows, request: Request) -> Taken:
        return np.full((len(rows), 2), request.units, dtype=np.int8)

    def group_prices(self, _snapshot: Snapshot, request: Request, totals: Ints) -> Floats:
        return np.full(len(totals), float(request.units))

    def taken_prices(
        self, _snapshot: Snapshot, _request: Request, amounts: Taken, _totals: Ints
    ) -> Floats:
        prices: Floats = amounts.T.astype(np.float64) * 100
        return prices


def test_prices_count_the_units_of_most_cards() -> None:
    tally = NodeArrays()
    for name, size in (("a", 16), ("b", 40), ("c", 40)):
        tally.set_node(node(name, size), ())
    view, ranking_ = tally.snapshot({}), Ranking(Pricing())
    priced = [-2424.0] * 3
    assert ranking_.scores(view, SIXTY).values.tolist() == priced
    assert ranking_.score_devices(view, np.arange(3), SIXTY)[:, 0].tolist() == priced
    assert ranking_.best_device(view, 0, SIXTY) == 0


def test_pods_of_other_percentages_wait_for_each_other_where_units_tell_pods_apart() -> None:
    ledger = Ledger(Pairing.ON)
    ledger.node_changed(node("n", 16, 16))
    ledger.assume(PodRef("ns", "a", "a"), SIXTY, Allocation("n", ((0, 1),)), 0.0)
    quarter = replace(SIXTY, percents=with_share(0, 25))
    with pytest.raises(InsufficientMemory, match="an equal pod waits for the device plug-in"):
        ledger.assume(PodRef("ns", "b", "b"), quarter, Allocation("n", ((1, 1),)), 0.0)
    with pytest.raises(InsufficientMemory, match="device 0 has no room for 60 % of the memory"):
        ledger.assume(PodRef("ns", "c", "c"), SIXTY, Allocation("n", ((0, 1),)), 0.0)
    chosen = place(ledger.snapshot(), "n", quarter, Ranking(NoPreference()))
    assert chosen.devices == (0,)
    ledger.assume(PodRef("ns", "b", "b"), quarter, chosen, 0.0)
    assert ledger.snapshot().used.tolist() == [[14, 0]]
