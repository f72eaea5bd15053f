"""The verbs' JSON: read as Go would read it, answered with the exact keys, and never a surprise."""

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.core.model import PodRef
from gpushare.errors import MessageError
from gpushare.wire.extender import (
    BindArgs,
    FilterArgs,
    decode_bind,
    decode_filter,
    encode_bind,
    encode_filter,
    encode_priorities,
)
from gpushare.wire.pods import pod_ref

POD = {"metadata": {"name": "p", "namespace": "ns", "uid": "u", "managedFields": [{}]}}
NODE_A = {"metadata": {"name": "a", "labels": {"x": "y"}}, "status": {"images": [1]}, "odd": None}
NODE_B = {"metadata": {"name": "b"}}
BIND = {"PodName": "p", "PodNamespace": "ns", "PodUID": "u", "Node": "n1"}
FORMS: dict[str, dict[str, Any]] = {
    "names": {"Pod": POD, "Nodes": None, "NodeNames": ["a", "b"]},
    "nodes": {"Pod": POD, "Nodes": {"metadata": {}, "items": [NODE_A, NODE_B]}, "NodeNames": None},
}


def filter_args(document: Any) -> FilterArgs:
    return decode_filter(json.dumps(document).encode())


def bind_args(document: Any) -> BindArgs:
    return decode_bind(json.dumps(document).encode())


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("spell", [str, str.lower, str.upper, lambda key: key[0].lower() + key[1:]])
def test_a_filter_request_is_read_in_both_forms_and_any_case(form: str, spell: Any) -> None:
    args = filter_args({spell(key): value for key, value in FORMS[form].items()})
    assert pod_ref(args.pod) == PodRef("ns", "p", "u")
    assert list(args.names) == ["a", "b"]
    assert (args.items is None) is (form == "names")


@pytest.mark.parametrize("spell", [str, str.lower, str.upper])
def test_a_bind_request_is_read_in_any_case(spell: Any) -> None:
    args = bind_args({spell(key): value for key, value in BIND.items()})
    assert args == BindArgs(PodRef("ns", "p", "u"), "n1")


def test_unknown_keys_are_ignored_and_the_last_spelling_counts() -> None:
    assert bind_args({"New": 1, **BIND}).node == "n1"
    assert bind_args({"node": "n0", **BIND}).node == "n1"
    assert bind_args({**BIND, "node": "n2"}).node == "n2"


def test_names_lead_where_both_forms_are_given() -> None:
    args = filter_args(FORMS["nodes"] | {"NodeNames": ["b"]})
    assert (list(args.names), args.items) == (["b"], None)


def test_a_node_named_twice_is_asked_about_once() -> None:
    assert list(filter_args({"Pod": POD, "NodeNames": ["b", "a", "b"]}).names) == ["b", "a"]


def test_no_nodes_are_a_question_too() -> None:
    assert list(filter_args({"Pod": POD, "NodeNames": []}).names) == []
    assert list(filter_args({"Pod": POD, "Nodes": {"items": None}}).names) == []


@pytest.mark.parametrize(
    ("document", "field"),
    [
        ({}, "Pod"),
        ({"Pod": None, "NodeNames": []}, "Pod"),
        ({"Pod": POD}, "NodeNames"),
        ({"Pod": POD, "NodeNames": None, "Nodes": None}, "NodeNames"),
        ({"Pod": POD, "NodeNames": [""]}, "NodeNames"),
        ({"Pod": POD, "NodeNames": ["a", " "]}, "NodeNames"),
        ({"Pod": POD, "NodeNames": ["a\n"]}, "NodeNames"),
        ({"Pod": POD, "NodeNames": ["a", None]}, r"\$\.NodeNames"),
        ({"Pod": POD, "NodeNames": "a"}, r"\$\.NodeNames"),
        ({"Pod": 7, "NodeNames": ["a"]}, r"\$\.Pod"),
        ({"pod": {"spec": {"containers": {}}}, "NodeNames": []}, r"\$\.Pod\.spec\.containers"),
        ({"Pod": POD, "Nodes": {"items": [{}]}}, r"Nodes\.items"),
        ({"Pod": POD, "Nodes": {"items": [NODE_A, {"metadata": 7}]}}, r"Nodes\.items\[1\]"),
        ({"Pod": POD, "Nodes": {"items": [NODE_A, None]}}, r"Nodes\.items\[1\]"),
        ([], "request"),
    ],
)
def test_a_wrong_filter_request_names_the_field(document: Any, field: str) -> None:
    with pytest.raises(MessageError, match=field):
        filter_args(document)


LONGEST = {"name": "n" * 253, "namespace": "n" * 63, "uid": "u" * 128}


