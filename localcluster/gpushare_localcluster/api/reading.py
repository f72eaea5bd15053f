"""GET: one object, a list in pages, a watch, or a log, as JSON or as a Table.

Knows the query parameters of reads and the forms of answers; the registry has the objects. `Watch`
is a step machine without threads or clocks: each step returns the new lines. `stream` is the loop
that waits, sends bookmarks, and ends with the client, the timeout, or the server.
"""

import base64
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from gpushare_localcluster.api.calls import JSON, Call, Connection, Response, Target
from gpushare_localcluster.api.events import core_field
from gpushare_localcluster.api.objects import (
    Change,
    Object,
    Record,
    elements,
    from_json,
    metadata,
    section,
    timestamp,
    to_json,
    with_metadata,
)
from gpushare_localcluster.api.pods import CONTAINER_LISTS
from gpushare_localcluster.api.registry import Registry, outgoing
from gpushare_localcluster.api.resources import NAME_FIELDS, NEW_EVENTS, Resource
from gpushare_localcluster.api.selectors import (
    Test,
    both,
    field_selector,
    field_terms,
    label_selector,
)
from gpushare_localcluster.api.status import StatusError, bad_request, expired
from gpushare_localcluster.api.store import Place, Store
from gpushare_localcluster.api.tables import table

POLL = 1.0
"""Seconds between two checks of the client by a quiet watch."""

GATHER = 0.01
"""Seconds that changes gather, so that a burst takes few writes."""

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
        """Return the lines of the changes since the last step. Raises StatusError: 410."""
        changes, self.cursor = self._store.since(self._scope.resource.table, self.cursor)
        return [line for change in changes if (line := self._seen(change)) is not None]

    def wait(self, timeout: float, client: Connection) -> None:
        """Wait for a new line, the end of the server, or `timeout` s."""
        table, place = self._scope.resource.table, self._scope.place
        self._store.wait(table, self.cursor, timeout, place=place, until=client.stopping)

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


TEXT = "text/plain"


class PodLogs:
    """The output of all containers, until the kubelet removes the pod."""

    def __init__(self) -> None:
        """Start empty."""
        self._lines: dict[tuple[str, str], list[tuple[str, str]]] = {}
        self._lock = threading.Lock()

    def write(self, uid: str, container: str, text: str, at: datetime) -> None:
        """Add the lines that a container of the pod with this uid printed."""
        with self._lock:
            lines = self._lines.setdefault((uid, container), [])
            lines.extend((timestamp(at), line) for line in text.splitlines())

    def forget(self, uid: str) -> None:
        """Drop the output of the pod with this uid."""
        with self._lock:
            for key in [key for key in self._lines if key[0] == uid]:
                del self._lines[key]

    def read(self, uid: str, container: str) -> list[tuple[str, str]]:
        """Return the lines so far, each with its time."""
        with self._lock:
            return list(self._lines.get((uid, container), ()))

    def answer(self, registry: Registry, target: Target, call: Call) -> Response:
        """Return the log of a container as plain text; `follow` ends with the lines so far.

        Raises StatusError: 404 without the pod, 400 for an unknown or waiting container.
        """
        pod = registry.get(target.resource, target.home, target.name).body
        main, first = (
            [str(item["name"]) for item in elements(section(pod, "spec"), field)]
            for field in CONTAINER_LISTS
        )
        container = call.query.get("container") or (main[0] if len(main) == 1 else "")
        if container not in (*main, *first):
            choices = f"choose one of: {[*main, *first]}"
            raise bad_request(
                f"container {container!r} is not valid for pod {target.name}: {choices}"
            )
        if section(pod, "status").get("phase", "Pending") == "Pending":
            raise bad_request(f'container "{container}" in pod "{target.name}" is waiting to start')
        uid = str(metadata(pod)["uid"])
        tail = call.number("tailLines") if "tailLines" in call.query else None
        lines = self.read(uid, container)
        shown_lines = lines if tail is None else lines[len(lines) - min(tail, len(lines)) :]
        stamps = call.flag("timestamps")
        text = b"".join(_printed(line, stamps=stamps) for line in shown_lines)
        return Response(200, text, TEXT)


