"""The API server as far as claims concern it: every version of each object, and what it refuses.

It keeps slices, claims and pods as JSON. Of a merge patch it checks what the real one was seen to
check (tests/e2e/test_claims.py), and drops without a word what the real one drops. It knows nothing
of faults: those are made on the way to it (world.py).
"""

import itertools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gpushare.errors import ApiConflict, ApiError, ApiNotFound
from gpushare.wire.dra.claims import FINALIZER
from gpushare.wire.dra.objects import CLAIMS_PODS, RESOURCE_CLAIMS, RESOURCE_SLICES

Json = dict[str, Any]

CLAIMS, SLICES, PODS = "resourceclaims", "resourceslices", "pods"
KINDS = (CLAIMS, SLICES, PODS)
NAMESPACE = "default"
_CODECS: Mapping[str, Any] = {CLAIMS: RESOURCE_CLAIMS, SLICES: RESOURCE_SLICES, PODS: CLAIMS_PODS}
_OBJECTS = {CLAIMS: "ResourceClaim", SLICES: "ResourceSlice", PODS: "Pod"}


@dataclass(frozen=True, slots=True)
class Event:
    """One version of an object, as a watch tells it."""

    kind: str
    object: Any
    """Decoded."""
    raw: Json


@dataclass
class Store:
    """All objects by kind and name, and the events of each kind since the beginning.

    committed: called with each version of a claim (before, after, whose write it was).
    """

    committed: Callable[[Json | None, Json | None, object], None] = lambda *_: None
    objects: dict[str, dict[str, Json]] = field(default_factory=lambda: {k: {} for k in KINDS})
    events: dict[str, list[Event]] = field(default_factory=lambda: {k: [] for k in KINDS})

    def __post_init__(self) -> None:
        self._versions = itertools.count(100)
        self._uids = itertools.count(1)

    # -- by whoever may do anything ---------------------------------------------------------------

    def create(self, kind: str, name: str, body: Json, *, meta: Json | None = None) -> Json:
        uid = f"{name}-{next(self._uids)}"
        metadata = {"name": name, "namespace": NAMESPACE, "uid": uid, **(meta or {})}
        return self._put(kind, {"kind": _OBJECTS[kind], "metadata": metadata, **body}, "ADDED")

    def update(self, kind: str, found: Json, writer: object = None) -> Json:
        """Write an object that was changed; a claim that nothing holds any more goes."""
        metadata = found["metadata"]
        if kind == CLAIMS and metadata.get("deletionTimestamp") and not _held(found):
            self._remove(kind, found)
            return found
        return self._put(kind, found, "MODIFIED", writer)

    def delete(self, kind: str, name: str) -> None:
        found = self.objects[kind].get(name)
        if found is None:
            return
        if kind == CLAIMS and _held(found):
            if not found["metadata"].get("deletionTimestamp"):
                self.update(kind, changed(found, {"metadata": {"deletionTimestamp": "now"}}))
        else:
            self._remove(kind, found)

    # -- by the allocator -------------------------------------------------------------------------

    def patch(self, name: str, patch: Json, part: str, writer: object) -> bytes:
        """Merge a patch into a claim, and return the answer. Raises ApiError as the client does."""
        found = self.objects[CLAIMS].get(name)
        if found is None:
            raise ApiNotFound("no such claim", 404)
        metadata, wanted = found["metadata"], patch.get("metadata", {})
        if wanted.get("uid", metadata["uid"]) != metadata["uid"]:
            raise ApiError("the uid is another one", 422)
        if (
            wanted.get("resourceVersion", metadata["resourceVersion"])
            != metadata["resourceVersion"]
        ):
            raise ApiConflict("another version", 409)
        if part == "/status":
            after = changed(found, {"status": patch.get("status", {})})
            _check_status(found.get("status", {}), after["status"])
        else:
            kept = {key: wanted[key] for key in ("finalizers", "annotations") if key in wanted}
            new = set(kept.get("finalizers", ())) - set(metadata.get("finalizers", ()))
            if metadata.get("deletionTimestamp") and new:
                raise ApiError("no finalizer can be added to what is being deleted", 422)
            after = changed(found, {"metadata": kept})
        if after != found:
            after = self.update(CLAIMS, after, writer)
        return json.dumps(after).encode()

    # -- under all --------------------------------------------------------------------------------

    def _put(self, kind: str, found: Json, event: str, writer: object = None) -> Json:
        version = {"metadata": {"resourceVersion": str(next(self._versions))}}
        name, found = found["metadata"]["name"], changed(found, version)
        before = self.objects[kind].get(name)
        self.objects[kind][name] = found
        self._tell(kind, event, found)
        if kind == CLAIMS:
            self.committed(before, found, writer)
        return found

    def _remove(self, kind: str, found: Json) -> None:
        name = found["metadata"]["name"]
        del self.objects[kind][name]
        version = {"metadata": {"resourceVersion": str(next(self._versions))}}
        self._tell(kind, "DELETED", changed(found, version))
        if kind == CLAIMS:
            self.committed(found, None, None)

    def _tell(self, kind: str, event: str, found: Json) -> None:
        # The watch for pods selects those without a node.
        if kind == PODS and found["spec"].get("nodeName"):
            event = "DELETED"
        decoded = _CODECS[kind].decode(json.dumps(found).encode())
        self.events[kind].append(Event(event, decoded, found))


def changed(found: Json, patch: Mapping[str, Any]) -> Json:
    """Return the object with a merge patch in it (RFC 7386); what it was stays as it is."""
    merged = dict(found)
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, Mapping):
            before = merged.get(key)
            merged[key] = changed(before if isinstance(before, dict) else {}, value)
        else:
            merged[key] = value
    return merged


def _held(claim: Json) -> bool:
    return FINALIZER in claim["metadata"].get("finalizers", ())


def _check_status(before: Json, after: Json) -> None:
    had, has = before.get("allocation"), after.get("allocation")
    if had and has and had != has:
        raise ApiError("status.allocation: field cannot be modified once set", 422)
    if after.get("reservedFor") and not has:
        raise ApiError("reservedFor may not be specified when `allocated` is not set", 422)
