"""The ReplicaSets of a Deployment: their numbers, and how another number of pods is shared out.

Facts: k8s.io/kubernetes pkg/controller/deployment (sync.go, util/deployment_util.go).
"""

import math

from gpushare_localcluster.client import Json
from gpushare_localcluster.controllers.cluster import Cluster, name, share

REVISION = "deployment.kubernetes.io/revision"
_DESIRED = "deployment.kubernetes.io/desired-replicas"
_MOST = "deployment.kubernetes.io/max-replicas"


def was_rescaled(owner: Json, sets: list[Json]) -> bool:
    """Return whether the Deployment wants another number of pods than its ReplicaSets were made
    for.
    """
    wanted = str(owner["spec"]["replicas"])
    notes = [each["metadata"].get("annotations") or {} for each in sets if replicas(each)]
    return any(note.get(_DESIRED, wanted) != wanted for note in notes)


def rescale(cluster: Cluster, owner: Json, new: Json | None, olds: list[Json]) -> None:
    """Share the Deployment's number of pods out among the ReplicaSets; nothing is rolled out.

    One that has no pods gets none, unless all are so: an old one does not come back.
    """
    wanted = int(owner["spec"]["replicas"])
    sets = [*olds, *([new] if new else [])]
    held = [each for each in sets if replicas(each)]
    if len(held) > 1 and new and _saturated(new, wanted):
        for old in olds:
            scale(cluster, owner, old, 0)
    elif len(held) > 1:
        for each, size in zip(*_in_proportion(owner, held), strict=True):
            scale(cluster, owner, each, size)
    elif sets:
        scale(cluster, owner, (held or [new or max(olds, key=revision)])[0], wanted)


def scale(cluster: Cluster, owner: Json, item: Json, size: int) -> None:
    """Give a ReplicaSet that many pods, and have it say for how many of the Deployment's."""
    before, told = replicas(item), item["metadata"].get("annotations") or {}
    notes = scale_notes(owner)
    if before == size and (not size or notes.items() <= told.items()):
        return
    cluster.patch(item, {"metadata": {"annotations": notes}, "spec": {"replicas": size}})
    item["metadata"] = {**item["metadata"], "annotations": {**told, **notes}}
    item["spec"] = {**item["spec"], "replicas": size}
    tell_scaled(cluster, owner, item, before)


def tell_scaled(cluster: Cluster, owner: Json, item: Json, before: int) -> None:
    """Tell by an event if a ReplicaSet has another number of pods than before."""
    after = replicas(item)
    if before != after:
        way = "up" if after > before else "down"
        why = f"Scaled {way} replica set {name(item)} from {before} to {after}"
        cluster.tell(owner, "ScalingReplicaSet", why)


def scale_notes(owner: Json) -> dict[str, str]:
    """Return the annotations that say for how many pods of the Deployment a ReplicaSet is."""
    wanted = int(owner["spec"]["replicas"])
    return {_DESIRED: str(wanted), _MOST: str(wanted + surge(owner))}


def surge(owner: Json) -> int:
    """Return how many pods may be there above those that are wanted."""
    spec: Json = owner["spec"]
    if spec["strategy"]["type"] == "Recreate":
        return 0
    return share(spec["strategy"]["rollingUpdate"]["maxSurge"], spec["replicas"], up=True)


def replicas(item: Json) -> int:
    """Return how many pods a ReplicaSet is to have."""
    return int(item["spec"].get("replicas") or 0)


def count(item: Json | None, field: str) -> int:
    """Return a number of a ReplicaSet's status, 0 where it says none."""
    return int(((item or {}).get("status") or {}).get(field) or 0)


def revision(item: Json) -> int:
    """Return the revision of a ReplicaSet or a Deployment, 0 where it says none."""
    text = (item["metadata"].get("annotations") or {}).get(REVISION, "0")
    return int(text) if text.isdecimal() else 0


def _saturated(new: Json, wanted: int) -> bool:
    told = (new["metadata"].get("annotations") or {}).get(_DESIRED)
    return (
        replicas(new) == wanted
        and told == str(wanted)
        and count(new, "availableReplicas") == wanted
    )


def _in_proportion(owner: Json, held: list[Json]) -> tuple[list[Json], list[int]]:
    """Return the ReplicaSets, the largest first, and the size of each; what rounding leaves goes
    to the largest.
    """
    if owner["spec"]["strategy"]["type"] == "Recreate":
        return held, [replicas(each) for each in held]
    wanted = int(owner["spec"]["replicas"])
    most = wanted + surge(owner) if wanted else 0
    missing = most - sum(map(replicas, held))
    # Of equal ones the newest grows first and the oldest shrinks first.
    held = sorted(held, key=lambda each: (each["metadata"]["creationTimestamp"], revision(each)))
    held = sorted(held[::-1] if missing > 0 else held, key=replicas, reverse=True)
    sizes, left = [], missing
    for each in held:
        step = _step(owner, each, most)
        step = min(step, left) if missing > 0 else max(step, left)
        sizes.append(replicas(each) + step)
        left -= step
    return held, [max(0, sizes[0] + left), *sizes[1:]]


def _step(owner: Json, item: Json, most: int) -> int:
    """Return by how much the ReplicaSet grows with the whole; negative: shrinks."""
    if not most:
        return -replicas(item)
    told = (item["metadata"].get("annotations") or {}).get(_MOST, "0")
    before = (int(told) if told.isdecimal() else 0) or count(owner, "replicas")
    return math.floor(replicas(item) * most / before + 0.5) - replicas(item) if before else 0
