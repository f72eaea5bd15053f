"""Merge patch by the examples of RFC 7386, JSON patch by those of RFC 6902, and laws of both."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare_localcluster.api.patch import json_patch, merge_patch
from gpushare_localcluster.api.status import StatusError

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


def operation(op: str, path: str, **more: object) -> dict[str, object]:
    return {"op": op, "path": path, **more}


@pytest.mark.parametrize(
    ("document", "operations", "expected"),
    [
        ({"a": 1}, [operation("add", "/b", value=2)], {"a": 1, "b": 2}),
        ({"a": [1, 3]}, [operation("add", "/a/1", value=2)], {"a": [1, 2, 3]}),
        ({"a": [1]}, [operation("add", "/a/-", value=2)], {"a": [1, 2]}),
        ({"a": 1}, [operation("add", "", value=[])], []),
        ({"a": [1, 2]}, [operation("remove", "/a/0")], {"a": [2]}),
        ({"a": {"b": 1}}, [operation("remove", "/a/b")], {"a": {}}),
        ({"a": [1, 2]}, [operation("replace", "/a/1", value=3)], {"a": [1, 3]}),
        ({"a/b": 1, "m~n": 2}, [operation("remove", "/a~1b")], {"m~n": 2}),
        ({"a/b": 1, "m~n": 2}, [operation("replace", "/m~0n", value=3)], {"a/b": 1, "m~n": 3}),
        ({"": 1}, [operation("replace", "/", value=2)], {"": 2}),
        ({"a": 1}, [operation("test", "/a", value=1), operation("remove", "/a")], {}),
        ({"a": [{"b": 1}]}, [operation("add", "/a/0/c", value=2)], {"a": [{"b": 1, "c": 2}]}),
    ],
)
def test_json_patch_does_what_the_rfc_says(
    document: object, operations: list[dict[str, object]], expected: object
) -> None:
    assert json_patch(document, operations) == expected


@pytest.mark.parametrize(
    ("operations", "code"),
    [
        ([operation("test", "/a", value=2)], 422),
        ([operation("test", "/flag", value=1)], 422),
        ([operation("remove", "/missing")], 422),
        ([operation("replace", "/missing", value=1)], 422),
        ([operation("add", "/missing/deep", value=1)], 422),
        ([operation("add", "/list/9", value=1)], 422),
        ([operation("add", "/list/01", value=1)], 422),
        ([operation("add", "/list/x", value=1)], 422),
        ([operation("remove", "/list/-")], 422),
        ([operation("remove", "")], 422),
        ([{"op": "move", "from": "/a", "path": "/b"}], 400),
        ([operation("shuffle", "/a")], 400),
        ([operation("add", "/a")], 400),
        ([operation("add", "a", value=1)], 400),
        ([{"op": "copy", "path": "/a"}], 400),
        (["not an operation"], 400),
        ({"op": "add"}, 400),
    ],
)
def test_a_json_patch_that_cannot_be_applied_is_refused(operations: object, code: int) -> None:
    with pytest.raises(StatusError) as error:
        json_patch({"a": 1, "flag": True, "list": [1]}, operations)
    assert error.value.code == code


def paths(document: object, prefix: str = "") -> list[str]:
    result = [prefix]
    if isinstance(document, dict):
        for key, value in document.items():
            result += paths(value, f"{prefix}/{key.replace('~', '~0').replace('/', '~1')}")
    elif isinstance(document, list):
        for index, value in enumerate(document):
            result += paths(value, f"{prefix}/{index}")
    return result


@given(st.data(), OBJECTS, JSON)
def test_what_a_json_patch_replaces_it_finds(
    data: st.DataObject, document: dict[str, object], value: object
) -> None:
    path = data.draw(st.sampled_from(paths(document)))
    after = json_patch(document, [operation("replace", path, value=value)])
    assert json_patch(after, [operation("test", path, value=value)]) == after


@given(st.data(), OBJECTS)
def test_a_json_patch_leaves_its_document_alone(
    data: st.DataObject, document: dict[str, object]
) -> None:
    before = repr(document)
    path = data.draw(st.sampled_from(paths(document)))
    json_patch(document, [operation("replace", path, value=1)])
    if path:
        json_patch(document, [operation("remove", path)])
    assert repr(document) == before
