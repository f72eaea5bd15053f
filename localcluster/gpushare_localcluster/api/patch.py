"""Patches of JSON documents: merge patch (RFC 7386), JSON patch (RFC 6902), strategic merge patch.

Pure: a patched document is a new value that shares unchanged parts; no argument is modified. Facts
of the strategic one, which treats some lists of Kubernetes as maps: the `patchMergeKey` tags of
k8s.io/api, and k8s.io/apimachinery/pkg/util/strategicpatch.
"""

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

    Raises StatusError: 400 for a malformed patch, 422 for one that cannot be applied.
    """
    if not isinstance(operations, list):
        raise bad_request("a JSON patch is a list of operations")
    for operation in operations:
        document = _apply(document, operation)
    return document


def _apply(document: object, operation: object) -> object:
    if not isinstance(operation, dict):
        raise bad_request("an operation of a JSON patch is an object")
    act = _ACTIONS.get(str(operation.get("op")))
    if act is None:
        raise bad_request(f"unknown operation {operation.get('op')!r} in a JSON patch")
    return act(document, _pointer(operation, "path"), operation)


def _add(document: object, path: list[str], operation: Object) -> object:
    return _put(document, path, _value(operation), insert=True)


def _replace(document: object, path: list[str], operation: Object) -> object:
    _get(document, path)
    return _put(document, path, _value(operation), insert=False)


def _drop(document: object, path: list[str], _: Object) -> object:
    return _remove(document, path)


def _test(document: object, path: list[str], operation: Object) -> object:
    if not _same(_get(document, path), _value(operation)):
        raise _unfit(f"testing value at {operation['path']!r} failed")
    return document


def _copy(document: object, path: list[str], operation: Object) -> object:
    return _put(document, path, _get(document, _pointer(operation, "from")), insert=True)


def _move(document: object, path: list[str], operation: Object) -> object:
    source = _pointer(operation, "from")
    if path[: len(source)] == source and path != source:
        raise _unfit("a value cannot be moved into itself")
    value = _get(document, source)
    return _put(_remove(document, source), path, value, insert=True)


_ACTIONS: dict[str, Callable[[object, list[str], Object], object]] = {
    "add": _add,
    "copy": _copy,
    "move": _move,
    "remove": _drop,
    "replace": _replace,
    "test": _test,
}


def _same(one: object, two: object) -> bool:
    # JSON keeps booleans apart from numbers, Python does not.
    if isinstance(one, bool) or isinstance(two, bool):
        return one is two
    if isinstance(one, list) and isinstance(two, list):
        pairs = zip(one, two, strict=False)
        return len(one) == len(two) and all(_same(a, b) for a, b in pairs)
    if isinstance(one, dict) and isinstance(two, dict):
        return one.keys() == two.keys() and all(_same(one[key], two[key]) for key in one)
    return one == two


def _unfit(reason: str) -> StatusError:
    return StatusError(
        422, "Invalid", f"the server rejected our request due to an error in our request: {reason}"
    )


def _value(operation: Object) -> object:
    if "value" not in operation:
        raise bad_request(f"operation {operation.get('op')!r} of a JSON patch needs a value")
    return operation["value"]


def _pointer(operation: Object, field: str) -> list[str]:
    """Return the steps of a JSON pointer (RFC 6901)."""
    text = operation.get(field)
    if not isinstance(text, str) or (text and not text.startswith("/")):
        raise bad_request(f"{field!r} of a JSON patch operation must be a JSON pointer")
    return [step.replace("~1", "/").replace("~0", "~") for step in text.split("/")[1:]]


def _index(items: list[object], step: str, *, end: bool) -> int:
    """Return a position in a list; with `end` the position after the last item is valid (for
    "add").
    """
    if end and step == "-":
        return len(items)
    if not step.isascii() or not step.isdigit() or (len(step) > 1 and step.startswith("0")):
        raise _unfit(f"{step!r} is no list index")
    if len(step) > 9 or int(step) >= len(items) + int(end):
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


def _put(document: object, path: list[str], value: object, *, insert: bool) -> object:
    if not path:
        return value
    step, tail = path[0], path[1:]
    if isinstance(document, list):
        items = list(document)
        index = _index(items, step, end=insert and not tail)
        if tail:
            items[index] = _put(items[index], tail, value, insert=insert)
        else:
            items[index : index + (not insert)] = [value]
        return items
    if not isinstance(document, dict) or (tail and step not in document):
        raise _unfit(f"there is nothing at {step!r}")
    return {**document, step: _put(document.get(step), tail, value, insert=insert)}


def _remove(document: object, path: list[str]) -> object:
    _get(document, path)
    if not path:
        raise _unfit("the whole document cannot be removed")
    step, tail = path[0], path[1:]
    if isinstance(document, list):
        index = _index(document, step, end=False)
        replacement = [_remove(document[index], tail)] if tail else []
        return document[:index] + replacement + document[index + 1 :]
    assert isinstance(document, dict)  # noqa: S101  -- _get has walked the whole path
    if tail:
        return {**document, step: _remove(document[step], tail)}
    return {field: value for field, value in document.items() if field != step}


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
    """Return the object with a strategic merge patch applied.

    Raises StatusError: 400 for a patch of the wrong shape.
    """
    if not isinstance(patch, dict):
        raise bad_request("a strategic merge patch is an object")
    return _merge(target, patch, "")


def _merge(target: Object, patch: Object, parent: str) -> Object:
    match patch.get(DIRECTIVE):
        case None | "merge":
            merged = _retained(target, patch)
        case "replace":
            return {field: value for field, value in patch.items() if field != DIRECTIVE}
        case "delete":
            return {}
        case unknown:
            raise bad_request(f"unknown $patch directive {unknown!r}")
    for field, value in patch.items():
        if not field.startswith("$"):
            _merge_field(merged, field, value, patch, parent)
    _reorder_untouched(merged, patch, parent)
    for field in _directed(patch, DELETE):
        unwanted = _list(patch[DELETE + field], DELETE + field)
        merged[field] = [item for item in merged.get(field) or [] if item not in unwanted]
    return merged


def _directed(patch: Object, directive: str) -> list[str]:
    return [name.removeprefix(directive) for name in patch if name.startswith(directive)]


def _reorder_untouched(merged: Object, patch: Object, parent: str) -> None:
    """Order the lists for which the patch has only an order."""
    for field in _directed(patch, ORDER):
        if field not in patch and field in merged:
            _merge_field(merged, field, [], patch, parent)


def _retained(target: Object, patch: Object) -> Object:
    if RETAIN not in patch:
        return dict(target)
    retained_fields = _list(patch[RETAIN], RETAIN)
    return {field: value for field, value in target.items() if field in retained_fields}


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
    if any(_is_directive(item) and item.get(DIRECTIVE) == "replace" for item in _objects(patch)):
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
        while remaining and place in before and _earlier(before, identity(remaining[0]), place):
            result.append(remaining.pop(0))
        result.append(item)
    return result + remaining


def _earlier(order: list[object], one: object, two: object) -> bool:
    return one in order and order.index(one) < order.index(two)


def _is_directive(item: object) -> bool:
    return isinstance(item, dict) and DIRECTIVE in item and len(item) == 1


def _objects(items: list[object]) -> list[Object]:
    return [item for item in items if isinstance(item, dict)]


def _list(value: object, field: str) -> list[object]:
    if not isinstance(value, list):
        raise bad_request(f"{field} in a strategic merge patch must be a list")
    return value
