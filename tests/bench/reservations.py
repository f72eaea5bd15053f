"""The waits of pods with reservations and without: the table of docs/placement.md.

    python -m tests.bench.reservations [--seeds 10] [--load 0.85] [--after 0.1] [--nodes 12]
        [--life 24] [--policies device-bestfit,shadow-price] [--jobs 2]

Pods come and go on equal nodes of eight cards (`churn --wait` of `gpushare simulate`), in two
mixes: `shares` has 70 % shares of a card and 15 % single cards, `whole` 70 % single cards; the
others ask for two to eight cards of a node. Printed are the memory allocated, and by number of
cards the mean and the longest wait in mean lifetimes: the mean over the seeds, with the standard
error.
"""

import argparse
import random
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from gpushare.sim.experiments import churn
from gpushare.sim.options import Parameters, words
from gpushare.sim.report import aligned
from gpushare.sim.runner import run_all
from gpushare.trace.nodes_and_pods import TraceNode, TracePod
from tests.bench.placement_family import mean_and_error

_CARD = 80
_SHARES = (10, 20, 40)
_PARTS = {"shares": (0.7, 0.15, 0.1, 0.05), "whole": (0.0, 0.7, 0.25, 0.05)}
"""By mix the parts of shares, single cards, 2 or 4 cards, and 8 cards."""
_PODS = 400
_WARMUP = 4.0
"""Lifetimes at the beginning that no figure counts."""


@dataclass(frozen=True, slots=True)
class Job:
    """One run."""

    mix: str
    policy: str
    seed: int
    nodes: int
    options: Parameters


def pods_of(mix: str) -> list[TracePod]:
    """Return the pods of a mix, always the same."""
    chance = random.Random(1)
    pods = []
    for number in range(_PODS):
        kind = chance.choices(range(4), _PARTS[mix])[0]
        devices = (1, 1, chance.choice((2, 4)), 8)[kind]
        units = chance.choice(_SHARES) if kind == 0 else _CARD
        pods.append(TracePod(f"p-{number}", 1000, 1000, devices, units, (), None, None, None))
    return pods


def measured(job: Job) -> tuple[Job, dict[str, Any]]:
    """Run the job; return the job and the record."""
    nodes = [TraceNode(f"n-{row}", 128_000, 10**6, 8, _CARD, "card") for row in range(job.nodes)]
    record = churn(nodes, pods_of(job.mix), job.policy, job.seed, job.options)
    return job, record


def table(jobs: Sequence[Job], records: Sequence[dict[str, Any]]) -> list[list[str]]:
    """Return the rows, with a head."""
    sizes = ("share", "1", "2", "4", "8")
    rows = [["mix", "policy", "reserved", "allocated, %", *sizes, "8, longest"]]
    groups: dict[tuple[str, str, bool], list[dict[str, Any]]] = {}
    for job, record in zip(jobs, records, strict=True):
        key = job.mix, job.policy, bool(job.options.reserve_after)
        groups.setdefault(key, []).append(record)
    for (mix, policy, reserved), of_seeds in groups.items():
        values = [[record["alloc"] for record in of_seeds]]
        values += [[record["wait_mean"].get(size, 0.0) for record in of_seeds] for size in sizes]
        values.append([record["wait_max"].get("8", 0.0) for record in of_seeds])
        cells = [
            _text(*mean_and_error(column), digits=1 + bool(n)) for n, column in enumerate(values)
        ]
        rows.append([mix, policy, "yes" if reserved else "no", *cells])
    return rows


def _text(mean: float, error: float, digits: int) -> str:
    return f"{mean:.{digits}f} ({error:.{digits}f})"


def main() -> None:
    """Run, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--load", type=float, default=0.85)
    parser.add_argument("--after", type=float, default=0.1)
    parser.add_argument("--nodes", type=int, default=12)
    parser.add_argument("--life", type=float, default=24.0, help="in mean lifetimes of a pod")
    policies = words("device-bestfit,shadow-price")
    parser.add_argument("--policies", type=words, default=policies)
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    if options.life <= _WARMUP:
        parser.error(f"--life must be more than {_WARMUP:g}: no figure counts the time before")
    jobs = [
        Job(
            mix,
            policy,
            seed,
            options.nodes,
            Parameters(
                load=options.load, life=options.life, warmup=_WARMUP, wait=True, reserve_after=after
            ),
        )
        for mix in _PARTS
        for policy in options.policies
        for after in (0.0, options.after)
        for seed in range(options.seeds)
    ]
    with closing(run_all(measured, jobs, options.jobs)) as runs:
        done = dict(runs)
    print(aligned(table(jobs, [done[job] for job in jobs])))


if __name__ == "__main__":
    main()
