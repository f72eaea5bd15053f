"""Devices of a node by inventory, else by total and count; an unreadable value closes the node."""

from typing import Any

import msgspec
import pytest

from gpushare.core.model import NodeSpec, Reason
from gpushare.errors import MessageError
from gpushare.wire.annotations import ALIYUN
from gpushare.wire.inventory import Inventory, InventoryDevice, encode_inventory
from gpushare.wire.nodes import node_spec, share_by_labels
from gpushare.wire.objects import Node

GPU = "aliyun.com/gpu-mem"
COUNT = "aliyun.com/gpu-count"


def node(
    capacity: Any = None, allocatable: Any = None, annotations: Any = None, name: str = "n"
) -> Node:
    status = {"capacity": capacity, "allocatable": allocatable}
    metadata = {"name": name, "annotations": annotations}
    return msgspec.convert({"metadata": metadata, "status": status}, Node)


def spec(capacity: Any = None, allocatable: Any = None, annotations: Any = None) -> NodeSpec:
    return node_spec(node(capacity, allocatable, annotations), ALIYUN, "GiB")


def test_total_and_count_make_equal_devices() -> None:
    node = spec({GPU: "32", COUNT: "2"}, {GPU: "32", COUNT: "2", "cpu": "3900m", "memory": "1Gi"})
    assert node == NodeSpec(
        "n", (16, 16), (True, True), ("", ""), ("", ""), cpu=3900, memory=2**30, counted=True
    )


def test_sizes_come_from_capacity_since_unhealthy_devices_leave_allocatable() -> None:
    node = spec({GPU: "32", COUNT: "2"}, {GPU: "16", COUNT: "2"})
    assert (node.capacity, node.healthy) == ((16, 16), (True, True))


def test_nothing_allocatable_means_no_healthy_device() -> None:
    node = spec({GPU: "32", COUNT: "2"}, {GPU: "0"})
    assert (node.capacity, node.healthy) == ((16, 16), (False, False))


def test_allocatable_stands_in_where_capacity_is_missing() -> None:
    assert spec(None, {GPU: "32", COUNT: "2"}).capacity == (16, 16)


@pytest.mark.parametrize("count", [{}, {COUNT: "0"}])
def test_memory_without_a_count_closes_the_node(count: Any) -> None:
    """Not one device of all the memory: a pod of 40 would go onto cards of 16."""
    node = spec({GPU: "64"} | count)
    assert (node.capacity, node.closed) == ((), Reason.NO_COUNT)


@pytest.mark.parametrize("capacity", [None, {}, {GPU: "0", COUNT: "4"}, {"cpu": "96"}])
def test_a_node_without_memory_shares_nothing(capacity: Any) -> None:
    node = spec(capacity)
    assert (node.capacity, node.closed) == ((), None)


def test_an_uneven_total_closes_the_node_but_charges_still_count() -> None:
    node = spec({GPU: "30", COUNT: "4"})
    assert (node.capacity, node.closed) == ((7, 7, 7, 7), Reason.UNEVEN)


@pytest.mark.parametrize(
    ("capacity", "allocatable"),
    [
        ({GPU: "x"}, {}),
        ({GPU: "-1"}, {}),
        ({GPU: "32", COUNT: "1.5"}, {}),
        ({GPU: "130", COUNT: "65"}, {}),
        ({GPU: "32", COUNT: "x"}, {}),
        ({GPU: "32", COUNT: "2"}, {GPU: "x"}),
    ],
)
def test_a_capacity_that_cannot_be_read_closes_the_node(capacity: Any, allocatable: Any) -> None:
    assert spec(capacity, allocatable).closed is Reason.BROKEN_CAPACITY


def test_an_inventory_leads() -> None:
    devices = (
        InventoryDevice(80, "GPU-1", "A100"),
        InventoryDevice(40, "GPU-2", "A30", healthy=False),
    )
    inventory = Inventory("GiB", devices, marks_assigned=True, serves_by_identity=True)
    text = encode_inventory(inventory)
    node = spec({GPU: "9", COUNT: "2", "cpu": "4"}, None, {ALIYUN.inventory: text})
    assert node == NodeSpec(
        "n",
        (80, 40),
        (True, False),
        ("A100", "A30"),
        ("GPU-1", "GPU-2"),
        cpu=4000,
        marks_assigned=True,
        serves_by_identity=True,
    )


def test_an_inventory_in_another_unit_closes_the_node() -> None:
    text = encode_inventory(Inventory("MiB", (InventoryDevice(81920),)))
    assert spec(None, None, {ALIYUN.inventory: text}).closed is Reason.OTHER_UNIT


def test_a_broken_inventory_closes_the_node() -> None:
    node = spec({GPU: "32", COUNT: "2"}, None, {ALIYUN.inventory: "{"})
    assert (node.capacity, node.closed) == ((), Reason.BROKEN_INVENTORY)


@pytest.mark.parametrize("cpu", ["x", "-1"])
def test_cpu_and_memory_that_cannot_be_read_are_unknown(cpu: str) -> None:
    node = spec({"memory": "1Ki"}, {"cpu": cpu})
    assert (node.cpu, node.memory, node.closed) == (None, 1024, None)


def test_a_node_without_a_name_is_an_error() -> None:
    with pytest.raises(MessageError, match="name"):
        node_spec(node(name=""), ALIYUN, "GiB")
    with pytest.raises(MessageError, match="name"):
        node_spec(Node(), ALIYUN, "GiB")


def test_a_node_with_labels_alone_is_shared_as_a_device_plug_in_would() -> None:
    labelled = node({"cpu": "4"}, {"cpu": "4"}, name="labelled")
    assert labelled.metadata is not None
    labelled.metadata.labels = {"nvidia.com/gpu.count": "2", "nvidia.com/gpu.memory": "16384"}
    plug_in = {GPU: "32", COUNT: "2", "aliyun.com/gpu-core.percentage": "200"}
    nodes = [labelled, node(plug_in, plug_in, name="served"), node(name="bare")]
    assert share_by_labels(nodes, ALIYUN, "GiB") == {"labelled": 2}
    assert node_spec(labelled, ALIYUN, "GiB").capacity == (16, 16)
    allocatable = (labelled.status and labelled.status.allocatable) or {}
    assert allocatable["cpu"] == "4"
    assert {name: allocatable[name] for name in plug_in} == {
        GPU: 32,
        COUNT: 2,
        "aliyun.com/gpu-core.percentage": 200,
    }


@pytest.mark.parametrize(("text", "most"), [("1", 1), ("32766", 32766)])
def test_the_most_sharers_are_read_from_a_label(text: str, most: int) -> None:
    labelled = node({GPU: "32", COUNT: "2"})
    assert labelled.metadata is not None
    labelled.metadata.labels = {"gpushare.io/max-sharers": text}
    assert node_spec(labelled, ALIYUN, "GiB").max_sharers == most


@pytest.mark.parametrize("text", ["", "0", "-1", "two", "32767", "1.5"])
def test_a_label_of_sharers_that_cannot_be_read_closes_the_node(text: str) -> None:
    labelled = node({GPU: "32", COUNT: "2"})
    assert labelled.metadata is not None
    labelled.metadata.labels = {"gpushare.io/max-sharers": text}
    read = node_spec(labelled, ALIYUN, "GiB")
    assert (read.capacity, read.closed) == ((16, 16), Reason.BROKEN_SHARERS)
