"""Counting: linear, conservative, and without a trace of ended pods."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from gpushare.core.amounts import compute, memory_share
from gpushare.core.arrays_check import differing_nodes
from gpushare.core.model import Apart, Charge, NodeSpec, Reason, Request
from gpushare.core.node_arrays import NodeArrays
from tests.unit.core.clusters import APART, node

NODES = (node("a", 16, 16, cpu=8000, memory=2**40), node("b", 8, closed=Reason.UNEVEN))

charges = st.builds(
    Charge,
    st.sampled_from(["a", "b", "nobody"]),
    st.builds(
        Request,
        units=st.integers(1, 20),
        devices=st.integers(0, 2),
        cpu=st.integers(0, 2**70),
        memory=st.integers(0, 2**70),
        apart=APART,
    )
    | st.builds(
        Request,
        st.integers(1, 20),
        st.just(1),
        percents=st.just(compute(30)) | st.integers(1, 100).map(memory_share),
    ),
    st.none()
    | st.lists(
        st.tuples(st.integers(0, 3), st.integers(1, 20)),
        min_size=1,
        max_size=2,
        unique_by=lambda share: share[0],
    ).map(lambda shares: tuple(sorted(shares))),
)


def _tally(*nodes: NodeSpec) -> NodeArrays:
    tally = NodeArrays()
    for spec in nodes:
        tally.set_node(spec, ())
    return tally


@given(
    remaining_charges=st.lists(charges, max_size=8),
    passing=st.lists(charges, max_size=8),
    data=st.data(),
)
def test_what_came_and_went_in_any_order_leaves_no_trace(
    remaining_charges: list[Charge], passing: list[Charge], data: st.DataObject
) -> None:
    tally = _tally(*NODES)
    for charge in data.draw(st.permutations(remaining_charges + passing)):
        tally.add(charge)
    for charge in data.draw(st.permutations(passing)):
        tally.add(charge, -1)
    assert differing_nodes(tally.sums(), NODES[::-1], remaining_charges) == []


def test_two_pods_counted_as_one_are_found() -> None:
    tally = _tally(*NODES)
    tally.add(Charge("a", Request(8, 2), ((0, 8), (1, 8))))
    two = [Charge("a", Request(8, 1), ((device, 8),)) for device in (0, 1)]
    assert differing_nodes(tally.sums(), NODES, two) == ["a"]


def test_a_percentage_that_is_charged_the_whole_card_is_counted_alike_twice() -> None:
    tally = _tally(*NODES)
    charge = Charge("a", Request(1, 1, percents=memory_share(97)), ((0, 1),))  # 15.52 of 16 units
    tally.add(charge)
    assert tally.books(NODES[0]).used == (16, 0)
    assert differing_nodes(tally.sums(), NODES, [charge]) == []


def test_a_pod_counted_as_of_another_workload_or_device_is_found() -> None:
    tally = _tally(*NODES)
    request = Request(8, 1, apart=Apart("web", required=True))
    tally.add(Charge("a", request, ((0, 8),)))
    for wrong in (
        Charge("a", replace(request, apart=None), ((0, 8),)),
        Charge("a", replace(request, apart=Apart("db", required=True)), ((0, 8),)),
    ):
        assert differing_nodes(tally.sums(), NODES, [wrong]) == ["a"]


def test_a_charge_counts_on_its_devices_and_an_unplaced_one_on_every_device() -> None:
    tally = _tally(*NODES)
    tally.add(Charge("a", Request(4, 1), ((1, 4),)))
    assert tally.books(NODES[0]).used == (0, 4)
    tally.add(Charge("a", Request(3, 2), None))
    assert tally.books(NODES[0]).used == (6, 10)
    tally.add(Charge("a", Request(2, 1), ((2, 2),)))  # the node has no device 2
    assert tally.books(NODES[0]).used == (8, 12)


def test_cpu_and_memory_count_for_every_pod_and_apart_for_those_without_gpu() -> None:
    tally = _tally(*NODES)
    tally.add(Charge("a", Request(4, 1, cpu=1000, memory=2**30), ((0, 4),)))
    tally.add(Charge("a", Request(cpu=500, memory=2**30), None))
    view = tally.snapshot({})
    row = view.row["a"]
    assert (view.cpu_free[row], view.cpu_only[row]) == (6500, 500)
    assert view.memory_free[row] == 2**40 - 2**31
    assert tally.books(NODES[0]).used == (4, 0)


def test_a_node_whose_cpu_is_not_known_has_none_free() -> None:
    view = _tally(node("a", 16)).snapshot({})
    assert (view.cpu_capacity[0], view.cpu_free[0], view.memory_free[0]) == (-1, 0, 0)


def test_more_than_is_there_reads_as_nothing_free() -> None:
    tally = _tally(*NODES)
    tally.add(Charge("a", Request(20, 1, cpu=2**80, memory=2**80), ((0, 20),)))
    view = tally.snapshot({})
    assert view.free[0].tolist() == [0, 16]
    assert (view.cpu_free[0], view.memory_free[0]) == (0, 0)


def test_room_is_only_on_open_devices() -> None:
    tally = _tally(node("a", 16, 16, unhealthy=[1]), NODES[1])
    assert [tally.has_room("a", device, 16, Request()) for device in range(3)] == [
        True,
        False,
        False,
    ]
    assert not tally.has_room("a", 0, 17, Request())
    assert not tally.has_room("b", 0, 1, Request())


def test_a_row_is_used_again_and_starts_empty() -> None:
    tally = _tally(*NODES)
    tally.add(Charge("a", Request(4, 1, cpu=5, memory=5), ((1, 4),)))
    assert "a" in tally.snapshot({}).row
    tally.remove_node("a")
    empty = tally.snapshot({})
    assert empty.names == ("", "b")
    assert "a" not in empty.row
    assert not empty.capacity[0].any()
    tally.set_node(node("c", 4, cpu=100, memory=100), ())
    view = tally.snapshot({})
    assert view.names == ("c", "b")
    assert (view.used[0].tolist(), view.cpu_free[0], view.memory_free[0]) == ([0, 0], 100, 100)
    assert view.row_generation[0] > empty.row_generation[0]


def test_the_books_grow_by_rows_and_by_devices_and_keep_what_they_hold() -> None:
    tally = _tally(node("n000", 16))
    tally.add(Charge("n000", Request(4, 1), ((0, 4),)))
    for index in range(1, 140):
        tally.set_node(node(f"n{index:03}", *(8 for _ in range(index % 9))), ())
    view = tally.snapshot({})
    assert view.used.shape == (140, 8)
    assert view.used[0].tolist() == [4] + [0] * 7
    assert view.capacity[139].tolist() == [8] * 4 + [0] * 4
    assert view.order.tolist() == list(range(140))


def test_nodes_alike_when_empty_are_one_group_and_models_are_numbered() -> None:
    tally = _tally(
        node("a", 16), node("b", 16, models=("T4",)), node("c", 16), node("d", 16, cpu=1)
    )
    tally.add(Charge("c", Request(4, 1), ((0, 4),)))
    view = tally.snapshot({})
    assert view.group[0] == view.group[2]
    assert len(set(view.group.tolist())) == 3
    assert [view.models[number] for number in view.model[:, 0]] == ["A100", "T4", "A100", "A100"]


def test_machines_of_one_kind_are_one_group_though_some_have_a_little_less_memory() -> None:
    """As allocatable memory really is: 527815716Ki here, 527815720Ki there."""
    sizes = (527815716 << 10, 527815720 << 10, 263907860 << 10)
    view = _tally(*(node(f"n{size}", 16, memory=size) for size in sizes)).snapshot({})
    assert view.group[0] == view.group[1] != view.group[2]


def test_a_pod_too_many_on_a_device_is_drift() -> None:
    tally = _tally(*NODES)
    tally.add(Charge("a", Request(0, 1), ((0, 0),)))
    assert differing_nodes(tally.sums(), NODES, ()) == ["a"]


def test_drift_names_the_nodes_that_differ() -> None:
    tally = _tally(*NODES, node("mine", 1))
    tally.add(Charge("a", Request(1, 1), ((0, 1),)))
    assert differing_nodes(tally.sums(), [*NODES, node("yours", 1, 1, 1)], ()) == [
        "a",
        "mine",
        "yours",
    ]


@given(
    first_spec=st.sampled_from(
        [NODES[0], node("a", 8, 16, unhealthy=[1]), node("a", 16, 16, closed=Reason.UNEVEN)]
    ),
    had=st.lists(charges, max_size=4),
    charges_now=st.lists(charges, max_size=4),
    shape=st.sampled_from([NODES[0], node("a", 8), node("a", 16, 16, 16), node("a")]),
)
def test_a_recount_lets_nothing_become_free(
    first_spec: NodeSpec, had: list[Charge], charges_now: list[Charge], shape: NodeSpec
) -> None:
    tally = _tally(first_spec, NODES[1])
    for charge in had:
        tally.add(charge)
    before = tally.snapshot({})
    tally.recount(shape, charges_now)
    after, fresh = tally.snapshot({}), NodeArrays()
    fresh.set_node(shape, charges_now)
    right = fresh.snapshot({}).free[0].tolist()
    row = before.row["a"]
    was = [*before.free[row].tolist(), 0, 0][: after.free.shape[1]]
    assert all(
        free_units <= old for free_units, old in zip(after.free[row].tolist(), was, strict=True)
    )
    assert all(
        free_units <= true
        for free_units, true in zip(after.free[row].tolist(), right, strict=False)
    )
