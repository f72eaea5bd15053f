"""What a real API server does to pods on their way in: defaults, checks, what may change later.

Pure: a body in, a body out. What its priority class says is in the pod already, binding and
deletion are elsewhere. Facts: k8s.io/kubernetes pkg/apis/core/v1/defaults.go, the admission
plug-ins DefaultTolerationSeconds and Priority, and pkg/apis/core/validation.
"""

from gpushare_localcluster.api.objects import (
    Object,
    elements,
    name_of,
    section,
    with_fields,
)
from gpushare_localcluster.api.quantities import canonical_list, parse
from gpushare_localcluster.api.status import StatusError, bad_request, invalid
from gpushare_localcluster.api.validation import (
    check_amount,
    is_label,
    is_native,
    is_qualified,
)

NATIVE = ("cpu", "memory", "ephemeral-storage")
POD_LEVEL = ("cpu", "memory")
"""What a pod as a whole may ask for, besides hugepages."""
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
"""Defaults that a pod gets, and the template of pods does not."""


def with_defaults(body: Object) -> Object:
    """Return the pod with everything set that a real API server sets.

    Raises StatusError: 400 for values of the wrong type, 422 for a pod against the rules.
    """
    spec = section(body, "spec")
    for field in (*CONTAINER_LISTS, "tolerations", "schedulingGates", "volumes"):
        _check_list(spec, field)
    _check_containers(body, spec)
    _check_pod_level(name_of(body), spec)
    if spec.get("schedulingGates") and spec.get("nodeName"):
        why = "Forbidden: cannot be set until all schedulingGates have been cleared"
        raise invalid("Pod", name_of(body), "spec.nodeName", why)
    filled = {**_SPEC_DEFAULTS, **with_fields(spec)}
    filled["tolerations"] = _tolerations(elements(spec, "tolerations"))
    for field in CONTAINER_LISTS:
        if field in spec:
            filled[field] = [_container(body, item) for item in elements(spec, field)]
    return {**body, "spec": filled}


def with_template_defaults(name: str, spec: Object) -> Object:
    """Return the spec of a pod template with its defaults: less than a pod itself gets.

    Raises StatusError: 400 or 422, in the words for a pod called `name`.
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
            filled[field] = [{**full, "resources": _asked(given)} for full, given in pairs]
    if "serviceAccountName" in spec:
        filled["serviceAccount"] = spec["serviceAccountName"]
    return with_fields(filled)


def _asked(container: Object) -> Object:
    """Return the resources as a template says them; a pod of it requests what it is limited to."""
    given = section(container, "resources")
    lists = {field: canonical_list(given.get(field), field) for field in ("limits", "requests")}
    return {**given, **{field: amounts for field, amounts in lists.items() if amounts}}


def with_importance(old: Object, new: Object) -> Object:
    """Return the pod with the priority it has, where a client's update leaves it out."""
    told = ("priority", "preemptionPolicy")
    kept = {field: value for field, value in section(old, "spec").items() if field in told}
    return {**new, "spec": {**kept, **with_fields(section(new, "spec"))}}


def new_status(body: Object, now: str) -> Object:
    """Return the status of a pod just created, whatever the client sent."""
    status: Object = {"phase": "Pending", "qosClass": qos_class(body)}
    if not section(body, "spec").get("schedulingGates"):
        return status
    why = "Scheduling is blocked due to non-empty scheduling gates"
    return with_condition(
        status, "PodScheduled", "False", now, reason="SchedulingGated", message=why
    )


def with_condition(status: Object, kind: str, value: str, now: str, **why: str) -> Object:
    """Return a pod's status with the condition; `why` is its reason and message."""
    others = [item for item in elements(status, "conditions") if item.get("type") != kind]
    condition = {"type": kind, "status": value, "lastProbeTime": None, "lastTransitionTime": now}
    return {**status, "conditions": [*others, {**condition, **why}]}


def check_update(old: Object, new: Object) -> None:
    """Refuse a change of the spec that a real server refuses. Raises StatusError: 422."""
    before, after = section(old, "spec"), section(new, "spec")
    if before == after:
        return
    if _frozen(before) != _frozen(after) or not _only_permitted_changes(before, after):
        raise StatusError(422, "Invalid", f'Pod "{name_of(old)}" is invalid: {UPDATABLE}')


def check_status(old: Object, new: Object) -> None:
    """Refuse to nominate a pod that is bound. Raises StatusError: 422."""
    node, before = (section(pod, "status").get("nominatedNodeName") for pod in (new, old))
    if node and node != before and section(old, "spec").get("nodeName"):
        why = "Forbidden: may not be set on pods that are already bound to a node"
        raise invalid("Pod", name_of(old), "status.nominatedNodeName", why)


