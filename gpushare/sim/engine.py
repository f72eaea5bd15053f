"""A cluster in the books of a simulation: the decisions of the extender, without its events.

It knows nodes and pods of a trace, and decides by the same `Ranking` and the same choice of devices
as prioritize and bind. What kube-scheduler enforces before it asks an extender is enforced here:
CPU, memory and the GPU model. The arrays that policies see are changed in place, so nothing is
copied for a pod.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from gpushare.core.decide import best_devices
from gpushare.core.model import Request
from gpushare.core.policies.binpack import Binpack
from gpushare.core.policies.device_bestfit import DeviceBestFit
from gpushare.core.policies.fgd import Fgd
from gpushare.core.policies.shadow_price.policy import ShadowPrice
from gpushare.core.policy import Policy
from gpushare.core.ranking import Ranking, Scorer, fits_devices
from gpushare.core.snapshot import KINDS, Bools, Rows, Snapshot, pod_kind
from gpushare.core.workload import PodClass, Workload, class_of, workload_of
from gpushare.sim.compiled import COMPILED
from gpushare.sim.fast import FastRanking, has_kernel
from gpushare.sim.simple import SimpleRanking
from gpushare.sim.trace import TraceNode, TracePod

MIB = 2**20

COMPILED_FROM = 200
"""Nodes from which on loops are compiled; fewer pay where many clusters are simulated in a row."""

_ROWS_REMEMBERED = 5_000_000
"""Nodes times kinds of pods whose matrices are kept, a hundred bytes or two each: some 4,000 kinds
on the nodes of openb, which are all that its traces have."""


class Placement(NamedTuple):
    """Where a pod is."""

    row: int
    devices: tuple[int, ...]
    request: Request


class LiveSnapshot(Snapshot):
    """A Snapshot whose arrays and generation change under the reader's eyes.

    A simulation has one thread, and whoever reads has done so before the next change.
    """

    def changed(self, row: int) -> None:
        """The row has changed."""
        generation = self.generation + 1
        self.row_generation[row] = generation
        object.__setattr__(self, "generation", generation)


def request_of(pod: TracePod) -> Request:
    """What the pod asks for."""
    return Request(
        units=pod.units if pod.devices else 0,
        devices=pod.devices,
        cpu=pod.cpu,
        memory=pod.memory * MIB,
        models=tuple(sorted(pod.models)) if pod.devices else (),
    )


def workload_of_trace(
    nodes: Sequence[TraceNode], pods: Sequence[TracePod], turnover: float = 0.0
) -> Workload:
    """The workload that a trace is: each of its pods counts once."""
    counts: dict[PodClass, int] = {}
    for pod in pods:
        cls = class_of(request_of(pod))
        counts[cls] = counts.get(cls, 0) + 1
    return workload_of(counts, (units for node in nodes for units in node.sizes), turnover)


def size_class(request: Request, capacity: int) -> str:
    """What a pod is counted under: cpu, share, or its number of whole devices."""
    if not request.devices:
        return "cpu"
    return "share" if request.devices == 1 and request.units < capacity else str(request.devices)


def fits(snapshot: Snapshot, rows: Rows, request: Request) -> Bools:
    """bool (K, D): where the request fits by devices, CPU, memory and model."""
    enough = snapshot.cpu_free[rows] >= request.cpu
    enough &= snapshot.memory_free[rows] >= request.memory
    if request.models:
        accepted = [model in request.models for model in snapshot.models]
        enough &= np.array([*accepted, False])[snapshot.model[rows].max(axis=1, initial=-1)]
    if not request.devices:
        return np.repeat(enough[:, None], snapshot.used.shape[1], axis=1)
    mask: Bools = fits_devices(snapshot, rows, request) & enough[:, None]
    return mask


def ranking(policy: Policy, nodes: int) -> Ranking:
    """The judge by a policy, of what fits as kube-scheduler and the extender see it."""
    # To compile, or to load what was compiled, costs more than few nodes take.
    kinds = max(_ROWS_REMEMBERED // max(nodes, 1), 1)
    if nodes >= COMPILED_FROM and COMPILED:
        if isinstance(policy, Fgd | ShadowPrice) and has_kernel(policy):
            return FastRanking(policy, kinds, fits)
        if isinstance(policy, DeviceBestFit | Binpack):
            return SimpleRanking(policy, fits)
    return Ranking(policy, kinds, fits)


class Cluster:
    """Nodes in their order, what is placed on them, and a judge of where to place.

    moved: told 1 for every pod that is placed, -1 for every one that leaves.
    """

    def __init__(
        self, nodes: Sequence[TraceNode], judge: Scorer, moved: Callable[[int], None] | None = None
    ) -> None:
        self.view = _empty(nodes)
        self.judge = judge
        self._moved = moved
        self.capacity = int(self.view.capacity.sum())
        self.allocated = 0

    def place(self, request: Request) -> Placement | None:
        """Put a pod where the policy likes it best, ties to the first node; None: it fits nowhere.

        Raises nothing: what does not fit is no error of a simulation.
        """
        judged = self.judge.scores(self.view, request)
        row = int(judged.values.argmax())
        if judged.values[row] == -np.inf:
            return None
        if request.devices == 1:
            return self.put(row, (judged.device(row),), request)
        return self._put_best(row, request)

    def place_on(self, row: int, request: Request) -> Placement | None:
        """The same, on this node alone."""
        if not fits(self.view, np.array([row]), request).any():
            return None
        return self._put_best(row, request)

    def fits_empty(self, request: Request) -> bool:
        """Whether there is a node that the request fits now; asked of an empty cluster."""
        return bool(fits(self.view, np.arange(len(self.view.names)), request).any())

    def _put_best(self, row: int, request: Request) -> Placement:
        devices: tuple[int, ...] = ()
        if request.devices:
            rows = np.array([row])
            mask = fits_devices(self.view, rows, request)
            devices = best_devices(self.judge, self.view, rows, mask, request)
        return self.put(row, devices, request)

    def put(self, row: int, devices: tuple[int, ...], request: Request) -> Placement:
        """Charge the pod to these devices of the node."""
        placement = Placement(row, devices, request)
        self._count(placement, 1)
        return placement

    def release(self, placement: Placement) -> None:
        """The pod is gone: give back all it held."""
        self._count(placement, -1)

    def _count(self, placement: Placement, sign: int) -> None:
        row, devices, request = placement
        view, units = self.view, sign * request.units
        for device in devices:
            view.used[row, device] += units
            view.free[row, device] -= units
        view.cpu_free[row] -= sign * request.cpu
        view.memory_free[row] -= sign * request.memory
        if request.devices:
            view.kinds[row, pod_kind(request, int(view.capacity[row].max()))] += sign
            self.allocated += sign * request.total
        else:
            view.cpu_only[row] += sign * request.cpu
        view.changed(row)
        if self._moved is not None:
            self._moved(sign)


def _empty(nodes: Sequence[TraceNode]) -> LiveSnapshot:
    """The nodes with nothing on them; rows and order are as given."""
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
    view = LiveSnapshot(
        names=tuple(node.name for node in nodes),
        row={node.name: row for row, node in enumerate(nodes)},
        generation=0,
        capacity=capacity,
        used=np.zeros((count, width), dtype=np.int64),
        healthy=devices,
        model=np.where(devices, model[:, None], np.int16(-1)),
        models=models,
        cpu_capacity=cpu,
        memory_capacity=memory,
        cpu_free=cpu.copy(),
        memory_free=memory.copy(),
        cpu_only=np.zeros(count, dtype=np.int64),
        kinds=np.zeros((count, KINDS), dtype=np.int16),
        group=np.array([groups[replace(node, name="")] for node in nodes], dtype=np.int32),
        closed=np.zeros(count, dtype=np.int8),
        order=np.arange(count, dtype=np.int64),
        row_generation=np.zeros(count, dtype=np.int64),
        pinned={},
    )
    view.free.flags.writeable = True
    return view
