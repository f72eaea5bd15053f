"""Names of nodes with cached rows: valid for one layout, and for no other."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.core.node_arrays import NodeArrays
from gpushare.core.node_names import MAX_PARTS, KnownNames, NodeNames
from tests.unit.core.clusters import node


def members(names: NodeNames, numbers: dict[str, int]) -> set[str]:
    """The names with a set bit."""
    bits = names.bits(numbers)
    return {
        name for name, at in numbers.items() if at < 8 * len(bits) and bits[at // 8] >> at % 8 & 1
    }


def test_rows_are_those_of_the_layout_asked_about() -> None:
    names = NodeNames(["b", "a", "c"])
    old, new = {"a": 0, "b": 1}, {"c": 0, "a": 1, "b": 2}
    for _ in range(2):
        assert names.rows(old).tolist() == [1, 0, -1]
        assert names.rows(new).tolist() == [2, 1, 0]


def test_rows_are_found_once_for_a_layout() -> None:
    names, row = NodeNames(["a"]), {"a": 0}
    assert names.rows(row) is names.rows(row)
    assert not names.rows(row).flags.writeable


def test_a_part_is_what_its_mask_says_and_knows_its_rows() -> None:
    dice = random.Random(7)
    names = NodeNames([f"node-{number}" for number in range(12)])
    layouts = [{name: at for at, name in enumerate(dice.sample(names, 9))} for _ in range(3)]
    masks = [np.array([dice.random() < 0.5 for _ in names]) for _ in range(2 * MAX_PARTS)]
    numbers: dict[str, int] = {}
    for _ in range(500):
        mask, layout = dice.choice(masks), dice.choice(layouts)
        if dice.random() < 0.5:
            names.rows(layout)
        part = names.part(mask)
        assert part == tuple(name for name, fits in zip(names, mask, strict=True) if fits)
        assert part.rows(layout).tolist() == [layout.get(name, -1) for name in part]
        assert members(part, numbers) == set(part)


def test_the_parts_asked_for_last_are_the_same_objects() -> None:
    names = NodeNames([f"node-{number}" for number in range(MAX_PARTS)])
    masks = list(np.eye(MAX_PARTS, dtype=bool))
    parts = [names.part(mask) for mask in masks]
    assert all(names.part(mask) is part for mask, part in zip(masks, parts, strict=True))
    names.part(~masks[0])
    assert names.part(masks[-1]) is parts[-1]
    assert names.part(masks[0]) is not parts[0]


def test_all_names_are_the_list_itself() -> None:
    """The answer of filter with all nodes is not encoded again."""
    names = NodeNames(["a", "b"])
    assert names.part(np.array([True, True])) is names


def test_a_part_remembers_no_parts_of_its_own() -> None:
    """They would hold each other, level by level."""
    part = NodeNames(["a", "b", "c"]).part(np.array([True, True, False]))
    mask = np.array([True, False])
    assert part.part(mask) == ("a",)
    assert part.part(mask) is not part.part(mask)


def test_known_names_have_the_rows_and_bits_of_any_others() -> None:
    dice = random.Random(11)
    plain = [f"node-{number}" for number in range(20)]
    known_names = KnownNames(plain)
    numbers: dict[str, int] = {}
    layouts = [{name: at for at, name in enumerate(dice.sample(plain, 15))} for _ in range(6)]
    for _ in range(500):
        order = dice.sample(plain, dice.randrange(1, 20))
        lookup = known_names.find([*order])
        assert lookup == (tuple(order), sum(map(len, order)))
        names = lookup[0]
        part = names.part(np.array([dice.random() < 0.5 for _ in names]))
        for some in (names, part):
            layout = dice.choice(layouts)
            assert some.rows(layout).tolist() == [layout.get(name, -1) for name in some]
            assert members(some, numbers) == set(some)


def test_a_name_that_is_new_or_comes_twice_is_not_found() -> None:
    known_names = KnownNames(["a", "b"])
    assert known_names.find(["b", "c"]) is None
    assert known_names.find(["b", "b"]) is None
    assert known_names.find([]) == ((), 0)
    more = known_names.joined(["c", "b"])
    assert len(more) == 3
    assert more.find(["c", "a", "b"]) == (("c", "a", "b"), 3)


NAMES = [f"n{number}" for number in range(8)]


@given(st.lists(st.tuples(st.sampled_from([*NAMES, "new"]), st.booleans()), max_size=60))
def test_rows_follow_nodes_that_come_and_go(steps: list[tuple[str, bool]]) -> None:
    arrays, known_names = NodeArrays(), KnownNames(NAMES)
    for name, looks in steps:
        if name in arrays.row:
            arrays.remove_node(name)
        else:
            arrays.set_node(node(name, 8), ())
        row = arrays.snapshot({}).row
        if looks:
            lookup = known_names.find(random.sample(NAMES, 5))
            assert lookup is not None
            assert lookup[0].rows(row).tolist() == [
                row.get(listed_name, -1) for listed_name in lookup[0]
            ]


def test_names_are_looked_up_anew_only_after_many_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    arrays, known_names, lookups = NodeArrays(), KnownNames(NAMES), 0

    class Counted(dict[str, int]):
        def __iter__(self) -> object:  # type: ignore[override]
            nonlocal lookups
            lookups += 1
            return super().__iter__()

    monkeypatch.setattr(known_names, "_places", Counted(known_names._places))  # noqa: SLF001
    for name in NAMES:
        arrays.set_node(node(name, 8), ())
    known_names.table(arrays.snapshot({}).row)
    assert lookups == 1
    for _ in range(3):
        for name in NAMES[:3]:
            arrays.remove_node(name)
            arrays.snapshot({})  # which nobody keeps
            arrays.set_node(node(name, 8), ())
        row = arrays.snapshot({}).row
        table = known_names.table(row)
        assert table[:8].tolist() == [row[name] for name in NAMES]
    assert lookups == 1
