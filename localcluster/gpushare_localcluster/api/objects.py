"""Kubernetes objects as the API server holds them: decoded JSON, never changed in place.

Knows only where every object keeps its metadata. Whoever changes an object makes a new dict that
shares the unchanged parts with the old one, so that a stored version may be handed out uncopied.
"""

from typing import Any

import msgspec

Object = dict[str, Any]
"""One JSON object. Immutable by convention."""


def to_json(value: object) -> bytes:
    """Return compact JSON, in UTF-8."""
    return msgspec.json.encode(value)


def from_json(data: bytes) -> object:
    """Return what JSON says. Raises ValueError where it is none, or is nested too deeply."""
    try:
        found: object = msgspec.json.decode(data)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    return found


def metadata(body: Object) -> Object:
    """Return the object's metadata, empty if it has none."""
    found = body.get("metadata")
    return found if isinstance(found, dict) else {}


def name_of(body: Object) -> str:
    """Return `metadata.name`, or an empty string."""
    return str(metadata(body).get("name") or "")


def namespace_of(body: Object) -> str:
    """Return `metadata.namespace`, empty for cluster-wide objects."""
    return str(metadata(body).get("namespace") or "")


def section(body: Object, field: str) -> Object:
    """Return a field that holds an object (`spec`, `status`), empty if it is absent or null."""
    found = body.get(field)
    return found if isinstance(found, dict) else {}


def elements(body: Object, field: str) -> list[Object]:
    """Return a field that holds a list of objects, empty if it is absent or null."""
    found = body.get(field)
    return [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []


def with_fields(body: Object, **changes: object) -> Object:
    """Return the object with fields set; a field set to None is removed."""
    merged = {**body, **changes}
    return {field: value for field, value in merged.items() if value is not None}


def with_metadata(body: Object, **changes: object) -> Object:
    """Return the object with metadata fields set; a field set to None is removed."""
    return {**body, "metadata": with_fields(metadata(body), **changes)}
