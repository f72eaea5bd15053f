"""shadow-price: the placement that costs the pods to come the least.

Each placement gets a price, and the cheapest one wins:

    GPU pods   floor(((1 + 7 t) dF / 4 - B R - dS - t drain - t hold / (pods + 1)) / Q + 1/2)
               - floor(THETA P g) - floor((1 + 3 t) 2.5 blocks)
    others     floor(((1 + 7 t) dF / 4 - dS) / Q + 1/2) + floor(-t MU dS0 / Q + 1/2)
               - floor((1 + 3 t) 125 blocks) - a tie

- dF is the fall of fragmentation (see `fragmentation`; if cards differ, pods count by size).
- R is the value that residues of devices lose (`residual_value`): the whole residue where the pod
  uses up the free compute.
- dS is the rise of GPU stranded because CPU is missing (`cpu_stranding`). dS0 is the same if the
  node held only pods without GPU, since the others leave sooner or later.
- drain grows with the free GPU of the node, and with the share of GPU that pods of several devices
  ask for, so that nodes become whole again.
- hold grows with the share of those pods of several devices that fit nearly all nodes. No price of
  a group makes nodes drain for these pods, so a placement pays for the time that it keeps the node
  from being empty: n pods that leave at random are gone after 1 + 1/2 + ... + 1/n lifetimes, and
  one more pod adds 1 / (n + 1).
- P is the price of the node's group, `blocks` that of the blocks broken and of an idle card opened
  (`scarcity`), g the GPU asked for, in devices.
- Pods without GPU go first where no GPU is left, then where little CPU is left.

t, the workload's turnover, is how many pods leave for each that comes. While a cluster fills (t =
0), pods stay, and only the value of CPU and residues counts. If pods come and go (t = 1), a pod
that breaks a whole device or a block today would soon have found room elsewhere. So both are
dearer, and the state of a node after all pods have left counts too.

Everything is counted by units, in milli of the largest device: a unit is worth the same on any
card. Only the prices of residues, groups and blocks keep some cards for pods that need them.

One set of parameters serves all clusters and workloads of the simulations. Each parameter may be
doubled or halved without much change (HOLD: 40,000 and 80,000 are equivalent, 20,000 is too small).

Tested in `tests/unit/core/test_policies.py`.
"""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np

from gpushare.core.model import Request
from gpushare.core.policies.device_bestfit import DeviceBestFit
from gpushare.core.policies.fragmentation import Fragmentation
from gpushare.core.policies.node_shape import (
    BEFORE_AFTER,
    HAIR,
    HALF,
    MILLI,
    CommonNodes,
    NodeShapes,
    PerGroups,
    PerLayout,
    common_nodes,
    free_with_compute,
    node_shapes,
    rank_unknown_last,
    tightest,
)
from gpushare.core.policies.published import SCALE_CPU, SCALE_GPU
from gpushare.core.policies.shadow_price import cpu_stranding, scarcity
from gpushare.core.policies.shadow_price.residual_value import worth
from gpushare.core.policy import Taken
from gpushare.core.snapshot import Floats, Ints, Rows, Snapshot
from gpushare.core.workload import PodClass, Workload

ALPHA, BETA, Q, MU, THETA = 0.25, 10, 20, 0.1, 30
"""Weights of the fall of fragmentation, of residues, the grain, and weights of dS0 and groups."""

BLOCK_GPU, BLOCK_CPU = 100 / 40, 5000 / 40
"""Weights of a block for pods with and without GPU."""

MORE_FRAGMENTATION, MORE_BLOCKS = 7, 3
"""Multiples of the weights of fragmentation and blocks, added if as many pods leave as come."""

DRAIN, FEW = 2000, 0.1
"""Weight of draining, by the share of GPU beyond FEW that pods of several devices ask for."""

HOLD, HARDLY_ANY = 60000, 0.04
"""Weight of holding a node, by the share of GPU beyond HARDLY_ANY that is requested by pods of
several idle devices that fit nearly all nodes."""


_FINE = 1000
_Made = TypeVar("_Made")


