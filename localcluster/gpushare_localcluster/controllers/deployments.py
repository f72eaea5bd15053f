"""ReplicaSets, and Deployments: one ReplicaSet for each pod template; roll-outs scale ReplicaSets.

Facts: k8s.io/kubernetes pkg/controller/replicaset and pkg/controller/deployment (rolling.go,
recreate.go, progress.go, sync.go, util/deployment_util.go).
"""

from gpushare_localcluster.client import Json
from gpushare_localcluster.controllers.cluster import (
    RETRY,
    Cluster,
    active,
    condition,
    counted,
    deleting,
    first_to_go,
    hashed,
    name,
    share,
    with_condition,
)

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


def reconcile_replica_set(cluster: Cluster, owner: Json) -> float | None:
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


_HASH = "pod-template-hash"
_PROGRESSING = "Progressing"
_AVAILABLE = "NewReplicaSetAvailable"
_NOT_COPIED = ("kubectl.kubernetes.io/last-applied-configuration", REVISION)
_OLD_PODS_END_SECONDS = 0.1


def reconcile_deployment(cluster: Cluster, owner: Json) -> float | None:
    """Bring a Deployment one step further; return the seconds until the next step."""
    sets = cluster.claimed(owner, "ReplicaSet")
    template = _template(owner)
    new = next((item for item in sets if _template(item) == template), None)
    olds = [item for item in sets if item is not new]
    if owner["spec"].get("paused") or was_rescaled(owner, sets):
        rescale(cluster, owner, new, olds)
    elif owner["spec"]["strategy"]["type"] == "Recreate" and _still_running(cluster, owner, olds):
        for old in olds:
            scale(cluster, owner, old, 0)
        _tell(cluster, owner, new, olds)
        return _OLD_PODS_END_SECONDS  # the end of the last pod changes no ReplicaSet
    else:
        new = _newest(cluster, owner, new, olds)
        before = replicas(new)
        scale(cluster, owner, new, min(owner["spec"]["replicas"], _room(owner, before, olds)))
        if replicas(new) == before:
            _shrink(cluster, owner, new, olds)
    _tell(cluster, owner, new, olds)
    return None


def _template(item: Json) -> Json:
    """Return the pod template without the label `pod-template-hash`."""
    template: Json = item["spec"]["template"]
    labels = {**(template["metadata"].get("labels") or {})}
    labels.pop(_HASH, None)
    return {**template, "metadata": {**template["metadata"], "labels": labels}}


def _still_running(cluster: Cluster, owner: Json, olds: list[Json]) -> bool:
    uids = {old["metadata"]["uid"] for old in olds}
    pods = cluster.items("Pod", owner["metadata"]["namespace"]) if uids else []
    return any(replicas(old) for old in olds) or any(
        reference["uid"] in uids and (active(pod) or deleting(pod))
        for pod in pods
        for reference in pod["metadata"].get("ownerReferences") or ()
    )


def _newest(cluster: Cluster, owner: Json, new: Json | None, olds: list[Json]) -> Json:
    """Return the ReplicaSet of the template with the highest revision; create a missing one."""
    number = max([revision(old) for old in olds], default=0) + 1
    annotations = owner["metadata"].get("annotations") or {}
    notes = {key: value for key, value in annotations.items() if key not in _NOT_COPIED}
    if new is None:
        new = _create(cluster, owner, olds, {**notes, REVISION: str(number)})
    else:
        notes[REVISION] = str(max(number, revision(new)))
        if not notes.items() <= (new["metadata"].get("annotations") or {}).items():
            new = cluster.patch(new, {"metadata": {"annotations": notes}})
    if annotations.get(REVISION) != str(revision(new)):
        revision_note = {REVISION: str(revision(new))}
        cluster.patch(owner, {"metadata": {"annotations": revision_note}})
    return new


def _create(cluster: Cluster, owner: Json, olds: list[Json], annotations: Json) -> Json:
    spec, template = owner["spec"], _template(owner)
    digest = hashed(template)
    labels = {**template["metadata"]["labels"], _HASH: digest}
    selector = spec["selector"]
    body = {
        "metadata": {
            "name": f"{name(owner)}-{digest}",
            "labels": labels,
            "annotations": {**annotations, **scale_notes(owner)},
        },
        "spec": {
            "replicas": _room(owner, 0, olds),
            "minReadySeconds": spec.get("minReadySeconds") or 0,
            "selector": {
                **selector,
                "matchLabels": {**(selector.get("matchLabels") or {}), _HASH: digest},
            },
            "template": {**template, "metadata": {**template["metadata"], "labels": labels}},
        },
    }
    new = cluster.create("ReplicaSet", owner, body)
    tell_scaled(cluster, owner, new, 0)
    return new


