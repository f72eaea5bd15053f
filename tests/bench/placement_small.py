"""The allocation of `auto` on small clusters with unknown pods, beside the simple policies.

    python -m tests.bench.placement_small --clusters 9500-9505
        [--seeds 6] [--experiments inflation,churn] [--families equal,shift] [--jobs 2] [--each]
        [--most-pods 500] [--json OUT]

The clusters are those of tests/bench/small_clusters.py, as many of each family as numbers are
given. No policy is told which pods come: `auto` learns as the extender does (`--workload learned`
of `gpushare simulate`). `inflation` fills a cluster; the figure is read when 100 % has been
requested. In `churn` pods come and go at a load of 1, and the figure is the mean of time.

Printed are, by family, the points of `auto` above `device-bestfit`, and above the best of the
simple policies, which is chosen for each cluster with hindsight: the mean and the
standard error over the clusters, and the worst cluster with the error over the seeds. The best of
two is favoured: of two that are equally good it is the one that chance favours. So there is a
third line, "the best elsewhere": the best is chosen by every second seed, and compared on the
others, both ways round. With --each there is a line for each cluster, too.

`auto` has its trials as pods come, which takes most of the time: --most-pods leaves out clusters to
which more pods come in a run. With --json each cluster is written as soon as it is measured, one
JSON object a line. The same command with the same file measures missing clusters only.
"""

import argparse
import json
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

from gpushare.sim.experiments import churn, inflation, node_order
from gpushare.sim.options import LEARNED, Parameters, words
from gpushare.sim.report import aligned
from gpushare.sim.runner import run_all
from tests.bench.placement_family import mean_and_error, numbers
from tests.bench.small_clusters import (
    END,
    FAMILIES,
    STILL,
    WARMUP,
    Comes,
    SmallRun,
    changing,
    still,
)

SIMPLE = ("device-bestfit", "binpack")
POLICIES = ("auto", *SIMPLE)
_EXPERIMENTS = {"inflation": inflation, "churn": churn}
_FIRST_SEED = 42


@dataclass(frozen=True, slots=True)
class SmallJob:
    """One cluster under all policies, with so many seeds."""

    experiment: str
    family: str
    cluster: int
    seeds: int


@dataclass(frozen=True, slots=True)
class SmallOutcome:
    """The allocation of each policy on the cluster of the job, in %, by seed."""

    job: SmallJob
    values: Mapping[str, Sequence[float]]

    def above(self, rivals: Sequence[str]) -> tuple[float, float]:
        """The points of `auto` above the best of the others, and the error."""
        best = max(rivals, key=lambda name: statistics.fmean(self.values[name]))
        pairs = zip(self.values["auto"], self.values[best], strict=True)
        return mean_and_error([one - two for one, two in pairs])

    def above_elsewhere(self, rivals: Sequence[str]) -> tuple[float, float]:
        """The same, but on each half of the seeds the best is that of the other half."""
        halves = slice(0, None, 2), slice(1, None, 2)
        more: list[float] = []
        for one_half, second_half in (halves, halves[::-1]):
            best = max(rivals, key=lambda name: statistics.fmean(self.values[name][second_half]))
            pairs = zip(self.values["auto"][one_half], self.values[best][one_half], strict=True)
            more += [one - two for one, two in pairs]
        return mean_and_error(more)


def measured(job: SmallJob) -> SmallOutcome:
    """Run all policies on the cluster of the job."""
    seeds = range(_FIRST_SEED, _FIRST_SEED + job.seeds)
    allocated = _still if job.family in STILL else _changing
    return SmallOutcome(
        job, {name: [allocated(job, name, seed) for seed in seeds] for name in POLICIES}
    )


def _still(job: SmallJob, policy: str, seed: int) -> float:
    nodes, pods = still(job.family, job.cluster)
    run = _EXPERIMENTS[job.experiment]
    options = Parameters(workload=LEARNED, warmup=WARMUP, life=END)
    return float(str(run(node_order(nodes, seed), pods, policy, seed, options)["alloc"]))


