"""The heartbeats of all nodes: the Lease of each node is renewed, with the times of its conditions.

As with kubelets, the Lease is in kube-node-lease and the node owns it. Facts: k8s.io/kubernetes
pkg/kubelet (10 s between renewals of 40 s, 5 min between statuses).
"""

import logging
import threading
import time
from datetime import UTC, datetime

from gpushare.errors import ApiError, ApiNotFound
from gpushare_localcluster.api.records import timestamp
from gpushare_localcluster.client import MERGE_PATCH, ApiClient, Json
from gpushare_localcluster.informer import Informer

log = logging.getLogger(__name__)

_LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
_LEASE_SECONDS = 40
_STATUS_SECONDS = 300.0


class Heartbeat:
    """Renews the Lease of every node, each `interval` seconds; closes `api` at the end."""

    def __init__(self, api: ApiClient, *, interval: float = 10.0) -> None:
        self._api = api
        self._every = interval
        self._lock = threading.Lock()
        self._nodes: dict[str, Json] = {}
        self._told: dict[str, float] = {}
        self._wake = threading.Event()
        self._stopping = False
        self._informer = Informer(api, "/api/v1/nodes", self._on_node)
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        """Start the heartbeats."""
        self._informer.start()
        self._thread.start()

    def stop(self) -> None:
        """End all threads; the Leases expire."""
        self._informer.stop()
        self._stopping = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(5)
        self._api.close()

    def _on_node(self, before: Json | None, after: Json | None) -> None:
        with self._lock:
            if after is not None:
                self._nodes[str(after["metadata"]["uid"])] = after
            elif before is not None:
                self._nodes.pop(str(before["metadata"]["uid"]), None)
                self._told.pop(str(before["metadata"]["uid"]), None)
        if before is None:
            self._wake.set()

    def _run(self) -> None:
        while not self._stopping:
            with self._lock:
                nodes = dict(self._nodes)
            for uid, node in nodes.items():
                try:
                    self._beat(uid, node)
                except ApiError as error:
                    log.info("no heartbeat node=%s error=%s", node["metadata"]["name"], error)
            self._wake.wait(self._every)
            self._wake.clear()

    def _beat(self, uid: str, node: Json) -> None:
        name = str(node["metadata"]["name"])
        moment = datetime.now(UTC)
        now = timestamp(moment)
        if time.monotonic() - self._told.get(uid, -_STATUS_SECONDS) >= _STATUS_SECONDS:
            conditions = [
                {"lastTransitionTime": now, **condition, "lastHeartbeatTime": now}
                for condition in (node.get("status") or {}).get("conditions") or ()
            ]
            status = {"metadata": {"uid": uid}, "status": {"conditions": conditions}}
            self._api.patch(f"/api/v1/nodes/{name}/status", status)
            self._told[uid] = time.monotonic()
        renewed = {"renewTime": moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")}
        owner = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": uid}
        spec = {"holderIdentity": name, "leaseDurationSeconds": _LEASE_SECONDS, **renewed}
        lease: Json = {"metadata": {"name": name, "ownerReferences": [owner]}, "spec": spec}
        try:
            self._api.patch(f"{_LEASES}/{name}", lease, MERGE_PATCH)
        except ApiNotFound:
            # A node that was just deleted must not get a new Lease.
            if self._api.get(f"/api/v1/nodes/{name}")["metadata"]["uid"] == uid:
                self._api.create(_LEASES, lease)
