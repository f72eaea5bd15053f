"""The experiments: filling a cluster, pods that come and go, and the replay of a trace.

Each experiment is a function of nodes, pods, the name of a policy, a seed and options, and returns
a plain record. The stream of pods and the order of nodes are drawn before the first placement, so
that all policies of one seed get the same pods on the same nodes and can be compared in pairs.

`inflation` is the experiment of Weng et al., "Beware of Fragmentation", USENIX ATC 2023.
"""

from collections.abc import Sequence
from dataclasses import asdict, replace

import numpy as np

from gpushare.core.amounts import COMPUTE
from gpushare.core.model import Request
from gpushare.core.mutable_cluster import ranking
from gpushare.core.policies.fragmentation import Fragmentation
from gpushare.core.policy import load_policy
from gpushare.core.snapshot import units_stranded_by
from gpushare.core.trial import AUTO, Choice
from gpushare.core.workload import Workload
from gpushare.sim.engine import Cluster, NodePool, size_class, workload_of_trace
from gpushare.sim.flow import Arrivals, Flow, Record
from gpushare.sim.interference import Interference
from gpushare.sim.options import LEARNED, TRAINING, Defrag, Parameters
from gpushare.sim.report import allocated_at
from gpushare.sim.reservations import Reservations
from gpushare.sim.scorers import SIMULATED, LearningScorer, chosen, learns
from gpushare.trace.nodes_and_pods import TraceNode, TracePod, request_of, utilization_of

_FULL = 1.3
"""Requested GPU at the end of a fill, as a share of the capacity."""

_DEFAULTS = Parameters()


def node_order(nodes: Sequence[TraceNode], seed: int) -> list[TraceNode]:
    """Return the nodes in the order that breaks ties in the runs of this seed."""
    order = np.random.default_rng(seed - 42 + 10**6).permutation(len(nodes))
    return [nodes[index] for index in order.tolist()]


def inflation(
    nodes: Sequence[TraceNode],
    pods: Sequence[TracePod],
    policy: str,
    seed: int,
    options: Parameters = _DEFAULTS,
) -> Record:
    """Fill a cluster up to 130 % and lose no pod; return the record, each share in %."""
    requests = [request_of(pod) for pod in pods]
    workload = workload_of_trace(nodes, pods)
    cluster, choices = _cluster(nodes, workload, policy, seed, options)
    stream = [requests[index] for index in filling(pods, cluster.capacity, seed)]
    course = _Course(cluster, workload)
    run_name = _run_name("inflation", policy, seed, options)
    for request in stream:
        placement = cluster.place(request)
        course.arrived(request, placement is not None)
    record = {**run_name, **course.record()}
    reached = allocated_at(round(100 * options.load)).of(record)
    return {**record, "alloc": reached, **_in_the_end(cluster, choices, options)}


class _Course:
    """Measurements while a cluster fills: allocated, refused and fragmented GPU."""

    def __init__(self, cluster: Cluster, workload: Workload) -> None:
        self._cluster = cluster
        self._measure = Fragmentation(workload.typical())
        self._largest = int(cluster.view.capacity.max())
        self._asked = 0
        self._arrived: list[int] = []
        self._allocated: list[int] = []
        self._fragmented: dict[int, float] = {0: self._fragmentation()}
        self._stranded: dict[int, float] = {}
        self._refused: dict[str, int] = {}

    def arrived(self, request: Request, is_placed: bool) -> None:
        """Count a pod that came and was placed or refused."""
        self._asked += request.total
        self._arrived.append(self._asked)
        self._allocated.append(self._cluster.allocated)
        if not is_placed:
            size = size_class(request, self._largest)
            self._refused[size] = self._refused.get(size, 0) + 1
        load = round(100 * self._asked / self._cluster.capacity)
        if load not in self._fragmented:
            self._fragmented[load] = self._fragmentation()
            if self._cluster.view.any_percents:
                units = units_stranded_by(self._cluster.view, COMPUTE)
                self._stranded[load] = 100 * units / self._cluster.capacity

    def record(self) -> Record:
        """Return the record of the run.

        allocated: the mean share of GPU allocated. fragmentation: the share that a typical pod
        could not use, of memory and compute if pods ask for both. Both are in %, by whole % of
        arrived load. failed: pods refused, and by size. If pods ask for compute, compute_stranded:
        the share of free memory on devices without free compute, in the same way.
        """
        capacity = self._cluster.capacity
        loads = np.rint(100 * np.array(self._arrived) / capacity).astype(int)
        sums = np.bincount(loads, weights=100 * np.array(self._allocated) / capacity)
        pods_by_load = np.bincount(loads)
        curve = {
            str(load): float(sums[load] / pods_by_load[load])
            for load in np.flatnonzero(pods_by_load).tolist()
        }
        stranded = {str(load): value for load, value in self._stranded.items()}
        return {
            **({"compute_stranded": stranded} if stranded else {}),
            "allocated": curve,
            "fragmentation": {str(load): value for load, value in self._fragmented.items()},
            "pods": len(loads),
            "failed": sum(self._refused.values()),
            "failed_by_size": self._refused,
        }

    def _fragmentation(self) -> float:
        """Return the mean share of the cluster, in %, that is free but useless to a typical pod."""
        view, measure = self._cluster.view, self._measure
        lost = measure.lost(measure.tables(view), view, np.arange(len(view.names)))
        units = float(lost.sum()) / max(measure.pods * measure.scale * measure.most, 1)
        return 100 * units / self._cluster.capacity


