"""cluster-autoscaler's rules, by which nodes come and go, over objects of the API.

What it counts are sums, by kube-scheduler's own plug-ins; it calls no extender. Scale-up: waiting
pods that fit a node that is there are dropped, and for the others nodes of the group come that
takes most of them. Scale-down: a node in little use goes if all its pods fit others. Its timers,
prices and limits are not here: a round decides as if everything were due. docs/autoscalers.md has
the scenes in which the real one was seen; it is held to them in the tests.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpushare.wire.fields import Fields
from gpushare_localcluster.scheduler.cache import NodeInfo
from gpushare_localcluster.scheduler.cycle_state import CycleState
from gpushare_localcluster.scheduler.framework import FilterPlugin
from gpushare_localcluster.scheduler.objects import CPU, MEMORY, Json, PodView, read_node, read_pod
from gpushare_localcluster.scheduler.plugins.node import NodeUnschedulable
from gpushare_localcluster.scheduler.plugins.node_affinity import NodeAffinity
from gpushare_localcluster.scheduler.plugins.resources import NodeResourcesFit
from gpushare_localcluster.scheduler.plugins.taints import TaintToleration

DISABLED = "cluster-autoscaler.kubernetes.io/scale-down-disabled"
SAFE = "cluster-autoscaler.kubernetes.io/safe-to-evict"
LITTLE_USE = 0.5
"""Of CPU and of memory; other resources are no use."""


@dataclass(frozen=True)
class Group:
    """A group of equal nodes.

    template: what a node of it is like, as far as the autoscaler is told. most: nodes that may
    come.
    """

    name: str
    template: Json
    most: int = 10


@dataclass(frozen=True)
class Removal:
    """A node that goes, and the pods that are evicted before."""

    node: str
    evicted: tuple[str, ...]


class Autoscaler:
    """Decides over a cluster as it is. fit_args: of the plug-in NodeResourcesFit."""

    def __init__(self, groups: Sequence[Group], fit_args: Fields | None = None) -> None:
        self._groups = groups
        self._plugins: tuple[FilterPlugin, ...] = (
            NodeUnschedulable(),
            TaintToleration(),
            NodeAffinity(),
            NodeResourcesFit(fit_args),
        )

    def scale_up(self, nodes: Iterable[Json], pods: Sequence[Json]) -> dict[str, int]:
        """Return how many nodes of which group come; empty if none does."""
        there = _infos(nodes, pods)
        waiting = [read_pod(pod) for pod in pods if _counts_as_waiting(pod)]
        waiting.sort(key=lambda pod: -pod.priority)
        unplaced = [pod for pod in waiting if not self._placed(pod, there)]
        options = ((group, *self._estimate(group, unplaced)) for group in self._groups)
        best = max(options, key=lambda option: option[1], default=None)
        return {best[0].name: best[2]} if best is not None and best[1] else {}

    def scale_down(self, nodes: Sequence[Json], pods: Sequence[Json]) -> Removal | None:
        """Return a node that goes; None if all stay."""
        infos = _infos(nodes, pods)
        raw = {str(pod["metadata"]["uid"]): pod for pod in pods}
        for node in nodes:
            name = str(node["metadata"]["name"])
            info = infos[name]
            on_it = [raw[uid] for uid in info.pods]
            if _note(node, DISABLED) == "true" or _use(info) >= LITTLE_USE:
                continue
            if any(_stays(pod) for pod in on_it):
                continue
            others = {other: found for other, found in infos.items() if other != name}
            moving = [pod for pod in info.pods.values() if not _of_daemon(raw[pod.uid])]
            if all(self._placed(pod, others) for pod in moving):
                return Removal(name, tuple(pod.name for pod in moving))
        return None

    def _placed(self, pod: PodView, nodes: dict[str, NodeInfo]) -> bool:
        """Place the pod on a node that it fits by sums, and return whether there is one."""
        for name, info in nodes.items():
            if all(plugin.filter(CycleState(), pod, info).ok for plugin in self._plugins):
                nodes[name] = info.with_pod(pod)
                return True
        return False

    def _estimate(self, group: Group, pods: Sequence[PodView]) -> tuple[int, int]:
        """Return how many of the pods nodes of this group take, and how many nodes that are."""
        new: dict[str, NodeInfo] = {}
        placed = 0
        for pod in pods:
            if not self._placed(pod, new):
                if len(new) == group.most:
                    continue
                name = f"template-node-for-{group.name}-{len(new)}"
                new[name] = NodeInfo(read_node(_made_up(group.template, name)))
                if not self._placed(pod, new):
                    del new[name]
                    continue
            placed += 1
        return placed, len(new)


def _made_up(template: Json, name: str) -> Json:
    metadata = template.get("metadata") or {}
    labels = {**(metadata.get("labels") or {}), "kubernetes.io/hostname": name}
    return {**template, "metadata": {**metadata, "name": name, "labels": labels}}


def _infos(nodes: Iterable[Json], pods: Iterable[Json]) -> dict[str, NodeInfo]:
    infos = {str(node["metadata"]["name"]): NodeInfo(read_node(node)) for node in nodes}
    for pod in map(read_pod, pods):
        # One that preemption has nominated counts as placed there.
        name = pod.node_name or pod.nominated_node
        if name in infos:
            infos[name] = infos[name].with_pod(pod)
    return infos


def _counts_as_waiting(pod: Json) -> bool:
    status = pod.get("status") or {}
    if pod["spec"].get("nodeName") or status.get("nominatedNodeName"):
        return False
    if pod["metadata"].get("deletionTimestamp"):
        return False
    return any(
        (each.get("type"), each.get("status"), each.get("reason"))
        == ("PodScheduled", "False", "Unschedulable")
        for each in status.get("conditions") or ()
    )


def _stays(pod: Json) -> bool:
    """Return whether its node stays for the pod: it forbids eviction, or nobody makes it again."""
    safe = _note(pod, SAFE)
    owned = bool(pod["metadata"].get("ownerReferences"))
    return safe == "false" or (not owned and safe != "true")


def _of_daemon(pod: Json) -> bool:
    owners = pod["metadata"].get("ownerReferences") or ()
    return any(each.get("kind") == "DaemonSet" for each in owners)


def _note(item: Json, key: str) -> str:
    notes: Mapping[str, str] = item["metadata"].get("annotations") or {}
    return notes.get(key, "")


def _use(info: NodeInfo) -> float:
    return max(
        info.requested.get(name, 0) / max(info.node.allocatable.get(name, 0), 1)
        for name in (CPU, MEMORY)
    )
