"""What each kind adds to the general rules on its way into the store.

Pure: bodies in, bodies out; knows which kinds are special, and nothing of HTTP or storage. A kind
that is not named here is stored as it comes.
"""

from gpushare_localcluster.api import claims, pods, workloads
from gpushare_localcluster.api.objects import (
    Object,
    metadata,
    name_of,
    section,
    with_fields,
    with_metadata,
)
from gpushare_localcluster.api.quantities import canonical_list
from gpushare_localcluster.api.resources import (
    CLAIMS,
    NAMESPACES,
    NODES,
    PODS,
    PRIORITY_CLASSES,
    Resource,
)
from gpushare_localcluster.api.status import bad_request, conflict, invalid
from gpushare_localcluster.api.validation import check_amount

WITH_STATUS = ("labels", "annotations", "finalizers")
"""Metadata that a write of the status sets too."""

FIXED = ("uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds")
"""Metadata that only the server sets."""


PREEMPT, NEVER = "PreemptLowerPriority", "Never"
"""The preemption policies; the first is that of a priority class that names none."""

HIGHEST = 1_000_000_000
"""The highest value of a priority class; those that Kubernetes has itself are above."""


def admitted(resource: Resource, body: Object, now: str) -> Object:
    """Return a new object as the server stores it; a pod comes with what its class says.

    Raises StatusError: 400 or 422 for an object against the rules of its kind.
    """
    typed = _typed(resource, body)
    clean = with_metadata(typed, **dict.fromkeys((*FIXED, "resourceVersion", "selfLink")))
    clean = completed(resource, clean)
    if resource is PODS:
        return {**clean, "status": pods.new_status(clean, now)}
    if resource is NAMESPACES:
        return {**clean, "status": {"phase": "Active"}}
    if resource is CLAIMS:
        return {**clean, "status": {}}
    if resource.generation:
        clean = with_metadata({**clean, "status": {}}, generation=1)
    return clean


def completed(resource: Resource, body: Object) -> Object:
    """Return the object with its defaults and canonical quantities.

    Raises StatusError: 400 or 422 for an object against the rules of its kind.
    """
    if resource is PODS:
        return pods.with_defaults(body)
    if resource is NODES:
        status = section(body, "status")
        lists = {
            field: canonical_list(status[field], f"status.{field}")
            for field in ("capacity", "allocatable")
            if status.get(field) is not None
        }
        for field, amounts in lists.items():
            for name, quantity in amounts.items():
                where = f"status.{field}.{name}"
                check_amount("Node", name_of(body), where, name, quantity)
        return {**body, "spec": section(body, "spec"), "status": {**status, **lists}}
    if resource is PRIORITY_CLASSES:
        policy = body.get("preemptionPolicy") or PREEMPT
        filled = {**body, "value": _priority_value(body), "preemptionPolicy": policy}
        _check_own_class(filled)
        return filled
    if resource is NAMESPACES:
        labels = metadata(body).get("labels") or {}
        named = {**labels, "kubernetes.io/metadata.name": metadata(body).get("name")}
        return with_metadata({**body, "spec": {"finalizers": ["kubernetes"]}}, labels=named)
    if resource is CLAIMS:
        return claims.with_defaults(body)
    return workloads.with_defaults(resource, body) if workloads.is_workload(resource) else body


def _priority_value(body: Object) -> int:
    value = body.get("value", 0)
    if isinstance(value, bool) or not isinstance(value, int):
        raise bad_request(f"value of a PriorityClass must be an integer, not {value!r}")
    return value


def _check_own_class(body: Object) -> None:
    name = name_of(body)
    if name.startswith("system-"):
        raise invalid("PriorityClass", name, "metadata.name", "Forbidden: system- is reserved")
    if body["value"] > HIGHEST:
        raise invalid("PriorityClass", name, "value", f"Forbidden: may be {HIGHEST} at most")
    if body["preemptionPolicy"] not in (PREEMPT, NEVER):
        raise invalid("PriorityClass", name, "preemptionPolicy", "Unsupported value")


def _typed(resource: Resource, body: Object) -> Object:
    kind = {"kind": resource.kind, "apiVersion": resource.api_version}
    return {**kind, **body, **kind}


def revised(resource: Resource, old: Object, new: Object, *, part: str) -> Object:
    """Return the object that an update makes of `old` when a client sends `new`.

    part: the subresource that it is sent to, or "".

    Raises StatusError: 409 if `new` is of another object or version, 400 or 422 if it is not
    allowed.
    """
    _check_same_object(resource, old, new)
    if part == "status":
        return _with_status_of(resource, old, new)
    held = metadata(old)
    kept = {field: held.get(field) for field in FIXED}
    body = with_metadata(
        _typed(resource, new), **kept, name=held.get("name"), namespace=held.get("namespace")
    )
    if resource.status:
        body = with_fields(body, status=old.get("status"))
    if resource is PODS:
        body = pods.with_importance(old, body)
    body = completed(resource, body)
    if resource is PODS:
        pods.check_update(old, body)
    if resource is PRIORITY_CLASSES:
        _check_class(old, body)
    if resource is CLAIMS:
        claims.check_update(old, body)
    if workloads.is_workload(resource):
        workloads.check_update(resource, old, body)
    if resource.generation:
        count = int(held.get("generation") or 1) + (old.get("spec") != body.get("spec"))
        body = with_metadata(body, generation=count)
    return body


def _check_class(old: Object, new: Object) -> None:
    for field in ("value", "preemptionPolicy"):
        if new[field] != old[field]:
            why = "Forbidden: may not be changed in an update."
            raise invalid("PriorityClass", str(metadata(old)["name"]), field, why)


def _with_status_of(resource: Resource, old: Object, new: Object) -> Object:
    if resource is CLAIMS:
        return claims.with_status(old, new)
    meta = {field: metadata(new).get(field) for field in WITH_STATUS}
    replaced = with_metadata(with_fields(old, status=section(new, "status")), **meta)
    if resource is PODS:
        pods.check_status(old, replaced)
    if resource is NODES:
        return completed(resource, replaced)
    return replaced


def _check_same_object(resource: Resource, old: Object, new: Object) -> None:
    held, asked = metadata(old), metadata(new)
    name = str(held["name"])
    for field in ("name", "namespace"):
        if (asked.get(field) or held.get(field)) != held.get(field):
            raise bad_request(f"the {field} of the object does not match that of the request")
    version = asked.get("resourceVersion")
    if version and version != held["resourceVersion"]:
        why = "the object has been modified; please apply your changes to the latest version and"
        raise conflict(resource.qualified, name, f"{why} try again")
    if asked.get("uid") and asked["uid"] != held["uid"]:
        why = f"Invalid value: {asked['uid']!r}: field is immutable"
        raise invalid(resource.kind, name, "metadata.uid", why)
    if not version and not resource.blind_update:
        why = "Invalid value: 0: must be specified for an update"
        raise invalid(resource.kind, name, "metadata.resourceVersion", why)
