"""The streams of a trial (see core/trial.py): pods that come to some nodes, placed by a policy.

In some streams pods stay: they are added to the running pods until the requests add up to all
memory. In the other streams pods come and go, at a load of 1, on nodes that are empty at first; the
share of these streams is the workload's turnover. The two kinds are the experiments `inflation` and
`churn` of the simulator.

If the proportions of the classes were learned from some pods only, each stream draws proportions
that these pods may have come from (the Bayesian bootstrap), so that a lead that depends on a few
pods differs from stream to stream and counts as doubtful. Lifetimes are the learned ones.

The cost is bounded by the number of pods: of a large cluster only some nodes of each group are
used.

Tested in `tests/unit/core/test_trial.py`.
"""

import heapq
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gpushare.core.amounts import compute
from gpushare.core.model import HOST_BOUND, Request
from gpushare.core.mutable_cluster import MutableCluster, MutableSnapshot, Placement, fits
from gpushare.core.ranking import Scorer
from gpushare.core.snapshot import Floats, Ints, Rows, Snapshot
from gpushare.core.workload import Workload

MAX_PODS, MAX_PODS_OF_STREAM = 80_000, 20_000
"""Pods that come in a trial of one policy, and in one stream, roughly: at most a minute of one core
for three policies. A stream of fewer pods, and so of fewer nodes, does not show how some policies
keep kinds of cards apart.
"""

_TOO_MANY_PODS = 2 * MAX_PODS_OF_STREAM
"""Pods of one stream: if more fit one node of each group, nothing is tried."""
_MAX_STREAMS = 48
_FULL = (0.95, 1.05)
"""If pods stay: memory is measured while the requests are between these shares of all memory."""
_WARMUP, _LIFE = 2.0, 6.0
"""If pods come and go: the measurement's begin and end, in mean lifetimes."""


@dataclass(frozen=True, slots=True, eq=False)
class Stream:
    """Pods that come to some nodes."""

    begin: MutableSnapshot
    requests: Sequence[Request]
    which: Ints
    """Index into `requests` of each pod."""
    gaps: Floats
    """The time before each pod comes."""
    lives: Floats
    """Lifetime of each pod; empty if all stay."""
    pods: float
    """Expected number of pods that come."""
    progress: float
    """Share of all streams up to and with this one."""

    @property
    def capacity(self) -> int:
        """Units of all devices."""
        return int(self.begin.capacity.sum())

    def run(self, scorer: Scorer) -> tuple[float, float]:
        """Return the mean units (allocated, refused)."""
        cluster = MutableCluster(_copy(self.begin), scorer)
        return self._flow(cluster) if len(self.lives) else self._fill(cluster)

    def _fill(self, cluster: MutableCluster) -> tuple[float, float]:
        requested_units = cluster.allocated
        begin, end = (share * cluster.capacity for share in _FULL)
        samples: list[tuple[int, int]] = []
        for index in self.which.tolist():
            requested_units += self.requests[index].total
            cluster.place(self.requests[index])
            if requested_units >= begin:
                samples.append((cluster.allocated, requested_units - cluster.allocated))
            if requested_units >= end:
                break
        allocated, refused_units = (
            zip(*samples, strict=True) if samples else ((cluster.allocated,), (0,))
        )
        return statistics.fmean(allocated), statistics.fmean(refused_units)

    def _flow(self, cluster: MutableCluster) -> tuple[float, float]:
        now = allocated_time = 0.0
        refused_units = 0
        leaving: list[tuple[float, int, Placement]] = []

        def pass_to(time: float) -> float:
            return cluster.allocated * max(time - max(now, _WARMUP), 0.0)

        for number, index in enumerate(self.which.tolist()):
            request = self.requests[index]
            comes = now + float(self.gaps[number])
            while leaving and leaving[0][0] <= min(comes, _LIFE):
                leaves, _, placement = heapq.heappop(leaving)
                allocated_time += pass_to(leaves)
                now = leaves
                cluster.release(placement)
            allocated_time += pass_to(min(comes, _LIFE))
            now = comes
            if now >= _LIFE:
                break
            placement_ = cluster.place(request)
            if placement_ is not None:
                heapq.heappush(leaving, (now + float(self.lives[number]), number, placement_))
            elif now > _WARMUP:
                refused_units += request.total
        span = _LIFE - _WARMUP
        return allocated_time / span, refused_units / span


