"""The arrays of a snapshot are taken over once nobody holds them, and never before."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.core.model import Charge, Request
from gpushare.core.node_arrays import NodeArrays
from gpushare.core.snapshot import Snapshot
from gpushare.core.spare_arrays import MOST, Arrays, SpareArrays
from tests.unit.core.clusters import node

HOLDERS: dict[str, Callable[[Arrays], object]] = {
    "an array": lambda arrays: arrays["free"],
    "a view": lambda arrays: arrays["free"].view(),
    "a row": lambda arrays: arrays["free"][0],
    "a row of the other array": lambda arrays: arrays["used"][1],
    "a buffer": lambda arrays: memoryview(arrays["free"]),
    "the mapping's values": lambda arrays: [*arrays.values()],
}
_SUMS = ("used", "free", "pods", "cpu_free", "memory_free", "cpu_only", "gpu_pods")
_STEPS = st.lists(
    st.tuples(
        st.sampled_from("ab"),
        st.integers(0, 1),  # the device
        st.integers(1, 5),  # units
        st.sampled_from(("charge", "charge", "charge", "free all", "grow", "widen", "replace")),
        st.booleans(),  # whether somebody goes on holding the snapshot
    ),
    max_size=20,
)


def arrays() -> Arrays:
    return {"free": np.zeros((3, 2)), "used": np.ones((3, 2))}


@pytest.mark.parametrize("hold", HOLDERS.values(), ids=HOLDERS)
def test_no_set_is_taken_while_somebody_holds_a_part_of_it(
    hold: Callable[[Arrays], object],
) -> None:
    spares = SpareArrays[str]()
    mine = arrays()
    holder = hold(mine)
    spares.keep("first", mine)
    del mine
    assert spares.take() is None
    del holder
    taken = spares.take()
    assert taken is not None
    assert taken[0] == "first"
    taken[1]["free"][0] = 7
    assert spares.take() is None


def test_the_oldest_set_goes_when_all_are_held() -> None:
    spares, holders = SpareArrays[int](), []
    for number in range(20):
        mine = arrays()
        spares.keep(number, mine)
        holders.append(mine)
    del mine
    holders.clear()
    taken = [spares.take() for _ in range(20)]
    assert [entry[0] for entry in taken if entry] == [*range(20 - MOST, 20)]


def sums(view: Snapshot) -> dict[str, object]:
    return {name: getattr(view, name).tolist() for name in _SUMS}


@given(steps=_STEPS)
def test_a_snapshot_in_old_arrays_equals_one_made_anew(
    steps: list[tuple[str, int, int, str, bool]],
) -> None:
    specs = {name: node(name, 16, 16, cpu=8000, memory=2**40) for name in "ab"}
    tally, charges, widest = NodeArrays(), list[Charge](), 2
    holders: list[tuple[Snapshot, dict[str, object]]] = []
    for spec in specs.values():
        tally.set_node(spec, ())
    for name, device, units, step, holds in steps:
        if step == "charge":
            request = Request(units, 1, cpu=units * 100, memory=units)
            charges.append(Charge(name, request, ((device, units),)))
            tally.add(charges[-1])
        elif step == "free all":
            while charges:
                tally.add(charges.pop(), -1)
        else:
            cards = (16,) * (3 if step == "widen" else 2)
            new_name = f"n{len(specs)}" if step == "grow" else name
            specs[new_name] = node(new_name, *cards, cpu=9000, memory=2**40)
            of_node = [charge for charge in charges if charge.node == new_name]
            tally.set_node(specs[new_name], of_node)
        view, anew = tally.snapshot({}), NodeArrays()
        if step == "widen":
            widest = 3
        anew.set_node(node("as wide", *(16,) * widest), ())
        for spec in specs.values():
            anew.set_node(spec, [charge for charge in charges if charge.node == spec.name])
        expected = anew.snapshot({})
        for array in _SUMS:
            mine = [getattr(view, array)[view.row[name]].tolist() for name in specs]
            assert mine == [getattr(expected, array)[expected.row[name]].tolist() for name in specs]
        if holds:
            holders.append((view, sums(view)))
        del view
    for view, before in holders:
        assert sums(view) == before


def test_snapshots_that_nobody_holds_lend_their_arrays() -> None:
    tally = NodeArrays()
    tally.set_node(node("a", 16, 16), ())
    places = set()
    for units in range(1, 10):
        tally.add(Charge("a", Request(1, 1), ((0, 1),)))
        view = tally.snapshot({})
        places.add(view.used.__array_interface__["data"][0])
        assert view.used.tolist() == [[units, 0]]
        assert view.free.tolist() == [[16 - units, 16]]
        with pytest.raises(ValueError, match="read-only"):
            view.used[0] = 0
    assert len(places) < 9
