"""The document of the places that filter holds for unbound pods."""

import json
from dataclasses import replace

import pytest

from gpushare.core.amounts import compute
from gpushare.core.model import PodRef
from gpushare.errors import MessageError
from gpushare.wire.held import HeldPlace, decode_held, encode_held

MEM = "aliyun.com/gpu-mem"
ONE = HeldPlace(PodRef("team", "train", "uid-1"), "gpu-a", 10, 2, 1_790_000_000.0)
TWO = HeldPlace(PodRef("other", "slow", "uid-2"), "gpu-b", 3, 1)
SPLIT = HeldPlace(PodRef("other", "two", "uid-4"), "gpu-b", 30, 2, split=(30, 10))
RESERVED = replace(ONE, reserved_since=1_789_990_000.0)
THREE = HeldPlace(PodRef("other", "some", "uid-3"), "gpu-b", 3, 1, percents=compute(30))


def test_what_is_written_is_read_back() -> None:
    body = encode_held("GiB", {MEM: [ONE, TWO, THREE, SPLIT, RESERVED], "example.com/npu-mem": []})
    assert decode_held(body, MEM, "GiB") == (ONE, TWO, THREE, SPLIT, RESERVED)
    # Each key of these is there only for a place that needs the key.
    assert body.count(b"cores") == body.count(b"split") == body.count(b"reservedSince") == 1
    assert decode_held(body, "example.com/npu-mem", "GiB") == ()


def test_another_unit_is_converted_and_rounded_up() -> None:
    assert decode_held(encode_held("GiB", {MEM: [TWO]}), MEM, "MiB")[0].units == 3072
    assert decode_held(encode_held("256MiB", {MEM: [ONE]}), MEM, "GiB")[0].units == 3
    assert decode_held(encode_held("256MiB", {MEM: [SPLIT]}), MEM, "GiB")[0].split == (8, 3)


def test_the_end_is_told_as_a_time_of_day() -> None:
    assert ONE.until_text == "14:13:20 UTC"
    assert TWO.until_text == "kube-scheduler binds it or gives it up"
    assert RESERVED.until_text == (
        "it is bound; reserved since 11:26:40 UTC, expected to be free at 14:13:20 UTC"
    )
    long_ago = replace(RESERVED, reserved_since=1_789_900_000.0)
    assert long_ago.until_text == (
        "it is bound; reserved since 2026-09-20 10:26:40 UTC, expected to be free at "
        "2026-09-21 14:13:20 UTC"
    )


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"{", "no list of places"),
        (b"[]", "no list of places"),
        (b'{"unit": 1, "resources": []}', "no list of places"),
        (json.dumps({"unit": "GiB", "resources": []}).encode(), f"tells nothing of {MEM}"),
        (
            json.dumps({"unit": "GiB", "resources": [{"resource": MEM, "held": [{}]}]}).encode(),
            "no list of places",
        ),
    ],
)
def test_what_is_no_such_document_is_one_line(body: bytes, text: str) -> None:
    with pytest.raises(MessageError, match=text):
        decode_held(body, MEM, "GiB")