def churn(
    nodes: Sequence[TraceNode],
    pods: Sequence[TracePod],
    policy: str,
    seed: int,
    options: Parameters = _DEFAULTS,
) -> Record:
    """Run a cluster with random arrivals and random lifetimes; return Flow's record.

    With moves, the same run without moves comes after; gained: the allocated share minus that of
    the run without moves; wait_before: waiting times by size without moves.
    Arrivals are Poisson, each a random pod of the file. Lifetimes are exponential with mean 1, the
    unit of time.
    """
    workload = workload_of_trace(nodes, pods, 1.0)
    cluster, choices = _cluster(nodes, workload, policy, seed, options)
    stream = coming_and_going(pods, cluster, seed, options)
    flow = _flow(cluster, options.warmup, options.life, options, options.defrag)
    run_name = _run_name("churn", policy, seed, options)
    record = {**run_name, **flow.run(stream), **_in_the_end(cluster, choices, options)}
    if options.defrag:
        without_moves = replace(options, defrag=None, picture=False)
        before = churn(nodes, pods, policy, seed, without_moves)
        record["gained"] = record["alloc"] - before["alloc"]
        record["wait_before"] = before["wait_mean"]
    return record


def replay(
    nodes: Sequence[TraceNode],
    pods: Sequence[TracePod],
    policy: str,
    seed: int,
    options: Parameters = _DEFAULTS,
) -> Record:
    """Run a cluster with the arrivals and departures of the file; return Flow's record.

    Arrivals are faster by `speed`; the seed is only for the order of nodes. Raises ValueError if no
    pod has a time of creation.
    """
    timed = [(pod, pod.created) for pod in pods if pod.created is not None]
    if not timed:
        raise ValueError("no pod has a time of creation, so nothing can be replayed")
    timed.sort(key=lambda item: item[1])
    ending = sum(pod.deleted is not None for pod, _ in timed) / len(timed)
    workload = workload_of_trace(nodes, pods, ending)
    cluster, choices = _cluster(nodes, workload, policy, seed, options)
    first = timed[0][1]
    times = np.array([(created - first) / options.speed for _, created in timed])
    stay = []  # seconds from start to end; infinite without an end
    for pod, created in timed:
        start = created if pod.scheduled is None else pod.scheduled
        stay.append(np.inf if pod.deleted is None else pod.deleted - start)
    stream = Arrivals(
        tuple(request_of(pod) for pod, _ in timed),
        times,
        np.arange(len(timed)),
        np.array(stay),
        tuple(utilization_of(pod) for pod, _ in timed),
    )
    flow = _flow(cluster, 0.0, float(times[-1]), options)
    run_name = _run_name("replay", policy, seed, options)
    return {**run_name, **flow.run(stream), **_in_the_end(cluster, choices, options)}


