"""A scorer that knows only the pods that have come so far, as the extender does.

It learns by the same rule (core/workload_estimator.py), but a policy is made at once, and not at
most once a minute: simulated pods have no clock. For the same reason `auto` has a trial whenever
twice as many pods have come, not every hour.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache

from gpushare.core.model import Request
from gpushare.core.policy import load_policy
from gpushare.core.ranking import Ranking, Scores
from gpushare.core.snapshot import Floats, Rows, Snapshot
from gpushare.core.trial import AUTO, CANDIDATES, FEWEST_SEEN, Choice, run_trial
from gpushare.core.workload import Arrivals, Capacities, PodClass, Workload, class_of
from gpushare.core.workload_estimator import WorkloadEstimator
from gpushare.sim.engine import empty, ranking
from gpushare.sim.trace import TraceNode

KNOWN, LEARNED = "known", "learned"
"""Which pods a policy knows: all of the file, or only those that have come."""


_SEED = 0
"""The seed of all trials: the choice is a property of the cluster, not of the run."""


def chosen(nodes: Sequence[TraceNode], workload: Workload) -> Choice | None:
    """Return what `auto` is on these empty nodes if it knows the pods.

    None if nothing can be allocated.
    """
    return _chosen(tuple(nodes), workload)


@lru_cache(maxsize=16)  # for the other seeds
def _chosen(nodes: tuple[TraceNode, ...], workload: Workload) -> Choice | None:
    trial = run_trial(empty(nodes), workload, CANDIDATES, _SEED, make_scorer=ranking)
    return trial.choice(None, 0) if trial else None


class LearningScorer:
    """A Scorer by the policy of that name, which is made again as pods come.

    before: the pods that had come before it began, oldest first. choices: of `auto`, one for each
    trial.
    """

    def __init__(
        self, name: str, capacities: Capacities, nodes: int, before: Iterable[PodClass] = ()
    ) -> None:
        self._name, self._nodes = name, nodes
        self._learned = WorkloadEstimator(Arrivals(before), Counter(capacities))
        self.choices: list[Choice] = []
        self._tried_at = 0
        self._ranking = self._made()

    def scores(self, snapshot: Snapshot, request: Request) -> Scores:
        """Return the value of placing the request on each row; called once for each new pod."""
        if self._learned.is_due():
            self._choose(snapshot)
            self._ranking = self._made()
        self._learned.arrivals.observe(class_of(request))
        return self._ranking.scores(snapshot, request)

    def moved(self, by: int) -> None:
        """Count that a pod has been placed (by: 1), or has left (-1)."""
        self._learned.arrivals.moved(by)

    def score_devices(self, snapshot: Snapshot, rows: Rows, request: Request) -> Floats:
        """Return float64 (K, D): the score of each device of these rows, whether it fits or not."""
        return self._ranking.score_devices(snapshot, rows, request)

    def best_device(self, _snapshot: Snapshot, _row: int, _request: Request) -> int | None:
        """Return None: nothing is kept."""
        return None

    def _choose(self, snapshot: Snapshot) -> None:
        seen = self._learned.arrivals.seen
        if self._name != AUTO or seen < max(FEWEST_SEEN, 2 * self._tried_at):
            return
        self._tried_at = seen
        trial = run_trial(
            snapshot, self._learned.workload(), CANDIDATES, _SEED, make_scorer=ranking
        )
        if trial is not None:
            self.choices.append(trial.choice(self.choices[-1] if self.choices else None, seen))

    def _made(self) -> Ranking:
        learned = self._learned
        name = self.choices[-1].policy if self.choices else self._name
        policy = load_policy(name, learned.workload())
        learned.made(learned.arrivals.seen, learned.sizes)
        return ranking(policy, self._nodes)
