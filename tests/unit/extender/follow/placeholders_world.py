"""An extender's placeholders on an API server that keeps Pods, for the tests of them.

The extender's knowledge of the pods comes from the watch: after each round, or not before the
test says so.
"""

import json
import math
from collections.abc import Mapping
from typing import Any

from gpushare.errors import ApiConflict, ApiError, ApiNotFound, ApiUnavailable
from gpushare.explain.pod import NodeAsk
from gpushare.extender.follow.placeholders import AFTER_JOIN, WAITING, Placeholders
from gpushare.extender.follow.shown import Shown
from gpushare.extender.follow.watch_handlers import NodeEventHandler, PodEventHandler
from gpushare.wire.annotations import ALIYUN
from gpushare.wire.codec import WatchEvent
from gpushare.wire.placeholders import FOR, SCHEDULER, Placeholder
from tests.unit.extender.kit import managed_resources, node_json, pod_json, read_node, read_pod

OURS = "/api/v1/namespaces/asks/pods"
REFUSED = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
CUT = ApiUnavailable("cut", 0)


class World:
    """A node of two devices of 16 with 10 on each, and the API server."""

    def __init__(self, namespace: str = "asks") -> None:
        self.now = 10_000.0
        self.pods: dict[str, dict[str, Any]] = {}
        self.calls: list[tuple[str, str]] = []
        self.faults: list[tuple[str, bool, ApiError]] = []
        self.why_not = ""
        self.told: list[tuple[str, NodeAsk]] = []
        self.resources = managed_resources()
        self.uids = 0
        self.start(namespace)
        self.node("a")
        for device in (0, 1):
            self.runs(f"ten-{device}", 10, "a", device)
        self.round()
        self.now += AFTER_JOIN

    def start(self, namespace: str) -> None:
        """Another process; the watch shows it all objects."""
        self.known = Shown[Placeholder]()
        self.handler = PodEventHandler(self.resources, placeholders=self.known)
        self.under_test = Placeholders(
            self,
            self.resources,
            self.known,
            namespace,
            not_ready=lambda: self.why_not,
            tell=lambda ref, ask: self.told.append((ref.name, ask)),
            clock=lambda: self.now,
            wall=lambda: 1_800_000_000.0 + self.now,
        )
        self.shown()

    def node(self, name: str) -> None:
        node_json_result = node_json(name, 32, 2)
        node_json_result["status"]["allocatable"]["pods"] = "110"
        node_json_result["metadata"]["labels"] = {"kubernetes.io/hostname": name}
        NodeEventHandler(self.resources, "GiB").apply(
            WatchEvent("ADDED", object=read_node(node_json_result))
        )

    def runs(self, name: str, units: int, node: str, device: int) -> None:
        notes = {ALIYUN.idx: str(device), ALIYUN.pod: str(units)}
        self.put(pod_json(name, units, node=node, annotations=notes, phase="Running"))

    def waits(
        self, name: str, units: int, group: str = "", *, namespace: str = "team", **status: Any
    ) -> None:
        pod = pod_json(name, units)
        pod["metadata"]["namespace"] = namespace
        pod["metadata"]["labels"] = {}
        if group:
            pod["metadata"]["labels"] = {"scheduling.x-k8s.io/pod-group": group}
        pod["metadata"]["creationTimestamp"] = "2027-01-15T10:46:40Z"  # 1_800_010_000
        pod["status"] |= {"conditions": [REFUSED]} | status
        self.put(pod)

    def put(self, pod: dict[str, Any]) -> None:
        metadata = pod["metadata"]
        self.pods[f"{metadata['namespace']}/{metadata['name']}"] = pod
        self.handler.apply(WatchEvent("MODIFIED", object=read_pod(pod)))

    def gone(self, key: str) -> None:
        self.handler.apply(WatchEvent("DELETED", object=read_pod(self.pods.pop(key))))

    def shown(self) -> None:
        """The watch shows all pods."""
        pods = {str(pod["metadata"]["uid"]): pod for pod in self.pods.values()}
        for pod in pods.values():
            self.handler.apply(WatchEvent("MODIFIED", object=read_pod(pod)))
        for uid in self.known.all().keys() - pods.keys():  # as a DELETED would
            self.known.put(uid, None)

    def round(self) -> bool:
        round_result = self.under_test.round()
        self.shown()
        return round_result

    def later(self, seconds: float = WAITING) -> bool:
        self.now += seconds
        return self.round()

    @property
    def asking(self) -> list[str]:
        """The pods with a placeholder that an autoscaler counts."""
        result = []
        for pod in self.pods.values():
            if pod["metadata"]["namespace"] == "asks":
                assert pod["spec"]["schedulerName"] == SCHEDULER
                conditions = pod["status"].get("conditions") or [{}]
                counts = conditions[0].get("reason") == "Unschedulable"
                result.append(pod["metadata"]["labels"][FOR] + ("" if counts else " untold"))
        return sorted(result)

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = "application/json",
        timeout: float,
        not_after: float = math.inf,
    ) -> bytes:
        assert query is None
        assert timeout < not_after
        self.calls.append((method, path))
        lands, failure = True, None
        if self.faults and self.faults[0][0] == method:
            _, lands, failure = self.faults.pop(0)
        answer = self._answer(method, path, json.loads(body or b"{}")) if lands else b""
        if failure is not None:
            raise failure
        return answer

    def _answer(self, method: str, path: str, document: dict[str, Any]) -> bytes:
        _, _, _, _, namespace, _, *remainder = path.split("/")
        if method == "POST":
            key = f"{namespace}/{document['metadata']['name']}"
            if key in self.pods:
                raise ApiConflict("exists", 409)
            self.uids += 1
            document["metadata"]["uid"] = f"own-{self.uids}"
            document["metadata"]["creationTimestamp"] = "2027-01-15T12:03:00Z"
            self.pods[key] = document | {"status": {"phase": "Pending"}}
            return b"{}"
        key = f"{namespace}/{remainder[0]}"
        if key not in self.pods:
            raise ApiNotFound("gone", 404)
        if method == "GET":
            return json.dumps(self.pods[key]).encode()
        if method == "DELETE":
            assert document == {"gracePeriodSeconds": 0}
            del self.pods[key]
            return b"{}"
        assert (method, remainder[1:]) == ("PATCH", ["status"])
        self.pods[key]["status"] |= document["status"]
        return b"{}"


def why_not(world: World, name: str) -> str:
    ask = world.under_test.ask_for(f"uid-{name}")
    assert ask is not None
    assert ask.asked_at is None
    return ask.why_not
