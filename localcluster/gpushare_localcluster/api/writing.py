"""POST, PUT, PATCH and DELETE: bodies in, answers of the registry out.

Knows media types, query parameters and status codes of writes; the registry has the rules.
"""

from collections.abc import Callable
from dataclasses import replace as with_options

from gpushare_localcluster.api import deletion, protobuf_kinds
from gpushare_localcluster.api.calls import (
    JSON,
    Call,
    Response,
    Target,
    decode,
    decode_object,
    json_answer,
)
from gpushare_localcluster.api.deletion import DeleteOptions
from gpushare_localcluster.api.gpu_memory import gpu_memory_warnings
from gpushare_localcluster.api.objects import Object, metadata, to_json, with_metadata
from gpushare_localcluster.api.patch import json_patch, merge_patch
from gpushare_localcluster.api.protobuf import UnknownKindError
from gpushare_localcluster.api.reading import encoder, selection
from gpushare_localcluster.api.records import Record
from gpushare_localcluster.api.registry import Registry
from gpushare_localcluster.api.resources import PODS, REVIEWS
from gpushare_localcluster.api.status import (
    StatusError,
    bad_request,
    conflict,
    method_not_allowed,
    success,
    unsupported_media_type,
)
from gpushare_localcluster.api.strategic import strategic_merge

MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"


def media_type(call: Call) -> str:
    """Return the Content-Type without parameters."""
    return call.content_type.partition(";")[0].strip().lower()


def object_of(call: Call) -> Object:
    """Return the object in the body, from JSON or protobuf.

    Raises StatusError: 400, or 415 for an unsupported media type or protobuf kind.
    """
    if media_type(call) == protobuf_kinds.MEDIA_TYPE:
        try:
            return protobuf_kinds.decode(call.body)
        except UnknownKindError as error:
            raise StatusError(415, "UnsupportedMediaType", f"{error}; use {JSON}") from error
        except ValueError as error:
            raise bad_request(f"the body of the request is not protobuf: {error}") from error
    if media_type(call) not in {JSON, ""}:
        raise unsupported_media_type(call.content_type, JSON)
    return decode_object(call.body)


def create(registry: Registry, target: Target, call: Call) -> Response:
    """Return the new object (201)."""
    body = object_of(call)
    if target.resource in REVIEWS:
        return json_answer({**body, "status": REVIEWS[target.resource]}, 201)
    if target.resource.kind == "Binding":
        registry.bind(target.home, str(metadata(body).get("name") or ""), body)
        return json_answer(success(201), 201)
    if target.resource.namespaced and target.namespace is None:
        raise method_not_allowed(call.method)
    record = registry.create(target.resource, target.home, body, dry_run=call.dry_run)
    return _written(target, record, 201)


def replace(registry: Registry, target: Target, call: Call) -> Response:
    """Return the object after a PUT; a PUT of an absent object creates some kinds (201)."""
    body = object_of(call)
    uid = metadata(body).get("uid")
    if metadata(body).get("name") != target.name:
        raise bad_request("the name of the object does not match the name on the URL")

    def replaced(current: Object) -> Object:
        _check_uid(target, uid, metadata(current)["uid"])
        return body

    try:
        return _revise(registry, target, call, replaced)
    except StatusError as error:
        if error.code != 404 or not target.resource.put_creates or target.subresource:
            raise
    _check_uid(target, uid, "")
    fresh = with_metadata(body, resourceVersion=None)
    record = registry.create(target.resource, target.home, fresh, dry_run=call.dry_run)
    return _written(target, record, 201)


def _check_uid(target: Target, expected: object, actual: str) -> None:
    if expected and expected != actual:
        reason = (
            f"Precondition failed: UID in precondition: {expected}, UID in object meta: {actual}"
        )
        raise conflict(target.resource.qualified, target.name, reason)


def patch(registry: Registry, target: Target, call: Call) -> Response:
    """Return the object after a PATCH."""
    return _revise(registry, target, call, patched_by(call))


