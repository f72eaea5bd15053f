"""The policies of Weng et al., "Beware of Fragmentation", USENIX ATC 2023, with their rounding.

The rounding is part of the policies: ties go to the first node, which keeps load on few nodes and
other nodes empty. The paper has only devices that count 1000; see node_shape.py for other devices.

Tested in `tests/contract/test_policies.py` and `tests/unit/core/test_policies.py`.
"""

from functools import partial

import numpy as np

from gpushare.core.model import Request
from gpushare.core.policies.device_bestfit import DeviceBestFit
from gpushare.core.policies.fragmentation import Fragmentation
from gpushare.core.policies.node_shape import (
    PerLayout,
    free_with_compute,
    node_shapes,
    on_tightest,
    rank_unknown_last,
    tightest,
)
from gpushare.core.snapshot import Floats, Rows, Snapshot, idle_devices, pod_kind
from gpushare.core.workload import Workload

SCALE_CPU, SCALE_GPU = 128_000, 8_000
"""CPU and GPU of a whole node, both in milli: the scales as published."""
_ERROR = 1e-9
"""More than the error of a sum of floats; without it the unit of memory would decide whether a
whole number is rounded down."""


class _AsItIs:
    """A policy that uses only the current nodes, not the pods to come."""

    def __init__(self, _workload: Workload | None = None) -> None:
        """Ignore the workload."""
        self._shapes = PerLayout(node_shapes)

    def shapes_key(self, snapshot: Snapshot) -> tuple[()]:
        """Return a constant: scores do not depend on other nodes."""
        return ()


class BestFit(_AsItIs):
    """bestfit: the node with the least CPU and GPU left over, and the tightest device there.

    floor(100 (1 - the mean of the shares of CPU and GPU left over))
    """

    def score(self, snapshot: Snapshot, rows: Rows, request: Request) -> Floats:
        """Return how little the node has left once the request is placed."""
        shapes, free = self._shapes(snapshot), snapshot.free[rows]
        gpu = (free.sum(axis=1) - request.total) * shapes.milli[rows]
        cpu = snapshot.cpu_free[rows] - request.cpu
        value = np.floor(100 * (1 - (cpu / SCALE_CPU + gpu / SCALE_GPU) / 2) + _ERROR)
        return rank_unknown_last(on_tightest(value, free, request), shapes, snapshot, rows, request)


class Clustering(_AsItIs):
    """clustering: pods of one kind together, on the fullest such node and the tightest device
    there.

    Kinds are shares of a device, and 1, 2, 4 or 8 whole devices. 75 for nodes that run only this
    kind, 50 with others, 25 for no pods, else 0; plus up to 25 the fuller the node is. A pod
    without GPU goes to the first node.
    """

    ignores_host = True

    def score(self, snapshot: Snapshot, rows: Rows, request: Request) -> Floats:
        """Return a score by the kinds of pods on the node, then by the node's used share."""
        shapes, free = self._shapes(snapshot), snapshot.free[rows]
        if not request.devices:
            return np.zeros(free.shape)
        kinds = snapshot.kinds[rows]
        whole = pod_kind(request, 1)
        is_part = (request.devices == 1) & (request.units < shapes.capacity[rows])
        kind = np.where(is_part, 0, whole)
        pods_of_kind = np.take_along_axis(kinds, kind[:, None], axis=1)[:, 0]
        has_other_kinds = kinds.sum(axis=1) > pods_of_kind
        base = np.select(
            [(pods_of_kind > 0) & ~has_other_kinds, pods_of_kind > 0, ~has_other_kinds],
            [75, 50, 25],
            0,
        )
        gpu = free.sum(axis=1) * shapes.milli[rows]
        value = base + np.floor(25 * (SCALE_GPU - gpu) / SCALE_GPU + _ERROR)
        return on_tightest(value, free, request)


class DotProduct(_AsItIs):
    """dotproduct: the node with free CPU and GPU least aligned with the request; the tightest
    device.

    floor(100 (1 - the mean over CPU and GPU of share free x share asked))
    """

    def score(self, snapshot: Snapshot, rows: Rows, request: Request) -> Floats:
        """Return a score that is higher the less the node's free shares resemble the request."""
        shapes, free = self._shapes(snapshot), snapshot.free[rows]
        milli = shapes.milli[rows]
        gpu = (free.sum(axis=1) * milli / SCALE_GPU) * (request.total * milli / SCALE_GPU)
        cpu = (snapshot.cpu_free[rows] / SCALE_CPU) * (request.cpu / SCALE_CPU)
        value = np.floor(100 * (1 - (cpu + gpu) / 2) + _ERROR)
        return rank_unknown_last(on_tightest(value, free, request), shapes, snapshot, rows, request)


class Packing(_AsItIs):
    """packing: used devices first, then idle devices of used nodes, then fresh nodes.

    A whole number: over 50 on used devices, 33..50 on idle ones, less on idle nodes. A pod without
    GPU goes to the first node.
    """

    ignores_host = True

    def score(self, snapshot: Snapshot, rows: Rows, request: Request) -> Floats:
        """Return a score by the state of the tightest devices and of the node."""
        free = snapshot.free[rows]
        if not request.devices:
            return np.zeros(free.shape)
        untouched = idle_devices(snapshot, rows)
        fresh = untouched.sum(axis=1)
        chosen = tightest(free, request)
        if request.devices == 1:
            # Of equally tight devices only the first one counts.
            chosen &= np.cumsum(chosen, axis=1) == 1
        opened = (chosen & untouched).sum(axis=1)
        percent = free * 100 // self._shapes(snapshot).capacity[rows][:, None]
        room = np.where(chosen, percent, 0).sum(axis=1)
        whole_node = fresh == (snapshot.capacity[rows] > 0).sum(axis=1)
        value = np.select(
            [whole_node, opened > 0],
            [np.maximum(33 - fresh, fresh), np.maximum(50 - opened, 33)],
            np.maximum(100 - room // 10, 50),
        )
        return on_tightest(value, free, request)


class Fgd:
    """fgd: fragmentation gradient descent, the placement that raises fragmentation least.

    floor(100 / (1 + exp(-d / 1000))), where d is the fall of fragmentation in milli: a whole number
    of 0..100. If cards differ, the largest device counts 1000 and any other device in proportion to
    the units.
    """

    def __init__(self, workload: Workload) -> None:
        self.measure = Fragmentation(workload.typical())
        largest = max(workload.devices, default=0)
        self.shapes = PerLayout(partial(node_shapes, largest=largest))
        self.tables = PerLayout(self.measure.tables)

    def shapes_key(self, snapshot: Snapshot) -> float:
        """Return the value of a unit: scores depend on other nodes only through this value."""
        return self.shapes(snapshot).even

    def score(self, snapshot: Snapshot, rows: Rows, request: Request) -> Floats:
        """Return a score by the fall of fragmentation; without a workload that of DeviceBestFit."""
        if not self.measure.pods:
            return DeviceBestFit().score(snapshot, rows, request)
        shapes, free = self.shapes(snapshot), snapshot.free.take(rows, axis=0)
        fall = self.measure.fall(self.tables(snapshot), snapshot, rows, request)
        milli = shapes.even * -0.001 / (self.measure.pods * self.measure.scale)
        values = np.floor(100 / (1 + np.exp(fall * milli)) + _ERROR)
        if request.devices > 1:
            room = free_with_compute(snapshot, rows, request, free)
            values = np.where(tightest(room, request), values, values - 1)
        elif not request.devices:
            values = np.repeat(values, free.shape[1], axis=1)
        return rank_unknown_last(values, shapes, snapshot, rows, request)
