"""The autoscaler of the local cluster: cluster-autoscaler's rules, and a loop that follows them.

Sums are compared, by the plug-ins of kube-scheduler. Scale-up: pending pods that fit an existing
node are skipped; for the remaining pods the group that takes most of them grows. Scale-down: a
little used node may be removed if all its pods fit on other nodes; there are no prices.
docs/autoscalers.md has the scenes of the real one, and the tests compare with them. Facts:
kubernetes-sigs/cluster-autoscaler simulator/cluster.go (the reasons), simulator/drainability (the
pods that keep a node).

One ConfigMap has the groups; without groups nothing happens. Another one gets the decision about
each pending pod and each node. A removable node is first tainted, so that no pod is placed on it;
later checks evict its pods, and delete the empty node. The taint is the only state of a removal.

Tested in `localcluster/tests/test_autoscaler.py`, `localcluster/tests/test_autoscaler_running.py`.
"""

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from gpushare.errors import ApiConflict, ApiError, ApiNotFound, GpuShareError
from gpushare.wire.budgets import DisruptionBudget, read_budget
from gpushare.wire.fields import Fields
from gpushare_localcluster.client import MERGE_PATCH, ApiClient, Json, write_event
from gpushare_localcluster.informer import WorkLoop
from gpushare_localcluster.scheduler.cache import NodeInfo
from gpushare_localcluster.scheduler.framework import CycleState, FilterPlugin
from gpushare_localcluster.scheduler.objects import CPU, MEMORY, PodView, read_node, read_pod
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
    """Each node that may be removed alone, and the autoscaler's words why each other stays."""

    may_go: tuple[Removal, ...]
    stays: Mapping[str, str]


class Autoscaler:
    """Decides about a cluster; fit_args: arguments of the plug-in NodeResourcesFit."""

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
    """A number of new nodes of a group; why none takes a pod, or "", by the pod's key."""

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


MAPS = "/api/v1/namespaces/kube-system/configmaps"
GROUPS = "node-groups"
"""The ConfigMap with the groups: the description of each by name."""
STATUS = "cluster-autoscaler-status"
"""The ConfigMap with the status: JSON of `pods` and `nodes`, or the error in GROUPS."""

_NODES = "/api/v1/nodes"
_BUDGETS = "/apis/policy/v1/poddisruptionbudgets"
_COMPONENT = "cluster-autoscaler"
_TOO_MANY_REQUESTS = 429


