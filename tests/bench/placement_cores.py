"""The allocation of policies if half of the pods ask for compute beside memory.

    python -m tests.bench.placement_cores [--file gpushare100] [--seeds 42-44]
        [--policies device-bestfit,fgd]

A shipped list of pods fills its cluster (`inflation`): once as it is, and twice with compute, where
half of the pods with GPU, drawn by the seed, ask for some. One of whole devices asks for all of
their compute. One that shares a device asks *apart* from its memory, for as much as the share of
another pod, or *contrary* to it, for what its memory leaves of the device. Each figure is the mean
over the seeds of the memory allocated when 100 % has been requested, in %, with the
standard error; in brackets is the free memory of devices without free compute.
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
from gpushare.sim.report import aligned
from gpushare.trace.nodes_and_pods import MILLI, TracePod

POLICIES = "device-bestfit,binpack,fgd,shadow-price,auto"
ALONE, APART, CONTRARY = MIXTURES = ("memory alone", "compute apart", "compute contrary")
_HALF = 1 / 2
_ASKED = "100"


def with_cores(pods: Sequence[TracePod], mixture: str, seed: int) -> list[TracePod]:
    """Return the pods, half of them with compute."""
    chances = Random(seed)
    shares = [pod.units for pod in pods if pod.devices == 1 and pod.units < MILLI]

    def asking(pod: TracePod) -> TracePod:
        if not pod.devices or chances.random() >= _HALF:
            return pod
        share = chances.choice(shares) if mixture == APART else MILLI - pod.units
        units = share if pod.units < MILLI else MILLI
        return replace(pod, cores=-(-units * ALL_CORES // MILLI))

    return [asking(pod) for pod in pods]


def filled(file: str, policy: str, seed: int, mixture: str) -> tuple[float, float]:
    """Return the allocated % of the shipped cluster, and the % stranded by compute."""
    inputs = read_shipped(file)
    pods = inputs.pods if mixture == ALONE else with_cores(inputs.pods, mixture, seed)
    record = inflation(inputs.nodes, pods, policy, seed)
    stranded = record.get("compute_stranded")
    return (
        float(str(record["alloc"])),
        float(stranded[_ASKED]) if isinstance(stranded, dict) else 0.0,
    )


def main() -> None:
    """Print a line for each policy."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--file", default="default")
    parser.add_argument("--seeds", default="42-44")
    parser.add_argument("--policies", default=POLICIES)
    options = parser.parse_args()
    first, last = map(int, options.seeds.split("-"))
    seeds, rows = range(first, last + 1), [["policy", *MIXTURES]]
    with ProcessPoolExecutor() as pool:
        runs = {
            (policy, mixture): [
                pool.submit(filled, options.file, policy, seed, mixture) for seed in seeds
            ]
            for policy in options.policies.split(",")
            for mixture in MIXTURES
        }
        for policy in options.policies.split(","):
            parts = [[run.result() for run in runs[policy, mixture]] for mixture in MIXTURES]
            rows.append([policy, *map(_told, parts)])
    print(aligned(rows))


def _told(pairs: Sequence[tuple[float, float]]) -> str:
    values = [allocated for allocated, _ in pairs]
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    stranded = statistics.mean(lost for _, lost in pairs)
    return f"{statistics.mean(values):.2f} ± {error:.2f} ({stranded:.2f})"


if __name__ == "__main__":
    main()
