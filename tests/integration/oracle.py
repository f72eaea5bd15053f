"""The books as they must be, computed anew from the objects of the API server alone.

Shares no code with production: plain arithmetic over JSON, as docs/annotations.md and the
original's dialect say. Nothing is remembered: a bound pod that has not ended holds its
memory, whatever anybody remembers.
"""

import json
from typing import Any

Json = dict[str, Any]

_ORIGINAL = "aliyun.com/gpu-mem"
_DEVICES = "gpushare.io/devices"
_ENDED = ("Succeeded", "Failed")


def expected_inspect(nodes: list[Json], pods: list[Json], resource: str, unit: str = "GiB") -> Json:
    """The inspect document that these objects call for."""
    live = [pod for pod in pods if pod.get("status", {}).get("phase") not in _ENDED]
    result = []
    for node in sorted(nodes, key=lambda body: str(body["metadata"]["name"])):
        capacity = _capacity(node, resource, unit)
        if capacity:
            local_items = [
                pod for pod in live if pod["spec"].get("nodeName") == node["metadata"]["name"]
            ]
            result.append(_node(node, capacity, local_items, resource))
    return {"nodes": result}


def _node(body: Json, capacity: list[int], pods: list[Json], resource: str) -> Json:
    name = body["metadata"]["name"]
    devices: list[Json] = [
        {"id": index, "totalGPU": total, "usedGPU": 0, "usedCores": 0, "pods": []}
        for index, total in enumerate(capacity)
    ]
    unplaced = []
    for pod in sorted(pods, key=lambda body: _key(body["metadata"])):
        total = asked(pod, resource)
        if not total:
            continue
        on_cards = _on_cards(body, pod, resource, placement(pod, resource, total))
        _add_given(on_cards, body, pod, resource)
        if not on_cards or max(on_cards) >= len(capacity):
            unplaced.append(_pod(pod, total, _cores(pod, resource, 0)))
            continue
        cores = _cores(pod, resource, len(on_cards))
        for index, units in sorted(on_cards.items()):
            devices[index]["pods"].append(_pod(pod, units, cores))
            devices[index]["usedGPU"] += units
            devices[index]["usedCores"] += cores
    items = [*devices, *(pod for device in devices for pod in device["pods"]), *unplaced]
    if not any(item["usedCores"] for item in items):
        for item in items:
            del item["usedCores"]
    used = sum(device["usedGPU"] for device in devices) + sum(pod["usedGPU"] for pod in unplaced)
    node = {"name": name, "totalGPU": sum(capacity), "usedGPU": used, "devs": devices}
    return {**node, "unplaced": unplaced} if unplaced else node


def asked(pod: Json, resource: str) -> int:
    """Units in the limits of all containers (these tests give init containers none)."""
    return sum(_limits(pod, resource))


def _cores(pod: Json, resource: str, devices: int) -> int:
    """Percent of compute of each device, if the pod has so many."""
    total = sum(_limits(pod, f"{resource.removesuffix('-mem')}-core.percentage"))
    if not total:
        return 0
    notes = pod["metadata"].get("annotations") or {}
    count = int(notes.get(f"{resource.removesuffix('-mem')}-count", 1))
    return total // count if devices == count else min(total, 100)


