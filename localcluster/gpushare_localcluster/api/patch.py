"""Patches of JSON documents: merge patch (RFC 7386), JSON patch (RFC 6902), strategic merge patch.

Pure: a patched document is a new value that shares unchanged parts; no argument is modified. Facts
of the strategic one, which treats some lists of Kubernetes as maps: the `patchMergeKey` tags of
k8s.io/api, and k8s.io/apimachinery/pkg/util/strategicpatch.
"""

import json
import re
from collections.abc import Callable

from gpushare_localcluster.api.objects import Object
from gpushare_localcluster.api.status import StatusError, bad_request


def merge_patch(target: object, patch: object) -> object:
    """Return `target` with a JSON merge patch applied; null removes a field."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for field, value in patch.items():
        if value is None:
            merged.pop(field, None)
        else:
            merged[field] = merge_patch(merged.get(field), value)
    return merged


def json_patch(document: object, operations: object) -> object:
    """Return `document` after the operations of a JSON patch, all or none of them.

    Raises StatusError: 400 for a malformed patch, and for `copy` and `move`, which nobody sends;
    422 for one that cannot be applied.
    """
    if not isinstance(operations, list):
        raise bad_request("a JSON patch is a list of operations")
    for operation in operations:
        if not isinstance(operation, dict) or not isinstance(operation.get("path"), str):
            raise bad_request("an operation of a JSON patch is an object with a path")
        kind, value = operation.get("op"), operation.get("value")
        if kind not in ("add", "remove", "replace", "test"):
            raise bad_request(f"unknown operation {kind!r} in a JSON patch")
        if kind != "remove" and "value" not in operation:
            raise bad_request(f"operation {kind!r} of a JSON patch needs a value")
        path = _pointer(operation["path"])
        if kind != "add":
            current = _get(document, path)
        if kind != "test":
            document = _edited(document, path, kind, value)
        elif json.dumps(current, sort_keys=True) != json.dumps(value, sort_keys=True):
            raise _unfit(f"testing value at {operation['path']!r} failed")
    return document


def _unfit(reason: str) -> StatusError:
    return StatusError(
        422, "Invalid", f"the server rejected our request due to an error in our request: {reason}"
    )


def _pointer(text: str) -> list[str]:
    """Return the steps of a JSON pointer (RFC 6901)."""
    if text and not text.startswith("/"):
        raise bad_request(f"{text!r} of a JSON patch operation must be a JSON pointer")
    return [step.replace("~1", "/").replace("~0", "~") for step in text.split("/")[1:]]


def _index(items: list[object], step: str, *, end: bool) -> int:
    """Return a position in a list; with `end`, for "add", the one after the last item too."""
    if end and step == "-":
        return len(items)
    if not re.fullmatch("0|[1-9][0-9]{0,8}", step):
        raise _unfit(f"{step!r} is no list index")
    if int(step) >= len(items) + int(end):
        raise _unfit(f"index {step} is out of range")
    return int(step)


def _get(document: object, path: list[str]) -> object:
    for step in path:
        if isinstance(document, dict) and step in document:
            document = document[step]
        elif isinstance(document, list):
            document = document[_index(document, step, end=False)]
        else:
            raise _unfit(f"there is nothing at {step!r}")
    return document


def _edited(document: object, path: list[str], kind: str, value: object) -> object:
    """Return the document with the value added, replaced or removed (`kind`) at the path."""
    if not path:
        if kind == "remove":
            raise _unfit("the whole document cannot be removed")
        return value
    step, tail = path[0], path[1:]
    if isinstance(document, list):
        items = list(document)
        index = _index(items, step, end=kind == "add" and not tail)
        if tail:
            items[index] = _edited(items[index], tail, kind, value)
        else:
            items[index : index + (kind != "add")] = [] if kind == "remove" else [value]
        return items
    if not isinstance(document, dict) or (tail and step not in document):
        raise _unfit(f"there is nothing at {step!r}")
    if kind == "remove" and not tail:
        return {field: item for field, item in document.items() if field != step}
    inner = _edited(document[step], tail, kind, value) if tail else value
    return {**document, step: inner}


ORDER = "$setElementOrder/"
DELETE = "$deleteFromPrimitiveList/"
RETAIN = "$retainKeys"
DIRECTIVE = "$patch"

MERGE_KEYS = {
    "addresses": "type",
    "conditions": "type",
    "containers": "name",
    "env": "name",
    "ephemeralContainers": "name",
    "hostAliases": "ip",
    "hostIPs": "ip",
    "imagePullSecrets": "name",
    "initContainers": "name",
    "ownerReferences": "uid",
    "podIPs": "ip",
    "resourceClaims": "name",
    "resourceClaimStatuses": "name",
    "schedulingGates": "name",
    "topologySpreadConstraints": "topologyKey",
    "volumeDevices": "devicePath",
    "volumeMounts": "mountPath",
    "volumes": "name",
}
"""Lists merged item by item, with the merge key. Tolerations and taints are replaced whole."""

CONTAINER_LISTS = frozenset({"containers", "initContainers", "ephemeralContainers"})
SETS = frozenset({"finalizers", "podCIDRs"})
"""Lists of strings merged as sets."""


def merge_key(parent: str, field: str) -> str | None:
    """Return the merge key of a list, None for a list that is replaced whole.

    The key of container ports is containerPort, that of Service ports is port.
    """
    if field == "ports":
        return "containerPort" if parent in CONTAINER_LISTS else "port"
    return MERGE_KEYS.get(field)


def strategic_merge(target: Object, patch: object) -> Object:
    """Return the object with a strategic merge patch applied. Raises StatusError: 400."""
    if not isinstance(patch, dict):
        raise bad_request("a strategic merge patch is an object")
    return _merge(target, patch, "")


def _merge(target: Object, patch: Object, parent: str) -> Object:
    match patch.get(DIRECTIVE):
        case None | "merge":
            kept = _list(patch.get(RETAIN, list(target)), RETAIN)
            merged = {field: value for field, value in target.items() if field in kept}
        case "replace":
            return {field: value for field, value in patch.items() if field != DIRECTIVE}
        case "delete":
            return {}
        case unknown:
            raise bad_request(f"unknown $patch directive {unknown!r}")
    for field, value in patch.items():
        if not field.startswith("$"):
            _merge_field(merged, field, value, patch, parent)
    for field in _directed(patch, ORDER):
        if field not in patch and field in merged:  # the patch has an order of the list alone
            _merge_field(merged, field, [], patch, parent)
    for field in _directed(patch, DELETE):
        unwanted = _list(patch[DELETE + field], DELETE + field)
        merged[field] = [item for item in merged.get(field) or [] if item not in unwanted]
    return merged


def _directed(patch: Object, directive: str) -> list[str]:
    return [name.removeprefix(directive) for name in patch if name.startswith(directive)]


def _merge_field(merged: Object, field: str, value: object, patch: Object, parent: str) -> None:
    current = merged.get(field)
    if value is None:
        merged.pop(field, None)
    elif isinstance(value, dict):
        merged[field] = _merge(current if isinstance(current, dict) else {}, value, field)
    elif isinstance(value, list):
        order = patch.get(ORDER + field)
        items = current if isinstance(current, list) else []
        merged[field] = _merge_list(items, value, order, field, merge_key(parent, field))
    else:
        merged[field] = value


def _merge_list(
    current: list[object], patch: list[object], order: object, field: str, key: str | None
) -> list[object]:
    if key is None and field not in SETS:
        return [item for item in patch if not _is_directive(item)]
    if {DIRECTIVE: "replace"} in patch:
        return [item for item in patch if not _is_directive(item)]
    if key is None:
        merged = current + [item for item in patch if item not in current]
        return _ordered(merged, current, order, lambda item: item)
    merged = _merge_items(current, patch, field, key)

    def identity(item: object) -> object:
        return item.get(key) if isinstance(item, dict) else item

    return _ordered(merged, current, order, identity)


def _merge_items(current: list[object], patch: list[object], field: str, key: str) -> list[object]:
    items: dict[object, object] = {}
    for index, old in enumerate(current):
        key_value = old.get(key) if isinstance(old, dict) else None
        # An item without a usable key cannot be patched and keeps its place.
        items[key_value if isinstance(key_value, str | int) else (index,)] = old
    for item in patch:
        if not isinstance(item, dict) or not isinstance(item.get(key), str | int):
            raise bad_request(f"an item of {field} in the patch lacks its merge key {key!r}")
        old_item = items.get(item[key])
        if item.get(DIRECTIVE) == "delete":
            items.pop(item[key], None)
        else:
            items[item[key]] = _merge(old_item if isinstance(old_item, dict) else {}, item, field)
    return list(items.values())


def _ordered(
    merged: list[object],
    current: list[object],
    order: object,
    identity: Callable[[object], object],
) -> list[object]:
    """Return the items in the order of the patch.

    Other items keep their place among the old ones, as in `mergeSortedSlice` of strategicpatch.
    """
    if not isinstance(order, list):
        return merged
    order_keys = [identity(item) for item in order]
    before = [identity(item) for item in current]
    ordered_items = [item for item in merged if identity(item) in order_keys]
    ordered_items.sort(key=lambda item: order_keys.index(identity(item)))
    remaining = [item for item in merged if identity(item) not in order_keys]
    result: list[object] = []
    for item in ordered_items:
        place = identity(item)
        earlier = before[: before.index(place)] if place in before else []
        while remaining and identity(remaining[0]) in earlier:
            result.append(remaining.pop(0))
        result.append(item)
    return result + remaining


def _is_directive(item: object) -> bool:
    return isinstance(item, dict) and DIRECTIVE in item and len(item) == 1


def _list(value: object, field: str) -> list[object]:
    if not isinstance(value, list):
        raise bad_request(f"{field} in a strategic merge patch must be a list")
    return value
