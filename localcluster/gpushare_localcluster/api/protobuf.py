"""Protobuf messages into JSON objects: the wire format, and how the parts of a message are read.

Knows no kind of object. A message is described by its fields' numbers; one that is not in the
description is refused, never left out.
"""

import base64
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from gpushare_localcluster.api.objects import Object
from gpushare_localcluster.api.records import timestamp

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_VARINT, _EIGHT_BYTES, _BYTES, _FOUR_BYTES = 0, 1, 2, 5
_LONGEST_VARINT = 10

Value = int | bytes
"""The value of a field as it is encoded: a number, or bytes that have a length."""
Read = Callable[[Value], object]


class ProtobufError(ValueError):
    """A body that is no such message."""


class UnknownKindError(ProtobufError):
    """A message of a kind, or with a field, that is not read here."""


def _fields(data: bytes) -> Iterator[tuple[int, Value]]:
    """Yield the fields of a message in their order: number and value."""
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
    """Return (the number there, where the next thing begins)."""
    number = 0
    for place, byte in enumerate(data[at : at + _LONGEST_VARINT]):
        number |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return number, at + place + 1
    raise ProtobufError("a number has no end")


def as_bytes(value: Value) -> bytes:
    """Return what has a length."""
    if isinstance(value, int):
        raise ProtobufError("a number stands where bytes should")
    return value


def as_text(value: Value) -> str:
    """Return a text."""
    return as_bytes(value).decode()


def as_base64(value: Value) -> str:
    """Return bytes as JSON has them."""
    return base64.b64encode(as_bytes(value)).decode()


def as_number(value: Value) -> int:
    """Return an int32 or int64."""
    if not isinstance(value, int):
        raise ProtobufError("bytes stand where a number should")
    low = value & (2**64 - 1)
    return low - 2**64 if low >= 2**63 else low


def as_flag(value: Value) -> bool:
    """Return a bool."""
    return as_number(value) != 0


def unless_zero(value: Value) -> int | None:
    """Return a number that JSON leaves out where it is 0."""
    return as_number(value) or None


def unless_false(value: Value) -> bool | None:
    """Return a bool that JSON leaves out where it is false."""
    return as_flag(value) or None


def as_quantity(value: Value) -> str:
    """Return a `resource.Quantity`."""
    return as_text(dict(_fields(as_bytes(value))).get(1, b""))


def _moment(value: Value) -> datetime | None:
    """Return the moment of a Time or MicroTime; None for an empty one."""
    parts = {number: as_number(part) for number, part in _fields(as_bytes(value))}
    if not parts:
        return None
    try:
        return _EPOCH + timedelta(seconds=parts.get(1, 0), microseconds=parts.get(2, 0) // 1000)
    except OverflowError as error:
        raise ProtobufError("a time is out of range") from error


def as_time(value: Value) -> str | None:
    """Return a `metav1.Time`, None if it is empty."""
    moment = _moment(value)
    return None if moment is None else timestamp(moment)


def as_micro_time(value: Value) -> str | None:
    """Return a `metav1.MicroTime`, None if it is empty."""
    moment = _moment(value)
    return None if moment is None else moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def as_int_or_text(value: Value) -> int | str:
    """Return an `intstr.IntOrString`."""
    parts = dict(_fields(as_bytes(value)))
    return as_text(parts.get(3, b"")) if parts.get(1) else as_number(parts.get(2, 0))


def skipped(value: Value) -> None:
    """Return nothing, for what the server sets itself."""
    del value


@dataclass(frozen=True, slots=True)
class Field:
    """How a field gets into an object. Texts, and others without a value, are left out if empty:
    client-go writes those too that JSON would leave out.
    """

    name: str
    read: Read = as_text

    def put(self, value: Value, into: Object) -> None:
        """Add what one occurrence of the field says."""
        found = self.read(value)
        if found not in (None, ""):
            into[self.name] = found


@dataclass(frozen=True, slots=True)
class Many(Field):
    """A field of a list, which comes once for each item."""

    def put(self, value: Value, into: Object) -> None:
        """Add an item."""
        into.setdefault(self.name, []).append(self.read(value))


@dataclass(frozen=True, slots=True)
class Inline(Field):
    """A message whose fields JSON has beside those around it."""

    def put(self, value: Value, into: Object) -> None:
        """Add the fields of the message."""
        found = self.read(value)
        into.update(found if isinstance(found, dict) else {})


@dataclass(frozen=True, slots=True)
class Map(Field):
    """A field of a map from text, which comes once for each entry."""

    def put(self, value: Value, into: Object) -> None:
        """Add an entry."""
        entry = dict(_fields(as_bytes(value)))
        into.setdefault(self.name, {})[as_text(entry.get(1, b""))] = self.read(entry.get(2, b""))


@dataclass(frozen=True, slots=True)
class Message:
    """A message by the numbers of its fields; a name alone is a text."""

    fields: Mapping[int, Field | str]

    def __call__(self, value: Value) -> Object:
        """Return the object that a message says. Raises ProtobufError."""
        found: Object = {}
        for number, part in _fields(as_bytes(value)):
            field = self.fields.get(number)
            if field is None:
                raise UnknownKindError(f"field {number} is not read from protobuf here")
            (Field(field) if isinstance(field, str) else field).put(part, found)
        return found
