"""Pods that come and go: virtual time, departures, the queue of waiting pods, and moves for them.

The input is a cluster and a stream of arrivals that was drawn before. Due departures are handled
before an arrival. Waiting pods are served in the order of arrival: at each departure the waiting
pods are tried on the changed node, since they fit no other node.

Every pod with GPU may be moved, at any time. A move loses the work since the pod's start, but does
not change the time of the pod's departure. So the measures are upper bounds of the gain and of the
cost of moves.

With interference, pods that share a device slow each other down (see `interference`).

Tested in `tests/unit/sim/test_experiments.py`, `tests/unit/sim/test_interference.py` and
`tests/unit/sim/test_flow_defrag.py`.
"""

import heapq
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np

from gpushare.core.amounts import COMPUTE
from gpushare.core.defrag import MovablePod, Planner
from gpushare.core.model import Kind, Request
from gpushare.core.mutable_cluster import MutableCluster, Placement
from gpushare.core.preemption.victim_search import StepBudget
from gpushare.core.snapshot import Floats, Ints, units_stranded_by
from gpushare.sim.engine import SHARE, Cluster, NodePool, size_class
from gpushare.sim.interference import Interference
from gpushare.sim.options import Defrag
from gpushare.sim.reservations import Reservations
from gpushare.sim.scorers import LearningScorer

OLDEST = 2
"""Kinds of waiting pods for which moves are planned: those with the oldest pods."""

_STEPS = 50_000
"""Steps of one search, as in core/defrag.py."""

Record = dict[str, Any]

_SETTLED = 2.0
"""Times of pods are measured for those that come at least so many lifetimes before the end."""


@dataclass(slots=True)
class Running:
    """A running pod."""

    placement: Placement
    began: float
    """The time of the start on the current node."""
    came: float = 0.0
    leaves: float = 0.0
    """The time of the departure as known now."""


class Defragmenter:
    """Moves pods of a cluster. start: moves are counted from this time on."""

    def __init__(self, cluster: Cluster, how: Defrag, start: float) -> None:
        self._cluster, self._how, self._start = cluster, how, start
        self._departures = 0
        self.moves = 0
        self.lost = 0.0
        """Sum over moved pods of units times running time."""

    def is_due(self) -> bool:
        """Count a departure, and return whether moves are due."""
        self._departures += 1
        return self._departures % self._how.every == 0

    def make_room(
        self, request: Request, running: Mapping[int, Running], now: float
    ) -> Placement | None:
        """Move pods and place the waiting pod; None if there is no plan."""
        scorer = self._cluster.scorer
        if isinstance(scorer, LearningScorer):  # it would count each request as a new pod
            scorer = scorer.ranking
        copy = MutableCluster(self._cluster.view, scorer)
        movers = (
            MovablePod(f"{number:09}", pod.placement, _lost(pod, now))
            for number, pod in running.items()
            if pod.placement.devices
        )
        plan = Planner(copy, movers).plan(request, self._how.k, StepBudget(_STEPS))
        if plan is None:
            return None
        for move in plan.moves:
            pod = running[int(move.mover.name)]
            self._cluster.release(pod.placement)
            if now >= self._start:
                self.moves += 1
                self.lost += _lost(pod, now)
            pod.placement = self._cluster.put(*move.to)
            pod.began = now
        return self._cluster.put(*plan.hole)


def _lost(pod: Running, now: float) -> float:
    """Return the loss of work if the pod is moved: units times time."""
    return pod.placement.request.total * (now - pod.began)


@dataclass(frozen=True, slots=True, eq=False)
class Arrivals:
    """Arrivals in the order of time: time, index into `kinds`, lifetime after the placement."""

    kinds: tuple[Request, ...]
    times: Floats
    kind_indices: Ints
    lifetimes: Floats
    utilizations: tuple[int, ...] = ()
    """Of each kind, in percent of each device; () where nothing reads it."""


@dataclass(slots=True)
class _WaitingPod:
    order: int
    came: float
    lifetime: float
    utilization: int


