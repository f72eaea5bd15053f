"""Garbage collection: the dependents of deleted owners.

Facts: k8s.io/kubernetes pkg/controller/garbagecollector; the finalizers are set by the API server.
"""

from collections.abc import Collection

from gpushare_localcluster.client import Json
from gpushare_localcluster.controllers.cluster import Cluster, deleting

FOREGROUND, ORPHAN = "foregroundDeletion", "orphan"

_OWNED = ("ReplicaSet", "Pod", "Job", "Lease")
_OWNERS = (
    "Deployment",
    "Job",
    "JobSet",
    "LeaderWorkerSet",
    "Node",
    "ReplicaSet",
    "StatefulSet",
)


def collect(cluster: Cluster) -> None:
    """Delete objects without owners, and handle owners that wait for dependents."""
    # Dependents are listed first: an owner created after its list would look deleted.
    owned = [item for kind in _OWNED for item in cluster.items(kind)]
    owners = {item["metadata"]["uid"]: item for kind in _OWNERS for item in cluster.items(kind)}
    for item in owned:
        if not deleting(item) and _is_lost(item, owners.keys()):
            cluster.delete(item)
    for uid, owner in owners.items():
        finalizers = owner["metadata"].get("finalizers") or []
        dependents = [item for item in owned if uid in _owner_uids(item)]
        if ORPHAN in finalizers and deleting(owner):
            for item in dependents:
                cluster.disown(item, uid)
            _let_go(cluster, owner, ORPHAN)
        elif FOREGROUND in finalizers and deleting(owner):
            _delete_first(cluster, owner, dependents)


def _is_lost(item: Json, owners: Collection[str]) -> bool:
    """Return whether all owners of the object are of handled kinds and deleted."""
    references = _references(item)
    is_collected = bool(references) and all(
        reference["kind"] in _OWNERS for reference in references
    )
    return is_collected and not any(reference["uid"] in owners for reference in references)


def _delete_first(cluster: Cluster, owner: Json, dependents: list[Json]) -> None:
    for item in dependents:
        if not deleting(item):
            cluster.delete(item, "Foreground")
    if not dependents:
        _let_go(cluster, owner, FOREGROUND)


def _references(item: Json) -> list[Json]:
    references: list[Json] = item["metadata"].get("ownerReferences") or []
    return references


def _owner_uids(item: Json) -> set[str]:
    return {reference["uid"] for reference in _references(item)}


def _let_go(cluster: Cluster, owner: Json, finalizer: str) -> None:
    remaining = [item for item in owner["metadata"]["finalizers"] if item != finalizer]
    cluster.patch(owner, {"metadata": {"finalizers": remaining or None}})
