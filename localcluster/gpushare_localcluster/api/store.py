"""The storage of the local cluster: versioned objects, the log of changes, and waits for a change.

Knows nothing of kinds, defaults, HTTP or JSON patches. One rising integer versions all objects,
like etcd's revision. Without threads: every call but `wait` returns at once. With an injected clock
and uid source the same calls give the same state, so that a simulation can be replayed.

A watch of one node's pods requires a value of one field. Such a thread waits at that field and
value, so that other changes do not wake it: a hundred device plug-ins watch the pods of one node
each.
"""

import threading
import uuid
from collections import deque
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import TypeAlias

from gpushare_localcluster.api.objects import (
    Change,
    ChangeType,
    Key,
    Object,
    Record,
    identity,
    name_of,
    namespace_of,
    timestamp,
    with_metadata,
)
from gpushare_localcluster.api.selectors import field_value
from gpushare_localcluster.api.status import already_exists, expired, not_found

Place: TypeAlias = tuple[str, str]
"""A field, as field selectors name it, and a value."""


HISTORY = 20_000
"""Upper bound on the changes kept per resource, by default; older versions answer 410."""


class _Table:
    """The objects of one resource, the recent changes, and the version before the oldest.

    conditions: of the threads that wait, by place; None: they wait for any change.
    """

    __slots__ = ("_lock", "_read", "conditions", "horizon", "log", "records")

    def __init__(self, history: int, lock: threading.RLock) -> None:
        self.records: dict[Key, Record] = {}
        self.log: deque[Change] = deque(maxlen=history)
        self.horizon = 0
        self.conditions: dict[Place | None, threading.Condition] = {}
        self._lock = lock
        self._read: dict[str, Callable[[Object], str]] = {}

    def append(self, change: Change) -> None:
        if len(self.log) == self.log.maxlen:
            self.horizon = self.log[0].version
        self.log.append(change)
        if change.type == "DELETED":
            self.records.pop(change.record.key, None)
        else:
            self.records[change.record.key] = change.record
        for place in self._places(change) & self.conditions.keys():
            self.conditions[place].notify_all()

    def wait(self, version: int, timeout: float, place: Place | None) -> None:
        """Wait for a change at the place after the version."""
        if place not in self.conditions:
            self.conditions[place] = threading.Condition(self._lock)
            if place is not None:
                self._read[place[0]] = field_value(place[0])
        missed = any(place in self._places(change) for change in self.since(version))
        if not missed and version >= self.horizon:
            self.conditions[place].wait(timeout)

    def _places(self, change: Change) -> set[Place | None]:
        """Return the places that the object of a change is at, or was before."""
        bodies = [record.body for record in (change.record, change.previous) if record]
        read = self._read.items()
        return {None, *((field, text_of(body)) for field, text_of in read for body in bodies)}

    def since(self, version: int) -> list[Change]:
        newer: list[Change] = []
        for change in reversed(self.log):
            if change.version <= version:
                break
            newer.append(change)
        newer.reverse()
        return newer