def _changing(job: SmallJob, policy: str, seed: int) -> float:
    world = changing(job.family, job.cluster, seed, job.experiment == "inflation")
    return SmallRun(world, policy, seed).allocated()


def coming(job: SmallJob) -> float:
    """Return about how many pods come in a run of the job."""
    if job.family in STILL:
        nodes, pods = still(job.family, job.cluster)
        mean_units = sum(pod.devices * pod.units for pod in pods) / len(pods)
        lasts = END if job.experiment == "churn" else 1.3
        return lasts * sum(sum(node.sizes) for node in nodes) / mean_units
    world = changing(job.family, job.cluster, _FIRST_SEED, job.experiment == "inflation")
    return sum(isinstance(event, Comes) for _, event in world.events)


def table(outcomes: Sequence[SmallOutcome]) -> str:
    """A line for each experiment and family, and each opponent of `auto`."""
    rows = [["experiment", "family", "above", "mean", "error", "worst", "error", "cluster"]]
    groups: dict[tuple[str, str], list[SmallOutcome]] = {}
    for one in outcomes:
        groups.setdefault((one.job.experiment, one.job.family), []).append(one)
    for (experiment, family), some in groups.items():
        compared = {
            "device-bestfit": [one.above(SIMPLE[:1]) for one in some],
            "the best": [one.above(SIMPLE) for one in some],
        }
        if all(one.job.seeds > 1 for one in some):
            compared["the best elsewhere"] = [one.above_elsewhere(SIMPLE) for one in some]
        for label, differences in compared.items():
            mean, error = mean_and_error([value for value, _ in differences])
            (worst, its_error), at = min(zip(differences, range(len(differences)), strict=True))
            figures = (f"{value:+.2f}" for value in (mean, error, worst, its_error))
            rows.append([experiment, family, label, *figures, str(some[at].job.cluster)])
    return aligned(rows)


def lines(outcomes: Sequence[SmallOutcome]) -> Iterator[list[str]]:
    """A line for each cluster: the means, and the points of `auto` above the best."""
    yield ["experiment", "family", "cluster", *POLICIES, "above the best", "error"]
    for one in outcomes:
        job, (above, error) = one.job, one.above(SIMPLE)
        means = [f"{statistics.fmean(one.values[name]):.2f}" for name in POLICIES]
        labels = [job.experiment, job.family, str(job.cluster)]
        yield [*labels, *means, f"{above:+.2f}", f"{error:.2f}"]


def read(path: Path | None) -> list[SmallOutcome]:
    """The outcomes in that file."""
    if path is None or not path.exists():
        return []
    documents = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return [SmallOutcome(SmallJob(**one["job"]), one["values"]) for one in documents]


def _places(job: SmallJob) -> tuple[int, int]:
    return [*_EXPERIMENTS].index(job.experiment), FAMILIES.index(job.family)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clusters", type=numbers, default=range(9500, 9506), metavar="9500-9505")
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--experiments", type=words, default=tuple(_EXPERIMENTS))
    parser.add_argument("--families", type=words, default=FAMILIES)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--most-pods", type=float, default=math.inf, help="leave out longer runs")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write what is measured; go on")
    parser.add_argument("--each", action="store_true", help="a line for each cluster, too")
    options = parser.parse_args()
    jobs = [
        SmallJob(experiment, family, cluster, options.seeds)
        for experiment in options.experiments
        for cluster in options.clusters
        for family in options.families
    ]
    jobs = [job for job in jobs if coming(job) <= options.most_pods]
    outcomes = [one for one in read(options.json) if one.job in jobs]
    finished_jobs = {one.job for one in outcomes}
    with closing(
        run_all(measured, [job for job in jobs if job not in finished_jobs], options.jobs)
    ) as new:
        for one in new:
            outcomes.append(one)
            if options.json is not None:
                with options.json.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(asdict(one)) + "\n")
    outcomes.sort(key=lambda one: (*_places(one.job), one.job.cluster))
    if options.each:
        print(aligned(list(lines(outcomes))))
    print(table(outcomes), end="")


if __name__ == "__main__":
    main()
