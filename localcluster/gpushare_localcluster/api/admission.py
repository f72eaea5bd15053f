"""The rules of single kinds for objects that enter the store.

Pure: bodies in, bodies out; knows nothing of HTTP or storage. An object of a kind without rules
here is stored unchanged.
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
"""Metadata that a write of the status may also set."""

FIXED = ("uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds")
"""Metadata that only the server sets."""


PREEMPT, NEVER = "PreemptLowerPriority", "Never"
"""The preemption policies; a priority class without a policy has the first."""

HIGHEST = 1_000_000_000
"""The highest value of a priority class; the built-in classes of Kubernetes are above."""


def admitted(resource: Resource, body: Object, now: str) -> Object:
    """Return a new object in stored form; a pod already has the fields of its priority class.

    Raises StatusError: 400 or 422 for an object that breaks a rule of the kind.
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
    """Return the object with defaults and canonical quantities.

    Raises StatusError: 400 or 422 for an object that breaks a rule of the kind.
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
                field_path = f"status.{field}.{name}"
                check_amount("Node", name_of(body), field_path, name, quantity)
        return {**body, "spec": section(body, "spec"), "status": {**status, **lists}}
    if resource is PRIORITY_CLASSES:
        policy = body.get("preemptionPolicy") or PREEMPT
        filled = {**body, "value": _priority_value(body), "preemptionPolicy": policy}
        _check_own_class(filled)
        return filled
    if resource is NAMESPACES:
        labels = metadata(body).get("labels") or {}
        with_name = {**labels, "kubernetes.io/metadata.name": metadata(body).get("name")}
        return with_metadata({**body, "spec": {"finalizers": ["kubernetes"]}}, labels=with_name)
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
    """Return the object after a client updates `old` with `new`.

    part: the subresource of the request, or "".

    Raises StatusError: 409 if `new` is another object or version, 400 or 422 if the change is not
    allowed.
    """
    _check_same_object(resource, old, new)
    if part == "status":
        return _with_status_of(resource, old, new)
    old_meta = metadata(old)
    fixed_meta = {field: old_meta.get(field) for field in FIXED}
    body = with_metadata(
        _typed(resource, new),
        **fixed_meta,
        name=old_meta.get("name"),
        namespace=old_meta.get("namespace"),
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
        count = int(old_meta.get("generation") or 1) + (old.get("spec") != body.get("spec"))
        body = with_metadata(body, generation=count)
    return body


def _check_class(old: Object, new: Object) -> None:
    for field in ("value", "preemptionPolicy"):
        if new[field] != old[field]:
            reason = "Forbidden: may not be changed in an update."
            raise invalid("PriorityClass", str(metadata(old)["name"]), field, reason)


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
    old_meta, new_meta = metadata(old), metadata(new)
    name = str(old_meta["name"])
    for field in ("name", "namespace"):
        if (new_meta.get(field) or old_meta.get(field)) != old_meta.get(field):
            raise bad_request(f"the {field} of the object does not match that of the request")
    version = new_meta.get("resourceVersion")
    if version and version != old_meta["resourceVersion"]:
        reason = "the object has been modified; please apply your changes to the latest version and"
        raise conflict(resource.qualified, name, f"{reason} try again")
    if new_meta.get("uid") and new_meta["uid"] != old_meta["uid"]:
        reason = f"Invalid value: {new_meta['uid']!r}: field is immutable"
        raise invalid(resource.kind, name, "metadata.uid", reason)
    if not version and not resource.blind_update:
        reason = "Invalid value: 0: must be specified for an update"
        raise invalid(resource.kind, name, "metadata.resourceVersion", reason)