class Store:
    """Objects by resource, namespace and name; each write makes a new version.

    `clock` gives aware datetimes, `new_uid` unique strings, `history` is the number of changes kept
    per resource. Objects are shared with the caller, who must not change them.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        new_uid: Callable[[], str] = lambda: str(uuid.uuid4()),
        history: int = HISTORY,
    ) -> None:
        """Start empty at version 1, since clients take 0 for "any version"."""
        self._clock = clock
        self.new_uid = new_uid
        self._history = history
        self._version = 1
        self._lock = threading.RLock()
        self._tables: dict[str, _Table] = {}

    def now(self) -> datetime:
        """Return the store's time."""
        return self._clock()

    @property
    def version(self) -> int:
        """The version of the last write to anything."""
        with self._lock:
            return self._version

    def create(self, resource: str, body: Object, *, uid: str = "", commit: bool = True) -> Record:
        """Return the new object; uid: a result of `new_uid`, or "" for a fresh one.

        Raises StatusError: 409 for the name of an existing object.
        """
        with self._lock:
            table = self._table(resource)
            key = namespace_of(body), name_of(body)
            if key in table.records:
                raise already_exists(resource, key[1])
            born = {"uid": uid or self.new_uid(), "creationTimestamp": timestamp(self._clock())}
            if not commit:
                return Record(with_metadata(body, **born), self._version)
            return self._write(table, "ADDED", with_metadata(body, **born), None)

    def get(self, resource: str, namespace: str, name: str) -> Record:
        """Return the current object. Raises StatusError: 404."""
        with self._lock:
            record = self._table(resource).records.get((namespace, name))
        if record is None:
            raise not_found(resource, name)
        return record

    def records(
        self, resource: str, namespace: str | None = None, *, at: int | None = None
    ) -> tuple[list[Record], int]:
        """Return the objects, ordered by namespace and name, and the version of the list.

        at: an earlier version to show.

        Raises StatusError: 410 for a compacted version.
        """
        with self._lock:
            version = self._version
            table = self._table(resource)
            records = dict(table.records)
            if at is not None and at != version:
                self._undo(records, self.since(resource, at)[0])
                version = at
        keys = sorted(key for key in records if namespace is None or key[0] == namespace)
        return [records[key] for key in keys], version

    def update(
        self,
        resource: str,
        namespace: str,
        name: str,
        change: Callable[[Object], Object | None],
        *,
        commit: bool = True,
    ) -> Record:
        """Return the object after `change`, or the last state if `change` returned None to remove
        it.

        `change` runs under the lock of the store: no other write comes between read and write. It
        must be quick and must not modify the argument; errors pass through. A result equal to the
        stored object makes no new version and no event.
        """
        with self._lock:
            current = self.get(resource, namespace, name)
            body = change(current.body)
            if body is None:
                return self._remove(resource, current) if commit else current
            body = with_metadata(body, **identity(current))
            if body == current.body:
                return current
            if not commit:
                return Record(body, current.version)
            return self._write(self._table(resource), "MODIFIED", body, current)

    def delete(self, resource: str, namespace: str, name: str) -> Record:
        """Remove the object, and return the last state. Raises StatusError: 404."""
        with self._lock:
            return self._remove(resource, self.get(resource, namespace, name))

    def since(self, resource: str, version: int) -> tuple[list[Change], int]:
        """Return the changes after `version`, oldest first, and the version of the last one.

        Raises StatusError: 410 if some changes were dropped, or `version` is in the future.
        """
        with self._lock:
            table = self._table(resource)
            if version < table.horizon:
                raise expired(f"too old resource version: {version} ({table.horizon})")
            if version > self._version:
                raise expired(f"resource version {version} is ahead of {self._version}")
            return table.since(version), self._version

    def wait(
        self,
        resource: str,
        version: int,
        timeout: float,
        *,
        place: Place | None = None,
        until: Callable[[], bool] = lambda: False,
    ) -> None:
        """Wait for a change after `version`, for `timeout` s at most.

        place: a field and a value; only changes of objects that have it, before or after, end the
        wait. `wake` ends the wait too; `until` tells whether `wake` was called before.
        """
        with self._lock:
            if not until():
                self._table(resource).wait(version, timeout, place)

    def wake(self) -> None:
        """Make every `wait` return, so that callers notice the end of the server."""
        with self._lock:
            for table in self._tables.values():
                for condition in table.conditions.values():
                    condition.notify_all()

    def compact(self) -> None:
        """Drop all history: a watch from any earlier version is then 410."""
        with self._lock:
            for table in self._tables.values():
                table.log.clear()
                table.horizon = self._version

    def _table(self, resource: str) -> _Table:
        table = self._tables.get(resource)
        if table is None:
            table = self._tables[resource] = _Table(self._history, self._lock)
        return table

    def _write(
        self, table: _Table, kind: ChangeType, body: Object, previous: Record | None
    ) -> Record:
        self._version += 1
        stamped = with_metadata(body, resourceVersion=str(self._version))
        record = Record(stamped, self._version)
        table.append(Change(kind, record, previous))
        return record

    def _remove(self, resource: str, current: Record) -> Record:
        return self._write(self._table(resource), "DELETED", current.body, current)

    @staticmethod
    def _undo(records: dict[Key, Record], changes: Iterable[Change]) -> None:
        for change in reversed(list(changes)):
            records.pop(change.record.key, None)
            if change.previous is not None:
                records[change.record.key] = change.previous
