"""How fast a simulation places, and whether compiled loops decide as the arrays do.

    python -m tests.bench.placement [--policies fgd,shadow-price] [--file default] [--runs 2]

Pods per second of CPU time on one core, for the experiment inflation on the whole openb trace; the
first run of a process also compiles, or loads what was compiled, and is shown apart.
"""

import argparse
import time
from pathlib import Path

import gpushare.sim
from gpushare.core.mutable_cluster import fits
from gpushare.core.policy import load_policy
from gpushare.core.ranking import Ranking
from gpushare.sim import experiments
from gpushare.sim.engine import Cluster, ranking, request_of, workload_of_trace
from gpushare.sim.trace import TraceNode, TracePod, read_nodes, read_pods

DATA = Path(gpushare.sim.__file__).parent / "data" / "openb"


def _speed(nodes: list[TraceNode], pods: list[TracePod], policy: str, seed: int) -> str:
    start = time.process_time()
    record = experiments.inflation(nodes, pods, policy, seed)
    spent = time.process_time() - start
    return f"{int(str(record['pods'])) / spent:8.0f} pods/s, failed {record['failed']}"


def _agree(nodes: list[TraceNode], pods: list[TracePod], policy: str, number: int) -> str:
    """Whether both ways place the first pods alike."""
    workload = workload_of_trace(nodes, pods)
    one = Cluster(nodes, ranking(load_policy(policy, workload), len(nodes)))
    other = Cluster(nodes, Ranking(load_policy(policy, workload), 1 << 16, fits))
    for index, pod in enumerate(pods[:number]):
        if one.place(request_of(pod)) != other.place(request_of(pod)):
            return f"differ at pod {index}"
    return f"the same {number} placements by {type(one.scorer).__name__} and Ranking"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--policies", default="fgd,shadow-price")
    parser.add_argument("--file", default="default")
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--compared", type=int, default=1000)
    options = parser.parse_args()
    nodes = read_nodes(next(DATA.glob("*node*")))
    pods = read_pods(next(DATA.glob(f"*pod_list_{options.file}.*")))
    for policy in options.policies.split(","):
        print(f"{policy:14} first  {_speed(nodes, pods, policy, 42)}")
        for seed in range(43, 43 + options.runs):
            print(f"{policy:14} again  {_speed(nodes, pods, policy, seed)}")
        print(f"{policy:14} {_agree(nodes, pods, policy, options.compared)}")


if __name__ == "__main__":
    main()
