"""The binding of a pod: one write that sets node, annotations and condition.

Pure: the pod as stored and the Binding in, the bound pod out. Checked on real kube-apiservers 1.30
and 1.37: annotations (from 1.37 on labels, too) of the Binding are merged into the pod, `uid` and
`resourceVersion` are preconditions, and every refusal of a state is 409. The write removes the
nomination (since 1.35).
"""

from gpushare_localcluster.api.objects import (
    Object,
    metadata,
    name_of,
    namespace_of,
    section,
    with_fields,
    with_metadata,
)
from gpushare_localcluster.api.pods import with_condition
from gpushare_localcluster.api.status import StatusError, bad_request, conflict
from gpushare_localcluster.api.validation import is_subdomain

RESOURCE = "pods/binding"


def target_node(binding: Object) -> str:
    """Return the node that a Binding names.

    Raises StatusError: 400 for a Binding of the wrong shape, 500 for a target of another kind or
    without the name of a node, as kube-apiserver answers.
    """
    target = binding.get("target") or {}
    if not isinstance(target, dict) or not isinstance(target.get("name") or "", str):
        raise bad_request("target of a Binding must be a reference to a node")
    if target.get("kind") not in (None, "", "Node"):
        raise StatusError(500, "", "target.kind: Unsupported value")
    name = str(target.get("name") or "")
    if not is_subdomain(name):
        raise StatusError(500, "", f"target.name: {name!r} is not the name of a node")
    return name


def check(binding: Object, namespace: str, name: str) -> None:
    """Refuse a Binding of another pod than that in the path.

    Raises StatusError: 400, or as `target_node` does.
    """
    if binding.get("kind", "Binding") != "Binding":
        raise bad_request(f"expected a Binding, not {binding['kind']!r}")
    if name_of(binding) != name:
        raise bad_request(f"the Binding is for pod {name_of(binding)!r}, the path for {name!r}")
    home = namespace_of(binding) or namespace
    if home != namespace:
        raise bad_request(f"the Binding is for namespace {home!r}, the path for {namespace!r}")
    target_node(binding)


def bound(pod: Object, binding: Object, now: str) -> Object:
    """Return the pod on the node of the Binding; `now` is the time of the PodScheduled condition.

    Raises StatusError: 409 if a precondition fails or the pod is terminating, bound or gated.
    """
    node = target_node(binding)
    refusal = _refusal(pod, binding)
    if refusal is not None:
        raise refusal
    binding_meta = metadata(binding)
    changes: Object = {}
    for field in ("annotations", "labels"):
        if binding_meta.get(field):
            changes[field] = {**(metadata(pod).get(field) or {}), **binding_meta[field]}
    bound_pod = {**pod, "spec": {**section(pod, "spec"), "nodeName": node}}
    status = with_condition(section(pod, "status"), "PodScheduled", "True", now)
    bound_pod["status"] = with_fields(status, nominatedNodeName=None)
    return with_metadata(bound_pod, **changes)


def _refusal(pod: Object, binding: Object) -> StatusError | None:
    name, pod_meta, binding_meta = name_of(pod), metadata(pod), metadata(binding)
    for field, label in (("uid", "UID"), ("resourceVersion", "ResourceVersion")):
        if binding_meta.get(field) and binding_meta[field] != pod_meta.get(field):
            return conflict(
                RESOURCE,
                name,
                f"Precondition failed: {label} in precondition: {binding_meta[field]}, "
                f"{label} in object meta: {pod_meta.get(field)}",
            )
    if pod_meta.get("deletionTimestamp"):
        reason = f"pod {name} is being deleted, cannot be assigned to a host"
        return conflict(RESOURCE, name, reason)
    assigned = section(pod, "spec").get("nodeName")
    if assigned:
        return conflict(RESOURCE, name, f'pod {name} is already assigned to node "{assigned}"')
    if section(pod, "spec").get("schedulingGates"):
        return conflict(RESOURCE, name, f"pod {name} has non-empty .spec.schedulingGates")
    return None
