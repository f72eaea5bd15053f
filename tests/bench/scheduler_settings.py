"""The cost of percentageOfNodesToScore and of the weight of our order in GPU allocated.

    python -m tests.bench.scheduler_settings [--files default] [--seeds 42] [--policy NAME]
        [--experiments inflation,churn]

On the whole openb trace, inflation at 100 % and churn (load 1.0, life 6, warm-up 2). The policy's
order reaches the cluster by way of kube-scheduler. That looks at the nodes from where it left off
the last time, until enough have room by CPU, memory, model and GPU memory in all; the extender
filters these by devices. The remaining nodes have scores of NodeResourcesFit (LeastAllocated by
default) and NodeResourcesBalancedAllocation (all other scores are equal here), and 10 x weight x
our 0 to 10 points are added; ties are broken by chance. A pod without a device on the nodes of the
sample is tried again, at most until all nodes have been looked at. Pods without GPU never come to
the extender, as with `managedResources`; "every pod" is the simulator's way, where the policy
places these too.

Means over seeds, and the differences to the first line by pairs of seeds with the standard error.
Written from the documentation and behaviour of kube-scheduler 1.30 to 1.37.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from gpushare.core.decide import score_nodes
from gpushare.core.model import Request
from gpushare.core.mutable_cluster import ranking
from gpushare.core.policy import load_policy
from gpushare.core.ranking import Ranking, Scores
from gpushare.core.snapshot import Bools, Floats, Ints, Rows, Snapshot
from gpushare.sim.engine import Cluster, workload_of_trace
from gpushare.sim.experiments import coming_and_going, filling, node_order
from gpushare.sim.flow import Flow
from gpushare.sim.inputs import Inputs, read_shipped
from gpushare.sim.options import seeds, words
from gpushare.sim.parameters import Parameters
from gpushare.sim.report import Measure, Record, aligned, difference, statistic
from gpushare.trace.nodes_and_pods import request_of
from gpushare_localcluster.scheduler.cycle import nodes_to_find

_MOST = 100
"""kube-scheduler's MaxNodeScore."""
_POINT = 10
"""kube-scheduler's value of a point of an extender of weight 1."""

_UNASKED_CPU, _UNASKED_MEMORY = 100, 200 * 2**20
"""The amounts that a pod without requests is scored for, in milli and bytes."""


@dataclass(frozen=True)
class SchedulerSetting:
    """percentage: of nodes to score, 0 is kube-scheduler's default; weight: of our order, 0 where
    the extender has no prioritizeVerb; every: pods without GPU come to the extender as well; apart:
    they go to other nodes than these; packs: NodeResourcesFit with MostAllocated.
    """

    name: str
    percentage: int = 100
    weight: int = 150
    every: bool = False
    apart: bool = False
    packs: bool = False


_OF_BOTH = (
    SchedulerSetting("ours, 100 %"),
    SchedulerSetting("ours, default %", percentage=0),
    SchedulerSetting("ours, 10 %", percentage=10),
    SchedulerSetting("shared, 100 %", weight=1),
    SchedulerSetting("shared, default %", percentage=0, weight=1),
    SchedulerSetting("no prioritizeVerb, 100 %", weight=0),
)
SETTINGS = (
    SchedulerSetting("every pod by the policy", every=True),
    *(replace(one, name=f"{one.name}, pods without GPU elsewhere", apart=True) for one in _OF_BOTH),
    *_OF_BOTH,
    SchedulerSetting("ours, 100 %, MostAllocated", packs=True),
)


class KubeScheduler:
    """A Judge that leaves kube-scheduler's choice alone, as the one node there is."""

    def __init__(self, judge: Ranking, setting: SchedulerSetting, seed: int) -> None:
        self._judge, self._setting = judge, setting
        self._rng = np.random.default_rng(seed)
        self._start = 0
        self.asked = self.missed = 0

    def scores(self, snapshot: Snapshot, request: Request) -> Scores:
        policy_scores = self._judge.scores(snapshot, request)
        values = np.full(len(policy_scores.values), -np.inf)
        chosen = self._chosen(snapshot, request, policy_scores.values > -np.inf)
        if chosen is not None:
            values[chosen] = policy_scores.values[chosen]
        return Scores(values, policy_scores.by_state, policy_scores.devices)

    def score_devices(self, snapshot: Snapshot, rows: Rows, request: Request) -> Floats:
        return self._judge.score_devices(snapshot, rows, request)

    def best_device(self, _snapshot: Snapshot, _row: int, _request: Request) -> int | None:
        """Return None: nothing is kept."""
        return None

    def _chosen(self, snapshot: Snapshot, request: Request, fits: Bools) -> int | None:
        if self._setting.apart and not request.devices:
            return None
        self.asked += 1
        for tries, sample in enumerate(self._samples(_passes(snapshot, request))):
            rows = sample[fits[sample]]
            if len(rows):
                self.missed += tries > 0
                return self._best(snapshot, request, rows)
        return None

    def _samples(self, passes: Bools) -> Iterator[Rows]:
        """Nodes in the order of one round."""
        count = len(passes)
        enough, looked = nodes_to_find(count, self._setting.percentage), 0
        while looked < count:
            around = (self._start + np.arange(count - looked)) % count
            good = np.flatnonzero(passes[around])
            span = int(good[enough - 1]) + 1 if len(good) >= enough else len(around)
            self._start, looked = (self._start + span) % count, looked + span
            yield around[good[:enough]]

    def _best(self, snapshot: Snapshot, request: Request, rows: Rows) -> int:
        to_us = request.devices > 0 or self._setting.every
        sums = np.zeros(len(rows), dtype=np.int64)
        if not self._setting.every:
            sums += fit_scores(snapshot, rows, request, self._setting.packs)
            sums += _balanced(snapshot, rows, request)
        if to_us and self._setting.weight:
            names = [snapshot.names[row] for row in rows.tolist()]
            scored = score_nodes(snapshot, names, request, self._judge)
            points = {name: score for score, some in scored.items() for name in some}
            policy_points = np.array([points.get(name, 0) for name in names])
            sums += policy_points * (_POINT * self._setting.weight)
        return int(self._rng.choice(rows[sums == sums.max()]))


