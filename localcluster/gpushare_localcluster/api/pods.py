"""The rules for pods: defaults, checks, permitted updates, and the binding.

Pure: a body in, a body out. The pod already has the fields of its priority class. Facts:
k8s.io/kubernetes pkg/apis/core/v1/defaults.go, the admission plug-ins DefaultTolerationSeconds and
Priority, and pkg/apis/core/validation. A binding is one write that sets node, annotations and
condition. Checked on real kube-apiservers 1.30 and 1.37: annotations (from 1.37 on labels, too) of
the Binding are merged into the pod, `uid` and `resourceVersion` are preconditions, and every
refusal of a state is 409. The write removes the nomination (since 1.35).
"""

from gpushare_localcluster.api.objects import (
    Object,
    elements,
    metadata,
    name_of,
    namespace_of,
    section,
    with_fields,
    with_metadata,
)
from gpushare_localcluster.api.quantities import canonical_list, parse
from gpushare_localcluster.api.status import StatusError, bad_request, conflict, invalid
from gpushare_localcluster.api.validation import (
    check_amount,
    is_label,
    is_native,
    is_qualified,
    is_subdomain,
)

NATIVE = ("cpu", "memory", "ephemeral-storage")
POD_LEVEL = ("cpu", "memory")
"""Resources that a pod may request at pod level, besides hugepages."""
CONTAINER_LISTS = ("containers", "initContainers")
UPDATABLE = (
    "spec: Forbidden: pod updates may not change fields other than `spec.containers[*].image`,"
    "`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions"
    " to existing tolerations),`spec.schedulingGates` (only deletions)"
)

_SPEC_DEFAULTS: Object = {
    "restartPolicy": "Always",
    "terminationGracePeriodSeconds": 30,
    "dnsPolicy": "ClusterFirst",
    "serviceAccountName": "default",
    "serviceAccount": "default",
    "securityContext": {},
    "schedulerName": "default-scheduler",
    "enableServiceLinks": True,
}
_ONLY_PODS = ("serviceAccountName", "serviceAccount", "enableServiceLinks")
"""Defaults of a pod that a pod template does not get."""


def with_defaults(body: Object) -> Object:
    """Return the pod with the defaults that a real API server sets.

    Raises StatusError: 400 for values of the wrong type, 422 for a pod that breaks a rule.
    """
    spec = section(body, "spec")
    for field in (*CONTAINER_LISTS, "tolerations", "schedulingGates", "volumes"):
        value = [] if spec.get(field) is None else spec[field]
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise bad_request(f"spec.{field} must be a list of objects")
    _check_containers(body, spec)
    _check_pod_level(name_of(body), spec)
    if spec.get("schedulingGates") and spec.get("nodeName"):
        reason = "Forbidden: cannot be set until all schedulingGates have been cleared"
        raise invalid("Pod", name_of(body), "spec.nodeName", reason)
    filled = {**_SPEC_DEFAULTS, **with_fields(spec)}
    filled["tolerations"] = _tolerations(elements(spec, "tolerations"))
    for field in CONTAINER_LISTS:
        if field in spec:
            filled[field] = [_container(body, item) for item in elements(spec, field)]
    return {**body, "spec": filled}


def with_template_defaults(name: str, spec: Object) -> Object:
    """Return the spec of a pod template with defaults: fewer than those of a pod.

    name: of the pod in error messages.

    Raises StatusError: 400 or 422.
    """
    spec = with_fields(spec)
    pod: Object = {"metadata": {"name": name}, "spec": spec}
    filled = {**section(with_defaults(pod), "spec"), "tolerations": spec.get("tolerations")}
    for field in _ONLY_PODS:
        if field not in spec:
            del filled[field]
    for field in CONTAINER_LISTS:
        if field in spec:
            pairs = zip(filled[field], elements(spec, field), strict=True)
            filled[field] = [{**full, "resources": _asked(container)} for full, container in pairs]
    if "serviceAccountName" in spec:
        filled["serviceAccount"] = spec["serviceAccountName"]
    return with_fields(filled)


def _asked(container: Object) -> Object:
    """Return the resources of a template, without the requests derived from limits."""
    resources = section(container, "resources")
    lists = {field: canonical_list(resources.get(field), field) for field in ("limits", "requests")}
    return {**resources, **{field: amounts for field, amounts in lists.items() if amounts}}


