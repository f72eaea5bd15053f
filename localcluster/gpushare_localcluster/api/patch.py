"""Patches of JSON documents: merge patch (RFC 7386) and JSON patch (RFC 6902).

Pure: a patched document is a new value that shares unchanged parts; no argument is modified. Knows
nothing of Kubernetes kinds (`strategic.py` does).
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
