"""Deletion of objects: at once, after a grace period, after the last finalizer; and evictions.

Pure: the object as stored and the DeleteOptions in; the marked object out, and whether to remove
the object. Facts: k8s.io/apiserver pkg/registry/rest/delete.go, the pod strategy's
CheckGracefulDelete, k8s.io/kubernetes pkg/registry/core/pod/storage/eviction.go. Before an eviction
the budget that covers the pod decides. Healthy pods are not counted: the status of a budget says
how many evictions it allows.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from gpushare.wire.label_selectors import selects
from gpushare_localcluster.api.objects import (
    Object,
    elements,
    metadata,
    name_of,
    section,
    timestamp,
    with_fields,
    with_metadata,
)
from gpushare_localcluster.api.pods import with_condition
from gpushare_localcluster.api.resources import PODS, Resource
from gpushare_localcluster.api.status import StatusError, bad_request, conflict, invalid
from gpushare_localcluster.api.workloads import is_workload

ENDED = ("Succeeded", "Failed")
FINALIZERS = {"Background": (), "Foreground": ("foregroundDeletion",), "Orphan": ("orphan",)}
"""Finalizers of a deleted workload, by propagation policy; the garbage collector removes them."""


@dataclass(frozen=True, slots=True)
class DeleteOptions:
    """The options of a DELETE: seconds of grace (None: as the pod says) and preconditions."""

    grace: int | None = None
    uid: str | None = None
    version: str | None = None
    dry_run: bool = False
    propagation: str = "Background"


def decode_options(body: Object) -> DeleteOptions:
    """Return the options in the body of a DELETE. Raises StatusError: 400."""
    if body.get("kind", "DeleteOptions") != "DeleteOptions":
        raise bad_request(f"the body of a DELETE must be DeleteOptions, not {body['kind']!r}")
    grace = body.get("gracePeriodSeconds")
    if grace is not None and (isinstance(grace, bool) or not isinstance(grace, int)):
        raise bad_request("gracePeriodSeconds must be an integer")
    preconditions = body.get("preconditions") or {}
    if not isinstance(preconditions, dict):
        raise bad_request("preconditions must be an object")
    dry_run, policy = bool(body.get("dryRun")), body.get("propagationPolicy") or "Background"
    if body.get("orphanDependents"):
        policy = "Orphan"
    if policy not in FINALIZERS:
        reason = f"Unsupported value: {policy!r}: supported values: {', '.join(FINALIZERS)}"
        raise invalid("DeleteOptions", "", "propagationPolicy", reason)
    version = preconditions.get("resourceVersion")
    return DeleteOptions(grace, preconditions.get("uid"), version, dry_run, policy)


def marked(resource: Resource, body: Object, options: DeleteOptions, now: datetime) -> Object:
    """Return the object marked for deletion; the caller removes a `removable` one at once.

    Raises StatusError: 409 if a precondition fails.
    """
    check_preconditions(resource, body, options)
    if metadata(body).get("deletionTimestamp"):
        return _shortened(body, options.grace, now)
    if is_workload(resource) and FINALIZERS[options.propagation]:
        finalizers = (*(metadata(body).get("finalizers") or ()), *FINALIZERS[options.propagation])
        body = with_metadata(body, finalizers=list(finalizers))
    grace = grace_period(body, options.grace) if resource is PODS else 0
    return _ending(body, now + timedelta(seconds=grace), grace)


def check_preconditions(resource: Resource, body: Object, options: DeleteOptions) -> None:
    """Refuse to delete another object or another version. Raises StatusError: 409."""
    meta = metadata(body)
    for field, expected in (("uid", options.uid), ("resourceVersion", options.version)):
        if expected is not None and expected != meta.get(field):
            reason = (
                f"the {field} in the precondition ({expected}) does not match ({meta.get(field)})"
            )
            raise conflict(resource.qualified, name_of(body), reason)


def grace_period(pod: Object, requested_seconds: int | None) -> int:
    """Return the grace period of a pod in seconds: 0 for a pod without a node or that has ended."""
    spec = section(pod, "spec")
    if not spec.get("nodeName") or section(pod, "status").get("phase") in ENDED:
        return 0
    default_seconds = spec.get("terminationGracePeriodSeconds")
    grace = requested_seconds if requested_seconds is not None else default_seconds
    if not isinstance(grace, int):
        return 30
    return 1 if grace < 0 else grace


def removable(body: Object) -> bool:
    """Return whether a marked object has neither grace nor finalizers left."""
    meta = metadata(body)
    deleting = meta.get("deletionTimestamp") is not None
    return deleting and not meta.get("deletionGracePeriodSeconds") and not meta.get("finalizers")


def _shortened(body: Object, requested_seconds: int | None, now: datetime) -> Object:
    """Return a marked object after another DELETE, which can only shorten the grace period.

    The period starts at the first DELETE; if it is over by now, one second remains.
    """
    meta = metadata(body)
    old_grace = meta.get("deletionGracePeriodSeconds") or 0
    grace = 1 if requested_seconds is not None and requested_seconds < 0 else requested_seconds
    if grace is None or grace >= old_grace:
        return body
    end = datetime.fromisoformat(meta["deletionTimestamp"]) + timedelta(seconds=grace - old_grace)
    if end >= now:
        return _ending(body, end, grace)
    return _ending(body, now, min(grace, 1))


def _ending(body: Object, end: datetime, grace: int) -> Object:
    return with_metadata(body, deletionTimestamp=timestamp(end), deletionGracePeriodSeconds=grace)


_UNCOUNTED = ("Succeeded", "Failed", "Pending")


def covering(pod: Object, budgets: Iterable[Object]) -> str:
    """Return the name of the budget that covers the pod, "" for none.

    budgets: those of the pod's namespace. Raises StatusError: 500 for several covering budgets.
    """
    if section(pod, "status").get("phase") in _UNCOUNTED or metadata(pod).get("deletionTimestamp"):
        return ""
    labels = metadata(pod).get("labels") or {}
    names = [
        name_of(item) for item in budgets if selects(section(item, "spec").get("selector"), labels)
    ]
    if len(names) > 1:
        message = "This pod has more than one PodDisruptionBudget, which is not supported."
        raise StatusError(500, "", message)
    return names[0] if names else ""


def counted(budget: Object, pod: Object, now: str) -> Object:
    """Return the budget after the pod's eviction. Raises StatusError: 429 if none is allowed."""
    status = section(budget, "status")
    healthy, needed, allowed_count = (
        _count(status, field)
        for field in ("currentHealthy", "desiredHealthy", "disruptionsAllowed")
    )
    always = section(budget, "spec").get("unhealthyPodEvictionPolicy") == "AlwaysAllow"
    if not _ready(pod) and (always or healthy >= needed > 0):
        return budget
    if allowed_count <= 0:
        prefix = f"The disruption budget {name_of(budget)} needs {needed} healthy pods and has "
        cause = {"reason": "DisruptionBudget", "message": f"{prefix}{healthy} currently"}
        message = "Cannot evict pod as it would violate the pod's disruption budget."
        raise StatusError(429, "TooManyRequests", message, details={"causes": [cause]})
    disrupted_pods = {**section(status, "disruptedPods"), name_of(pod): now}
    changes = {"disruptionsAllowed": allowed_count - 1, "disruptedPods": disrupted_pods}
    return {**budget, "status": {**status, **changes}}


def disrupted(pod: Object, options: DeleteOptions, now: str) -> Object:
    """Return the pod with the condition DisruptionTarget. Raises StatusError: 409."""
    check_preconditions(PODS, pod, options)
    reason = {"reason": "EvictionByEvictionAPI", "message": "Eviction API: evicting"}
    status = with_condition(section(pod, "status"), "DisruptionTarget", "True", now, **reason)
    return with_fields(pod, status=status)


def _ready(pod: Object) -> bool:
    conditions = elements(section(pod, "status"), "conditions")
    return any(item.get("type") == "Ready" and item.get("status") == "True" for item in conditions)


def _count(status: Object, field: str) -> int:
    value = status.get(field)
    return value if isinstance(value, int) else 0
