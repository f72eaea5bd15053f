"""Slices become core types: names, nodes, amounts, attributes and counters. Taint rules too."""

from typing import Any

import msgspec
import pytest

from gpushare.core.claims.model import (
    Attribute,
    Capacity,
    CounterUse,
    Device,
    DeviceKey,
    NodeChoice,
    RequestPolicy,
    Slice,
    TaintRule,
)
from gpushare.core.selectors import NodeSelectorTerm, Requirement, Taint
from gpushare.errors import MessageError
from gpushare.wire.dra.devices import read_slice, read_taint_rule
from gpushare.wire.dra.objects import DEVICE_TAINT_RULES, RESOURCE_SLICES

GIB = 1024**3 * 1000
TAINT = {"key": "k", "value": "v", "effect": "NoSchedule"}
POOL = {"name": "p", "generation": 3, "resourceSliceCount": 2}


def read(name: str | None = "s", **spec: Any) -> Slice:
    body = {"metadata": {"name": name}, "spec": {"driver": "gpu", "pool": POOL} | spec}
    return read_slice(RESOURCE_SLICES.decode(msgspec.json.encode(body)))


def read_device(**fields: Any) -> Device:
    return read(nodeName="n", devices=[{"name": "d"} | fields]).devices[0]


def test_a_slice_says_its_pool_and_node() -> None:
    item = read(nodeName="n")
    assert (item.name, item.driver, item.pool) == ("s", "gpu", "p")
    assert (item.generation, item.slice_count, item.devices) == (3, 2, ())
    assert item.nodes == NodeChoice("n")
    assert not item.is_ignored
    bare = read(pool={"name": "p"})
    assert (bare.generation, bare.slice_count) == (0, 0)


@pytest.mark.parametrize(
    ("name", "spec"),
    [
        (None, {}),
        ("s", {"driver": None}),
        ("s", {"pool": None}),
        ("s", {"pool": {}}),
        ("s", {"devices": [{"name": "d", "capacity": {"memory": {"value": "much"}}}]}),
        ("s", {"sharedCounters": [{"name": "c", "counters": {"m": {"value": "-1"}}}]}),
    ],
)
def test_a_slice_that_cannot_be_read_is_refused(name: str | None, spec: dict[str, Any]) -> None:
    with pytest.raises(MessageError, match="ResourceSlice"):
        read(name, **spec)


def test_an_object_without_a_spec_is_refused() -> None:
    with pytest.raises(MessageError):
        read_slice(RESOURCE_SLICES.decode(b"{}"))


SELECTOR = {
    "nodeSelectorTerms": [{"matchExpressions": [{"key": "z", "operator": "In", "values": ["a"]}]}]
}
TERMS = (NodeSelectorTerm((Requirement("z", "In", ("a",)),)),)


def test_a_slice_can_be_for_many_nodes() -> None:
    assert read(allNodes=True).nodes == NodeChoice(all_nodes=True)
    assert read(nodeSelector=SELECTOR).nodes == NodeChoice(terms=TERMS)
    assert read(nodeSelector={}).nodes == NodeChoice()
    # A slice that says nothing is for no node: kube-scheduler does not know what it means.
    assert read().nodes == NodeChoice()


def test_devices_can_say_for_which_nodes_they_are() -> None:
    devices = [
        {"name": "a", "nodeName": "n"},
        {"name": "b", "allNodes": True},
        {"name": "c", "nodeSelector": SELECTOR},
        {"name": "d"},
    ]
    item = read(perDeviceNodeSelection=True, devices=devices)
    assert item.nodes is None
    assert [device.nodes for device in item.devices] == [
        NodeChoice("n"),
        NodeChoice(all_nodes=True),
        NodeChoice(terms=TERMS),
        NodeChoice(),
    ]
    assert read(nodeName="n", devices=devices).devices[0].nodes is None


def test_a_device_has_a_key_and_may_be_shared_tainted_or_prepared_late() -> None:
    plain = read_device()
    assert plain.key == DeviceKey("gpu", "p", "d")
    assert (plain.is_shared, plain.taints, plain.has_binding_conditions) == (False, (), False)
    device = read_device(
        allowMultipleAllocations=True,
        taints=[{"key": "k", "value": "v", "effect": "NoExecute"}],
        bindingConditions=["ready"],
    )
    assert device.is_shared
    assert device.taints == (Taint("k", "v", "NoExecute"),)
    assert device.has_binding_conditions


