"""What `auto` allocates on small clusters whose pods it does not know, beside the simple policies.

    python -m tests.bench.placement_small --clusters 9500-9505
        [--seeds 6] [--experiments inflation,churn] [--families equal,shift] [--jobs 2] [--each]
        [--most-pods 500] [--json OUT]

The clusters are those of tests/bench/small_clusters.py, as many of each family as numbers are
given. No policy is told which pods come: `auto` learns as the extender does (`--workload learned`
of `gpushare simulate`). `inflation` fills a cluster; what is allocated is read when 100 % has been
asked for. In `churn` pods come and go at a load of 1, and it is the mean of time.

Printed is, by family, what `auto` allocates above `device-bestfit`, and above the best of the
simple policies, which is chosen for each cluster with hindsight, in points: the mean and its
standard error over the clusters, and the worst cluster with its error over the seeds. The best of
three is favoured: of three that are equally good it is the one that chance favours. So there is a
third line, "the best elsewhere": the best is chosen by every second seed, and compared on the
others, both ways round. With --each there is a line for each cluster, too.

`auto` has its trials as pods come, which takes most of the time: --most-pods leaves out clusters to
which more pods come in a run. With --json each cluster is written as soon as it is measured, one
JSON object a line. The same command with the same file measures what is missing in it.
"""

import argparse
import json
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

from gpushare.sim.experiments import Options, churn, inflation, node_order
from gpushare.sim.options import words
from gpushare.sim.report import aligned
from gpushare.sim.runner import run_all
from gpushare.sim.scorers import LEARNED
from tests.bench.placement_family import mean_and_error, numbers
from tests.bench.small_clusters import END, FAMILIES, STILL, WARMUP, Comes, Run, changing, still

SIMPLE = ("device-bestfit", "binpack", "bestfit")
POLICIES = ("auto", *SIMPLE)
_EXPERIMENTS = {"inflation": inflation, "churn": churn}
_FIRST_SEED = 42


@dataclass(frozen=True, slots=True)
class Job:
    """One cluster under all policies, with so many seeds."""

    experiment: str
    family: str
    cluster: int
    seeds: int


@dataclass(frozen=True, slots=True)
class Found:
    """What each policy allocates on the cluster of the job, in %, by seed."""

    job: Job
    values: Mapping[str, Sequence[float]]

    def above(self, remaining_items: Sequence[str]) -> tuple[float, float]:
        """What `auto` allocates above the best of the others, and the error."""
        best = max(remaining_items, key=lambda name: statistics.fmean(self.values[name]))
        pairs = zip(self.values["auto"], self.values[best], strict=True)
        return mean_and_error([one - two for one, two in pairs])

    def above_elsewhere(self, remaining_items: Sequence[str]) -> tuple[float, float]:
        """The same, but on each half of the seeds the best is that of the other half."""
        halves = slice(0, None, 2), slice(1, None, 2)
        more: list[float] = []
        for entry, element in (halves, halves[::-1]):
            best = max(
                remaining_items, key=lambda name: statistics.fmean(self.values[name][element])
            )
            pairs = zip(self.values["auto"][entry], self.values[best][entry], strict=True)
            more += [one - two for one, two in pairs]
        return mean_and_error(more)


def measured(job: Job) -> Found:
    """Run all policies on the cluster of the job."""
    seeds = range(_FIRST_SEED, _FIRST_SEED + job.seeds)
    allocated = _still if job.family in STILL else _changing
    return Found(job, {name: [allocated(job, name, seed) for seed in seeds] for name in POLICIES})


def _still(job: Job, policy: str, seed: int) -> float:
    nodes, pods = still(job.family, job.cluster)
    run = _EXPERIMENTS[job.experiment]
    options = Options(workload=LEARNED, warmup=WARMUP, life=END)
    return float(str(run(node_order(nodes, seed), pods, policy, seed, options)["alloc"]))


def _changing(job: Job, policy: str, seed: int) -> float:
    world = changing(job.family, job.cluster, seed, job.experiment == "inflation")
    return Run(world, policy, seed).allocated()


def coming(job: Job) -> float:
    """Return about how many pods come in a run of the job."""
    if job.family in STILL:
        nodes, pods = still(job.family, job.cluster)
        request = sum(pod.devices * pod.units for pod in pods) / len(pods)
        lasts = END if job.experiment == "churn" else 1.3
        return lasts * sum(sum(node.sizes) for node in nodes) / request
    world = changing(job.family, job.cluster, _FIRST_SEED, job.experiment == "inflation")
    return sum(isinstance(event, Comes) for _, event in world.events)


def table(found: Sequence[Found]) -> str:
    """A line for each experiment and family, and what `auto` is compared with there."""
    rows = [["experiment", "family", "above", "mean", "error", "worst", "error", "cluster"]]
    groups: dict[tuple[str, str], list[Found]] = {}
    for one in found:
        groups.setdefault((one.job.experiment, one.job.family), []).append(one)
    for (experiment, family), some in groups.items():
        compared = {
            "device-bestfit": [one.above(SIMPLE[:1]) for one in some],
            "the best": [one.above(SIMPLE) for one in some],
        }
        if all(one.job.seeds > 1 for one in some):
            compared["the best elsewhere"] = [one.above_elsewhere(SIMPLE) for one in some]
        for label, entry in compared.items():
            mean, error = mean_and_error([value for value, _ in entry])
            (worst, its_error), at = min(zip(entry, range(len(entry)), strict=True))
            figures = (f"{value:+.2f}" for value in (mean, error, worst, its_error))
            rows.append([experiment, family, label, *figures, str(some[at].job.cluster)])
    return aligned(rows)


def lines(found: Sequence[Found]) -> Iterator[list[str]]:
    """A line for each cluster: its means, and what `auto` is above the best."""
    yield ["experiment", "family", "cluster", *POLICIES, "above the best", "error"]
    for one in found:
        job, (above, error) = one.job, one.above(SIMPLE)
        means = [f"{statistics.fmean(one.values[name]):.2f}" for name in POLICIES]
        place = [job.experiment, job.family, str(job.cluster)]
        yield [*place, *means, f"{above:+.2f}", f"{error:.2f}"]


def read(path: Path | None) -> list[Found]:
    """What was written to that file."""
    if path is None or not path.exists():
        return []
    output = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return [Found(Job(**one["job"]), one["values"]) for one in output]


def _places(job: Job) -> tuple[int, int]:
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
    args = parser.parse_args()
    jobs = [
        Job(experiment, family, cluster, args.seeds)
        for experiment in args.experiments
        for cluster in args.clusters
        for family in args.families
    ]
    jobs = [job for job in jobs if coming(job) <= args.most_pods]
    result = [one for one in read(args.json) if one.job in jobs]
    completed = {one.job for one in result}
    with closing(
        run_all(measured, [job for job in jobs if job not in completed], args.jobs)
    ) as new:
        for one in new:
            result.append(one)
            if args.json is not None:
                with args.json.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(asdict(one)) + "\n")
    result.sort(key=lambda one: (*_places(one.job), one.job.cluster))
    if args.each:
        print(aligned(list(lines(result))))
    print(table(result), end="")


if __name__ == "__main__":
    main()
