"""No owner waits for all items of another."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.turns import Turns, in_turns


def test_owners_take_turns_in_the_order_of_their_first_items() -> None:
    items = ["a1", "a2", "a3", "b1", "c1", "c2"]
    assert in_turns(items, lambda item: item[0]) == ["a1", "b1", "c1", "a2", "c2", "a3"]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers())))
def test_every_item_is_taken_once_and_each_owner_keeps_its_order(
    items: list[tuple[str, int]],
) -> None:
    turns = in_turns(items, lambda item: item[0])
    for owner in "abc":
        owner_items = [item for item in items if item[0] == owner]
        assert [item for item in turns if item[0] == owner] == owner_items
    assert len(turns) == len(items)


def test_the_newest_item_of_the_longest_owner_can_be_dropped() -> None:
    turns = Turns[int]()
    for owner, item in (("a", 1), ("b", 2), ("b", 3)):
        turns.put(owner, item)
    assert turns.longest() == "b"
    turns.drop_newest("b")
    turns.drop_newest("b")
    assert [turns.count("a"), turns.count("b"), len(turns)] == [1, 0, 1]
    assert turns.take() == 1
    with pytest.raises(KeyError):
        turns.take()
