"""A judge that judges, whatever becomes of the policy that was wished for.

A policy may be code of anybody: it may raise, or return what is no number. A pod must be placed all
the same, so the next policy is asked.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from gpushare.core.model import Request
from gpushare.core.ranking import Judge, Judgement
from gpushare.core.snapshot import Floats, Rows, Snapshot


class Indifferent:
    """A policy that prefers nothing, and so cannot fail."""

    def score(self, snapshot: Snapshot, rows: Rows, request: Request) -> Floats:
        """float64 (K, D): zeros."""
        return np.zeros((len(rows), snapshot.capacity.shape[1]))


@dataclass(frozen=True, slots=True)
class Guarded:
    """Judge by the first of the judges that does not fail.

    judges: by name, the one wished for first; the last must not fail. failed: told of each failure,
    by the name; from any thread.
    """

    judges: Sequence[tuple[str, Judge]]
    failed: Callable[[str, Judge, BaseException], None]

    def judged(self, snapshot: Snapshot, request: Request) -> Judgement:
        """What placing the request on each row is worth."""
        for name, judge in self.judges[:-1]:
            try:
                judgement = judge.judged(snapshot, request)
                if np.isnan(judgement.by_state.max(initial=-np.inf)):
                    raise ValueError("its score is not a number (NaN)")
            except (Exception, SystemExit) as error:  # a policy may raise whatever it likes
                self.failed(name, judge, error)
            else:
                return judgement
        return self.judges[-1][1].judged(snapshot, request)

    def at(self, snapshot: Snapshot, rows: Rows, request: Request) -> Floats:
        """float64 (K, D): the same for each device of these rows, whether it fits or not."""
        shape = (len(rows), snapshot.capacity.shape[1])
        for name, judge in self.judges[:-1]:
            try:
                return np.broadcast_to(judge.at(snapshot, rows, request), shape).astype(float)
            except (Exception, SystemExit) as error:  # a policy may raise whatever it likes
                self.failed(name, judge, error)
        return self.judges[-1][1].at(snapshot, rows, request)