class Flow:
    """The run of a stream of pods through a cluster, measured from `start` to `end`.

    pass_to: called with each new time. defrag: how pods are moved for waiting pods; None: no moves.
    interference: how pods slow each other down; None: not at all. reservations: of the cluster,
    for pods that wait; None: there are none. pool: the nodes that are there; None: all nodes.
    """

    def __init__(
        self,
        cluster: Cluster,
        start: float,
        end: float,
        wait: bool,
        pass_to: Callable[[float], None] = lambda _: None,
        *,
        defrag: Defrag | None = None,
        interference: Interference | None = None,
        reservations: Reservations | None = None,
        pool: NodePool | None = None,
    ) -> None:
        self._cluster, self._start, self._end, self._wait = cluster, start, end, wait
        self._tell_time = pass_to
        self._defrag = Defragmenter(cluster, defrag, start) if defrag else None
        self._interference = interference
        self._reservations = reservations
        self._pool = pool
        self._node_time = 0.0
        self._largest = int(cluster.view.capacity.max())
        self._now = 0.0
        self._orders = count()
        self._leaving: list[tuple[float, int]] = []
        self._running: dict[int, Running] = {}
        self._queues: dict[Kind, deque[_WaitingPod]] = defaultdict(deque)
        self._kinds: dict[Kind, Request] = {}
        self._waiting: dict[str, int] = defaultdict(int)
        self._held = self._stranded = 0.0
        self._waited: dict[str, float] = defaultdict(float)
        self._waits: dict[str, list[float]] = defaultdict(list)
        self._completions: dict[str, list[float]] = defaultdict(list)
        self._slowdowns: list[float] = []
        self._offered = self._offered_gpu = self._refused = self._refused_gpu = 0

    def run(self, stream: Arrivals) -> Record:
        """Run to the end; return the record (see `_record`)."""
        utilizations = stream.utilizations or (0,) * len(stream.kinds)
        possible = [not self._wait or self._cluster.fits_empty(kind) for kind in stream.kinds]
        for time, which, lifetime in zip(
            stream.times.tolist(),
            stream.kind_indices.tolist(),
            stream.lifetimes.tolist(),
            strict=True,
        ):
            if time > self._end:
                break
            if possible[which]:
                self._leave_until(time)
                self._arrive(stream.kinds[which], lifetime, utilizations[which])
        self._leave_until(self._end)
        return self._record()

    def _arrive(self, request: Request, lifetime: float, utilization: int) -> None:
        counts = self._now >= self._start
        self._offered += counts
        self._offered_gpu += counts * request.total
        placement = (self._pool or self._cluster).place(request)
        if placement is not None:
            self._stay(placement, _WaitingPod(0, self._now, lifetime, utilization))
            self._waited_for(request, self._now)
        elif self._wait:
            self._kinds[request.kind] = request
            waiting_pod = _WaitingPod(next(self._orders), self._now, lifetime, utilization)
            self._queues[request.kind].append(waiting_pod)
            self._waiting[size_class(request, self._largest)] += 1
        else:
            self._refused += counts
            self._refused_gpu += counts * request.total

    def _stay(self, placement: Placement, pod: _WaitingPod) -> None:
        number = next(self._orders)
        self._running[number] = Running(placement, self._now, pod.came)
        if self._interference is None or not placement.devices:
            self._leave_at([(number, self._now + pod.lifetime)])
        else:
            self._leave_at(
                self._interference.begin(
                    number, placement, pod.utilization, pod.lifetime, self._now
                )
            )

    def _leave_at(self, ends: Iterable[tuple[int, float]]) -> None:
        for number, leaves in ends:
            self._running[number].leaves = leaves
            heapq.heappush(self._leaving, (leaves, number))

    def _leave_until(self, time: float) -> None:
        while self._leaving and self._leaving[0][0] <= time:
            leaves, number = heapq.heappop(self._leaving)
            if number not in self._running or self._running[number].leaves != leaves:
                continue  # the pod leaves at another time
            self._pass_to(leaves)
            pod = self._running.pop(number)
            placement = pod.placement
            self._cluster.release(placement)
            if self._interference is not None and placement.devices:
                self._completed(number, pod, self._interference)
            if self._queues:
                self._try_waiting(placement.row)
            if self._reservations:
                self._reserve(self._reservations)
            if self._pool:
                self._pool.shrink(placement.row)
            if self._defrag and self._defrag.is_due():
                self._move_for_waiting(self._defrag)
        self._pass_to(time)

    def _completed(self, number: int, pod: Running, interference: Interference) -> None:
        """Measure a pod that leaves, and speed up those that stay on the devices."""
        slowdown, ends = interference.end(number, self._now)
        self._leave_at(ends)
        self._stayed(pod, slowdown, self._now)

    def _stayed(self, pod: Running, slowdown: float, until: float) -> None:
        if self._start <= pod.came <= self._end - _SETTLED:
            size = size_class(pod.placement.request, self._largest)
            self._completions[size].append(until - pod.came)
            if size == SHARE:
                self._slowdowns.append(slowdown)

    def _move_for_waiting(self, defrag: Defragmenter) -> None:
        """Move pods for the oldest waiting kinds with GPU."""
        heads = ((queue[0].order, kind) for kind, queue in self._queues.items())
        for _, kind in heapq.nsmallest(OLDEST, heads):
            # The moves for the first kind may have made room for the second.
            if kind in self._queues and self._kinds[kind].devices:
                placement = defrag.make_room(self._kinds[kind], self._running, self._now)
                if placement is not None:
                    self._first_waiting_has(kind, placement)
                    self._try_waiting(placement.row)

    def _try_waiting(self, row: int) -> None:
        """Try to place waiting pods on the changed node: first those with a reservation there, then
        others in the order of arrival.
        """
        if self._reservations:
            for kind in self._reservations.on(row):
                self._try_reserved(row, kind, self._reservations)
        heads = [(queue[0].order, kind) for kind, queue in self._queues.items()]
        heapq.heapify(heads)
        while heads:
            _, kind = heapq.heappop(heads)
            request = self._kinds[kind]
            placement = self._cluster.place_on(row, request)
            # The node only gets fuller here: a kind that does not fit now need not be tried again.
            if placement is None:
                continue
            self._first_waiting_has(kind, placement)
            if kind in self._queues:
                heapq.heappush(heads, (self._queues[kind][0].order, kind))

    def _try_reserved(self, row: int, kind: Kind, reservations: Reservations) -> None:
        """Try to place the oldest waiting pod of the kind on the row that is reserved for it."""
        if kind not in self._queues:
            reservations.end(kind)
            return
        reservations.lift(kind)
        placement = self._cluster.place_on(row, self._kinds[kind])
        if placement is None:
            reservations.hold(kind)
        else:
            reservations.end(kind)
            self._first_waiting_has(kind, placement)

    def _reserve(self, reservations: Reservations) -> None:
        """End and make reservations for the kinds with a pod that has waited for long."""
        last = self._now - reservations.after
        heads = [
            (queue[0].order, kind) for kind, queue in self._queues.items() if queue[0].came <= last
        ]
        heads.sort(key=lambda head: head[0])
        late = {kind: self._kinds[kind] for _, kind in heads if self._kinds[kind].devices}
        running = ((pod.placement, pod.began) for pod in self._running.values())
        reservations.renew(late, running, self._now)

    def _first_waiting_has(self, kind: Kind, placement: Placement) -> None:
        """Count that the oldest waiting pod of the kind has been placed."""
        pod = self._queues[kind].popleft()
        self._waiting[size_class(self._kinds[kind], self._largest)] -= 1
        self._waited_for(self._kinds[kind], pod.came)
        self._stay(placement, pod)
        if not self._queues[kind]:
            del self._queues[kind]

    def _pass_to(self, time: float) -> None:
        span = min(time, self._end) - max(self._now, self._start)
        if span > 0:
            self._held += span * self._cluster.allocated
            if self._pool:
                self._node_time += span * int(self._pool.present.sum())
            if self._cluster.view.any_percents:
                self._stranded += span * units_stranded_by(self._cluster.view, COMPUTE)
            for size, number in self._waiting.items():
                self._waited[size] += span * number
        self._now = time
        self._tell_time(time)

    def _waited_for(self, request: Request, came: float) -> None:
        if self._wait and self._start <= came <= self._end - _SETTLED:
            self._waits[size_class(request, self._largest)].append(self._now - came)

    def _record(self) -> Record:
        """Return the record of the run.

        alloc: mean share of GPU allocated. blocked_gpu, blocked_pods: the refused share of the
        offered GPU and pods. compute_stranded, if pods ask for compute: mean share of free memory
        on devices without free compute. All are in %. With interference, of pods with a place, as
        far as known at the end: slowdown, how many times as long as alone those with a share of a
        device take; completion, the mean time from arrival to end by size. With waiting: waiting,
        the mean number of waiting pods, in total and by size; wait_mean, wait_p95 and wait_max:
        waiting times by size, as far as known at the end. nodes, of a pool: the mean number. With
        moves: moves per 100 pods that came; lost: the lost work of moved pods, as a share of all
        GPU in %, like alloc.
        """
        span = self._end - self._start
        units = span * self._cluster.capacity
        record: Record = {"alloc": 100 * self._held / units}
        if self._pool:
            record["nodes"] = self._node_time / span
        if self._interference is not None:
            for number, running in self._running.items():
                if running.placement.devices:
                    slowdown, _ = self._interference.end(number, self._end)
                    self._stayed(running, slowdown, self._end)
            record["slowdown"] = float(np.mean(self._slowdowns or [1.0]))
            record["completion"] = {
                size: float(np.mean(times)) for size, times in self._completions.items()
            }
        if self._cluster.view.any_percents:
            record["compute_stranded"] = 100 * self._stranded / units
        if not self._wait:
            record["blocked_gpu"] = 100 * self._refused_gpu / max(self._offered_gpu, 1)
            record["blocked_pods"] = 100 * self._refused / max(self._offered, 1)
            return record
        if self._defrag:
            record["moves"] = 100 * self._defrag.moves / max(self._offered, 1)
            record["lost"] = 100 * self._defrag.lost / span / self._cluster.capacity
        for kind, queue in self._queues.items():
            for pod in queue:
                self._waited_for(self._kinds[kind], pod.came)
        record["waiting"] = sum(self._waited.values()) / span
        record["waiting_by_size"] = {size: sum_ / span for size, sum_ in self._waited.items()}
        record["wait_mean"] = {size: float(np.mean(all_)) for size, all_ in self._waits.items()}
        record["wait_max"] = {size: max(all_) for size, all_ in self._waits.items()}
        record["wait_p95"] = {
            size: float(np.percentile(all_, 95)) for size, all_ in self._waits.items()
        }
        return record
