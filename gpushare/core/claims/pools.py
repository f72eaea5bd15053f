"""The pools of a node, gathered from slices as kube-scheduler gathers them.

Tested in `tests/unit/core/claims/test_pools.py`.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from gpushare.core.claims.model import (
    Amounts,
    Device,
    NodeDevices,
    Pool,
    PoolState,
    Slice,
    TaintRule,
)


def gather_pools(
    node: str,
    labels: Mapping[str, str],
    slices: Iterable[Slice],
    all_slices: Mapping[tuple[str, str], Collection[Slice]],
    rules: Collection[TaintRule] = (),
) -> NodeDevices:
    """Return the devices that a node can use, in the order of kube-scheduler.

    slices: at least those of this node and those that name no node; slices of other nodes are
    ignored.
    all_slices: all slices of the cluster by (driver, pool), to tell whether a pool is complete.
    rules: taint rules; only devices that a rule taints are copied.
    """
    newest: dict[tuple[str, str], list[Slice]] = {}
    for item in slices:
        if item.is_ignored or not _is_for(item, node, labels):
            continue
        members = newest.setdefault((item.driver, item.pool), [])
        if members and item.generation != members[0].generation:
            if item.generation < members[0].generation:
                continue
            members.clear()
        members.append(item)
    pools = []
    for key, members in newest.items():
        generation, slice_count = members[0].generation, members[0].slice_count
        elsewhere: Sequence[Slice] = ()
        if len(members) != slice_count:
            pool_slices = all_slices.get(key, ())
            if any(item.generation > generation for item in pool_slices):
                continue  # the driver is replacing this generation
            whole = [i for i in pool_slices if i.generation == generation and not i.is_ignored]
            if len(whole) != slice_count:
                driver, name = key
                pools.append(Pool(driver=driver, name=name, state=PoolState.INCOMPLETE))
                continue
            names = {item.name for item in members}
            elsewhere = [item for item in whole if item.name not in names]
        members.sort(key=lambda item: item.name)
        pools.append(_for_node(_complete_pool(members, elsewhere), node, labels, rules))
    # Pools with devices that have to be prepared before a pod is bound come last.
    pools.sort(key=lambda pool: (pool.has_binding_conditions, pool.driver, pool.name))
    return NodeDevices(tuple(pools))


def _is_for(item: Slice, node: str, labels: Mapping[str, str]) -> bool:
    if item.nodes is not None:
        return item.nodes.matches(node, labels)
    return any(device.nodes and device.nodes.matches(node, labels) for device in item.devices)


def _complete_pool(members: Sequence[Slice], elsewhere: Sequence[Slice]) -> Pool:
    """Return the pool that these slices make, valid or not.

    members: slices with devices for the node, in order. elsewhere: the others.
    """
    driver, name = members[0].driver, members[0].pool
    counters: dict[str, Amounts] = {}
    is_valid = True
    for item in (*members, *elsewhere):
        is_valid = is_valid and counters.keys().isdisjoint(item.counters)
        counters.update(item.counters)
    # A slice with counters has no devices.
    node_devices = [device for item in members if not item.counters for device in item.devices]
    foreign_devices = [device for item in elsewhere if not item.counters for device in item.devices]
    is_valid = (
        is_valid
        and len({device.key for device in node_devices}) == len(node_devices)
        and all(
            use.counter in counters.get(use.counter_set, ())
            for device in (*node_devices, *foreign_devices)
            for use in device.counters
        )
    )
    if not is_valid:
        return Pool(driver=driver, name=name, state=PoolState.INVALID)
    return Pool(
        driver=driver,
        name=name,
        devices=tuple(node_devices),
        devices_elsewhere=tuple(foreign_devices),
        counters=counters,
        has_binding_conditions=any(device.has_binding_conditions for device in node_devices),
    )


def _for_node(
    pool: Pool, node: str, labels: Mapping[str, str], rules: Collection[TaintRule]
) -> Pool:
    """Return the pool with the devices for one node alone, and with the taints of the rules."""
    usable: list[Device] = []
    elsewhere = list(pool.devices_elsewhere)
    for device in pool.devices:
        if device.nodes and not device.nodes.matches(node, labels):
            elsewhere.append(device)
            continue
        taints = tuple(rule.taint for rule in rules if rule.applies_to(device.key))
        usable.append(replace(device, taints=device.taints + taints) if taints else device)
    # Devices of other nodes matter only by the counters that they share with these.
    counted_devices = tuple(device for device in elsewhere if device.counters)
    return replace(pool, devices=tuple(usable), devices_elsewhere=counted_devices)
