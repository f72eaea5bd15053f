"""Pods that stay on other devices than the other pods of their workload."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.core.decide import NO_ROOM, filter_nodes, missing_units, place, room_for, take_best
from gpushare.core.held_snapshot import HeldSnapshotBuilder, RowStates
from gpushare.core.model import (
    FEW_NEIGHBOURS,
    Allocation,
    Apart,
    Charge,
    ObservedPod,
    PodRef,
    Reason,
    Request,
    Shares,
)
from gpushare.core.mutable_cluster import MutableCluster, ranking
from gpushare.core.node_arrays import NodeArrays
from gpushare.core.ranking import Ranking
from gpushare.core.snapshot import Snapshot
from gpushare.core.trial_streams import mutable
from gpushare.errors import InsufficientMemory
from gpushare.ledger import Ledger
from tests.unit.core.clusters import POLICIES, best_node, node

WEB, DB = Apart("web", required=True), Apart("db", required=True)
POD = Request(4, 1, apart=WEB)
PREFERS = replace(POD, apart=Apart("web", required=False))
EVERY_POLICY = pytest.mark.parametrize("policy", sorted(POLICIES))
NAMES = ["n0", "n1"]


def arrays_of(*charges: tuple[Request, str, int]) -> NodeArrays:
    """Two nodes of two devices of 16 units, with pods of 4 units: request, node and device."""
    arrays = NodeArrays()
    for name in NAMES:
        arrays.set_node(node(name, 16, 16, cpu=64_000, memory=2**40), ())
    for request, name, device in charges:
        arrays.add(Charge(name, request, ((device, 4),)))
    return arrays


def put(arrays: NodeArrays, request: Request, policy: str = "binpack") -> tuple[str, int] | None:
    """Place a pod as filter and bind do; return the node and the first device."""
    view, scorer = arrays.snapshot({}), Ranking(POLICIES[policy])
    name = best_node(view, NAMES, request, scorer)
    if name is None:
        return None
    chosen = place(view, name, request, scorer)
    arrays.add(Charge(name, request, chosen.shares))
    return name, chosen.devices[0]


@EVERY_POLICY
@pytest.mark.parametrize("request_", [POD, PREFERS], ids=["required", "preferred"])
def test_pods_of_a_workload_come_to_different_devices(policy: str, request_: Request) -> None:
    arrays = arrays_of()
    places = {put(arrays, request_, policy) for _ in range(4)}
    assert len(places) == 4


def test_a_device_beside_a_pod_of_the_workload_is_closed_or_comes_last() -> None:
    arrays = arrays_of(*[(POD, name, device) for name in NAMES for device in (0, 1)])
    view = arrays.snapshot({})
    assert filter_nodes(view, NAMES, POD).failed == dict.fromkeys(NAMES, Reason.APART)
    other_pods = (replace(POD, apart=None), replace(POD, apart=DB), PREFERS)
    for request in other_pods:
        assert filter_nodes(view, NAMES, request).fit == tuple(NAMES)
    with pytest.raises(InsufficientMemory, match=Reason.APART.value):
        place(view, "n0", POD, Ranking(POLICIES["binpack"]))


def test_a_device_without_memory_is_no_matter_of_the_workload() -> None:
    arrays = arrays_of((POD, "n0", 0), (POD, "n0", 1))
    large = replace(POD, units=14)
    assert filter_nodes(arrays.snapshot({}), ["n0"], large).failed == {
        "n0": Reason.INSUFFICIENT_MEMORY
    }


def test_the_pods_that_prefer_it_count_for_the_pods_that_require_it() -> None:
    arrays = arrays_of((PREFERS, "n0", 0), (PREFERS, "n0", 1))
    assert filter_nodes(arrays.snapshot({}), NAMES, POD).fit == ("n1",)


def test_a_pod_whose_devices_are_not_known_closes_the_node() -> None:
    arrays = arrays_of()
    arrays.add(Charge("n0", POD, None))
    assert filter_nodes(arrays.snapshot({}), NAMES, POD).fit == ("n1",)
    arrays.add(Charge("n0", POD, None), -1)
    assert filter_nodes(arrays.snapshot({}), NAMES, POD).fit == tuple(NAMES)


def test_a_row_that_another_node_uses_forgets_the_workload() -> None:
    arrays = arrays_of((POD, "n0", 0))
    assert arrays.snapshot({}).workloads == {0: {"web": (0,)}}
    arrays.remove_node("n0")
    arrays.set_node(node("n2", 16, 16), ())
    assert arrays.snapshot({}).workloads == {}


def test_a_snapshot_stays_as_it_was() -> None:
    arrays = arrays_of((POD, "n0", 0))
    view = arrays.snapshot({})
    arrays.add(Charge("n0", POD, ((0, 4),)), -1)
    assert view.workloads == {0: {"web": (0,)}}
    assert arrays.snapshot({}).workloads == {}


def test_a_group_has_a_place_on_each_device_once() -> None:
    view = arrays_of((POD, "n0", 0)).snapshot({})
    assert room_for(view, POD, 10) == 3
    assert room_for(view, replace(POD, devices=2), 10) == 1
    assert room_for(view, PREFERS, 100) == 15


def test_a_pod_of_the_workload_is_missing_room() -> None:
    view = arrays_of((POD, "n0", 0), (POD, "n0", 1)).snapshot({})
    rows = np.arange(2)
    assert missing_units(view, rows, POD, view.open).tolist() == [1, 0]
    assert missing_units(view, rows, replace(POD, devices=3), view.open).min() >= NO_ROOM


def held(view: Snapshot, *taken: tuple[int, Shares, Request]) -> HeldSnapshotBuilder:
    builder = HeldSnapshotBuilder(view)
    for row, shares, request in taken:
        builder.take(row, shares, request)
    return builder


def test_a_held_place_counts_until_the_row_is_reset() -> None:
    view = arrays_of((POD, "n0", 0)).snapshot({})
    builder = held(view, (0, ((1, 4),), POD))
    answer = filter_nodes(builder.draft(), NAMES, POD)
    # Without the hold the books have room.
    assert answer.failed == {"n0": Reason.PROMISED}
    assert filter_nodes(builder.draft(), NAMES, replace(POD, apart=DB)).fit == tuple(NAMES)
    take_best(builder, 1, POD, Ranking(POLICIES["binpack"]))
    take_best(builder, 1, POD, Ranking(POLICIES["binpack"]))
    assert filter_nodes(builder.draft(), NAMES, POD).fit == ()
    builder.reset(np.array([0, 1]))
    assert builder.build().workloads == view.workloads
    assert view.workloads == {0: {"web": (0,)}}


def test_a_builder_that_goes_on_knows_the_new_pods_of_a_workload() -> None:
    tally = arrays_of()
    start = held(tally.snapshot({}), (1, ((1, 4),), replace(POD, apart=None))).build()
    tally.add(Charge("n0", POD, ((0, 4),)))
    view = tally.snapshot({})
    assert HeldSnapshotBuilder(view, start).workloads == view.workloads == {0: {"web": (0,)}}


def test_the_place_of_a_pod_that_yields_is_free_for_the_workload() -> None:
    view = arrays_of((POD, "n0", 0), (POD, "n0", 1)).snapshot({})
    builder = HeldSnapshotBuilder(view)
    builder.give(0, ((1, 4),), POD)
    assert filter_nodes(builder.draft(), ["n0"], POD).fit == ("n0",)
    builder.give(0, ((1, 4),), POD)  # a pod that the books do not have any more
    assert builder.workloads == {0: {"web": (0,)}}


def test_a_kept_row_keeps_the_workloads_of_its_holds() -> None:
    view = arrays_of().snapshot({})
    states = RowStates(view)
    for row, priority, shares in ((0, 5, ((0, 4),)), (1, 1, ((1, 4),))):
        states.save(held(view, (row, shares, POD)), row, priority)
    offered = states.offered_to(3, view)
    assert offered is not None
    assert offered.workloads == {0: {"web": (0,)}}
    states.forget(0)
    states.forget(1)
    assert states.offered_to(3, view) is None
    # The slot of a forgotten row is used again.
    for row, priority in ((0, 5), (1, 1)):
        states.save(held(view, (row, ((0, 4),), replace(POD, apart=None))), row, priority)
    offered = states.offered_to(3, view)
    assert offered is not None
    assert offered.workloads == {}


@given(st.lists(st.tuples(st.sampled_from([POD, PREFERS, replace(POD, apart=DB)]),
                          st.sampled_from(NAMES), st.integers(0, 1)), max_size=5),
       st.sampled_from(["binpack", "device-bestfit", "fgd"]))  # fmt: skip
def test_cached_scores_are_those_of_a_new_ranking(
    charges: list[tuple[Request, str, int]], policy: str
) -> None:
    arrays, ranks = arrays_of(), Ranking(POLICIES[policy])
    for charge in [None, *charges]:
        if charge is not None:
            request, name, device = charge
            arrays.add(Charge(name, request, ((device, 4),)))
        books = arrays.snapshot({})
        builder = HeldSnapshotBuilder(books)
        builder.take(0, ((0, 4),), POD)
        for view in (books, builder.build()):
            for request in (POD, PREFERS, replace(POD, devices=2), replace(POD, apart=None)):
                scores = ranks.scores(view, request)
                expected = Ranking(POLICIES[policy]).scores(view, request)
                assert scores.values.tolist() == expected.values.tolist()
                assert (scores.devices == expected.devices).all()


def test_a_simulated_cluster_counts_the_pods_that_come_and_leave() -> None:
    view = arrays_of((POD, "n1", 0)).snapshot({})
    rows = np.array([1, 0])
    assert mutable(view, rows, empty=True).workloads == {}
    nodes = mutable(view, rows, empty=False)
    assert nodes.workloads == {0: {"web": (0,)}}
    cluster = MutableCluster(nodes, ranking(POLICIES["binpack"], 2))
    places = [cluster.place(POD) for _ in range(4)]
    assert places[3] is None
    assert {(place.row, place.devices) for place in places if place} == {
        (0, (1,)),
        (1, (0,)),
        (1, (1,)),
    }
    assert places[0] is not None
    cluster.release(places[0])
    assert cluster.place(POD) == places[0]
    assert view.workloads == {1: {"web": (0,)}}


def test_two_binds_at_once_get_different_devices() -> None:
    ledger = Ledger()
    ledger.node_changed(node("n0", 16, 16, serves_by_identity=True))
    on_first = Allocation("n0", ((0, 4),))
    ledger.assume(PodRef("ns", "a", "a"), POD, on_first, 0.0, stamp="1")
    with pytest.raises(InsufficientMemory):
        ledger.assume(PodRef("ns", "b", "b"), POD, on_first, 0.0, stamp="2")
    ledger.assume(PodRef("ns", "c", "c"), PREFERS, on_first, 0.0, stamp="3")
    # The Binding of the first pod may not be sent again beside the other one.
    ledger.doubt("a", 1.0, "1")
    assert not ledger.can_still_bind("a")
    with pytest.raises(InsufficientMemory):
        ledger.resume("a", "n0", 2.0, "4")
    ledger.pod_gone("c")
    assert ledger.resume("a", "n0", 2.0, "4") is not None
    ledger.check()


def test_a_pod_of_the_workload_counts_as_one_neighbour_too_many() -> None:
    stranger = replace(POD, apart=None)
    few = replace(PREFERS, neighbours=FEW_NEIGHBOURS)
    others = [(stranger, name, device) for name, device in (("n0", 1), ("n1", 0), ("n1", 1))]
    for strangers, is_beside in ((1, False), (3, True)):
        arrays = arrays_of((PREFERS, "n0", 0), *others * strangers)
        assert (put(arrays, few) == ("n0", 0)) == is_beside


@given(
    st.lists(
        st.tuples(
            st.integers(0, 2),
            st.sampled_from([None, WEB, DB]),
            st.integers(0, 2),
            st.sampled_from([0, 12]),
        )
    )
)
def test_edits_of_bound_pods_leave_books_as_a_restart_makes_them(
    edits: list[tuple[int, Apart | None, int, int]],
) -> None:
    books, restarted, last_shown = Ledger(), Ledger(), dict[int, ObservedPod]()
    for ledger in (books, restarted):
        ledger.node_changed(node("n0", 16, 16, cpu=8000))
    for number, apart, cpu, limit in edits:
        ref = PodRef("team", f"p{number}", f"uid-{number}")
        request = replace(POD, apart=apart, cpu=cpu, memory_limit=limit)
        last_shown[number] = ObservedPod(ref, request, "n0", ((number % 2, 4),))
        books.pod_changed(last_shown[number])
    restarted.replace_pods(last_shown.values())
    view, after = books.snapshot(), restarted.snapshot()
    assert view.workloads == after.workloads
    assert view.cpu_free.tolist() == after.cpu_free.tolist()
    for pod in last_shown.values():
        assert books.entry(pod.ref.uid) == restarted.entry(pod.ref.uid)
    books.check()
