"""Policy `auto`: its candidates are tried on the cluster as it is, and the winner ranks pods.

Knows a managed resource and a function that runs a trial (see core/trial.py), which takes seconds:
it is called in the thread of the policy refresher. When a trial is due by the pods that have come,
core/workload_estimator.py says; here each is followed by a rest, so that trials take a fiftieth of
a core at most.
"""

import logging
import math
import secrets
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from gpushare.core.snapshot import Snapshot
from gpushare.core.trial import AUTO, FALLBACK_POLICY, Trial
from gpushare.core.workload import Workload
from gpushare.extender.managed_resources import ManagedResource
from gpushare.logline import Line

log = logging.getLogger("gpushare.learning")

Try = Callable[[Sequence[str], Workload, Snapshot, int], Trial | None]
"""Returns what the policies of these names allocate; raises if the trial fails."""

REST = 50.0
"""How many times as long as a trial took none follows."""
SHORTEST_REST = 60.0
"""Seconds without a trial after one; there may have been nothing to allocate, and nodes be on their
way."""
_MOST_FAILURES = 3
"""Failures of a candidate in a row; then it is not tried any more: each may cost minutes."""


class PolicyTrials:
    """The trials of one resource."""

    def __init__(
        self, managed: ManagedResource, try_policies: Try, wall: Callable[[], float] = time.time
    ) -> None:
        self._managed = managed
        self._try = try_policies
        self._wall = wall
        self._again_at = -math.inf
        self._failures: Counter[str] = Counter()
        self._told_failed = False
        self.completed = self.failed = 0

    def may_run(self, now: float) -> bool:
        """Return whether a trial may be run now."""
        wanted = self._managed.default_policy == AUTO and bool(self._candidates())
        return wanted and now >= self._again_at

    def run(self, workload: Workload, clock: Callable[[], float]) -> str:
        """Run a trial; return the policy that is to rank: the same as before if it fails."""
        began = clock()
        try:
            return self._run(workload)
        finally:
            ended = clock()
            self._again_at = ended + max(REST * (ended - began), SHORTEST_REST)

    def _run(self, workload: Workload) -> str:
        managed, resource = self._managed, self._managed.names.resource
        snapshot = managed.ledger.snapshot()
        try:
            trial = self._try(self._candidates(), workload, snapshot, secrets.randbits(32))
        except Exception as error:  # it starts a process, and more may go wrong
            level = logging.DEBUG if self._told_failed else logging.WARNING
            self._told_failed = True
            self.failed += 1
            values = {"resource": resource, "error": f"{type(error).__name__}: {error}"}
            log.log(
                level, Line("policies could not be tried", ranks=managed.ranking_policy, **values)
            )
            return managed.ranking_policy
        if trial is None:
            return managed.ranking_policy
        self._note_failed(trial.failed)
        if not trial.allocated:
            return managed.ranking_policy
        before, choice = managed.ranking_policy, trial.choice(managed.choice, self._wall())
        managed.choice = choice
        self.completed += 1  # after the choice: a reader that sees the count sees the figures too
        figures = {name: round(allocated, 1) for name, allocated in choice.allocated.items()}
        if choice.second:
            figures |= {"lead": round(choice.lead, 1), "error": round(choice.error, 1)}
        text = "policies tried" if choice.policy == before else "policies tried, another one ranks"
        log.info(Line(text, resource=resource, ranks=choice.policy, before=before, **figures))
        return choice.policy

    def settle(self) -> None:
        """Put the ranking of the winner, which may be a new one, in the place of `auto`."""
        rankings, choice = self._managed.rankings, self._managed.choice
        winner = rankings.get(choice.policy if choice else FALLBACK_POLICY)
        if AUTO in rankings and winner is not None:
            rankings[AUTO] = winner

    def _candidates(self) -> tuple[str, ...]:
        return tuple(
            name for name in self._managed.candidates if self._failures[name] < _MOST_FAILURES
        )

    def _note_failed(self, failed: Mapping[str, str]) -> None:
        """Count failures in a row; warn of a candidate's first one and of its last one."""
        for name in self._candidates():
            self._failures[name] = self._failures[name] + 1 if name in failed else 0
        self.failed += len(failed)
        for name, why in failed.items():
            times = self._failures[name]
            text = "a candidate is left out of a trial"
            if times >= _MOST_FAILURES:
                text = f"a candidate has failed {times} times in a row and is not tried any more"
            level = logging.WARNING if times in (1, _MOST_FAILURES) else logging.DEBUG
            log.log(
                level, Line(text, resource=self._managed.names.resource, policy=name, error=why)
            )
