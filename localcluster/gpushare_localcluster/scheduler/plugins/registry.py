"""The in-tree plug-ins, the defaults with weights, and the plug-ins that are left out.

The order of the defaults is that of kube-scheduler and matters to users: the first filter that
rejects a node gives the reason. The smallest plug-ins are here: SchedulingGates and PrioritySort
for the queue, and DefaultBinder, which binds pods without a binding extender.
"""

from collections.abc import Callable

from gpushare.errors import ApiError
from gpushare.wire.fields import Fields
from gpushare.wire.scheduler.policy import POLICY
from gpushare_localcluster.scheduler.cluster_events import Action, EventWithHint, Resource
from gpushare_localcluster.scheduler.framework import (
    SUCCESS,
    Code,
    CycleState,
    Plugin,
    Queued,
    Status,
)
from gpushare_localcluster.scheduler.handle import Handle, PlainPlugin
from gpushare_localcluster.scheduler.objects import PodView
from gpushare_localcluster.scheduler.plugins.dynamic_resources import DynamicResources
from gpushare_localcluster.scheduler.plugins.node import (
    ImageLocality,
    NodeAffinity,
    NodeName,
    NodePorts,
    NodeUnschedulable,
    TaintToleration,
)
from gpushare_localcluster.scheduler.plugins.pod_affinity import InterPodAffinity
from gpushare_localcluster.scheduler.plugins.resources import (
    NodeResourcesBalancedAllocation,
    NodeResourcesFit,
    NodeResourcesLeastAllocated,
    NodeResourcesMostAllocated,
    RequestedToCapacityRatio,
)
from gpushare_localcluster.scheduler.plugins.topology_spread import PodTopologySpread
from gpushare_localcluster.scheduler.preemption import DefaultPreemption
from gpushare_localcluster.scheduler.queue import by_priority

Factory = Callable[[Fields, Handle], Plugin]
_V1 = (
    ("SchedulingGates", 0),
    ("PrioritySort", 0),
    ("NodeName", 0),
    ("NodeUnschedulable", 0),
    ("TaintToleration", 3),
    ("NodeAffinity", 2),
    ("NodePorts", 0),
    ("NodeResourcesFit", 1),
    ("PodTopologySpread", 2),
    ("InterPodAffinity", 2),
    ("DynamicResources", 2),
    ("DefaultPreemption", 0),
    ("NodeResourcesBalancedAllocation", 1),
    ("ImageLocality", 1),
    ("DefaultBinder", 0),
)
_LIGHT = ("TaintToleration", "NodeAffinity", "InterPodAffinity")
# Preferences of pods had lower weights up to v1beta2; claims came after all betas.
_V1BETA3 = tuple(row for row in _V1 if row[0] != "DynamicResources")
_BETA = tuple((name, 1 if name in _LIGHT else weight) for name, weight in _V1BETA3)
DEFAULTS: dict[str, tuple[tuple[str, int], ...]] = {
    POLICY: (),
    "v1": _V1,
    "v1beta3": _V1BETA3,
    **dict.fromkeys(("v1beta1", "v1beta2"), _BETA),
}
"""Name and weight of the default plug-ins, by version of the file."""
NOT_BUILT = frozenset(
    {
        *("AzureDiskLimits", "CinderLimits", "EBSLimits", "GCEPDLimits", "NodeVolumeLimits"),
        *("VolumeBinding", "VolumeRestrictions", "VolumeZone"),
        *("DeferredPodScheduling", "GangScheduling", "PodGroupPodsCount"),
        *("NodeDeclaredFeatures", "NodeLabel", "NodePreferAvoidPods", "SelectorSpread"),
        *("ServiceAffinity", "TopologyPlacementGenerator"),
    }
)
"""Plug-ins of some release of kube-scheduler that the small scheduler lacks."""


class DefaultBinder(PlainPlugin):
    """Writes a Binding to the API server."""

    name = "DefaultBinder"

    def bind(self, state: CycleState, pod: PodView, node_name: str) -> Status:
        """Bind the pod; return Success, or the API server's refusal."""
        if self._handle.api is None:
            return Status(Code.ERROR, ("there is no API server to bind at",))
        body = {
            "kind": "Binding",
            "apiVersion": "v1",
            "metadata": {"name": pod.name, "namespace": pod.namespace, "uid": pod.uid},
            "target": {"kind": "Node", "name": node_name},
        }
        try:
            self._handle.api.create(f"{pod.path}/binding", body)
        except ApiError as error:
            return Status(Code.ERROR, (str(error),))
        return SUCCESS


class SchedulingGates(PlainPlugin):
    """Keeps pods with scheduling gates outside the queue."""

    name = "SchedulingGates"

    def events_to_register(self) -> tuple[EventWithHint, ...]:
        """Return the event: the removal of the pod's own gates."""
        gates_removed = Action.UPDATE_POD_SCHEDULING_GATES_ELIMINATED
        return (EventWithHint(Resource.TARGET_POD, gates_removed),)

    def pre_enqueue(self, pod: PodView) -> Status:
        """Return Success, or the closed gates."""
        gates = [str(gate.get("name")) for gate in pod.spec.get("schedulingGates") or ()]
        if not gates:
            return SUCCESS
        return Status(Code.UNRESOLVABLE, (f"waiting for scheduling gates: [{' '.join(gates)}]",))


class PrioritySort(PlainPlugin):
    """Sorts by priority, the highest first, and then by waiting time."""

    name = "PrioritySort"

    def less(self, one: Queued, other: Queued) -> bool:
        """Return whether `one` comes before `other`."""
        return by_priority(one, other)


_CLASSES = (
    *(DefaultBinder, DefaultPreemption, DynamicResources, ImageLocality, InterPodAffinity),
    *(NodeAffinity, NodeName, NodePorts, NodeResourcesBalancedAllocation, NodeResourcesFit),
    *(NodeResourcesLeastAllocated, NodeResourcesMostAllocated, NodeUnschedulable),
    *(PodTopologySpread, PrioritySort, RequestedToCapacityRatio, SchedulingGates, TaintToleration),
)
IN_TREE: dict[str, Factory] = {plugin.name: plugin for plugin in _CLASSES}
