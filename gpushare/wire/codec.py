"""Decode lists, watch events and answers of the API server, for any kind of object.

Knows the JSON of List, WatchEvent and Status, and of an object its name alone; the structs of the
kinds are in objects.py.

Typed decoding of a page of pods costs a twentieth of building dicts and, since the structs are not
tracked by the cyclic garbage collector, does not stall the process. One unreadable object must not
hide the others: if a list does not decode as a whole, its items are decoded one by one and the
unreadable ones are named.
"""

from collections.abc import Sequence
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


class _List(Struct, Generic[_T], gc=False):
    kind: str | None = None
    metadata: _ListMeta | None = None
    items: list[_T] | UnsetType | None = UNSET


class _Identity(Struct, gc=False, rename="camel"):
    """What names an object, and nothing else that might not decode."""

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
    kind: str | None = None
    status: str | None = None
    code: int | None = None
    message: str | None = None


@dataclass(frozen=True, slots=True)
class UnreadableObject:
    """An object that could not be decoded: its name as far as it could be read, and the error."""

    ref: PodRef
    error: str

    def __str__(self) -> str:
        return f"{self.ref}: {self.error}"


@dataclass(frozen=True, slots=True)
class Decoded(Generic[_T]):
    """A page of a list: the objects that decode, its resourceVersion, and the unreadable ones."""

    items: Sequence[_T]
    resource_version: str
    continue_token: str = ""
    bad: tuple[UnreadableObject, ...] = ()

    def with_items(self, items: Sequence[_U]) -> "Decoded[_U]":
        """Return the page with these in place of its objects."""
        return Decoded(items, self.resource_version, self.continue_token, self.bad)


@dataclass(frozen=True, slots=True)
class WatchEvent(Generic[_T]):
    """One watch event.

    kind: ADDED, MODIFIED, DELETED (then `object`, or `bad` if it could not be decoded), BOOKMARK
    (only resource_version), ERROR (code and message of the Status; 410: list again).
    """

    kind: str
    object: _T | None = None
    resource_version: str = ""
    code: int = 0
    message: str = ""
    bad: UnreadableObject | None = None


class Codec(Generic[_T]):
    """Decodes lists and watch events of one kind of object; holds nothing but compiled decoders."""

    def __init__(self, kind: type[_T], name: str = "") -> None:
        """Compile the decoders for one struct, which is named as its kind, or by `name`."""
        self.kind = name or kind.__name__
        self._one = Decoder(kind)
        page = _List[kind]  # type: ignore[valid-type]  # a type only msgspec needs, at run time
        self._list: Decoder[_List[_T]] = Decoder(page)

    def decode(self, body: bytes | Raw) -> _T:
        """Return a single object. Raises MessageError naming the field."""
        return decode_with(self._one, body, "object")

    def decode_answer(self, body: bytes, namespace: str, name: str) -> _T:
        """Return the object that was asked for by its name.

        Raises MessageError if the answer is another one: what a proxy puts in its place says
        nothing of the object.
        """
        found = _answered(body, self.kind).metadata or _Identity()
        if (found.namespace or "", found.name) != (namespace, name):
            raise MessageError(f"answer: the {self.kind} has another name or namespace")
        return self.decode(body)

    def decode_list(self, body: bytes) -> Decoded[_T]:
        """Return a page of a list; unreadable items are left out and named.

        Raises MessageError if it is no list.

        A list of another kind, or one that lacks `items`, is none: it must not pass for an empty
        one. Null is an empty list, as Go writes it.
        """
        try:
            page = self._list.decode(body)
        except _UNDECODABLE:
            return self._item_by_item(body)
        items, meta = self._items(page), page.metadata or _ListMeta()
        return Decoded(items, meta.resource_version or "", meta.continue_ or "")

    def decode_event(self, line: bytes) -> WatchEvent[_T]:
        """Return one line of a watch. Raises MessageError if the line is no event."""
        event = decode_with(_EVENT, line, "watch event")
        if event.type == "ERROR":
            status = decode_with(_STATUS, event.object, "watch event")
            return WatchEvent(event.type, code=status.code or 0, message=status.message or "")
        if event.type == "BOOKMARK":
            metadata = decode_with(_IDENTIFIED, event.object, "watch event").metadata
            return WatchEvent(event.type, resource_version=_version_of(metadata))
        if event.type not in ("ADDED", "MODIFIED", "DELETED"):
            raise MessageError(f"watch event: unknown type {event.type[:20]!a}")
        try:
            found = self._one.decode(event.object)
        except _UNDECODABLE as error:
            bad, version = _describe(event.object, error)
            return WatchEvent(event.type, resource_version=version, bad=bad)
        return WatchEvent(event.type, found, _version_of(getattr(found, "metadata", None)))

    def _item_by_item(self, body: bytes) -> Decoded[_T]:
        page = decode_with(_RAW_LIST, body, "list")
        items: list[_T] = []
        bad: list[UnreadableObject] = []
        for raw in self._items(page):
            try:
                items.append(self._one.decode(raw))
            except _UNDECODABLE as error:
                bad.append(_describe(raw, error)[0])
        meta = page.metadata or _ListMeta()
        return Decoded(items, meta.resource_version or "", meta.continue_ or "", tuple(bad))

    def _items(self, page: _List[_Item]) -> Sequence[_Item]:
        if page.kind != f"{self.kind}List":
            raise MessageError(f"list: its kind is {(page.kind or '')[:80]!a}, not {self.kind}List")
        if isinstance(page.items, UnsetType):
            raise MessageError("list: has no items")
        return page.items or ()


