"""An inventory reads back as written, and a wrong one names the field."""

import json
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.core.model import MAX_UNITS
from gpushare.errors import AnnotationError
from gpushare.wire.inventory import (
    MAX_DEVICES,
    Inventory,
    InventoryDevice,
    decode_inventory,
    decode_unhealthy,
    encode_inventory,
    is_unit,
)

PRINTABLE = [chr(code) for code in range(33, 127) if chr(code) != ","]
UUIDS = st.text(PRINTABLE, min_size=1, max_size=128)
DEVICES = st.builds(
    InventoryDevice,
    mem=st.sampled_from([0, 1, 16, 24, 40, 80, 144, MAX_UNITS]),
    uuid=st.just("") | UUIDS,
    model=st.text(max_size=128),
    healthy=st.booleans(),
    problem=st.text(max_size=128),
)
INVENTORIES = st.builds(
    Inventory,
    unit=st.sampled_from(["GiB", "MiB", "256MiB"]),
    devices=st.lists(DEVICES, max_size=64, unique_by=lambda each: each.uuid or id(each)).map(tuple),
    marks_assigned=st.booleans(),
    serves_by_identity=st.booleans(),
    uncounted=st.lists(UUIDS, max_size=64).map(tuple),
    gone=st.lists(UUIDS, max_size=64).map(tuple),
)


@given(INVENTORIES)
def test_what_is_written_reads_back(inventory: Inventory) -> None:
    assert decode_inventory(encode_inventory(inventory)) == inventory


def test_the_text_is_compact_and_leaves_defaults_out() -> None:
    devices = (InventoryDevice(80, "GPU-1", "A100"), InventoryDevice(40, healthy=False))
    assert encode_inventory(
        Inventory("GiB", devices, marks_assigned=True, serves_by_identity=True)
    ) == (
        '{"v":1,"unit":"GiB","devices":[{"uuid":"GPU-1","model":"A100","mem":80},'
        '{"mem":40,"healthy":false}],"marksAssigned":true,"servesByIdentity":true}'
    )


def test_keys_of_a_newer_writer_are_ignored() -> None:
    text = '{"v":1,"unit":"GiB","devices":[{"mem":8,"numa":1}],"driver":"570"}'
    assert decode_inventory(text) == Inventory("GiB", (InventoryDevice(8),))


def changed(**fields: Any) -> str:
    return json.dumps({"v": 1, "unit": "GiB", "devices": [{"mem": 8}]} | fields)


TWICE = changed(devices=[{"mem": 8, "uuid": "GPU-a"}, {"mem": 8}, {"mem": 8, "uuid": "GPU-a"}])


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[" * 50_000, "not JSON"),
        ('{"v":' + "1" * 5000 + "}", "not JSON"),
        (" " * 70_000, "longer"),
        ("[]", "inventory: must be an object"),
        (changed(v=2), r"inventory\.v"),
        (changed(v=True), r"inventory\.v"),
        (changed(v=None), r"inventory\.v"),
        (changed(unit=None), r"inventory\.unit"),
        (changed(unit="KiB"), r"inventory\.unit"),
        (changed(unit="0MiB"), r"inventory\.unit"),
        (changed(devices={}), r"inventory\.devices"),
        (changed(devices=[{"mem": 1}] * 65), r"inventory\.devices: more than 64"),
        (changed(devices=[{"mem": n} for n in range(9)]), r"devices: more than 8 sizes of mem"),
        (changed(devices=[8]), r"inventory\.devices\[0\]: must be an object"),
        (changed(devices=[{"mem": 8}, {}]), r"inventory\.devices\[1\]\.mem"),
        (changed(devices=[{"mem": 8.0}]), r"inventory\.devices\[0\]\.mem"),
        (changed(devices=[{"mem": True}]), r"inventory\.devices\[0\]\.mem"),
        (changed(devices=[{"mem": -1}]), r"inventory\.devices\[0\]\.mem"),
        (changed(devices=[{"mem": MAX_UNITS + 1}]), r"inventory\.devices\[0\]\.mem"),
        (changed(devices=[{"mem": 8, "uuid": 7}]), r"inventory\.devices\[0\]\.uuid"),
        (changed(devices=[{"mem": 8, "uuid": "a,b"}]), r"inventory\.devices\[0\]\.uuid"),
        (changed(devices=[{"mem": 8, "uuid": "a b"}]), r"inventory\.devices\[0\]\.uuid"),
        (changed(devices=[{"mem": 8, "uuid": "\u00e9"}]), r"inventory\.devices\[0\]\.uuid"),
        (TWICE, r"inventory\.devices\[2\]\.uuid: devices\[0\] has the same"),
        (changed(devices=[{"mem": 8, "model": "x" * 129}]), r"inventory\.devices\[0\]\.model"),
        (changed(devices=[{"mem": 8, "healthy": 1}]), r"inventory\.devices\[0\]\.healthy"),
        (changed(devices=[{"mem": 8, "problem": 1}]), r"inventory\.devices\[0\]\.problem"),
        (changed(uncounted="GPU-a"), r"inventory\.uncounted: must be a list"),
        (changed(uncounted=["GPU-a", 1]), r"inventory\.uncounted\[1\]"),
        (changed(uncounted=["GPU-a"] * 65), r"inventory\.uncounted: more than 64"),
        (changed(marksAssigned="yes"), r"inventory\.marksAssigned"),
        (changed(servesByIdentity=1), r"inventory\.servesByIdentity"),
    ],
)
def test_a_wrong_inventory_names_the_field(text: str, field: str) -> None:
    with pytest.raises(AnnotationError, match=field):
        decode_inventory(text)


