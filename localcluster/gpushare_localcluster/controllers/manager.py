"""The controllers of the local cluster: one thread reconciles changed objects.

Informers queue the changed objects; a reconcile works on fresh lists (`cluster.py`). Here too are
garbage collection (pkg/controller/garbagecollector of k8s.io/kubernetes; the finalizers are set by
the API server), and the taint of a node that is not ready (pkg/controller/nodelifecycle; running
pods stay).
"""

from collections.abc import Callable
from functools import partial

from gpushare_localcluster.client import ApiClient, Json
from gpushare_localcluster.controllers import claims, jobs, statefulsets
from gpushare_localcluster.controllers.cluster import (
    Cluster,
    condition,
    controller_of,
    deleting,
    path,
)
from gpushare_localcluster.controllers.deployments import (
    reconcile_deployment,
    reconcile_replica_set,
)
from gpushare_localcluster.controllers.groups import reconcile_job_set, reconcile_leader_worker_set
from gpushare_localcluster.informer import Informer, WorkLoop

FOREGROUND, ORPHAN = "foregroundDeletion", "orphan"

_OWNED = ("ReplicaSet", "Pod", "Job", "Lease")
_OWNERS = (
    *("Deployment", "Job", "JobSet", "LeaderWorkerSet", "Node", "ReplicaSet", "StatefulSet"),
)


def collect(cluster: Cluster) -> None:
    """Delete objects without owners, and handle owners that wait for dependents."""
    # Dependents are listed first: an owner created after its list would look deleted.
    owned = [item for kind in _OWNED for item in cluster.items(kind)]
    owners = {item["metadata"]["uid"]: item for kind in _OWNERS for item in cluster.items(kind)}
    for item in owned:
        references = item["metadata"].get("ownerReferences") or []
        is_collected = references and all(reference["kind"] in _OWNERS for reference in references)
        is_lost = is_collected and not any(reference["uid"] in owners for reference in references)
        if is_lost and not deleting(item):
            cluster.delete(item)
    for uid, owner in owners.items():
        finalizers = owner["metadata"].get("finalizers") or []
        dependents = [
            item
            for item in owned
            if any(
                reference["uid"] == uid
                for reference in item["metadata"].get("ownerReferences") or ()
            )
        ]
        if ORPHAN in finalizers and deleting(owner):
            for item in dependents:
                cluster.disown(item, uid)
            _let_go(cluster, owner, ORPHAN)
        elif FOREGROUND in finalizers and deleting(owner):
            for item in dependents:
                if not deleting(item):
                    cluster.delete(item, "Foreground")
            if not dependents:
                _let_go(cluster, owner, FOREGROUND)


def _let_go(cluster: Cluster, owner: Json, finalizer: str) -> None:
    remaining = [item for item in owner["metadata"]["finalizers"] if item != finalizer]
    cluster.patch(owner, {"metadata": {"finalizers": remaining or None}})


_TAINT_KEYS = {
    "False": "node.kubernetes.io/not-ready",
    "Unknown": "node.kubernetes.io/unreachable",
}
"""Taint keys by the status of the condition Ready; a node that is ready has none."""


def reconcile_node(cluster: Cluster, node: Json) -> None:
    """Add or remove the taint by the condition of the node."""
    before: list[Json] = (node.get("spec") or {}).get("taints") or []
    mine = [{"key": key, "effect": "NoSchedule"} for key in _TAINT_KEYS.values()]
    taint_key = _TAINT_KEYS.get(str(condition(node, "Ready").get("status")))
    taints = [taint for taint in before if _bare(taint) not in mine or taint["key"] == taint_key]
    if taint_key and not any(_bare(taint) in mine for taint in taints):
        taints.append({"key": taint_key, "effect": "NoSchedule"})
    if taints != before:
        cluster.patch(node, {"spec": {"taints": taints or None}})


def _bare(taint: Json) -> Json:
    return {"key": taint.get("key"), "effect": taint.get("effect")}


Reconcile = Callable[[Cluster, Json], float | None]
Key = tuple[str, str, str]
"""Kind, namespace and name."""

_RECONCILE: dict[str, Reconcile] = {
    "Deployment": reconcile_deployment,
    "Job": jobs.reconcile,
    "JobSet": reconcile_job_set,
    "LeaderWorkerSet": reconcile_leader_worker_set,
    "Node": reconcile_node,
    "ReplicaSet": reconcile_replica_set,
    "StatefulSet": statefulsets.reconcile,
}
_OF_CLAIMS: dict[str, Reconcile] = {"Pod": claims.make, "ResourceClaim": claims.clean}
"""Only pods with claims are queued."""
_GARBAGE: Key = ("", "", "")


class ControllerManager:
    """Runs the controllers from `start` to `stop`; closes `api` at the end."""

    def __init__(self, api: ApiClient) -> None:
        self._api = api
        self._cluster = Cluster(api)
        informers = [
            Informer(api, path(kind), partial(self._on_change, kind))
            for kind in (*_RECONCILE, *_OF_CLAIMS)
        ]
        self._loop = WorkLoop("controllers", informers, self._step)

    def start(self) -> None:
        """Start to reconcile."""
        self._loop.start()

    def stop(self) -> None:
        """End all threads; the objects stay as they are."""
        self._loop.stop()
        self._api.close()

    def _on_change(self, kind: str, before: Json | None, after: Json | None) -> None:
        item = after or before
        if item is None:
            return
        meta = item["metadata"]
        key = (kind, str(meta.get("namespace", "")), str(meta["name"]))
        if kind in _RECONCILE:
            self._loop.add(key)
        names = claims.claims_of(item) if kind == "Pod" else ()
        for claim in filter(None, names):
            self._loop.add(("ResourceClaim", key[1], claim))
        if names or kind == "ResourceClaim":
            self._loop.add(key)
        if owner := controller_of(item):
            self._loop.add((owner["kind"], key[1], owner["name"]))
        if kind not in _OF_CLAIMS and (
            after is None or (deleting(item) and meta.get("finalizers"))
        ):
            self._loop.add(_GARBAGE)

    def _step(self, key: Key) -> float | None:
        if key == _GARBAGE:
            collect(self._cluster)
            return None
        kind, namespace, name = key
        if kind in _OF_CLAIMS:
            item = self._cluster.get(kind, namespace, name)
            return _OF_CLAIMS[kind](self._cluster, item) if item else None
        reconcile = _RECONCILE.get(kind)
        owner = self._cluster.get(kind, namespace, name) if reconcile else None
        if reconcile is None or owner is None:
            return None
        if deleting(owner):
            collect(self._cluster)
            return None
        return reconcile(self._cluster, owner)
