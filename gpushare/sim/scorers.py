"""The scorers of simulations: baseline policies, and a scorer that learns like the extender.

The baselines cannot be used in the extender: answers there must not depend on earlier calls or on
chance, and first-fit is the behaviour of kube-scheduler without gpushare. The learning scorer
remakes and tries policies by the extender's rule (core/workload_estimator.py), but without delay:
the extender makes policies once a minute at most, and rests after a trial.

Tested in `tests/unit/sim/test_experiments.py`, `tests/unit/sim/test_first_fit_scorer.py` and
`tests/unit/sim/test_scorers_learner.py`.
"""

import pickle
from collections import Counter
from collections.abc import Callable, Mapping
from functools import lru_cache, partial

import numpy as np

from gpushare.core.model import ANY_NEIGHBOURS, Request
from gpushare.core.mutable_cluster import Placement, fits, ranking
from gpushare.core.policy import load_policy
from gpushare.core.ranking import Ranking, Scorer, Scores
from gpushare.core.snapshot import Floats, Ints, Rows, Snapshot
from gpushare.core.trial import AUTO, CANDIDATES, FALLBACK_POLICY, Choice, run_trial
from gpushare.core.workload import Capacities, PodClass, Workload, class_of
from gpushare.core.workload_estimator import WorkloadEstimator
from gpushare.sim.engine import empty
from gpushare.trace.nodes_and_pods import TraceNode

RANDOM, FIRST_FIT, PACKED_FIT = "random", "first-fit", "first-fit-packed"
"""The names of the policies that only simulations have."""

_MAX_NODE_SCORE = 100
"""kube-scheduler's MaxNodeScore."""

_UNASKED_CPU, _UNASKED_MEMORY = 100, 200 * 2**20
"""The amounts that LeastAllocated counts for a pod without requests, in milli and bytes."""

_SEED = 0
"""The seed of all trials: the choice is a property of the cluster, not of the run."""


class KeepsNothing:
    """A scorer without a cache of best devices."""

    def best_device(self, _snapshot: Snapshot, _row: int, _request: Request) -> int | None:
        """Return None: the caller has to score the devices."""
        return None


class RandomScorer(KeepsNothing):
    """A random node that fits, then a random device that fits, by a seeded generator.

    The scores differ at each call.
    """

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def scores(self, snapshot: Snapshot, request: Request) -> Scores:
        """Return a random score for each node that the request fits."""
        mask = fits(snapshot, np.arange(len(snapshot.names)), request)
        values = np.where(mask.any(axis=1), self._rng.random(len(mask)), -np.inf)
        devices = np.where(mask, self._rng.random(mask.shape), -1).argmax(axis=1)
        return Scores(values, values[None], devices[None].astype(np.int16))

    def score_devices(self, snapshot: Snapshot, rows: Rows, _request: Request) -> Floats:
        """Return a random score for each device."""
        return self._rng.random((len(rows), snapshot.used.shape[1]))


class FirstFitScorer(KeepsNothing):
    """The placement by kube-scheduler alone, for claims of Dynamic Resource Allocation.

    On a node kube-scheduler allocates the first devices that fit, in the order of the driver's
    slice. kube-scheduler ranks nodes by its default scores, LeastAllocated and BalancedAllocation,
    which count CPU and memory but no cards; packs: with MostAllocated instead of LeastAllocated, as
    an operator may configure. Pods without GPU are placed by the same scores. All nodes are scored;
    ties are broken by a seeded generator. Written from the behaviour of kube-scheduler 1.36 and
    1.37.
    """

    def __init__(self, seed: int, *, packs: bool = False) -> None:
        self._rng = np.random.default_rng(seed)
        self._packs = packs

    def scores(self, snapshot: Snapshot, request: Request) -> Scores:
        """Return kube-scheduler's score of each node that the request fits."""
        rows = np.arange(len(snapshot.names))
        mask = fits(snapshot, rows, request)
        points = node_scores(snapshot, rows, request, packs=self._packs)
        values = np.where(mask.any(axis=1), points + self._rng.random(len(rows)), -np.inf)
        return Scores(values, values[None], mask.argmax(axis=1)[None].astype(np.int16))

    def score_devices(self, snapshot: Snapshot, rows: Rows, _request: Request) -> Floats:
        """Return a score that falls with the index: the first device is the best."""
        shape = len(rows), snapshot.used.shape[1]
        return np.broadcast_to(-np.arange(shape[1], dtype=np.float64), shape)


