"""The effect of moves of pods on small clusters: the tables of docs/research/defrag.md.

    python -m tests.bench.defrag [--clusters 9500-9501] [--families equal,whole] [--loads 0.9,1.0]
        [--policies binpack,fgd] [--seeds 3] [--most-pods 500] [--moves k=3,every=5] [--jobs 2]
        [--openb] [--json OUT] [--write docs/research/defrag.md]

The clusters are those of tests/bench/small_clusters.py where nothing changes but the pods: each
family with each number. Pods come and go, and wait if they fit nowhere; no policy knows the pods
beforehand. Each run is made with moves and without, with the same pods on the same nodes. Printed
are the mean over the clusters, of the mean over seeds, and the standard error over the clusters;
then the gain of the cluster with the least gain. auto has its trials as pods come, which takes most
of the time: --most-pods leaves out clusters. A second table has the waiting times by size. With
--openb the cluster is that of the trace openb, and the error is over the seeds. With --json each
run is written as soon as it is measured, one JSON object a line; the same command with the same
file measures missing runs only.
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
from gpushare.sim.experiments import churn, node_order
from gpushare.sim.inputs import read_shipped
from gpushare.sim.options import moves, number, words
from gpushare.sim.parameters import Parameters
from gpushare.sim.report import markdown
from gpushare.sim.runner import run_all
from tests.bench.placement_family import mean_and_error, numbers
from tests.bench.placement_small import SmallJob as Arrivals
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
"""Sizes in the table of waits. Larger pods come to few clusters, and no pods are moved for others.
"""


@dataclass(frozen=True, slots=True)
class DefragJob:
    """One run with moves, and one without."""

    family: str
    cluster: int
    load: float
    policy: str
    seed: int
    how: str

    @property
    def key(self) -> str:
        """The name in the file."""
        return json.dumps([getattr(self, name) for name in self.__slots__])


def measured(job: DefragJob) -> dict[str, object]:
    """Run the job; return the job with the measures."""
    if job.family == OPENB:
        inputs = read_shipped("default")
        nodes, pods = inputs.nodes, inputs.pods
    else:
        nodes, pods = still(job.family, job.cluster)
    options = Parameters(job.load, END, WARMUP, wait=True, defrag=moves(job.how))
    record = churn(node_order(nodes, job.seed), pods, job.policy, job.seed, options)
    return {"job": job.key, **{name: record[name] for name in (*_COLUMNS, *_WAITS)}}


Groups = dict[tuple[float, str], dict[tuple[str, int], list[dict[str, Any]]]]
"""(load, policy) -> sample -> runs."""


def grouped(jobs: Sequence[DefragJob], records: dict[str, dict[str, Any]]) -> Groups:
    """Return the runs grouped by line of the table."""
    groups: Groups = {}
    for job in jobs:
        # Of one cluster the seeds are the sample, of several the clusters.
        cluster = (job.family, job.seed if job.family == OPENB else job.cluster)
        line = groups.setdefault((job.load, job.policy), {})
        line.setdefault(cluster, []).append(records[job.key])
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
                    means.append([statistics.fmean(values) for values in both])
            if len(means) > 1:
                before, after = (statistics.fmean(values) for values in zip(*means, strict=True))
                mean, error = mean_and_error([one - two for one, two in means])
                cells = [f"{before:.2f}", f"{after:.2f}", f"{mean:.2f} ± {error:.2f}"]
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
    options = parser.parse_args()
    clusters = [
        (family, cluster)
        for family in options.families
        for cluster in options.clusters
        if coming(Arrivals("churn", family, cluster, 1)) <= options.most_pods
    ]
    if options.openb:
        clusters = [(OPENB, 0)]
    jobs = [
        DefragJob(family, cluster, number(0, 10, load), policy, _FIRST_SEED + seed, options.moves)
        for load in options.loads
        for policy in options.policies
        for family, cluster in clusters
        for seed in range(options.seeds)
    ]
    records = {}
    if options.json is not None and options.json.exists():
        for line in options.json.read_text(encoding="utf-8").splitlines():
            one = json.loads(line)
            records[one["job"]] = one
    missing = [job for job in jobs if job.key not in records]
    with closing(run_all(measured, missing, options.jobs)) as new:
        for one in new:
            records[one["job"]] = one
            if options.json is not None:
                with options.json.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(one) + "\n")
    groups = grouped(jobs, records)
    table = markdown(list(rows(groups)))
    print(table)
    print(markdown(list(waits(groups))))
    print(f"gained least by one sample: {least_gained(groups):+.2f}")
    if options.write is not None:
        renew(options.write, OPENB if options.openb else "small clusters", table)


if __name__ == "__main__":
    main()
