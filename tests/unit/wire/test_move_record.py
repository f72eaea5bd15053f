"""The record of moves: the remaining budget of an hour, across leaders."""

import json

import pytest

from gpushare.errors import MessageError
from gpushare.wire.moves import SETTLES, MoveRecord, read_record

NOW = 1_800_000_000.0


def reread(record: MoveRecord, now: float = NOW) -> MoveRecord:
    document = record.document()
    document["metadata"]["resourceVersion"] = "7"
    return read_record(json.dumps(document).encode(), now)


def test_a_move_counts_for_an_hour_and_is_under_way_until_it_is_settled() -> None:
    record = reread(MoveRecord().sent("u", "team/p", NOW))
    assert (record.moves_left(2, NOW), record.version, record.moves[0].at) == (1, "7", NOW)
    assert record.under_way(NOW) == record.moves[0]
    assert not record.settled("u").under_way(NOW)
    assert not record.under_way(NOW + SETTLES)
    assert record.moves_left(1, NOW + 3599) == 0
    assert record.moves_left(1, NOW + 3600) == 1
    assert record.withdrawn("u").moves_left(1, NOW) == 1
    again = record.settled("u").sent("u", "team/p", NOW)
    assert again.withdrawn("u").moves == record.settled("u").moves, "another one has moved it"
    assert record.sent("v", "team/q", NOW + 4000).moves[0].uid == "v"


def test_a_clock_that_went_ahead_does_not_spend_the_budget_for_ever() -> None:
    record = reread(MoveRecord().sent("u", "team/p", NOW + 10**6), NOW)
    assert record.moves_left(1, NOW + 3600) == 1


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b'{"metadata":{}}', b'{"metadata":{"resourceVersion":"1"},"data":{"moves":"x"}}'],
)
def test_what_cannot_be_read_is_no_empty_record(body: bytes) -> None:
    with pytest.raises(MessageError):
        read_record(body, NOW)
