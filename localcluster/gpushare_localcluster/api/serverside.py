"""Server-side apply: merging a configuration by the owners of fields.

Pure. A field manager owns the fields of its last configuration; a field that it leaves out next
time is removed, unless another manager owns it too. Other writes own nothing here. The form of
`managedFields` is FieldsV1: `f:NAME` a field, `k:{...}` an item of a list by its merge key, `v:...`
one of a set, `.` the item itself. Facts: sigs.k8s.io/structured-merge-diff.
"""

import json
from collections.abc import Iterator

from gpushare_localcluster.api.objects import Object, elements, metadata, with_metadata
from gpushare_localcluster.api.resources import Resource
from gpushare_localcluster.api.status import StatusError, bad_request
from gpushare_localcluster.api.strategic import SETS, merge_key, strategic_merge

_UNOWNED = ("apiVersion", "kind")
_UNOWNED_METADATA = (
    *("name", "namespace", "generateName", "uid", "resourceVersion", "generation"),
    *("creationTimestamp", "deletionTimestamp", "selfLink", "managedFields"),
)
_FORM = "FieldsV1"
_SELF = "."

Path = tuple[str, ...]


def applied(
    resource: Resource, live: Object, config: Object, manager: str, now: str, *, force: bool
) -> Object:
    """Return the object after an apply; `live` is empty for one that is not there yet.

    Raises StatusError: 400 for a configuration that brings its own managedFields, 409 where another
    manager owns a field and it says something else, unless forced.
    """
    if metadata(config).get("managedFields"):
        raise bad_request("metadata.managedFields must be nil")
    if resource.status:
        config = {field: value for field, value in config.items() if field != "status"}
    owned = _owned(config)
    entries = elements(metadata(live), "managedFields")
    own = next((entry for entry in entries if _is_of(entry, manager)), {})
    others = [dict(entry) for entry in entries if entry is not own]
    taken = {
        str(entry["manager"]): paths
        for entry in others
        if (paths := _contested(owned, entry["fieldsV1"], live, config))
    }
    if taken and not force:
        raise _conflict(taken)
    gone = _less(own.get("fieldsV1") or {}, owned)
    for entry in others:
        gone = _less(gone, entry["fieldsV1"])
        for path in taken.get(str(entry["manager"]), ()):
            entry["fieldsV1"] = _disowned(entry["fieldsV1"], path)
    if own.get("fieldsV1") != owned:
        said = {"manager": manager, "operation": "Apply", "apiVersion": resource.api_version}
        own = {**said, "time": now, "fieldsType": _FORM, "fieldsV1": owned}
    kept = [entry for entry in others if entry["fieldsV1"]]
    left = _without(live, gone, "", "")
    merged = strategic_merge(left if isinstance(left, dict) else {}, config)
    return with_metadata(merged, managedFields=[*kept, own])


def _is_of(entry: Object, manager: str) -> bool:
    return (entry.get("manager"), entry.get("operation")) == (manager, "Apply")


def _owned(config: Object) -> Object:
    """Return the fields that a configuration contains."""
    said = {field: value for field, value in config.items() if field not in _UNOWNED}
    meta = {f: value for f, value in metadata(config).items() if f not in _UNOWNED_METADATA}
    owned = _fields({**said, "metadata": meta}, "", "")
    if not owned["f:metadata"]:
        del owned["f:metadata"]
    return owned


def _fields(value: object, parent: str, field: str) -> Object:
    """Return the fields below a value; empty for one that is owned as a whole."""
    if isinstance(value, dict):
        return {f"f:{name}": _fields(part, field, name) for name, part in value.items()}
    key = merge_key(parent, field)
    if isinstance(value, list) and field in SETS:
        return {f"v:{_text(item)}": {} for item in value}
    if isinstance(value, list) and key and all(isinstance(item, dict) for item in value):
        return {_item(item, key): {_SELF: {}, **_fields(item, parent, field)} for item in value}
    return {}


def _text(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def _item(item: Object, key: str) -> str:
    return f"k:{_text({key: item.get(key)})}"


def _less(fields: Object, others: Object) -> Object:
    """Return the fields that the others do not have."""
    left: Object = {}
    for name, below in fields.items():
        rest = _less(below, others[name]) if name in others else below
        if rest or name not in others:
            left[name] = rest
    return left


def _common(left: Object, right: Object) -> Iterator[Path]:
    """Yield the paths of the fields in both."""
    for name in left.keys() & right.keys() - {_SELF}:
        if left[name] and right[name]:
            yield from ((name, *path) for path in _common(left[name], right[name]))
        else:
            yield (name,)


def _contested(owned: Object, other: Object, live: Object, config: Object) -> list[Path]:
    """Return the paths of fields that another manager owns, and that would change."""
    paths = sorted(_common(owned, other))
    # 2 and "2" are one quantity.
    return [path for path in paths if str(_at(live, path)) != str(_at(config, path))]


def _at(body: Object, path: Path) -> object:
    value: object = body
    for step in path:
        if isinstance(value, dict):
            value = value.get(step[2:])
        elif isinstance(value, list):
            value = next((item for item in value if _fits(item, step)), None)
    return value


def _fits(item: object, step: str) -> bool:
    """Return whether a step of a path names this item of a list."""
    wanted = json.loads(step[2:])
    if step.startswith("v:"):
        return bool(item == wanted)
    return isinstance(item, dict) and wanted.items() <= item.items()


def _disowned(fields: Object, path: Path) -> Object:
    """Return the fields without one."""
    below = _disowned(fields[path[0]], path[1:]) if path[1:] else {}
    others = {name: value for name, value in fields.items() if name != path[0]}
    return {**others, path[0]: below} if below else others


def _without(value: object, gone: Object, parent: str, field: str) -> object:
    """Return the value without the fields that have lost their last owner."""
    if isinstance(value, dict):
        kept = dict(value)
        for step, below in gone.items():
            name = step[2:]
            if step != _SELF and name in kept:
                rest = _without(kept[name], below, field, name) if below else None
                kept[name] = rest or None  # what has become empty goes, too
        return {name: part for name, part in kept.items() if part is not None}
    if isinstance(value, list):
        left = [_item_without(item, gone, parent, field) for item in value]
        return [item for item in left if item is not None]
    return value


def _item_without(item: object, gone: Object, parent: str, field: str) -> object:
    """Return the item of a list without what is gone of it, None where it is gone itself."""
    step = next((step for step in gone if _fits(item, step)), None)
    if step is None:
        return item
    if step.startswith("v:") or _SELF in gone[step]:
        return None
    return _without(item, gone[step], parent, field)


def _conflict(taken: dict[str, list[Path]]) -> StatusError:
    causes = [
        {
            "reason": "FieldManagerConflict",
            "message": f'conflict with "{manager}"',
            "field": _shown(path),
        }
        for manager, paths in taken.items()
        for path in paths
    ]
    many = "conflict" if len(causes) == 1 else "conflicts"
    told = "; ".join(f"{cause['message']}: {cause['field']}" for cause in causes)
    why = f"Apply failed with {len(causes)} {many}: {told}"
    return StatusError(409, "Conflict", why, details={"causes": causes})


def _shown(path: Path) -> str:
    """Return a path as users read it: `.spec.containers[name="main"].image`."""
    text = ""
    for step in path:
        if step.startswith("f:"):
            text += f".{step[2:]}"
        elif step.startswith("v:"):
            text += f"[={step[2:]}]"
        else:
            ((key, value),) = json.loads(step[2:]).items()
            text += f"[{key}={_text(value)}]"
    return text
