"""A layout that is kept up to date is what a rebuilt one would be, and says what has changed."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.core.amounts import compute
from gpushare.core.layout import GroupRows, Numbers
from gpushare.core.model import Charge, NodeSpec, Reason, Request
from gpushare.core.node_arrays import NodeArrays
from gpushare.core.snapshot import Snapshot
from tests.unit.core.clusters import node

NAMES = [f"n{number}" for number in range(6)]

specs = st.builds(
    lambda name, capacity, sick, model, cpu, memory, closed, card: node(
        name,
        *capacity,
        unhealthy=sick,
        models=(model,) * len(capacity),
        cpu=cpu,
        memory=memory,
        closed=closed,
        uuids=tuple(f"GPU-{card + device}" for device in range(len(capacity))),
    ),
    st.sampled_from(NAMES),
    st.lists(st.sampled_from([8, 16]), max_size=3).map(tuple),
    st.sets(st.integers(0, 2)),
    st.sampled_from(["A100", "T4", "L4"]),
    st.sampled_from([None, 1000, 2000]),
    st.sampled_from([None, 1 << 30, (1 << 30) + 1, 1 << 31]),
    st.sampled_from([None, None, Reason.BROKEN_INVENTORY]),
    st.integers(0, 3),
)
PERCENTS = (compute(30), compute(100))
changes = st.lists(
    st.one_of(
        specs,
        st.sampled_from(NAMES),  # it goes
        st.builds(
            Charge,
            st.sampled_from(NAMES),
            st.sampled_from([Request(1, 1, percents=percents) for percents in ((), *PERCENTS)]),
            st.just(((0, 1),)),
        ),
    ),
    max_size=20,
)


def as_rebuilt(view: Snapshot) -> dict[str, object]:
    """Return what the snapshot says by name of node: rows and numbers may be others."""
    result: dict[str, object] = {}
    for name in sorted(view.row):
        row = view.row[name]
        count = int((view.model[row] >= 0).sum())
        result[name] = (
            view.capacity[row, :count].tolist(),
            view.healthy[row, :count].tolist(),
            [view.models[number] for number in view.model[row, :count]],
            view.uuids[row],
            int(view.cpu_capacity[row]),
            int(view.memory_capacity[row]),
            int(view.closed[row]),
            view.free[row, :count].tolist(),
            view.open[row, :count].tolist(),
            view.cores_used[row, :count].tolist(),
            {item for item in view.row if view.group[view.row[item]] == view.group[row]},
            sum(view.order[view.row[item]] < view.order[row] for item in view.row),
        )
    result["cards"] = {
        uuid: sorted((view.names[row], device) for row, device in places)
        for uuid, places in view.cards.items()
    }
    return result | {"any_percents": view.any_percents}


@given(changes, st.sets(st.integers(0, 19)))
def test_an_incremental_layout_equals_a_rebuilt_one(
    steps: list[NodeSpec | str | Charge], looks: set[int]
) -> None:
    arrays, present, holding = NodeArrays(), dict[str, NodeSpec](), list[Charge]()
    for number, step in enumerate(steps):
        if isinstance(step, NodeSpec):
            present[step.name] = step
            arrays.set_node(step, [charge for charge in holding if charge.node == step.name])
        elif isinstance(step, Charge):
            holding.append(step)
            arrays.add(step)
        elif step in present:
            del present[step]
            arrays.remove_node(step)
        if number in looks:
            _ = arrays.snapshot({}).cards  # as somebody may have asked
    view, rebuilt = arrays.snapshot({}), NodeArrays()
    for spec in present.values():
        rebuilt.set_node(spec, [charge for charge in holding if charge.node == spec.name])
    assert as_rebuilt(view) == as_rebuilt(rebuilt.snapshot({}))
    groups = view.group_rows
    assert groups.nodes.tolist() == GroupRows.of(view.group, view.order).nodes.tolist()
    for group in np.flatnonzero(groups.nodes).tolist():
        assert view.names[groups.row[group]]
        assert view.group[groups.row[group]] == group
    for row, name in enumerate(view.names):
        if not name:
            assert not view.capacity[row].any()
            assert not view.open[row].any()
            assert view.uuids[row] == ()


FIRST = node("a", 16, 16, cpu=1000, memory=1 << 40, uuids=("GPU-1", "GPU-2"))


@pytest.mark.parametrize(
    ("spec", "shapes", "names"),
    [
        (FIRST, False, False),
        (replace(FIRST, healthy=(True, False)), False, False),
        (replace(FIRST, closed=Reason.UNEVEN), False, False),
        (replace(FIRST, uuids=("GPU-1", "GPU-3")), False, False),
        (replace(FIRST, capacity=(16, 8)), True, False),
        (replace(FIRST, models=("T4", "T4")), True, False),
        (replace(FIRST, cpu=2000), True, False),
        (replace(FIRST, memory=1 << 41), True, False),
        (replace(FIRST, name="c"), True, True),
        (None, True, True),
    ],
)
def test_what_has_not_changed_is_shared(spec: NodeSpec | None, shapes: bool, names: bool) -> None:
    arrays = NodeArrays()
    for item in (FIRST, replace(FIRST, name="b")):
        arrays.set_node(item, ())
    before = arrays.snapshot({})
    if spec is None:
        arrays.remove_node("a")
    else:
        arrays.set_node(spec, ())
    after = arrays.snapshot({})
    assert (after.capacity is not before.capacity) == shapes
    assert (after.row is not before.row) == names
    assert (after.names is not before.names) == names


def test_a_number_is_used_again_when_nobody_uses_its_value() -> None:
    numbers = Numbers()
    assert [numbers.take(value) for value in ("a", "b", "a")] == [0, 1, 0]
    numbers.release(0)
    assert numbers.take("c") == 2
    numbers.release(0)
    assert numbers.values() == ("", "b", "c")
    assert numbers.take("d") == 0
    assert numbers.values() == ("d", "b", "c")


def test_a_change_of_a_node_walks_over_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = NodeArrays()
    for number in range(200):
        arrays.set_node(replace(FIRST, name=f"n{number:03}"), ())
    arrays.snapshot({})
    shapes = 0

    def counted(spec: NodeSpec) -> object:
        nonlocal shapes
        shapes += 1
        return spec.capacity

    monkeypatch.setattr("gpushare.core.layout._shape", counted)
    arrays.set_node(replace(FIRST, name="n100", cpu=1), ())
    assert np.count_nonzero(arrays.snapshot({}).cpu_capacity == 1) == 1
    assert shapes == 1


def test_the_rows_of_more_groups_than_there_was_room_for_are_found() -> None:
    arrays = NodeArrays()
    for number in range(200):
        arrays.set_node(replace(FIRST, name=f"n{number:03}", cpu=1000 + number // 2), ())
    view = arrays.snapshot({})
    assert view.group_rows.nodes.tolist() == [2] * 100
    assert view.group[view.group_rows.row].tolist() == list(range(100))
