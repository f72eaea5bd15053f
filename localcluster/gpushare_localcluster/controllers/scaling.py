"""The sizes of a Deployment's ReplicaSets, and the distribution of a new number of pods.

Facts: k8s.io/kubernetes pkg/controller/deployment (sync.go, util/deployment_util.go).
"""

from gpushare_localcluster.client import Json
from gpushare_localcluster.controllers.cluster import Cluster, name, share

REVISION = "deployment.kubernetes.io/revision"
_DESIRED = "deployment.kubernetes.io/desired-replicas"


def was_rescaled(owner: Json, sets: list[Json]) -> bool:
    """Return whether the replicas of the Deployment differ from the note on the ReplicaSets."""
    desired = str(owner["spec"]["replicas"])
    notes = [item["metadata"].get("annotations") or {} for item in sets if replicas(item)]
    return any(note.get(_DESIRED, desired) != desired for note in notes)


def rescale(cluster: Cluster, owner: Json, new: Json | None, olds: list[Json]) -> None:
    """Give the replicas of the Deployment to the ReplicaSets, without a roll-out.

    The newest ReplicaSet with pods grows, and shrinks first. kube-controller-manager shares a
    change in proportion. An empty ReplicaSet stays empty, unless all are empty.
    """
    latest_first = [*([new] if new else []), *sorted(olds, key=revision, reverse=True)]
    sets = [item for item in latest_first if replicas(item)] or latest_first[:1]
    desired, total = int(owner["spec"]["replicas"]), sum(map(replicas, sets))
    # In the midst of a roll-out there may be more pods, as many as may surge.
    limit = desired + surge(owner) if desired and len(sets) > 1 else desired
    missing = min(max(desired, total), limit) - total
    for item in sets:
        before = replicas(item)
        scale(cluster, owner, item, max(0, before + missing))
        missing -= replicas(item) - before


def scale(cluster: Cluster, owner: Json, item: Json, size: int) -> None:
    """Set the size of a ReplicaSet, and note the replicas of the Deployment on it."""
    before, annotations = replicas(item), item["metadata"].get("annotations") or {}
    notes = scale_notes(owner)
    if before == size and (not size or notes.items() <= annotations.items()):
        return
    cluster.patch(item, {"metadata": {"annotations": notes}, "spec": {"replicas": size}})
    item["metadata"] = {**item["metadata"], "annotations": {**annotations, **notes}}
    item["spec"] = {**item["spec"], "replicas": size}
    tell_scaled(cluster, owner, item, before)


def tell_scaled(cluster: Cluster, owner: Json, item: Json, before: int) -> None:
    """Write an event if the size of a ReplicaSet changed."""
    after = replicas(item)
    if before != after:
        way = "up" if after > before else "down"
        message = f"Scaled {way} replica set {name(item)} from {before} to {after}"
        cluster.tell(owner, "ScalingReplicaSet", message)


def scale_notes(owner: Json) -> dict[str, str]:
    """Return the annotations of a ReplicaSet with the replicas of the Deployment."""
    return {_DESIRED: str(owner["spec"]["replicas"])}


def surge(owner: Json) -> int:
    """Return how many pods may exist above the replicas of the Deployment."""
    spec: Json = owner["spec"]
    if spec["strategy"]["type"] == "Recreate":
        return 0
    return share(spec["strategy"]["rollingUpdate"]["maxSurge"], spec["replicas"], up=True)


def replicas(item: Json) -> int:
    """Return the size of a ReplicaSet in its spec."""
    return int(item["spec"].get("replicas") or 0)


def count(item: Json | None, field: str) -> int:
    """Return a number in a ReplicaSet's status, 0 for a missing one."""
    return int(((item or {}).get("status") or {}).get(field) or 0)


def revision(item: Json) -> int:
    """Return the revision of a ReplicaSet or a Deployment, 0 for a missing one."""
    text = (item["metadata"].get("annotations") or {}).get(REVISION, "0")
    return int(text) if text.isdecimal() else 0