def _room(owner: Json, now: int, olds: list[Json]) -> int:
    """Return how many replicas the newest ReplicaSet may have, beside those of the old ones.

    A ReplicaSet that shrinks counts with its old pods until the status shows fewer.
    kube-controller-manager counts the new size alone, and can exceed maxSurge for a moment.
    """
    desired: int = owner["spec"]["replicas"]
    if owner["spec"]["strategy"]["type"] == "Recreate":
        return desired
    total = now + sum(max(replicas(old), count(old, "replicas")) for old in olds)
    return min(desired, now + max(0, desired + surge(owner) - total))


def _shrink(cluster: Cluster, owner: Json, new: Json, olds: list[Json]) -> None:
    """Scale the old ReplicaSets down: unavailable pods first, then up to maxUnavailable."""
    min_available = owner["spec"]["replicas"] - _max_unavailable(owner)
    missing = replicas(new) - count(new, "availableReplicas")
    removable = replicas(new) + sum(map(replicas, olds)) - min_available - missing
    if removable <= 0:
        return
    for old in olds:
        unhealthy = max(0, min(removable, replicas(old) - count(old, "availableReplicas")))
        scale(cluster, owner, old, replicas(old) - unhealthy)
        removable -= unhealthy
    # A pod that a ReplicaSet is deleting may still count as available.
    available = (min(replicas(item), count(item, "availableReplicas")) for item in (new, *olds))
    spare = min(removable, sum(available) - min_available)
    for old in olds:
        removed = max(0, min(replicas(old), spare))
        scale(cluster, owner, old, replicas(old) - removed)
        spare -= removed


def _tell(cluster: Cluster, owner: Json, new: Json | None, olds: list[Json]) -> None:
    """Write the status."""
    sets = [item for item in (new, *olds) if item]
    desired, conditions = (
        owner["spec"]["replicas"],
        (owner.get("status") or {}).get("conditions") or [],
    )
    fields = ("replicas", "readyReplicas", "availableReplicas")
    counts = {field: sum(count(item, field) for item in sets) for field in fields}
    counts["updatedReplicas"] = updated = count(new, "replicas")
    available = counts["availableReplicas"]
    counts["unavailableReplicas"] = max(0, sum(map(replicas, sets)) - available)
    complete = new is not None and desired == updated == counts["replicas"] == available
    word, status = "does not have", "False"
    if available >= desired - _max_unavailable(owner):
        word, status = "has", "True"
    reason = f"MinimumReplicas{'Available' if status == 'True' else 'Unavailable'}"
    message = f"Deployment {word} minimum availability."
    conditions = with_condition(conditions, "Available", status, reason, message)
    is_done = condition(owner, _PROGRESSING).get("reason") == _AVAILABLE
    if owner["spec"].get("paused"):
        message = "Deployment is paused"
        conditions = with_condition(
            conditions, _PROGRESSING, "Unknown", "DeploymentPaused", message
        )
    elif new is not None and not (is_done and counts["replicas"] == updated):
        reason = _AVAILABLE if complete else "ReplicaSetUpdated"
        words = "has successfully progressed" if complete else "is progressing"
        message = f'ReplicaSet "{name(new)}" {words}.'
        conditions = with_condition(conditions, _PROGRESSING, "True", reason, message)
    cluster.set_status(owner, {**counts, "conditions": conditions})
    if complete:
        _clean(cluster, owner, olds)


def _clean(cluster: Cluster, owner: Json, olds: list[Json]) -> None:
    """Delete the oldest ReplicaSets beyond the limit of the history."""
    idle = [old for old in olds if not replicas(old) and not count(old, "replicas")]
    excess = len(idle) - owner["spec"]["revisionHistoryLimit"]
    for old in sorted(idle, key=revision)[: max(0, excess)]:
        cluster.delete(old)


def _max_unavailable(owner: Json) -> int:
    spec: Json = owner["spec"]
    if spec["strategy"]["type"] == "Recreate" or not spec["replicas"]:
        return 0
    rolling, desired = spec["strategy"]["rollingUpdate"], int(spec["replicas"])
    limit = share(rolling["maxUnavailable"], desired, up=False)
    # If both percentages round to zero, one pod at a time is replaced.
    return min(desired, limit or int(not surge(owner)))
