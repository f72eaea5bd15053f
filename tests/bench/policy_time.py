"""The time of each policy to score 5,000 nodes with unequal cards.

    python -m tests.bench.policy_time [--clusters 5000-5004] [--nodes 5000] [--pods 300]

The nodes are those of clusters of tests/bench/clusters.py, repeated; half of the capacity has been
given out. A pod comes, all nodes are scored, and it is placed, so that a row has changed before the
next. CPU time of a score by the ranking that the extender uses, in ms: of the first of its kind,
which scores every node, and of all others.
"""

import argparse
import statistics
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import cycle, islice

import numpy as np

from gpushare.core.model import Kind
from gpushare.core.policy import load_policy, policy_names
from gpushare.core.ranking import Ranking
from gpushare.sim.engine import Cluster, workload_of_trace
from gpushare.sim.report import aligned
from gpushare.trace.nodes_and_pods import request_of
from tests.bench.clusters import drawn
from tests.bench.placement_family import numbers


def times(name: str, seed: int, nodes: int, pods: int) -> Iterator[tuple[bool, float]]:
    """(whether the kind of request was new, ms) of each score."""
    cluster = drawn(seed)
    many = [
        replace(node, name=f"node-{number}")
        for number, node in enumerate(islice(cycle(cluster.nodes), nodes))
    ]
    judge = Ranking(load_policy(name, workload_of_trace(cluster.nodes, cluster.pods)))
    books = Cluster(many, judge)
    draw = np.random.default_rng(seed)
    half = sum(node.devices * node.capacity for node in many) // 2
    rows = cycle(draw.permutation(nodes).tolist())
    while books.allocated < half:
        pod = cluster.pods[int(draw.integers(len(cluster.pods)))]
        books.place_on(next(rows), request_of(pod))
    known_kinds: set[Kind] = set()
    for _ in range(pods):
        request = request_of(cluster.pods[int(draw.integers(len(cluster.pods)))])
        if not request.devices:
            continue
        begin = time.process_time()
        judge.scores(books.view, request)
        yield request.kind not in known_kinds, 1000 * (time.process_time() - begin)
        known_kinds.add(request.kind)
        books.place(request)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clusters", type=numbers, default=range(5000, 5005), metavar="5000-5004")
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--pods", type=int, default=300)
    options = parser.parse_args()
    rows = [["policy", "first p50", "max", "known p50", "p99", "max"]]
    for name in policy_names():
        first: list[float] = []
        known_times: list[float] = []
        for seed in options.clusters:
            for new, took in times(name, seed, options.nodes, options.pods):
                (first if new else known_times).append(took)
        known_times.sort()
        figures = [statistics.median(first), max(first), statistics.median(known_times)]
        figures += [known_times[int(0.99 * len(known_times))], known_times[-1]]
        rows.append([name, *(f"{figure:.1f}" for figure in figures)])
    print(aligned(rows), end="")


if __name__ == "__main__":
    main()
