"""The rules of cluster-autoscaler for adding and removing nodes, over API objects.

Sums are compared, by the plug-ins of kube-scheduler. Scale-up: pending pods that fit an existing
node are skipped; for the remaining pods the group that takes most of them grows. Scale-down: a
little used node may be removed if all its pods fit on other nodes. Timers are in `running.py`;
there are no prices. docs/autoscalers.md has the scenes of the real one, and the tests compare with
them. Facts: kubernetes-sigs/cluster-autoscaler simulator/cluster.go (the reasons),
simulator/drainability (the pods that keep a node).
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpushare.wire.budgets import DisruptionBudget, read_budget
from gpushare.wire.fields import Fields
from gpushare_localcluster.scheduler.cache import NodeInfo
from gpushare_localcluster.scheduler.framework import CycleState, FilterPlugin
from gpushare_localcluster.scheduler.objects import CPU, MEMORY, Json, PodView, read_node, read_pod
from gpushare_localcluster.scheduler.plugins.node import (
    NodeAffinity,
    NodeUnschedulable,
    TaintToleration,
)
from gpushare_localcluster.scheduler.plugins.resources import NodeResourcesFit

DISABLED = "cluster-autoscaler.kubernetes.io/scale-down-disabled"
SAFE = "cluster-autoscaler.kubernetes.io/safe-to-evict"
SAFE_VOLUMES = "cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes"
MIRROR = "kubernetes.io/config.mirror"
GOING = "ToBeDeletedByClusterAutoscaler"
"""Taint of a node that is being drained."""
GROUP = "localcluster.gpushare.io/node-group"
"""Label of a node: the group."""
LITTLE_USE = 0.5
"""Upper bound on the requested share of CPU and memory of a little used node; exclusive."""


@dataclass(frozen=True)
class Group:
    """A group of equal nodes.

    template: a node as the autoscaler knows it. min_size, max_size: bounds on the number of nodes;
    no node is added only to reach min_size.
    """

    name: str
    template: Json
    min_size: int = 0
    max_size: int = 10

    def node(self, name: str) -> Json:
        """Return a new node of the group."""
        metadata = self.template.get("metadata") or {}
        labels = {**(metadata.get("labels") or {}), "kubernetes.io/hostname": name}
        labels[GROUP] = self.name
        metadata = {**metadata, "name": name, "labels": labels}
        return {"spec": {}, **self.template, "metadata": metadata}


@dataclass(frozen=True)
class ScaleUp:
    """The number of new nodes by group. outcomes: the decision about each pending pod, by key."""

    new: Mapping[str, int]
    outcomes: Mapping[str, str]


@dataclass(frozen=True)
class Removal:
    """A removable node, and the pods to evict before."""

    node: str
    evicted: tuple[str, ...]


@dataclass(frozen=True)
class ScaleDown:
    """Each node that may be removed alone, and why each other node stays, in the autoscaler's
    words.
    """

    may_go: tuple[Removal, ...]
    stays: Mapping[str, str]


class Autoscaler:
    """Decides about the current state of a cluster.

    fit_args: arguments of the plug-in NodeResourcesFit.
    """

    def __init__(self, groups: Sequence[Group], fit_args: Fields | None = None) -> None:
        self._groups = {group.name: group for group in groups}
        self._plugins: tuple[FilterPlugin, ...] = (
            NodeUnschedulable(),
            TaintToleration(),
            NodeAffinity(),
            NodeResourcesFit(fit_args),
        )

    def scale_up(self, nodes: Sequence[Json], pods: Sequence[Json]) -> ScaleUp:
        """Return the nodes to add."""
        infos = _infos(nodes, pods)
        outcomes, unplaced = dict[str, str](), []
        pending_pods = (read_pod(pod) for pod in pods if _counts_as_waiting(pod))
        for pod in sorted(pending_pods, key=lambda pod: -pod.priority):
            home = self._place(pod, infos)
            if home:
                outcomes[pod.key] = f"fits {home}"
            else:
                unplaced.append(pod)
        sizes = Counter(map(group_of, nodes))
        options = [
            self._estimate(group, group.max_size - sizes[group.name], unplaced)
            for group in self._groups.values()
        ]
        for pod in unplaced:
            refusals = (f"{option.group}: {option.refusals[pod.key]}" for option in options)
            outcomes[pod.key] = "; ".join(refusals) or "there is no group"
        best = max(options, key=lambda option: option.taken, default=_Option("", 0, {}))
        outcomes |= {key: f"{best.group} grows" for key, text in best.refusals.items() if not text}
        return ScaleUp({best.group: best.count} if best.count else {}, outcomes)

    def scale_down(
        self, nodes: Sequence[Json], pods: Sequence[Json], budgets: Iterable[Json] = ()
    ) -> ScaleDown:
        """Return the removable nodes. budgets: PodDisruptionBudgets."""
        infos = _infos(nodes, pods)
        raw = {str(pod["metadata"]["uid"]): pod for pod in pods}
        read_budgets = [
            read_budget(budget["metadata"]["namespace"], budget.get("spec"), budget.get("status"))
            for budget in budgets
        ]
        sizes = Counter(group_of(node) for node in nodes if not is_going(node))
        may_go, stays = [], {}
        for node in nodes:
            name = str(node["metadata"]["name"])
            info = infos[name]
            moving = [pod for pod in info.pods.values() if _moves(raw[pod.uid])]
            reason = self._why_it_stays(node, info, sizes)
            if not reason:
                blocking = (blocks(raw[pod.uid], read_budgets) for pod in moving)
                reason = next((f"BlockedByPod {text}" for text in blocking if text), "")
            other_infos = {
                other_name: other_info
                for other_name, other_info in infos.items()
                if other_name != name
            }
            if not reason and not all(self._place(pod, other_infos) for pod in moving):
                reason = "NoPlaceToMovePods"
            if reason:
                stays[name] = reason
            else:
                may_go.append(Removal(name, tuple(pod.name for pod in moving)))
        return ScaleDown(tuple(may_go), stays)

    def _why_it_stays(self, node: Json, info: NodeInfo, sizes: Mapping[str, int]) -> str:
        """Return why the node stays regardless of its pods, or ""."""
        group = self._groups.get(group_of(node))
        if group is None:
            return "NotAutoscaled"
        if is_going(node):
            return "CurrentlyBeingDeleted"
        if _note(node, DISABLED) == "true":
            return "ScaleDownDisabledAnnotation"
        if _use(info) >= LITTLE_USE:
            return "NotUnderutilized"
        return "NodeGroupMinSizeReached" if sizes[group.name] <= group.min_size else ""

    def _place(self, pod: PodView, nodes: dict[str, NodeInfo]) -> str:
        """Place the pod on the first fitting node; return the node's name, "" for none."""
        for name, info in nodes.items():
            if not self._refusal(pod, info):
                nodes[name] = info.with_pod(pod)
                return name
        return ""

    def _refusal(self, pod: PodView, info: NodeInfo) -> str:
        """Return why the pod does not fit the node, "" if it fits."""
        for plugin in self._plugins:
            status = plugin.filter(CycleState(), pod, info)
            if not status.ok:
                return status.message
        return ""

    def _estimate(self, group: Group, room: int, pods: Sequence[PodView]) -> "_Option":
        """Return how many new nodes of the group, up to `room`, the pods need."""
        new: dict[str, NodeInfo] = {}
        refusals = {}
        for pod in pods:
            refusals[pod.key] = ""
            if self._place(pod, new):
                continue
            name = f"template-node-for-{group.name}-{len(new)}"
            empty = NodeInfo(read_node(group.node(name)))
            refusals[pod.key] = self._refusal(pod, empty)
            if not refusals[pod.key] and len(new) >= room:
                refusals[pod.key] = "max node group size reached"
            if not refusals[pod.key]:
                new[name] = empty.with_pod(pod)
        return _Option(group.name, len(new), refusals)