@pytest.mark.parametrize("field", LONGEST)
@pytest.mark.parametrize("spoil", ["{}x", "{}\n", "x{}", "Ä", "/ ", " "])
def test_a_name_that_no_api_server_gives_is_refused_and_its_field_named(
    field: str, spoil: str
) -> None:
    longest = POD | {"metadata": LONGEST}
    assert filter_args({"Pod": longest, "NodeNames": []}).pod.metadata is not None
    wrong = {"metadata": LONGEST | {field: spoil.format(LONGEST[field])}}
    with pytest.raises(MessageError, match=rf"\$\.Pod\.metadata\.{field}`$"):
        filter_args({"Pod": wrong, "NodeNames": []})


@pytest.mark.parametrize(
    ("pod", "field"),
    [
        ({"spec": {"nodeName": "n" * 254}}, "Pod.spec.nodeName"),
        ({"status": {"nominatedNodeName": "n" * 254}}, "Pod.status.nominatedNodeName"),
    ],
)
def test_a_node_of_a_pod_with_too_long_a_name_is_refused(pod: Any, field: str) -> None:
    with pytest.raises(MessageError, match=rf"\$\.{field}`$"):
        filter_args({"Pod": POD | pod, "NodeNames": []})


@pytest.mark.parametrize("key", BIND)
@pytest.mark.parametrize("value", [None, "", " ", "a b", "x\n", 7])
def test_a_wrong_bind_request_names_the_field(key: str, value: Any) -> None:
    with pytest.raises(MessageError, match=key):
        bind_args(BIND | {key: value})


BROKEN = [
    b"",
    b"{",
    b"null",
    b"\xff",
    b"{} {}",
    b'{"Pod":NaN}',
    b'{"Pod":{"x":NaN},"NodeNames":[]}',
    b'{"Pod":' + b"[" * 100_000,
    b'{"Pod":{"metadata":{"name":"\xff"}},"NodeNames":[]}',
    b'{"Pod":{},"NodeNames":["\\ud800"]}',
    b'{"Pod":{"spec":{"overhead":{"cpu":' + b"9" * 5000 + b'}}},"NodeNames":[]}',
    b'{"a":' * 100_000,
]


@pytest.mark.parametrize("body", BROKEN, ids=range(len(BROKEN)))
def test_broken_bodies_are_message_errors(body: bytes) -> None:
    for decode in (decode_filter, decode_bind):
        with pytest.raises(MessageError):
            decode(body)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(
                ["Pod", "pod", "Nodes", "NodeNames", "items", "metadata", "name", "Node"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(st.binary() | JSON.map(lambda document: json.dumps(document).encode()))
def test_arbitrary_bodies_never_raise_anything_else(body: bytes) -> None:
    for decode in (decode_filter, decode_bind):
        with suppress(MessageError):
            decode(body)


def test_a_filter_answer_has_the_five_keys_of_the_original() -> None:
    args = filter_args(FORMS["names"])
    answer = encode_filter(args, ["a"], {"b": "busy"}, {"c": "never"})
    assert answer == (
        b'{"Nodes":null,"NodeNames":["a"],"FailedNodes":{"b":"busy"},'
        b'"FailedAndUnresolvableNodes":{"c":"never"},"Error":""}'
    )


def test_no_survivor_is_an_empty_array_never_null() -> None:
    answer = json.loads(encode_filter(filter_args(FORMS["names"])))
    assert answer["NodeNames"] == []
    answer = json.loads(encode_filter(filter_args(FORMS["nodes"])))
    assert answer["Nodes"] == {"metadata": {}, "items": []}


def test_surviving_node_objects_come_back_untouched() -> None:
    answer = json.loads(encode_filter(filter_args(FORMS["nodes"]), ["a"], {"b": "busy"}))
    assert answer["Nodes"]["items"] == [NODE_A]
    assert answer["NodeNames"] is None


def test_an_error_is_an_answer_too() -> None:
    answer = json.loads(encode_filter(None, error='not "ready"'))
    assert answer["Error"] == 'not "ready"'
    assert set(answer) == {
        "Nodes",
        "NodeNames",
        "FailedNodes",
        "FailedAndUnresolvableNodes",
        "Error",
    }


def test_priorities_are_a_bare_array_of_integers() -> None:
    assert encode_priorities({10: ["a"], 3: ["c", "b"]}) == (
        b'[{"Host":"a","Score":10},{"Host":"c","Score":3},{"Host":"b","Score":3}]'
    )
    assert encode_priorities({}) == b"[]"


@given(
    st.dictionaries(st.integers(0, 10), st.lists(st.text(st.characters(codec="utf-8")), min_size=1))
)
def test_priorities_can_be_read_whatever_the_names(names: dict[int, list[str]]) -> None:
    scores = [{"Host": name, "Score": score} for score, some in names.items() for name in some]
    assert json.loads(encode_priorities(names)) == scores


def test_a_bind_answer_is_its_error() -> None:
    assert encode_bind() == b'{"Error":""}'
    assert encode_bind("no room") == b'{"Error":"no room"}'
