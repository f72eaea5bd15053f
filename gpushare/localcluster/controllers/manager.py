"""The controllers of the local cluster: a queue of changed objects, and one thread.

Informers say which objects to look at; what is done follows from fresh lists (`cluster.py`).
"""

import logging
import queue
import threading
import time
from collections.abc import Callable
from functools import partial

from gpushare.errors import ApiError, WireError
from gpushare.localcluster.client import ApiClient, Json
from gpushare.localcluster.controllers import (
    daemonsets,
    deployments,
    garbage,
    jobs,
    replicasets,
    statefulsets,
)
from gpushare.localcluster.controllers.cluster import Cluster, controller_of, deleting, path
from gpushare.localcluster.informer import Informer

log = logging.getLogger(__name__)

Reconcile = Callable[[Cluster, Json], float | None]
Key = tuple[str, str, str]
"""Kind, namespace and name."""

_RECONCILE: dict[str, Reconcile] = {
    "DaemonSet": daemonsets.reconcile,
    "Deployment": deployments.reconcile,
    "Job": jobs.reconcile,
    "ReplicaSet": replicasets.reconcile,
    "ReplicationController": replicasets.reconcile,
    "StatefulSet": statefulsets.reconcile,
}
_GARBAGE: Key = ("", "", "")
_RETRY_SECONDS = 0.5


class ControllerManager:
    """Runs the controllers from `start` to `stop`; it closes `api` at its end."""

    def __init__(self, api: ApiClient) -> None:
        self._api = api
        self._cluster = Cluster(api)
        self._lock = threading.Lock()
        self._waiting: set[Key] = set()
        self._inbox: queue.SimpleQueue[Key | None] = queue.SimpleQueue()
        self._due: dict[Key, float] = {}
        self._sets: set[Key] = set()
        self._thread = threading.Thread(target=self._run, name="controllers", daemon=True)
        self._informers = [
            Informer(api, path(kind), partial(self._on_change, kind))
            for kind in (*_RECONCILE, "Pod", "Node")
        ]

    def start(self) -> None:
        """Begin to reconcile."""
        for informer in self._informers:
            informer.start()
        self._thread.start()

    def stop(self) -> None:
        """End all threads; the objects stay as they are."""
        for informer in self._informers:
            informer.stop()
        self._inbox.put(None)
        if self._thread.is_alive():
            self._thread.join(5)
        self._api.close()

    def _on_change(self, kind: str, before: Json | None, after: Json | None) -> None:
        item = after or before
        if item is None:
            return
        meta = item["metadata"]
        key = (kind, str(meta.get("namespace", "")), str(meta["name"]))
        if kind in _RECONCILE:
            self._look_at(key)
        if kind == "DaemonSet":
            with self._lock:
                (self._sets.add if after else self._sets.discard)(key)
        if kind == "Node" and not (before and after and _same_place(before, after)):
            with self._lock:
                concerned = list(self._sets)
            for each in concerned:
                self._look_at(each)
        if owner := controller_of(item):
            self._look_at((owner["kind"], key[1], owner["name"]))
        if kind != "Pod" and (after is None or (deleting(item) and meta.get("finalizers"))):
            self._look_at(_GARBAGE)

    def _look_at(self, key: Key) -> None:
        with self._lock:
            if key in self._waiting:
                return
            self._waiting.add(key)
        self._inbox.put(key)

    def _run(self) -> None:
        while (key := self._next()) is not None:
            with self._lock:
                self._waiting.discard(key)
            try:
                later = self._step(key)
            except (ApiError, WireError) as error:
                log.info("not reconciled key=%s error=%s", "/".join(key), error)
                later = _RETRY_SECONDS
            except Exception:
                # One object that cannot be understood must not stop the others.
                log.exception("not reconciled key=%s", "/".join(key))
                continue
            if later is not None:
                self._due[key] = time.monotonic() + later

    def _next(self) -> Key | None:
        """Return what is next to look at, None when stopping."""
        while True:
            key = min(self._due, key=self._due.__getitem__, default=None)
            left = None if key is None else self._due[key] - time.monotonic()
            if key is not None and left is not None and left <= 0:
                del self._due[key]
                return key
            try:
                return self._inbox.get(timeout=left)
            except queue.Empty:
                continue

    def _step(self, key: Key) -> float | None:
        if key == _GARBAGE:
            garbage.collect(self._cluster)
            return None
        kind, namespace, name = key
        reconcile = _RECONCILE.get(kind)
        owner = self._cluster.get(kind, namespace, name) if reconcile else None
        if reconcile is None or owner is None:
            return None
        if deleting(owner):
            garbage.collect(self._cluster)
            return None
        return reconcile(self._cluster, owner)


def _same_place(before: Json, after: Json) -> bool:
    """Whether nothing has changed that decides which pods a node may have."""
    same_labels = before["metadata"].get("labels") == after["metadata"].get("labels")
    return same_labels and before.get("spec") == after.get("spec")
