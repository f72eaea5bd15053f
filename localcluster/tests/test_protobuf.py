"""Protobuf bodies: a recorded one of kubectl 1.37, and malformed ones."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare_localcluster.api.protobuf import ProtobufError, UnknownKindError, decode

CLASS = (
    b"k8s\x00\n%\n\x14scheduling.k8s.io/v1\x12\rPriorityClass"
    b'\x127\n\x14\n\x04high\x12\x00\x1a\x00"\x00*\x002\x008\x00B\x00'
    b'\x10\n\x18\x00"\x05first*\x14PreemptLowerPriority\x1a\x00"\x00'
)
"""`kubectl create priorityclass high --value=10 --description=first`."""
HEAD = b"k8s\x00\n\x0f\n\x02v1\x12\tConfigMap\x12"
CLOSED = b'$\n\x15\n\x05words\x12\x00\x1a\x00"\x00*\x002\x008\x00B\x00\x12\x0b\n\x04gpus\x12\x030,2'


def test_what_kubectl_sends() -> None:
    assert decode(CLASS) == {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": "high"},
        "value": 10,
        "globalDefault": False,
        "description": "first",
        "preemptionPolicy": "PreemptLowerPriority",
    }


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"{}", "magic"),
        (b"k8s\x00\x0a", "no end"),
        (b"k8s\x00\x0a\x05v1", "ends behind the end"),
        (b"k8s\x00\x0b", "wire type 3"),
        (HEAD + b"\x02\x08\x07", "a number stands where bytes should"),
        (HEAD + b"\x04\x22\x02no", "bytes stand where a number should"),
        (HEAD + b"\x08\x0a\x06\x42\x04\x08\xff\xff\xff", "no end"),
        (HEAD + b"\x0e\x0a\x0c\x4a\x0a\x08" + b"\xff" * 8 + b"\x7f", "out of range"),
    ],
)
def test_what_is_no_message_is_named(body: bytes, words: str) -> None:
    with pytest.raises(ProtobufError, match=words):
        decode(body)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"k8s\x00", "no kind"),
        (b"k8s\x00\n\x0a\n\x02v1\x12\x04Node", "v1 Node"),
        (HEAD + b"\x02\x50\x01", "field 10"),
    ],
)
def test_what_is_not_in_the_tables_is_refused(body: bytes, words: str) -> None:
    with pytest.raises(UnknownKindError, match=words):
        decode(body)


@given(st.binary(max_size=80), st.integers(0, 120), st.sampled_from([CLASS, HEAD + CLOSED]))
def test_whatever_comes_is_an_object_or_an_error(noise: bytes, at: int, body: bytes) -> None:
    for odd in (b"k8s\x00" + noise, body[:at] + noise + body[at:], body[:at] + noise):
        try:
            result = decode(odd)
        except ValueError:
            continue
        json.dumps(result)