@dataclass(frozen=True, slots=True, eq=False)
class PriceTables:
    """The tables of all capacities, one after another, and the begin of a group's (groups,)."""

    steps: Ints
    """The parts of a device in `worth`."""
    worth_at: Ints
    worth: Floats
    stranded_at: Ints
    stranded: Floats
    sizes: tuple[int, ...]
    """The capacities of the cards with tables, rising."""


def _weight_of(workload: Workload) -> Callable[[PodClass], int]:
    """Return how often a pod of each class counts in the measure of fragmentation.

    If all cards have one capacity, each pod counts once, as published. If the cards differ, the
    many small pods fit any card, and the few large pods lack room on the large cards: so a pod
    counts by the units on a device, in thousandths of the largest device.
    """
    largest = max(workload.devices, default=0)
    if len(workload.capacities) <= 1:
        return lambda _: 1
    # A pod without GPU loses the same wherever others are placed.
    return lambda cls: -(-_FINE * cls.units // largest) if cls.devices else _FINE


class ShadowPrice:
    """The prices of one workload; without a workload the scores are those of DeviceBestFit."""

    def __init__(self, workload: Workload) -> None:
        self.classes = tuple(item for item in workload.classes if item[0].devices)
        self.measure = Fragmentation(workload.typical(weight=_weight_of(workload)))
        several = sum(cls.total * count for cls, count in self.classes if cls.devices > 1)
        requested_units = max(workload.gpu, 1)
        self.turnover = workload.turnover
        self.guard = 1 + MORE_BLOCKS * self.turnover
        self.alpha = ALPHA * (1 + MORE_FRAGMENTATION * self.turnover)
        self.mu = MU * self.turnover
        self.drain = DRAIN * max(several / requested_units - FEW, 0) * self.turnover
        shares = [(cls, cls.total * count / requested_units) for cls, count in self.classes]
        # Nothing here may refer back to the policy: in a cycle, the tables of unused policies would
        # stay until the next full garbage collection. Scales, tables and prices are of
        # the nodes with cards of the workload's sizes.
        self.common = PerGroups(partial(common_nodes, sizes=tuple(workload.devices)))
        shapes = PerGroups(node_shapes)
        self.shapes = PerGroups(partial(_of_common, self.common, shapes))
        self.tables = PerGroups(partial(_of_common, self.common, self.measure.tables))
        goods = scarcity.ScarceGoods(shares)
        self.scarce = PerGroups(partial(_of_common, self.common, goods))
        self.roaming = PerLayout(partial(_roaming, self.scarce))
        prices = _Prices(self.classes, workload.devices, shapes)
        self.priced = PerGroups(partial(_of_common, self.common, prices.tables))

    def shapes_key(self, snapshot: Snapshot) -> Hashable:
        """Return the value of a unit, the cost of holding a node, the blocks that count, and the
        sizes of cards if the workload has none.
        """
        if not self.classes:
            return ()
        kinds = self.scarce(snapshot).blocks.key
        sizes = () if self.common(snapshot).sizes.size else self.priced(snapshot).sizes
        return self.shapes(snapshot).even, self.hold(snapshot), kinds, sizes

    def score(self, snapshot: Snapshot, rows: Rows, request: Request) -> Floats:
        """Return minus the cost on the own node: fragmentation, residues, stranding, draining."""
        if not self.classes:
            return DeviceBestFit().score(snapshot, rows, request)
        shapes, free = self.shapes(snapshot), snapshot.free.take(rows, axis=0)
        fall = self.measure.fall(self.tables(snapshot), snapshot, rows, request)
        pods = self.measure.pods * self.measure.scale
        value = fall * np.float64(shapes.even * (self.alpha / pods))
        if request.devices:
            value = self._with_gpu(value, snapshot, rows, request, free)
        else:
            value = self._without_gpu(value, snapshot, rows, request, free)
        value = rank_unknown_last(value, shapes, snapshot, rows, request)
        return self.common(snapshot).with_apart(value, snapshot, rows, request)

    def supply(self, snapshot: Snapshot, rows: Rows) -> Ints:
        """Return the free GPU and blocks of each row; none of nodes that stand apart."""
        supply = self.scarce(snapshot).supply(snapshot, rows)
        return self.common(snapshot).without_apart(supply, snapshot, rows)

    def taken(self, snapshot: Snapshot, rows: Rows, request: Request) -> Taken:
        """Return the blocks that a placement breaks; none on nodes with unknown CPU, and none on
        nodes that stand apart.
        """
        blocks = self.scarce(snapshot).taken(snapshot, rows, request)
        blocks = self.common(snapshot).without_apart(blocks, snapshot, rows)
        if self.shapes(snapshot).any_cpu_unknown:
            blocks[snapshot.cpu_capacity[rows] < 0] = 0
        return blocks

    def group_prices(self, snapshot: Snapshot, request: Request, totals: Ints) -> Floats:
        """Return the cost of a placement for the pods that need nodes of a group."""
        scarce = self.scarce(snapshot)
        # Without a workload nothing is needed, and a pod without GPU takes none.
        requested_devices = request.total * scarce.per_unit
        cost: Floats = np.floor(THETA * scarce.group_prices(totals) * requested_devices + HAIR)
        return cost

    def taken_prices(
        self, snapshot: Snapshot, request: Request, amounts: Taken, totals: Ints
    ) -> Floats:
        """Return the cost of a placement for the pods that need blocks."""
        cost: Floats = self.scarce(snapshot).taken_prices(amounts, totals)
        weight = (BLOCK_GPU if request.devices else BLOCK_CPU) * self.guard
        return np.floor(weight * cost + HAIR)

    def hold(self, snapshot: Snapshot) -> float:
        """Return the cost, in milli, of holding an empty node for the lifetime of a pod."""
        return HOLD * max(self.roaming(snapshot) - HARDLY_ANY, 0) * self.turnover

    def _with_gpu(
        self, fall: Floats, snapshot: Snapshot, rows: Rows, request: Request, free: Ints
    ) -> Floats:
        """Return float64 (K, D): the score. fall: of fragmentation, (K, D) or (K, 1)."""
        gpu = np.add.reduce(free, axis=1)
        both = gpu - BEFORE_AFTER * request.total
        cpu = snapshot.cpu_free.take(rows) - BEFORE_AFTER * request.cpu
        stranded = self._stranded(snapshot, rows, both, cpu)
        node = (
            stranded[0]
            - stranded[1]
            - both[1] * (self.shapes(snapshot).even * (self.drain / SCALE_GPU))
        )
        hold = self.hold(snapshot)
        if hold:
            node -= hold / (snapshot.gpu_pods.take(rows) + 1)
        value: Floats = fall + node[:, None]
        value = value - BETA * self._residual_value_lost(snapshot, rows, request, free)
        value = np.floor(value / Q + HALF)
        if request.devices > 1:
            room = free_with_compute(snapshot, rows, request, free)
            value = np.where(tightest(room, request), value, value - 1)
        return value if value.shape == free.shape else np.broadcast_to(value, free.shape)

    def _without_gpu(
        self, fall: Floats, snapshot: Snapshot, rows: Rows, request: Request, free: Ints
    ) -> Floats:
        gpu, cpu = np.add.reduce(free, axis=1), snapshot.cpu_free.take(rows)
        # The node now, and the node after the pods with GPU have left.
        alone = snapshot.cpu_capacity.take(rows) - snapshot.cpu_only.take(rows)
        whole = np.add.reduce(snapshot.capacity.take(rows, axis=0), axis=1)
        stranded = self._stranded(
            snapshot,
            rows,
            np.stack([gpu, gpu, whole, whole]),
            np.stack([cpu, cpu - request.cpu, alone, alone - request.cpu]),
        )
        value = np.floor((fall[:, 0] + stranded[0] - stranded[1]) / Q + HALF)
        value += np.floor(self.mu * (stranded[2] - stranded[3]) / Q + HALF)
        free_gpu = gpu * self.shapes(snapshot).even
        value -= 0.5 * free_gpu / SCALE_GPU + 0.4 * cpu / SCALE_CPU
        return np.broadcast_to(value[:, None], free.shape)

    def _residual_value_lost(
        self, snapshot: Snapshot, rows: Rows, request: Request, free: Ints
    ) -> Floats:
        """Return float64 (K, D) or (K, 1): the value that the used devices lose."""
        tables, group = self.priced(snapshot), snapshot.group.take(rows)[:, None]
        steps, capacity = tables.steps.take(group), self.shapes(snapshot).capacity.take(group)
        begin = tables.worth_at.take(group)
        lost = tables.worth.take(begin + free * steps // capacity, mode="clip")
        free_after = free - request.units
        if request.cores:
            free_after[snapshot.cores_free.take(rows, axis=0) <= request.cores] = 0
        lost -= tables.worth.take(begin + free_after * steps // capacity, mode="clip")
        if request.devices == 1:
            return lost
        room = free_with_compute(snapshot, rows, request, free)
        total: Floats = (lost * tightest(room, request)).sum(axis=1, keepdims=True)
        return total

    def _stranded(self, snapshot: Snapshot, rows: Rows, gpu: Ints, cpu: Ints) -> Floats:
        """Return float64 (..., K): GPU expected to be stranded, in milli, by free GPU and CPU."""
        tables, group = self.priced(snapshot), snapshot.group.take(rows)
        capacity = self.shapes(snapshot).capacity.take(group)
        at = cpu_stranding.index(gpu, cpu, capacity) + tables.stranded_at.take(group)
        return tables.stranded.take(at, mode="clip")


def _of_common(
    common: Callable[[Snapshot], CommonNodes], make: Callable[[Snapshot], _Made], snapshot: Snapshot
) -> _Made:
    """Return the value made from the nodes that do not stand apart."""
    return make(common(snapshot).snapshot)


def _roaming(scarce: Callable[[Snapshot], scarcity.Scarcity], snapshot: Snapshot) -> float:
    """Return `Scarcity.roaming` for the nodes of the snapshot."""
    return scarce(snapshot).roaming(snapshot.group_rows.nodes)


class _Prices:
    """The value of residues and the stranded GPU, for these classes and devices by capacity."""

    def __init__(
        self,
        classes: tuple[tuple[PodClass, int], ...],
        devices: Mapping[int, int],
        shapes: Callable[[Snapshot], NodeShapes],
    ) -> None:
        self._classes = classes
        self._shapes = shapes
        self._devices = devices
        self._by_capacity = self._priced(devices)
        # For the last layout: value of a unit, sizes of cards, tables scaled by that value.
        self._scaled: tuple[float, tuple[int, ...], Floats, Floats] | None = None

    def tables(self, snapshot: Snapshot) -> PriceTables:
        """Return the tables for the nodes of the snapshot.

        The tables were made with the policy; only a workload without devices has tables made here,
        for the nodes' capacities.
        """
        devices, priced = self._devices, self._by_capacity
        if not devices:
            sizes = np.unique(snapshot.capacity[snapshot.capacity > 0]).tolist()
            devices = dict.fromkeys(sizes or [1], 1)
            priced = self._priced(devices)
        shapes, capacities = self._shapes(snapshot), np.array(sorted(devices), dtype=np.int64)
        # A node without devices gets the smallest capacity; the tables are not read for such a
        # node.
        index = np.minimum(capacities.searchsorted(shapes.capacity), len(capacities) - 1)
        lengths = np.array([len(worth_) for worth_, _ in priced])
        begins = np.cumsum(lengths) - lengths
        scaled = self._scaled
        if scaled is None or scaled[:2] != (shapes.even, tuple(capacities.tolist())):
            stranded = [table.ravel() for _, table in priced]
            parts = (capacities * (shapes.even / MILLI)).tolist()
            scaled = self._scaled = (
                shapes.even,
                tuple(capacities.tolist()),
                np.concatenate([worth_ for worth_, _ in priced]) * shapes.even,
                np.concatenate([part * line for part, line in zip(parts, stranded, strict=True)]),
            )
        return PriceTables(
            steps=(lengths - 1)[index],
            worth_at=begins[index],
            worth=scaled[2],
            stranded_at=index * cpu_stranding.SIZE,
            stranded=scaled[3],
            sizes=scaled[1],
        )

    def _priced(self, devices: Mapping[int, int]) -> list[tuple[Floats, Floats]]:
        """Return (value of residues, stranded GPU) by rising capacity of these devices."""
        values = worth(self._classes, devices)
        return [
            (values[capacity], cpu_stranding.stranded(self._classes, capacity))
            for capacity in sorted(devices)
        ]
