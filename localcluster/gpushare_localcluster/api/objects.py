"""Kubernetes objects as the API server holds them: decoded JSON, never changed in place.

Knows the place of metadata in an object, versions of objects, and the changes between them. A
change makes a new dict that shares the unchanged parts with the old one, so stored objects need no
copy.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, TypeAlias

import msgspec

Object = dict[str, Any]
"""One JSON object. Immutable by convention."""

ChangeType: TypeAlias = Literal["ADDED", "MODIFIED", "DELETED"]
Key: TypeAlias = tuple[str, str]
"""Namespace (empty for cluster-wide objects) and name."""


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


def timestamp(moment: datetime | None = None) -> str:
    """Return a moment, or now, as `metav1.Time` writes it: RFC 3339, UTC, whole seconds."""
    return (moment or datetime.now(UTC)).astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Record:
    """One version of one object. Immutable; encoded once, for lists and watches."""

    __slots__ = ("_encoded", "body", "version")

    def __init__(self, body: Object, version: int) -> None:
        """Keep an object that never changes again."""
        self.body = body
        self.version = version
        self._encoded: bytes | None = None

    @property
    def key(self) -> Key:
        """Namespace and name."""
        return namespace_of(self.body), name_of(self.body)

    def encoded(self) -> bytes:
        """Return the object as compact JSON."""
        if self._encoded is None:
            self._encoded = to_json(self.body)
        return self._encoded


@dataclass(frozen=True, slots=True)
class Change:
    """A change in the log: the new version of the object and the old one (None: it was created)."""

    type: ChangeType
    record: Record
    previous: Record | None

    @property
    def version(self) -> int:
        """The version made by this change."""
        return self.record.version


def identity(record: Record) -> Object:
    """Return the immutable metadata, and the version before a write."""
    meta = metadata(record.body)
    return {
        "uid": meta.get("uid"),
        "creationTimestamp": meta.get("creationTimestamp"),
        "resourceVersion": str(record.version),
    }