def new_status(body: Object, now: str) -> Object:
    """Return the status of a new pod."""
    status: Object = {"phase": "Pending", "qosClass": qos_class(body)}
    if not section(body, "spec").get("schedulingGates"):
        return status
    message = "Scheduling is blocked due to non-empty scheduling gates"
    return with_condition(
        status, "PodScheduled", "False", now, reason="SchedulingGated", message=message
    )


def with_condition(status: Object, kind: str, value: str, now: str, **texts: str) -> Object:
    """Return a pod's status with the condition; texts: reason and message."""
    other_conditions = [item for item in elements(status, "conditions") if item.get("type") != kind]
    condition = {"type": kind, "status": value, "lastProbeTime": None, "lastTransitionTime": now}
    return {**status, "conditions": [*other_conditions, {**condition, **texts}]}


def check_update(old: Object, new: Object) -> None:
    """Refuse a change of an immutable field of the spec. Raises StatusError: 422."""
    before, after = section(old, "spec"), section(new, "spec")
    if before == after:
        return
    if _frozen(before) != _frozen(after) or not _only_permitted_changes(before, after):
        raise StatusError(422, "Invalid", f'Pod "{name_of(old)}" is invalid: {UPDATABLE}')


def check_status(old: Object, new: Object) -> None:
    """Refuse to nominate a pod that is bound. Raises StatusError: 422."""
    node, before = (section(pod, "status").get("nominatedNodeName") for pod in (new, old))
    if node and node != before and section(old, "spec").get("nodeName"):
        reason = "Forbidden: may not be set on pods that are already bound to a node"
        raise invalid("Pod", name_of(old), "status.nominatedNodeName", reason)


def _frozen(spec: Object) -> Object:
    """Return the immutable parts of the spec."""
    fixed = {
        field: value
        for field, value in spec.items()
        if field not in {"tolerations", "schedulingGates", "activeDeadlineSeconds"}
    }
    for field in CONTAINER_LISTS:
        fixed[field] = [with_fields(item, image=None) for item in elements(spec, field)]
    return fixed


def _only_permitted_changes(before: Object, after: Object) -> bool:
    tolerations = elements(after, "tolerations")
    keeps_tolerations = all(item in tolerations for item in elements(before, "tolerations"))
    gates = elements(before, "schedulingGates")
    only_removes_gates = all(item in gates for item in elements(after, "schedulingGates"))
    old, new = (spec.get("activeDeadlineSeconds") for spec in (before, after))
    sooner = old is None or (isinstance(old, int) and isinstance(new, int) and new <= old)
    return keeps_tolerations and only_removes_gates and sooner


def _check_containers(body: Object, spec: Object) -> None:
    name = name_of(body)
    if not spec.get("containers"):
        raise invalid("Pod", name, "spec.containers", "Required value")
    names: set[str] = set()
    for field in CONTAINER_LISTS:
        for index, container in enumerate(elements(spec, field)):
            called = container.get("name")
            if not isinstance(called, str) or not is_label(called):
                field_path = f"spec.{field}[{index}].name"
                raise invalid("Pod", name, field_path, f"Invalid value: {called!r} is no DNS label")
            if called in names:
                raise invalid("Pod", name, f"spec.{field}[{index}].name", "Duplicate value")
            names.add(called)
            if not container.get("image"):
                raise invalid("Pod", name, f"spec.{field}[{index}].image", "Required value")


def _check_pod_level(name: str, spec: Object) -> None:
    """Refuse a resource that only containers may request."""
    for field in ("limits", "requests"):
        for resource in section(section(spec, "resources"), field):
            if resource not in POD_LEVEL and not resource.startswith("hugepages-"):
                supported = 'supported values: "cpu", "hugepages-", "memory"'
                field_path = f"spec.resources.{field}[{resource}]"
                raise invalid(
                    "Pod", name, field_path, f'Unsupported value: "{resource}": {supported}'
                )


def _tolerations(pod_tolerations: list[Object]) -> list[Object]:
    """Return the tolerations, with 300 s for the taints not-ready and unreachable."""
    added = list(pod_tolerations)
    for condition in ("not-ready", "unreachable"):
        key = f"node.kubernetes.io/{condition}"
        tolerated = any(
            item.get("key") in (key, None, "") and item.get("effect") in ("NoExecute", None, "")
            for item in pod_tolerations
        )
        if not tolerated:
            toleration = {"key": key, "operator": "Exists", "effect": "NoExecute"}
            added.append({**toleration, "tolerationSeconds": 300})
    return added


