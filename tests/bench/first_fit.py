"""What Kubernetes allocates by itself where claims share cards, and what our policies do.

    python -m tests.bench.first_fit --pods default,multigpu50 --policies shadow-price
    python -m tests.bench.first_fit --pods equal,unequal --clusters 9500-9505
        [--seeds 42-45] [--policies device-bestfit,auto] [--experiments inflation,churn] [--jobs 2]

`first-fit` is the policy of that name of `gpushare simulate`: kube-scheduler's own choice of the
node, and the first devices there that fit. `first-fit-packed` is the same with MostAllocated, as
one may configure it. The others learn which pods come, as the extender does.
The pods are those of a list of openb, on its nodes, or of a family of small clusters
(tests/bench/small_clusters.py), as many of it as numbers are given. Pods without GPU are left out:
kube-scheduler places them by itself in either case.

`inflation` fills a cluster; what is allocated is read when 100 % has been asked for. In `churn`
pods come and go at a load of 1, and it is the mean of time. Printed is what first-fit allocates, in
%, and what the others allocate above it, in points: the mean and, in brackets, its standard error,
over the seeds of a list, and over the clusters of a family.
"""

import argparse
import statistics
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

from gpushare.sim.experiments import Options, churn, inflation, node_order
from gpushare.sim.inputs import read_shipped
from gpushare.sim.options import seeds, words
from gpushare.sim.report import aligned
from gpushare.sim.runner import run_all
from gpushare.sim.scorers import FIRST_FIT
from tests.bench.placement_family import mean_and_error, numbers
from tests.bench.small_clusters import END, STILL, WARMUP, still

_EXPERIMENTS = {"inflation": inflation, "churn": churn}


@dataclass(frozen=True, slots=True)
class Job:
    """One cluster under first-fit and these policies; cluster: None for a list of openb."""

    experiment: str
    pods: str
    cluster: int | None
    policies: tuple[str, ...]
    seeds: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Found:
    """By policy what was allocated, in %, by seed."""

    job: Job
    values: dict[str, list[float]]


def measured(job: Job) -> Found:
    """Run first-fit and the policies of the job on its cluster."""
    every = (FIRST_FIT, *job.policies)
    return Found(job, {name: [_allocated(job, name, seed) for seed in job.seeds] for name in every})


def _allocated(job: Job, policy: str, seed: int) -> float:
    options = Options()
    if job.cluster is None:
        inputs = read_shipped(job.pods)
        nodes, pods = inputs.nodes, inputs.pods
    else:
        nodes, pods = still(job.pods, job.cluster)
        nodes = node_order(nodes, seed)
        options = Options(warmup=WARMUP, life=END)
    asking = [pod for pod in pods if pod.devices]
    return float(str(_EXPERIMENTS[job.experiment](nodes, asking, policy, seed, options)["alloc"]))


def table(found: Sequence[Found]) -> str:
    """A line for each experiment and list or family."""
    policies = found[0].job.policies
    rows = [["experiment", "pods", "clusters", "seeds", FIRST_FIT]]
    rows[0] += [f"{name} above it" for name in policies]
    groups: dict[tuple[str, str], list[Found]] = {}
    for one in found:
        groups.setdefault((one.job.experiment, one.job.pods), []).append(one)
    for where, some in groups.items():
        first = statistics.fmean(statistics.fmean(one.values[FIRST_FIT]) for one in some)
        line = [*where, str(len(some)), str(len(some[0].job.seeds)), f"{first:.2f}"]
        rows.append([*line, *(_above(some, policy) for policy in policies)])
    return aligned(rows)


def _above(found: Sequence[Found], policy: str) -> str:
    """What the policy allocates above first-fit, and its error."""
    pairs = (zip(one.values[policy], one.values[FIRST_FIT], strict=True) for one in found)
    each = [[value - its for value, its in both] for both in pairs]
    # The error is of what was drawn: clusters, or the pods of the one that there is.
    mean, error = mean_and_error(each[0] if len(each) == 1 else [*map(statistics.fmean, each)])
    return f"{mean:+.2f} ({error:.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pods", type=words, default=STILL)
    parser.add_argument("--clusters", type=numbers, default=range(9500, 9506), metavar="9500-9505")
    parser.add_argument("--seeds", type=seeds, default=(42, 43, 44, 45))
    parser.add_argument("--policies", type=words, default=("device-bestfit", "auto"))
    parser.add_argument("--experiments", type=words, default=tuple(_EXPERIMENTS))
    parser.add_argument("--jobs", type=int, default=2)
    asked = parser.parse_args()
    jobs = [
        Job(experiment, pods, cluster, asked.policies, asked.seeds)
        for experiment in asked.experiments
        for pods in asked.pods
        for cluster in (asked.clusters if pods in STILL else (None,))
    ]
    with closing(run_all(measured, jobs, asked.jobs)) as results:
        found = {one.job: one for one in results}
    print(table([found[job] for job in jobs]), end="")


if __name__ == "__main__":
    main()
