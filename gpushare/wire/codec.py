"""Decode lists, watch events and answers of the API server, for any kind of object.

Knows the JSON of List, WatchEvent and Status, and the name of an object; the structs of
the kinds are in objects.py.

Typed decoding of a page of pods costs a twentieth of building dicts and, since the structs are not
tracked by the cyclic garbage collector, does not stall the process. One unreadable object must not
hide the others: if a list does not decode as a whole, the items are decoded one by one and the
unreadable ones are named.
"""

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.json import Decoder

from gpushare.core.model import PodRef
from gpushare.errors import MessageError

_T = TypeVar("_T")
_U = TypeVar("_U")
_Item = TypeVar("_Item")


class _ListMeta(Struct, gc=False, rename="camel"):
    resource_version: str | None = None
    continue_: str | None = msgspec.field(default=None, name="continue")


class _ListBody(Struct, Generic[_T], gc=False):
    kind: str | None = None
    metadata: _ListMeta | None = None
    items: list[_T] | UnsetType | None = UNSET


class _Identity(Struct, gc=False, rename="camel"):
    """The metadata that identify an object, without fields that might not decode."""

    name: str | None = None
    namespace: str | None = None
    uid: str | None = None
    resource_version: str | None = None


class _Identified(Struct, gc=False):
    kind: str | None = None
    metadata: _Identity | None = None


class _RawWatchEvent(Struct, gc=False):
    type: str
    object: Raw = Raw(b"null")


class _Status(Struct, gc=False):
    code: int | None = None
    message: str | None = None


@dataclass(frozen=True, slots=True)
class UnreadableObject:
    """An object that could not be decoded: the readable part of the name, and the error."""

    ref: PodRef
    error: str

    def __str__(self) -> str:
        return f"{self.ref}: {self.error}"


@dataclass(frozen=True, slots=True)
class Decoded(Generic[_T]):
    """A page of a list: the decoded objects, the resourceVersion, and the unreadable objects."""

    items: Sequence[_T]
    resource_version: str
    continue_token: str = ""
    bad: tuple[UnreadableObject, ...] = ()

    def with_items(self, items: Sequence[_U]) -> "Decoded[_U]":
        """Return the page with these items in place of the objects."""
        return Decoded(items, self.resource_version, self.continue_token, self.bad)


@dataclass(frozen=True, slots=True)
class WatchEvent(Generic[_T]):
    """One watch event."""

    kind: str
    """ADDED, MODIFIED, DELETED (then `object`, or `bad` if the object did not decode), BOOKMARK
    (only resource_version), ERROR (code and message of the Status; 410: list again).
    """
    object: _T | None = None
    resource_version: str = ""
    code: int = 0
    message: str = ""
    bad: UnreadableObject | None = None


class Codec(Generic[_T]):
    """Decodes lists and watch events of one kind of object; holds nothing but compiled decoders."""

    def __init__(
        self, kind: type[_T], name: str = "", rescue: Callable[[bytes], _T] | None = None
    ) -> None:
        """Compile the decoders for one struct; the name of the struct is the kind, unless `name`
        is.

        rescue: reads the sound parts of an object that does not decode; for kinds in which users
        write JSON that the API server passes on to the letter.
        """
        self.kind = name or kind.__name__
        self._rescue = rescue
        self._one = Decoder(kind)
        page = _ListBody[kind]  # type: ignore[valid-type]  # a type only msgspec needs, at run time
        self._list: Decoder[_ListBody[_T]] = Decoder(page)

    def decode(self, body: bytes | Raw) -> _T:
        """Return a single object. Raises MessageError naming the field."""
        try:
            return self._read(body)
        except _UNDECODABLE as error:
            raise MessageError(f"object: {_error_text(error)}") from error

    def decode_answer(self, body: bytes, namespace: str, name: str) -> _T:
        """Return the object of this name from the answer to a GET.

        Raises MessageError for an answer about anything else: the answer of a proxy says nothing
        about the object.
        """
        answer, body = self._around(_IDENTIFIED, body, "answer")
        if answer.kind != self.kind:
            kind = (answer.kind or "")[:80]
            raise MessageError(f"answer: its kind is {kind!a}, not {self.kind}")
        identity = answer.metadata or _Identity()
        if (identity.namespace or "", identity.name) != (namespace, name):
            raise MessageError(f"answer: the {self.kind} has another name or namespace")
        return self.decode(body)

    def decode_list(self, body: bytes) -> Decoded[_T]:
        """Return a page of a list; unreadable items are left out and named.

        Raises MessageError if the body is no list.

        A list of another kind, or without `items`, is an error: it must not pass for an empty list.
        Go writes an empty list as null.
        """
        with suppress(*_UNDECODABLE):
            page = self._list.decode(body)
            meta = page.metadata or _ListMeta()
            return Decoded(self._items(page), meta.resource_version or "", meta.continue_ or "")
        parts, _ = self._around(_RAW_LIST, body, "list")
        items: list[_T] = []
        bad: list[UnreadableObject] = []
        for raw in self._items(parts):
            try:
                items.append(self._read(raw))
            except _UNDECODABLE as error:
                bad.append(_describe(raw, error)[0])
        meta = parts.metadata or _ListMeta()
        return Decoded(items, meta.resource_version or "", meta.continue_ or "", tuple(bad))

    def decode_event(self, line: bytes) -> WatchEvent[_T]:
        """Return one line of a watch. Raises MessageError if the line is no event."""
        event, _ = self._around(_EVENT, line, "watch event")
        if event.type == "ERROR":
            status = decode_with(_STATUS, event.object, "watch event")
            return WatchEvent(event.type, code=status.code or 0, message=status.message or "")
        if event.type == "BOOKMARK":
            metadata = decode_with(_IDENTIFIED, event.object, "watch event").metadata
            return WatchEvent(event.type, resource_version=_version_of(metadata))
        if event.type not in ("ADDED", "MODIFIED", "DELETED"):
            raise MessageError(f"watch event: unknown type {event.type[:20]!a}")
        try:
            decoded = self._read(event.object)
        except _UNDECODABLE as error:
            bad, version = _describe(event.object, error)
            return WatchEvent(event.type, resource_version=version, bad=bad)
        return WatchEvent(event.type, decoded, _version_of(getattr(decoded, "metadata", None)))

    def _read(self, body: bytes | Raw) -> _T:
        try:
            return self._one.decode(body)
        except _UNDECODABLE:
            if self._rescue is None:
                raise
            return self._rescue(tamed(bytes(body)))

    def _around(self, decoder: Decoder[_Item], body: bytes, subject: str) -> tuple[_Item, bytes]:
        """Return the envelope of the objects, and the body in the form that decoded.

        Raises MessageError.
        """
        try:
            return decode_with(decoder, body, subject), body
        except MessageError:
            if self._rescue is None:
                raise
            body = tamed(body)
            return decode_with(decoder, body, subject), body

    def _items(self, page: _ListBody[_Item]) -> Sequence[_Item]:
        if page.kind != f"{self.kind}List":
            raise MessageError(f"list: its kind is {(page.kind or '')[:80]!a}, not {self.kind}List")
        if isinstance(page.items, UnsetType):
            raise MessageError("list: has no items")
        return page.items or ()


