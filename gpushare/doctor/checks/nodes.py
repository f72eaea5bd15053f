"""Checks of the nodes: shared devices, their inventories and plug-ins, compute and ConfigMaps.

The compute that nodes advertise must agree with kube-scheduler's file, and ConfigMaps must close
existing devices. Pure; the extender's own codecs read nodes and ConfigMaps. The extender counts
the compute of each pod in its calls, independently of the file.

Tested in `tests/unit/doctor/test_checks.py`.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

from gpushare.core.model import Reason
from gpushare.doctor.checks.scheduler_file import entry_of
from gpushare.doctor.facts import Facts, ListedNode, ListedPods, UnhealthyConfigMap, Unread
from gpushare.doctor.finding import Check, Finding, count, some
from gpushare.wire.annotations import ALIYUN, Names
from gpushare.wire.inventory import MAX_SHARERS

_MIB_FROM = 1024
"""Units of one device that are no GiB: no card has a TiB."""
_LONG_IDS, _SHORT_IDS = 68_941, 195_700
"""Devices that fit into the kubelet's limit of 4 MiB for a device plug-in's list (kubernetes
#127049), with the original's ids of 60 bytes each and with ours of 20: measured.
"""
_STARTING_SECONDS = 120.0
_BY_NVIDIAS_RUNTIME = ("envvar", "volume-mounts")
_CLOSED = Check("closed-devices")
_NAME = Check("compute")


def check_nodes(facts: Facts) -> Iterator[Finding]:
    """Yield findings about the nodes."""
    nodes = facts.nodes
    if isinstance(nodes, Unread):
        yield nodes.finding("gpu-nodes")
        return
    sharing = [node for node in nodes if node.shares]
    if not sharing:
        yield Check("gpu-nodes").fail(
            f"no node offers {facts.names.resource}",
            "start the device plug-in on the GPU nodes (the original's wants the label"
            " gpushare=true), or give --resource the right name",
        )
        yield from _label(nodes, facts.names)
        return
    yield Check("gpu-nodes").ok(
        f"{facts.names.resource} is offered by {count(len(sharing), 'node')}"
    )
    yield from _label(nodes, facts.names)
    yield _capacity(sharing, facts)
    yield _inventory(sharing)
    yield from _devices(sharing)
    yield _device_list(sharing)
    yield _contested_cards(sharing)
    yield _unit(sharing, facts.unit)
    yield _allocatable(nodes, facts.known_pods)
    yield _state(sharing)
    yield _list_size(sharing)
    yield _whole_cards(sharing, facts.known_pods)
    yield _plugin_pods(facts.known_pods)
    yield _runtime_class(sharing, facts.known_pods)


def _capacity(nodes: Sequence[ListedNode], facts: Facts) -> Finding:
    resource, number, annotation = facts.names.resource, facts.names.count, facts.names.inventory
    untold = "so what each device has cannot be told"
    for reason, problem, todo in (
        (
            Reason.UNEVEN,
            f"{resource} is no multiple of {number}, {untold}",
            f"write the inventory annotation {annotation}, one entry a device",
        ),
        (
            Reason.NO_COUNT,
            f"{resource} is there and {number} is not, {untold}, and no pod is placed there",
            "restart the device plug-in there; one that writes no count needs the inventory"
            f" annotation {annotation}",
        ),
        (
            Reason.BROKEN_CAPACITY,
            "capacity cannot be read",
            "look at what the device plug-in advertises",
        ),
        (
            Reason.BROKEN_SHARERS,
            f"label {MAX_SHARERS} is no number of pods, and no pod is placed there",
            "write a number from 1 on, or remove the label",
        ),
    ):
        if closed_nodes := [node.name for node in nodes if node.spec.closed is reason]:
            return Check("node-capacity").fail(f"{some(closed_nodes)}: {problem}", todo)
    if misnamed := {node.name: node.misnamed for node in nodes if node.misnamed}:
        problem = f"{some(misnamed)}: {next(iter(misnamed.values()))[:80]} has no effect"
        return Check("node-capacity").warn(problem, f"write the label {MAX_SHARERS}")
    return Check("node-capacity").ok("every total is a whole multiple of its count")


def _inventory(nodes: Sequence[ListedNode]) -> Finding:
    name = Check("node-inventory")
    broken = {node.name: node.broken for node in nodes if node.broken}
    if broken:
        first = min(broken)
        return name.fail(
            f"{some(broken)}: cannot be read ({broken[first]}), and no pod is placed there",
            "correct the annotation; remove it only where all devices of the node are equal",
        )
    differing = [
        node.name
        for node in nodes
        if node.inventory is not None
        and node.total
        and sum(device.mem for device in node.inventory.devices) != node.total
    ]
    if differing:
        return name.warn(
            f"{some(differing)}: the inventory's memory is not what the node advertises; the"
            " inventory counts, and the kubelet admits by the other",
            "restart the device plug-in there, or correct the annotation",
        )
    bare = [node for node in nodes if node.inventory is None]
    if bare:
        return name.ok(f"{count(len(bare), 'node')} without one: devices there count as equal")
    return name.ok("whole on every node")


def _devices(nodes: Sequence[ListedNode]) -> Iterator[Finding]:
    name = Check("node-devices")
    devices = [
        (node.name, index, device)
        for node in nodes
        if node.inventory is not None
        for index, device in enumerate(node.inventory.devices)
    ]
    sick = [
        f"{node} device {index} ({device.problem or 'without a reason'})"
        for node, index, device in devices
        if not device.healthy
    ]
    if sick:
        yield name.warn(
            f"{some(sick)}: unhealthy, so nothing new is placed there",
            "look at the events of the node; docs/device-plugin.md says what heals by itself, and"
            " what needs a reset",
        )
    elif devices:
        yield name.ok(f"{count(len(devices), 'device')} healthy")
    else:
        yield name.ok("no inventory tells of them")
    added = [
        f"{uuid} on {node.name}"
        for node in nodes
        if node.inventory is not None
        for uuid in node.inventory.uncounted
    ]
    if added:
        yield name.warn(
            f"{some(added)}: added while the device plug-in ran, and not counted yet",
            "delete its pod there, so that it starts anew; pods that run go on",
        )


def _device_list(nodes: Sequence[ListedNode]) -> Finding:
    """Return the ways to hand devices to containers, and the nodes without a working way."""
    name = Check("device-handover")
    lists = {node.name: node.device_list for node in nodes if node.device_list is not None}
    problems = {
        node: device_list.problem for node, device_list in lists.items() if device_list.problem
    }
    if problems:
        return name.fail(
            f"{some(problems)}: containers get no device ({problems[min(problems)]})",
            "docs/platforms.md says which ways there are, and how to open one",
        )
    counts = Counter(device_list.strategy for device_list in lists.values())
    ways = [f"{strategy} on {count(counts[strategy], 'node')}" for strategy in sorted(counts)]
    if ways:
        return name.ok(f"devices are handed over by {', '.join(ways)}")
    return name.ok("no device plug-in tells how it hands devices over")


def _contested_cards(nodes: Sequence[ListedNode]) -> Finding:
    """Return whether several nodes claim the same card."""
    claimants: dict[str, list[str]] = {}
    for node in nodes:
        for uuid in {*node.spec.uuids} - {""}:
            claimants.setdefault(uuid, []).append(node.name)
    contested = {uuid: names for uuid, names in claimants.items() if len(names) > 1}
    if contested:
        return Check("node-cards").warn(
            f"{some(f'{uuid} on {some(names)}' for uuid, names in sorted(contested.items()))}:"
            " several nodes claim the same card; a pod that asks for the card by uuid may run on"
            " any of them, and one that refuses the card runs on none",
            "look with nvidia-smi -L where the card is, and correct the annotation of the others",
        )
    return Check("node-cards").ok("no two nodes claim the same one")


def _unit(nodes: Sequence[ListedNode], unit: str) -> Finding:
    nodes_of_other_units = [node.name for node in nodes if node.spec.closed is Reason.OTHER_UNIT]
    if nodes_of_other_units:
        units = {node.inventory.unit for node in nodes if node.inventory is not None}
        return Check("node-unit").fail(
            f"{some(nodes_of_other_units)}: counted in {some(units - {unit})}, the cluster in"
            f" {unit}, and no pod is placed there",
            "give the device plug-in and the extender the same --unit",
        )
    large = [node.name for node in nodes if max(node.spec.capacity, default=0) > _MIB_FROM]
    if large and unit == "GiB":
        return Check("node-unit").warn(
            f"{some(large)}: more than {_MIB_FROM} GiB on one device; is it counted in MiB?",
            "give the extender, and this command, --unit MiB",
        )
    return Check("node-unit").ok(f"{unit}, as far as nodes say")


def _label(nodes: Sequence[ListedNode], names: Names) -> Iterator[Finding]:
    """Yield findings about the original's label, which is about the original's resource alone."""
    if names != ALIYUN:
        return
    silent = [node.name for node in nodes if node.labelled and not node.shares]
    if silent:
        yield Check("node-label").fail(
            f"{some(silent)}: labelled gpushare=true, but {names.resource} is not offered",
            "look at the device plug-in's log there; with units of MiB its list may be larger than"
            " the kubelet's limit of 4 MiB: use larger units",
        )
    else:
        yield Check("node-label").ok("every node labelled gpushare=true offers devices")


def _allocatable(nodes: Sequence[ListedNode], pods: ListedPods) -> Finding:
    hosts = {pod.node for pod in pods.gpu}
    away, less = [], []
    for node in nodes:
        total = node.total or sum(node.spec.capacity)
        if not node.shares:
            # A node without the resource, with pods that ask for the resource.
            away += [node.name] if node.name in hosts else []
        elif node.total == 0 or (total and node.allocatable == 0):
            # The kubelet says 0 of both when a device plug-in has been away for five minutes.
            away.append(node.name)
        elif node.allocatable is not None and node.allocatable < total:
            less.append(node.name)
    if away:
        return Check("node-allocatable").fail(
            f"{some(away)}: nothing is allocatable, so the device plug-in is away or every device"
            " is unhealthy",
            "look at the device plug-in there",
        )
    if less:
        return Check("node-allocatable").warn(
            f"{some(less)}: less allocatable than there is, so devices are unhealthy",
            "look at the device plug-in's log there",
        )
    return Check("node-allocatable").ok("all of the capacity")


def _state(nodes: Sequence[ListedNode]) -> Finding:
    name = Check("node-state")
    states = [node.state for node in nodes if node.state is not None]
    away = [f"{state.name} (not ready)" for state in states if not state.ready]
    away += [f"{state.name} (cordoned)" for state in states if state.ready and state.cordoned]
    if away:
        return name.warn(
            f"{some(away)}: kube-scheduler places no pod there, whatever is free",
            "kubectl uncordon, or look at the kubelet there, unless that is meant",
        )
    return name.ok("no node is cordoned, and all are ready")


def _list_size(nodes: Sequence[ListedNode]) -> Finding:
    name = Check("device-list")
    sizes = {}
    for node in nodes:
        inventory_units = (
            sum(device.mem for device in node.inventory.devices) if node.inventory else 0
        )
        sizes[node.name] = max(inventory_units, node.total or 0)
    too_long = [node for node, units in sizes.items() if units > _SHORT_IDS]
    todo = "count in larger units, such as 256MiB, in the device plug-in and the extender"
    if too_long:
        return name.fail(
            f"{some(too_long)}: more than {_SHORT_IDS} units, a list beyond the kubelet's 4 MiB",
            todo,
        )
    long = [node for node, units in sizes.items() if units > _LONG_IDS]
    if long:
        return name.warn(
            f"{some(long)}: more than {_LONG_IDS} units, too many for the original's plug-in",
            f"{todo}; ours fits up to {_SHORT_IDS}",
        )
    return name.ok(f"{max(sizes.values(), default=0)} units at most fit the kubelet's 4 MiB")


def _whole_cards(nodes: Sequence[ListedNode], pods: ListedPods) -> Finding:
    """Return the nodes with cards that NVIDIA's own device plug-in also gives out."""
    name = Check("two-device-plugins")
    both = {node.name for node in nodes if node.whole}
    operated = [node.name for node in nodes if node.gpu_operator]
    if operated and not both:
        return name.warn(
            f"{some(operated)}: NVIDIA's GPU operator is to run its device plug-in there, which"
            " gives the same cards out as whole ones",
            "kubectl label node NODE nvidia.com/gpu.deploy.device-plugin=false --overwrite",
        )
    if not both:
        return name.ok("no node gives its cards out as whole ones too")
    kinds = some({resource for node in nodes for resource in node.whole})
    problem = (
        f"{some(both)}: gives out {kinds} as well, of the same cards, and neither device plug-in"
    )
    problem += " knows what the other has given"
    todo = (
        "keep NVIDIA's device plug-in off nodes that share cards, by its nodeSelector or affinity"
    )
    holders = [pod for pod, at in pods.whole if at in both]
    if holders:
        return name.fail(f"{problem}; {some(holders)} hold whole cards there", todo)
    return name.warn(problem, todo)


def _plugin_pods(pods: ListedPods) -> Finding:
    name = Check("device-plugin-pods")
    waiting_reasons = {
        f"{pod.name} on {pod.node}": pod.waiting_reason
        for pod in pods.plugins
        if pod.waiting_reason and pod.age > _STARTING_SECONDS
    }
    if waiting_reasons:
        return name.fail(
            f"{some(waiting_reasons)}: does not run ({waiting_reasons[min(waiting_reasons)]})",
            "kubectl describe pod, and its log; docs/platforms.md tells of other folders of the"
            " kubelet, of SELinux, and of toolkits that give it no GPU",
        )
    if not pods.plugins:
        return name.ok("none is ours")
    return name.ok(f"{count(len(pods.plugins), 'pod')} of the device plug-in")


def _runtime_class(nodes: Sequence[ListedNode], pods: ListedPods) -> Finding:
    """Return the pods that another runtime than NVIDIA's starts.

    If the device plug-in's own pod names a RuntimeClass, the node has probably another default.
    """
    name = Check("runtime-class")
    by_runtime = {
        node.name
        for node in nodes
        if node.device_list is not None and node.device_list.strategy in _BY_NVIDIAS_RUNTIME
    }
    classes = {pod.node: pod.runtime_class for pod in pods.plugins if pod.runtime_class}
    blind = [
        pod
        for pod in pods.gpu
        if pod.node in by_runtime and pod.node in classes and not pod.runtime_class
    ]
    if not blind:
        return name.ok("no GPU pod lacks one, as far as that is seen")
    runtime_class = classes[blind[0].node]
    return name.warn(
        f"{some(pod.name for pod in blind)}: names no RuntimeClass, and the device plug-in there"
        f" names {runtime_class}: where NVIDIA's runtime is not the default, such a pod has no"
        " driver",
        f"runtimeClassName: {runtime_class} in the pod, or CDI on the node (docs/platforms.md)",
    )


def check_unhealthy_configmaps(facts: Facts) -> Iterator[Finding]:
    """Yield the finding about these ConfigMaps."""
    config_maps, prefix = facts.config_maps, facts.names.unhealthy
    if isinstance(config_maps, Unread):
        yield config_maps.finding(_CLOSED)
        return
    broken = {
        prefix + config_map.node: config_map.broken
        for config_map in config_maps
        if config_map.broken
    }
    if broken:
        yield _CLOSED.fail(
            f"ConfigMap {some(broken)}: cannot be read ({broken[min(broken)]}), so devices it means"
            " may be open",
            'write indices or uuids and commas under the key gpus, as in gpus: "0,2"; "" opens all',
        )
        return
    misnamed = {} if isinstance(facts.nodes, Unread) else _misnamed(config_maps, facts.nodes)
    if misnamed:
        yield _CLOSED.warn(
            f"ConfigMap {some(prefix + node for node in misnamed)}: {misnamed[min(misnamed)]}",
            f"correct it, or delete it; its name is {prefix}NODE",
        )
        return
    devices = sum(len(config_map.devices) for config_map in config_maps)
    nodes = sum(bool(config_map.devices) for config_map in config_maps)
    place = f" on {count(nodes, 'node')}" if devices else ""
    yield _CLOSED.ok(f"{count(devices, 'device')} closed by ConfigMaps{place}")


def _misnamed(
    config_maps: Sequence[UnhealthyConfigMap], nodes: Sequence[ListedNode]
) -> dict[str, str]:
    """Return the devices that ConfigMaps name and that do not exist, by node."""
    specs = {node.name: node.spec for node in nodes}
    misnamed = {}
    for config_map in config_maps:
        spec = specs.get(config_map.node)
        if spec is None:
            misnamed[config_map.node] = f"there is no node {config_map.node}"
        # A node that is closed as a whole has no known devices.
        elif spec.capacity:
            devices = {*range(len(spec.capacity)), *spec.uuids}
            if beyond := sorted(map(str, config_map.devices - devices)):
                misnamed[config_map.node] = f"{config_map.node} has no device {beyond[0]}"
    return misnamed


def check_compute(facts: Facts) -> Iterator[Finding]:
    """Yield the finding about compute."""
    cores = facts.names.cores
    if isinstance(facts.nodes, Unread):
        yield _NAME.skip(f"which nodes advertise {cores} is told by the nodes")
        return
    entry = entry_of(facts)
    if entry is None:
        yield _NAME.skip(f"who counts {cores} is in kube-scheduler's file (--scheduler-config)")
        return
    is_ignored = {item.name: item.ignored_by_scheduler for item in entry.managed_resources}
    advertising = [node.name for node in facts.nodes if node.cores]
    # Every pod comes to an extender that manages no resource in particular.
    comes, ignored = not is_ignored or cores in is_ignored, is_ignored.get(cores, False)
    if not advertising:
        yield _not_advertised(facts, ignored=ignored)
    elif ignored:
        yield _NAME.fail(
            f"{some(advertising)}: the kubelet counts {cores} there, and kube-scheduler does not"
            " (ignoredByScheduler: true): where its sum is used up, a pod is bound all the same and"
            f" fails (OutOf{cores})",
            f"say ignoredByScheduler: false for {cores}; or start the device plug-in with"
            " --no-advertise-cores and remove the resource from the status of the nodes",
        )
    elif not comes:
        problem = (
            f"{some(advertising)}: {cores} is advertised there, and managedResources of the"
            " extender does not name it, so a pod that asks for compute and no memory runs without"
            " any device"
        )
        todo = f"add name: {cores} with ignoredByScheduler: false to managedResources"
        if running := [pod for pod, node in facts.known_pods.cores_alone if node]:
            yield _NAME.fail(f"{problem}: {some(running)}", f"{todo}, then delete such pods")
        else:
            yield _NAME.warn(problem, todo)
    else:
        sharing = sum(node.shares for node in facts.nodes)
        yield _NAME.ok(
            f"{cores} is advertised by {len(advertising)} of {count(sharing, 'node')} that"
            f" {'shares' if sharing == 1 else 'share'} devices, and kube-scheduler counts it"
        )


def _not_advertised(facts: Facts, *, ignored: bool) -> Finding:
    cores = facts.names.cores
    pods_with_cores = [pod for pod in facts.known_pods.gpu if pod.request.cores]
    if not pods_with_cores:
        return _NAME.ok(f"no node advertises {cores}, and no pod asks for it")
    if ignored:
        return _NAME.ok(f"{cores} is counted by the extender alone: no node advertises it")
    pending_pods = [pod.name for pod in pods_with_cores if not pod.node and not pod.gated]
    if not pending_pods:
        return _NAME.ok(f"no node advertises {cores}, and no pod waits for it")
    return _NAME.fail(
        f"{some(pending_pods)}: waits for ever, as kube-scheduler counts {cores} and no node"
        " advertises it",
        f"name {cores} in managedResources with ignoredByScheduler: false, then start our device"
        " plug-in without --no-advertise-cores; where another one runs, say ignoredByScheduler:"
        " true instead",
    )
