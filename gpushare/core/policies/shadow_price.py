"""shadow-price: the placement that costs the pods to come least.

What a placement takes is priced, and the cheapest wins:

    GPU pods   floor((A dF - B R - dS - drain) / Q + 1/2) - floor(THETA P g) - floor(2.5 blocks)
    others     floor((A dF - dS) / Q + 1/2) + floor(-MU dS0 / Q + 1/2) - floor(125 blocks) - a tie

dF is the fall of fragmentation (see `fragmentation`), R the worth that residues of devices lose
(`residues`), dS the rise of GPU stranded for want of CPU (`stranding`), dS0 the same as if the node
held pods without GPU alone, since the others leave sooner or later; drain grows with what is free
on the node and with the share of GPU that pods of several devices ask for, so that nodes become
whole again; P is the price of the node's group and `blocks` that of the blocks broken (`scarcity`),
g the GPU asked in devices. Pods without GPU go where no GPU is left first, then where little CPU
is.

One set of parameters serves all clusters and workloads that it was tried on; each may be doubled or
halved without much change.
"""

from functools import partial

import numpy as np

from gpushare.core.model import Request
from gpushare.core.policies import scarcity, stranding
from gpushare.core.policies.bestfit import LARGEST_CPU, LARGEST_GPU
from gpushare.core.policies.device_bestfit import DeviceBestFit
from gpushare.core.policies.fragmentation import Fragmentation, in_milli
from gpushare.core.policies.ground import PerLayout, ground, idle, tightest, with_blind
from gpushare.core.policies.residues import step_of, worth
from gpushare.core.policy import Stakes
from gpushare.core.snapshot import Floats, Ints, Rows, Snapshot
from gpushare.core.workload import Workload

ALPHA, BETA, Q, MU, THETA = 2, 10, 20, 0.1, 30
"""Weights of the fall of fragmentation, of residues, the grain, and weights of dS0 and groups."""

BLOCK_GPU, BLOCK_CPU = 100 / 40, 5000 / 40
"""Weights of a block for pods with and without GPU."""

DRAIN, FEW = 2000, 0.1
"""Weight of draining, by the share of GPU that pods of several devices ask for beyond FEW."""