def _container(pod: Object, container: Object) -> Object:
    image = str(container["image"])
    tagged = ":" in image.rpartition("/")[2] and not image.endswith(":latest")
    filled = {
        "imagePullPolicy": "IfNotPresent" if tagged else "Always",
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        **with_fields(container),
        "resources": _resources(pod, container),
    }
    if container.get("ports"):
        ports = elements(container, "ports")
        filled["ports"] = [{"protocol": "TCP", **port} for port in ports]
    return filled


def _resources(pod: Object, container: Object) -> Object:
    resources = container.get("resources")
    resources = {} if resources is None else resources
    if not isinstance(resources, dict):
        raise bad_request("resources of a container must be an object")
    limits = canonical_list(resources.get("limits"), "limits")
    requests = {**limits, **canonical_list(resources.get("requests"), "requests")}
    for resource, quantity in requests.items():
        _check_resource(pod, container, resource, quantity, limits.get(resource))
    filled = {field: value for field, value in resources.items() if value}
    if limits:
        filled["limits"] = limits
    if requests:
        filled["requests"] = requests
    return filled


def _check_resource(
    pod: Object, container: Object, resource: str, request: str, limit: str | None
) -> None:
    """Refuse an impossible resource, and an over-committed extended resource."""
    name = name_of(pod)
    field_path = f"spec.containers[{container.get('name')}].resources.{resource}"
    if resource.startswith("hugepages-"):
        return
    # Only resources of quotas are called requests.NAME.
    of_quota = resource.startswith("requests.") and not is_native(resource)
    odd = of_quota or ("/" not in resource and resource not in NATIVE)
    if odd or not is_qualified(resource):
        reason = f"Invalid value: {resource!r}: must be a standard resource type or fully qualified"
        raise invalid("Pod", name, field_path, reason)
    for amount in {request, limit or request}:
        check_amount("Pod", name, field_path, resource, amount)
    if is_native(resource):
        if limit is not None and parse(request)[0] > parse(limit)[0]:
            reason = f"must be less than or equal to {resource} limit of {limit}"
            raise invalid("Pod", name, field_path, f"Invalid value: {request!r}: {reason}")
    elif limit is None:
        reason = "Required value: Limit must be set for non overcommitable resources"
        reason = f"{reason}: write {resource}: {request} under limits"
        raise invalid("Pod", name, field_path, reason)
    elif limit != request:
        reason = f"Invalid value: {request!r}: must be equal to {resource} limit of {limit}"
        raise invalid("Pod", name, field_path, reason)


def qos_class(body: Object) -> str:
    """Return the quality-of-service class, by CPU and memory alone."""
    spec = section(body, "spec")
    all_resources = [
        section(container, "resources")
        for field in CONTAINER_LISTS
        for container in elements(spec, field)
    ]
    amounts = [
        (section(resources, "requests").get(name), section(resources, "limits").get(name))
        for resources in all_resources
        for name in ("cpu", "memory")
    ]
    if not any(request or limit for request, limit in amounts):
        return "BestEffort"
    equal = all(limit and limit == request for request, limit in amounts)
    return "Guaranteed" if equal else "Burstable"


_BINDING = "pods/binding"


def target_node(binding: Object) -> str:
    """Return the node that a Binding names. Raises StatusError: 400, 500."""
    target = binding.get("target") or {}
    if not isinstance(target, dict) or not isinstance(target.get("name") or "", str):
        raise bad_request("target of a Binding must be a reference to a node")
    if target.get("kind") not in (None, "", "Node"):
        raise StatusError(500, "", "target.kind: Unsupported value")
    name = str(target.get("name") or "")
    if not is_subdomain(name):
        raise StatusError(500, "", f"target.name: {name!r} is not the name of a node")
    return name


def check_binding(binding: Object, namespace: str, name: str) -> None:
    """Refuse a Binding of another pod than that in the path. Raises StatusError: 400, 500."""
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
                _BINDING,
                name,
                f"Precondition failed: {label} in precondition: {binding_meta[field]}, "
                f"{label} in object meta: {pod_meta.get(field)}",
            )
    if pod_meta.get("deletionTimestamp"):
        reason = f"pod {name} is being deleted, cannot be assigned to a host"
        return conflict(_BINDING, name, reason)
    assigned = section(pod, "spec").get("nodeName")
    if assigned:
        return conflict(_BINDING, name, f'pod {name} is already assigned to node "{assigned}"')
    if section(pod, "spec").get("schedulingGates"):
        return conflict(_BINDING, name, f"pod {name} has non-empty .spec.schedulingGates")
    return None