def node_scores(snapshot: Snapshot, rows: Rows, request: Request, *, packs: bool) -> Ints:
    """Return int64 (K,): the sum of the two default scores that differ between nodes."""
    fit: Ints = np.zeros(len(rows), dtype=np.int64)
    in_use = []
    for capacity, free, requested, default_request in (
        (snapshot.cpu_capacity[rows], snapshot.cpu_free[rows], request.cpu, _UNASKED_CPU),
        (
            snapshot.memory_capacity[rows],
            snapshot.memory_free[rows],
            request.memory,
            _UNASKED_MEMORY,
        ),
    ):
        whole = np.maximum(capacity, 1)
        free_after = np.maximum(free - (requested or default_request), 0)
        # The free share, or with `packs` the used share, 0 to 100.
        fit += (
            (np.maximum(capacity - free_after, 0) if packs else free_after)
            * _MAX_NODE_SCORE
            // whole
        )
        # The share in use, 0 to 1, before and after.
        in_use.append([1 - np.clip((free - amount) / whole, 0, 1) for amount in (0, requested)])
    # 100 if both shares are equal, less the more the shares differ.
    before, after = (
        ((1 - np.abs(cpu - memory) / 2) * _MAX_NODE_SCORE).astype(np.int64)
        for cpu, memory in zip(*in_use, strict=True)
    )
    half = _MAX_NODE_SCORE // 2
    # Go's division rounds towards zero.
    balanced = half + np.trunc((half + after - before) / 2).astype(np.int64)
    scores: Ints = fit // 2 + balanced
    return scores


SIMULATED: Mapping[str, Callable[[int], Scorer]] = {
    RANDOM: RandomScorer,
    FIRST_FIT: FirstFitScorer,
    PACKED_FIT: partial(FirstFitScorer, packs=True),
}
"""Name -> function that makes the scorer from a seed."""


@lru_cache(maxsize=16)  # for the other seeds
def learns(policy: str, workload: Workload) -> bool:
    """Return whether the policy depends on the workload; simple policies do not.

    Raises SettingsError if there is no such policy.
    """
    if policy == AUTO:
        return True
    policies = [load_policy(policy, expected) for expected in (Workload(), workload)]
    try:
        one, two = map(pickle.dumps, policies)
    except Exception:  # the policy of another package may hold objects that cannot be pickled
        return True
    return one != two


@lru_cache(maxsize=16)  # for the other seeds
def chosen(
    nodes: tuple[TraceNode, ...], workload: Workload, neighbours: int = ANY_NEIGHBOURS
) -> Choice | None:
    """Return the choice of `auto` on these empty nodes for a known workload.

    neighbours: the limit of neighbours. None if nothing can be allocated.
    """
    trial = run_trial(empty(nodes), workload, CANDIDATES, _SEED, neighbours=neighbours)
    return trial.choice(None, 0) if trial else None


class LearningScorer(KeepsNothing):
    """A Scorer by a policy that is remade as pods come. All pods are of one namespace, ""."""

    def __init__(
        self, name: str, capacities: Capacities, nodes: int, *, neighbours: int = ANY_NEIGHBOURS
    ) -> None:
        self._name, self._nodes, self._neighbours = name, nodes, neighbours
        self._learned = WorkloadEstimator(Counter(capacities))
        self.now = 0.0
        """Time, in any unit."""
        self.choices: list[Choice] = []
        """The choices of `auto`, one for each trial."""
        self._placed: dict[int, tuple[PodClass, float]] = {}
        self.ranking = self._new_ranking()
        """The current ranking; calls of the ranking itself teach the scorer nothing."""

    def scores(self, snapshot: Snapshot, request: Request) -> Scores:
        """Return the value of placing the request on each row; to be called once per new pod."""
        learned = self._learned
        if self._name == AUTO and learned.is_trial_due():
            workload, pod_count = self._workload(), learned.pod_count
            trial = run_trial(
                snapshot, workload, CANDIDATES, pod_count, neighbours=self._neighbours
            )
            learned.record_trial()
            if trial is not None:
                before = self.choices[-1] if self.choices else None
                self.choices.append(trial.choice(before, learned.pod_count))
                if self.choices[-1].policy != (before.policy if before else FALLBACK_POLICY):
                    self.ranking = self._new_ranking()
        if learned.is_due():
            self.ranking = self._new_ranking()
        learned.created("", class_of(request))
        return self.ranking.scores(snapshot, request)

    def moved(self, placement: Placement, by: int) -> None:
        """Count a pod that was placed (by: 1) or has left (by: -1)."""
        if by > 0:
            cls = class_of(placement.request)
            self._placed[id(placement)] = cls, self.now
            self._learned.came("", cls, self.now)
        else:
            self._learned.went("", *self._placed.pop(id(placement)), self.now)

    def score_devices(self, snapshot: Snapshot, rows: Rows, request: Request) -> Floats:
        """Return float64 (K, D): the score of each device of these rows, fitting or not."""
        return self.ranking.score_devices(snapshot, rows, request)

    def _new_ranking(self) -> Ranking:
        learned, name = self._learned, self._name
        if name == AUTO:
            name = self.choices[-1].policy if self.choices else FALLBACK_POLICY
        policy = load_policy(name, self._workload())
        learned.record_policies(learned.pod_count, learned.sizes)
        return ranking(policy, self._nodes, self._neighbours)

    def _workload(self) -> Workload:
        self._learned.held_units = {"": sum(cls.total for cls, _ in self._placed.values())}
        return self._learned.workload(self.now)
