"""A policy's judgement of the whole cluster, per kind of request, kept up to date.

A memo, never a truth: dropping it changes no answer, only how long the answer takes. A score
depends on the state of its row, the kind of request, and the shapes of the nodes there are; so only
rows changed since the kind was last asked for are scored again, and all of them once any node came,
went or changed. So with what a row offers and what a placement takes from it, of which a policy
makes its prices (see `Pressing`). The prices themselves are never remembered.

Of each row it keeps the best device, not all of them: the best in use and the best idle one where a
policy's prices tell the two apart.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from gpushare.core.model import Kind, Request
from gpushare.core.policy import Policy, Pressing, Stakes
from gpushare.core.snapshot import Bools, Floats, Ints, Rows, Snapshot, idle_devices

Fits = Callable[[Snapshot, Rows, Request], Bools]
"""bool (K, D): where the request fits, for the given rows, by the state of each row alone."""

Pause = Callable[[], object]
"""What is done between two steps of some rows."""

_STEP = 500
"""Rows judged at once: more do not stay in the processor's cache, fewer cost more calls."""
_NOTHING: Stakes = np.zeros((0, 0), dtype=np.int8)
_NOWHERE: Bools = np.zeros(0, dtype=bool)


def fits_devices(snapshot: Snapshot, rows: Rows, request: Request) -> Bools:
    """bool (K, D): devices with room for the request's units, on rows with enough of them."""
    mask: Bools = snapshot.free.take(rows, axis=0) >= max(request.units, 1)
    if request.devices > 1:
        mask &= mask.sum(axis=1, keepdims=True) >= request.devices
    return mask


@dataclass(frozen=True, slots=True)
class Judgement:
    """What placing a request is worth. values: float64 (N,), -inf where it does not fit."""

    values: Floats
    by_state: Floats
    devices: npt.NDArray[np.int16]

    def device(self, row: int) -> int:
        """The best single device of a row, the lowest index among equals."""
        value, states = self.values[row], range(len(self.by_state))
        return min(int(self.devices[s, row]) for s in states if self.by_state[s, row] == value)


@dataclass(frozen=True, slots=True)
class Known:
    """What is remembered of a kind: true for this generation, and never changed.

    layout: the capacities, which snapshots share until a node changes. best, devices: (V, N) the
    value of the best device and which it is; V is 1, or 2 for those in use and those idle. stakes:
    int8 (N, Y), touched: bool (N,) where any are.
    """

    generation: int
    layout: Ints
    best: Floats
    devices: npt.NDArray[np.int16]
    stakes: Stakes
    touched: Bools


@dataclass(frozen=True, slots=True)
class _Goods:
    """What each row offers, and the sums by group: true for this generation, and never changed."""

    generation: int
    layout: Ints
    offers: Ints
    sums: Ints


class Judge(Protocol):
    """What judges placements: a Ranking, or what a simulation puts in its place."""

    def judged(self, snapshot: Snapshot, request: Request) -> Judgement:
        """What placing the request on each row is worth."""

    def at(self, snapshot: Snapshot, rows: Rows, request: Request) -> Floats:
        """float64 (K, D): the same for each device of these rows, whether it fits or not."""


