"""The administrator's hands: nodes and pods made, watched and checked, all through the API server.

Knows the API's JSON and the oracle; nothing of the processes. There is no kubelet here: a node is
an object with a capacity, a bound pod stays Pending, a deleted one goes at once.
"""

import itertools
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor

from tests.contract.apiserver.client import MERGE, Api, Json
from tests.e2e.processes import until
from tests.integration.oracle import asked, expected_inspect, over_capacity, placement

MEM, COUNT = "aliyun.com/gpu-mem", "aliyun.com/gpu-count"
CORES = "aliyun.com/gpu-core.percentage"
NODES, PODS = "/api/v1/nodes", "/api/v1/namespaces/default/pods"
_AT_ONCE = 16
_numbers = itertools.count(1)


def fresh(prefix: str) -> str:
    """A name that no other object of this process has."""
    return f"{prefix}-{next(_numbers)}"


class Objects:
    """Nodes and the pods of namespace default on one API server."""

    def __init__(self, api: Api) -> None:
        self.api = api

    # -- made -----------------------------------------------------------------------------------

    def node(self, *, devices: int = 2, units: int = 16, name: str = "", **spec: object) -> str:
        """The name of a new node of so many devices with so many units each."""
        amounts = {"cpu": "96", "memory": "768Gi", "pods": "110"}
        if devices:
            amounts |= {MEM: str(devices * units), COUNT: str(devices)}
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
        name = name or fresh("node")
        status = {"capacity": amounts, "allocatable": amounts, "conditions": [ready]}
        self.api.create(NODES, {"metadata": {"name": name}, "spec": spec, "status": status})
        return name

    def pod(
        self,
        units: int,
        *,
        name: str = "",
        annotations: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
        **spec: object,
    ) -> Json:
        """A new pod that asks for so many units (0: for no GPU)."""
        limits = {MEM: str(units)} if units else {}
        container = {"name": "main", "image": "x", "resources": {"limits": limits}}
        meta = {
            "name": name or fresh("pod"),
            "annotations": dict(annotations or {}),
            "labels": dict(labels or {}),
        }
        body = {
            "metadata": meta,
            # Victims of preemption are deleted with their own grace period, which no kubelet would
            # end.
            "spec": {"containers": [container], "terminationGracePeriodSeconds": 0, **spec},
        }
        return self.api.create(PODS, body).body

    def again(self, pod: Json) -> Json:
        """The same pod anew, once that one has been deleted."""
        survivors = {key: pod["metadata"].get(key) for key in ("name", "annotations")}
        return self.api.create(PODS, {"metadata": survivors, "spec": pod["spec"]}).body

    def priority(self, name: str, value: int) -> None:
        """A priority class, which may be there already."""
        body = {"metadata": {"name": name}, "value": value}
        reply = self.api.call("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", body)
        assert reply.status in {201, 409}, reply.body

    def many(self, sizes: Iterable[int], **spec: object) -> list[Json]:
        """New pods, made at once as far as one client can."""
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            return list(pool.map(lambda units: self.pod(units, **spec), sizes))  # type: ignore[arg-type]  # passed on

    def delete(self, *pods: Json) -> None:
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            list(pool.map(self._delete, pods))

    def _delete(self, pod: Json) -> None:
        reply = self.api.delete(self.path(pod), {"gracePeriodSeconds": 0})
        assert reply.status in {200, 404}, reply.body

    def patch(self, path: str, change: Json) -> None:
        reply = self.api.patch(path, change, MERGE)
        assert reply.status == 200, reply.body

    def clear(self) -> None:
        """Delete all pods and nodes."""
        self.delete(*self.pods())
        for node in self.nodes():
            self.api.delete(f"{NODES}/{node['metadata']['name']}")

    # -- seen -----------------------------------------------------------------------------------

    def nodes(self) -> list[Json]:
        return list(self.api.get(NODES).body["items"])

    def pods(self) -> list[Json]:
        return list(self.api.get("/api/v1/pods").body["items"])

    @staticmethod
    def path(pod: Json) -> str:
        meta = pod["metadata"]
        return f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"

    def get(self, pod: Json) -> Json:
        reply = self.api.get(self.path(pod))
        assert reply.status == 200, reply.body
        return reply.body

    def node_of(self, pod: Json) -> str:
        """Where the pod is bound; "" while it is not."""
        return str(self.get(pod)["spec"].get("nodeName", ""))

    def devices_of(self, pod: Json) -> dict[int, int]:
        """Units by device, by the pod's annotations; {} without annotations."""
        result = self.get(pod)
        return placement(result, MEM, asked(result, MEM))

    def lands(self, pod: Json, text: Callable[[], str] = str) -> tuple[str, dict[int, int]]:
        """Node and units by device, once the pod is bound."""
        name = pod["metadata"]["name"]
        until(lambda: bool(self.node_of(pod)), lambda: f"{name} is not bound; {text()}")
        return self.node_of(pod), self.devices_of(pod)

    def refusal(self, pod: Json, *texts: str) -> str:
        """The text of the pod's FailedScheduling event, once it has all these parts."""
        result: list[str] = []

        def told() -> bool:
            selector = f"involvedObject.uid={pod['metadata']['uid']},reason=FailedScheduling"
            events = self.api.get("/api/v1/namespaces/default/events", fieldSelector=selector)
            result[:] = [str(event["message"]) for event in events.body["items"]]
            return any(all(text in message for text in texts) for message in result)

        until(told, lambda: f"a refusal with {texts}: {result}")
        return result[-1]

    # -- checked --------------------------------------------------------------------------------

    def inspect(self) -> Json:
        """The inspect document that the objects call for."""
        return expected_inspect(self.nodes(), self.pods(), MEM)

    def sound(self) -> None:
        """Fail for an overcommitted device, or a bound pod without devices in annotations."""
        document = self.inspect()
        assert over_capacity(document) == []
        assert not [node["unplaced"] for node in document["nodes"] if "unplaced" in node]
