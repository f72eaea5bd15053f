"""The default profile: which plugins take part, in kube-scheduler's order.

The order matters to users: the first filter that objects to a node gives the reason they read.
"""

from gpushare.localcluster.client import ApiClient
from gpushare.localcluster.scheduler.framework import FilterPlugin, Plugin
from gpushare.localcluster.scheduler.plugins.binder import DefaultBinder
from gpushare.localcluster.scheduler.plugins.node import (
    NodeAffinity,
    NodeName,
    NodeUnschedulable,
    TaintToleration,
)
from gpushare.localcluster.scheduler.plugins.preemption import DefaultPreemption
from gpushare.localcluster.scheduler.plugins.resources import NodeResourcesFit


def default_filters(ignored_resources: frozenset[str]) -> tuple[FilterPlugin, ...]:
    """Return the filters in order. `ignored_resources` are counted by an extender alone."""
    return (
        NodeUnschedulable(),
        NodeName(),
        TaintToleration(),
        NodeAffinity(),
        NodeResourcesFit(ignored_resources),
    )


def default_plugins(
    filters: tuple[FilterPlugin, ...], preemption: DefaultPreemption, api: ApiClient
) -> tuple[Plugin, ...]:
    """Return all plugins in order."""
    return (*filters, preemption, DefaultBinder(api))
