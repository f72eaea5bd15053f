"""The controllers of the local cluster: one thread reconciles changed objects.

Informers queue the changed objects; a reconcile works on fresh lists (`cluster.py`).
"""

from collections.abc import Callable, Iterator
from functools import partial

from gpushare_localcluster.client import ApiClient, Json
from gpushare_localcluster.controllers import (
    claims,
    deployments,
    garbage,
    jobs,
    jobsets,
    leaderworkersets,
    nodes,
    replicasets,
    statefulsets,
)
from gpushare_localcluster.controllers.cluster import Cluster, controller_of, deleting, path
from gpushare_localcluster.informer import Informer
from gpushare_localcluster.work_loop import WorkLoop

Reconcile = Callable[[Cluster, Json], float | None]
Key = tuple[str, str, str]
"""Kind, namespace and name."""

_RECONCILE: dict[str, Reconcile] = {
    "Deployment": deployments.reconcile,
    "Job": jobs.reconcile,
    "JobSet": jobsets.reconcile,
    "LeaderWorkerSet": leaderworkersets.reconcile,
    "Node": nodes.reconcile,
    "ReplicaSet": replicasets.reconcile,
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
        for claim_key in _of_claims(key, item):
            self._loop.add(claim_key)
        if owner := controller_of(item):
            self._loop.add((owner["kind"], key[1], owner["name"]))
        if kind not in _OF_CLAIMS and (
            after is None or (deleting(item) and meta.get("finalizers"))
        ):
            self._loop.add(_GARBAGE)

    def _step(self, key: Key) -> float | None:
        if key == _GARBAGE:
            garbage.collect(self._cluster)
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
            garbage.collect(self._cluster)
            return None
        return reconcile(self._cluster, owner)


def _of_claims(key: Key, item: Json) -> Iterator[Key]:
    """Yield the keys that a change of a claim, or of a pod with claims, queues."""
    if key[0] == "ResourceClaim":
        yield key
    elif key[0] == "Pod" and (names := claims.claims_of(item)):
        yield key
        yield from (("ResourceClaim", key[1], name) for name in names if name)
