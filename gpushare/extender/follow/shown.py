"""The values that the watch shows of some objects, for readers in other threads, and the event
handler that makes such values.
"""

import logging
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Generic, Protocol, TypeVar

from gpushare.core.model import PodRef
from gpushare.errors import MessageError
from gpushare.logline import Line
from gpushare.wire.codec import Decoded, WatchEvent
from gpushare.wire.objects import Metadata

log = logging.getLogger("gpushare.watch")

T = TypeVar("T")


class _Named(Protocol):
    """An object of the API server."""

    @property
    def metadata(self) -> Any:  # noqa: ANN401 -- Metadata, or one with further fields
        """The Metadata, if any."""


_ObjectT = TypeVar("_ObjectT", bound=_Named)


class Shown(Generic[T]):
    """A value for each object, by the key of the object. One thread writes; any thread may read.

    most: upper bound of the values; those of further objects are left out.
    """

    def __init__(self, most: int = sys.maxsize) -> None:
        self._shown: dict[str, T] = {}
        self._most = most

    def replace(self, values: Mapping[str, T], keep: Collection[str]) -> None:
        """Set the values of a whole list; the values of the keys in `keep` stay."""
        before = {key: value for key, value in self._shown.items() if key in keep}
        self._shown = dict(islice((before | dict(values)).items(), self._most))

    def put(self, key: str, value: T | None) -> None:
        """Set the value of one object; None removes the value."""
        if value is None:
            self._shown.pop(key, None)
        elif key in self._shown or len(self._shown) < self._most:
            self._shown[key] = value

    def get(self, key: str) -> T | None:
        """Return the value of one object; None for an object without a value."""
        return self._shown.get(key)

    def all(self) -> Mapping[str, T]:
        """Return a copy of all values."""
        return dict(self._shown)


def path_of(ref: PodRef) -> str:
    """Return namespace and name of an object, or the name of one without a namespace."""
    return f"{ref.namespace}/{ref.name}" if ref.namespace else ref.name


@dataclass(eq=False)
class ObjectHandler(Generic[_ObjectT, T]):
    """Event handler that keeps a record of each object; an unreadable object keeps its record.

    read: returns the record, or None for an object to leave out; if it raises MessageError, the
    object is left out. replace_records: takes the records of a whole list by key, and the keys of
    unreadable objects. change_record: takes a key, and the record, or None for an object that is
    gone. key: returns the key of an object.
    """

    read: Callable[[_ObjectT], T | None]
    replace_records: Callable[[Mapping[str, T], Collection[str]], None]
    change_record: Callable[[str, T | None], None]
    key: Callable[[PodRef], str] = path_of

    def trim(self, page: Decoded[_ObjectT]) -> Decoded[tuple[str, T]]:
        """Return (key, record) of each object of a page: objects may be large."""
        records = ((self._key_of(item), self._record(item)) for item in page.items)
        return page.with_items([(key, record) for key, record in records if record is not None])

    def replace(self, pages: Sequence[Decoded[tuple[str, T]]], started: float) -> None:
        """Take over all objects."""
        del started
        unread = {self.key(bad.ref) for page in pages for bad in page.bad}
        self.replace_records(dict(item for page in pages for item in page.items), unread)

    def apply(self, event: WatchEvent[_ObjectT]) -> None:
        """Take over one object."""
        item, is_deleted = event.object, event.kind == "DELETED"
        if item is not None:
            self.change_record(self._key_of(item), None if is_deleted else self._record(item))
        elif event.bad is not None and is_deleted:
            self.change_record(self.key(event.bad.ref), None)

    def _key_of(self, item: _ObjectT) -> str:
        metadata = item.metadata or Metadata()
        return self.key(PodRef(metadata.namespace or "", metadata.name or "", metadata.uid or ""))

    def _record(self, item: _ObjectT) -> T | None:
        try:
            return self.read(item)
        except MessageError as error:
            log.warning(Line("object left out", object=self._key_of(item), error=str(error)))
            return None
