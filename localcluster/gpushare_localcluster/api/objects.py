"""Kubernetes objects as the API server holds them: decoded JSON, never changed in place.

Knows the place of metadata in an object. A change makes a new dict that shares the unchanged parts
with the old one, so stored objects need no copy.
"""

from typing import Any

import msgspec

Object = dict[str, Any]
"""One JSON object. Immutable by convention."""


def to_json(value: object) -> bytes:
    """Return compact JSON, in UTF-8."""
    return msgspec.json.encode(value)


def from_json(data: bytes) -> object:
    """Return the value of a JSON text. Raises ValueError for malformed JSON."""
    try:
        value: object = msgspec.json.decode(data)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    return value


def metadata(body: Object) -> Object:
    """Return the object's metadata, or {}."""
    value = body.get("metadata")
    return value if isinstance(value, dict) else {}


def name_of(body: Object) -> str:
    """Return `metadata.name`, or an empty string."""
    return str(metadata(body).get("name") or "")


def namespace_of(body: Object) -> str:
    """Return `metadata.namespace`, empty for cluster-wide objects."""
    return str(metadata(body).get("namespace") or "")


def section(body: Object, field: str) -> Object:
    """Return an object in a field (`spec`, `status`), {} for an absent or null field."""
    value = body.get(field)
    return value if isinstance(value, dict) else {}


def elements(body: Object, field: str) -> list[Object]:
    """Return the list of objects in a field, [] for an absent or null field."""
    value = body.get(field)
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def with_fields(body: Object, **changes: object) -> Object:
    """Return the object with fields set; a field set to None is removed."""
    merged = {**body, **changes}
    return {field: value for field, value in merged.items() if value is not None}


def with_metadata(body: Object, **changes: object) -> Object:
    """Return the object with metadata fields set; a field set to None is removed."""
    return {**body, "metadata": with_fields(metadata(body), **changes)}
