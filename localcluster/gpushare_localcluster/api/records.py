"""Versions of objects and the changes between them.

Knows identity, versions and JSON; knows nothing of storage.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal, TypeAlias

from gpushare_localcluster.api.objects import Object, metadata, name_of, namespace_of, to_json

ChangeType: TypeAlias = Literal["ADDED", "MODIFIED", "DELETED"]
Key: TypeAlias = tuple[str, str]
"""Namespace (empty for cluster-wide objects) and name."""


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
