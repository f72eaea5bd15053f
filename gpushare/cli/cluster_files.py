"""Files that stand for a cluster, as a managed resource with its ledger: a saved report (`gpushare
inspect -o json`), or a table of nodes as `gpushare simulate` reads it.

Knows the report and the ledger. A report has no CPU and no memory of the host, so these are not
counted. Every field is checked; what is wrong is a SettingsError that names it.

Tested in `tests/unit/cli/test_whatif.py`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpushare.cli.documents import API_VERSION, KIND
from gpushare.cli.listed_cluster import ListedResource
from gpushare.core.amounts import compute
from gpushare.core.model import ALL_CORES, MAX_UNITS, NodeSpec, ObservedPod, PodRef, Reason, Request
from gpushare.core.node_filters import CORDONED, UNREADY, NodeState, NodeStates
from gpushare.core.selectors import Taint
from gpushare.errors import SettingsError
from gpushare.ledger import Ledger
from gpushare.trace.nodes_and_pods import MIB, read_nodes
from gpushare.wire.annotations import MAX_DEVICES_PER_POD, Names
from gpushare.wire.inventory import MAX_DEVICES, is_unit
from gpushare.wire.quantity import MAX_VALUE

_NO_HOST = "the saved report has no CPU and memory of pods, and no pods that wait"
_NO_FILTERS = " and no labels, taints and allocatable of some nodes"
_BARE = (
    "the file of nodes has no pods that run or wait, no labels and no taints; times of pods do not"
    " count"
)
_AGAIN = "save one with `gpushare inspect -o json`"


def resource_of_nodes(path: str, names: Names, unit: str, policy: str) -> ListedResource:
    """Return the resource that the nodes of a table share. Raises TraceError, SettingsError."""
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
    return ListedResource(names, ledger, unit, policy, [_BARE])


def resource_of_report(document: object, where: str, policy: str) -> ListedResource:
    """Return the resource that a report shows. Raises SettingsError that begins with `where`."""
    if not isinstance(document, dict):
        raise SettingsError(f"{where}: is no report; {_AGAIN}")
    version, kind = document.get("apiVersion"), document.get("kind")
    if version is None and kind is None and "nodes" in document:
        text = "is an inspect document of the extender, not a report"
        raise SettingsError(f"{where}: {text}; {_AGAIN}")
    if (version, kind) != (API_VERSION, KIND):
        shown = f"{str(version)[:40]} {str(kind)[:40]}"
        raise SettingsError(f"{where}: is a {shown}, not a {API_VERSION} {KIND}; {_AGAIN}")
    resource, unit = _text(document, "resource", where), _text(document, "unit", where)
    if not is_unit(unit):
        raise SettingsError(f"{where}: unit: {unit[:40]!r} is no unit of memory; {_AGAIN}")
    ledger, states, known = Ledger(), NodeStates(), True
    for number, node in enumerate(_list(document, "nodes", where)):
        at = f"{where}: nodes[{number}]"
        spec = _node(node, at)
        if ledger.has_node(spec.name):
            raise SettingsError(f"{at}: name: {spec.name!r} is there twice")
        ledger.node_changed(spec)
        state = _state(node, spec.name, at)
        known = known and state.labels is not None
        states.put(state)
        for pod in _pods(node, spec, at):
            ledger.pod_changed(pod)
    for pod in _waiting(document, where):
        ledger.pod_changed(pod)
    if not ledger.snapshot().capacity.any():
        raise SettingsError(f"{where}: no node in it shares {resource}")
    names = Names.for_resource(resource)
    note = f"{_NO_HOST}{'' if known else _NO_FILTERS}, so these do not count"
    return ListedResource(names, ledger, unit, policy, [note], states)


def _state(node: Mapping[str, object], name: str, where: str) -> NodeState:
    """Return what the report tells of what kube-scheduler's own filters see.

    Reports of older releases have a few words alone.
    """
    scheduling = node.get("scheduling")
    if scheduling is None:
        left_out = str(node.get("leftOut") or "").split(", ")
        cordoned, ready = CORDONED.text in left_out, UNREADY.text not in left_out
        return NodeState(name, cordoned=cordoned, ready=ready)
    at = f"{where}: scheduling"
    if not isinstance(scheduling, dict):
        raise SettingsError(f"{at}: is no object; {_AGAIN}")
    taints = (
        Taint(*(str(taint.get(key) or "") for key in ("key", "value", "effect")))
        for taint in _list(scheduling, "taints", at)
    )
    labels, amounts = _object(scheduling, "labels", at), _object(scheduling, "allocatable", at)
    return NodeState(
        name,
        None if labels is None else {key: _text(labels, key, at, least=0) for key in labels},
        tuple(taints),
        scheduling.get("cordoned") is True,
        scheduling.get("ready") is not False,
        None if amounts is None else {key: _number(amounts, key, at, MAX_VALUE) for key in amounts},
    )


def _node(node: Mapping[str, object], where: str) -> NodeSpec:
    devices = _list(node, "devices", where)
    if len(devices) > MAX_DEVICES:
        raise SettingsError(f"{where}: has more than {MAX_DEVICES} devices")
    closed = node.get("closed")
    return NodeSpec(
        _text(node, "name", where),
        tuple(_number(device, "total", where) for device in devices),
        tuple(device.get("healthy") is not False for device in devices),
        tuple(str(device.get("model") or "") for device in devices),
        tuple(str(device.get("uuid") or "") for device in devices),
        closed=_REASONS.get(str(closed), Reason.BROKEN_INVENTORY) if closed else None,
        serves_by_identity=True,  # devices are named as they are now, and no pod waits for another
    )


_REASONS = {reason.value: reason for reason in Reason}


def _pods(node: Mapping[str, object], spec: NodeSpec, where: str) -> Iterator[ObservedPod]:
    """Yield the pods of a node, and a pod for what is allocated to none of them."""
    devices = _list(node, "devices", where)
    rest = [_number(device, "allocated", where) for device in devices]
    cores_rest = [_cores(device, "coresAllocated", where) for device in devices]
    unplaced, unplaced_cores = (
        _number(node, "unplaced", where),
        _cores(node, "coresUnplaced", where),
    )
    for number, pod in enumerate(_list(node, "pods", where)):
        at = f"{where}: pods[{number}]"
        total, cores = _number(pod, "allocated", at), min(_cores(pod, "cores", at), ALL_CORES)
        shares = tuple(
            sorted(
                (_number(device, "index", at), _number(device, "allocated", at))
                for device in _list(pod, "devices", at)
            )
        )
        if any(device >= len(rest) for device, _ in shares) or len(dict(shares)) < len(shares):
            raise SettingsError(f"{at}: devices: is not one of each of the node's {len(rest)}")
        for device, units in shares:
            rest[device] -= units
            cores_rest[device] -= cores
        unplaced -= 0 if shares else total
        unplaced_cores -= 0 if shares else cores
        ref = PodRef(*(_text(pod, key, at) for key in ("namespace", "name", "uid")))
        yield _bound(ref, spec, total, shares, cores)
    for device, units in enumerate(rest):
        if units > 0:
            ref = PodRef("", f"unlisted on {spec.name}", f"{spec.name}/{device}")
            yield _bound(ref, spec, units, ((device, units),), cores_rest[device])
    if unplaced > 0:
        ref = PodRef("", f"unlisted on {spec.name}", spec.name)
        yield _bound(ref, spec, unplaced, (), unplaced_cores)


def _waiting(document: Mapping[str, object], where: str) -> Iterator[ObservedPod]:
    """Yield the pods that wait; reports of earlier versions do not say on how many devices."""
    for number, pod in enumerate(_list(document, "pending", where)):
        at = f"{where}: pending[{number}]"
        total, devices = _number(pod, "requested", at), _number({"devices": 1} | pod, "devices", at)
        if not 0 < devices <= MAX_DEVICES_PER_POD or not total or total % devices:
            raise SettingsError(f"{at}: {total} is not spread over {devices} devices; {_AGAIN}")
        ref = PodRef(*(_text(pod, key, at) for key in ("namespace", "name", "uid")))
        cores = min(_cores(pod, "cores", at), ALL_CORES)
        yield ObservedPod(ref, Request(total // devices, devices, percents=compute(cores)))


def _bound(
    ref: PodRef, spec: NodeSpec, total: int, shares: tuple[tuple[int, int], ...], cores: int
) -> ObservedPod:
    """Return a pod that has so many units in all, and so much compute of each device."""
    units = {each for _, each in shares}
    # One that may be on one of several devices stands on each of them.
    even = len(units) == 1 and sum(each for _, each in shares) == total
    request = Request(min(units), len(shares)) if even else Request(total, 1)
    request = replace(request, percents=compute(max(0, min(cores, ALL_CORES))))
    return ObservedPod(ref, request, spec.name, shares or None, assigned=True, running=True)


def _list(document: Mapping[str, object], key: str, where: str) -> list[dict[str, Any]]:
    value = document.get(key)
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise SettingsError(f"{where}: {key}: is no list of objects; {_AGAIN}")
    return value


def _object(document: Mapping[str, object], key: str, where: str) -> dict[str, object] | None:
    value = document.get(key)
    if value is not None and not isinstance(value, dict):
        raise SettingsError(f"{where}: {key}: is no object; {_AGAIN}")
    return value


def _number(document: Mapping[str, object], key: str, where: str, most: int = MAX_UNITS) -> int:
    value = document.get(key)
    if type(value) is not int or not 0 <= value <= most:
        raise SettingsError(f"{where}: {key}: {str(value)[:40]!r} is no number; {_AGAIN}")
    return value


def _cores(document: Mapping[str, object], key: str, where: str) -> int:
    """Return the percent of compute; reports of clusters where no pod has any do not say it."""
    return _number({key: 0} | dict(document), key, where)


def _text(document: Mapping[str, object], key: str, where: str, *, least: int = 1) -> str:
    value = document.get(key)
    if not isinstance(value, str) or len(value) < least:
        raise SettingsError(f"{where}: {key}: is no text; {_AGAIN}")
    return value
