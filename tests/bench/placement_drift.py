"""The cost of a change of the pods for a policy that learns.

    python -m tests.bench.placement_drift [--after gpushare100] [--seeds 42] [--policy NAME]

Pods of the list `default` come and go on the whole openb trace, with as much offered as there is;
after four mean lifetimes they are those of another list. GPU allocated in the mean of time, in the
parts of the time after that: by a policy that knows the change at once, and the points above that
of a policy that learns and of one that never changes, by pairs of seeds with the standard error.
All three knew the pods of `default` at the beginning.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from gpushare.core.model import Request
from gpushare.core.mutable_cluster import Placement, ranking
from gpushare.core.policy import load_policy
from gpushare.core.ranking import Scorer, Scores
from gpushare.core.snapshot import Bools, Floats, Rows, Snapshot
from gpushare.core.workload import class_of
from gpushare.core.workload_estimator import WINDOW
from gpushare.sim.engine import Cluster, workload_of_trace
from gpushare.sim.experiments import node_order
from gpushare.sim.flow import Arrivals, Flow
from gpushare.sim.inputs import Inputs, read_shipped
from gpushare.sim.options import seeds, words
from gpushare.sim.report import Measure, Record, aligned, difference, statistic
from gpushare.sim.scorers import LearningScorer
from gpushare.trace.nodes_and_pods import request_of

CHANGE = 4.0
BINS = (4.0, 4.25, 4.5, 5.0, 6.0, 7.0)
TOLD, LEARNING, NEVER = "told at once", "learning", "never told"


class Observed(Cluster):
    """A cluster that records the allocation when a pod comes.

    Pods come at random, so the mean over arrivals is the mean of time.
    """

    def __init__(self, inputs: Inputs, seed: int, judge: Scorer) -> None:
        listener = judge.moved if isinstance(judge, LearningScorer) else None
        super().__init__(node_order(inputs.nodes, seed), judge, listener)
        self.found: list[int] = []

    def place(self, request: Request, among: Bools | None = None) -> Placement | None:
        self.found.append(self.allocated)
        return super().place(request, among)


class Switched:
    """A judge until so many pods have come, and then another."""

    def __init__(self, before: Scorer, after: Scorer, pods: int) -> None:
        self._judge, self._after, self._left = before, after, pods

    def scores(self, snapshot: Snapshot, request: Request) -> Scores:
        if not self._left:
            self._judge = self._after
        self._left -= 1
        return self._judge.scores(snapshot, request)

    def score_devices(self, snapshot: Snapshot, rows: Rows, request: Request) -> Floats:
        return self._judge.score_devices(snapshot, rows, request)

    def best_device(self, _snapshot: Snapshot, _row: int, _request: Request) -> int | None:
        """Return None: nothing is kept."""
        return None


@dataclass(frozen=True)
class Drift:
    """First come the pods of one list, then those of another, to the same nodes."""

    policy: str
    one: Inputs
    second: Inputs

    def record(self, name: str, seed: int) -> Record:
        stream, change = self._stream(seed)
        cluster = Observed(self.one, seed, self._judge(name, change, seed))
        Flow(cluster, 0.0, BINS[-1], wait=False).run(stream)
        allocated = 100 * np.array(cluster.found) / cluster.capacity
        times = stream.times
        bins = {
            f"{start:g} to {end:g}": float(allocated[(start <= times) & (times < end)].mean())
            for start, end in pairwise(BINS)
        }
        return {"policy": name, "seed": seed, "alloc": bins}

    def _stream(self, seed: int) -> tuple[Arrivals, int]:
        """The pods that come, and the number before the change."""
        rng = np.random.default_rng(seed)
        capacity = sum(node.devices * node.capacity for node in self.one.nodes)
        kinds: list[Request] = []
        times, which = [], []
        for inputs, start, end in ((self.one, 0.0, CHANGE), (self.second, CHANGE, BINS[-1])):
            requests = [request_of(pod) for pod in inputs.pods]
            rate = capacity * len(requests) / sum(request.total for request in requests)
            came = np.sort(rng.uniform(start, end, rng.poisson(rate * (end - start))))
            which.append(len(kinds) + rng.integers(len(requests), size=len(came)))
            kinds += requests
            times.append(came)
        all_times = np.concatenate(times)
        stay = rng.exponential(1, len(all_times))
        return Arrivals(tuple(kinds), all_times, np.concatenate(which), stay), len(times[0])

    def _judge(self, name: str, change: int, seed: int) -> Scorer:
        nodes, pods = self.one.nodes, self.one.pods
        if name == LEARNING:
            window = np.random.default_rng(seed + 10**6).choice(len(pods), WINDOW).tolist()
            came = [class_of(request_of(pods[place])) for place in window]
            return LearningScorer(self.policy, {node.capacity for node in nodes}, len(nodes), came)
        before, after = (
            ranking(load_policy(self.policy, workload_of_trace(nodes, inputs.pods, 1)), len(nodes))
            for inputs in (self.one, self.second)
        )
        return Switched(before, after, change) if name == TOLD else before


def table(records: Sequence[Record], after: str) -> str:
    bins = [f"{start:g} to {end:g}" for start, end in pairwise(BINS)]
    rows = [[f"default, then {after}", *bins]]
    for name in (TOLD, LEARNING, NEVER):
        cells = [statistic(records, name, TOLD, Measure("alloc", "", part)) for part in bins]
        if name == TOLD:
            rows.append([name, *(f"{cell.mean:.2f}" for cell in cells if cell)])
        else:
            rows.append([f"{name}, above it", *(difference(cell, 2) for cell in cells)])
    return aligned(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--after", type=words, default=("gpushare100",))
    parser.add_argument("--seeds", type=seeds, default=(42,))
    parser.add_argument("--policy", default="shadow-price")
    options = parser.parse_args()
    one = read_shipped("default")
    for after in options.after:
        drift = Drift(options.policy, one, read_shipped(after))
        records = [
            drift.record(name, seed) for seed in options.seeds for name in (TOLD, LEARNING, NEVER)
        ]
        print(table(records, after))


if __name__ == "__main__":
    main()
