"""Protobuf messages to JSON objects, by a schema of plain texts.

Knows the wire format and no kind of object. A field that the schema lacks is refused, never left
out.
"""

import base64
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from gpushare_localcluster.api.objects import Object
from gpushare_localcluster.api.records import timestamp

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_VARINT, _EIGHT_BYTES, _BYTES, _FOUR_BYTES = 0, 1, 2, 5
_MAX_VARINT_BYTES = 10

Value = int | bytes
"""An encoded field: a number, or the bytes of anything that has a length."""


class ProtobufError(ValueError):
    """A body that is no such message."""


class UnknownKindError(ProtobufError):
    """A message of a kind, or with a field, that the schema lacks."""


class _Field(NamedTuple):
    """A field of a message. form: "" for one value, `[` for a list, `{` for a map from text."""

    name: str
    type: str
    form: str


_FIELD = re.compile(
    r"(?P<number>\d+) (?P<name>[\w*]+)(?:=(?P<one>\w+)|\[(?P<list>\w*)\]|\{(?P<map>\w*)\})?"
)


class Schema:
    """The messages of a format.

    Each message is a text such as `1 name, 2 data{}, 3 binaryData{base64}, 4 tags[], 5 size=number,
    6 spec=Spec`: the number and the name of each field, then its type: that of one value (`=`), of
    the items of a list (`[]`) or of the values of a map from text (`{}`). A type is a message of
    the schema or a key of `_SCALARS`; without one the field is text. The fields of a message named
    `*` join those around it.
    """

    def __init__(self, messages: Mapping[str, str]) -> None:
        self._messages = {name: _fields_of(text) for name, text in messages.items()}

    def __contains__(self, name: object) -> bool:
        """Return whether the schema has the message."""
        return name in self._messages

    def read(self, name: str, data: bytes) -> Object:
        """Return the object that a message describes. Raises ProtobufError.

        Empty texts are left out: client-go writes fields that JSON would leave out.
        """
        item: Object = {}
        for number, value in _values(data):
            field = self._messages[name].get(number)
            if field is None:
                raise UnknownKindError(f"field {number} is not read from protobuf here")
            if field.form == "{":
                entry = dict(_values(_bytes(value)))
                key, encoded = _text(entry.get(1, b"")), entry.get(2, b"")
                item.setdefault(field.name, {})[key] = self._read(field.type, encoded)
                continue
            content = self._read(field.type, value)
            if field.form == "[":
                item.setdefault(field.name, []).append(content)
            elif field.name == "*" and isinstance(content, dict):
                item.update(content)
            elif content not in (None, ""):
                item[field.name] = content
        return item

    def _read(self, kind: str, value: Value) -> object:
        if kind in self._messages:
            return self.read(kind, _bytes(value))
        return _SCALARS[kind](value)


def _fields_of(text: str) -> dict[int, _Field]:
    fields: dict[int, _Field] = {}
    for match in _FIELD.finditer(text):
        form = "[" if match["list"] is not None else "{" if match["map"] is not None else ""
        kind = match["one"] or match["list"] or match["map"] or "text"
        fields[int(match["number"])] = _Field(match["name"], kind, form)
    return fields


def _values(data: bytes) -> Iterator[tuple[int, Value]]:
    """Yield the number and the value of each field of a message, in order."""
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
    """Return (the number at this offset, the offset behind it)."""
    number = 0
    for place, byte in enumerate(data[at : at + _MAX_VARINT_BYTES]):
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
    """Return an int32 or int64."""
    if not isinstance(value, int):
        raise ProtobufError("bytes stand where a number should")
    low = value & (2**64 - 1)
    return low - 2**64 if low >= 2**63 else low


def _quantity(value: Value) -> str:
    """Return a `resource.Quantity`."""
    return _text(dict(_values(_bytes(value))).get(1, b""))


def _time(value: Value) -> str | None:
    """Return a `metav1.Time`, None for an empty one."""
    parts = {number: _number(part) for number, part in _values(_bytes(value))}
    if not parts:
        return None
    try:
        return timestamp(_EPOCH + timedelta(seconds=parts.get(1, 0)))
    except OverflowError as error:
        raise ProtobufError("a time is out of range") from error


def _int_or_text(value: Value) -> int | str:
    """Return an `intstr.IntOrString`."""
    parts = dict(_values(_bytes(value)))
    return _text(parts.get(3, b"")) if parts.get(1) else _number(parts.get(2, 0))


_SCALARS: dict[str, Callable[[Value], object]] = {
    "base64": _base64,
    "bytes": _bytes,
    "flag": lambda value: _number(value) != 0,
    "intOrText": _int_or_text,
    "number": _number,
    "quantity": _quantity,
    "serverSet": lambda _value: None,
    "text": _text,
    "time": _time,
    "unlessFalse": lambda value: _number(value) != 0 or None,
    "unlessZero": lambda value: _number(value) or None,
}
"""Types without fields. `serverSet` drops the value, `unless...` drops one that JSON leaves out."""
