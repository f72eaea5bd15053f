"""The two views of an Event: core/v1 (as stored) and events.k8s.io/v1.

Pure renaming of fields, both ways; whatever has the same name in both passes through.
"""

from gpushare.localcluster.api.objects import Object

_NEW_NAMES = {
    "involvedObject": "regarding",
    "message": "note",
    "firstTimestamp": "deprecatedFirstTimestamp",
    "lastTimestamp": "deprecatedLastTimestamp",
    "count": "deprecatedCount",
    "source": "deprecatedSource",
    "reportingComponent": "reportingController",
}
_CORE_NAMES = {new: core for core, new in _NEW_NAMES.items()}


def to_new(event: Object) -> Object:
    """Return a stored event as events.k8s.io/v1 shows it."""
    renamed = {_NEW_NAMES.get(field, field): value for field, value in event.items()}
    return {**renamed, "apiVersion": "events.k8s.io/v1"}


def to_core(event: Object) -> Object:
    """Return an events.k8s.io/v1 event as it is stored."""
    renamed = {_CORE_NAMES.get(field, field): value for field, value in event.items()}
    return {**renamed, "apiVersion": "v1"}


def core_field(path: str) -> str:
    """Return the stored path of a field selector on the events.k8s.io view."""
    head, dot, rest = path.partition(".")
    return _CORE_NAMES.get(head, head) + dot + rest
