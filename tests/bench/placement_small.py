"""What `auto` allocates on small clusters whose pods it does not know, beside the simple policies.

    python -m tests.bench.placement_small --clusters 9000-9019
        [--seeds 6] [--experiments inflation,churn] [--jobs 2]

Each cluster has 3 to 10 nodes; the pods are told to no policy: `auto` learns as the extender does
(`--workload learned` of `gpushare simulate`). Printed is, by family, what `auto` allocates above
`device-bestfit`, and above the best of the simple policies by hindsight, in points: the mean and
its standard error over the clusters, and the worst cluster with its error over the seeds.
"""

import argparse
import statistics
from concurrent.futures import ProcessPoolExecutor
from itertools import product

import numpy as np

from gpushare.sim.experiments import Options, churn, inflation, node_order
from gpushare.sim.learner import LEARNED
from gpushare.sim.report import aligned
from gpushare.trace.nodes_and_pods import TraceNode, TracePod
from tests.bench.placement_family import mean_and_error, numbers

SIMPLE = ("device-bestfit", "binpack", "bestfit")
FAMILIES = ("equal", "whole", "odd", "MiB", "unequal")
_EXPERIMENTS = {"inflation": inflation, "churn": churn}
_MIB = 1024
_CARDS = (16, 24, 32, 40, 48, 80)
_NODES = (3, 11)
_PODS = 400


def small(family: str, seed: int) -> tuple[list[TraceNode], list[TracePod]]:
    """Return the nodes of one small cluster, and its pods.

    equal: shares of one kind of card. whole: the same, and pods of whole cards, one or several.
    odd: sizes that divide no card. MiB: equal, counted in MiB. unequal: cards of two sizes.
    """
    rng = np.random.default_rng([seed, FAMILIES.index(family)])
    kinds = rng.choice(_CARDS, 2 if family == "unequal" else 1, replace=False).tolist()
    scale = _MIB if family == "MiB" else 1
    each = int(rng.choice((2, 4, 8)))
    nodes = [
        TraceNode(f"n-{at}", 128_000, 2**20, each, scale * kinds[at % len(kinds)], "card")
        for at in range(int(rng.integers(*_NODES)))
    ]
    largest = max(kinds)
    shares = (3, 5, 7, 11, 13) if family == "odd" else (1, 2, 4, 6, 8, 10, 12, 16)
    sizes = rng.choice([size for size in shares if size <= largest], 4, replace=False).tolist()
    shapes = [(1, size * scale) for size in sizes]
    weights = rng.dirichlet([1.0] * len(shapes)).tolist()
    if family in ("whole", "unequal"):
        shapes += [(1, largest * scale), (2, largest * scale)]
        weights = [0.8 * weight for weight in weights] + [0.15, 0.05]
    drawn = rng.choice(len(shapes), _PODS, p=weights).tolist()
    pods = []
    for at, kind in enumerate(drawn):
        devices, units = shapes[kind]
        pods.append(TracePod(f"p-{at}", 1000 * devices, 2048, devices, units, (), None, None, None))
    return nodes, pods


def measured(job: tuple[str, str, int, int]) -> dict[str, list[float]]:
    """What each policy allocates, by seed."""
    experiment, family, cluster, seeds = job
    nodes, pods = small(family, cluster)
    run, options = _EXPERIMENTS[experiment], Options(workload=LEARNED)
    return {
        policy: [
            float(str(run(node_order(nodes, seed), pods, policy, seed, options)["alloc"]))
            for seed in range(42, 42 + seeds)
        ]
        for policy in ("auto", *SIMPLE)
    }


def above(found: dict[str, list[float]], others: tuple[str, ...]) -> tuple[float, float]:
    """What `auto` allocates above the best of the others, and the error."""
    best = max(others, key=lambda name: statistics.fmean(found[name]))
    return mean_and_error([one - two for one, two in zip(found["auto"], found[best], strict=True)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clusters", type=numbers, default=range(9000, 9012), metavar="9000-9011")
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--experiments", default="inflation")
    parser.add_argument("--jobs", type=int, default=2)
    asked = parser.parse_args()
    table = [["experiment", "family", "above", "mean", "error", "worst", "error", "cluster"]]
    with ProcessPoolExecutor(asked.jobs) as pool:
        for experiment, family in product(asked.experiments.split(","), FAMILIES):
            jobs = [(experiment, family, cluster, asked.seeds) for cluster in asked.clusters]
            results = list(pool.map(measured, jobs))
            for label, others in (("device-bestfit", SIMPLE[:1]), ("the best", SIMPLE)):
                each = [above(found, others) for found in results]
                mean, error = mean_and_error([value for value, _ in each])
                (worst, its_error), cluster = min(zip(each, asked.clusters, strict=True))
                figures = (f"{value:+.2f}" for value in (mean, error, worst, its_error))
                table.append([experiment, family, label, *figures, str(cluster)])
    print(aligned(table), end="")


if __name__ == "__main__":
    main()