def _printed(line: tuple[str, str], *, stamps: bool) -> bytes:
    text = f"{line[0]} {line[1]}\n" if stamps else f"{line[1]}\n"
    return text.encode(errors="replace")


LONGEST_WATCH = 3600
"""Seconds of a watch without `timeoutSeconds`."""


def encoder(resource: Resource) -> Encode:
    """Return the function that encodes objects of a resource as JSON."""
    if resource is not NEW_EVENTS:
        return Record.encoded
    return lambda record: to_json(outgoing(resource, record.body))


def selection(target: Target, call: Call) -> Test | None:
    """Return the test of the request's label and field selectors. Raises StatusError: 400."""
    resource = target.resource
    rename = core_field if resource is NEW_EVENTS else str
    supported = (*NAME_FIELDS, *resource.fields)
    fields = field_selector(call.query.get("fieldSelector", ""), supported, rename)
    return both(label_selector(call.query.get("labelSelector", "")), fields)


def _place(target: Target, call: Call) -> Place | None:
    """Return a field and a value that the field selector of the request requires."""
    rename = core_field if target.resource is NEW_EVENTS else str
    terms = field_terms(call.query.get("fieldSelector", ""))
    return next(((rename(field), value) for field, is_equal, value in terms if is_equal), None)


def wants_table(call: Call) -> bool:
    """Return whether the client prefers a Table to plain JSON. Raises StatusError: 406."""
    if not call.accept.strip():
        return False
    for choice in call.accept.split(","):
        media, *parameters = [part.strip() for part in choice.split(";")]
        form = [item for item in parameters if item.startswith("as=")]
        if media == JSON and form == ["as=Table"]:
            return True
        if media in {JSON, "*/*", "application/*"} and not form:
            return False
    raise StatusError(406, "NotAcceptable", f"only {JSON} can be answered, not {call.accept}")


def _include(call: Call) -> str:
    return call.query.get("includeObject", "")


def get(registry: Registry, target: Target, call: Call) -> Response:
    """Return one object. Raises StatusError: 404 or 406."""
    record = registry.get(target.resource, target.home, target.name)
    if wants_table(call):
        now, include = registry.store.now(), _include(call)
        one = table(target.resource, [record], record.version, now, include=include)
        return Response(200, to_json(one))
    return Response(200, encoder(target.resource)(record))


def listing(registry: Registry, target: Target, call: Call) -> Response:
    """Return a list, or a page of it with a token for the next.

    All pages show the version of the first page.

    Raises StatusError: 400, 406, 410 for a token that is too old, 422 for contradicting options,
    504 for a future version.
    """
    _check_options(target, call)
    at, after = _position(call)
    if at is None:
        at = _exact_version(registry, call)
    matches = selection(target, call)
    records, version = registry.records(target.resource, target.namespace, matches, at=at)
    start = bisect_right(records, after, key=lambda record: record.key) if after else 0
    limit = call.number("limit") or len(records)
    page, remaining = records[start : start + limit], len(records) - start - limit
    meta: Object = {"resourceVersion": str(version)}
    if remaining > 0:
        token = to_json([version, *page[-1].key])
        meta["continue"] = base64.urlsafe_b64encode(token).decode()
        meta["remainingItemCount"] = remaining
    if wants_table(call):
        now, include = registry.store.now(), _include(call)
        rows = table(target.resource, page, version, now, include=include)
        return Response(200, to_json({**rows, "metadata": meta}))
    resource = target.resource
    head = {"kind": f"{resource.kind}List", "apiVersion": resource.api_version, "metadata": meta}
    items = b",".join(map(encoder(resource), page))
    return Response(200, to_json(head)[:-1] + b',"items":[' + items + b"]}")


