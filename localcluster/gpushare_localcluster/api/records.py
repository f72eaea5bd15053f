"""One version of one object, and one step from a version to the next.

Knows identity, versions and JSON; nothing of where records are kept.
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
    """One version of one object. Immutable; its JSON is made once, for lists and watches."""

    __slots__ = ("_encoded", "body", "version")

    def __init__(self, body: Object, version: int) -> None:
        """Take an object that nobody changes any more."""
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
    """One step of the log: what the object is now and was before (None for a new one)."""

    type: ChangeType
    record: Record
    previous: Record | None

    @property
    def version(self) -> int:
        """The version that this change made."""
        return self.record.version


def identity(record: Record) -> Object:
    """Return what no write can change, and the version that the write starts from."""
    held = metadata(record.body)
    return {
        "uid": held.get("uid"),
        "creationTimestamp": held.get("creationTimestamp"),
        "resourceVersion": str(record.version),
    }