class ShadowPrice:
    """The prices of one workload. Without any it judges as DeviceBestFit does."""

    def __init__(self, workload: Workload) -> None:
        self._classes = tuple(item for item in workload.classes if item[0].devices)
        self._measure = Fragmentation(workload.typical())
        several = sum(cls.total * count for cls, count in self._classes if cls.devices > 1)
        asked = max(workload.gpu, 1)
        self._drain = DRAIN * max(several / asked - FEW, 0)
        shares = [(cls, cls.total * count / asked) for cls, count in self._classes]
        self._by_capacity: dict[int, tuple[Floats, Floats]] = {}
        for capacity in workload.capacities:
            self._tables_of(capacity)
        self._ground = PerLayout(ground)
        self._tables = PerLayout(self._measure.tables_for)
        self._scarce = PerLayout(partial(scarcity.scarcity, shares=shares))
        self._priced = PerLayout(self._price_tables)

    def score(self, snapshot: Snapshot, rows: Rows, request: Request) -> Floats:
        """What a placement costs on its own node: fragmentation, residues, stranding, draining."""
        if not self._classes:
            return DeviceBestFit().score(snapshot, rows, request)
        if request.devices:
            values = self._with_gpu(snapshot, rows, request)
        else:
            column = self._without_gpu(snapshot, rows, request)
            values = np.repeat(column[:, None], snapshot.used.shape[1], axis=1)
        return with_blind(values, self._ground(snapshot), snapshot, rows, request)

    def offers(self, snapshot: Snapshot, rows: Rows) -> Ints:
        """Free GPU and blocks of each row."""
        return self._scarce(snapshot).offers(snapshot, rows)

    def stakes(self, snapshot: Snapshot, rows: Rows, request: Request) -> Stakes:
        """The blocks that a placement breaks."""
        return self._scarce(snapshot).stakes(snapshot, rows, request)

    def pressure(
        self, snapshot: Snapshot, rows: Rows, request: Request, stakes: Stakes, goods: Ints
    ) -> Floats:
        """What a placement costs those who need the node's group, or blocks."""
        if not self._classes:
            return np.zeros((len(rows), snapshot.used.shape[1]))
        facts, scarce = self._ground(snapshot), self._scarce(snapshot)
        weight = BLOCK_GPU if request.devices else BLOCK_CPU
        cost = np.floor(weight * scarce.broken(stakes, goods))
        if request.devices == 1 and cost.shape[1] > 1:
            cost = np.where(idle(snapshot, rows), cost[:, 1:], cost[:, :1])
        if request.devices:
            asked = request.total * facts.milli[rows] / 1000
            group = np.floor(THETA * scarce.pressure(snapshot, rows, goods) * asked)
            cost = cost + group[:, None]
        cost = np.where(facts.blind[rows][:, None], 0, cost) if facts.any_blind else cost
        return np.broadcast_to(-cost, (len(rows), snapshot.used.shape[1]))

    def _with_gpu(self, snapshot: Snapshot, rows: Rows, request: Request) -> Floats:
        facts, free = self._ground(snapshot), snapshot.free[rows]
        milli = facts.milli[rows]
        gpu, cpu = free.sum(axis=1) * milli, snapshot.cpu_free[rows]
        asked = request.total * milli
        node = self._stranded(snapshot, rows, gpu, cpu)
        node -= self._stranded(snapshot, rows, gpu - asked, cpu - request.cpu)
        node -= self._drain * (gpu - asked) / LARGEST_GPU
        value: Floats = ALPHA * self._fall(snapshot, rows, request) + node[:, None]
        value = value - BETA * self._residues(snapshot, rows, request, free)
        value = np.floor(value / Q + 0.5)
        if request.devices > 1:
            value = np.where(tightest(free, request), value, value - 1)
        return value

    def _without_gpu(self, snapshot: Snapshot, rows: Rows, request: Request) -> Floats:
        facts = self._ground(snapshot)
        gpu, cpu = snapshot.free[rows].sum(axis=1) * facts.milli[rows], snapshot.cpu_free[rows]
        value = ALPHA * self._fall(snapshot, rows, request)[:, 0]
        value += self._stranded(snapshot, rows, gpu, cpu)
        value -= self._stranded(snapshot, rows, gpu, cpu - request.cpu)
        whole = 1000.0 * (snapshot.capacity[rows] > 0).sum(axis=1)
        left = snapshot.cpu_capacity[rows] - snapshot.cpu_only[rows]
        alone = self._stranded(snapshot, rows, whole, left)
        alone -= self._stranded(snapshot, rows, whole, left - request.cpu)
        tie: Floats = 0.5 * gpu / LARGEST_GPU + 0.4 * cpu / LARGEST_CPU
        return np.floor(value / Q + 0.5) + np.floor(MU * alone / Q + 0.5) - tie

    def _fall(self, snapshot: Snapshot, rows: Rows, request: Request) -> Floats:
        """float64 (K, D) or (K, 1): the milli by which fragmentation falls."""
        facts, tables = self._ground(snapshot), self._tables(snapshot)
        before = self._measure.lost(tables, facts, snapshot, rows)
        after = self._measure.lost_after(tables, facts, snapshot, rows, request)
        return in_milli(before[:, None] - after, self._measure.pods, facts.milli[rows])

    def _residues(self, snapshot: Snapshot, rows: Rows, request: Request, free: Ints) -> Floats:
        """float64 (K, D) or (K, 1): the worth that the devices taken lose beyond whole devices."""
        index, step, worths, _ = self._priced(snapshot)
        index, step = index[rows][:, None], step[rows][:, None]
        left = np.maximum(free - request.units, 0)
        lost = worths[index, free // step] - worths[index, left // step]
        lost = np.where(request.units < self._ground(snapshot).capacity[rows][:, None], lost, 0)
        if request.devices == 1:
            return lost
        total: Floats = (lost * tightest(free, request)).sum(axis=1, keepdims=True)
        return total

    def _stranded(self, snapshot: Snapshot, rows: Rows, gpu: Floats, cpu: Ints) -> Floats:
        """float64 (K,): GPU expected to be stranded with so much free, in milli."""
        index, _, _, left = self._priced(snapshot)
        values: Floats = left[(index[rows], *stranding.at(gpu, cpu))]
        return values

    def _price_tables(self, snapshot: Snapshot) -> tuple[Ints, Ints, Floats, Floats]:
        """(by row the index of its capacity, by row the units of a step, tables by capacity)."""
        capacities, index = np.unique(self._ground(snapshot).capacity, return_inverse=True)
        tables = [self._tables_of(capacity) for capacity in capacities.tolist()]
        worths = np.zeros((len(tables), max(len(value) for value, _ in tables)))
        for line, (value, _) in zip(worths, tables, strict=True):
            line[: len(value)] = value
        steps = np.array([step_of(capacity) for capacity in capacities.tolist()])
        return index, steps[index], worths, np.stack([left for _, left in tables])

    def _tables_of(self, capacity: int) -> tuple[Floats, Floats]:
        known = self._by_capacity.get(capacity)
        if known is None:
            known = (worth(self._classes, capacity), stranding.stranded(self._classes, capacity))
            self._by_capacity[capacity] = known
        return known
