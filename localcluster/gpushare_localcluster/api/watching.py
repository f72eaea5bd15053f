"""A watch: the changes of one resource, as a client with a selector sees them.

`Watch` is a step machine without threads or clocks: each step returns the new lines. `stream` is
the loop that waits, sends bookmarks, and ends with the client, the timeout, or the server.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from gpushare_localcluster.api.calls import Connection
from gpushare_localcluster.api.objects import Object, to_json, with_metadata
from gpushare_localcluster.api.records import Change, Record
from gpushare_localcluster.api.resources import Resource
from gpushare_localcluster.api.selectors import Test
from gpushare_localcluster.api.status import StatusError
from gpushare_localcluster.api.store import Store
from gpushare_localcluster.api.waiters import Place

POLL = 1.0
"""Seconds between two checks of the client by a quiet watch."""

GATHER = 0.01
"""Seconds in which changes gather, so that a burst takes few writes."""

Encode = Callable[[Record], bytes]


@dataclass(frozen=True, slots=True)
class Scope:
    """The objects of a watch, and their encoding.

    place: a field and a value that all these objects have, None for none.
    """

    resource: Resource
    namespace: str | None
    matches: Test | None
    encode: Encode
    place: Place | None = None

    def holds(self, record: Record | None) -> bool:
        """Return whether an object is in the scope; None is not."""
        if record is None:
            return False
        if self.namespace is not None and record.key[0] != self.namespace:
            return False
        return self.matches is None or self.matches(record.body)

    def concerns(self, change: Change) -> bool:
        """Return whether a watch of this scope shows the change."""
        return self.holds(change.record) or self.holds(change.previous)


class Watch:
    """The changes in a scope after a version; `cursor` is the last version shown."""

    def __init__(self, store: Store, scope: Scope, cursor: int) -> None:
        """Start after the version `cursor`."""
        self._store = store
        self._scope = scope
        self.cursor = cursor

    def initial(self) -> list[bytes]:
        """Return an ADDED line for each object, and continue from the current version."""
        table = self._scope.resource.table
        records, self.cursor = self._store.records(table, self._scope.namespace)
        return [self._line("ADDED", record) for record in records if self._scope.holds(record)]

    def step(self) -> list[bytes]:
        """Return the lines of the changes since the last step.

        Raises StatusError: 410 if the history no longer reaches back to the cursor.
        """
        changes, self.cursor = self._store.since(self._scope.resource.table, self.cursor)
        return [line for change in changes if (line := self._seen(change)) is not None]

    def wait(self, timeout: float, client: Connection) -> None:
        """Wait for a new line, the end of the server, or `timeout` s."""
        self.cursor = self._store.wait(
            self._scope.resource.table,
            self.cursor,
            timeout,
            concerns=self._scope.concerns,
            place=self._scope.place,
            until=client.stopping,
        )

    def _seen(self, change: Change) -> bytes | None:
        """Return the line of a change, None for a change outside the scope."""
        before = self._scope.holds(change.previous)
        if change.type == "DELETED":
            return self._line("DELETED", change.record) if before else None
        after = self._scope.holds(change.record)
        if after:
            return self._line("MODIFIED" if before else "ADDED", change.record)
        if not before or change.previous is None:
            return None
        # A real server shows the last matching object, with the version of this change.
        last_match = with_metadata(change.previous.body, resourceVersion=str(change.version))
        return self._line("DELETED", Record(last_match, change.version))

    def _line(self, kind: str, record: Record) -> bytes:
        return b'{"type":"%s","object":%s}\n' % (kind.encode(), self._scope.encode(record))


def event_line(kind: str, body: Object) -> bytes:
    """Return a line of a watch without a stored object (BOOKMARK, ERROR)."""
    return to_json({"type": kind, "object": body}) + b"\n"


@dataclass(frozen=True, slots=True)
class Course:
    """The timing of a watch: seconds until the end, and between bookmarks (None: no bookmarks)."""

    timeout: float
    bookmark_every: float | None
    bookmark: Callable[[int], bytes]


def stream(watch: Watch, first: list[bytes], course: Course, client: Connection) -> Iterator[bytes]:
    """Yield the lines of a watch until the timeout, the end of the client, or lost history."""
    end = time.monotonic() + course.timeout
    due = time.monotonic() + (course.bookmark_every or course.timeout)
    if first:
        yield b"".join(first)
    while time.monotonic() < end and not client.stopping():
        try:
            lines = watch.step()
        except StatusError as error:
            yield event_line("ERROR", error.body())
            return
        if course.bookmark_every is not None and time.monotonic() >= due:
            due = time.monotonic() + course.bookmark_every
            lines.append(course.bookmark(watch.cursor))
        if lines:
            yield b"".join(lines)
        elif not client.alive():
            return
        now = time.monotonic()
        watch.wait(max(0.0, min(POLL, end - now, due - now)), client)
        time.sleep(GATHER)
