"""LeaderWorkerSets: groups of a leader and workers.

Facts: sigs.k8s.io/lws pkg/controllers and pkg/webhooks (names, labels and annotations of pods).
Workers are created as soon as the leader exists, as by startupPolicy LeaderCreated. The real
controller creates StatefulSets; here the LeaderWorkerSet owns the pods itself. Roll-outs and the
restart of whole groups are left out.
"""

from gpushare_localcluster.client import Json
from gpushare_localcluster.controllers.cluster import RETRY, Cluster, hashed, name
from gpushare_localcluster.controllers.pods import active, ready

_PREFIX = "leaderworkerset.sigs.k8s.io"


def reconcile(cluster: Cluster, owner: Json) -> float | None:
    """Create the missing leaders and workers, and delete surplus pods."""
    template = owner["spec"]["leaderWorkerTemplate"]
    replicas, size = owner["spec"].get("replicas", 1), template.get("size", 1)
    pods = {name(pod): pod for pod in cluster.owned(owner, "Pod")}
    is_refused = False
    for group in range(replicas):
        for worker in range(size):
            if _title(owner, group, worker) not in pods:
                is_refused |= not _create(cluster, owner, group, worker)
    for title in pods.keys() - {_title(owner, g, w) for g in range(replicas) for w in range(size)}:
        cluster.delete_pod(owner, pods[title])
    leaders = [pods.get(_title(owner, group, 0)) for group in range(replicas)]
    alive = [leader for leader in leaders if leader is not None and active(leader)]
    cluster.set_status(owner, {"replicas": len(alive), "readyReplicas": sum(map(ready, alive))})
    return RETRY if is_refused else None


def _title(owner: Json, group: int, worker: int) -> str:
    return f"{name(owner)}-{group}" + (f"-{worker}" if worker else "")


def _create(cluster: Cluster, owner: Json, group: int, worker: int) -> bool:
    template = owner["spec"]["leaderWorkerTemplate"]
    leader = _title(owner, group, 0)
    labels = {
        f"{_PREFIX}/name": name(owner),
        f"{_PREFIX}/group-index": str(group),
        f"{_PREFIX}/group-key": hashed([owner["metadata"]["namespace"], leader]),
        f"{_PREFIX}/worker-index": str(worker),
    }
    annotations = {f"{_PREFIX}/size": str(template.get("size", 1))}
    if worker:
        annotations[f"{_PREFIX}/leader-name"] = leader
    worker_template = template["workerTemplate"]
    pod_template = worker_template if worker else template.get("leaderTemplate") or worker_template
    title = _title(owner, group, worker)
    return cluster.create_pod(
        owner, pod_template, name=title, labels=labels, annotations=annotations
    )
