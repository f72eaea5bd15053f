"""The nodes and pods of a trace as a cluster in memory, and a pool of its nodes that grows and
shrinks, as an autoscaler makes it: at once, and at no cost.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from gpushare.core.amounts import PERCENT_AMOUNTS
from gpushare.core.model import ANY_SHARERS, Request
from gpushare.core.mutable_cluster import MutableCluster, MutableSnapshot, Placement, fits
from gpushare.core.ranking import Scorer
from gpushare.core.workload import PodClass, Workload, class_of, workload_of
from gpushare.trace.nodes_and_pods import MIB, TraceNode, TracePod, request_of

SHARE = "share"
"""The size class of a pod with a part of one device."""


def workload_of_trace(
    nodes: Sequence[TraceNode], pods: Sequence[TracePod], turnover: float = 0.0
) -> Workload:
    """Return the workload of a trace: each pod counts once."""
    counts: dict[PodClass, int] = {}
    for pod in pods:
        cls = class_of(request_of(pod))
        counts[cls] = counts.get(cls, 0) + 1
    return workload_of(counts, (units for node in nodes for units in node.sizes), turnover)


def size_class(request: Request, capacity: int) -> str:
    """Return the size class of a pod: cpu, SHARE, or the number of devices."""
    if not request.devices:
        return "cpu"
    return SHARE if request.devices == 1 and request.units < capacity else str(request.devices)


class Cluster(MutableCluster):
    """The nodes of a trace, empty."""

    def __init__(
        self,
        nodes: Sequence[TraceNode],
        scorer: Scorer,
        moved: Callable[[Placement, int], None] | None = None,
    ) -> None:
        super().__init__(empty(nodes), scorer, moved)


def empty(nodes: Sequence[TraceNode]) -> MutableSnapshot:
    """Return the nodes without pods, one row each, in order."""
    count, width = len(nodes), max([node.devices for node in nodes], default=1) or 1
    devices = np.arange(width) < np.array([node.devices for node in nodes])[:, None]
    capacity = np.zeros((count, width), dtype=np.int64)
    for row, node in enumerate(nodes):
        capacity[row, : node.devices] = node.sizes
    models = tuple(dict.fromkeys(node.model for node in nodes if node.devices))
    model = np.array([models.index(n.model) if n.devices else -1 for n in nodes], dtype=np.int16)
    groups: dict[TraceNode, int] = {}
    for node in nodes:
        groups.setdefault(replace(node, name=""), len(groups))
    cpu = np.array([node.cpu for node in nodes], dtype=np.int64)
    memory = np.array([node.memory for node in nodes], dtype=np.int64) * MIB
    return MutableSnapshot(
        names=tuple(node.name for node in nodes),
        row={node.name: row for row, node in enumerate(nodes)},
        generation=0,
        capacity=capacity,
        used=np.zeros((count, width), dtype=np.int64),
        percents_used=tuple(np.zeros((count, width), dtype=np.int32) for _ in PERCENT_AMOUNTS),
        healthy=devices,
        model=np.where(devices, model[:, None], np.int16(-1)),
        models=models,
        uuids=((),) * count,
        cpu_capacity=cpu,
        memory_capacity=memory,
        cpu_free=cpu.copy(),
        memory_free=memory.copy(),
        cpu_only=np.zeros(count, dtype=np.int64),
        gpu_pods=np.zeros(count, dtype=np.int64),
        pods=np.zeros((count, width, 2), dtype=np.int16),
        group=np.array([groups[replace(node, name="")] for node in nodes], dtype=np.int32),
        sharers=np.full(count, ANY_SHARERS, dtype=np.int16),
        closed=np.zeros(count, dtype=np.int8),
        order=np.arange(count, dtype=np.int64),
        row_generation=np.zeros(count, dtype=np.int64),
        pinned={},
        workloads={},
    )


class NodePool:
    """The nodes of a cluster that are there; at first there is none."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.present = np.zeros(len(cluster.view.names), dtype=bool)
        """bool (N,)"""

    def place(self, request: Request) -> Placement | None:
        """Place the pod on a node that is there, else on the first other one, which joins; None if
        the pod fits on none.
        """
        placement = self._cluster.place(request, self.present)
        if placement is not None:
            return placement
        rows = np.flatnonzero(~self.present)
        fitting = rows[fits(self._cluster.view, rows, request).any(axis=1)]
        if not len(fitting):
            return None
        self.present[fitting[0]] = True
        return self._cluster.place_on(int(fitting[0]), request)

    def shrink(self, row: int) -> None:
        """Let the node leave if it is empty."""
        view = self._cluster.view
        is_used = view.used[row].any() or view.cpu_free[row] < view.cpu_capacity[row]
        self.present[row] = bool(is_used or view.memory_free[row] < view.memory_capacity[row])
