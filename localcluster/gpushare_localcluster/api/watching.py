"""A watch: the changes of one resource as a client with a selector has to see them.

`Watch` is a step machine without threads or clocks: each step says what is new. `stream` is the
loop around it that waits, sends bookmarks, and ends with its client, its time, or its server.
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
"""Seconds after which a quiet watch looks whether its client is still there."""

GATHER = 0.01
"""Seconds for which a watch lets changes gather, so that a burst of them goes in a few writes."""

Encode = Callable[[Record], bytes]


@dataclass(frozen=True, slots=True)
class Scope:
    """What a watch is about: which objects, and how they are written.

    place: a field and the value of it that all these objects have, if there is one.
    """

    resource: Resource
    namespace: str | None
    matches: Test | None
    encode: Encode
    place: Place | None = None

    def holds(self, record: Record | None) -> bool:
        """Return whether an object (None: there is none) is in the scope."""
        if record is None:
            return False
        if self.namespace is not None and record.key[0] != self.namespace:
            return False
        return self.matches is None or self.matches(record.body)

    def concerns(self, change: Change) -> bool:
        """Return whether a watch of this scope shows the change."""
        return self.holds(change.record) or self.holds(change.previous)


class Watch:
    """The changes in a scope after a version; `cursor` is the version seen so far."""

    def __init__(self, store: Store, scope: Scope, cursor: int) -> None:
        """Look from `cursor` on."""
        self._store = store
        self._scope = scope
        self.cursor = cursor

    def initial(self) -> list[bytes]:
        """Return an ADDED line for everything there is, and go on from there."""
        table = self._scope.resource.table
        records, self.cursor = self._store.records(table, self._scope.namespace)
        return [self._line("ADDED", record) for record in records if self._scope.holds(record)]

    def step(self) -> list[bytes]:
        """Return the lines of what has changed since the last step.

        Raises StatusError: 410 if the history no longer reaches back to the cursor.
        """
        changes, self.cursor = self._store.since(self._scope.resource.table, self.cursor)
        return [line for change in changes if (line := self._seen(change)) is not None]

    def wait(self, timeout: float, client: Connection) -> None:
        """Return when the next step has something new, the server stops, or after `timeout` s."""
        self.cursor = self._store.wait(
            self._scope.resource.table,
            self.cursor,
            timeout,
            concerns=self._scope.concerns,
            place=self._scope.place,
            until=client.stopping,
        )

    def _seen(self, change: Change) -> bytes | None:
        """Return a change as the selector shows it, None if it does not."""
        before = self._scope.holds(change.previous)
        if change.type == "DELETED":
            return self._line("DELETED", change.record) if before else None
        after = self._scope.holds(change.record)
        if after:
            return self._line("MODIFIED" if before else "ADDED", change.record)
        if not before or change.previous is None:
            return None
        # A real server shows the object as it last matched, with the version of this change.
        left = with_metadata(change.previous.body, resourceVersion=str(change.version))
        return self._line("DELETED", Record(left, change.version))

    def _line(self, kind: str, record: Record) -> bytes:
        return b'{"type":"%s","object":%s}\n' % (kind.encode(), self._scope.encode(record))


def event_line(kind: str, body: Object) -> bytes:
    """Return a line of a watch that is about no stored object (BOOKMARK, ERROR)."""
    return to_json({"type": kind, "object": body}) + b"\n"


@dataclass(frozen=True, slots=True)
class Course:
    """How a watch runs: seconds until it ends, and between bookmarks (None: send none)."""

    timeout: float
    bookmark_every: float | None
    bookmark: Callable[[int], bytes]


def stream(watch: Watch, first: list[bytes], course: Course, client: Connection) -> Iterator[bytes]:
    """Yield the lines of a watch until its time is up, its client gone, or its history lost."""
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
