"""The inspect document is the original's, with further keys for pods that the original loses."""

import json
from dataclasses import replace
from typing import Any

from gpushare.core.amounts import compute
from gpushare.core.model import NodeSpec, PodRef, Request, Shares
from gpushare.core.states.entry import Entry, NodeBooks
from gpushare.wire.inspect import encode_inspect
from tests.unit.core.clusters import with_share


def entry(name: str, units: int, placement: Shares | None, namespace: str = "default") -> Entry:
    request = Request(units=units, devices=1 if units else 0)
    return Entry(PodRef(namespace, name, f"uid-{name}"), request, "n", placement)


def books(*entries: Entry, name: str = "n", capacity: tuple[int, ...] = (16, 16)) -> NodeBooks:
    return NodeBooks(NodeSpec(name, capacity), (0,) * len(capacity), entries)


def node(*entries: Entry) -> Any:
    return json.loads(encode_inspect([books(*entries)]))["nodes"][0]


def test_no_nodes_are_an_empty_list() -> None:
    assert encode_inspect([]) == '{"nodes":[]}'


def test_the_text_is_the_originals_to_the_byte() -> None:
    assert encode_inspect([books(entry("alpha", 4, ((0, 4),)))]) == (
        '{"nodes":[{"name":"n","totalGPU":32,"usedGPU":4,"devs":['
        '{"id":0,"totalGPU":16,"usedGPU":4,"pods":[{"name":"alpha","namespace":"default","usedGPU":4}]},'
        '{"id":1,"totalGPU":16,"usedGPU":0,"pods":[]}]}]}'
    )


def test_nodes_and_pods_are_sorted() -> None:
    text = encode_inspect(
        [
            books(name="b"),
            books(
                entry("z", 1, ((0, 1),), "a"), entry("b", 1, ((0, 1),)), entry("a", 1, ((0, 1),)),
                name="a",
            ),
        ]
    )  # fmt: skip
    nodes = json.loads(text)["nodes"]
    assert [node["name"] for node in nodes] == ["a", "b"]
    assert [pod["name"] for pod in nodes[0]["devs"][0]["pods"]] == ["z", "a", "b"]


def test_a_pod_on_several_devices_stands_on_each() -> None:
    document = node(entry("multi", 8, ((0, 4), (1, 4))))
    assert [device["usedGPU"] for device in document["devs"]] == [4, 4]
    assert document["usedGPU"] == 8


def test_an_unplaced_pod_counts_once_and_is_named() -> None:
    unplaced_pod, lost, beyond = (
        entry("a", 1, ((1, 1),)),
        entry("b", 4, None),
        entry("c", 2, ((7, 2),)),
    )
    document = node(unplaced_pod, lost, beyond)
    assert [device["usedGPU"] for device in document["devs"]] == [0, 1]
    assert document["usedGPU"] == 7
    assert document["unplaced"] == [
        {"name": "b", "namespace": "default", "usedGPU": 4},
        {"name": "c", "namespace": "default", "usedGPU": 2},
    ]


def test_an_unplaced_pod_with_a_percentage_counts_as_on_the_largest_device() -> None:
    lost = Entry(PodRef("ns", "lost", "u"), Request(1, 1, percents=with_share(0, 25)), "n", None)
    text = encode_inspect([books(lost, capacity=(16, 40)), books(lost, name="o", capacity=())])
    assert [node["unplaced"][0]["usedGPU"] for node in json.loads(text)["nodes"]] == [10, 1]


def test_pods_without_gpu_are_not_shown() -> None:
    document = node(entry("cpu", 0, None))
    assert "unplaced" not in document
    assert document["usedGPU"] == 0


def test_compute_stands_on_the_nodes_where_a_pod_has_some() -> None:
    asks = Request(units=4, devices=2, percents=compute(30))
    two = Entry(PodRef("default", "two", "uid-two"), asks, "n", ((0, 4), (1, 4)))
    deleted = Entry(PodRef("default", "gone", "uid-gone"), asks, "n", ())
    holding = NodeBooks(NodeSpec("n", (16, 16)), (4, 4), (two, deleted), percents_used=((30, 30),))
    one, second = json.loads(encode_inspect([holding, books(name="o")]))["nodes"]
    view = {"name": "two", "namespace": "default", "usedGPU": 4, "usedCores": 30}
    assert one["devs"][0] == {
        "id": 0, "totalGPU": 16, "usedGPU": 4, "usedCores": 30, "pods": [view]
    }  # fmt: skip
    assert [pod["usedCores"] for pod in one["unplaced"]] == [0]
    assert "usedCores" not in second["devs"][0]


def test_why_autoscalers_leave_a_node_alone_is_said_of_that_node_alone() -> None:
    reason = {"b": "team/web has no place"}
    text = encode_inspect([books(name="a"), books(name="b")], kept_nodes=reason)
    first, second = json.loads(text)["nodes"]
    assert "keptFromScaleDown" not in first
    assert second["keptFromScaleDown"] == "team/web has no place"


def test_a_percentage_of_memory_stands_as_the_units_of_the_device() -> None:
    share = replace(entry("p", 1, ((1, 1),)), request=Request(1, 1, percents=with_share(0, 60)))
    found = json.loads(encode_inspect([books(share, capacity=(16, 40))]))["nodes"][0]
    assert [device["usedGPU"] for device in found["devs"]] == [0, 24]
