"""Policy `auto`: its candidates are tried on the cluster as it is, and the one that wins ranks.

Knows the books and a function that runs a trial (see core/trial.py), which takes seconds: it is
called in the thread that has policies made. There is a trial as soon as enough pods have been seen,
and an hour after each; so the policy changes once an hour at most, and trials take less than a
hundredth of a core.
"""

import logging
import math
import secrets
import statistics
from collections.abc import Callable, Sequence

from gpushare.core.snapshot import Snapshot
from gpushare.core.trial import AUTO, FEWEST_SEEN, SAFE, Trial
from gpushare.core.workload import Workload
from gpushare.daemon.logs.formatters import Line
from gpushare.extender.managed_resources import ManagedResource

log = logging.getLogger("gpushare.learning")

Try = Callable[[Sequence[str], Workload, Snapshot, int], Trial | None]
"""What the policies of these names allocate; raises where it cannot be found out."""

TRIAL_SPACING = 3600.0
"""Seconds from one trial to the next."""
_NOTHING_SPACING = 300.0
"""The same where there was nothing to allocate: nodes may be on their way."""


class PolicyTrials:
    """The trials of one resource."""

    def __init__(self, books: ManagedResource, try_policies: Try) -> None:
        self._books = books
        self._try = try_policies
        self._winner = ""
        self._again_at = -math.inf
        self.made = self.failed = 0

    def is_due(self, seen: int, now: float) -> bool:
        """Return whether a trial is due after so many pods."""
        books = self._books
        wanted = books.default_policy == AUTO and bool(books.candidates)
        return wanted and seen >= FEWEST_SEEN and now >= self._again_at

    def run(self, workload: Workload, now: float) -> str:
        """Return the policy that is to rank after a trial; the same as before where it fails."""
        self._again_at = now + TRIAL_SPACING
        books, resource = self._books, self._books.names.resource
        snapshot = books.ledger.snapshot()
        try:
            trial = self._try(books.candidates, workload, snapshot, secrets.randbits(32))
        except Exception as error:  # it runs policies of anybody
            level = logging.DEBUG if self.failed else logging.WARNING
            self.failed += 1
            said = {"resource": resource, "error": f"{type(error).__name__}: {error}"}
            log.log(level, Line("policies could not be tried", ranks=books.ranking_policy, **said))
            return books.ranking_policy
        if trial is None:
            self._again_at = now + _NOTHING_SPACING
            return books.ranking_policy
        self.made += 1
        before, self._winner = books.ranking_policy, trial.winner(self._winner)
        for name, allocated in trial.allocated.items():
            books.tried[name] = statistics.fmean(allocated), statistics.fmean(trial.refused[name])
        told = {name: round(allocated, 1) for name, (allocated, _) in books.tried.items()}
        text = "policies tried" if self._winner == before else "policies tried, another one ranks"
        log.info(Line(text, resource=resource, ranks=self._winner, before=before, **told))
        return self._winner

    def settle(self) -> None:
        """Put the ranking of the winner, made anew perhaps, in the place of `auto`."""
        rankings = self._books.rankings
        winner = rankings.get(self._winner or SAFE)
        if AUTO in rankings and winner is not None:
            rankings[AUTO] = winner
