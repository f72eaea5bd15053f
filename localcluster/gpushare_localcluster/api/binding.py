"""What POST pods/{name}/binding does to a pod: one write that sets node, annotations and condition.

Pure: the pod as stored and the Binding in, the bound pod out. Checked on real kube-apiservers 1.30
and 1.37: annotations (from 1.37 on labels, too) of the Binding are merged into the pod, `uid` and
`resourceVersion` are preconditions, and every refusal of a state is 409. What the pod was nominated
for is forgotten (from 1.35 on).
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

    Raises StatusError: 400 for a Binding of the wrong shape, 500 for one of another kind of target
    or without the name of a node, as kube-apiserver's storage does.
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
    """Refuse a Binding that is not for the pod in the path.

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
    asked = metadata(binding)
    changes: Object = {}
    for field in ("annotations", "labels"):
        if asked.get(field):
            changes[field] = {**(metadata(pod).get(field) or {}), **asked[field]}
    placed = {**pod, "spec": {**section(pod, "spec"), "nodeName": node}}
    status = with_condition(section(pod, "status"), "PodScheduled", "True", now)
    placed["status"] = with_fields(status, nominatedNodeName=None)
    return with_metadata(placed, **changes)


def _refusal(pod: Object, binding: Object) -> StatusError | None:
    name, held, asked = name_of(pod), metadata(pod), metadata(binding)
    for field, label in (("uid", "UID"), ("resourceVersion", "ResourceVersion")):
        if asked.get(field) and asked[field] != held.get(field):
            return conflict(
                RESOURCE,
                name,
                f"Precondition failed: {label} in precondition: {asked[field]}, "
                f"{label} in object meta: {held.get(field)}",
            )
    if held.get("deletionTimestamp"):
        why = f"pod {name} is being deleted, cannot be assigned to a host"
        return conflict(RESOURCE, name, why)
    assigned = section(pod, "spec").get("nodeName")
    if assigned:
        return conflict(RESOURCE, name, f'pod {name} is already assigned to node "{assigned}"')
    if section(pod, "spec").get("schedulingGates"):
        return conflict(RESOURCE, name, f"pod {name} has non-empty .spec.schedulingGates")
    return None
