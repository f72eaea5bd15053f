"""POST, PUT, PATCH and DELETE: bodies in, answers of the registry out.

Knows media types, query parameters and status codes of writes, the subresource `scale`, and the
warnings about amounts of GPU memory that are likely mistakes (kube-apiserver warns of none); the
registry has the rules.
"""

from collections.abc import Callable
from dataclasses import replace as with_options

from gpushare.errors import WireError
from gpushare.wire.annotations import ALIYUN
from gpushare.wire.near_misses import near_miss
from gpushare.wire.objects import PODS as POD_CODEC
from gpushare.wire.request_mistakes import mistake_of, resources_of
from gpushare_localcluster.api import deletion, protobuf
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
from gpushare_localcluster.api.objects import (
    Object,
    Record,
    metadata,
    section,
    to_json,
    with_metadata,
)
from gpushare_localcluster.api.patch import json_patch, merge_patch, strategic_merge
from gpushare_localcluster.api.protobuf import UnknownKindError
from gpushare_localcluster.api.reading import encoder, selection
from gpushare_localcluster.api.registry import Registry
from gpushare_localcluster.api.resources import PODS, REVIEWS, Resource
from gpushare_localcluster.api.selectors import selector_text
from gpushare_localcluster.api.status import (
    StatusError,
    bad_request,
    conflict,
    invalid,
    method_not_allowed,
    success,
    unsupported_media_type,
)
from gpushare_localcluster.api.workloads import is_workload

UNIT = "GiB"
"""The memory unit of the nodes of the local cluster."""


def gpu_memory_warnings(resource: Resource, body: Object) -> tuple[str, ...]:
    """Return the mistakes in the GPU memory requested by a pod or a pod template.

    Names that are nearly ours are told as by config/extender/mistakes, which is not evaluated here.
    """
    if resource is not PODS and not is_workload(resource):
        return ()
    pod = body if resource is PODS else section(section(body, "spec"), "template")
    fields = {"metadata": metadata(pod), "spec": section(pod, "spec")}
    try:
        decoded = POD_CODEC.decode(to_json({"kind": "Pod", **fields}))
        annotations = (decoded.metadata and decoded.metadata.annotations) or {}
        text = mistake_of(decoded, ALIYUN, UNIT)
        text = text or near_miss(resources_of(decoded), annotations, ALIYUN)
    except WireError:  # a pod that the codec cannot read has no amount to check
        return ()
    return (text,) if text else ()


MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"


def media_type(call: Call) -> str:
    """Return the Content-Type without parameters."""
    return call.content_type.partition(";")[0].strip().lower()


def object_of(call: Call) -> Object:
    """Return the object in the body, from JSON or protobuf. Raises StatusError: 400, 415."""
    if media_type(call) == protobuf.MEDIA_TYPE:
        try:
            return protobuf.decode(call.body)
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


_SHOWN = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")


def scale_of(body: Object) -> Object:
    """Return the Scale of an object with replicas."""
    spec = section(body, "spec")
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {field: metadata(body)[field] for field in _SHOWN},
        "spec": {"replicas": spec.get("replicas", 0)},
        "status": {
            "replicas": section(body, "status").get("replicas", 0),
            "selector": selector_text(section(spec, "selector")),
        },
    }


def scaled(body: Object, scale: Object) -> Object:
    """Return the object with the replicas of a Scale. Raises StatusError: 400, 422."""
    replicas = section(scale, "spec").get("replicas", 0)
    if isinstance(replicas, bool) or not isinstance(replicas, int):
        raise bad_request(f"spec.replicas of a Scale must be an integer, not {replicas!r}")
    if replicas < 0:
        reason = f"Invalid value: {replicas}: must be greater than or equal to 0"
        raise invalid("Scale.autoscaling", str(metadata(body)["name"]), "spec.replicas", reason)
    scale_meta = {field: metadata(scale).get(field) for field in ("name", "uid", "resourceVersion")}
    meta = {**metadata(body), **{field: value for field, value in scale_meta.items() if value}}
    return {**body, "metadata": meta, "spec": {**section(body, "spec"), "replicas": replicas}}


def get_scale(registry: Registry, target: Target, call: Call) -> Response:
    """Return the Scale of the object."""
    del call
    return json_answer(scale_of(registry.get(target.resource, target.home, target.name).body))


def write_scale(registry: Registry, target: Target, call: Call) -> Response:
    """Return the Scale after a PUT or a PATCH."""
    change = changed_by(call)
    record = registry.revise(
        target.resource,
        target.home,
        target.name,
        lambda current: scaled(current, change(scale_of(current))),
        dry_run=call.dry_run,
    )
    return json_answer(scale_of(record.body))
