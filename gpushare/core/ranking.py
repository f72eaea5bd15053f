"""A policy's judgement of the whole cluster, per kind of request, kept up to date.

A memo, never a truth: dropping it changes no answer, only how long the answer takes. A score
depends on the state of its row and the kind of request, so only rows changed since the kind was
last asked for are scored again; so with what a row offers and what a placement takes from it, of
which a policy makes its prices (see `Pressing`). The prices themselves are never remembered.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from gpushare.core.model import Kind, Request
from gpushare.core.policy import Policy, Pressing, Stakes
from gpushare.core.snapshot import Bools, Floats, Ints, Rows, Snapshot

Matrix = TypeVar("Matrix", bound=npt.NDArray[Any])

Fits = Callable[[Snapshot, Rows, Request], Bools]
"""bool (K, D): where the request fits, for the given rows, by the state of each row alone."""


def fits_devices(snapshot: Snapshot, rows: Rows, request: Request) -> Bools:
    """bool (K, D): devices with room for the request's units, on rows with enough of them."""
    mask: Bools = snapshot.free[rows] >= max(request.units, 1)
    if request.devices > 1:
        mask &= mask.sum(axis=1, keepdims=True) >= request.devices
    return mask


NO_STAKES: Stakes = np.zeros((0, 0), dtype=np.int8)


@dataclass(frozen=True, slots=True)
class _Known:
    """What is remembered of a kind: true for this generation, and never changed."""

    generation: int
    scores: Floats
    stakes: Stakes


@dataclass(frozen=True, slots=True)
class _Goods:
    """What each row offers, and the sums by group: true for this generation, and never changed."""

    generation: int
    group: object
    offers: Ints
    sums: Ints


class Ranking:
    """The matrices of one policy, at most `kinds` of them.

    Any thread may ask. Two that ask for one kind at once both compute it; either result is right
    for its own snapshot, and whichever is kept is brought up to date by its generation.
    """

    def __init__(self, policy: Policy, kinds: int = 64, fits: Fits = fits_devices) -> None:
        self.policy = policy
        self._pressing = policy if isinstance(policy, Pressing) else None
        self._kinds = kinds
        self._fits = fits
        self._memo: dict[Kind, _Known] = {}
        self._goods: _Goods | None = None

    @property
    def asked(self) -> tuple[Kind, ...]:
        """The kinds remembered, the one asked for last at the end."""
        return tuple(self._memo)

    def values(self, snapshot: Snapshot, request: Request) -> Floats:
        """float64 (N, D): what placing the request on each device is worth; -inf where it does not
        fit. Read only.
        """
        known = self._known(snapshot, request)
        if self._pressing is None:
            return known.scores
        every = np.arange(len(snapshot.names))
        goods = self._sums(self._pressing, snapshot)
        pressure = self._pressing.pressure(snapshot, every, request, known.stakes, goods)
        return known.scores + pressure

    def at(self, snapshot: Snapshot, rows: Rows, request: Request) -> Floats:
        """float64 (K, D): the same for these rows, worked out anew, whether it fits or not."""
        scores = self.policy.score(snapshot, rows, request)
        if self._pressing is None:
            return scores
        stakes = self._pressing.stakes(snapshot, rows, request)
        goods = self._sums(self._pressing, snapshot)
        return scores + self._pressing.pressure(snapshot, rows, request, stakes, goods)

    def _known(self, snapshot: Snapshot, request: Request) -> _Known:
        known = self._memo.get(request.kind)
        if known is not None and known.generation > snapshot.generation:
            return self._judged(snapshot, np.arange(len(snapshot.names)), request)
        if known is None or known.scores.shape != snapshot.used.shape:
            known = self._judged(snapshot, np.arange(len(snapshot.names)), request)
        elif known.generation != snapshot.generation:
            rows = snapshot.changed_since(known.generation)
            fresh = self._judged(snapshot, rows, request)
            known = _Known(
                snapshot.generation,
                _patched(known.scores, rows, fresh.scores),
                _patched(known.stakes, rows, fresh.stakes) if self._pressing else NO_STAKES,
            )
        self._keep(request.kind, known)
        return known

    def _judged(self, snapshot: Snapshot, rows: Rows, request: Request) -> _Known:
        scores = self.policy.score(snapshot, rows, request)
        scores = np.where(self._fits(snapshot, rows, request), scores, -np.inf)
        stakes = self._pressing.stakes(snapshot, rows, request) if self._pressing else NO_STAKES
        scores.flags.writeable = False
        return _Known(snapshot.generation, scores, stakes)

    def _keep(self, kind: Kind, known: _Known) -> None:
        # The kind asked for longest ago goes first; a dict keeps the order of insertion.
        self._memo.pop(kind, None)
        self._memo[kind] = known
        if len(self._memo) > self._kinds:
            # list() of a dict is one step; an iterator would fail if another thread added a kind.
            for old in list(self._memo)[: -self._kinds]:
                self._memo.pop(old, None)

    def _sums(self, policy: Pressing, snapshot: Snapshot) -> Ints:
        """int64 (groups, X): what the nodes of each group offer together."""
        known = self._goods
        if known is not None and known.group is snapshot.group:
            if known.generation == snapshot.generation:
                return known.sums
            if known.generation < snapshot.generation:
                rows = snapshot.changed_since(known.generation)
                offers = policy.offers(snapshot, rows)
                sums = known.sums.copy()
                np.add.at(sums, snapshot.group[rows], offers - known.offers[rows])
                offers = _patched(known.offers, rows, offers)
                self._goods = _Goods(snapshot.generation, snapshot.group, offers, sums)
                return sums
        offers = policy.offers(snapshot, np.arange(len(snapshot.names)))
        sums = np.zeros((int(snapshot.group.max(initial=0)) + 1, offers.shape[1]), np.int64)
        np.add.at(sums, snapshot.group, offers)
        if known is None or known.generation <= snapshot.generation:
            self._goods = _Goods(snapshot.generation, snapshot.group, offers, sums)
        return sums


def _patched(matrix: Matrix, rows: Rows, fresh: Matrix) -> Matrix:
    """A copy with these rows anew."""
    patched = matrix.copy()
    patched[rows] = fresh
    patched.flags.writeable = False
    return patched