@dataclass(frozen=True)
class _Option:
    """A number of new nodes of a group.

    refusals: why no new node takes a pod, or "", by the pod's key.
    """

    group: str
    count: int
    refusals: Mapping[str, str]

    @property
    def taken(self) -> int:
        return sum(not refusal for refusal in self.refusals.values())


def group_of(node: Json) -> str:
    """Return the name of the node's group, or ""."""
    return str((node["metadata"].get("labels") or {}).get(GROUP, ""))


def is_going(node: Json) -> bool:
    """Return whether the node is being drained."""
    taints = (node.get("spec") or {}).get("taints") or ()
    return any(taint.get("key") == GOING for taint in taints)


def to_evict(node: str, pods: Iterable[Json]) -> Iterator[Json]:
    """Yield the pods to evict before the removal of the node."""
    for pod in pods:
        if pod["spec"].get("nodeName") == node and _moves(pod):
            yield pod


def blocks(pod: Json, budgets: Iterable[DisruptionBudget]) -> str:
    """Return why the pod keeps its node, in the autoscaler's words, or ""."""
    metadata = pod["metadata"]
    namespace, name = str(metadata.get("namespace", "")), str(metadata["name"])
    safe = _note(pod, SAFE)
    if safe == "true":
        return ""
    labels = metadata.get("labels") or {}
    mine = [item for item in budgets if item.selects(namespace, labels)]
    if not any(item.get("controller") for item in metadata.get("ownerReferences") or ()):
        reason = "NotReplicated"
    elif namespace == "kube-system" and not mine:
        reason = "UnmovableKubeSystemPod"
    elif safe == "false":
        reason = "NotSafeToEvictAnnotation"
    elif _has_local_storage(pod):
        reason = "LocalStorageRequested"
    elif any(budget.allowed_disruptions < 1 for budget in mine):
        reason = "NotEnoughPdb"
    else:
        return ""
    return f"{namespace}/{name} {reason}"


