"""Nodes: the taint of a node that is not ready, as the node lifecycle controller sets it.

Running pods stay: no pod is evicted here. Facts: k8s.io/kubernetes pkg/controller/nodelifecycle
(doNoScheduleTaintingPass).
"""

from gpushare_localcluster.client import Json
from gpushare_localcluster.controllers.cluster import Cluster
from gpushare_localcluster.controllers.pods import condition

_KEYS = {
    "False": "node.kubernetes.io/not-ready",
    "Unknown": "node.kubernetes.io/unreachable",
}
"""Taint keys by the status of the condition Ready; a node that is ready has none."""


def reconcile(cluster: Cluster, node: Json) -> None:
    """Add or remove the taint by the condition of the node."""
    before: list[Json] = (node.get("spec") or {}).get("taints") or []
    mine = [{"key": key, "effect": "NoSchedule"} for key in _KEYS.values()]
    taint_key = _KEYS.get(str(condition(node, "Ready").get("status")))
    taints = [taint for taint in before if _bare(taint) not in mine or taint["key"] == taint_key]
    if taint_key and not any(_bare(taint) in mine for taint in taints):
        taints.append({"key": taint_key, "effect": "NoSchedule"})
    if taints != before:
        cluster.patch(node, {"spec": {"taints": taints or None}})


def _bare(taint: Json) -> Json:
    return {"key": taint.get("key"), "effect": taint.get("effect")}
