"""The default profile: which plugins take part, in kube-scheduler's order.

The order matters to users: the first filter that objects to a node gives the reason they read.
"""

from gpushare.localcluster.client import ApiClient
from gpushare.localcluster.scheduler.framework import Plugin
from gpushare.localcluster.scheduler.plugins.binder import DefaultBinder
from gpushare.localcluster.scheduler.plugins.node import (
    NodeAffinity,
    NodeName,
    NodeUnschedulable,
    TaintToleration,
)
from gpushare.localcluster.scheduler.plugins.preemption import PreemptionDiagnosis
from gpushare.localcluster.scheduler.plugins.resources import NodeResourcesFit


def default_plugins(api: ApiClient, ignored_resources: frozenset[str]) -> tuple[Plugin, ...]:
    """The plugins in order. `ignored_resources` are counted by an extender alone."""
    return (
        NodeUnschedulable(),
        NodeName(),
        TaintToleration(),
        NodeAffinity(),
        NodeResourcesFit(ignored_resources),
        PreemptionDiagnosis(),
        DefaultBinder(api),
    )
