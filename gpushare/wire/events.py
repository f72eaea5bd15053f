"""Events of events.k8s.io/v1: the path, the body of a new event, the patch of a series.

Knows the format and the API server's limits (k8s.io/kubernetes pkg/apis/core/validation/events.go:
note 1024 bytes, action, reason and instance 128; an event lies in the namespace of the regarded
object, of cluster-wide objects in "default"). Does not decide when to write an event. Standard
library only.
"""

import json
from dataclasses import dataclass
from datetime import UTC, datetime

from gpushare.wire.fields import MAX_NAME_LENGTH, NAME
from gpushare.wire.printable import printable

CONTROLLER = "gpushare-extender"
NOTE_LIMIT = 1024

_SHORT_LIMIT = 128
_UID_LIMIT = 128


@dataclass(frozen=True, slots=True)
class ObjectReference:
    """The object that an event is about; namespace "" for a cluster-wide object."""

    kind: str
    namespace: str
    name: str
    uid: str

    @property
    def event_namespace(self) -> str:
        """The namespace of the object's events."""
        return self.namespace or "default"

    @property
    def is_sound(self) -> bool:
        """Whether an object can have this name; any other could lead to another path."""
        names = (self.event_namespace, self.name)
        return len(self.uid) <= _UID_LIMIT and all(map(NAME.fullmatch, names))


def events_path(regarding: ObjectReference, name: str = "") -> str:
    """Return the path of the events about an object, or of the event of that name."""
    path = f"/apis/events.k8s.io/v1/namespaces/{regarding.event_namespace}/events"
    return f"{path}/{name}" if name else path


def event_name(regarding: ObjectReference, stamp: int) -> str:
    """Return a name no other event has: as client-go, the object's and the time (ns since the
    epoch).
    """
    end = f".{stamp:x}"
    return regarding.name[: MAX_NAME_LENGTH - len(end)].rstrip(".-") + end


def encode_event(
    name: str,
    regarding: ObjectReference,
    *,
    reason: str,
    action: str,
    note: str,
    warning: bool,
    stamp: int,
    instance: str,
    controller: str = CONTROLLER,
) -> bytes:
    """Return the body that creates an event.

    `note`: characters that a terminal would obey are escaped: texts of nodes and slices are among
    the notes. `stamp`: ns since the epoch. `instance`: the reporting process of the `controller`.
    """
    return json.dumps(
        {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": regarding.event_namespace},
            "eventTime": _micro_time(stamp),
            "reportingController": controller,
            "reportingInstance": _cut(instance, _SHORT_LIMIT) or controller,
            "action": action,
            "reason": reason,
            "regarding": {
                "apiVersion": "v1",
                "kind": regarding.kind,
                **({"namespace": regarding.namespace} if regarding.namespace else {}),
                "name": regarding.name,
                "uid": regarding.uid,
            },
            "note": _cut(printable(note), NOTE_LIMIT),
            "type": "Warning" if warning else "Normal",
        }
    ).encode()


def encode_series(count: int, stamp: int) -> bytes:
    """Return the merge patch with the count of an event (2 or more) and the time of the last."""
    series = {"count": count, "lastObservedTime": _micro_time(stamp)}
    return json.dumps({"series": series}).encode()


def _micro_time(stamp: int) -> str:
    """Return a MicroTime: always six digits, whole microseconds."""
    seconds, nanoseconds = divmod(stamp, 10**9)
    whole = datetime.fromtimestamp(seconds, UTC)
    return f"{whole:%Y-%m-%dT%H:%M:%S}.{nanoseconds // 1000:06d}Z"


def _cut(text: str, limit: int) -> str:
    """Return the text in at most `limit` bytes of UTF-8; a cut text ends with "..."."""
    data = text.encode("utf-8", "replace")
    if len(data) <= limit:
        return data.decode()
    return data[: limit - 3].decode("utf-8", "ignore") + "..."
