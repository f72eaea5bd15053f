"""The extender verbs as kube-scheduler calls them; a process or objects here may answer.

Knows the protocol's JSON (keys as Go writes them), and nothing of the answering side.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gpushare.wire.scheduler.config import ExtenderConfig, ExtenderManagedResource
from tests.integration.cluster import MEM, NODES, PODS, Cluster, Json
from tests.integration.oracle import expected_inspect, over_capacity
from tests.support.waiting import poll


def scheduler_entry(url: str, resource: str = MEM, timeout: float = 10.0) -> ExtenderConfig:
    """The entry of a scheduler's file for the extender at the URL."""
    return ExtenderConfig(
        url_prefix=url,
        filter_verb="filter",
        prioritize_verb="prioritize",
        weight=150,
        bind_verb="bind",
        http_timeout=timeout,
        node_cache_capable=True,
        managed_resources=(ExtenderManagedResource(resource),),
    )


@dataclass(frozen=True)
class Reply:
    """An answer as received."""

    status: int
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class Verbs(ABC):
    """One extender, asked."""

    @abstractmethod
    def post(self, verb: str, body: bytes) -> Reply:
        """The answer to a verb."""

    @abstractmethod
    def inspect_reply(self, node: str = "", resource: str = "") -> Reply:
        """The answer to inspect."""

    def settle(self) -> None:  # noqa: B027 -- a process settles by itself
        """Have doubtful binds looked at now, where nobody else does."""

    def filter(self, pod: Json, nodes: Sequence[str]) -> Json:
        return dict(self._ok("filter", filter_args(pod, nodes)))

    def fit(self, pod: Json, nodes: Sequence[str]) -> list[str]:
        """The nodes that filter lets through."""
        answer = self.filter(pod, nodes)
        assert answer["Error"] == "", answer
        return list(answer["NodeNames"])

    def refusal(self, pod: Json, node: str) -> str:
        """The reason why filter refuses the node for good; "" where it does not refuse."""
        return str(self.filter(pod, [node])["FailedAndUnresolvableNodes"].get(node, ""))

    def prioritize(self, pod: Json, nodes: Sequence[str]) -> dict[str, int]:
        """The score of each node, as kube-scheduler reads the answer."""
        scores = self._ok("prioritize", filter_args(pod, nodes))
        return dict.fromkeys(nodes, 0) | {item["Host"]: item["Score"] for item in scores}

    def bind(self, pod: Json, node: str) -> str:
        """The error of a bind; "" means bound."""
        answer = self._ok("bind", bind_args(pod, node))
        assert answer.keys() == {"Error"}, answer
        return str(answer["Error"])

    def inspect(self, node: str = "", resource: str = "") -> Json:
        reply = self.inspect_reply(node, resource)
        assert reply.status == 200, reply
        return dict(reply.json())

    def used(self, node: str) -> list[int]:
        """Units used by device, as inspect shows them."""
        result = self.inspect(node)["nodes"]
        return [device["usedGPU"] for device in result[0]["devs"]] if result else []

    def knows(self, *nodes: str) -> None:
        """Return once the nodes are in the books."""

        def all_known() -> bool:
            return all(self.inspect_reply(node).status == 200 for node in nodes)

        poll(all_known, f"{nodes} are in the books")

    def agrees(self, cluster: Cluster, resource: str = MEM) -> None:
        """Return once the books are as the API server's objects say."""
        result: Json = {}
        expected: Json = {}

        def agree() -> bool:
            nonlocal result, expected
            self.settle()
            expected = expected_inspect(cluster.all(NODES), cluster.all(PODS), resource)
            result = self.inspect(resource=resource)
            for node in result["nodes"]:
                node.pop("keptFromScaleDown", None)  # no part of the books
            return result == expected

        def differences() -> str:
            documents = result.get("nodes", ()), expected.get("nodes", ())
            has, should = ({node["name"]: node for node in nodes} for nodes in documents)
            pairs = [(has.get(name), should.get(name)) for name in sorted(has.keys() | should)]
            return "\n".join(f"{first}\n{second}" for first, second in pairs if first != second)

        poll(agree, lambda: f"the books agree with the API server:\n{differences()}")

    def _ok(self, verb: str, body: Json) -> Any:
        reply = self.post(verb, json.dumps(body).encode())
        assert reply.status == 200, reply
        return reply.json()


def filter_args(pod: Json, nodes: Sequence[str]) -> Json:
    """The arguments of filter and prioritize, as a node-cache-capable extender gets them."""
    return {"Pod": pod, "Nodes": None, "NodeNames": list(nodes)}


def bind_args(pod: Json, node: str) -> Json:
    """The arguments of bind."""
    meta = pod["metadata"]
    names = {"PodName": meta["name"], "PodNamespace": meta["namespace"], "PodUID": meta["uid"]}
    return {**names, "Node": node}


def never_over(verbs: Verbs) -> None:
    """Fail where a device holds more than its memory."""
    assert over_capacity(verbs.inspect()) == []
