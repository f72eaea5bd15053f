"""Merge patch by the examples of RFC 7386, and laws of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare_localcluster.api.patch import merge_patch

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.text("ab/~", max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab/~", max_size=2), inner),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.text("abc", min_size=1, max_size=2), JSON, max_size=4)


@pytest.mark.parametrize(
    ("target", "patch", "expected"),
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        (["a", "b"], ["c", "d"], ["c", "d"]),
        ({"a": "b"}, ["c"], ["c"]),
        ({"a": "foo"}, None, None),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_merge_patch_does_what_the_rfc_shows(
    target: object, patch: object, expected: object
) -> None:
    assert merge_patch(target, patch) == expected


@given(OBJECTS, OBJECTS)
def test_a_merge_patch_applied_twice_changes_nothing_more(
    target: dict[str, object], patch: dict[str, object]
) -> None:
    once = merge_patch(target, patch)
    assert merge_patch(once, patch) == once


@given(OBJECTS, OBJECTS)
def test_a_merge_patch_leaves_its_arguments_alone(
    target: dict[str, object], patch: dict[str, object]
) -> None:
    before = repr((target, patch))
    merge_patch(target, patch)
    assert repr((target, patch)) == before
