"""Bodies in protobuf, in which kubectl and kube-scheduler send what they create: read into JSON.

Knows the wire format, Kubernetes' envelope ("k8s" and a zero byte, then a message that holds the
name of the kind and the object's own message), and the kinds below: those for which such clients
use it here. Field numbers are those of generated.proto in k8s.io/api and apimachinery 0.37; they
never change. What is not in the tables is refused, never left out. Answers are JSON, which every
such client accepts besides.
"""

import base64
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from gpushare.localcluster.api.objects import Object

MEDIA_TYPE = "application/vnd.kubernetes.protobuf"

_MAGIC = b"k8s\x00"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_VARINT, _EIGHT_BYTES, _BYTES, _FOUR_BYTES = 0, 1, 2, 5
_LONGEST_VARINT = 10

Value = int | bytes
Read = Callable[[Value], object]


class ProtobufError(ValueError):
    """A body that is no such message."""


class UnknownKindError(ProtobufError):
    """A message of a kind, or with a field, that is not read here."""


def decode(body: bytes) -> Object:
    """Return the object that a body holds. Raises ProtobufError."""
    if not body.startswith(_MAGIC):
        raise ProtobufError("it does not begin with Kubernetes' magic bytes")
    envelope = _UNKNOWN(body[len(_MAGIC) :])
    head = {"apiVersion": "", "kind": "", **envelope.get("typeMeta", {})}
    name = f"{head['apiVersion']} {head['kind']}"
    message = _KINDS.get(name) or _KINDS.get(head["kind"])
    if message is None:
        raise UnknownKindError(f"{name.strip() or 'no kind'} is not read from protobuf here")
    return {**head, **message(envelope.get("raw", b""))}


