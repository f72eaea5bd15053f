"""What POST pods/{name}/eviction does before it deletes: it asks the budget that covers the pod.

Pure: the pod and the budgets in, the budget counted down out. Facts: k8s.io/kubernetes
pkg/registry/core/pod/storage/eviction.go. Healthy pods are not counted here: a budget allows what
its status says.
"""

from collections.abc import Iterable

from gpushare.wire.budgets import selects
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
    """Return which budget of its namespace the pod's going counts against, "" if there is none.

    Raises StatusError: 500 where there are several, as a real server says.
    """
    if section(pod, "status").get("phase") in _UNCOUNTED or metadata(pod).get("deletionTimestamp"):
        return ""
    labels = metadata(pod).get("labels") or {}
    names = [
        name_of(item) for item in budgets if selects(section(item, "spec").get("selector"), labels)
    ]
    if len(names) > 1:
        why = "This pod has more than one PodDisruptionBudget, which is not supported."
        raise StatusError(500, "", why)
    return names[0] if names else ""


def counted(budget: Object, pod: Object, now: str) -> Object:
    """Return the budget after the pod's eviction. Raises StatusError: 429 where it allows none."""
    status = section(budget, "status")
    healthy, needed, allowed = (
        _count(status, field)
        for field in ("currentHealthy", "desiredHealthy", "disruptionsAllowed")
    )
    always = section(budget, "spec").get("unhealthyPodEvictionPolicy") == "AlwaysAllow"
    if not _ready(pod) and (always or healthy >= needed > 0):
        return budget
    if allowed <= 0:
        told = f"The disruption budget {name_of(budget)} needs {needed} healthy pods and has "
        cause = {"reason": "DisruptionBudget", "message": f"{told}{healthy} currently"}
        why = "Cannot evict pod as it would violate the pod's disruption budget."
        raise StatusError(429, "TooManyRequests", why, details={"causes": [cause]})
    gone = {**section(status, "disruptedPods"), name_of(pod): now}
    left = {"disruptionsAllowed": allowed - 1, "disruptedPods": gone}
    return {**budget, "status": {**status, **left}}


def disrupted(pod: Object, options: DeleteOptions, now: str) -> Object:
    """Return the pod with the condition that says why it goes.

    Raises StatusError: 409 if a precondition fails.
    """
    check_preconditions(PODS, pod, options)
    why = {"reason": "EvictionByEvictionAPI", "message": "Eviction API: evicting"}
    status = with_condition(section(pod, "status"), "DisruptionTarget", "True", now, **why)
    return with_fields(pod, status=status)


def _ready(pod: Object) -> bool:
    conditions = elements(section(pod, "status"), "conditions")
    return any(item.get("type") == "Ready" and item.get("status") == "True" for item in conditions)


def _count(status: Object, field: str) -> int:
    found = status.get(field)
    return found if isinstance(found, int) else 0
