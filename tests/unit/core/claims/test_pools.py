"""Pools of a node: the slices that count, their order, and broken pools."""

from collections import defaultdict
from typing import Any

from gpushare.core.claims.model import (
    CounterUse,
    Device,
    DeviceKey,
    NodeChoice,
    NodeDevices,
    PoolState,
    Slice,
    TaintRule,
)
from gpushare.core.claims.pools import gather_pools
from gpushare.core.selectors import NodeSelectorTerm, Requirement, Taint

EVERYWHERE = NodeChoice(all_nodes=True)
HERE, THERE = NodeChoice("n"), NodeChoice("m")


def part(name: str, *devices: str | Device, **fields: Any) -> Slice:
    pool = fields.get("pool", "pool")
    known_items: dict[str, Any] = {
        "name": name,
        "driver": "gpu",
        "pool": pool,
        "generation": 1,
        "slice_count": 1,
        "nodes": HERE,
    }
    created = [
        Device(key=DeviceKey("gpu", pool, one)) if isinstance(one, str) else one for one in devices
    ]
    return Slice(**(known_items | fields), devices=tuple(created))


def counted(name: str, counter_set: str = "set", counter: str = "slices", **fields: Any) -> Device:
    use = CounterUse(counter_set, counter, 1)
    return Device(key=DeviceKey("gpu", "pool", name), counters=(use,), **fields)


def pools(*slices: Slice, rules: tuple[TaintRule, ...] = (), zone: str = "") -> NodeDevices:
    by_pool = defaultdict(list)
    for item in slices:
        by_pool[item.driver, item.pool].append(item)
    return gather_pools("n", {"zone": zone}, slices, by_pool, rules)


def shown(*slices: Slice, zone: str = "") -> list[str]:
    """The pools with their devices, or with their state."""
    return [
        " ".join([pool.name, *(device.key.device for device in pool.devices)])
        if pool.state is PoolState.COMPLETE
        else f"{pool.name} {pool.state.value}"
        for pool in pools(*slices, zone=zone).pools
    ]


def test_pools_are_in_order_of_driver_and_name_and_slices_in_order_of_name() -> None:
    assert shown(
        part("z", "a", slice_count=2),
        part("y", "b", "c", slice_count=2),
        part("x", "d", pool="other"),
        part("w", "e", pool="zoo", driver="another"),
    ) == ["zoo e", "other d", "pool b c a"]


def test_pools_with_binding_conditions_come_last() -> None:
    late = Device(key=DeviceKey("gpu", "a", "x"), has_binding_conditions=True)
    assert shown(part("s", "y", late, pool="a"), part("t", "z", pool="b")) == ["b z", "a y x"]


def test_only_slices_for_the_node_count() -> None:
    zone = NodeChoice(terms=(NodeSelectorTerm((Requirement("zone", "In", ("a",)),)),))
    slices = (
        part("p", "d", nodes=THERE, pool="p"),
        part("q", "d", nodes=EVERYWHERE, pool="q"),
        part("r", "d", nodes=zone, pool="r"),
        part("s", "d", nodes=NodeChoice(), pool="s"),
    )
    assert shown(*slices, zone="a") == ["q d", "r d"]
    assert shown(*slices, zone="b") == ["q d"]


def test_the_newest_generation_counts_in_whatever_order_slices_come() -> None:
    old, new = part("a", "old"), part("b", "new", generation=2)
    assert shown(old, new) == shown(new, old) == ["pool new"]


def test_a_pool_with_missing_slices_is_incomplete() -> None:
    assert shown(part("a", "d", slice_count=2)) == ["pool incomplete"]
    assert shown(part("a", "d", slice_count=2), part("b", "e", generation=0)) == ["pool incomplete"]


def test_slices_of_other_nodes_make_a_pool_complete() -> None:
    assert shown(part("a", "d", slice_count=2), part("b", "e", slice_count=2, nodes=THERE)) == [
        "pool d"
    ]


def test_a_pool_that_is_replaced_elsewhere_is_left_out() -> None:
    assert shown(part("a", "d", slice_count=2), part("b", "e", generation=2, nodes=THERE)) == []


def test_a_slice_that_needs_a_feature_leaves_its_pool_incomplete() -> None:
    assert shown(part("a", "d", slice_count=2), part("b", "e", slice_count=2, is_ignored=True)) == [
        "pool incomplete"
    ]


def test_a_pool_that_contradicts_itself_is_invalid() -> None:
    assert shown(part("a", "d", "d")) == ["pool invalid"]
    sets = {"set": {"slices": 1}}
    two = (part("a", counters=sets, slice_count=2), part("b", counters=sets, slice_count=2))
    assert shown(*two) == ["pool invalid"]
    assert shown(part("a", counted("d"))) == ["pool invalid"]
    second = (
        part("a", counted("d", counter="other"), slice_count=2),
        part("b", counters=sets, slice_count=2),
    )
    assert shown(*second) == ["pool invalid"]
    far = (
        part("a", counters=sets, slice_count=2),
        part("b", counted("d", "absent"), nodes=THERE, slice_count=2),
    )
    assert shown(*far) == ["pool invalid"]


def test_counters_come_from_slices_of_their_own() -> None:
    result = pools(
        part("a", counted("d"), slice_count=3),
        part("b", counted("e"), "f", nodes=THERE, slice_count=3),
        part("c", counters={"set": {"slices": 1}}, nodes=THERE, slice_count=3),
    ).pools[0]
    assert [device.key.device for device in result.devices] == ["d"]
    assert [device.key.device for device in result.devices_elsewhere] == ["e"]
    assert result.counters == {"set": {"slices": 1}}


def test_devices_can_say_themselves_for_which_nodes_they_are() -> None:
    item = part(
        "a",
        counted("d", nodes=HERE),
        counted("e", nodes=THERE),
        Device(key=DeviceKey("gpu", "pool", "f"), nodes=EVERYWHERE),
        nodes=None,
        slice_count=2,
    )
    counters = part("b", counters={"set": {"slices": 1}}, slice_count=2)
    result = pools(item, counters).pools[0]
    assert [device.key.device for device in result.devices] == ["d", "f"]
    assert [device.key.device for device in result.devices_elsewhere] == ["e"]
    far = part("a", counted("e", nodes=THERE), nodes=None)
    assert shown(far) == []


def test_rules_taint_devices() -> None:
    old, new = Taint("old", "", "NoSchedule"), Taint("new", "", "NoExecute")
    tainted = Device(key=DeviceKey("gpu", "pool", "d"), taints=(old,))
    item = part("a", tainted, "e")
    result = pools(item, rules=(TaintRule(new, device="d"), TaintRule(new, device="x")))
    assert [device.taints for device in result.devices] == [(old, new), ()]
    assert result.devices[1] is item.devices[1]
    assert tainted.taints == (old,)
