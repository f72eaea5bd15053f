"""The rules of single kinds for objects that enter the store.

Pure: bodies in, bodies out; knows nothing of HTTP or storage. An object of a kind without rules
here is stored unchanged. Priority classes set fields of pods, as the admission plug-in Priority
does. As in a real API server, next to nothing of a claim's allocation is checked: no node, no
device, no amount, no finalizer (tried on kube-apiserver 1.37).
"""

from collections.abc import Iterable

from gpushare_localcluster.api import pods, workloads
from gpushare_localcluster.api.objects import (
    Object,
    elements,
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
from gpushare_localcluster.api.status import bad_request, conflict, forbidden, invalid
from gpushare_localcluster.api.validation import check_amount

WITH_STATUS = ("labels", "annotations", "finalizers")
"""Metadata that a write of the status may also set."""

FIXED = ("uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds")
"""Metadata that only the server sets."""


_PREEMPT = "PreemptLowerPriority"
"""The preemption policy of pods and priority classes without one."""


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
    """Return the object with defaults and canonical quantities. Raises StatusError: 400, 422."""
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
        value = body.get("value", 0)
        if isinstance(value, bool) or not isinstance(value, int):
            raise bad_request(f"value of a PriorityClass must be an integer, not {value!r}")
        policy = body.get("preemptionPolicy") or _PREEMPT
        return {**body, "value": value, "preemptionPolicy": policy}
    if resource is NAMESPACES:
        labels = metadata(body).get("labels") or {}
        with_name = {**labels, "kubernetes.io/metadata.name": metadata(body).get("name")}
        return with_metadata({**body, "spec": {"finalizers": ["kubernetes"]}}, labels=with_name)
    if resource is CLAIMS:
        return _with_claim_defaults(body)
    return workloads.with_defaults(resource, body) if workloads.is_workload(resource) else body


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
        # The priority stays, unless the update of a client sets one.
        fields, spec = ("priority", "preemptionPolicy"), section(old, "spec")
        importance = {field: spec[field] for field in fields if field in spec}
        body = {**body, "spec": {**importance, **with_fields(section(body, "spec"))}}
    body = completed(resource, body)
    if resource is PODS:
        pods.check_update(old, body)
    if resource is CLAIMS and old.get("spec") != body.get("spec"):
        raise invalid(resource.kind, name_of(old), "spec", "Invalid value: field is immutable")
    if workloads.is_workload(resource):
        workloads.check_update(resource, old, body)
    if resource.generation:
        count = int(old_meta.get("generation") or 1) + (old.get("spec") != body.get("spec"))
        body = with_metadata(body, generation=count)
    return body


def _with_status_of(resource: Resource, old: Object, new: Object) -> Object:
    if resource is CLAIMS:
        return _with_claim_status(old, new)
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


_BUILT_IN = {"system-cluster-critical": 2000000000, "system-node-critical": 2000001000}


def with_class(pod: Object, classes: Iterable[Object]) -> Object:
    """Return a new pod with the priority and the policy of the priority class.

    Raises StatusError: 403 for an unknown class, or for a value of the client that differs.
    """
    spec = with_fields(section(pod, "spec"))  # null counts as absent
    class_fields = _fields_from_class(pod, spec.get("priorityClassName"), list(classes))
    for field in ("priority", "preemptionPolicy"):
        if spec.get(field, class_fields[field]) != class_fields[field]:
            reason = (
                f"{field} ({spec[field]}) must not be provided in pod spec; priority admission "
            )
            reason += f"controller computed {class_fields[field]} from the given PriorityClass name"
            raise forbidden("pods", name_of(pod), reason)
    return {**pod, "spec": {**spec, **class_fields}}


def _fields_from_class(pod: Object, name: object, classes: list[Object]) -> Object:
    if not name:
        defaults = [item for item in classes if item.get("globalDefault")]
        if not defaults:
            return {"priority": 0, "preemptionPolicy": _PREEMPT}
        return _class_fields(min(defaults, key=lambda item: int(item["value"])))
    for item in classes:
        if name_of(item) == name:
            return _class_fields(item)
    if str(name) in _BUILT_IN:
        return {"priority": _BUILT_IN[str(name)], "preemptionPolicy": _PREEMPT}
    raise forbidden("pods", name_of(pod), f"no PriorityClass with name {name} was found")


def _class_fields(item: Object) -> Object:
    return {
        "priorityClassName": name_of(item),
        "priority": item["value"],
        "preemptionPolicy": item["preemptionPolicy"],
    }


def _with_claim_defaults(body: Object) -> Object:
    """Return the claim with the defaults of its requests: a count of one device."""
    spec = section(body, "spec")
    devices = section(spec, "devices")
    if not isinstance(devices.get("requests"), list):
        return body
    requests = [
        {**request, "exactly": _counted(exactly)}
        if (exactly := section(request, "exactly"))
        else request
        for request in elements(devices, "requests")
    ]
    return {**body, "spec": {**spec, "devices": {**devices, "requests": requests}}}


def _counted(exactly: Object) -> Object:
    mode = exactly.get("allocationMode") or "ExactCount"
    count = {"count": exactly.get("count") or 1} if mode == "ExactCount" else {}
    return {**exactly, "allocationMode": mode, **count}


def _with_claim_status(old: Object, new: Object) -> Object:
    """Return the claim with the new status and the old metadata. Raises StatusError: 422."""
    status = with_fields(section(new, "status"))
    before, after = section(section(old, "status"), "allocation"), section(status, "allocation")
    if before and after and before != after:
        field, reason = "allocation", "field cannot be modified once set"
    elif not after and status.get("reservedFor"):
        field = "reservedFor"
        reason = "Forbidden: may not be specified when `allocated` is not set"
    else:
        return {**old, "status": status}
    raise invalid("ResourceClaim", name_of(old), f"status.{field}", reason)
