"""The kubelet of every node: admits bound pods, runs them, ends them, confirms their deletion.

The device plug-ins of nodes are called by the device plug-in protocol (`devices/`). On a node
without one the kubelet annotates pods with devices as assigned, as a plug-in does.

Containers are no processes here: only the status of a pod is "Running". Admission is that of the
real kubelet: a pod that requests more than is free fails, for devices of a plug-in with
UnexpectedAdmissionError (pkg/kubelet/cm/devicemanager), for other resources with OutOf<resource>.

The heartbeats renew the Lease of each node, which is in kube-node-lease and owned by the node, with
the times of its conditions (pkg/kubelet: 10 s between renewals of 40 s, 5 min between statuses).
"""

import logging
import threading
import time
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from gpushare.errors import ApiConflict, ApiNotFound, WireError
from gpushare.wire.annotations import ALIYUN
from gpushare_localcluster.api.objects import timestamp
from gpushare_localcluster.api.reading import PodLogs
from gpushare_localcluster.client import MERGE_PATCH, ApiClient, Json
from gpushare_localcluster.informer import Informer, WorkLoop
from gpushare_localcluster.pod_status import (
    AdmissionError,
    container_log,
    containers,
    failed_status,
    granted_devices,
    pod_name,
    running_status,
    succeeded_status,
)
from gpushare_localcluster.scheduler.cache import NodeInfo
from gpushare_localcluster.scheduler.objects import PODS, PodView, read_node, read_pod

if TYPE_CHECKING:  # it needs gRPC
    from gpushare_localcluster.devices.nodes import NodeDevices

log = logging.getLogger(__name__)

_LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
_LEASE_SECONDS = 40
_STATUS_SECONDS = 300.0


class Heartbeat:
    """Renews the Lease of every node, each `interval` seconds; closes `api` at the end."""

    def __init__(self, api: ApiClient, *, interval: float = 10.0) -> None:
        self._api = api
        self._interval = interval
        self._nodes: dict[str, Json] = {}
        self._told: dict[str, float] = {}
        """The time of the last status, by uid of the node."""
        informer = Informer(api, "/api/v1/nodes", self._on_node)
        self._loop = WorkLoop("heartbeat", [informer], self._beat)

    def start(self) -> None:
        """Start the heartbeats."""
        self._loop.start()

    def stop(self) -> None:
        """End all threads; the Leases expire."""
        self._loop.stop()
        self._api.close()

    def _on_node(self, before: Json | None, after: Json | None) -> None:
        uid = str((after or before or {})["metadata"]["uid"])
        if after is None:
            self._nodes.pop(uid, None)
            self._told.pop(uid, None)
            return
        self._nodes[uid] = after
        if before is None:
            self._loop.add(uid)

    def _beat(self, uid: str) -> float | None:
        """Renew the Lease of one node; return the seconds until the next time."""
        node = self._nodes.get(uid)
        if node is None:
            return None
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
        return self._interval


RUN_SECONDS = "localcluster.gpushare.io/run-seconds"
"""Pod annotation: the seconds from the start of the pod to its end (Succeeded), or `never`."""
_JOB_SECONDS = 5.0
"""Seconds from start to end of a Job's pod without RUN_SECONDS."""

_STOP_SECONDS = 0.25
"""Seconds that containers take to stop.

By then a client that deletes a pod and waits has started to watch: kubectl would wait for ever if a
pod of the same name came before.
"""
_AGAIN_SECONDS = 0.1
"""Seconds until the next try for a pod without a ready device plug-in."""
_NODE = "node/"
"""Prefix of the keys of nodes; the keys of pods are uids."""


