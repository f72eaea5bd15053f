"""The interface of a decoder of lists and watch events, as a reflector needs it.

`gpushare.wire.codec.Codec` is such a decoder; `kube` does not know what the objects mean.

Tested in `tests/unit/kube/test_reflector.py`.
"""

from collections.abc import Sequence
from typing import Protocol, TypeVar


class Page(Protocol):
    """A decoded page of a list; its objects are for the event handler."""

    @property
    def resource_version(self) -> str:
        """The resourceVersion of the list."""
        ...

    @property
    def continue_token(self) -> str:
        """The token that asks for the next page; empty: this was the last."""
        ...

    @property
    def items(self) -> Sequence[object]:
        """The objects that could be read."""
        ...

    @property
    def bad(self) -> Sequence[object]:
        """The objects that could not be read."""
        ...


class DecodedEvent(Protocol):
    """A decoded line of a watch."""

    @property
    def kind(self) -> str:
        """ADDED, MODIFIED, DELETED, BOOKMARK or ERROR."""
        ...

    @property
    def resource_version(self) -> str:
        """The resourceVersion of the event."""
        ...

    @property
    def code(self) -> int:
        """The status of an ERROR."""
        ...

    @property
    def bad(self) -> object | None:
        """The object that could not be read, if there is one."""
        ...


PageT = TypeVar("PageT", bound=Page)
EventT = TypeVar("EventT", bound=DecodedEvent)
PageT_co = TypeVar("PageT_co", bound=Page, covariant=True)
EventT_co = TypeVar("EventT_co", bound=DecodedEvent, covariant=True)


class Decoder(Protocol[PageT_co, EventT_co]):
    """Decodes bytes into pages and events; `gpushare.wire.codec.Codec` is one."""

    def decode_list(self, body: bytes) -> PageT_co:
        """Return a page; raises if the body is none."""
        ...

    def decode_event(self, line: bytes) -> EventT_co:
        """Return an event; raises if the line is none."""
        ...