def check_bound(body: bytes) -> None:
    """Check that the answer to a Binding says that it was accepted.

    kube-apiserver answers 201 with a Status of Success (all releases from 1.22 to 1.37). Raises
    MessageError for anything else.
    """
    status = decode_with(_STATUS, body, "answer to a Binding")
    if (status.kind, status.status) != ("Status", "Success"):
        raise MessageError("answer to a Binding: is no Status of Success")


def check_kind(body: bytes, kind: str) -> None:
    """Check that the answer is an object of the kind. Raises MessageError for anything else."""
    _answered(body, kind)


def _answered(body: bytes, kind: str) -> _Identified:
    found = decode_with(_IDENTIFIED, body, "answer")
    if found.kind != kind:
        raise MessageError(f"answer: its kind is {(found.kind or '')[:80]!a}, not {kind}")
    return found


def decode_with(decoder: Decoder[_T], body: bytes | Raw, what: str) -> _T:
    """Return the decoded body; every failure is a MessageError naming the field."""
    try:
        return decoder.decode(body)
    except _UNDECODABLE as error:
        raise MessageError(f"{what}: {_error_text(error)}") from error


def _describe(raw: Raw, error: Exception) -> tuple[UnreadableObject, str]:
    """Return (the object's name as far as it can be read, its resourceVersion)."""
    try:
        metadata = _IDENTIFIED.decode(raw).metadata or _Identity()
    except _UNDECODABLE:
        metadata = _Identity()
    ref = PodRef(metadata.namespace or "", metadata.name or "", metadata.uid or "")
    return UnreadableObject(ref, _error_text(error)), _version_of(metadata)


def _version_of(metadata: _Identity | None) -> str:
    return (metadata.resource_version or "") if metadata else ""


def _error_text(error: Exception) -> str:
    """Return the decoder's text, which names the path; nesting that is too deep has a text of its
    own.
    """
    return "nested too deeply" if isinstance(error, RecursionError) else str(error)


_UNDECODABLE = (msgspec.MsgspecError, ValueError, RecursionError)
_EVENT = Decoder(_RawWatchEvent)
_STATUS = Decoder(_Status)
_IDENTIFIED = Decoder(_Identified)
_RAW_LIST: Decoder[_List[Raw]] = Decoder(_List[Raw])
