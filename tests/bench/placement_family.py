"""The allocation of a policy on many random clusters, above the best of the simple policies.

    python -m tests.bench.placement_family --clusters 5000-5299 [--policies shadow-price,fgd]
        [--experiments inflation,churn] [--json OUT]

The clusters are those of tests/bench/clusters.py. The experiments run on each under each policy,
with the same seeds, more of them on small clusters; the policy knows the pods
(`--workload known` of `gpushare simulate`):

- `inflation`: GPU allocated when 100 % has been asked for;
- `churn`: GPU allocated in the mean, at load 1.0, life 6, warm-up 2.

The best of the simple policies is the one with the greatest mean on that cluster and those seeds:
chosen with hindsight, which favours that policy. A difference is the mean over seeds, the error is
the standard error; "below" counts clusters that lie under the best simple policy by more than two
errors and by more than half a point, "above" those that lie over it.

With --json each cluster is written as soon as it is measured, one JSON object a line. The same
command with the same file measures missing clusters only.
"""

import argparse
import json
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

from gpushare.sim import experiments
from gpushare.sim.options import KNOWN, Parameters
from gpushare.sim.report import aligned
from gpushare.sim.runner import run_all
from tests.bench.clusters import Drawn, drawn

SIMPLE = ("device-bestfit", "binpack")
EXPERIMENTS = ("inflation", "churn")
_RUNS = 90
"""Nodes times seeds of a cluster, within these bounds of seeds."""
_MIN_SEEDS, _MAX_SEEDS, _FIRST_SEED = 3, 6, 42

Values = Mapping[str, Sequence[float]]
"""Allocated GPU in %, by policy and seed."""


@dataclass(frozen=True, slots=True)
class FamilyJob:
    """One cluster under all policies; first: the first seed of the runs."""

    cluster: int
    experiment: str
    policies: tuple[str, ...]
    first: int


@dataclass(frozen=True, slots=True)
class FamilyOutcome:
    """The measures of one cluster."""

    job: FamilyJob
    nodes: int
    kinds: int
    values: Values

    def above(self, policy: str, rivals: Sequence[str] = SIMPLE) -> tuple[float, float]:
        """(mean, standard error) of the policy's points above the best of the others, by seed."""
        best = max(rivals, key=lambda name: statistics.fmean(self.values[name]))
        pairs = zip(self.values[policy], self.values[best], strict=True)
        return mean_and_error([mine - its for mine, its in pairs])

    def is_below(self, policy: str) -> bool:
        """Whether the policy is below the best of the simple ones beyond doubt."""
        mean, error = self.above(policy)
        return mean < -max(2 * error, 0.5)

    def is_above(self, policy: str) -> bool:
        """Whether the policy is above the best of the others beyond doubt."""
        mean, error = self.above(policy)
        return mean > max(2 * error, 0.5)


def seeds_of(cluster: Drawn, first: int = _FIRST_SEED) -> range:
    """The seeds of the runs on a cluster."""
    number = min(max(_RUNS // len(cluster.nodes), _MIN_SEEDS), _MAX_SEEDS)
    return range(first, first + number)


def measure(job: FamilyJob) -> FamilyOutcome:
    """The allocation of the policies on the cluster."""
    cluster, options = drawn(job.cluster), Parameters(workload=KNOWN, life=6.0)
    run = {"inflation": experiments.inflation, "churn": experiments.churn}[job.experiment]
    values = {
        policy: [
            float(str(run(cluster.nodes, cluster.pods, policy, seed, options)["alloc"]))
            for seed in seeds_of(cluster, job.first)
        ]
        for policy in job.policies
    }
    return FamilyOutcome(job, len(cluster.nodes), cluster.kinds, values)


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """The mean and the standard error, which is infinite for a single value."""
    if len(values) < 2:
        return statistics.fmean(values), math.inf
    return statistics.fmean(values), statistics.stdev(values) / math.sqrt(len(values))


def distribution(outcomes: Sequence[FamilyOutcome], policies: Sequence[str]) -> str:
    """By experiment and policy, the distribution of the points above the best simple policy."""
    rows = [["experiment, policy", "clusters", "mean", "error", "worst", "worst tenth"]]
    rows[0] += ["5 %", "10 %", "25 %", "50 %", "75 %", "90 %", "below", "above"]
    for experiment in dict.fromkeys(one.job.experiment for one in outcomes):
        some = [one for one in outcomes if one.job.experiment == experiment]
        rows += [
            [f"{experiment}, {policy}", *_line(some, policy)]
            for policy in policies
            if policy in some[0].values
        ]
    return aligned(rows)


def _line(outcomes: Sequence[FamilyOutcome], policy: str) -> Iterator[str]:
    # A simple policy is compared with the best of all simple policies, including that policy.
    above = sorted(one.above(policy)[0] for one in outcomes)
    mean, error = mean_and_error(above)
    tenth = statistics.fmean(above[: max(len(above) // 10, 1)])
    yield from (str(len(above)), f"{mean:+.2f}", f"{error:.2f}", f"{above[0]:+.2f}")
    yield f"{tenth:+.2f}"
    for part in (0.05, 0.1, 0.25, 0.5, 0.75, 0.9):
        yield f"{above[int(part * (len(above) - 1))]:+.2f}"
    yield str(sum(one.is_below(policy) for one in outcomes))
    yield str(sum(one.is_above(policy) for one in outcomes))


def _read(path: Path | None) -> list[FamilyOutcome]:
    """The content of such a file."""
    if path is None or not path.exists():
        return []
    lines = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return [
        FamilyOutcome(FamilyJob(**{**job, "policies": tuple(job["policies"])}), **values)
        for job, values in ((line.pop("job"), line) for line in lines)
    ]


def _write(path: Path | None, outcome: FamilyOutcome) -> None:
    if path is not None:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(outcome)) + "\n")


def numbers(text: str) -> range:
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clusters", type=numbers, default=range(5000, 5300), metavar="5000-5299")
    parser.add_argument("--policies", default="shadow-price")
    parser.add_argument("--experiments", default="inflation,churn")
    parser.add_argument("--first-seed", type=int, default=_FIRST_SEED)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--json", type=Path, metavar="OUT", help="write what is measured; go on")
    options = parser.parse_args()
    policies = tuple(options.policies.split(","))
    experiments_ = options.experiments.split(",")
    for name in experiments_:
        if name not in EXPERIMENTS:
            parser.error(f"--experiments: {name}: there are {', '.join(EXPERIMENTS)}")
    names = tuple(dict.fromkeys((*SIMPLE, *policies)))
    jobs = [
        FamilyJob(cluster, experiment, names, options.first_seed)
        for cluster in options.clusters
        for experiment in experiments_
    ]
    outcomes = [one for one in _read(options.json) if one.job in jobs]
    finished_jobs = {one.job for one in outcomes}
    remaining_jobs = [job for job in jobs if job not in finished_jobs]
    with closing(run_all(measure, remaining_jobs, options.jobs)) as results:
        for one in results:
            _write(options.json, one)
            outcomes.append(one)
    outcomes.sort(key=lambda one: (one.job.experiment, one.job.cluster))
    print(distribution(outcomes, names), end="")
    for one in outcomes:
        for policy in policies:
            if one.is_below(policy):
                mean, error = one.above(policy)
                place = f"{one.job.experiment} on cluster {one.job.cluster} ({one.nodes} nodes)"
                print(f"below: {policy}, {place}: {mean:+.2f} ({error:.2f})")


if __name__ == "__main__":
    main()
