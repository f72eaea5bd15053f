"""The plug-ins in tree, those that are on by default with their weights, and those not built.

The order of the defaults is kube-scheduler's and matters to users: the first filter that objects to
a node gives the reason they read.
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
# What a pod's author prefers weighed less up to v1beta2; claims came later than all betas.
_V1BETA3 = tuple(row for row in _V1 if row[0] != "DynamicResources")
_BETA = tuple((name, 1 if name in _LIGHT else weight) for name, weight in _V1BETA3)

DEFAULTS: dict[str, tuple[tuple[str, int], ...]] = {
    POLICY: (),
    "v1": _V1,
    "v1beta3": _V1BETA3,
    **dict.fromkeys(("v1beta1", "v1beta2"), _BETA),
}
"""Name and weight of the plug-ins that are on by default, by version of the file."""

NOT_BUILT = frozenset(
    {
        *("AzureDiskLimits", "CinderLimits", "EBSLimits", "GCEPDLimits", "NodeVolumeLimits"),
        *("VolumeBinding", "VolumeRestrictions", "VolumeZone"),
        *("DeferredPodScheduling", "GangScheduling", "PodGroupPodsCount"),
        *("NodeDeclaredFeatures", "NodeLabel", "NodePreferAvoidPods", "SelectorSpread"),
        *("ServiceAffinity", "TopologyPlacementGenerator"),
    }
)
"""Plug-ins of some release of kube-scheduler that this small one has not."""