def streams(snapshot: Snapshot, workload: Workload, rng: np.random.Generator) -> Iterator[Stream]:
    """Yield as many streams as the number of pods allows.

    Yields none if no pod asks for GPU that the nodes have, or if too many pods fit one node of each
    group.
    """
    requests = [
        Request(
            units=cls.units,
            devices=cls.devices,
            cpu=cls.cpu,
            memory=cls.memory,
            models=cls.models,
            percents=compute(cls.cores),
        )
        for cls, _ in workload.classes
    ]
    counts = np.array([count for _, count in workload.classes], dtype=float)
    totals = np.array([request.total for request in requests], dtype=float)
    capacity = int(snapshot.capacity[snapshot.open].sum())
    if not capacity or not workload.gpu:
        return
    turnover = workload.turnover
    pods = capacity / (workload.gpu / workload.pods) * (1 + turnover * _LIFE)
    part = min(1.0, MAX_PODS_OF_STREAM / pods)
    lives = np.array(workload.lives or [1.0] * len(requests))
    max_streams = min(int(MAX_PODS / (part * pods)), _MAX_STREAMS)
    for place in range(max_streams):
        goes = math.floor((place + 1) * turnover) > math.floor(place * turnover)
        rows = _sample_rows(snapshot, part, rng)
        empty = mutable(snapshot, rows, empty=True)
        all_rows = np.arange(len(rows))
        # Pods that fit no empty node stay pending and change nothing.
        chances = counts * [bool(fits(empty, all_rows, request).any()) for request in requests]
        if not (chances * totals).sum():
            return
        chances = _bootstrapped(chances / chances.sum(), workload.evidence, rng)
        mean = float((chances * totals).sum())
        if not mean:
            continue
        stay = lives * (mean / float((chances * totals * lives).sum()))
        begin = empty if goes else mutable(snapshot, rows, empty=False)
        lifetimes = int(begin.capacity.sum()) / mean
        expected = lifetimes * (1 + _LIFE * goes)
        if expected > _TOO_MANY_PODS:
            return
        length = int(1.3 * expected) + 200
        which = rng.choice(len(requests), length, p=chances)
        gaps = rng.exponential(1 / lifetimes, length)
        lived = rng.exponential(1, length) * stay[which] if goes else np.zeros(0)
        yield Stream(
            begin=begin,
            requests=requests,
            which=which,
            gaps=gaps,
            lives=lived,
            pods=expected,
            progress=(place + 1) / max_streams,
        )


def _bootstrapped(chances: Floats, evidence: int, rng: np.random.Generator) -> Floats:
    """Return proportions that a sample of `evidence` pods may have come from; 0: the same."""
    if not evidence:
        return chances
    drawn: Floats = rng.standard_gamma(chances * evidence)
    total = drawn.sum()
    return drawn / total if total > 0 else chances


def _sample_rows(snapshot: Snapshot, part: float, rng: np.random.Generator) -> Rows:
    """Return rows of this part of the nodes, at least one of each group, in random order."""
    rows = rng.permutation(np.flatnonzero(snapshot.capacity.max(axis=1, initial=0)))
    if part >= 1:
        return rows
    groups = snapshot.group[rows]
    chosen = [
        rows[groups == group][: max(1, round(part * int((groups == group).sum())))]
        for group in np.unique(groups)
    ]
    return rng.permutation(np.concatenate(chosen))


def mutable(snapshot: Snapshot, rows: Rows, *, empty: bool) -> MutableSnapshot:
    """Return these nodes with the charges of their pods, or empty; closed devices have no room."""
    capacity = np.where(snapshot.open, snapshot.capacity, 0)[rows]

    def host_free(free: Ints, whole: Ints) -> Ints:
        amounts: Ints = (whole if empty else free)[rows]
        return np.where(whole[rows] < 0, HOST_BOUND, amounts)

    names = tuple(snapshot.names[row] for row in rows.tolist())
    return MutableSnapshot(
        names=names,
        row={name: row for row, name in enumerate(names)},
        generation=0,
        capacity=capacity,
        used=np.minimum(snapshot.used[rows], capacity) * (not empty),
        percents_used=tuple(used[rows] * (not empty) for used in snapshot.percents_used),
        healthy=capacity > 0,
        model=snapshot.model[rows],
        models=snapshot.models,
        uuids=tuple(snapshot.uuids[row] for row in rows.tolist()),
        cpu_capacity=snapshot.cpu_capacity[rows],
        memory_capacity=snapshot.memory_capacity[rows],
        cpu_free=host_free(snapshot.cpu_free, snapshot.cpu_capacity),
        memory_free=host_free(snapshot.memory_free, snapshot.memory_capacity),
        cpu_only=snapshot.cpu_only[rows] * (not empty),
        gpu_pods=snapshot.gpu_pods[rows] * (not empty),
        pods=snapshot.pods[rows] * (not empty),
        group=snapshot.group[rows],
        sharers=snapshot.sharers[rows],
        closed=np.zeros(len(rows), dtype=np.int8),
        order=np.arange(len(rows), dtype=np.int64),
        row_generation=np.zeros(len(rows), dtype=np.int64),
        pinned={},
        workloads={
            row: snapshot.workloads[former_row]
            for row, former_row in enumerate(rows.tolist() if snapshot.workloads else ())
            if former_row in snapshot.workloads and not empty
        },
    )


def _copy(view: MutableSnapshot) -> MutableSnapshot:
    """Return the same nodes, with copies of the arrays that pods change."""
    names = ("used", "gpu_pods", "pods", "cpu_free", "memory_free", "cpu_only", "row_generation")
    return replace(
        view,
        percents_used=tuple(used.copy() for used in view.percents_used),
        **{name: getattr(view, name).copy() for name in names},
    )
