"""GET: one object, a list in pages, or a watch, as JSON or as a Table.

Knows the query parameters of reads and the forms of answers; the registry has the objects.
"""

import base64
from bisect import bisect_right
from typing import Any

from gpushare_localcluster.api import tables
from gpushare_localcluster.api.calls import JSON, Call, Response, Target
from gpushare_localcluster.api.events import core_field
from gpushare_localcluster.api.objects import Object, from_json, to_json
from gpushare_localcluster.api.records import Record
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
from gpushare_localcluster.api.waiters import Place
from gpushare_localcluster.api.watching import Course, Encode, Scope, Watch, event_line, stream

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
    """Return whether the client prefers a Table to plain JSON.

    Raises StatusError: 406 if the client accepts neither.
    """
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
        one = tables.table(target.resource, [record], record.version, now, include=include)
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
        meta["continue"] = _token(version, page[-1].key)
        meta["remainingItemCount"] = remaining
    if wants_table(call):
        now, include = registry.store.now(), _include(call)
        table = tables.table(target.resource, page, version, now, include=include)
        return Response(200, to_json({**table, "metadata": meta}))
    resource = target.resource
    head = {"kind": f"{resource.kind}List", "apiVersion": resource.api_version, "metadata": meta}
    items = b",".join(map(encoder(resource), page))
    return Response(200, to_json(head)[:-1] + b',"items":[' + items + b"]}")


def _exact_version(registry: Registry, call: Call) -> int | None:
    version = call.number("resourceVersion")
    if version > registry.store.version:
        raise StatusError(504, "Timeout", f"Too large resource version: {version}")
    return version if call.query.get("resourceVersionMatch") == "Exact" else None


def _token(version: int, key: tuple[str, str]) -> str:
    return base64.urlsafe_b64encode(to_json([version, *key])).decode()


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
    """Return a stream of changes.

    Raises StatusError: 400, 406, 422 for contradicting options.
    """
    _check_options(target, call)
    resource, store = target.resource, registry.store
    matches = selection(target, call)
    as_table = wants_table(call)
    encoding = (
        tables.row_encoder(resource, store.now, _include(call)) if as_table else encoder(resource)
    )
    scope = Scope(resource, target.namespace, matches, encoding, _place(target, call))

    def bookmark(version: int, **annotations: str) -> bytes:
        if as_table:
            return event_line("BOOKMARK", tables.table(resource, [], version, store.now()))
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
