"""The in-tree plug-ins, the defaults with weights, and the plug-ins that are left out.

The order of the defaults is that of kube-scheduler and matters to users: the first filter that
rejects a node gives the reason.
"""

from collections.abc import Callable

from gpushare.wire.fields import Fields
from gpushare.wire.scheduler.policy import POLICY
from gpushare_localcluster.scheduler.framework import Plugin
from gpushare_localcluster.scheduler.handle import Handle
from gpushare_localcluster.scheduler.plugins.binder import DefaultBinder
from gpushare_localcluster.scheduler.plugins.dynamic_resources import DynamicResources
from gpushare_localcluster.scheduler.plugins.enqueue import PrioritySort, SchedulingGates
from gpushare_localcluster.scheduler.plugins.images import ImageLocality
from gpushare_localcluster.scheduler.plugins.node import NodeName, NodePorts, NodeUnschedulable
from gpushare_localcluster.scheduler.plugins.node_affinity import NodeAffinity
from gpushare_localcluster.scheduler.plugins.pod_affinity import InterPodAffinity
from gpushare_localcluster.scheduler.plugins.preemption import DefaultPreemption
from gpushare_localcluster.scheduler.plugins.resources import (
    NodeResourcesBalancedAllocation,
    NodeResourcesFit,
    NodeResourcesLeastAllocated,
    NodeResourcesMostAllocated,
    RequestedToCapacityRatio,
)
from gpushare_localcluster.scheduler.plugins.taints import TaintToleration
from gpushare_localcluster.scheduler.plugins.topology_spread import PodTopologySpread

Factory = Callable[[Fields, Handle], Plugin]

_CLASSES = (
    *(DefaultBinder, DefaultPreemption, DynamicResources, ImageLocality, InterPodAffinity),
    *(NodeAffinity, NodeName, NodePorts, NodeResourcesBalancedAllocation, NodeResourcesFit),
    *(NodeResourcesLeastAllocated, NodeResourcesMostAllocated, NodeUnschedulable),
    *(PodTopologySpread, PrioritySort, RequestedToCapacityRatio, SchedulingGates, TaintToleration),
)
IN_TREE: dict[str, Factory] = {plugin.name: plugin for plugin in _CLASSES}

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
