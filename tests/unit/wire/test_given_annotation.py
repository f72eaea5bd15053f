"""The annotation of devices beside the Binding reads back, and nonsense counts as none."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.core.model import MAX_UNITS
from gpushare.wire.annotations import ALIYUN, Names, is_uuid
from gpushare.wire.given_annotation import read_given, write_given

UUIDS = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1).filter(is_uuid)


@given(st.dictionaries(UUIDS, st.integers(1, MAX_UNITS), max_size=8))
def test_what_is_written_is_read_back(units: dict[str, int]) -> None:
    assert dict(read_given(write_given(units, ALIYUN), MAX_UNITS, ALIYUN)) == units


def test_no_card_has_more_than_the_pod_asks_for() -> None:
    annotations = write_given({"b": 9, "a": 2}, ALIYUN)
    assert annotations == {"gpushare.io/given": '{"a":2,"b":9}'}
    assert read_given(annotations, 4, ALIYUN) == (("a", 2), ("b", 4))


def test_another_resource_has_another_name() -> None:
    npu = Names.for_resource("example.com/npu-mem")
    assert [*write_given({"a": 1}, npu)] == ["gpushare.io/given-example-com-npu-mem"]


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", "4", "null", '{"a":0}', '{"a":-1}', '{"a":"4"}', '{"a":true}'),
        *('{"a":1.0}', '{"a b":4}', '{"":4}', '{"a":{}}', '{"a":NaN}', '{"a":1,"b":null}'),
        json.dumps({f"u{number}": 1 for number in range(65)}),
        "[" * 40_000,
    ],
)
def test_nonsense_is_nothing(text: str) -> None:
    assert read_given({ALIYUN.given: text}, 4, ALIYUN) == ()