class Kubelet:
    """Runs the pods of all nodes in one thread; `logs` gets the output.

    Closes `api` at the end. devices: None if no node has a device plug-in.
    """

    def __init__(self, api: ApiClient, logs: PodLogs, devices: "NodeDevices | None" = None) -> None:
        self._logs = logs
        self._devices = devices
        if devices:
            devices.changed = lambda node: self._loop.add(f"{_NODE}{node}")
        self._api = api
        self._lock = threading.Lock()
        self._pods: dict[str, Json] = {}
        self._nodes: dict[str, NodeInfo] = {}
        self._unlabelled: dict[str, dict[str, str]] = {}
        """Missing labels, by node."""
        self._admitted: dict[str, str] = {}
        self._numbers: dict[str, int] = {}
        self._stopped_at: dict[str, float] = {}
        informers = [
            Informer(api, "/api/v1/nodes", self._on_node),
            Informer(api, "/api/v1/pods", self._on_pod, query={"fieldSelector": "spec.nodeName!="}),
        ]
        self._loop = WorkLoop("kubelet", informers, self._look)

    def start(self) -> None:
        """Begin to run pods."""
        self._loop.start()

    def stop(self) -> None:
        """End all threads; the pods stay as they are."""
        self._loop.stop()
        self._api.close()

    def _on_node(self, before: Json | None, after: Json | None) -> None:
        if after is None:
            if before is not None:
                name = before["metadata"]["name"]
                if self._devices:
                    self._devices.forget(name)
                with self._lock:
                    self._nodes.pop(name, None)
            return
        try:
            node = read_node(after)
            if self._devices:
                self._devices.see(after)
        except WireError as error:
            log.warning("node not understood name=%s error=%s", pod_name(after), error)
            return
        # The labels that every kubelet adds to the node.
        labels = {"kubernetes.io/hostname": node.name, "kubernetes.io/os": "linux"}
        labels["kubernetes.io/arch"] = "amd64"
        missing = {key: value for key, value in labels.items() if key not in node.labels}
        with self._lock:
            if missing:
                self._unlabelled[node.name] = missing
                self._loop.add(f"{_NODE}{node.name}")
            old_info = self._nodes.get(node.name)
            pods = old_info.pods.values() if old_info else ()
            info = NodeInfo(node)
            for pod in pods:
                info = info.with_pod(pod)
            self._nodes[node.name] = info
            pending_uids = [uid for uid in self._pods if uid not in self._admitted]
        for uid in pending_uids:
            self._loop.add(uid)

    def _on_pod(self, before: Json | None, after: Json | None) -> None:
        pod = after or before
        if pod is None:
            return
        uid = str(pod["metadata"]["uid"])
        with self._lock:
            if after is None:
                self._pods.pop(uid, None)
                self._stopped_at.pop(uid, None)
                self._release(uid)
                self._logs.forget(uid)
                return
            self._pods[uid] = after
        self._loop.add(uid)

    def _look(self, uid: str) -> float | None:
        if uid.startswith(_NODE):
            self._report(uid.removeprefix(_NODE))
            return None
        with self._lock:
            pod = self._pods.get(uid)
        if pod is None:
            return None
        try:
            return self._step(uid, pod)
        except (ApiNotFound, ApiConflict) as error:
            log.debug("pod changed meanwhile pod=%s error=%s", pod_name(pod), error)
            return None

    def _step(self, uid: str, pod: Json) -> float | None:
        """Bring one pod one step further; return the seconds until the next step, if any."""
        phase = (pod.get("status") or {}).get("phase", "Pending")
        if pod["metadata"].get("deletionTimestamp"):
            return self._end(uid, pod, phase)
        if phase == "Running":
            if uid not in self._admitted:
                self._hold(uid, read_pod(pod))
            return self._end_when_due(pod)
        if phase in ("Succeeded", "Failed"):
            with self._lock:
                self._release(uid)
        else:
            return self._admit(uid, pod)
        return None

    def _report(self, name: str) -> None:
        """Write the labels of kubelets, and the units that the device plug-in reports."""
        amounts = self._devices.amounts(name) if self._devices else None
        with self._lock:
            node = self._nodes.get(name)
            missing = self._unlabelled.pop(name, None)
        if missing is not None:
            with suppress(ApiNotFound):
                self._api.patch(f"/api/v1/nodes/{name}", {"metadata": {"labels": missing}})
        if amounts is None or node is None:
            return
        capacity, healthy = amounts
        if node.node.allocatable.get(ALIYUN.resource) != healthy:
            status = {
                "capacity": {ALIYUN.resource: str(capacity)},
                "allocatable": {ALIYUN.resource: str(healthy)},
            }
            self._api.patch(f"/api/v1/nodes/{name}/status", {"status": status})

    def _end(self, uid: str, pod: Json, phase: str) -> float | None:
        """Stop the containers of a terminating pod, then confirm the deletion."""
        now = time.monotonic()
        if phase == "Running":
            stopped = self._stopped_at.setdefault(uid, now + _STOP_SECONDS)
            if now < stopped:
                return stopped - now
        self._api.delete(_path(pod), grace_seconds=0, uid=uid)
        return None

    def _admit(self, uid: str, pod: Json) -> float | None:
        view = read_pod(pod)
        with self._lock:
            node = self._nodes.get(view.node_name)
        if node is None:
            return None
        shortage = None if uid in self._admitted else admission_shortage(view, node)
        if shortage is not None:
            self._write_status(pod, failed_status(*shortage, timestamp()))
            return None
        if uid not in self._admitted:
            try:
                variables = self._devices.admit(pod) if self._devices else {}
            except AdmissionError as error:
                self._write_status(pod, failed_status(*_unexpected(str(error)), timestamp()))
                return None
            if variables is None:
                return _AGAIN_SECONDS
            if granted_devices(pod) and not variables:
                # As a device plug-in does when it serves the pod.
                served = {"metadata": {"annotations": {ALIYUN.assigned: "true"}}}
                self._api.patch(_path(pod), served, MERGE_PATCH)
            self._hold(uid, view)
            for container in containers(pod):
                text = container_log(pod, container, variables.get(container["name"], {}))
                self._logs.write(uid, container["name"], text, datetime.now(UTC))
        self._write_status(pod, running_status(pod, self._address(uid), timestamp()))
        return None

    def _hold(self, uid: str, pod: PodView) -> None:
        """Count the pod on the node from now on."""
        with self._lock:
            node = self._nodes.get(pod.node_name)
            if node is not None and uid in self._pods and uid not in self._admitted:
                self._nodes[pod.node_name] = node.with_pod(pod)
                self._admitted[uid] = pod.node_name
            elif uid not in self._pods:
                self._release(uid)

    def _address(self, uid: str) -> str:
        """Return the address of the pod; no process listens there."""
        number = self._numbers.setdefault(uid, len(self._numbers))
        return f"10.244.{number // 250 % 250}.{number % 250 + 1}"

    def _end_when_due(self, pod: Json) -> float | None:
        """End a pod that has run for its time; return the remaining seconds."""
        seconds = _run_seconds(pod)
        started = (pod.get("status") or {}).get("startTime")
        if seconds is None or started is None:
            return None
        remaining = datetime.fromisoformat(started).timestamp() + seconds - time.time()
        if remaining > 0:
            return remaining
        self._write_status(pod, succeeded_status(pod, started, timestamp()))
        return None

    def _release(self, uid: str) -> None:
        if self._devices:
            self._devices.release(uid)
        node_name = self._admitted.pop(uid, None)
        node = self._nodes.get(node_name or "")
        if node is not None:
            self._nodes[node.name] = node.without_pod(uid)

    def _write_status(self, pod: Json, status: Json) -> None:
        self._api.patch(f"{_path(pod)}/status", {"status": status})


