"""What policies allocate where half of the pods ask for compute beside memory.

    python -m tests.bench.placement_cores [--file gpushare100] [--seeds 42-44]
        [--policies device-bestfit,fgd]

A shipped list of pods fills its cluster (`inflation`), once as it is and once with compute: half of
the pods with GPU, drawn by the seed, ask for some. One of whole devices asks for all of their
compute, one that shares a device for as much as the share of another pod, drawn apart from its own
memory: where both were equal, memory alone would decide. Each figure is the mean over the seeds of
the memory that is allocated when 100 % has been asked for, in %, with its standard error.
"""

import argparse
import math
import statistics
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from random import Random

from gpushare.core.model import ALL_CORES
from gpushare.sim.experiments import inflation
from gpushare.sim.inputs import read_shipped
from gpushare.sim.lifetimes import EXPONENTIAL
from gpushare.sim.report import aligned
from gpushare.trace.nodes_and_pods import MILLI, TracePod

POLICIES = "device-bestfit,binpack,fgd,shadow-price"
_HALF = 1 / 2


def with_cores(pods: Sequence[TracePod], seed: int) -> list[TracePod]:
    """Return the pods, of which half ask for compute."""
    chances = Random(seed)
    shares = [pod.units for pod in pods if pod.devices == 1 and pod.units < MILLI]

    def asking(pod: TracePod) -> TracePod:
        if not pod.devices or chances.random() >= _HALF:
            return pod
        units = chances.choice(shares) if pod.units < MILLI else MILLI
        return replace(pod, cores=-(-units * ALL_CORES // MILLI))

    return [asking(pod) for pod in pods]


def allocated(file: str, policy: str, seed: int, cores: bool) -> float:
    """Return what is allocated of the shipped cluster, in %."""
    inputs = read_shipped(file, 0, EXPONENTIAL)
    pods = with_cores(inputs.pods, seed) if cores else inputs.pods
    return float(str(inflation(inputs.nodes, pods, policy, seed)["alloc"]))


def main() -> None:
    """Print a line for each policy."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--file", default="default")
    parser.add_argument("--seeds", default="42-44")
    parser.add_argument("--policies", default=POLICIES)
    asked = parser.parse_args()
    first, last = map(int, asked.seeds.split("-"))
    seeds, rows = range(first, last + 1), [["policy", "memory alone", "with compute"]]
    with ProcessPoolExecutor() as pool:
        runs = {
            (policy, cores): [
                pool.submit(allocated, asked.file, policy, seed, cores) for seed in seeds
            ]
            for policy in asked.policies.split(",")
            for cores in (False, True)
        }
        for policy in asked.policies.split(","):
            parts = [[run.result() for run in runs[policy, cores]] for cores in (False, True)]
            rows.append([policy, *map(_told, parts)])
    print(aligned(rows))


def _told(values: Sequence[float]) -> str:
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return f"{statistics.mean(values):.2f} ± {error:.2f}"


if __name__ == "__main__":
    main()