def test_attributes_have_a_domain_and_a_kind() -> None:
    attributes = {
        "model": {"string": "A100"},
        "index": {"int": 3},
        "ok": {"bool": False},
        "other.example.com/version": {"version": "1.2.3"},
        "new": {"float": 1.5},
    }
    assert read_device(attributes=attributes).attributes == {
        "gpu/model": Attribute("string", "A100"),
        "gpu/index": Attribute("int", 3),
        "gpu/ok": Attribute("bool", False),
        "other.example.com/version": Attribute("version", "1.2.3"),
        "gpu/new": Attribute("", ""),
    }


@pytest.mark.parametrize("order", [("x", "gpu/x"), ("gpu/x", "x")])
def test_a_name_with_a_domain_wins_over_a_bare_one(order: tuple[str, str]) -> None:
    attributes = {name: {"string": name} for name in order}
    assert read_device(attributes=attributes).attributes == {"gpu/x": Attribute("string", "gpu/x")}


def test_capacities_are_thousandths_with_their_policies() -> None:
    capacity = {
        "memory": {
            "value": "80Gi",
            "requestPolicy": {
                "default": "1Gi",
                "validRange": {"min": "1Gi", "max": "40Gi", "step": "1Gi"},
            },
        },
        "cores": {
            "value": "2500m",
            "requestPolicy": {"default": "1", "validValues": ["1", "2500m"]},
        },
        "odd": {"value": 7, "requestPolicy": {"validRange": {"min": "0", "step": "0"}}},
        "none": {},
    }
    assert read_device(capacity=capacity).capacities == {
        "memory": Capacity(
            80 * GIB,
            RequestPolicy(default=GIB, minimum=GIB, maximum=40 * GIB, step=GIB),
        ),
        "cores": Capacity(2500, RequestPolicy(default=1000, values=(1000, 2500))),
        "odd": Capacity(7000, RequestPolicy(minimum=0)),
        "none": Capacity(0),
    }


def test_devices_that_are_alike_share_one_mapping_of_capacities() -> None:
    sizes = ("80Gi", "80Gi", "40Gi")
    devices = [
        {"name": f"d{i}", "capacity": {"memory": {"value": size}}} for i, size in enumerate(sizes)
    ]
    one, same, second = (device.capacities for device in read(devices=devices).devices)
    assert one is same
    assert one != second


def test_counters_are_of_the_slice_and_of_devices() -> None:
    counters = {"slices": {"value": "7"}, "memory": {"value": "80Gi"}}
    item = read(sharedCounters=[{"name": "set", "counters": counters}, {"name": "empty"}])
    assert item.counters == {"set": {"slices": 7000, "memory": 80 * GIB}, "empty": {}}
    consumed = [{"counterSet": "set", "counters": {"slices": {"value": "2"}}}]
    assert read_device(consumesCounters=consumed).counters == (CounterUse("set", "slices", 2000),)


def test_a_slice_with_compatibility_groups_is_ignored() -> None:
    consumed = [{"counterSet": "set", "counters": {}, "compatibilityGroups": ["g"]}]
    assert read(devices=[{"name": "d", "consumesCounters": consumed}]).is_ignored


def rule_of(**fields: Any) -> TaintRule:
    return read_taint_rule(DEVICE_TAINT_RULES.decode(msgspec.json.encode(fields)))


def test_a_rule_names_a_driver_a_pool_and_a_device_or_any() -> None:
    taint = Taint("k", "v", "NoSchedule")
    selector = {"driver": "gpu", "pool": "p", "device": "d"}
    rule = rule_of(spec={"deviceSelector": selector, "taint": TAINT})
    assert rule == TaintRule(taint, "gpu", "p", "d")
    assert rule_of(spec={"deviceSelector": {}, "taint": TAINT}) == TaintRule(taint)
    assert rule_of(spec={"taint": TAINT}) == TaintRule(taint)


@pytest.mark.parametrize("fields", [{}, {"spec": {}}])
def test_a_rule_without_a_taint_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(MessageError, match="taint is missing"):
        rule_of(**fields)
