"""How fast a simulation places.

    python -m tests.bench.placement [--policies fgd,shadow-price] [--file default] [--runs 2]

Pods per second of CPU time on one core, for the experiment inflation on the whole openb trace, by
policies that know the pods.
"""

import argparse
import time
from pathlib import Path

import gpushare.sim
from gpushare.sim import experiments
from gpushare.sim.options import KNOWN, Parameters
from gpushare.trace.nodes_and_pods import TraceNode, TracePod, read_nodes, read_pods

DATA = Path(gpushare.sim.__file__).parent / "data" / "openb"


def _speed(nodes: list[TraceNode], pods: list[TracePod], policy: str, seed: int) -> str:
    start = time.process_time()
    options_ = Parameters(workload=KNOWN)
    record = experiments.inflation(nodes, pods, policy, seed, options_)
    spent = time.process_time() - start
    return f"{int(str(record['pods'])) / spent:8.0f} pods/s, failed {record['failed']}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--policies", default="fgd,shadow-price")
    parser.add_argument("--file", default="default")
    parser.add_argument("--runs", type=int, default=2)
    options = parser.parse_args()
    nodes = read_nodes(next(DATA.glob("*node*")))
    pods = read_pods(next(DATA.glob(f"*pod_list_{options.file}.*")))
    for policy in options.policies.split(","):
        for seed in range(42, 42 + options.runs):
            print(f"{policy:14} {_speed(nodes, pods, policy, seed)}")


if __name__ == "__main__":
    main()