def placement(pod: Json, resource: str, total: int) -> dict[int, int]:
    """Units by device, as the annotations say; {} where the annotations do not add up."""
    notes = pod["metadata"].get("annotations") or {}
    prefix = _dashed(resource).replace("-", "_").upper()
    key = "scheduler.framework.gpushare.allocation"
    if resource != _ORIGINAL:
        key = f"gpushare.io/allocation-{_dashed(resource)}"
    by_map: dict[int, int] = {}
    for grant in json.loads(notes.get(key) or "{}").values():
        for device, units in grant.items():
            by_map[int(device)] = by_map.get(int(device), 0) + units
    listing = notes.get(f"{prefix}_IDX", "").split(",")
    if not all(item.isdigit() for item in listing) or total % len(listing):
        return by_map
    by_index = {int(item): total // len(listing) for item in listing}
    if by_map.keys() == by_index.keys():
        return by_map
    either = by_map.keys() | by_index.keys()
    return {device: max(by_map.get(device, 0), by_index.get(device, 0)) for device in either}


def _on_cards(node: Json, pod: Json, resource: str, holding: dict[int, int]) -> dict[int, int]:
    """The same by the indices that the cards have now, where node and pod name cards by uuid.

    A pod whose card came to another index may be on either, unless the node serves by identity.
    """
    suffix = "" if resource == _ORIGINAL else f"-{_dashed(resource)}"
    inventory = json.loads(node["metadata"].get("annotations", {}).get(f"{_DEVICES}{suffix}", "{}"))
    uuids = [device.get("uuid", "") for device in inventory.get("devices", ())]
    notes = pod["metadata"].get("annotations") or {}
    names = notes.get(f"gpushare.io/device-uuids{suffix}", "")
    if not names or not any(uuids):
        return holding
    prefix = _dashed(resource).replace("-", "_").upper()
    at = dict(zip(map(int, notes[f"{prefix}_IDX"].split(",")), names.split(","), strict=True))
    moves: dict[int, int] = {}
    for index, units in holding.items():
        present = {uuids.index(at[index])} if at[index] in uuids else set()
        if not present or not inventory.get("servesByIdentity"):
            present |= {index} & set(range(len(uuids)))
        if not present:
            return {}
        for device in present:
            moves[device] = max(moves.get(device, 0), units)
    return moves


def _add_given(holding: dict[int, int], node: Json, pod: Json, resource: str) -> None:
    """Add the units that the device plug-in reports for the pod on other cards."""
    suffix = "" if resource == _ORIGINAL else f"-{_dashed(resource)}"
    inventory = json.loads(node["metadata"].get("annotations", {}).get(f"{_DEVICES}{suffix}", "{}"))
    notes = pod["metadata"].get("annotations") or {}
    document = json.loads(notes.get(f"gpushare.io/given{suffix}", "{}"))
    for index, device in enumerate(inventory.get("devices", ())):
        units = document.get(device.get("uuid", ""), 0)
        if holding and units:
            holding[index] = max(holding.get(index, 0), units)


def over_capacity(document: Json) -> list[str]:
    """Devices of an inspect document that hold more than their memory, or more than all compute;
    unplaced pods count on each.
    """
    wrong = []
    for node in document["nodes"]:
        everywhere = sum(pod["usedGPU"] for pod in node.get("unplaced", ()))
        cores = sum(pod.get("usedCores", 0) for pod in node.get("unplaced", ()))
        wrong += [
            f"{node['name']}:{device['id']}"
            for device in node["devs"]
            if device["usedGPU"] + everywhere > device["totalGPU"]
            or device.get("usedCores", 0) + cores > 100
        ]
    return wrong


def _capacity(node: Json, resource: str, unit: str) -> list[int]:
    """Units of each device; [] where the node shares none, or none that can be counted."""
    suffix = (
        ""
        if resource == "aliyun.com/gpu-mem"
        else "-" + resource.replace(".", "-").replace("/", "-")
    )
    notes = node["metadata"].get("annotations") or {}
    if f"gpushare.io/devices{suffix}" in notes:
        try:
            document = json.loads(notes[f"gpushare.io/devices{suffix}"])
        except ValueError:
            return []
        return [device["mem"] for device in document["devices"]] if document["unit"] == unit else []
    amounts = node["status"]["capacity"]
    total = int(amounts.get(resource, 0))
    count = int(amounts.get(resource.removesuffix("-mem") + "-count", 0))
    return [total // count] * count if total and count else []


def _dashed(resource: str) -> str:
    return resource.replace(".", "-").replace("/", "-")


def _limits(pod: Json, resource: str) -> list[int]:
    return [
        _whole(str((container.get("resources", {}).get("limits") or {}).get(resource, 0)))
        for container in pod["spec"]["containers"]
    ]


def _whole(quantity: str) -> int:
    """The API server writes 2000 as 2k."""
    return int(quantity.removesuffix("k")) * (1000 if quantity.endswith("k") else 1)


def _pod(pod: Json, units: int, cores: int) -> Json:
    meta = pod["metadata"]
    return {
        "name": meta["name"],
        "namespace": meta["namespace"],
        "usedGPU": units,
        "usedCores": cores,
    }


def _key(meta: Json) -> tuple[str, str, str]:
    return (meta["namespace"], meta["name"], meta["uid"])
