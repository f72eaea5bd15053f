"""Slices of devices, and taint rules of devices, as core types.

Tested in `tests/unit/wire/dra/test_devices.py`.
"""

from collections.abc import Mapping
from sys import intern

from gpushare.core.claims.model import (
    Amounts,
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
from gpushare.errors import MessageError, QuantityError
from gpushare.wire.demands import read_taint, read_term
from gpushare.wire.dra import objects
from gpushare.wire.objects import NodeSelector
from gpushare.wire.quantity import Quantity, to_thousandths


def read_slice(item: objects.ResourceSlice) -> Slice:
    """Return a slice with its devices. Raises MessageError naming the field."""
    spec = item.spec or objects.SliceSpec()
    pool = spec.pool or objects.ResourcePool()
    name = item.metadata and item.metadata.name
    if not (name and spec.driver and pool.name):
        raise MessageError("ResourceSlice: its name, driver or pool is missing")
    driver, pool_name = intern(spec.driver), intern(pool.name)
    by_device = bool(spec.per_device_node_selection)
    try:
        capacities: dict[object, Mapping[str, Capacity]] = {}
        values: dict[Attribute, Attribute] = {}
        devices = tuple(
            _device(device, driver, pool_name, capacities, values, by_device=by_device)
            for device in spec.devices or ()
        )
        counters = {
            counter_set.name or "": _amounts(counter_set.counters)
            for counter_set in spec.shared_counters or ()
        }
    except QuantityError as error:
        raise MessageError(f"ResourceSlice {name[:100]}: {error}") from error
    by_slice = spec.node_name or spec.all_nodes or spec.node_selector is not None
    return Slice(
        name=name,
        driver=driver,
        pool=pool_name,
        generation=pool.generation or 0,
        slice_count=pool.resource_slice_count or 0,
        nodes=(
            _node_choice(spec.node_name, spec.node_selector, all_nodes=spec.all_nodes)
            if by_slice or not by_device
            else None
        ),
        devices=devices,
        counters=counters,
        # The feature of compatibility groups is off; so is the whole pool.
        is_ignored=any(
            consumption.compatibility_groups
            for device in spec.devices or ()
            for consumption in device.consumes_counters or ()
        ),
    )


def read_taint_rule(item: objects.DeviceTaintRule) -> TaintRule:
    """Return a taint rule; a rule without a selector taints all devices.

    Raises MessageError naming the field.
    """
    if item.spec is None or item.spec.taint is None:
        raise MessageError("DeviceTaintRule.spec: taint is missing")
    devices = item.spec.device_selector or objects.TaintedDevices()
    taint = read_taint(item.spec.taint)
    return TaintRule(taint, devices.driver, devices.pool, devices.device)


def _device(
    item: objects.SliceDevice,
    driver: str,
    pool: str,
    shared_capacities: dict[object, Mapping[str, Capacity]],
    values: dict[Attribute, Attribute],
    *,
    by_device: bool,
) -> Device:
    """Return a device. Raises QuantityError.

    shared_capacities: mappings of the slice's devices; equal devices share one. values: attributes
    of the slice's devices; equal attributes are one object.
    """
    capacities = {
        intern(name): _capacity(capacity) for name, capacity in (item.capacity or {}).items()
    }
    return Device(
        key=DeviceKey(driver, pool, intern(item.name or "")),
        is_shared=item.allow_multiple_allocations is True,
        capacities=shared_capacities.setdefault(tuple(capacities.items()), capacities),
        attributes=_attributes(item.attributes or {}, driver, values),
        taints=tuple(map(read_taint, item.taints or ())),
        counters=tuple(
            CounterUse(intern(consumption.counter_set or ""), intern(name), amount)
            for consumption in item.consumes_counters or ()
            for name, amount in _amounts(consumption.counters).items()
        ),
        has_binding_conditions=bool(item.binding_conditions),
        nodes=(
            _node_choice(item.node_name, item.node_selector, all_nodes=item.all_nodes)
            if by_device
            else None
        ),
    )


def _node_choice(
    node: str | None, selector: NodeSelector | None, *, all_nodes: bool | None
) -> NodeChoice:
    terms = (selector and selector.node_selector_terms) or ()
    return NodeChoice(node or "", all_nodes is True, tuple(map(read_term, terms)))


def _attributes(
    items: Mapping[str, objects.DeviceAttribute], driver: str, values: dict[Attribute, Attribute]
) -> dict[str, Attribute]:
    attributes: dict[str, Attribute] = {}
    for name, item in items.items():
        attribute = _attribute(item)
        attribute = values.setdefault(attribute, attribute)
        if "/" in name:
            attributes[intern(name)] = attribute
        else:  # a name with the domain wins over a bare one
            attributes.setdefault(intern(f"{driver}/{name}"), attribute)
    return attributes


def _attribute(item: objects.DeviceAttribute) -> Attribute:
    if item.string is not None:
        return Attribute("string", item.string)
    if item.integer is not None:
        return Attribute("int", item.integer)
    if item.boolean is not None:
        return Attribute("bool", item.boolean)
    if item.version is not None:
        return Attribute("version", item.version)
    return Attribute("", "")


def _capacity(item: objects.DeviceCapacity) -> Capacity:
    """Return a capacity. Raises QuantityError."""
    value, policy = _amount(item.value), item.request_policy
    if policy is None:
        return Capacity(value)
    bounds = policy.valid_range or objects.CapacityRequestPolicyRange()
    values = policy.valid_values
    return Capacity(
        value,
        RequestPolicy(
            default=_amount_or_none(policy.default),
            values=None if values is None else tuple(map(to_thousandths, values)),
            minimum=_amount_or_none(bounds.min),
            maximum=_amount_or_none(bounds.max),
            step=_amount_or_none(bounds.step) or None,
        ),
    )


def _amounts(counters: Mapping[str, objects.Counter] | None) -> Amounts:
    return {intern(name): _amount(counter.value) for name, counter in (counters or {}).items()}


def _amount(quantity: Quantity | None) -> int:
    return to_thousandths(quantity or 0)


def _amount_or_none(quantity: Quantity | None) -> int | None:
    return None if quantity is None else to_thousandths(quantity)
