"""The cost of learning in a changing world, and the influence of other tenants.

    python -m tests.bench.placement_learning [--seeds 42-45] [--policies auto,shadow-price]
        [--worlds shift,restart,bought-1,bought-3,bought-5]

Sixteen nodes of four equal cards; pods come at random, a load of 1, and stay for random times; no
policy knows them. Printed is what the policy allocates above `device-bestfit` in the mean of time,
in points, with the standard error over the seeds; and above itself in the world without that harm.

shift: after four mean lifetimes new pods come; the measure is of the time after. restart: the
extender forgets all but the pods that run, every half lifetime. bought-K: of ten namespaces K hold
a tenth of the running pods each, as their quota allows, and create and delete pods of unique
shapes, ten for each honest pod; only the effect on the policy's expectation is counted, not the
room of these pods.
"""

import argparse
from collections.abc import Sequence

import numpy as np

from gpushare.core.model import Request
from gpushare.core.mutable_cluster import Placement
from gpushare.core.snapshot import Bools
from gpushare.core.workload import PodClass
from gpushare.sim.engine import Cluster
from gpushare.sim.experiments import node_order
from gpushare.sim.flow import Arrivals, Flow
from gpushare.sim.options import seeds, words
from gpushare.sim.report import aligned
from gpushare.sim.scorers import LearningScorer
from gpushare.trace.nodes_and_pods import TraceNode
from tests.bench.placement_family import mean_and_error

CHANGE, END = 4.0, 8.0
RESTART_EVERY = 0.5
NAMESPACES = 10
NODES = [TraceNode(f"n-{at}", 128_000, 2**20, 4, 16, "card") for at in range(16)]
DAY = {(1, 2): 0.45, (1, 4): 0.25, (1, 8): 0.2, (1, 16): 0.07, (2, 16): 0.03}
NIGHT = {(1, 6): 0.4, (1, 10): 0.3, (1, 16): 0.15, (4, 16): 0.15}
ODD = [PodClass(1000 * number, 1 + number, 4) for number in range(16)]


class LearningWorld(Cluster):
    """A cluster that records the allocation when a pod comes, and the events of the learner."""

    def __init__(self, name: str, learner: "WatchedLearner", seed: int) -> None:
        super().__init__(node_order(NODES, seed), learner, learner.moved)
        self.learner, self.found = learner, list[tuple[float, int]]()
        self._rng = np.random.default_rng(seed + 10**6)
        self._restarts = RESTART_EVERY if name == "restart" else np.inf
        self._buyers = int(name.removeprefix("bought-")) if name.startswith("bought") else 0

    def place(self, request: Request, among: Bools | None = None) -> Placement | None:
        learner = self.learner
        self.found.append((learner.now, self.allocated))
        if learner.now >= self._restarts:
            self._restarts += RESTART_EVERY
            learner.restart()
        honest = NAMESPACES - self._buyers
        learner.others_hold = {
            f"buyer-{number}": self.allocated // honest for number in range(self._buyers)
        }
        for number in range(self._buyers):
            for at in self._rng.integers(len(ODD), size=10).tolist():
                learner.created(f"buyer-{number}", ODD[at])
        learner.namespace = f"team-{self._rng.integers(honest)}"
        return super().place(request, among)


class WatchedLearner(LearningScorer):
    """A learner that sees pods that are not placed here."""

    others_hold: dict[str, int] = {}  # noqa: RUF012 -- replaced, never changed

    def created(self, namespace: str, cls: PodClass) -> None:
        self._learned.created(namespace, cls)

    def _held(self) -> dict[str, int]:
        return {**super()._held(), **self.others_hold}


def allocated(name: str, policy: str, seed: int) -> float:
    """The share of the memory that is allocated in the mean of time, in %."""
    rng = np.random.default_rng(seed)
    capacity = sum(node.devices * node.capacity for node in NODES)
    kinds: list[Request] = []
    times, which = [], []
    parts = ((DAY, 0.0, CHANGE), (NIGHT if name == "shift" else DAY, CHANGE, END))
    for mixture, start, end in parts:
        requests = [Request(units, devices, 1000 * devices, 2**30) for devices, units in mixture]
        shares = np.array(list(mixture.values()))
        mean = float((shares * [request.total for request in requests]).sum())
        came = np.sort(rng.uniform(start, end, rng.poisson(capacity / mean * (end - start))))
        which.append(len(kinds) + rng.choice(len(requests), len(came), p=shares))
        kinds += requests
        times.append(came)
    all_times = np.concatenate(times)
    stream = Arrivals(
        tuple(kinds), all_times, np.concatenate(which), rng.exponential(1, len(all_times))
    )
    learner = WatchedLearner(policy, {16: 64}, len(NODES))
    world = LearningWorld(name, learner, seed)

    def pass_to(time: float) -> None:
        learner.now = time

    Flow(world, 0.0, END, False, pass_to).run(stream)
    since = CHANGE if name == "shift" else 1.0
    return 100 * float(np.mean([held for now, held in world.found if now >= since])) / capacity


def row(name: str, policy: str, chosen: Sequence[int]) -> list[str]:
    """One line of the table."""
    shares = [allocated(name, policy, seed) for seed in chosen]
    simple = [allocated(name, "device-bestfit", seed) for seed in chosen]
    quiet = [allocated("quiet", policy, seed) for seed in chosen]
    cells = [name, policy]
    for opponents in (simple, quiet):
        mean, error = mean_and_error(
            [one - two for one, two in zip(shares, opponents, strict=True)]
        )
        cells += [f"{mean:+.2f}", f"{error:.2f}"]
    return cells[:4] if name == "shift" else cells


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=seeds, default=(42, 43, 44, 45))
    parser.add_argument("--policies", type=words, default=("auto", "shadow-price"))
    parser.add_argument(
        "--worlds", type=words, default=("shift", "restart", "bought-1", "bought-3", "bought-5")
    )
    options = parser.parse_args()
    table = [["world", "policy", "above device-bestfit", "error", "above no harm", "error"]]
    table += [
        row(name, policy, options.seeds) for name in options.worlds for policy in options.policies
    ]
    width = max(map(len, table))
    print(aligned([line + [""] * (width - len(line)) for line in table]), end="")


if __name__ == "__main__":
    main()
