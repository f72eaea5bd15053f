"""Read a file in place of a cluster: a saved report (`gpushare inspect -o json`), or a table of
nodes for `gpushare simulate`. The result is a resource with a ledger.

A report has no CPU and no memory of the host, so these do not count. Every field is checked; a
SettingsError names a wrong field.

Tested in `tests/unit/cli/test_whatif.py`.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpushare.cli.documents import API_VERSION, KIND
from gpushare.cli.listed_cluster import ListedResource
from gpushare.core.amounts import PERCENT_AMOUNTS, compute, percents_of
from gpushare.core.model import ALL_CORES, MAX_UNITS, NodeSpec, ObservedPod, PodRef, Reason, Request
from gpushare.core.node_filters import CORDONED, UNREADY, NodeState, NodeStates
from gpushare.core.selectors import Demands, Taint, tolerating
from gpushare.errors import AnnotationError, SettingsError
from gpushare.ledger import Ledger
from gpushare.trace.nodes_and_pods import MIB, read_nodes
from gpushare.wire.annotations import MAX_DEVICES_PER_POD, Names
from gpushare.wire.inventory import MAX_DEVICES, is_unit, most_sharers
from gpushare.wire.quantity import MAX_VALUE

_NO_HOST = "the saved report has no CPU and memory of pods, and no pods that wait"
_NO_FILTERS = " and no labels, taints and allocatable of some nodes"
_BARE = (
    "the file of nodes has no pods that run or wait, no labels and no taints; times of pods do not"
    " count"
)
_AGAIN = "save one with `gpushare inspect -o json`"


def resource_of_nodes(path: str, names: Names, unit: str, policy: str) -> ListedResource:
    """Return the resource of the nodes of a table. Raises TraceError, SettingsError."""
    ledger, specs = Ledger(), []
    for node in read_nodes(Path(path)):
        sizes = node.sizes[: node.devices]
        if max(sizes, default=0) > MAX_UNITS:
            raise SettingsError(f"{path}: {node.name}: a device has at most {MAX_UNITS} units")
        count = len(sizes)
        specs.append(
            NodeSpec(
                node.name,
                sizes,
                (True,) * count,
                (node.model,) * count,
                ("",) * count,
                node.cpu,
                node.memory * MIB,
                serves_by_identity=True,
            )
        )
    ledger.replace_nodes(specs)
    states = NodeStates(NodeState(spec.name) for spec in specs)
    return ListedResource(names, ledger, unit, policy, [_BARE], states)


def resource_of_report(document: object, source: str, policy: str) -> ListedResource:
    """Return the resource of a report. Raises SettingsError that begins with `source`."""
    if not isinstance(document, dict):
        raise SettingsError(f"{source}: is no report; {_AGAIN}")
    version, kind = document.get("apiVersion"), document.get("kind")
    if version is None and kind is None and "nodes" in document:
        text = "is an inspect document of the extender, not a report"
        raise SettingsError(f"{source}: {text}; {_AGAIN}")
    if (version, kind) != (API_VERSION, KIND):
        kind_text = f"{str(version)[:40]} {str(kind)[:40]}"
        raise SettingsError(f"{source}: is a {kind_text}, not a {API_VERSION} {KIND}; {_AGAIN}")
    resource, unit = _text(document, "resource", source), _text(document, "unit", source)
    if not is_unit(unit):
        raise SettingsError(f"{source}: unit: {unit[:40]!r} is no unit of memory; {_AGAIN}")
    ledger, states, has_labels = Ledger(), NodeStates(), True
    demands: dict[str, Demands] = {}
    for number, node in enumerate(_list(document, "nodes", source)):
        at = f"{source}: nodes[{number}]"
        spec = _node(node, at)
        if ledger.has_node(spec.name):
            raise SettingsError(f"{at}: name: {spec.name!r} is there twice")
        state = _state(node, spec.name, at)
        with suppress(AnnotationError):  # the node is closed
            spec = replace(spec, max_sharers=most_sharers(state.labels or {}))
        ledger.node_changed(spec)
        has_labels = has_labels and state.labels is not None
        states.put(state)
        for pod in _pods(node, spec, at):
            ledger.pod_changed(pod)
            # A report has no tolerations; the pod tolerates the taints of its node.
            demands[pod.ref.uid] = tolerating(state.taints)
    for pod in _waiting(document, source):
        ledger.pod_changed(pod)
    if not ledger.snapshot().capacity.any():
        raise SettingsError(f"{source}: no node in it shares {resource}")
    names = Names.for_resource(resource)
    note = f"{_NO_HOST}{'' if has_labels else _NO_FILTERS}, so these do not count"
    return ListedResource(names, ledger, unit, policy, [note], states, demands)


def _state(node: Mapping[str, object], name: str, source: str) -> NodeState:
    """Return the state of a node for kube-scheduler's own filters.

    Reports of older releases have only the words cordoned and not ready.
    """
    scheduling = node.get("scheduling")
    if scheduling is None:
        left_out = str(node.get("leftOut") or "").split(", ")
        cordoned, ready = CORDONED.text in left_out, UNREADY.text not in left_out
        return NodeState(name, cordoned=cordoned, ready=ready)
    at = f"{source}: scheduling"
    if not isinstance(scheduling, dict):
        raise SettingsError(f"{at}: is no object; {_AGAIN}")
    taints = (
        Taint(*(str(taint.get(key) or "") for key in ("key", "value", "effect")))
        for taint in _list(scheduling, "taints", at)
    )
    labels, amounts = _object(scheduling, "labels", at), _object(scheduling, "allocatable", at)
    return NodeState(
        name,
        None if labels is None else {key: _text(labels, key, at, min_length=0) for key in labels},
        tuple(taints),
        scheduling.get("cordoned") is True,
        scheduling.get("ready") is not False,
        None if amounts is None else {key: _number(amounts, key, at, MAX_VALUE) for key in amounts},
    )


def _node(node: Mapping[str, object], source: str) -> NodeSpec:
    devices = _list(node, "devices", source)
    if len(devices) > MAX_DEVICES:
        raise SettingsError(f"{source}: has more than {MAX_DEVICES} devices")
    closed_reason = node.get("closed")
    return NodeSpec(
        _text(node, "name", source),
        tuple(_number(device, "total", source) for device in devices),
        tuple(device.get("healthy") is not False for device in devices),
        tuple(str(device.get("model") or "") for device in devices),
        tuple(str(device.get("uuid") or "") for device in devices),
        closed=_REASONS.get(str(closed_reason), Reason.BROKEN_INVENTORY) if closed_reason else None,
        serves_by_identity=True,  # the report names devices by their indices of that moment
    )


_REASONS = {reason.value: reason for reason in Reason}


def _pods(node: Mapping[str, object], spec: NodeSpec, source: str) -> Iterator[ObservedPod]:
    """Yield the pods of a node, and pods for units that are allocated to no listed pod."""
    devices = _list(node, "devices", source)
    unlisted = [_number(device, "allocated", source) for device in devices]
    unlisted_cores = [_percent(device, "coresAllocated", source) for device in devices]
    unplaced, unplaced_cores = (
        _number(node, "unplaced", source),
        _percent(node, "coresUnplaced", source),
    )
    for number, pod in enumerate(_list(node, "pods", source)):
        at = f"{source}: pods[{number}]"
        total, cores = _number(pod, "allocated", at), min(_percent(pod, "cores", at), ALL_CORES)
        shares = tuple(
            sorted(
                (_number(device, "index", at), _number(device, "allocated", at))
                for device in _list(pod, "devices", at)
            )
        )
        if any(device >= len(unlisted) for device, _ in shares) or len(dict(shares)) < len(shares):
            raise SettingsError(f"{at}: devices: is not one of each of the node's {len(unlisted)}")
        for device, units in shares:
            unlisted[device] -= units
            unlisted_cores[device] -= cores
        unplaced -= 0 if shares else total
        unplaced_cores -= 0 if shares else cores
        ref = PodRef(*(_text(pod, key, at) for key in ("namespace", "name", "uid")))
        yield _bound(ref, spec, total, shares, cores)
    for device, units in enumerate(unlisted):
        if units > 0:
            ref = PodRef("", f"unlisted on {spec.name}", f"{spec.name}/{device}")
            yield _bound(ref, spec, units, ((device, units),), unlisted_cores[device])
    if unplaced > 0:
        ref = PodRef("", f"unlisted on {spec.name}", spec.name)
        yield _bound(ref, spec, unplaced, (), unplaced_cores)


def _waiting(document: Mapping[str, object], source: str) -> Iterator[ObservedPod]:
    """Yield the pending pods; reports of earlier versions have no number of devices."""
    for number, pod in enumerate(_list(document, "pending", source)):
        at = f"{source}: pending[{number}]"
        total, devices = _number(pod, "requested", at), _number({"devices": 1} | pod, "devices", at)
        if not 0 < devices <= MAX_DEVICES_PER_POD or not total or total % devices:
            raise SettingsError(f"{at}: {total} is not spread over {devices} devices; {_AGAIN}")
        ref = PodRef(*(_text(pod, key, at) for key in ("namespace", "name", "uid")))
        percents = percents_of(
            min(_percent(pod, amount.name, at), amount.whole) for amount in PERCENT_AMOUNTS
        )
        yield ObservedPod(ref, Request(total // devices, devices, percents=percents))


def _bound(
    ref: PodRef, spec: NodeSpec, total: int, shares: tuple[tuple[int, int], ...], cores: int
) -> ObservedPod:
    """Return a bound pod. total: units on all devices. cores: percent of each device."""
    units = {share for _, share in shares}
    # A pod that may be on one of several devices counts on each of them.
    even = len(units) == 1 and sum(share for _, share in shares) == total
    request = Request(min(units), len(shares)) if even else Request(total, 1)
    request = replace(request, percents=compute(max(0, min(cores, ALL_CORES))))
    return ObservedPod(ref, request, spec.name, shares or None, assigned=True, running=True)


def _list(document: Mapping[str, object], key: str, source: str) -> list[dict[str, Any]]:
    value = document.get(key)
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise SettingsError(f"{source}: {key}: is no list of objects; {_AGAIN}")
    return value


def _object(document: Mapping[str, object], key: str, source: str) -> dict[str, object] | None:
    value = document.get(key)
    if value is not None and not isinstance(value, dict):
        raise SettingsError(f"{source}: {key}: is no object; {_AGAIN}")
    return value


def _number(document: Mapping[str, object], key: str, source: str, limit: int = MAX_UNITS) -> int:
    value = document.get(key)
    if type(value) is not int or not 0 <= value <= limit:
        raise SettingsError(f"{source}: {key}: {str(value)[:40]!r} is no number; {_AGAIN}")
    return value


def _percent(document: Mapping[str, object], key: str, source: str) -> int:
    """Return the percent of an amount; 0 if the key is missing, as in clusters without any."""
    return _number({key: 0} | dict(document), key, source)


def _text(document: Mapping[str, object], key: str, source: str, *, min_length: int = 1) -> str:
    value = document.get(key)
    if not isinstance(value, str) or len(value) < min_length:
        raise SettingsError(f"{source}: {key}: is no text; {_AGAIN}")
    return value