def _frozen(spec: Object) -> Object:
    """Return the parts of the spec that never change."""
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
    kept = all(item in tolerations for item in elements(before, "tolerations"))
    gates = elements(before, "schedulingGates")
    opened = all(item in gates for item in elements(after, "schedulingGates"))
    old, new = (spec.get("activeDeadlineSeconds") for spec in (before, after))
    sooner = old is None or (isinstance(old, int) and isinstance(new, int) and new <= old)
    return kept and opened and sooner


def _check_list(spec: Object, field: str) -> None:
    found = spec.get(field)
    if found is None:
        return
    if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
        raise bad_request(f"spec.{field} must be a list of objects")


def _check_containers(body: Object, spec: Object) -> None:
    name = name_of(body)
    if not spec.get("containers"):
        raise invalid("Pod", name, "spec.containers", "Required value")
    seen: set[str] = set()
    for field in CONTAINER_LISTS:
        for index, container in enumerate(elements(spec, field)):
            called = container.get("name")
            if not isinstance(called, str) or not is_label(called):
                where = f"spec.{field}[{index}].name"
                raise invalid("Pod", name, where, f"Invalid value: {called!r} is no DNS label")
            if called in seen:
                raise invalid("Pod", name, f"spec.{field}[{index}].name", "Duplicate value")
            seen.add(called)
            if not container.get("image"):
                raise invalid("Pod", name, f"spec.{field}[{index}].image", "Required value")


def _check_pod_level(name: str, spec: Object) -> None:
    """Refuse a resource that only containers may ask for."""
    for field in ("limits", "requests"):
        for resource in section(section(spec, "resources"), field):
            if resource not in POD_LEVEL and not resource.startswith("hugepages-"):
                known = 'supported values: "cpu", "hugepages-", "memory"'
                where = f"spec.resources.{field}[{resource}]"
                raise invalid("Pod", name, where, f'Unsupported value: "{resource}": {known}')


def _tolerations(given: list[Object]) -> list[Object]:
    """Return the tolerations with five minutes for a node that is not ready or unreachable."""
    added = list(given)
    for condition in ("not-ready", "unreachable"):
        key = f"node.kubernetes.io/{condition}"
        tolerated = any(
            item.get("key") in (key, None, "") and item.get("effect") in ("NoExecute", None, "")
            for item in given
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
    given = container.get("resources")
    given = {} if given is None else given
    if not isinstance(given, dict):
        raise bad_request("resources of a container must be an object")
    limits = canonical_list(given.get("limits"), "limits")
    requests = {**limits, **canonical_list(given.get("requests"), "requests")}
    for resource, quantity in requests.items():
        _check_resource(pod, container, resource, quantity, limits.get(resource))
    filled = {field: value for field, value in given.items() if value}
    if limits:
        filled["limits"] = limits
    if requests:
        filled["requests"] = requests
    return filled


def _check_resource(
    pod: Object, container: Object, resource: str, request: str, limit: str | None
) -> None:
    """Refuse a resource that there cannot be, and an extended one that is over-committed."""
    name, where = name_of(pod), f"spec.containers[{container.get('name')}].resources.{resource}"
    if resource.startswith("hugepages-"):
        return
    # The resources of a quota are called requests.NAME, those of a container never.
    of_quota = resource.startswith("requests.") and not is_native(resource)
    odd = of_quota or ("/" not in resource and resource not in NATIVE)
    if odd or not is_qualified(resource):
        why = f"Invalid value: {resource!r}: must be a standard resource type or fully qualified"
        raise invalid("Pod", name, where, why)
    for amount in {request, limit or request}:
        check_amount("Pod", name, where, resource, amount)
    if is_native(resource):
        if limit is not None and parse(request)[0] > parse(limit)[0]:
            why = f"must be less than or equal to {resource} limit of {limit}"
            raise invalid("Pod", name, where, f"Invalid value: {request!r}: {why}")
    elif limit is None:
        why = "Required value: Limit must be set for non overcommitable resources"
        why = f"{why}: write {resource}: {request} under limits"
        raise invalid("Pod", name, where, why)
    elif limit != request:
        why = f"Invalid value: {request!r}: must be equal to {resource} limit of {limit}"
        raise invalid("Pod", name, where, why)


def qos_class(body: Object) -> str:
    """Return the quality-of-service class, which only CPU and memory decide."""
    spec = section(body, "spec")
    asked = [
        section(container, "resources")
        for field in CONTAINER_LISTS
        for container in elements(spec, field)
    ]
    wanted = [
        (section(resources, "requests").get(name), section(resources, "limits").get(name))
        for resources in asked
        for name in ("cpu", "memory")
    ]
    if not any(request or limit for request, limit in wanted):
        return "BestEffort"
    return (
        "Guaranteed"
        if all(limit and limit == request for request, limit in wanted)
        else ("Burstable")
    )