def patched_by(call: Call) -> Callable[[Object], Object]:
    """Return the function that applies the patch in the body to an object.

    Raises StatusError: 400, or 415 for an unknown kind of patch.
    """
    kind = media_type(call)
    if kind not in {MERGE, STRATEGIC, JSON_PATCH}:
        raise unsupported_media_type(call.content_type, f"{JSON_PATCH}, {MERGE}, {STRATEGIC}")
    change = decode(call.body)

    def patched(current: Object) -> Object:
        if kind == STRATEGIC:
            return strategic_merge(current, change)
        result = (json_patch if kind == JSON_PATCH else merge_patch)(current, change)
        if not isinstance(result, dict):
            raise bad_request("the patch leaves no object")
        return result

    return patched


def changed_by(call: Call) -> Callable[[Object], Object]:
    """Return the function that applies a PUT or a PATCH to a part of an object, such as the Scale.

    Raises StatusError: as `object_of` and `patched_by` do.
    """
    if call.method == "PATCH":
        return patched_by(call)
    body = object_of(call)
    return lambda _: body


def delete(registry: Registry, target: Target, call: Call) -> Response:
    """Return the marked object; after the removal the last state of a pod, or a Status."""
    options = _options(call)
    record, is_gone = registry.delete(target.resource, target.home, target.name, options)
    if is_gone and target.resource is not PODS:
        details = {
            "name": target.name,
            "kind": target.resource.plural,
            "uid": metadata(record.body)["uid"],
        }
        if target.resource.group:
            details["group"] = target.resource.group
        return json_answer(success(200, details))
    return Response(200, encoder(target.resource)(record))


def delete_collection(registry: Registry, target: Target, call: Call) -> Response:
    """Return the list of the objects deleted."""
    resource, matches = target.resource, selection(target, call)
    options = _options(call)
    records = registry.delete_collection(resource, target.namespace, matches, options)
    version = str(registry.store.version)
    head = {"kind": f"{resource.kind}List", "apiVersion": resource.api_version}
    body = to_json({**head, "metadata": {"resourceVersion": version}})[:-1]
    items = b",".join(map(encoder(resource), records))
    return Response(200, body + b',"items":[' + items + b"]}")


def bind(registry: Registry, target: Target, call: Call) -> Response:
    """Return the Status of a Binding (201)."""
    registry.bind(target.home, target.name, object_of(call), dry_run=call.dry_run)
    return json_answer(success(201), 201)


def evict(registry: Registry, target: Target, call: Call) -> Response:
    """Return the Status of an eviction (201), a deletion that a budget may refuse."""
    body = object_of(call)
    if body.get("kind", "Eviction") != "Eviction" or metadata(body).get("name") != target.name:
        raise bad_request("the body must be an Eviction of the pod in the URL")
    options = body.get("deleteOptions") or {}
    if not isinstance(options, dict):
        raise bad_request("deleteOptions must be an object")
    chosen = deletion.decode_options(options)
    dry_run = chosen.dry_run or call.dry_run
    registry.evict(target.home, target.name, with_options(chosen, dry_run=dry_run))
    return json_answer(success(201), 201)


def _written(target: Target, record: Record, status: int) -> Response:
    """Return an object that a client wrote, with warnings about its GPU memory."""
    warnings = () if target.subresource else gpu_memory_warnings(target.resource, record.body)
    return Response(status, encoder(target.resource)(record), warnings=warnings)


def _revise(
    registry: Registry,
    target: Target,
    call: Call,
    change: Callable[[Object], Object],
) -> Response:
    record = registry.revise(
        target.resource,
        target.home,
        target.name,
        change,
        part=target.subresource,
        dry_run=call.dry_run,
    )
    return _written(target, record, 200)


def _options(call: Call) -> DeleteOptions:
    """Return the options of a DELETE, from the body or else from the query."""
    if call.body:
        return deletion.decode_options(object_of(call))
    grace = call.number("gracePeriodSeconds") if "gracePeriodSeconds" in call.query else None
    return DeleteOptions(grace, dry_run=call.dry_run)
