"""Evictions: the budget that covers the pod decides before the deletion.

Pure: the pod and the budgets in, the reduced budget out. Facts: k8s.io/kubernetes
pkg/registry/core/pod/storage/eviction.go. Healthy pods are not counted here: the status of a budget
says how many evictions it allows.
"""

from collections.abc import Iterable

from gpushare.wire.label_selectors import selects
from gpushare_localcluster.api.deletion import DeleteOptions, check_preconditions
from gpushare_localcluster.api.objects import (
    Object,
    elements,
    metadata,
    name_of,
    section,
    with_fields,
)
from gpushare_localcluster.api.pods import with_condition
from gpushare_localcluster.api.resources import PODS
from gpushare_localcluster.api.status import StatusError

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
    """Return the pod with the condition DisruptionTarget.

    Raises StatusError: 409 if a precondition fails.
    """
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
