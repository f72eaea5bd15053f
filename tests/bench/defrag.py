"""What moves of pods bring on small clusters: the tables of docs/research/defrag.md.

    python -m tests.bench.defrag [--clusters 9500-9501] [--families equal,whole] [--loads 0.9,1.0]
        [--policies binpack,fgd] [--seeds 3] [--most-pods 500] [--moves k=3,every=5] [--jobs 2]
        [--openb] [--json OUT] [--write docs/research/defrag.md]

The clusters are those of tests/bench/small_clusters.py in which nothing changes but the pods: each
family with each number. Pods come and go, and wait if they fit nowhere; no policy is told which
pods come. Each run is made with moves and without, with the same pods on the same nodes. Printed is
the mean over the clusters, of the mean over seeds, and its standard error over the clusters. Beside
the table is printed what the cluster gains that gains least. auto has its trials as pods come,
which takes most of the time: --most-pods leaves out clusters. A second table has how long pods
waited, by size. With --openb the cluster is that of the trace openb, and the error is over the
seeds. With --json each run is written as soon as it is
measured, one JSON object a line; the same command with the same file measures what is missing in
it.
"""

import argparse
import json
import math
import statistics
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpushare.core.trial import AUTO
from gpushare.sim.experiments import Options, churn, node_order
from gpushare.sim.inputs import read_shipped
from gpushare.sim.options import moves, number, words
from gpushare.sim.report import markdown
from gpushare.sim.runner import run_all
from tests.bench.placement_family import mean_and_error, numbers
from tests.bench.placement_small import Job as Arrivals
from tests.bench.placement_small import coming
from tests.bench.small_clusters import END, STILL, WARMUP, still
from tests.support.figures import renew

POLICIES = ("binpack", "device-bestfit", "fgd", AUTO)
OPENB = "openb"
_FIRST_SEED = 42
_COLUMNS = ("alloc", "gained", "moves", "lost")
_HEADS = ("load", "policy", "runs", "allocated", "gained", "moves", "lost")
_WAITS = ("wait_before", "wait_mean")
_SIZES = ("share", "1", "2")
"""By whose size waits are told. Larger pods come to few clusters, and no pods are moved for others.
"""


@dataclass(frozen=True, slots=True)
class Job:
    """One run with moves, and one without."""

    family: str
    cluster: int
    load: float
    policy: str
    seed: int
    how: str

    @property
    def key(self) -> str:
        """Its name in the file."""
        return json.dumps([getattr(self, name) for name in self.__slots__])


def measured(job: Job) -> dict[str, object]:
    """Run the job; return what it is and what was measured."""
    if job.family == OPENB:
        inputs = read_shipped("default")
        nodes, pods = inputs.nodes, inputs.pods
    else:
        nodes, pods = still(job.family, job.cluster)
    options = Options(job.load, END, WARMUP, wait=True, defrag=moves(job.how))
    record = churn(node_order(nodes, job.seed), pods, job.policy, job.seed, options)
    return {"job": job.key, **{name: record[name] for name in (*_COLUMNS, *_WAITS)}}


Groups = dict[tuple[float, str], dict[tuple[str, int], list[dict[str, Any]]]]
"""By load and policy, then by what is a sample: the runs."""


def grouped(jobs: Sequence[Job], found: dict[str, dict[str, Any]]) -> Groups:
    """Return the runs by what a line of the table is made of."""
    groups: Groups = {}
    for job in jobs:
        # Of one cluster the seeds are the sample, of several the clusters.
        cluster = (job.family, job.seed if job.family == OPENB else job.cluster)
        line = groups.setdefault((job.load, job.policy), {})
        line.setdefault(cluster, []).append(found[job.key])
    return groups


def rows(groups: Groups) -> Iterator[list[str]]:
    """A line for each load and policy."""
    yield [*_HEADS]
    for (load, policy), clusters in groups.items():
        cells = []
        for name in _COLUMNS:
            means = [statistics.fmean(run[name] for run in runs) for runs in clusters.values()]
            mean, error = mean_and_error(means)
            sign = "+" if name == "gained" else ""
            with_error = f" ± {error:.2f}" if name in ("gained", "lost") else ""
            cells.append(f"{mean:{sign}.2f}{with_error}")
        yield [f"{load:g}", policy, str(sum(map(len, clusters.values()))), *cells]


def waits(groups: Groups) -> Iterator[list[str]]:
    """A line for each load, policy and size: the waits, in % of the mean lifetime of a pod."""
    yield ["load", "policy", "size", "samples", "waits", "with moves", "shorter by"]
    for (load, policy), clusters in groups.items():
        for size in _SIZES:
            means = []
            for runs in clusters.values():
                if all(size in run[name] for run in runs for name in _WAITS):
                    both = [[100 * run[name][size] for run in runs] for name in _WAITS]
                    means.append([statistics.fmean(each) for each in both])
            if len(means) > 1:
                before, moved = (statistics.fmean(each) for each in zip(*means, strict=True))
                mean, error = mean_and_error([one - other for one, other in means])
                cells = [f"{before:.2f}", f"{moved:.2f}", f"{mean:.2f} ± {error:.2f}"]
                yield [f"{load:g}", policy, size, str(len(means)), *cells]


def least_gained(groups: Groups) -> float:
    """Return the gain of the cluster (of the seed, on one cluster) that gains least."""
    samples = (runs for clusters in groups.values() for runs in clusters.values())
    return min(statistics.fmean(run["gained"] for run in runs) for runs in samples)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--clusters", type=numbers, default=range(9500, 9502), metavar="9500-9501")
    add("--families", type=words, default=STILL)
    add("--loads", type=words, default=("0.9", "1.0"))
    add("--policies", type=words, default=POLICIES)
    add("--seeds", type=int, default=3)
    add("--most-pods", type=float, default=math.inf, help="leave out clusters with longer runs")
    add("--moves", default="k=3,every=5", metavar="k=3,every=5")
    add("--jobs", type=int, default=2)
    add("--openb", action="store_true", help="the cluster of the trace openb instead")
    add("--json", type=Path, metavar="OUT", help="write what is measured; go on")
    add("--write", type=Path, metavar="PAGE", help="renew the table there")
    asked = parser.parse_args()
    where = [
        (family, cluster)
        for family in asked.families
        for cluster in asked.clusters
        if coming(Arrivals("churn", family, cluster, 1)) <= asked.most_pods
    ]
    if asked.openb:
        where = [(OPENB, 0)]
    jobs = [
        Job(family, cluster, number(0, 10, load), policy, _FIRST_SEED + seed, asked.moves)
        for load in asked.loads
        for policy in asked.policies
        for family, cluster in where
        for seed in range(asked.seeds)
    ]
    found = {}
    if asked.json is not None and asked.json.exists():
        for line in asked.json.read_text(encoding="utf-8").splitlines():
            one = json.loads(line)
            found[one["job"]] = one
    missing = [job for job in jobs if job.key not in found]
    with closing(run_all(measured, missing, asked.jobs)) as new:
        for one in new:
            found[one["job"]] = one
            if asked.json is not None:
                with asked.json.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(one) + "\n")
    groups = grouped(jobs, found)
    table = markdown(list(rows(groups)))
    print(table)
    print(markdown(list(waits(groups))))
    print(f"gained least by one sample: {least_gained(groups):+.2f}")
    if asked.write is not None:
        renew(asked.write, OPENB if asked.openb else "small clusters", table)


if __name__ == "__main__":
    main()
