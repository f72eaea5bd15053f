"""The sizes of a Deployment's ReplicaSets, and the distribution of a new number of pods.

Facts: k8s.io/kubernetes pkg/controller/deployment (sync.go, util/deployment_util.go).
"""

import math

from gpushare_localcluster.client import Json
from gpushare_localcluster.controllers.cluster import Cluster, name, share

REVISION = "deployment.kubernetes.io/revision"
_DESIRED = "deployment.kubernetes.io/desired-replicas"
_MOST = "deployment.kubernetes.io/max-replicas"


def was_rescaled(owner: Json, sets: list[Json]) -> bool:
    """Return whether the replicas of the Deployment differ from the note on the ReplicaSets."""
    desired = str(owner["spec"]["replicas"])
    notes = [item["metadata"].get("annotations") or {} for item in sets if replicas(item)]
    return any(note.get(_DESIRED, desired) != desired for note in notes)


def rescale(cluster: Cluster, owner: Json, new: Json | None, olds: list[Json]) -> None:
    """Distribute the replicas of the Deployment over the ReplicaSets, without a roll-out.

    An empty ReplicaSet stays empty, unless all are empty.
    """
    desired = int(owner["spec"]["replicas"])
    sets = [*olds, *([new] if new else [])]
    nonempty = [item for item in sets if replicas(item)]
    if len(nonempty) > 1 and new and _saturated(new, desired):
        for old in olds:
            scale(cluster, owner, old, 0)
    elif len(nonempty) > 1:
        for item, size in zip(*_in_proportion(owner, nonempty), strict=True):
            scale(cluster, owner, item, size)
    elif sets:
        scale(cluster, owner, (nonempty or [new or max(olds, key=revision)])[0], desired)


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
    desired = int(owner["spec"]["replicas"])
    return {_DESIRED: str(desired), _MOST: str(desired + surge(owner))}


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


def _saturated(new: Json, desired: int) -> bool:
    noted = (new["metadata"].get("annotations") or {}).get(_DESIRED)
    return (
        replicas(new) == desired
        and noted == str(desired)
        and count(new, "availableReplicas") == desired
    )


def _in_proportion(owner: Json, nonempty: list[Json]) -> tuple[list[Json], list[int]]:
    """Return the ReplicaSets, the largest first, and the new sizes; the largest gets the rest after
    rounding.
    """
    if owner["spec"]["strategy"]["type"] == "Recreate":
        return nonempty, [replicas(item) for item in nonempty]
    desired = int(owner["spec"]["replicas"])
    limit = desired + surge(owner) if desired else 0
    missing = limit - sum(map(replicas, nonempty))
    # Among equal ReplicaSets the newest grows first and the oldest shrinks first.
    nonempty = sorted(
        nonempty, key=lambda each: (each["metadata"]["creationTimestamp"], revision(each))
    )
    nonempty = sorted(nonempty[::-1] if missing > 0 else nonempty, key=replicas, reverse=True)
    sizes, remaining = [], missing
    for item in nonempty:
        step = _step(owner, item, limit)
        step = min(step, remaining) if missing > 0 else max(step, remaining)
        sizes.append(replicas(item) + step)
        remaining -= step
    return nonempty, [max(0, sizes[0] + remaining), *sizes[1:]]


def _step(owner: Json, item: Json, limit: int) -> int:
    """Return the growth of the ReplicaSet in proportion to the Deployment; negative: it shrinks."""
    if not limit:
        return -replicas(item)
    noted = (item["metadata"].get("annotations") or {}).get(_MOST, "0")
    before = (int(noted) if noted.isdecimal() else 0) or count(owner, "replicas")
    return math.floor(replicas(item) * limit / before + 0.5) - replicas(item) if before else 0
