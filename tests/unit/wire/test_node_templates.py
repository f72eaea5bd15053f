"""Nodes that an autoscaler makes up: what their inventory, their sums or their label promises."""

import re
from typing import Any

import msgspec
import pytest

from gpushare.core.model import NodeSpec, Reason
from gpushare.errors import AnnotationError
from gpushare.wire.annotations import ALIYUN, Names
from gpushare.wire.inventory import Device, Inventory, encode_inventory
from gpushare.wire.nodes import template_spec
from gpushare.wire.objects import Node

SUMS = {"aliyun.com/gpu-mem": "32", "aliyun.com/gpu-count": "2"}


def spec(
    label: str | None = None,
    sums: dict[str, str] | None = None,
    inventory: str | None = None,
    *,
    unit: str = "GiB",
    **labels: str,
) -> NodeSpec:
    metadata: dict[str, Any] = {"name": "template-1", "labels": dict(labels)}
    if label is not None:
        metadata["labels"]["gpushare.io/shape"] = label
    if inventory is not None:
        metadata["annotations"] = {"gpushare.io/devices": inventory}
    node = msgspec.convert({"metadata": metadata, "status": {"capacity": sums}}, Node)
    return template_spec(node, ALIYUN, unit)


def test_cards_that_come_are_healthy_and_none_of_those_that_were_copied() -> None:
    devices = (Device(16, "GPU-1", "T4"), Device(16, "GPU-2", "T4", healthy=False))
    copied = encode_inventory(Inventory("GiB", devices, gone=("GPU-3",)))
    found = spec(inventory=copied)
    assert found == NodeSpec("template-1", (16, 16), (True, True), ("T4", "T4"), ("", ""))


@pytest.mark.parametrize(
    ("label", "unit", "capacity"),
    [
        ("4x24GiB", "GiB", (24,) * 4),
        ("2x24GiB", "MiB", (24 * 1024,) * 2),
        ("1x24GiB", "256MiB", (96,)),
        ("2x24576MiB", "GiB", (24, 24)),
        ("2x7", "256MiB", (7, 7)),
    ],
)
def test_a_group_that_has_no_node_says_its_shape_in_a_label(
    label: str, unit: str, capacity: tuple[int, ...]
) -> None:
    assert spec(label, unit=unit).capacity == capacity


def test_the_sum_alone_leaves_the_label_to_say_how_it_is_split() -> None:
    memory = {"aliyun.com/gpu-mem": "32"}
    assert spec(None, memory).closed is Reason.NO_COUNT
    found = spec("2x16GiB", memory, **{"nvidia.com/gpu.product": "Tesla-T4"})
    assert (found.capacity, found.closed, found.models) == ((16, 16), None, ("Tesla-T4",) * 2)


def test_what_a_node_advertises_leads_over_the_label() -> None:
    assert spec("8x80GiB", SUMS).capacity == (16, 16)
    inventory = encode_inventory(Inventory("GiB", (Device(24),)))
    assert spec("8x80GiB", inventory=inventory).capacity == (24,)
    assert spec("8x80GiB", inventory="{").closed is Reason.BROKEN_INVENTORY


@pytest.mark.parametrize(
    ("label", "wrong"),
    [
        ("4x24TiB", "'4x24TiB' is not as 4x24GiB"),
        ("", "'' is not as 4x24GiB"),
        ("4x", "'4x' is not as 4x24GiB"),
        ("٤x24GiB", "is not as 4x24GiB"),
        ("4x0GiB", "no number of units of GiB"),
        ("4x0", "no number of units of GiB"),
        ("4x100MiB", "no number of units of GiB"),
        ("0x24GiB", "from 1 to 64 devices"),
        ("65x24GiB", "from 1 to 64 devices"),
        ("x" * 9999, "is not as 4x24GiB"),
    ],
)
def test_a_label_without_sense_is_named(label: str, wrong: str) -> None:
    with pytest.raises(AnnotationError, match=re.escape(wrong)) as raised:
        spec(label)
    assert str(raised.value).startswith("label gpushare.io/shape: ")
    assert len(str(raised.value)) < 200


def test_each_resource_has_a_label_of_its_own() -> None:
    assert (
        Names.for_resource("example.com/npu-mem").shape == "gpushare.io/shape-example-com-npu-mem"
    )