def _infos(nodes: Iterable[Json], pods: Iterable[Json]) -> dict[str, NodeInfo]:
    infos = {str(node["metadata"]["name"]): NodeInfo(read_node(node)) for node in nodes}
    for pod in map(read_pod, pods):
        # A pod nominated by preemption counts on that node.
        name = pod.node_name or pod.nominated_node
        if name in infos and not pod.ended:
            infos[name] = infos[name].with_pod(pod)
    return infos


def _counts_as_waiting(pod: Json) -> bool:
    status = pod.get("status") or {}
    if pod["spec"].get("nodeName") or status.get("nominatedNodeName"):
        return False
    if pod["metadata"].get("deletionTimestamp"):
        return False
    return any(
        (condition.get("type"), condition.get("status"), condition.get("reason"))
        == ("PodScheduled", "False", "Unschedulable")
        for condition in status.get("conditions") or ()
    )


def _moves(pod: Json) -> bool:
    """Return whether the pod needs another node after the removal."""
    if (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed") or _note(pod, MIRROR):
        return False
    owners = pod["metadata"].get("ownerReferences") or ()
    return not any(owner.get("kind") == "DaemonSet" for owner in owners)


def _has_local_storage(pod: Json) -> bool:
    safe_volumes = {name.strip() for name in _note(pod, SAFE_VOLUMES).split(",")}
    return any(
        "hostPath" in volume
        or ("emptyDir" in volume and (volume["emptyDir"] or {}).get("medium") != "Memory")
        for volume in pod["spec"].get("volumes") or ()
        if volume.get("name") not in safe_volumes
    )


def _note(item: Json, key: str) -> str:
    notes: Mapping[str, str] = item["metadata"].get("annotations") or {}
    return notes.get(key, "")


def _use(info: NodeInfo) -> float:
    return max(
        info.requested.get(name, 0) / max(info.node.allocatable.get(name, 0), 1)
        for name in (CPU, MEMORY)
    )
