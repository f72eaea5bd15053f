"""The scheduler's cache of the cluster: nodes, their pods, and assumed pods.

As in kube-scheduler, an assumed pod counts on its node from the decision until the watch shows the
binding, or until the binding fails. A NodeInfo is replaced, never changed, so a snapshot is a list
of references. One lock, with arithmetic alone under it.
"""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from gpushare_localcluster.scheduler.objects import (
    PODS,
    Amounts,
    NodeView,
    PodView,
    add,
    subtract,
)


@dataclass(frozen=True)
class NodeInfo:
    """One node with its pods; replaced on every change.

    affine: the number of pods with pod affinity or anti-affinity.
    """

    node: NodeView
    pods: Mapping[str, PodView] = field(default_factory=dict)
    requested: Amounts = field(default_factory=dict)
    scored: Amounts = field(default_factory=dict)
    affine: int = 0

    @property
    def name(self) -> str:
        """The node's name."""
        return self.node.name

    def free(self, resource: str) -> int:
        """Return the free amount of a resource, in millicores for cpu; it may be negative."""
        if resource == PODS:
            return self.node.allocatable.get(PODS, 0) - len(self.pods)
        return self.node.allocatable.get(resource, 0) - self.requested.get(resource, 0)

    def with_pod(self, pod: PodView) -> "NodeInfo":
        """Return this node with one more pod."""
        return replace(
            self,
            pods={**self.pods, pod.uid: pod},
            requested=add(self.requested, pod.requests),
            scored=add(self.scored, pod.scored),
            affine=self.affine + pod.affine,
        )

    def without_pod(self, uid: str) -> "NodeInfo":
        """Return this node without the pod; the same node if it lacks the pod."""
        pod = self.pods.get(uid)
        if pod is None:
            return self
        return replace(
            self,
            pods={pod_uid: value for pod_uid, value in self.pods.items() if pod_uid != uid},
            requested=subtract(self.requested, pod.requests),
            scored=subtract(self.scored, pod.scored),
            affine=self.affine - pod.affine,
        )


@dataclass(frozen=True)
class Snapshot:
    """All nodes at one moment, in a fixed order."""

    nodes: tuple[NodeInfo, ...]

    def get(self, name: str) -> NodeInfo | None:
        """Return the node of that name, or None."""
        return self._by_name.get(name)

    @cached_property
    def _by_name(self) -> Mapping[str, NodeInfo]:
        return {node.name: node for node in self.nodes}


class Cache:
    """The cache, fed by the watches and by the scheduler's own decisions."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._nodes: dict[str, NodeInfo] = {}
        self._homes: dict[str, PodView] = {}
        self._assumed: set[str] = set()

    def snapshot(self) -> Snapshot:
        """Return the current nodes."""
        with self._lock:
            return Snapshot(tuple(self._nodes.values()))

    def has_node(self, name: str) -> bool:
        """Return whether the node is known."""
        with self._lock:
            return name in self._nodes

    def set_node(self, node: NodeView) -> None:
        """Add or update a node; known pods on a new node are counted."""
        with self._lock:
            old_info = self._nodes.get(node.name)
            if old_info is not None:
                self._nodes[node.name] = replace(old_info, node=node)
                return
            info = NodeInfo(node)
            for pod in self._homes.values():
                if pod.node_name == node.name:
                    info = info.with_pod(pod)
            self._nodes[node.name] = info

    def remove_node(self, name: str) -> None:
        """Remove a node; its pods stay known until the watch shows their deletion."""
        with self._lock:
            self._nodes.pop(name, None)

    def assume(self, pod: PodView, node_name: str) -> None:
        """Count the pod on the node before the watch shows the binding."""
        with self._lock:
            self._assumed.add(pod.uid)
            self._settle(replace(pod, node_name=node_name))

    def forget(self, pod: PodView) -> None:
        """Stop counting an assumed pod after a failed binding; a bound pod stays."""
        with self._lock:
            if pod.uid in self._assumed:
                self._assumed.discard(pod.uid)
                self._drop(pod.uid)

    def set_pod(self, pod: PodView) -> None:
        """Count a pod with a node name; this confirms an assumed pod."""
        with self._lock:
            self._assumed.discard(pod.uid)
            self._settle(pod)

    def remove_pod(self, uid: str) -> None:
        """Stop counting a deleted or ended pod."""
        with self._lock:
            self._assumed.discard(uid)
            self._drop(uid)

    def is_assumed(self, uid: str) -> bool:
        """Return whether the pod is assumed and not confirmed."""
        with self._lock:
            return uid in self._assumed

    def holds(self, uid: str) -> bool:
        """Return whether the pod counts on some node, bound or assumed."""
        with self._lock:
            return uid in self._homes

    def _settle(self, pod: PodView) -> None:
        self._drop(pod.uid)
        self._homes[pod.uid] = pod
        home = self._nodes.get(pod.node_name)
        if home is not None:
            self._nodes[pod.node_name] = home.with_pod(pod)

    def _drop(self, uid: str) -> None:
        old_pod = self._homes.pop(uid, None)
        if old_pod is None:
            return
        home = self._nodes.get(old_pod.node_name)
        if home is not None:
            self._nodes[old_pod.node_name] = home.without_pod(uid)
