"""How far a candidate must lead to be the first choice of `auto`: what it then allocates.

    python -m tests.bench.placement_choice --clusters 5000-5299 --every 6
        [--experiments inflation,churn]

On each cluster (tests/bench/clusters.py) there is one trial, and its first choice by each number of
standard errors that the lead over the safe policy must be more than. Printed is what these choices
allocate above the best of the simple policies, in points: the mean and its standard error; and the
same above the choice that asks for no lead.
"""

import argparse

from gpushare.core.mutable_cluster import ranking
from gpushare.core.trial import CANDIDATES, FALLBACK_POLICY, run_trial
from gpushare.sim import engine
from gpushare.sim.experiments import node_order
from gpushare.sim.report import aligned
from tests.bench.clusters import drawn
from tests.bench.placement_family import SIMPLE, Job, mean_and_error, measure, numbers

ERRORS = (0.0, 1.0, 2.0)
_SEED = 42
_TURNOVER = {"inflation": 0.0, "churn": 1.0}


def above(cluster: int, experiment: str) -> list[float]:
    """What the first choice by each of ERRORS allocates above the best simple policy."""
    (measure_result,) = measure(Job(cluster, experiment, CANDIDATES, _SEED))
    nodes, pods = node_order(drawn(cluster).nodes, _SEED), drawn(cluster).pods
    workload = engine.workload_of_trace(nodes, pods, _TURNOVER[experiment])
    trial = run_trial(engine.empty(nodes), workload, CANDIDATES, _SEED, make_scorer=ranking)
    means = {name: mean_and_error(measure_result.values[name])[0] for name in CANDIDATES}
    best = max(means[name] for name in SIMPLE)
    return [
        means[trial.winner(FALLBACK_POLICY, errors) if trial else FALLBACK_POLICY] - best
        for errors in ERRORS
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clusters", type=numbers, default=range(5000, 5300), metavar="5000-5299")
    parser.add_argument("--every", type=int, default=6, help="take every so many of them")
    parser.add_argument("--experiments", default="inflation,churn")
    options = parser.parse_args()
    table = [["experiment", "errors", "above the simple", "error", "above any lead", "error"]]
    for experiment in options.experiments.split(","):
        all_items = [above(cluster, experiment) for cluster in options.clusters[:: options.every]]
        for errors, values in zip(ERRORS, zip(*all_items, strict=True), strict=True):
            more = [value - first for value, (first, *_) in zip(values, all_items, strict=True)]
            pairs = (mean_and_error(values), mean_and_error(more))
            figures = (text for mean, error in pairs for text in (f"{mean:+.2f}", f"{error:.2f}"))
            table.append([experiment, f"{errors:g}", *figures])
    print(aligned(table), end="")


if __name__ == "__main__":
    main()
