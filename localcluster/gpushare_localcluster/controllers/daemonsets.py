"""DaemonSets: a pod for each node that they are for.

Facts: k8s.io/kubernetes pkg/controller/daemon. A second pod beside the first while one is replaced
(maxSurge) is never made.
"""

from contextlib import suppress

from gpushare.core.selectors import untolerated
from gpushare_localcluster.client import Json
from gpushare_localcluster.controllers.cluster import (
    RETRY,
    REVISION_LABEL,
    Cluster,
    deleting,
    name,
    share,
)
from gpushare_localcluster.controllers.pods import active, counted, ready, revision_of
from gpushare_localcluster.scheduler.objects import read_node, read_pod
from gpushare_localcluster.scheduler.plugins.node_affinity import required_affinity

_ALWAYS_TOLERATED = (
    ("not-ready", "NoExecute"),
    ("unreachable", "NoExecute"),
    ("disk-pressure", "NoSchedule"),
    ("memory-pressure", "NoSchedule"),
    ("pid-pressure", "NoSchedule"),
    ("unschedulable", "NoSchedule"),
)


def reconcile(cluster: Cluster, owner: Json) -> float | None:
    """Give each node that a DaemonSet is for its pod; return when to look again (seconds)."""
    update, others = cluster.revision(owner)
    digest = update["metadata"]["labels"][REVISION_LABEL]
    template = _template(owner["spec"]["template"])
    wanted = {name(node) for node in cluster.items("Node") if _may_run(template, node)}
    kept: dict[str, Json] = {}
    surplus, busy, later = [], set(), None
    for pod in cluster.claimed(owner, "Pod"):
        home = _home(pod)
        busy.add(home)
        if active(pod) and home in wanted and home not in kept:
            kept[home] = pod
        elif not deleting(pod):
            surplus.append(pod)
            later = RETRY
    for pod in surplus:
        cluster.delete_pod(owner, pod)
    for home in sorted(wanted - busy):
        if not cluster.create_pod(owner, _on_node(template, home), labels={REVISION_LABEL: digest}):
            later = RETRY
    alive = list(kept.values())
    is_ready, available, wait = counted(alive, owner)
    updated = [pod for pod in alive if revision_of(pod) == digest]
    _replace_outdated(
        cluster, owner, [pod for pod in alive if pod not in updated], len(wanted) - available
    )
    if len(updated) == len(wanted):
        cluster.forget_revisions(owner, others)
    cluster.set_status(
        owner,
        {
            "desiredNumberScheduled": len(wanted),
            "currentNumberScheduled": len(alive),
            "numberMisscheduled": len([pod for pod in surplus if active(pod)]),
            "numberReady": is_ready,
            "numberAvailable": available,
            "numberUnavailable": len(wanted) - available,
            "updatedNumberScheduled": len(updated),
        },
    )
    return later or wait


def _replace_outdated(cluster: Cluster, owner: Json, outdated: list[Json], missing: int) -> None:
    """Delete pods of another template: those that are not ready, and as many as can be missed."""
    strategy = owner["spec"]["updateStrategy"]
    if strategy["type"] != "RollingUpdate":
        return
    nodes = missing + len(outdated)
    spare = max(1, share(strategy["rollingUpdate"]["maxUnavailable"], nodes, up=True)) - missing
    for pod in outdated:
        if not ready(pod) or spare > 0:
            cluster.delete_pod(owner, pod)
            spare -= ready(pod)


def _template(template: Json) -> Json:
    """Return the template with the tolerations that the pods of every DaemonSet have."""
    spec: Json = template["spec"]
    always = [
        {"key": f"node.kubernetes.io/{key}", "operator": "Exists", "effect": effect}
        for key, effect in _ALWAYS_TOLERATED
    ]
    given = spec.get("tolerations") or []
    missing = [each for each in always if each not in given]
    return {**template, "spec": {**spec, "tolerations": [*given, *missing]}}


def _on_node(template: Json, home: str) -> Json:
    """Return the template for one node, bound to it by node affinity as the real controller does
    it.
    """
    only = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [home]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [only]}}
    affinity = {**(template["spec"].get("affinity") or {}), "nodeAffinity": required}
    return {**template, "spec": {**template["spec"], "affinity": affinity}}


def _home(pod: Json) -> str:
    """Return the node that a pod is on, or for; empty for one that another has made for no node."""
    if pod["spec"].get("nodeName"):
        return str(pod["spec"]["nodeName"])
    with suppress(KeyError, ValueError):
        terms = pod["spec"]["affinity"]["nodeAffinity"]
        (term,) = terms["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
        return str(term["matchFields"][0]["values"][0])
    return ""


def _may_run(template: Json, node: Json) -> bool:
    view = read_pod({"metadata": {"name": "", "uid": ""}, "spec": template["spec"]})
    info = read_node(node)
    return required_affinity(view, info) and not untolerated(info.taints, view.tolerations)
