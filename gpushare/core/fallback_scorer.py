"""A scorer with fallbacks, for policies that fail.

A policy may be anybody's code: it may raise, or return NaN. The pod must still be placed, so the
next scorer is used.

Tested in `tests/integration/test_broken_policies.py`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from gpushare.core.model import Request
from gpushare.core.ranking import Scorer, Scores
from gpushare.core.snapshot import Floats, Rows, Snapshot


class NoPreference:
    """A policy without preferences, which cannot fail."""

    def score(self, snapshot: Snapshot, rows: Rows, request: Request) -> Floats:
        """Return float64 (K, D): zeros."""
        return np.zeros((len(rows), snapshot.capacity.shape[1]))


@dataclass(frozen=True, slots=True)
class FallbackScorer:
    """A scorer that uses the first of several scorers that does not fail.

    `scorers`: by name, the preferred one first; the last must not fail. `failed` is called with
    each failure and the scorer's name, by any thread.
    """

    scorers: Sequence[tuple[str, Scorer]]
    failed: Callable[[str, Scorer, BaseException], None]

    def scores(self, snapshot: Snapshot, request: Request) -> Scores:
        """Return what placing the request on each row is worth."""
        for name, scorer in self.scorers[:-1]:
            try:
                scores = scorer.scores(snapshot, request)
                if np.isnan(scores.by_state.max(initial=-np.inf)):
                    raise ValueError("its score is not a number (NaN)")
            except (Exception, SystemExit) as error:  # a policy may raise whatever it likes
                self.failed(name, scorer, error)
            else:
                return scores
        return self.scorers[-1][1].scores(snapshot, request)

    def score_devices(self, snapshot: Snapshot, rows: Rows, request: Request) -> Floats:
        """Return float64 (K, D): the same for each device of these rows, whether it fits or not."""
        shape = (len(rows), snapshot.capacity.shape[1])
        for name, scorer in self.scorers[:-1]:
            try:
                values = scorer.score_devices(snapshot, rows, request)
                return np.broadcast_to(values, shape).astype(float)
            except (Exception, SystemExit) as error:  # a policy may raise whatever it likes
                self.failed(name, scorer, error)
        return self.scorers[-1][1].score_devices(snapshot, rows, request)

    def best_device(self, snapshot: Snapshot, row: int, request: Request) -> int | None:
        """Return the best single device of a row that the first scorer remembers; None if none."""
        name, scorer = self.scorers[0]
        try:
            return scorer.best_device(snapshot, row, request)
        except (Exception, SystemExit) as error:  # a policy may raise whatever it likes
            self.failed(name, scorer, error)
            return None