def _exact_version(registry: Registry, call: Call) -> int | None:
    version = call.number("resourceVersion")
    if version > registry.store.version:
        raise StatusError(504, "Timeout", f"Too large resource version: {version}")
    return version if call.query.get("resourceVersionMatch") == "Exact" else None


def _position(call: Call) -> tuple[int | None, tuple[str, str] | None]:
    token = call.query.get("continue")
    if not token:
        return None, None
    if call.number("resourceVersion"):
        raise bad_request("specifying resource version is not allowed when using continue")
    try:
        parts: Any = from_json(base64.urlsafe_b64decode(token))
        version, namespace, name = parts
        return int(version), (str(namespace), str(name))
    except (ValueError, TypeError) as error:
        raise bad_request("continue key is not valid") from error


def watch(registry: Registry, target: Target, call: Call, bookmark_every: float) -> Response:
    """Return a stream of changes. Raises StatusError: 400, 406, 422."""
    _check_options(target, call)
    resource, store = target.resource, registry.store
    matches = selection(target, call)
    as_table = wants_table(call)

    def row(record: Record) -> bytes:
        now, include = store.now(), _include(call)
        return to_json(table(resource, [record], record.version, now, include=include))

    encoding = row if as_table else encoder(resource)
    scope = Scope(resource, target.namespace, matches, encoding, _place(target, call))

    def bookmark(version: int, **annotations: str) -> bytes:
        if as_table:
            return event_line("BOOKMARK", table(resource, [], version, store.now()))
        meta: Object = {"resourceVersion": str(version), "creationTimestamp": None}
        if annotations:
            meta["annotations"] = {"k8s.io/initial-events-end": "true"}
        typed = {"kind": resource.kind, "apiVersion": resource.api_version}
        return event_line("BOOKMARK", {**typed, "metadata": meta})

    started = Watch(store, scope, call.number("resourceVersion"))
    try:
        first = _first_lines(started, registry, call)
    except StatusError as error:
        # As in kube-apiserver's watch cache, a compacted version is an event and no status.
        return Response(200, iter([event_line("ERROR", error.body())]))
    with_bookmarks = call.flag("allowWatchBookmarks")
    if call.flag("sendInitialEvents") and with_bookmarks:
        first.append(bookmark(started.cursor, end="true"))
    timeout = call.number("timeoutSeconds") or LONGEST_WATCH
    course = Course(timeout, bookmark_every if with_bookmarks else None, bookmark)
    return Response(200, stream(started, first, course, call.connection))


def _first_lines(started: Watch, registry: Registry, call: Call) -> list[bytes]:
    """Return the first lines of the stream, and check that the stream can continue."""
    initial_events = call.query.get("sendInitialEvents")
    if call.flag("sendInitialEvents") or (initial_events is None and started.cursor == 0):
        return started.initial()
    if started.cursor == 0:
        started.cursor = registry.store.version
    if started.cursor > registry.store.version:
        # After a restart the server has no such version: the watch would never end.
        raise expired(f"resource version {started.cursor} is not known")
    return started.step()


def _check_options(target: Target, call: Call) -> None:
    """Refuse options as ValidateListOptions of k8s.io/apimachinery does."""
    watching, initial = call.flag("watch"), "sendInitialEvents" in call.query
    match, version = (call.query.get(f"resourceVersion{end}", "") for end in ("Match", ""))
    reason = ""
    if initial and (match != "NotOlderThan" or not watching):
        reason = "sendInitialEvents requires a watch, with resourceVersionMatch=NotOlderThan"
    elif match and watching and not initial:
        reason = "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided"
    elif match and not watching and (not version or call.query.get("continue")):
        reason = "resourceVersionMatch is forbidden unless resourceVersion is provided"
    elif match not in ("", "Exact", "NotOlderThan") or (match, version) == ("Exact", "0"):
        reason = f"resourceVersionMatch {match!r} of resourceVersion {version!r} is not supported"
    if reason:
        raise StatusError(422, "Invalid", f"{target.resource.kind}ListOptions is invalid: {reason}")