class Ranking:
    """The judgements of one policy, of at most `kinds` kinds of request.

    Any thread may ask. Two that ask for one kind at once both compute it; either result is right
    for its own snapshot, and whichever is kept is brought up to date by its generation.
    """

    def __init__(self, policy: Policy, kinds: int = 64, fits: Fits = fits_devices) -> None:
        self.policy = policy
        self._pressing = policy if isinstance(policy, Pressing) else None
        self._kinds = kinds
        self._fits = fits
        self._memo: dict[Kind, Known] = {}
        self._goods: _Goods | None = None

    @property
    def asked(self) -> tuple[Kind, ...]:
        """The kinds remembered, the one asked for last at the end."""
        return tuple(self._memo)

    def prepare(self, snapshot: Snapshot, request: Request, pause: Pause) -> None:
        """Get to know the kind of the request, pausing after each step: for who is in no hurry."""
        rows = np.arange(len(snapshot.names))
        self._keep(request.kind, self._judged(snapshot, rows, request, pause))
        if self._pressing is not None:
            self._sums(self._pressing, snapshot)

    def judged(self, snapshot: Snapshot, request: Request) -> Judgement:
        """What placing the request on each row is worth."""
        known = self._known(snapshot, request)
        if self._pressing is None:
            return Judgement(known.best[0], known.best, known.devices)
        goods = self._sums(self._pressing, snapshot)
        prices = self._pressing.by_group(snapshot, request, goods)
        worth = known.best - prices.take(snapshot.group)
        touched = known.touched.nonzero()[0]
        if len(touched):
            stakes = known.stakes.take(touched, axis=0)
            worth[:, touched] -= self._pressing.by_stakes(snapshot, request, stakes, goods)
        values = worth[0] if len(worth) == 1 else np.maximum(worth[0], worth[1])
        return Judgement(values, worth, known.devices)

    def at(self, snapshot: Snapshot, rows: Rows, request: Request) -> Floats:
        """float64 (K, D): the same for each device of these rows, anew, whether it fits or not."""
        scores = self.policy.score(snapshot, rows, request)
        if self._pressing is None:
            return scores
        goods = self._sums(self._pressing, snapshot)
        prices = self._pressing.by_group(snapshot, request, goods)
        worth: Floats = scores - prices.take(snapshot.group[rows])[:, None]
        stakes = self._pressing.stakes(snapshot, rows, request)
        cost = self._pressing.by_stakes(snapshot, request, stakes, goods)
        if len(cost) == 1:
            worth -= cost[0][:, None]
        else:
            idle = idle_devices(snapshot, rows)
            worth -= np.where(idle, cost[1][:, None], cost[0][:, None])
        return worth

    def _known(self, snapshot: Snapshot, request: Request) -> Known:
        known = self._memo.get(request.kind)
        if known is not None and known.generation > snapshot.generation:
            return self._judged(snapshot, np.arange(len(snapshot.names)), request)
        if known is None or known.layout is not snapshot.capacity:
            known = self._judged(snapshot, np.arange(len(snapshot.names)), request)
        elif known.generation != snapshot.generation:
            rows = snapshot.changed_since(known.generation)
            known = _patched(known, rows, self._judged(snapshot, rows, request))
        self._keep(request.kind, known)
        return known

    def _judged(
        self, snapshot: Snapshot, rows: Rows, request: Request, pause: Pause | None = None
    ) -> Known:
        parts = []
        for start in range(0, len(rows) or 1, _STEP):
            parts.append(self._judged_at_once(snapshot, rows[start : start + _STEP], request))
            if pause is not None:
                pause()
        return parts[0] if len(parts) == 1 else _joined(parts)

    def _judged_at_once(self, snapshot: Snapshot, rows: Rows, request: Request) -> Known:
        fits = self._fits(snapshot, rows, request)
        scores = np.full(fits.shape, -np.inf)
        if fits.any():
            np.copyto(scores, self.policy.score(snapshot, rows, request), where=fits)
        if self._pressing is None:
            return _best_of(snapshot, scores[None], _NOTHING, _NOWHERE)
        stakes = self._pressing.stakes(snapshot, rows, request)
        touched: Bools = np.logical_or.reduce(stakes, axis=1)
        if request.devices != 1:
            return _best_of(snapshot, scores[None], stakes, touched)
        idle = idle_devices(snapshot, rows)
        in_use = np.where(idle, -np.inf, scores)
        scores = np.stack([in_use, np.where(idle, scores, -np.inf)])
        return _best_of(snapshot, scores, stakes, touched)

    def _keep(self, kind: Kind, known: Known) -> None:
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
        if known is not None and known.layout is snapshot.capacity:
            if known.generation == snapshot.generation:
                return known.sums
            if known.generation < snapshot.generation:
                rows = snapshot.changed_since(known.generation)
                offers = policy.offers(snapshot, rows)
                sums = known.sums.copy()
                np.add.at(sums, snapshot.group[rows], offers - known.offers[rows])
                fresh = known.offers.copy()
                fresh[rows] = offers
                self._goods = _Goods(snapshot.generation, snapshot.capacity, fresh, sums)
                return sums
        offers = policy.offers(snapshot, np.arange(len(snapshot.names)))
        sums = np.zeros((int(snapshot.group.max(initial=0)) + 1, offers.shape[1]), np.int64)
        np.add.at(sums, snapshot.group, offers)
        if known is None or known.generation <= snapshot.generation:
            self._goods = _Goods(snapshot.generation, snapshot.capacity, offers, sums)
        return sums


def _best_of(snapshot: Snapshot, scores: Floats, stakes: Stakes, touched: Bools) -> Known:
    """What is to be remembered of scores (V, K, D)."""
    best, devices = scores.max(axis=2), scores.argmax(axis=2).astype(np.int16)
    return Known(snapshot.generation, snapshot.capacity, best, devices, stakes, touched)


def _joined(parts: list[Known]) -> Known:
    """What is known of all their rows."""
    return Known(
        parts[0].generation,
        parts[0].layout,
        np.concatenate([part.best for part in parts], axis=1),
        np.concatenate([part.devices for part in parts], axis=1),
        np.concatenate([part.stakes for part in parts]),
        np.concatenate([part.touched for part in parts]),
    )


def _patched(known: Known, rows: Rows, fresh: Known) -> Known:
    """What is known, with these rows anew."""
    best, devices = known.best.copy(), known.devices.copy()
    best[:, rows], devices[:, rows] = fresh.best, fresh.devices
    stakes, touched = known.stakes, known.touched
    if fresh.touched.any() or (len(touched) and touched[rows].any()):
        stakes, touched = stakes.copy(), touched.copy()
        stakes[rows], touched[rows] = fresh.stakes, fresh.touched
    return Known(fresh.generation, fresh.layout, best, devices, stakes, touched)