def admission_shortage(pod: PodView, node: NodeInfo) -> tuple[str, str] | None:
    """Return the reason and message of a shortage on the node, None if the pod fits.

    As in the kubelet, an extended resource that the node does not list is not checked.
    """
    requests = {PODS: 1, **{name: amount for name, amount in pod.requests.items() if amount}}
    # Devices are allocated before other resources are checked.
    for name in sorted(requests, key=lambda name: "/" not in name):
        amount, free = requests[name], node.free(name)
        if name not in node.node.allocatable or amount <= free:
            continue
        if "/" in name:
            message = f"requested number of devices unavailable for {name}. Requested: {amount}"
            return _unexpected(f"{message}, Available: {free}")
        capacity = node.node.allocatable[name]
        message = f"Node didn't have enough resource: {name}, requested: {amount}"
        message = f"{message}, used: {capacity - free}, capacity: {capacity}"
        return f"OutOf{name}", f"Pod was rejected: {message}"
    return None


def _unexpected(reason: str) -> tuple[str, str]:
    message = f"Pod was rejected: Allocate failed due to {reason}, which is unexpected"
    return "UnexpectedAdmissionError", message


def _run_seconds(pod: Json) -> float | None:
    text = (pod["metadata"].get("annotations") or {}).get(RUN_SECONDS)
    if text is None:
        owners = pod["metadata"].get("ownerReferences") or ()
        of_job = any(owner["kind"] == "Job" and owner.get("controller") for owner in owners)
        return _JOB_SECONDS if of_job else None
    try:
        return max(float(text), 0.0)
    except ValueError:
        return None


def _path(pod: Json) -> str:
    return f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"