def _cluster(
    nodes: Sequence[TraceNode], workload: Workload, policy: str, seed: int, options: Parameters
) -> tuple[Cluster, list[Choice]]:
    """Return (the empty cluster with a scorer, the choices of `auto`: a list that grows).

    Raises SettingsError if there is no such policy.
    """
    ordered = node_order(nodes, seed)
    if policy in SIMULATED:
        return Cluster(ordered, SIMULATED[policy](seed)), []
    if options.workload == LEARNED and learns(policy, workload):
        learner = LearningScorer(
            policy, workload.devices, len(nodes), neighbours=options.neighbours
        )
        return Cluster(ordered, learner, learner.moved), learner.choices
    limit = options.neighbours
    choice = chosen(tuple(nodes), workload, limit) if policy == AUTO else None
    made = load_policy(choice.policy if choice else policy, workload)
    scorer = ranking(made, len(nodes), limit)
    return Cluster(ordered, scorer), [choice] if choice else []


def _flow(
    cluster: Cluster, start: float, end: float, options: Parameters, defrag: Defrag | None = None
) -> Flow:
    """Return the run of the cluster between these times, without pods."""

    def pass_to(time: float) -> None:
        if isinstance(cluster.scorer, LearningScorer):
            cluster.scorer.now = time

    kind, after = options.interference, options.reserve_after
    return Flow(
        cluster,
        start,
        end,
        options.wait,
        pass_to,
        defrag=defrag,
        interference=Interference(stretches=kind == TRAINING) if kind else None,
        reservations=Reservations(cluster, after) if after else None,
        pool=NodePool(cluster) if options.pool else None,
    )


def _run_name(experiment: str, policy: str, seed: int, options: Parameters) -> Record:
    run_name: Record = {"experiment": experiment, "policy": policy, "seed": seed}
    run_name["workload"] = options.workload
    if_given = ("neighbours", "interference", "pool", "reserve_after")
    run_name |= {name: value for name in if_given if (value := getattr(options, name))}
    own = {"replay": ("speed",), "inflation": ("load",)}
    names = own.get(experiment, ("load", "life", "warmup"))
    run_name |= {name: getattr(options, name) for name in names}
    if experiment == "churn" and options.defrag:
        run_name["defrag"] = str(options.defrag)
    return run_name


def coming_and_going(
    pods: Sequence[TracePod], cluster: Cluster, seed: int, options: Parameters
) -> Arrivals:
    """Draw all arrivals of churn."""
    requests = [request_of(pod) for pod in pods]
    mean_units = sum(request.total for request in requests) / len(requests)
    rate = options.load * cluster.capacity / mean_units
    rng = np.random.default_rng(seed)
    number = int(rate * options.life * 1.05) + 1000
    times = np.cumsum(rng.exponential(1 / rate, number))
    pod_indices = rng.integers(len(pods), size=number)
    return Arrivals(
        tuple(requests),
        times,
        pod_indices,
        rng.exponential(1, number),
        tuple(map(utilization_of, pods)),
    )


def filling(pods: Sequence[TracePod], capacity: int, seed: int) -> list[int]:
    """Return the indices of the pods of a fill: each once, in random order.

    Then pods are removed or added at random until the requested sum is right.
    """
    rng = np.random.default_rng(seed)
    sizes = [pod.devices * pod.units for pod in pods]
    chosen: list[int] = rng.permutation(len(pods)).tolist()
    target, requested_units = _FULL * capacity, sum(sizes)
    if requested_units > target:
        while requested_units > target:
            requested_units -= sizes[chosen.pop(int(rng.integers(len(chosen))))]
        return chosen
    while True:
        index = int(rng.integers(len(pods)))
        # As published: for the last draw only one device of the pod counts.
        if requested_units + pods[index].units > target:
            return chosen
        chosen.append(index)
        requested_units += sizes[index]


def _in_the_end(cluster: Cluster, choices: Sequence[Choice], options: Parameters) -> Record:
    """Return the keys of a record that describe the end of a run.

    choices: the choices of `auto`, one for each trial. For a picture: names, capacity and used, by
    node and device.
    """
    record: Record = {"choices": [asdict(choice) for choice in choices]} if choices else {}
    if not options.picture:
        return record
    view = cluster.view
    counts = view.healthy.sum(axis=1).tolist()
    arrays = {
        name: [line[:count] for line, count in zip(array.tolist(), counts, strict=True)]
        for name, array in (("capacity", view.capacity), ("used", view.used))
    }
    return {**record, "names": list(view.names), **arrays}
