"""A view of the books: what it derives, and that nobody can change it."""

from dataclasses import fields
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from gpushare.core.amounts import PERCENT_AMOUNTS
from gpushare.core.model import Cards, Charge, Reason, Request
from gpushare.core.snapshot import Snapshot, contested_cards, has_cards
from tests.unit.core.clusters import Cluster, node

CLUSTER = Cluster(
    (
        node("a", 16, 16, 8, unhealthy=[1]),
        node("shut", 16, closed=Reason.BROKEN_INVENTORY),
        node("over", 8),
    ),
    {"a": (6, 0, 8), "over": (9,)},
)


def test_free_is_what_can_be_given_out_and_never_negative() -> None:
    view = CLUSTER.snapshot()
    assert view.free.tolist() == [[10, 0, 0], [0, 0, 0], [0, 0, 0]]
    assert view.open.tolist() == [[True, False, True], [False] * 3, [True, False, False]]


def test_changed_since_names_the_rows_that_changed_after() -> None:
    tally = CLUSTER.tally()
    before = tally.snapshot({})
    assert before.changed_since(before.generation).tolist() == []
    tally.add(Charge("over", Request(1, 1), None))
    after = tally.snapshot({})
    assert after.changed_since(before.generation).tolist() == [after.row["over"]]
    assert after.changed_since(-1).tolist() == [0, 1, 2]


def test_a_card_is_on_every_node_that_claims_it() -> None:
    honest = node("honest", 16, 16, uuids=("GPU-a", "GPU-b"))
    liar = node("liar", 16, uuids=("GPU-a",))
    for specs in ((honest, liar), (liar, honest)):
        view = Cluster(specs, {}).snapshot()
        rows = np.arange(2)
        expected = has_cards(view, rows, Cards(uuids=("GPU-a",)))
        assert expected[view.row["honest"]].tolist() == [True, False]
        assert expected[view.row["liar"]].tolist()[0]
        refusals = has_cards(view, rows, Cards(not_uuids=("GPU-a",)))
        assert refusals[view.row["honest"]].tolist() == [False, True]
        assert not refusals[view.row["liar"]].tolist()[0]
        assert contested_cards(view) == {
            "honest": {"GPU-a": "liar"},
            "liar": {"GPU-a": "honest"},
        }


def test_no_array_of_a_view_can_be_written() -> None:
    view = CLUSTER.snapshot()
    arrays = _arrays(view)
    assert len(arrays) == 16 + len(PERCENT_AMOUNTS)
    for array in (*arrays.values(), view.open, view.free):
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 1


def test_a_view_does_not_follow_the_books() -> None:
    tally = CLUSTER.tally()
    view = tally.snapshot({})
    arrays = _arrays(view)
    holding = {name: array.copy() for name, array in arrays.items()}
    tally.add(Charge("a", Request(1, 1, cpu=1), ((0, 1),)))
    tally.set_node(node("a", 1, 2, 3, unhealthy=[0], closed=Reason.UNEVEN, cpu=1, memory=1), ())
    tally.remove_node("shut")
    tally.set_node(node("new", 1, 1, 1, 1), ())
    assert all(np.array_equal(array, holding[name]) for name, array in arrays.items())
    assert view.row == {"a": 0, "shut": 1, "over": 2}


def _arrays(view: Snapshot) -> dict[str, npt.NDArray[Any]]:
    parts = {field.name: getattr(view, field.name) for field in fields(view)}
    parts |= {f"percents_used[{n}]": used for n, used in enumerate(view.percents_used)}
    return {name: part for name, part in parts.items() if isinstance(part, np.ndarray)}