def _fields(data: bytes) -> Iterator[tuple[int, Value]]:
    """The fields of a message in their order: number and value."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, wire = tag >> 3, tag & 7
        if wire == _VARINT:
            value: Value
            value, at = _varint(data, at)
        elif wire in (_BYTES, _EIGHT_BYTES, _FOUR_BYTES):
            size = 8 if wire == _EIGHT_BYTES else 4
            if wire == _BYTES:
                size, at = _varint(data, at)
            if size > len(data) - at:
                raise ProtobufError(f"field {number} ends behind the end")
            value, at = data[at : at + size], at + size
        else:
            raise ProtobufError(f"field {number} has the wire type {wire}")
        yield number, value


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """(the number there, where the next thing begins)."""
    number = 0
    for place, byte in enumerate(data[at : at + _LONGEST_VARINT]):
        number |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return number, at + place + 1
    raise ProtobufError("a number has no end")


def _bytes(value: Value) -> bytes:
    if isinstance(value, int):
        raise ProtobufError("a number stands where bytes should")
    return value


def _text(value: Value) -> str:
    return _bytes(value).decode()


def _base64(value: Value) -> str:
    return base64.b64encode(_bytes(value)).decode()


def _number(value: Value) -> int:
    if not isinstance(value, int):
        raise ProtobufError("bytes stand where a number should")
    low = value & (2**64 - 1)
    return low - 2**64 if low >= 2**63 else low


def _flag(value: Value) -> bool:
    return _number(value) != 0


def _moment(value: Value) -> datetime | None:
    """The moment of a Time or MicroTime; an empty one is none."""
    parts = {number: _number(part) for number, part in _fields(_bytes(value))}
    if not parts:
        return None
    try:
        return _EPOCH + timedelta(seconds=parts.get(1, 0), microseconds=parts.get(2, 0) // 1000)
    except OverflowError as error:
        raise ProtobufError("a time is out of range") from error


def _time(value: Value) -> str | None:
    moment = _moment(value)
    return None if moment is None else moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def _micro_time(value: Value) -> str | None:
    moment = _moment(value)
    return None if moment is None else moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _int_or_text(value: Value) -> int | str:
    parts = dict(_fields(_bytes(value)))
    return _text(parts.get(3, b"")) if parts.get(1) else _number(parts.get(2, 0))


def _skipped(value: Value) -> None:
    """What the server sets itself."""
    del value


@dataclass(frozen=True, slots=True)
class _Field:
    """How a field gets into an object. Texts, and others without a value, are left out if empty:
    client-go writes those too that JSON would leave out.
    """

    name: str
    read: Read = _text

    def put(self, value: Value, into: Object) -> None:
        found = self.read(value)
        if found not in (None, ""):
            into[self.name] = found


@dataclass(frozen=True, slots=True)
class _Many(_Field):
    """A field of a list, which comes once for each item."""

    def put(self, value: Value, into: Object) -> None:
        into.setdefault(self.name, []).append(self.read(value))


@dataclass(frozen=True, slots=True)
class _Map(_Field):
    """A field of a map from text, which comes once for each entry."""

    def put(self, value: Value, into: Object) -> None:
        entry = dict(_fields(_bytes(value)))
        into.setdefault(self.name, {})[_text(entry.get(1, b""))] = self.read(entry.get(2, b""))


@dataclass(frozen=True, slots=True)
class _Message:
    """A message by the numbers of its fields; a name alone is a text."""

    fields: Mapping[int, _Field | str]

    def __call__(self, value: Value) -> Object:
        found: Object = {}
        for number, part in _fields(_bytes(value)):
            field = self.fields.get(number)
            if field is None:
                raise UnknownKindError(f"field {number} is not read from protobuf here")
            (_Field(field) if isinstance(field, str) else field).put(part, found)
        return found


_UNKNOWN = _Message(
    {
        1: _Field("typeMeta", _Message({1: "apiVersion", 2: "kind"})),
        2: _Field("raw", _bytes),
        3: "contentEncoding",
        4: "contentType",
    }
)
_OWNER = _Message(
    {
        1: "kind",
        3: "name",
        4: "uid",
        5: "apiVersion",
        6: _Field("controller", _flag),
        7: _Field("blockOwnerDeletion", _flag),
    }
)
_META = _Field(
    "metadata",
    _Message(
        {
            1: "name",
            2: "generateName",
            3: "namespace",
            4: _Field("selfLink", _skipped),
            5: "uid",
            6: "resourceVersion",
            7: _Field("generation", _skipped),
            8: _Field("creationTimestamp", _time),
            9: _Field("deletionTimestamp", _time),
            10: _Field("deletionGracePeriodSeconds", _number),
            11: _Map("labels"),
            12: _Map("annotations"),
            13: _Many("ownerReferences", _OWNER),
            14: _Many("finalizers"),
            17: _Field("managedFields", _skipped),
        }
    ),
)
_REFERENCE = _Message(
    {
        1: "kind",
        2: "namespace",
        3: "name",
        4: "uid",
        5: "apiVersion",
        6: "resourceVersion",
        7: "fieldPath",
    }
)
_REQUIREMENT = _Message({1: "key", 2: "operator", 3: _Many("values")})
_SELECTOR = _Message({1: _Map("matchLabels"), 2: _Many("matchExpressions", _REQUIREMENT)})
_ATTRIBUTE_SELECTOR = _Message({1: "rawSelector", 2: _Many("requirements", _REQUIREMENT)})
_DELETE_OPTIONS = _Message(
    {
        1: _Field("gracePeriodSeconds", _number),
        2: _Field("preconditions", _Message({1: "uid", 2: "resourceVersion"})),
        3: _Field("orphanDependents", _flag),
        4: "propagationPolicy",
        5: _Many("dryRun"),
        6: _Field("ignoreStoreReadErrorWithClusterBreakingPotential", _flag),
    }
)
_STATUS = _Field("status", _skipped)

_KINDS: Mapping[str, _Message] = {
    "DeleteOptions": _DELETE_OPTIONS,
    "v1 Binding": _Message({1: _META, 2: _Field("target", _REFERENCE)}),
    "v1 ConfigMap": _Message(
        {1: _META, 2: _Map("data"), 3: _Map("binaryData", _base64), 4: _Field("immutable", _flag)}
    ),
    "v1 Namespace": _Message(
        {1: _META, 2: _Field("spec", _Message({1: _Many("finalizers")})), 3: _STATUS}
    ),
    "v1 Secret": _Message(
        {
            1: _META,
            2: _Map("data", _base64),
            3: "type",
            4: _Map("stringData"),
            5: _Field("immutable", _flag),
        }
    ),
    "v1 ServiceAccount": _Message(
        {
            1: _META,
            2: _Many("secrets", _REFERENCE),
            3: _Many("imagePullSecrets", _Message({1: "name"})),
            4: _Field("automountServiceAccountToken", _flag),
        }
    ),
    "authorization.k8s.io/v1 SelfSubjectAccessReview": _Message(
        {
            1: _META,
            2: _Field(
                "spec",
                _Message(
                    {
                        1: _Field(
                            "resourceAttributes",
                            _Message(
                                {
                                    1: "namespace",
                                    2: "verb",
                                    3: "group",
                                    4: "version",
                                    5: "resource",
                                    6: "subresource",
                                    7: "name",
                                    8: _Field("fieldSelector", _ATTRIBUTE_SELECTOR),
                                    9: _Field("labelSelector", _ATTRIBUTE_SELECTOR),
                                }
                            ),
                        ),
                        2: _Field("nonResourceAttributes", _Message({1: "path", 2: "verb"})),
                    }
                ),
            ),
            3: _STATUS,
        }
    ),
    "coordination.k8s.io/v1 Lease": _Message(
        {
            1: _META,
            2: _Field(
                "spec",
                _Message(
                    {
                        1: "holderIdentity",
                        2: _Field("leaseDurationSeconds", _number),
                        3: _Field("acquireTime", _micro_time),
                        4: _Field("renewTime", _micro_time),
                        5: _Field("leaseTransitions", _number),
                        6: "strategy",
                        7: "preferredHolder",
                    }
                ),
            ),
        }
    ),
    "events.k8s.io/v1 Event": _Message(
        {
            1: _META,
            2: _Field("eventTime", _micro_time),
            3: _Field(
                "series",
                _Message({1: _Field("count", _number), 2: _Field("lastObservedTime", _micro_time)}),
            ),
            4: "reportingController",
            5: "reportingInstance",
            6: "action",
            7: "reason",
            8: _Field("regarding", _REFERENCE),
            9: _Field("related", _REFERENCE),
            10: "note",
            11: "type",
            12: _Field("deprecatedSource", _Message({1: "component", 2: "host"})),
            13: _Field("deprecatedFirstTimestamp", _time),
            14: _Field("deprecatedLastTimestamp", _time),
            15: _Field("deprecatedCount", _number),
        }
    ),
    "policy/v1 Eviction": _Message({1: _META, 2: _Field("deleteOptions", _DELETE_OPTIONS)}),
    "policy/v1 PodDisruptionBudget": _Message(
        {
            1: _META,
            2: _Field(
                "spec",
                _Message(
                    {
                        1: _Field("minAvailable", _int_or_text),
                        2: _Field("selector", _SELECTOR),
                        3: _Field("maxUnavailable", _int_or_text),
                        4: "unhealthyPodEvictionPolicy",
                    }
                ),
            ),
            3: _STATUS,
        }
    ),
    "scheduling.k8s.io/v1 PriorityClass": _Message(
        {
            1: _META,
            2: _Field("value", _number),
            3: _Field("globalDefault", _flag),
            4: "description",
            5: "preemptionPolicy",
        }
    ),
}
