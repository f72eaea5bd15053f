"""ReplicaSets: a number of pods of one template.

Facts: k8s.io/kubernetes pkg/controller/replicaset.
"""

from gpushare_localcluster.client import Json
from gpushare_localcluster.controllers.cluster import RETRY, Cluster, with_condition
from gpushare_localcluster.controllers.pods import active, counted, first_to_go


def reconcile(cluster: Cluster, owner: Json) -> float | None:
    """Create or delete pods up to the replicas; return the seconds until the next step."""
    pods = [pod for pod in cluster.claimed(owner, "Pod") if active(pod)]
    excess = len(pods) - int(owner["spec"]["replicas"])
    template: Json = owner["spec"]["template"]
    is_refused = any(not cluster.create_pod(owner, template) for _ in range(-excess))
    for pod in sorted(pods, key=first_to_go)[: max(0, excess)]:
        cluster.delete_pod(owner, pod)
    is_ready, available, later = counted(pods, owner)
    conditions = (owner.get("status") or {}).get("conditions") or []
    if is_refused:
        message = "a pod was refused; the events of this object say why"
        conditions = with_condition(conditions, "ReplicaFailure", "True", "FailedCreate", message)
    else:
        conditions = [item for item in conditions if item["type"] != "ReplicaFailure"]
    counts = {"replicas": len(pods), "readyReplicas": is_ready, "availableReplicas": available}
    labels = template["metadata"].get("labels") or {}
    alike = [p for p in pods if labels.items() <= (p["metadata"].get("labels") or {}).items()]
    counts["fullyLabeledReplicas"] = len(alike)
    cluster.set_status(owner, {**counts, "conditions": conditions or None})
    return RETRY if is_refused else later
