"""A policy's scores of the whole cluster, by kind of request, kept up to date.

It is only a memo: dropping it changes no answer, only how long the answer takes. A score depends on
the state of its row, the kind of request, and the shapes of all nodes. So only rows that changed
since the kind was last scored are scored again; and all rows after a shape changed, unless the
policy says that nothing has changed that it takes from other nodes (`KeyedByShapes`).
Prices that depend on the whole cluster are computed at each request (`core/cluster_prices.py`).

Of each row it keeps the best device, not all of them: the best in use and the best idle one if
prices differ between the two.

A policy may be anybody's code: it may raise, or return NaN. The pod must still be placed, so there
are scorers with fallbacks. Tested in `tests/unit/core/test_ranking.py` and, with policies that
fail, in `tests/integration/test_broken_policies.py`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from gpushare.core.cluster_prices import ClusterPrices, PatternRows, ShapesSeen, shapes_keys
from gpushare.core.held_snapshot import HeldSnapshot
from gpushare.core.model import Kind, Request
from gpushare.core.policy import ClusterPricing, Policy, Taken
from gpushare.core.snapshot import (
    Bools,
    Floats,
    Rows,
    Snapshot,
    has_devices,
    has_room,
)

Fits = Callable[[Snapshot, Rows, Request], Bools]
"""Returns bool (K, D): where the request fits, for the given rows, by the state of each row."""

Pause = Callable[[], object]
"""Called between two steps of some rows."""

_KINDS, _MOST_KINDS = 64, 1024
"""Kinds for which scores are kept at least, and at most."""

_KEPT_ROWS = 1_280_000
"""Rows for which scores are kept, of all kinds together: some 24 bytes each, 30 MB."""

_HELD_KINDS = 8
"""Kinds for which scores with holds are kept: each keeps a copy of the arrays."""

_Kept = tuple[Kind, frozenset[int]]
"""A kind of request, and the sizes by which pairing tells it apart."""

_UNPAIRED: frozenset[int] = frozenset()

_T = TypeVar("_T")

_STEP = 500
"""Rows scored at once: more do not stay in the processor's cache, fewer need more calls."""


def fits_devices(snapshot: Snapshot, rows: Rows, request: Request) -> Bools:
    """Return bool (K, D): devices with room for the request, on rows with enough of them.

    Devices that pairing excludes are left out.
    """
    mask = has_room(snapshot, rows, request)
    allowed = snapshot.paired_rows.devices(snapshot, request)
    if allowed is not None:
        mask &= allowed.take(rows, axis=0)
    if request.devices > 1:
        mask &= has_devices(mask, request, snapshot.free, rows)[:, None]
    return mask


@dataclass(frozen=True, slots=True)
class Scores:
    """The scores of a request on all nodes."""

    values: Floats
    """The best of each row, float64 (N,); -inf where it does not fit."""
    by_state: Floats
    """The best among devices in use and among idle ones, float64 (V, N); V is 1 if they are not
    separated."""
    devices: npt.NDArray[np.int16]
    """Those best devices, int16 (V, N)."""

    def device(self, row: int) -> int:
        """Return the best single device of a row, the lowest index among equals."""
        value, states = self.values[row], range(len(self.by_state))
        return min(int(self.devices[s, row]) for s in states if self.by_state[s, row] == value)


@dataclass(frozen=True, slots=True)
class Known:
    """The scores kept for a kind of request, for one generation; immutable."""

    generation: int
    asked: Kind
    """Of the request that they were computed for last; others may share them."""
    shapes: ShapesSeen
    best: Floats
    """The value of the best device, (V, N); V is 1, or 2 for those in use and idle ones."""
    devices: npt.NDArray[np.int16]
    """Its index, (V, N)."""
    taken: PatternRows | None
    """What a placement takes from each row, if that has prices."""


@dataclass(frozen=True, slots=True)
class _Scored:
    """The scores of K rows."""

    best: Floats
    """As in Known, (V, K)."""
    devices: npt.NDArray[np.int16]
    """The same, (V, K)."""
    taken: Taken | None
    """What a placement takes from each row, (K, Y)."""


class Scorer(Protocol):
    """Something that scores placements: a Ranking, or what a simulation uses instead."""

    def scores(self, snapshot: Snapshot, request: Request) -> Scores:
        """Return the value of placing the request on each row."""

    def score_devices(self, snapshot: Snapshot, rows: Rows, request: Request) -> Floats:
        """Return float64 (K, D): the same for each device of these rows, whether it fits or not."""

    def best_device(self, snapshot: Snapshot, row: int, request: Request) -> int | None:
        """Return the best single device of a row if it is known without scoring again."""


