"""The two forms of an Event, core/v1 (as stored) and events.k8s.io/v1, and their rules.

Pure. Fields are renamed both ways; fields with the same name in both forms stay. The rules are in
k8s.io/kubernetes pkg/apis/core/validation/events.go.
"""

from gpushare_localcluster.api.objects import Object, name_of, namespace_of, section
from gpushare_localcluster.api.status import StatusError, invalid
from gpushare_localcluster.api.validation import is_qualified

_LONGEST = {"reportingInstance": 128, "action": 128, "reason": 128}
_LONGEST_NOTE = 1024
_UNSET = ("firstTimestamp", "lastTimestamp", "count", "source")
_CHANGING = ("series", "metadata")

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
    """Return a stored event in the form of events.k8s.io/v1."""
    renamed = {_NEW_NAMES.get(field, field): value for field, value in event.items()}
    return {**renamed, "apiVersion": "events.k8s.io/v1"}


def to_core(event: Object) -> Object:
    """Return an events.k8s.io/v1 event in stored form."""
    renamed = {_CORE_NAMES.get(field, field): value for field, value in event.items()}
    return {**renamed, "apiVersion": "v1"}


def core_field(path: str) -> str:
    """Return the stored path of a field selector on the events.k8s.io view."""
    head, dot, tail = path.partition(".")
    return _CORE_NAMES.get(head, head) + dot + tail


def check(event: Object, before: Object | None, *, strict: bool) -> None:
    """Refuse an event in stored form that breaks a rule; `before` is the old event (None: a new
    one).

    `strict` is for events sent as events.k8s.io/v1. An event sent as core/v1 needs the right
    namespace, and all fields if it has an eventTime.

    Raises StatusError: 422.
    """
    home = namespace_of(event)
    about = str(section(event, "involvedObject").get("namespace") or "")
    if event.get("eventTime"):
        _check_parts(event)
        belongs = bool(about) or home in ("default", "kube-system")
    else:
        belongs = home == (about or "default")
    if not belongs:
        raise _wrong(event, "involvedObject.namespace", "does not match event.namespace")
    if not strict:
        return
    _check_series(event)
    if before is None:
        _check_new(event)
    elif changed_fields := _changed(event, before):
        raise _wrong(event, changed_fields[0], "field is immutable")


def _check_parts(event: Object) -> None:
    if not is_qualified(str(event.get("reportingComponent") or "")):
        raise _wrong(event, "reportingController", "is no qualified name")
    for field, longest in _LONGEST.items():
        if not 0 < _size(event, field) <= longest:
            raise _wrong(event, field, f"is required, and can have at most {longest} characters")
    if _size(event, "message") > _LONGEST_NOTE:
        raise _wrong(event, "message", f"can have at most {_LONGEST_NOTE} characters")


def _check_new(event: Object) -> None:
    if not event.get("eventTime"):
        raise _wrong(event, "eventTime", "Required value")
    if event.get("type") not in ("Normal", "Warning"):
        raise _wrong(event, "type", f"has invalid value: {event.get('type')}")
    for field in _UNSET:
        if event.get(field):
            raise _wrong(event, field, "needs to be unset")


def _check_series(event: Object) -> None:
    series = section(event, "series")
    if series and not (_whole(series.get("count")) >= 2 and series.get("lastObservedTime")):
        raise _wrong(event, "series", "needs a count of at least 2 and a lastObservedTime")


def _changed(event: Object, before: Object) -> list[str]:
    fields = sorted((event.keys() | before.keys()) - set(_CHANGING))
    return [field for field in fields if (event.get(field) or None) != (before.get(field) or None)]


def _size(event: Object, field: str) -> int:
    return len(str(event.get(field) or "").encode("utf-8", "replace"))


def _whole(value: object) -> int:
    return value if isinstance(value, int) else 0


def _wrong(event: Object, field: str, reason: str) -> StatusError:
    return invalid("Event", name_of(event), field, reason)
