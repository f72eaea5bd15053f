"""Lists and events decode fast and typed, and one odd object never hides the others."""

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.core.model import PodRef
from gpushare.errors import MessageError
from gpushare.wire.binding import check_bound
from gpushare.wire.objects import CONFIG_MAPS, NODES, PODS

GOOD = {"metadata": {"name": "a", "namespace": "ns", "uid": "u1", "resourceVersion": "7"}}
ODD = {"metadata": {"name": "b", "namespace": "ns", "uid": "u2"}, "spec": {"containers": 7}}


def body(*items: Any, **metadata: Any) -> bytes:
    return json.dumps({"kind": "PodList", "metadata": metadata, "items": items}).encode()


def event(kind: str, obj: Any) -> bytes:
    return json.dumps({"type": kind, "object": obj}).encode()


def test_a_page_carries_its_place_in_history() -> None:
    page = PODS.decode_list(body(GOOD, resourceVersion="42", **{"continue": "tok"}))
    assert [item.metadata.name for item in page.items if item.metadata] == ["a"]
    assert (page.resource_version, page.continue_token, page.bad) == ("42", "tok", ())


@pytest.mark.parametrize("remainder", ['"items":null,"metadata":null', '"items":[]'])
def test_an_empty_list_is_a_list(remainder: str) -> None:
    page = NODES.decode_list(f'{{"kind":"NodeList",{remainder}}}'.encode())
    assert (list(page.items), page.resource_version, page.continue_token) == ([], "", "")


def test_one_odd_object_is_named_and_the_others_are_read() -> None:
    page = PODS.decode_list(body(GOOD, ODD, None, 7, GOOD, resourceVersion="42"))
    assert len(page.items) == 2
    assert page.resource_version == "42"
    assert [bad.ref.uid for bad in page.bad] == ["u2", "", ""]
    assert "ns/b: " in str(page.bad[0])
    assert "$.spec.containers" in str(page.bad[0])


@pytest.mark.parametrize("kind", ["ADDED", "MODIFIED", "DELETED"])
def test_an_event_carries_its_object(kind: str) -> None:
    watch_event = PODS.decode_event(event(kind, GOOD))
    assert (watch_event.kind, watch_event.resource_version, watch_event.bad) == (kind, "7", None)
    assert watch_event.object is not None
    assert watch_event.object.metadata is not None
    assert watch_event.object.metadata.uid == "u1"


def test_an_event_of_an_odd_object_says_whose() -> None:
    watch_event = PODS.decode_event(event("MODIFIED", ODD))
    assert watch_event.object is None
    assert watch_event.bad is not None
    assert watch_event.bad.ref == PodRef("ns", "b", "u2")


def test_a_bookmark_never_reaches_the_pod_decoder() -> None:
    odd = {"kind": "Pod", "metadata": {"resourceVersion": "99"}, "spec": {"containers": None}}
    watch_event = PODS.decode_event(event("BOOKMARK", odd | {"status": 7}))
    assert (watch_event.kind, watch_event.object, watch_event.resource_version) == (
        "BOOKMARK",
        None,
        "99",
    )


def test_an_error_event_carries_code_and_message() -> None:
    status = {
        "kind": "Status",
        "code": 410,
        "message": "too old",
        "metadata": {},
        "status": "Failure",
    }
    watch_event = PODS.decode_event(event("ERROR", status))
    assert (watch_event.kind, watch_event.code, watch_event.message) == ("ERROR", 410, "too old")
    assert PODS.decode_event(event("ERROR", {})).code == 0


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\n",
        b"[]",
        b"{}",
        b'{"type":7}',
        b'{"type":"ADDED","object":{"metadata":',
        b'{"type":"PATCHED","object":{}}',
        b'{"type":"BOOKMARK","object":7}',
        b'{"type":"ERROR","object":{"code":"410"}}',
        b'{"type":"ADDED","object":' + b"[" * 100_000,
        b"\xff\xfe",
    ],
)
def test_a_line_that_is_no_event_is_a_message_error(line: bytes) -> None:
    with pytest.raises(MessageError, match="watch event"):
        PODS.decode_event(line)


NO_LISTS = [
    *(b"", b"[]", b"{}", b"<html>sign in</html>", b"\xff", b"[" * 10**5),
    *(b'{"kind":"NodeList","items":7}', b'{"kind":"NodeList","items":[', b'{"kind":"NodeList"}'),
    *(b'{"items":[]}', b'{"kind":"PodList","items":[]}', b'{"kind":"PodList","items":[7]}'),
    b'{"kind":"Status","status":"Success"}',
    b'{"kind":"NodeList","metadata":{"resourceVersion":"7"}}',
]


@pytest.mark.parametrize("text", NO_LISTS)
def test_a_body_that_is_no_list_is_a_message_error(text: bytes) -> None:
    with pytest.raises(MessageError, match="list: "):
        NODES.decode_list(text)


@given(st.binary() | st.text().map(str.encode))
def test_arbitrary_bytes_never_raise_anything_else(text: bytes) -> None:
    for decoded in (PODS.decode, PODS.decode_list, PODS.decode_event):
        with suppress(MessageError):
            decoded(text)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(["items", "metadata", "spec", "containers", "type", "object", "name"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=12,
)


@given(JSON)
def test_arbitrary_json_decodes_or_is_a_message_error(document: object) -> None:
    text = json.dumps(document).encode()
    for decoded in (PODS.decode, NODES.decode_list, CONFIG_MAPS.decode_event):
        with suppress(MessageError):
            decoded(text)


ANSWERED = {"kind": "Pod", "metadata": {"name": "p", "namespace": "d", "uid": "u"}}


def test_what_was_asked_for_by_its_name_is_the_answer() -> None:
    pod = PODS.decode_answer(json.dumps(ANSWERED).encode(), "d", "p")
    assert pod.metadata is not None
    assert pod.metadata.uid == "u"


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"kind": "ConfigMap"}, "its kind is 'ConfigMap', not Pod"),
        ({"kind": None}, "not Pod"),
        ({"metadata": {"name": "q", "namespace": "d"}}, "another name"),
        ({"metadata": {"name": "p", "namespace": "e"}}, "another name"),
        ({"metadata": None}, "another name"),
    ],
)
def test_another_object_is_no_answer(change: dict[str, Any], text: str) -> None:
    """A pod with another uid counts as a successor, which frees the charge of our pod."""
    with pytest.raises(MessageError, match=text):
        PODS.decode_answer(json.dumps(ANSWERED | change).encode(), "d", "p")


def test_a_status_of_success_alone_says_that_a_binding_was_taken() -> None:
    good = {"kind": "Status", "apiVersion": "v1", "status": "Success", "code": 201}
    check_bound(json.dumps(good).encode())
    odd: list[bytes] = [b"", b"<html>", b"null", b"{}", json.dumps(ANSWERED).encode()]
    odd += [json.dumps(good | {"status": "Failure"}).encode()]
    odd += [json.dumps(good | {"kind": "Binding"}).encode()]
    odd += [json.dumps(good | {"kind": "x" * 10_000}).encode()]
    for answer in odd:
        with pytest.raises(MessageError, match=r"^answer to a Binding: is no Status of Success$"):
            check_bound(answer)


def test_an_odd_object_is_named_whatever_else_of_its_metadata_is_odd() -> None:
    metadata = {"name": "p", "namespace": "d", "uid": "u", "labels": {"a": 1}, "annotations": 7}
    page = PODS.decode_list(body({"metadata": metadata}))
    assert [bad.ref for bad in page.bad] == [PodRef("d", "p", "u")]