def check_kind(body: bytes, kind: str) -> None:
    """Check that the answer is an object of the kind. Raises MessageError for anything else."""
    answer_kind = decode_with(_IDENTIFIED, body, "answer").kind
    if answer_kind != kind:
        raise MessageError(f"answer: its kind is {(answer_kind or '')[:80]!a}, not {kind}")


def tamed(body: bytes) -> bytes:
    """Return valid JSON so that each of its parts can be decoded or skipped by itself.

    The decoder gives up at deep nesting and at half a surrogate pair, also in skipped parts. Both
    are replaced by values that the decoder refuses only in parts that it reads: a number out of
    range, a byte that is no UTF-8.
    """
    parts: list[bytes] = []
    depth = copied_until = 0
    for token in _TOKEN.finditer(body):
        start, text = token.start(), token[0]
        if text in b"[{":
            depth += 1
            if depth == _DEEPEST + 1:
                parts += [body[copied_until:start], b"1e999"]
        elif text in b"]}":
            if depth == _DEEPEST + 1:
                copied_until = start + 1
            depth -= 1
        elif depth <= _DEEPEST and b"\\u" in text:
            parts += [body[copied_until:start], _ESCAPE.sub(_whole, text)]
            copied_until = token.end()
    return b"".join([*parts, body[copied_until:]] if depth <= _DEEPEST else parts)


def _whole(escape: re.Match[bytes]) -> bytes:
    return b"\xff" if escape["half"] else escape[0]


def decode_with(decoder: Decoder[_T], body: bytes | Raw, subject: str) -> _T:
    """Return the decoded body; every failure is a MessageError naming the field."""
    try:
        return decoder.decode(body)
    except _UNDECODABLE as error:
        raise MessageError(f"{subject}: {_error_text(error)}") from error


def _describe(raw: Raw, error: Exception) -> tuple[UnreadableObject, str]:
    """Return (the object by the readable part of its name, the resourceVersion)."""
    try:
        metadata = _IDENTIFIED.decode(raw).metadata or _Identity()
    except _UNDECODABLE:
        metadata = _Identity()
    ref = PodRef(metadata.namespace or "", metadata.name or "", metadata.uid or "")
    return UnreadableObject(ref, _error_text(error)), _version_of(metadata)


def _version_of(metadata: _Identity | None) -> str:
    return (metadata.resource_version or "") if metadata else ""


def _error_text(error: Exception) -> str:
    """Return the decoder's text, which names the path; too deep nesting has another text."""
    return "nested too deeply" if isinstance(error, RecursionError) else str(error)


_UNDECODABLE = (msgspec.MsgspecError, ValueError, RecursionError)
_DEEPEST = 64
_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]', re.DOTALL)
_ESCAPE = re.compile(
    rb"\\u[dD][89abAB]..\\u[dD][c-fC-F]..|(?P<half>\\u[dD][89a-fA-F]..)|\\.", re.DOTALL
)
_EVENT = Decoder(_RawWatchEvent)
_STATUS = Decoder(_Status)
_IDENTIFIED = Decoder(_Identified)
_RAW_LIST: Decoder[_ListBody[Raw]] = Decoder(_ListBody[Raw])
