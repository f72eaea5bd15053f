"""A policy's judgement of the whole cluster, per kind of request, kept up to date.

A memo, never a truth: dropping it changes no answer, only how long the answer takes. A score
depends on the state of its row and the kind of request, so only rows changed since the kind was
last asked for are scored again.
"""

import numpy as np

from gpushare.core.model import Kind, Request
from gpushare.core.policy import Policy
from gpushare.core.snapshot import Floats, Snapshot


class Ranking:
    """The matrices of one policy, at most `kinds` of them.

    Any thread may ask. Two that ask for one kind at once both compute it; either result is right
    for its own snapshot, and whichever is kept is brought up to date by its generation.
    """

    def __init__(self, policy: Policy, kinds: int = 64) -> None:
        self.policy = policy
        self._kinds = kinds
        self._memo: dict[Kind, tuple[int, Floats]] = {}

    def values(self, snapshot: Snapshot, request: Request) -> Floats:
        """float64 (N, D): what placing the request on each device is worth. Read only."""
        generation, known = self._memo.get(request.kind, (-1, None))
        if known is None or known.shape != snapshot.used.shape or generation > snapshot.generation:
            every = np.arange(len(snapshot.names))
            values = self.policy.score(snapshot, every, request)
        elif generation == snapshot.generation:
            return known
        else:
            rows = snapshot.changed_since(generation)
            values = known.copy()
            values[rows] = self.policy.score(snapshot, rows, request)
        if generation <= snapshot.generation:
            self._keep(request.kind, snapshot.generation, values)
        return values

    def _keep(self, kind: Kind, generation: int, values: Floats) -> None:
        values.flags.writeable = False
        # The kind asked for longest ago goes first; a dict keeps the order of insertion.
        self._memo.pop(kind, None)
        self._memo[kind] = (generation, values)
        # list() of a dict is one step, while an iterator would fail if another thread added a kind.
        for old in list(self._memo)[: -self._kinds]:
            self._memo.pop(old, None)