@given(st.text())
def test_arbitrary_text_never_raises_anything_else(text: str) -> None:
    for decoded in (decode_inventory, lambda value: decode_unhealthy({"gpus": value})):
        with suppress(AnnotationError):
            decoded(text)


def test_units_of_memory() -> None:
    assert all(map(is_unit, ["GiB", "MiB", "1MiB", "256MiB"]))
    assert not any(map(is_unit, ["", "gib", "2GiB", "01MiB", "-1MiB", "MiB\n", "12345678MiB"]))


@pytest.mark.parametrize(
    ("data", "devices"),
    [
        ({}, set()),
        ({"gpus": ""}, set()),
        ({"gpus": "0,2"}, {0, 2}),
        ({"gpus": " 0, 2,2\n"}, {0, 2}),
        ({"other": "x", "gpus": "63"}, {63}),
        ({"gpus": "0, GPU-1b0c"}, {0, "GPU-1b0c"}),
        ({"gpus": "MIG-GPU-1/3/0"}, {"MIG-GPU-1/3/0"}),
    ],
)
def test_unhealthy_devices_are_listed_by_index_or_uuid(
    data: dict[str, str], devices: set[int | str]
) -> None:
    assert decode_unhealthy(data) == devices


@pytest.mark.parametrize(
    "text",
    ["x", "0,", ",", "0;2", "-1", "1.0", "0 2", "\u0660", "0," * 40_000, "O", "GPU- 1", "0-1"],
)
def test_a_bad_token_is_an_error_and_never_device_0(text: str) -> None:
    with pytest.raises(AnnotationError, match="gpus"):
        decode_unhealthy({"gpus": text})


def test_cards_that_were_listed_before_have_gone() -> None:
    before = Inventory(
        "GiB",
        (InventoryDevice(16, "a"), InventoryDevice(16, "b"), InventoryDevice(16)),
        gone=("c",),
    )
    after = Inventory("GiB", (InventoryDevice(16, "b"), InventoryDevice(16, "c"))).after(before)
    assert after.gone == ("a",)
    assert decode_inventory(encode_inventory(after)) == after
    assert before.after(after).gone == ("c",)
    many = Inventory("GiB", (), gone=tuple(f"GPU-{number}" for number in range(MAX_DEVICES)))
    assert after.after(many).gone[-1] == many.gone[-1]
    assert len(Inventory("GiB", ()).after(replace(many, devices=before.devices)).gone) == 64
    with pytest.raises(AnnotationError, match=r"inventory.gone: more than 64"):
        decode_inventory(json.dumps({"v": 1, "unit": "GiB", "devices": [], "gone": ["x"] * 65}))