class RunningAutoscaler:
    """Works from `start` to `stop`; closes `api` at the end.

    read_groups: from the data of the ConfigMap to groups. interval: seconds between checks.
    unneeded: seconds for which a node must be removable. report: called with a text for each
    action.
    """

    def __init__(
        self,
        api: ApiClient,
        read_groups: Callable[[Mapping[str, str]], Sequence[Group]],
        *,
        interval: float = 0.25,
        unneeded: float = 1.0,
        report: Callable[[str], None] = lambda _text: None,
    ) -> None:
        self._api = api
        self._read = read_groups
        self._every = interval
        self._unneeded = unneeded
        self._told = report
        self._since: dict[str, float] = {}
        """The time since when each removable node is removable."""
        self._loop = WorkLoop[str](_COMPONENT, [], self._look)

    def start(self) -> None:
        """Start to check."""
        self._loop.start()
        self._loop.add(_COMPONENT)

    def stop(self) -> None:
        """End the thread; the nodes stay as they are."""
        self._loop.stop()
        self._api.close()

    def _look(self, _key: str) -> float:
        try:
            groups = self._read(self._api.get(f"{MAPS}/{GROUPS}").get("data") or {})
        except ApiNotFound:
            groups = []
        except ApiError:
            raise
        except GpuShareError as error:
            self._tell_status({"error": str(error)})
            return self._every
        if not groups:
            self._since = {}
            return self._every
        nodes, pods, budgets = (
            self._api.get(path)["items"] for path in (_NODES, "/api/v1/pods", _BUDGETS)
        )
        autoscaler = Autoscaler(groups)
        up = autoscaler.scale_up(nodes, pods)
        down = autoscaler.scale_down(nodes, pods, budgets)
        for group in groups:
            grows = [pod for pod in pods if up.outcomes.get(_key_of(pod)) == f"{group.name} grows"]
            self._grow(group, up.new.get(group.name, 0), nodes, grows)
        going = [node for node in nodes if is_going(node)]
        for node in going:
            self._empty(node, pods)
        # One node at a time, and none while nodes are added.
        self._let_go(down, nodes, hold=bool(up.new or going))
        unneeded = {removal.node: "NotUnneededLongEnough" for removal in down.may_go}
        self._tell_status({"pods": up.outcomes, "nodes": {**down.stays, **unneeded}})
        return self._every

    def _grow(self, group: Group, count: int, nodes: Sequence[Json], pods: Sequence[Json]) -> None:
        used_names = {str(node["metadata"]["name"]) for node in nodes}
        candidates = (f"{group.name}-{number}" for number in range(1, len(nodes) + count + 1))
        names = [name for name in candidates if name not in used_names][:count]
        for name in names:
            self._api.create(_NODES, group.node(name))
            self._told(f"node {name} comes, for {', '.join(map(_key_of, pods))}")
        for pod in pods if names else ():
            text = f"group {group.name} grows by {count}"
            self._event(pod, "Pod", "TriggeredScaleUp", text)

    def _let_go(self, down: ScaleDown, nodes: Sequence[Json], *, hold: bool) -> None:
        """Taint a node that was removable for long enough. hold: taint none now."""
        now = time.monotonic()
        self._since = {removal.node: self._since.get(removal.node, now) for removal in down.may_go}
        for removal in () if hold else down.may_go:
            if now - self._since[removal.node] < self._unneeded:
                continue
            (node,) = (item for item in nodes if item["metadata"]["name"] == removal.node)
            taint = {"key": GOING, "value": str(int(time.time())), "effect": "NoSchedule"}
            taints = [*((node.get("spec") or {}).get("taints") or ()), taint]
            self._taint(node, taints)
            moving = ", ".join(removal.evicted) or "nobody"
            self._told(f"node {removal.node} goes, and {moving} has to leave it")
            return

    def _empty(self, node: Json, pods: Sequence[Json]) -> None:
        """Evict the remaining pods of the node, or delete the empty node."""
        name = str(node["metadata"]["name"])
        remaining = list(to_evict(name, pods))
        for pod in remaining:
            meta = pod["metadata"]
            if meta.get("deletionTimestamp"):
                continue
            path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}/eviction"
            body = {
                "apiVersion": "policy/v1",
                "kind": "Eviction",
                "metadata": {"name": meta["name"], "namespace": meta["namespace"]},
            }
            try:
                self._api.create(path, body)
            except ApiNotFound:
                continue
            except ApiError as error:
                if error.status != _TOO_MANY_REQUESTS:
                    raise
                self._taint(
                    node, [taint for taint in node["spec"]["taints"] if taint["key"] != GOING]
                )
                self._told(f"node {name} stays after all: {error}")
                return
        if not remaining:
            with suppress(ApiNotFound):
                self._api.delete(f"{_NODES}/{name}", uid=node["metadata"]["uid"])
            self._event(node, "Node", "ScaleDown", "it was not needed any more")
            self._told(f"node {name} is gone")

    def _taint(self, node: Json, taints: Sequence[Json]) -> None:
        meta = node["metadata"]
        precondition = {"resourceVersion": meta["resourceVersion"]}
        change = {"metadata": precondition, "spec": {"taints": list(taints) or None}}
        with suppress(ApiConflict, ApiNotFound):  # the next check sees the new state
            self._api.patch(f"{_NODES}/{meta['name']}", change, MERGE_PATCH)

    def _event(self, about: Json, kind: str, reason: str, text: str) -> None:
        about = {**about, "kind": kind, "apiVersion": "v1"}
        write_event(self._api, about, reason, text, kind="Normal", component=_COMPONENT)

    def _tell_status(self, status: Json) -> None:
        """Write the status if it differs."""
        data = {"status": json.dumps(status, indent=1, sort_keys=True)}
        body = {"metadata": {"name": STATUS, "namespace": "kube-system"}, "data": data}
        try:
            if self._api.get(f"{MAPS}/{STATUS}").get("data") != data:
                self._api.patch(f"{MAPS}/{STATUS}", {"data": data}, MERGE_PATCH)
        except ApiNotFound:
            self._api.create(MAPS, body)


def _key_of(pod: Json) -> str:
    return f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
