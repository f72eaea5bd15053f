"""The allocation of Kubernetes alone with claims for shares of cards, compared with our policies.

    python -m tests.bench.first_fit --pods default,multigpu50 --policies shadow-price
    python -m tests.bench.first_fit --pods equal,unequal --clusters 9500-9505
        [--seeds 42-45] [--policies device-bestfit,auto] [--experiments inflation,churn] [--jobs 2]

`first-fit` is the policy of that name of `gpushare simulate`: kube-scheduler's own choice of the
node, and the first devices there that fit. `first-fit-packed` is the same with MostAllocated, as
an operator may configure. The others learn the pods that come, like the extender.
The pods are those of a list of openb, on its nodes, or of a family of small clusters
(tests/bench/small_clusters.py), as many of it as numbers are given. Pods without GPU are left out:
kube-scheduler places these by itself in either case.

`inflation` fills a cluster; the figure is read when 100 % has been requested. In `churn`
pods come and go at a load of 1, and the figure is the mean of time. Printed are the % of first-fit,
and the points of the other policies above it: the mean and, in brackets, the standard error,
over the seeds of a list, and over the clusters of a family.
"""

import argparse
import statistics
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

from gpushare.sim.experiments import churn, inflation, node_order
from gpushare.sim.inputs import read_shipped
from gpushare.sim.options import Parameters, seeds, words
from gpushare.sim.report import aligned
from gpushare.sim.runner import run_all
from gpushare.sim.scorers import FIRST_FIT
from tests.bench.placement_family import mean_and_error, numbers
from tests.bench.small_clusters import END, STILL, WARMUP, still

_EXPERIMENTS = {"inflation": inflation, "churn": churn}


@dataclass(frozen=True, slots=True)
class FirstFitJob:
    """One cluster under first-fit and these policies; cluster: None for a list of openb."""

    experiment: str
    pods: str
    cluster: int | None
    policies: tuple[str, ...]
    seeds: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FirstFitOutcome:
    """Allocated GPU in %, by policy and seed."""

    job: FirstFitJob
    values: dict[str, list[float]]


def measured(job: FirstFitJob) -> FirstFitOutcome:
    """Run first-fit and the policies of the job on the cluster."""
    policies = (FIRST_FIT, *job.policies)
    return FirstFitOutcome(
        job, {name: [_allocated(job, name, seed) for seed in job.seeds] for name in policies}
    )


def _allocated(job: FirstFitJob, policy: str, seed: int) -> float:
    options = Parameters()
    if job.cluster is None:
        inputs = read_shipped(job.pods)
        nodes, pods = inputs.nodes, inputs.pods
    else:
        nodes, pods = still(job.pods, job.cluster)
        nodes = node_order(nodes, seed)
        options = Parameters(warmup=WARMUP, life=END)
    gpu_pods = [pod for pod in pods if pod.devices]
    return float(str(_EXPERIMENTS[job.experiment](nodes, gpu_pods, policy, seed, options)["alloc"]))


def table(outcomes: Sequence[FirstFitOutcome]) -> str:
    """A line for each experiment and list or family."""
    policies = outcomes[0].job.policies
    rows = [["experiment", "pods", "clusters", "seeds", FIRST_FIT]]
    rows[0] += [f"{name} above it" for name in policies]
    groups: dict[tuple[str, str], list[FirstFitOutcome]] = {}
    for one in outcomes:
        groups.setdefault((one.job.experiment, one.job.pods), []).append(one)
    for label, some in groups.items():
        first = statistics.fmean(statistics.fmean(one.values[FIRST_FIT]) for one in some)
        line = [*label, str(len(some)), str(len(some[0].job.seeds)), f"{first:.2f}"]
        rows.append([*line, *(_above(some, policy) for policy in policies)])
    return aligned(rows)


def _above(outcomes: Sequence[FirstFitOutcome], policy: str) -> str:
    """The points of the policy above first-fit, and the error."""
    pairs = (zip(one.values[policy], one.values[FIRST_FIT], strict=True) for one in outcomes)
    differences = [[value - its for value, its in both] for both in pairs]
    # The error is over the random part: clusters, or the pods of the only cluster.
    mean, error = mean_and_error(
        differences[0] if len(differences) == 1 else [*map(statistics.fmean, differences)]
    )
    return f"{mean:+.2f} ({error:.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pods", type=words, default=STILL)
    parser.add_argument("--clusters", type=numbers, default=range(9500, 9506), metavar="9500-9505")
    parser.add_argument("--seeds", type=seeds, default=(42, 43, 44, 45))
    parser.add_argument("--policies", type=words, default=("device-bestfit", "auto"))
    parser.add_argument("--experiments", type=words, default=tuple(_EXPERIMENTS))
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    jobs = [
        FirstFitJob(experiment, pods, cluster, options.policies, options.seeds)
        for experiment in options.experiments
        for pods in options.pods
        for cluster in (options.clusters if pods in STILL else (None,))
    ]
    with closing(run_all(measured, jobs, options.jobs)) as results:
        outcome_by_job = {one.job: one for one in results}
    print(table([outcome_by_job[job] for job in jobs]), end="")


if __name__ == "__main__":
    main()