def _passes(snapshot: Snapshot, request: Request) -> Bools:
    """bool (N,): the nodes that pass the filters of kube-scheduler, which knows no devices."""
    passes: Bools = snapshot.cpu_free >= request.cpu
    passes &= snapshot.memory_free >= request.memory
    passes &= snapshot.free.sum(axis=1) >= request.total
    if request.models:
        accepted = np.array([*(model in request.models for model in snapshot.models), False])
        passes &= accepted[snapshot.model.max(axis=1, initial=-1)]
    return passes


def fit_scores(snapshot: Snapshot, rows: Rows, request: Request, packs: bool) -> Ints:
    """LeastAllocated: the mean share of CPU and memory that would be left; MostAllocated: used."""
    sums = np.zeros(len(rows), dtype=np.int64)
    for capacity, free, requested in (
        (snapshot.cpu_capacity, snapshot.cpu_free, request.cpu or _UNASKED_CPU),
        (snapshot.memory_capacity, snapshot.memory_free, request.memory or _UNASKED_MEMORY),
    ):
        free_after = np.maximum(free[rows] - requested, 0)
        sums += np.floor_divide(
            (capacity[rows] - free_after if packs else free_after) * _MOST, capacity[rows]
        )
    return sums // 2


def _balanced(snapshot: Snapshot, rows: Rows, request: Request) -> Ints:
    cpu = 1 - (snapshot.cpu_free[rows] - request.cpu) / snapshot.cpu_capacity[rows]
    memory = 1 - (snapshot.memory_free[rows] - request.memory) / snapshot.memory_capacity[rows]
    points: Ints = ((1 - np.abs(cpu - memory) / 2) * _MOST).astype(np.int64)
    return points


def record_of(
    inputs: Inputs, policy: str, setting: SchedulerSetting, seed: int, experiment: str
) -> Record:
    turnover = float(experiment == "churn")
    loaded = load_policy(policy, workload_of_trace(inputs.nodes, inputs.pods, turnover))
    judge = KubeScheduler(ranking(loaded, len(inputs.nodes)), setting, seed)
    cluster = Cluster(node_order(inputs.nodes, seed), judge)
    measured = {"inflation": _at_100, "churn": _mean_of_time}[experiment](inputs, cluster, seed)
    missed = 100 * judge.missed / judge.asked
    return {"policy": setting.name, "seed": seed, "alloc": measured, "missed": missed}


def _at_100(inputs: Inputs, cluster: Cluster, seed: int) -> float:
    requests = [request_of(pod) for pod in inputs.pods]
    requested_units, allocated = 0, []
    for index in filling(inputs.pods, cluster.capacity, seed):
        requested_units += requests[index].total
        if round(100 * requested_units / cluster.capacity) > 100:
            break
        cluster.place(requests[index])
        if round(100 * requested_units / cluster.capacity) == 100:
            allocated.append(cluster.allocated)
    return 100 * float(np.mean(allocated)) / cluster.capacity


def _mean_of_time(inputs: Inputs, cluster: Cluster, seed: int) -> float:
    options = Parameters()
    flow = Flow(cluster, options.warmup, options.life, wait=False)
    alloc = flow.run(coming_and_going(inputs.pods, cluster, seed, options))["alloc"]
    return float(str(alloc))


def table(records: Sequence[Record], file: str, policy: str, experiment: str) -> str:
    alloc, missed = Measure("alloc", ""), Measure("missed", "")
    rows = [[f"{file}, {experiment}, {policy}", "allocated", "above the first", "missed at first"]]
    for setting in SETTINGS:
        means, again = (
            statistic(records, setting.name, SETTINGS[0].name, of) for of in (alloc, missed)
        )
        if means and again:
            above = difference(means, 2)
            rows.append([setting.name, f"{means.mean:.2f}", above, f"{again.mean:.2f} %"])
    return aligned(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", type=words, default=("default",))
    parser.add_argument("--seeds", type=seeds, default=(42,))
    parser.add_argument("--policy", default="shadow-price")
    parser.add_argument("--experiments", type=words, default=("inflation",))
    options = parser.parse_args()
    for file in options.files:
        inputs = read_shipped(file)
        for experiment in options.experiments:
            run = partial(record_of, inputs, options.policy, experiment=experiment)
            records = [run(setting, seed) for seed in options.seeds for setting in SETTINGS]
            print(table(records, file, options.policy, experiment), flush=True)


if __name__ == "__main__":
    main()
