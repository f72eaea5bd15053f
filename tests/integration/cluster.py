"""An API server of a test, and short ways to describe its objects.

Everything is written past HTTP, so that a fault on order or a stopped server never hits the test's
own hands. Knows nothing of the extender.
"""

import itertools
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gpushare_localcluster.api.apiserver import ApiServer
from gpushare_localcluster.api.deletion import DeleteOptions
from gpushare_localcluster.api.objects import Change
from gpushare_localcluster.api.resources import RESOURCES, Resource
from gpushare_localcluster.api.store import Store
from tests.support.faults import Fault, FaultPlan, FaultRequest, faulty

Json = dict[str, Any]

MEM = "aliyun.com/gpu-mem"
COUNT = "aliyun.com/gpu-count"
NPU = "example.com/npu-mem"
MARK = "ALIYUN_COM_GPU_MEM_"

_BY_PLURAL = {row.plural: row for row in RESOURCES if row.plural != "events"}
NODES, PODS, MAPS, LEASES = (_BY_PLURAL[name] for name in ("nodes", "pods", "configmaps", "leases"))
_numbers = itertools.count()


def fresh(prefix: str) -> str:
    """A name that no other object of this process has."""
    return f"{prefix}-{next(_numbers)}"


class Cluster:
    """A served store; `faults` is asked about every request, and `hook` before `faults`."""

    def __init__(self) -> None:
        self.store = Store()
        self.faults = FaultPlan()
        self.hook: Callable[[FaultRequest], Fault | None] | None = None
        self.server = ApiServer(self.store, wrap=faulty(self._fault))
        self.server.start()
        self.port = int(self.server.url.rpartition(":")[2])

    def _fault(self, request: FaultRequest) -> Fault | None:
        return (self.hook and self.hook(request)) or self.faults(request)

    def stop(self) -> None:
        self.server.stop()

    def restart(self) -> None:
        """Serve the same store on the same port again, after `stop`."""
        self.server = ApiServer(self.store, port=self.port, wrap=faulty(self._fault))
        self.server.start()

    def release_lease(self) -> None:
        """Write the extender's Lease as a leader leaves it after giving it away.

        The first process then leads at once. Without a Lease it would wait for a whole term.
        """
        spec = {"holderIdentity": "", "leaseDurationSeconds": 1, "leaseTransitions": 3}
        lease = {"metadata": {"name": "gpushare-extender"}, "spec": spec}
        self.create(LEASES, "kube-system", lease)

    def kubeconfig(self, folder: Path) -> str:
        path = folder / "kubeconfig"
        path.write_text(self.server.kubeconfig())
        return str(path)

    # -- objects --------------------------------------------------------------------------------

    def create(self, resource: Resource, namespace: str, body: Json) -> Json:
        return dict(self.server.registry.create(resource, namespace, body).body)

    def change(
        self, resource: Resource, namespace: str, name: str, change: Callable[[Json], Json]
    ) -> None:
        """Replace the object by the result of `change`, past all rules of the API."""
        self.store.update(resource.table, namespace, name, lambda body: change(dict(body)))

    def delete(self, resource: Resource, namespace: str, name: str) -> None:
        self.server.registry.delete(resource, namespace, name, DeleteOptions(grace=0))

    def all(self, resource: Resource) -> list[Json]:
        return [dict(record.body) for record in self.store.records(resource.table)[0]]

    def changes(self, resource: Resource, since: int) -> list[Change]:
        return self.store.since(resource.table, since)[0]

    def clear(self) -> None:
        """Delete the objects of the tests, and end all faults."""
        self.faults.clear()
        self.hook = None
        for resource in (PODS, NODES, MAPS):
            for body in self.all(resource):
                meta = body["metadata"]
                self.delete(resource, meta.get("namespace", ""), meta["name"])

    # -- nodes ----------------------------------------------------------------------------------

    def node(
        self,
        *,
        devices: int = 2,
        total: int = 32,
        resource: str = MEM,
        count: str = COUNT,
        annotations: Mapping[str, str] | None = None,
    ) -> str:
        """The name of a new node."""
        amounts = {"cpu": "96", "memory": "768Gi", "pods": "110"}
        if total:
            amounts |= {resource: str(total), count: str(devices)}
        name = fresh("node")
        body = {
            "metadata": {"name": name, "annotations": dict(annotations or {})},
            "status": {"capacity": amounts, "allocatable": amounts},
        }
        self.create(NODES, "", body)
        return name

    def resize(self, node: str, **amounts: str) -> None:
        """Set extended resources of a node: mem, count."""
        names = {"mem": MEM, "count": COUNT}
        new = {names[key]: value for key, value in amounts.items()}

        def change(body: Json) -> Json:
            status = body["status"]
            lists = {key: {**status[key], **new} for key in ("capacity", "allocatable")}
            return {**body, "status": {**status, **lists}}

        self.change(NODES, "", node, change)

    def annotate_node(self, node: str, key: str, value: str) -> None:
        self.change(NODES, "", node, lambda body: with_annotations(body, {key: value}))

    def unhealthy(self, node: str, gpus: str) -> None:
        """Write the ConfigMap that closes devices of a node."""
        name = f"unhealthy-gpu-{node}"
        if any(body["metadata"]["name"] == name for body in self.all(MAPS)):
            self.change(MAPS, "kube-system", name, lambda body: {**body, "data": {"gpus": gpus}})
        else:
            body = {"metadata": {"name": name}, "data": {"gpus": gpus}}
            self.create(MAPS, "kube-system", body)

    # -- pods -----------------------------------------------------------------------------------

    def pod(
        self,
        *units: int | str,
        name: str = "",
        resource: str = MEM,
        annotations: Mapping[str, str] | None = None,
        spec: Json | None = None,
    ) -> Json:
        """A new pod with a container for each number of units (none: one that asks for no GPU)."""
        limits: list[Json] = [{"limits": {resource: str(amount)}} for amount in units] or [{}]
        containers = [
            {"name": f"c{index}", "image": "x", "resources": resources}
            for index, resources in enumerate(limits)
        ]
        meta = {"name": name or fresh("pod"), "annotations": dict(annotations or {})}
        body = {"metadata": meta, "spec": {"containers": containers, **(spec or {})}}
        return self.create(PODS, "default", body)

    def get(self, pod: Json) -> Json:
        return dict(self.store.get(PODS.table, "default", pod["metadata"]["name"]).body)

    def node_of(self, pod: Json) -> str:
        """The node that the API server shows for the pod; "" while the pod is not bound."""
        return str(self.get(pod)["spec"].get("nodeName") or "")

    def annotations(self, pod: Json) -> dict[str, str]:
        return dict(self.get(pod)["metadata"].get("annotations") or {})

    def annotate_pod(self, pod: Json, notes: Mapping[str, str]) -> None:
        name = pod["metadata"]["name"]
        self.change(PODS, "default", name, lambda body: with_annotations(body, notes))

    def set_phase(self, pod: Json, phase: str) -> None:
        name = pod["metadata"]["name"]
        self.change(
            PODS,
            "default",
            name,
            lambda body: {**body, "status": {**body["status"], "phase": phase}},
        )

    def mark_deleted(self, pod: Json) -> None:
        """Delete with grace: the pod stays, with a deletion mark, held by a finalizer."""
        name = pod["metadata"]["name"]
        holding = {"finalizers": ["example.com/hold"]}
        self.change(
            PODS,
            "default",
            name,
            lambda body: {**body, "metadata": {**body["metadata"], **holding}},
        )
        self.delete(PODS, "default", name)

    def release(self, pod: Json) -> None:
        """Let a pod go that `mark_deleted` holds."""
        self.store.delete(PODS.table, "default", pod["metadata"]["name"])

    def delete_pod(self, pod: Json) -> None:
        self.delete(PODS, "default", pod["metadata"]["name"])

    def bindings(self) -> list[str]:
        """The names of the pods with a posted Binding, in order, repetitions included."""
        posts = [path for method, path in list(self.server.requests) if method == "POST"]
        return [path.split("/")[-2] for path in posts if path.endswith("/binding")]


def with_annotations(body: Json, more: Mapping[str, str]) -> Json:
    """The object with more annotations."""
    meta = body["metadata"]
    return {**body, "metadata": {**meta, "annotations": {**meta.get("annotations", {}), **more}}}


def inventory(*mems: int, unit: str = "GiB", closed: tuple[int, ...] = ()) -> dict[str, str]:
    """The node annotation that tells devices apart."""
    devices = [
        {"mem": mem, "healthy": index not in closed, "model": f"card-{mem}"}
        for index, mem in enumerate(mems)
    ]
    return {"gpushare.io/devices": json.dumps({"v": 1, "unit": unit, "devices": devices})}
