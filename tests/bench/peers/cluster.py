"""The load: nodes and pods on the API server, made fast, and a count of the pods bound.

Knows the API's JSON. There is no kubelet: a node is an object with a capacity, a bound pod stays
as it is, a deleted one goes at once.
"""

import json
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

from gpushare_localcluster.client import HttpClient
from tests.e2e.objects import COUNT, MEM, NODES, PODS
from tests.e2e.plane import EXTENDER, Plane

Json = dict[str, Any]

DEVICES = 8
UNITS = 16
_AT_ONCE = 8
_TIMEOUT = 300.0
_ROLES = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
# Lines of a watch with a name and little else; a pod gets a line here when bound.
_METADATA = {"Accept": "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"}
_BOUND = f"{PODS}?watch=true&fieldSelector=spec.nodeName!%3D"


class Cluster:
    """Nodes and pods on a running control plane, in an administrator's hands."""

    def __init__(self, plane: Plane) -> None:
        self.plane = plane
        api = plane.api()
        self._http = HttpClient(plane.url, headers=api.headers, tls=api.tls)
        self._watcher = HttpClient(plane.url, headers=api.headers | _METADATA, tls=api.tls)
        # All extenders are the same user, so that the API server treats them alike.
        self._create(_ROLES, _everything(EXTENDER))

    def close(self) -> None:
        self._http.close()
        self._watcher.close()

    def nodes(self, count: int, units: int = UNITS) -> list[str]:
        """The names of new nodes of 8 devices with so many units each."""
        names = [f"node-{units}-{number:05d}.cluster.local" for number in range(count)]
        self._all(names, lambda name: self._create(NODES, _node(name, units)))
        return names

    def pods(self, sizes: Iterable[int], nodes: Iterable[str] = ()) -> None:
        """Create pods of so many units each, bound to the nodes in turn where there are any."""
        places = list(nodes)
        bodies = []
        for number, units in enumerate(sizes):
            body = _pod(f"pod-{time.monotonic_ns():x}-{number}", units)
            if places:
                _place(body, places[number % len(places)], number // len(places) % DEVICES)
            bodies.append(body)
        self._all(bodies, lambda body: self._create(PODS, body))

    def pending(self) -> list[Json]:
        """Pods without a node, as in kube-scheduler's cache: without managedFields."""
        answer = self._call("GET", f"{PODS}?fieldSelector=spec.nodeName%3D", None)
        pods: list[Json] = answer["items"]
        for pod in pods:
            del pod["metadata"]["managedFields"]
        return pods

    def delete_pods(self) -> None:
        """Return when all pods are gone."""
        self._call("DELETE", PODS, {"gracePeriodSeconds": 0})

    @contextmanager
    def binds_seen(self) -> Iterator[list[float]]:
        """A list that grows by the time (monotonic) of each bind that is seen from now on."""
        times: list[float] = []
        opened: list[socket.socket] = []
        version = self._call("GET", f"{PODS}?limit=1", None)["metadata"]["resourceVersion"]
        path = f"{_BOUND}&resourceVersion={version}"

        def watch() -> None:
            with (
                suppress(OSError, ValueError),
                self._watcher.stream(path, timeout=_TIMEOUT, opened=opened.append) as response,
            ):
                while line := response.readline():
                    if line.startswith(b'{"type":"ADDED"'):
                        times.append(time.monotonic())

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            yield times
        finally:
            for connection in opened:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
            thread.join()

    def _create(self, path: str, body: Json) -> None:
        self._call("POST", path, body)

    def _call(self, method: str, path: str, body: Json | None) -> Json:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        answer = self._http.call(method, path, data, timeout=_TIMEOUT, headers=headers)
        if answer.status >= 300:
            raise RuntimeError(f"{method} {path}: {answer.status} {answer.body.decode()}")
        return dict(json.loads(answer.body))

    def _all(self, items: list[Any], act: Callable[[Any], None]) -> None:
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            for _ in pool.map(act, items):
                pass


def _node(name: str, units: int) -> Json:
    amounts = {MEM: str(DEVICES * units), COUNT: str(DEVICES)}
    # All other resources are plenty, so that GPU memory alone decides.
    amounts |= {"cpu": "960", "memory": "7680Gi", "pods": "10000"}
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
    status = {"capacity": amounts, "allocatable": amounts, "conditions": [ready]}
    return {"metadata": {"name": name}, "status": status}


def _pod(name: str, units: int) -> Json:
    limits = {MEM: str(units), "cpu": "500m", "memory": "1Gi"}
    variables = [{"name": f"VARIABLE_{number}", "value": "x" * 20} for number in range(20)]
    container = {"name": "main", "image": "registry.example.com/team/image:tag", "env": variables}
    return {
        "metadata": {"name": name, "annotations": {}},
        "spec": {"containers": [container | {"resources": {"limits": limits}}]},
    }


def _place(body: Json, node: str, device: int) -> None:
    """Have the pod bound at creation, with the original's annotations."""
    units = body["spec"]["containers"][0]["resources"]["limits"][MEM]
    body["spec"]["nodeName"] = node
    body["metadata"]["annotations"] = {
        "ALIYUN_COM_GPU_MEM_IDX": str(device),
        "ALIYUN_COM_GPU_MEM_POD": units,
        "ALIYUN_COM_GPU_MEM_DEV": str(UNITS),
        "ALIYUN_COM_GPU_MEM_ASSIGNED": "true",
        "ALIYUN_COM_GPU_MEM_ASSUME_TIME": "1700000000000000000",
    }


def _everything(user: str) -> Json:
    group = "rbac.authorization.k8s.io"
    return {
        "metadata": {"name": "bench"},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"apiGroup": group, "kind": "User", "name": user}],
    }