class Ranking:
    """The scores of one policy, for at most `kinds` kinds of request; None: by the nodes' number.

    Policies know no split requests: nodes where one fits are ranked by its largest part.

    Any thread may call it. If two need one kind at once, both compute it; each result is right for
    its own snapshot, and the one that is kept is brought up to date by its generation.
    """

    def __init__(
        self,
        policy: Policy,
        kinds: int | None = None,
        fits: Fits = fits_devices,
    ) -> None:
        self.policy = policy
        self._keys = shapes_keys(policy)
        self._prices = ClusterPrices(policy) if isinstance(policy, ClusterPricing) else None
        self._kinds = kinds
        # Another `fits` may read CPU and memory, as that of simulations does.
        self._ignores_host = fits is fits_devices and bool(getattr(policy, "ignores_host", False))
        self._fits = fits
        self._memo: dict[_Kept, Known] = {}
        self._held_memo: dict[_Kept, tuple[HeldSnapshot, Known]] = {}

    @property
    def recent_kinds(self) -> tuple[Kind, ...]:
        """The kinds whose scores are kept, the last one used at the end."""
        return tuple(dict.fromkeys(known.asked for known in list(self._memo.values())))

    def prepare(self, snapshot: Snapshot, request: Request, pause: Pause) -> None:
        """Score the kind of the request in advance, with a pause after each step."""
        known = self._known_anew(snapshot, request, pause)
        self._keep(snapshot, request, known)
        if self._prices is not None:
            self._prices.totals(snapshot)

    def scores(self, snapshot: Snapshot, request: Request) -> Scores:
        """Return the value of placing the request on each row."""
        if isinstance(snapshot, HeldSnapshot):
            known = self._known_held(snapshot, request)
        else:
            known = self._known(snapshot, request)
        worth = known.best
        if self._prices is not None and known.taken is not None:
            worth = self._prices.charge(snapshot, _scored(request), worth, known.taken)
        values = worth[0] if len(worth) == 1 else np.maximum(worth[0], worth[1])
        return Scores(values, worth, known.devices)

    def score_devices(self, snapshot: Snapshot, rows: Rows, request: Request) -> Floats:
        """Return float64 (K, D): the value for each device of these rows, whether it fits or not.

        It is always computed again.
        """
        request = _scored(request)
        scores = self.policy.score(snapshot, rows, request)
        if self._prices is None:
            return scores
        return self._prices.charge_devices(snapshot, rows, request, scores)

    def best_device(self, snapshot: Snapshot, row: int, request: Request) -> int | None:
        """Return the best single device of a row from the memo, the lowest index among equals.

        None if the memo does not have the row as it is, or if the request fits no device; use
        `score_devices` then.
        """
        known = self._memo.get(self._kind(snapshot, request))
        if (
            known is None
            or known.shapes.capacity is not snapshot.capacity
            or isinstance(snapshot, HeldSnapshot)
            or known.generation > snapshot.generation
            or snapshot.row_generation[row] > known.generation
        ):
            return None
        worth = known.best[:, row]
        # A price of the whole row changes nothing between its devices.
        taken = known.taken
        if self._prices is not None and taken is not None and len(worth) > 1 and taken.index[row]:
            worth = self._prices.charge_row(snapshot, row, request, worth, taken.row(row))
        highest = worth.max()
        if not highest > -np.inf:
            return None
        return int(known.devices[:, row][worth == highest].min())

    def _kind(self, snapshot: Snapshot, request: Request) -> _Kept:
        """Return by what the scores of the request are kept, for snapshots like this one."""
        # CPU and memory make a kind of nearly each pod.
        kind = replace(request, cpu=0, memory=0).kind if self._ignores_host else request.kind
        # Pairing tells pods apart by the sizes of their containers.
        return kind, request.sizes if snapshot.pinned else _UNPAIRED

    def _keep(self, snapshot: Snapshot, request: Request, known: Known) -> None:
        most = self._kinds
        if most is None:
            most = max(_KINDS, min(_MOST_KINDS, _KEPT_ROWS // max(len(snapshot.names), 1)))
        _keep_last(self._memo, self._kind(snapshot, request), known, most)

    def _known(self, snapshot: Snapshot, request: Request) -> Known:
        kind = self._kind(snapshot, request)
        known = self._memo.get(kind)
        if known is not None and known.generation > snapshot.generation:
            return self._known_anew(snapshot, request)
        if known is None or not known.shapes.hold_for(snapshot, self._keys):
            known = self._known_anew(snapshot, request)
        elif known.generation != snapshot.generation:
            rows = snapshot.changed_since(known.generation)
            known = self._patched(known, snapshot, rows, request)
        self._keep(snapshot, request, known)
        return known

    def _known_held(self, snapshot: HeldSnapshot, request: Request) -> Known:
        """Return the scores of a snapshot with holds.

        They are kept apart from those of the books, for the last kinds asked for: only rows that
        differ from the last such snapshot are scored again.
        """
        kind = self._kind(snapshot, request)
        last = self._held_memo.get(kind)
        if last is None or last[1].shapes.capacity is not snapshot.capacity:
            known, rows = self._known(snapshot.base, request), snapshot.rows
        else:
            known, rows = last[1], snapshot.differing_rows(last[0])
        if len(rows):
            known = self._patched(known, snapshot, rows, request)
        _keep_last(self._held_memo, kind, (snapshot, known), _HELD_KINDS)
        return known

    def _known_anew(
        self, snapshot: Snapshot, request: Request, pause: Pause | None = None
    ) -> Known:
        scored = self._score(snapshot, np.arange(len(snapshot.names)), request, pause)
        taken = None if scored.taken is None else PatternRows.of(scored.taken)
        return Known(
            generation=snapshot.generation,
            asked=request.kind,
            shapes=ShapesSeen.of(snapshot, self._keys),
            best=scored.best,
            devices=scored.devices,
            taken=taken,
        )

    def _patched(self, known: Known, snapshot: Snapshot, rows: Rows, request: Request) -> Known:
        """Return the kept scores, with those of these rows as they are now."""
        fresh = self._score(snapshot, rows, request)
        # Rows are only added: that of a node that goes is used again.
        more = len(snapshot.names) - known.best.shape[1]
        best, devices = (
            np.concatenate([array, np.zeros((len(array), more), array.dtype)], axis=1)
            for array in (known.best, known.devices)
        )
        best[:, rows], devices[:, rows] = fresh.best, fresh.devices
        taken = known.taken
        if taken is not None and fresh.taken is not None:
            taken = taken.patched(rows, fresh.taken, more)
        return Known(
            generation=snapshot.generation,
            asked=request.kind,
            shapes=ShapesSeen.of(snapshot, self._keys),
            best=best,
            devices=devices,
            taken=taken,
        )

    def _score(
        self, snapshot: Snapshot, rows: Rows, request: Request, pause: Pause | None = None
    ) -> _Scored:
        parts, asked = [], _scored(request)
        for start in range(0, len(rows) or 1, _STEP):
            step = rows[start : start + _STEP]
            fits = self._fits(snapshot, step, request)
            if request.split:
                fits &= has_room(snapshot, step, asked)
            scores = np.full(fits.shape, -np.inf)
            if fits.any():
                np.copyto(scores, self.policy.score(snapshot, step, asked), where=fits)
            if self._prices is None:
                by_state, taken = scores[None], None
            else:
                by_state, taken = self._prices.split(snapshot, step, asked, scores)
            devices = by_state.argmax(axis=2).astype(np.int16)
            parts.append(_Scored(by_state.max(axis=2), devices, taken))
            if pause is not None:
                pause()
        return parts[0] if len(parts) == 1 else _joined(parts)


def _scored(request: Request) -> Request:
    """Return what a policy is asked about in its place."""
    return request.part(request.units) if request.split else request


def _keep_last(memo: dict[_Kept, _T], kind: _Kept, value: _T, most: int) -> None:
    """Keep the value; the kind used longest ago is dropped first (a dict keeps the order)."""
    memo.pop(kind, None)
    memo[kind] = value
    if len(memo) > most:
        # list() of a dict is atomic; an iterator would fail if another thread added a kind.
        for old in list(memo)[:-most]:
            memo.pop(old, None)


def _joined(parts: list[_Scored]) -> _Scored:
    """Return the parts joined, for all their rows."""
    taken = [part.taken for part in parts if part.taken is not None]
    return _Scored(
        np.concatenate([part.best for part in parts], axis=1),
        np.concatenate([part.devices for part in parts], axis=1),
        np.concatenate(taken) if taken else None,
    )


class NoPreference:
    """A policy without preferences, which cannot fail."""

    def score(self, snapshot: Snapshot, rows: Rows, request: Request) -> Floats:
        """Return float64 (K, D): zeros."""
        return np.zeros((len(rows), snapshot.capacity.shape[1]))


@dataclass(frozen=True, slots=True)
class FallbackScorer:
    """A scorer that uses the first of several scorers that does not fail."""

    scorers: Sequence[tuple[str, Scorer]]
    """By name, the preferred one first; the last must not fail."""
    failed: Callable[[str, Scorer, BaseException], None]
    """Called with each failure and the scorer's name, by any thread."""

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
