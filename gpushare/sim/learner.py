"""A scorer that knows only the pods that have come so far, as the extender does.

It learns, and has its trials, by the same rule (core/workload_estimator.py). But what is due is
done at once: the extender makes policies once a minute at most, and rests after a trial.
"""

import pickle
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache

from gpushare.core.model import Request
from gpushare.core.mutable_cluster import Placement, ranking
from gpushare.core.policy import load_policy
from gpushare.core.ranking import Ranking, Scores
from gpushare.core.snapshot import Floats, Rows, Snapshot
from gpushare.core.trial import AUTO, CANDIDATES, FALLBACK_POLICY, Choice, run_trial
from gpushare.core.workload import Capacities, PodClass, Workload, class_of
from gpushare.core.workload_estimator import WorkloadEstimator
from gpushare.sim.engine import empty
from gpushare.sim.scorers import KeepsNothing
from gpushare.trace.nodes_and_pods import TraceNode

KNOWN, LEARNED = "known", "learned"
"""Which pods a policy knows: all of the file, or only those that have come."""


_SEED = 0
"""The seed of all trials: the choice is a property of the cluster, not of the run."""


@lru_cache(maxsize=16)  # for the other seeds
def learns(policy: str, workload: Workload) -> bool:
    """Return whether the policy is another one if it knows the pods; simple policies are not.

    Raises SettingsError if there is no such policy.
    """
    if policy == AUTO:
        return True
    policies = [load_policy(policy, expected) for expected in (Workload(), workload)]
    try:
        one, other = map(pickle.dumps, policies)
    except Exception:  # another package's policy may hold what cannot be sent
        return True
    return one != other


@lru_cache(maxsize=16)  # for the other seeds
def chosen(nodes: tuple[TraceNode, ...], workload: Workload) -> Choice | None:
    """Return what `auto` is on these empty nodes if it knows the pods.

    None if nothing can be allocated.
    """
    trial = run_trial(empty(nodes), workload, CANDIDATES, _SEED, make_scorer=ranking)
    return trial.choice(None, 0) if trial else None


class LearningScorer(KeepsNothing):
    """A Scorer by the policy of that name, which is made again as pods come.

    before: the classes of pods that had come before it began, oldest first.
    """

    def __init__(
        self, name: str, capacities: Capacities, nodes: int, before: Iterable[PodClass] = ()
    ) -> None:
        self._name, self._nodes = name, nodes
        self._learned = WorkloadEstimator(Counter(capacities))
        self.namespace = ""
        """In which the pods come that are placed next."""
        self.now = 0.0
        """Time, in any unit."""
        self.choices: list[Choice] = []
        """Of `auto`, one for each trial."""
        self._placed: dict[int, tuple[str, PodClass, float]] = {}
        for cls in before:
            self._learned.created("", cls)
        self.ranking = self._new_ranking()
        """What it ranks by now; it learns nothing from what that is asked."""

    def scores(self, snapshot: Snapshot, request: Request) -> Scores:
        """Return the value of placing the request on each row; called once for each new pod."""
        learned = self._learned
        if self._name == AUTO and learned.is_trial_due():
            workload, seen = self._workload(), learned.seen
            trial = run_trial(snapshot, workload, CANDIDATES, seen, make_scorer=ranking)
            learned.tried()
            if trial is not None:
                before = self.choices[-1] if self.choices else None
                self.choices.append(trial.choice(before, learned.seen))
                if self.choices[-1].policy != (before.policy if before else FALLBACK_POLICY):
                    self.ranking = self._new_ranking()
        if learned.is_due():
            self.ranking = self._new_ranking()
        learned.created(self.namespace, class_of(request))
        return self.ranking.scores(snapshot, request)

    def moved(self, placement: Placement, by: int) -> None:
        """Count that a pod has been placed (by: 1), or has left (-1)."""
        if by > 0:
            cls = class_of(placement.request)
            self._placed[id(placement)] = self.namespace, cls, self.now
            self._learned.came(self.namespace, cls, self.now)
        else:
            self._learned.went(*self._placed.pop(id(placement)), self.now)

    def restart(self) -> None:
        """Forget all but the pods that are there, as a process does that begins anew."""
        self._learned = WorkloadEstimator(self._learned.devices)
        self._learned.adopt(self._placed.values(), self.now)
        self.choices = []
        self.ranking = self._new_ranking()

    def score_devices(self, snapshot: Snapshot, rows: Rows, request: Request) -> Floats:
        """Return float64 (K, D): the score of each device of these rows, whether it fits or not."""
        return self.ranking.score_devices(snapshot, rows, request)

    def _new_ranking(self) -> Ranking:
        learned, name = self._learned, self._name
        if name == AUTO:
            name = self.choices[-1].policy if self.choices else FALLBACK_POLICY
        policy = load_policy(name, self._workload())
        learned.policies_made(learned.seen, learned.sizes)
        return ranking(policy, self._nodes)

    def _workload(self) -> Workload:
        self._learned.held = self._held()
        return self._learned.workload(self.now)

    def _held(self) -> dict[str, int]:
        held = Counter[str]()
        for namespace, cls, _ in self._placed.values():
            held[namespace] += cls.total
        return held
