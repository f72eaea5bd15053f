"""A policy's scores of the whole cluster, by kind of request, cached up to date.

A cache only: without it all answers are the same, and take longer. A score depends on the state of
the row, the kind of request, and the shapes of all nodes. So the rows that changed since the kind
was last scored are scored again; all rows are scored again after a shape changed, unless the policy
says that its inputs from other nodes have not changed (`KeyedByShapes`). Prices that depend on the
whole cluster are computed at each request (`core/cluster_prices.py`).

The cache has the best device of each row, and no other device: the best device in use and the best
idle device, if prices differ between these.

A policy may be foreign code: it may raise, or return NaN. The pod must still be placed, so there
are scorers with fallbacks. Tested in `tests/unit/core/test_ranking.py` and, with policies that
fail, in `tests/integration/test_broken_policies.py`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from gpushare.core.amounts import charged_units, memory_percent
from gpushare.core.apart import rows_with
from gpushare.core.card_sizes import common_sizes, typical_size
from gpushare.core.cluster_prices import ClusterPrices, PatternRows, ShapesSeen, shapes_keys
from gpushare.core.held_snapshot import Held, HeldSnapshot
from gpushare.core.model import ANY_NEIGHBOURS, Kind, Request
from gpushare.core.neighbours import with_term
from gpushare.core.policy import ClusterPricing, Policy, Taken
from gpushare.core.snapshot import (
    Bools,
    Floats,
    Ints,
    Rows,
    Snapshot,
    has_devices,
    has_room,
    needed_units,
)

Fits = Callable[[Snapshot, Rows, Request], Bools]
"""Returns bool (K, D): where the request fits, for the given rows, by the state of each row."""

HostFits = Callable[[Snapshot, Request], Bools]
"""Returns bool (N,): the rows whose host resources and models suffice for the request."""

Pause = Callable[[], object]
"""A function that is called between two steps of _STEP rows."""

_KINDS, _MAX_KINDS = 64, 1024
"""Lower and upper bound of the kinds with cached scores."""

_MAX_ROWS = 1_280_000
"""Upper bound of the cached rows of all kinds together: some 24 bytes each, 30 MB."""

_HELD_KINDS = 8
"""Upper bound of the kinds with cached scores with holds: each has a copy of the arrays."""

_Key = tuple[Kind, frozenset[int]]
"""The key of the cache: a kind of request, and the container sizes that pairing depends on."""

_UNPAIRED: frozenset[int] = frozenset()

_T = TypeVar("_T")

_STEP = 500
"""Rows scored at once: more rows do not fit the processor's cache, fewer rows need more calls."""


def fits_devices(snapshot: Snapshot, rows: Rows, request: Request) -> Bools:
    """Return bool (K, D): the devices with room for the request, on rows with enough such devices.

    Devices that pairing excludes are left out.
    """
    mask = has_room(snapshot, rows, request, pairing=True)
    if request.devices > 1:
        mask &= has_devices(mask, request, snapshot.free, rows)[:, None]
    return mask


@dataclass(frozen=True, slots=True)
class Scores:
    """The scores of a request on all nodes."""

    values: Floats
    """float64 (N,): the best score of each row; -inf where the request does not fit."""
    by_state: Floats
    """float64 (V, N): the best score among devices in use and among idle devices; V is 1 if the
    policy does not separate these."""
    devices: npt.NDArray[np.int16]
    """int16 (V, N): the best devices."""

    def device(self, row: int) -> int:
        """Return the best single device of a row, the lowest index among equals."""
        value, states = self.values[row], range(len(self.by_state))
        return min(int(self.devices[s, row]) for s in states if self.by_state[s, row] == value)


@dataclass(frozen=True, slots=True)
class CachedScores:
    """The cached scores of a kind of request, for one generation; immutable."""

    generation: int
    request: Request
    """The last request; other kinds may share the scores."""
    shapes: ShapesSeen
    best: Floats
    """float64 (V, N): the value of the best device; V is 1, or 2 for devices in use and idle."""
    devices: npt.NDArray[np.int16]
    """int16 (V, N): the index of the best device."""
    takes: PatternRows | None
    """The priced pattern that a placement takes from each row; None without prices."""


@dataclass(frozen=True, slots=True)
class _Scored:
    """The scores of K rows."""

    best: Floats
    """float64 (V, K), as in CachedScores."""
    devices: npt.NDArray[np.int16]
    """int16 (V, K), as in CachedScores."""
    takes: Taken | None
    """int64 (K, Y): the amounts that a placement takes from each row."""


class Scorer(Protocol):
    """An object that scores placements: a Ranking, or the scorer of a simulation."""

    def scores(self, snapshot: Snapshot, request: Request) -> Scores:
        """Return the value of placing the request on each row."""

    def score_devices(self, snapshot: Snapshot, rows: Rows, request: Request) -> Floats:
        """Return float64 (K, D): the value of each device of these rows, fitting or not."""

    def best_device(self, snapshot: Snapshot, row: int, request: Request) -> int | None:
        """Return the best single device of a row from cached scores, or None."""


class Ranking:
    """The scores of one policy, for at most `kinds` kinds of request; None: by the nodes' number.

    host: excludes rows of the scores; it is asked at each call, so that the scores of pods that
    differ in CPU and memory alone can be shared. None: it excludes no row. neighbours: the limit of
    neighbours of requests without a limit of their own (see core/neighbours.py).

    Policies know no split requests: a split request is ranked by its largest part.

    Any thread may call any method. Two threads may compute one kind at once; each result is right
    for the snapshot of its thread, and the cached result is brought up to date by its generation.
    """

    def __init__(
        self,
        policy: Policy,
        kinds: int | None = None,
        fits: Fits = fits_devices,
        host: HostFits | None = None,
        *,
        neighbours: int = ANY_NEIGHBOURS,
    ) -> None:
        self.policy = policy
        self.neighbours = neighbours
        self._keys = shapes_keys(policy)
        self._prices = ClusterPrices(policy) if isinstance(policy, ClusterPricing) else None
        self._kinds = kinds
        # Another `fits` may read CPU and memory, if `host` does not do that.
        reads_devices = fits is fits_devices or host is not None
        self._counts_percentages = bool(getattr(policy, "counts_percentages", False))
        self._ignores_host = reads_devices and bool(getattr(policy, "ignores_host", False))
        self._fits = fits
        self._host = host
        self._memo: dict[_Key, CachedScores] = {}
        # (capacity of a snapshot, the size of most cards there).
        self._typical: tuple[Ints, int] = np.zeros((0, 0), dtype=np.int64), 0
        self._held_memo: dict[_Key, tuple[Held, CachedScores]] = {}

    @property
    def recent_requests(self) -> tuple[Request, ...]:
        """A request of each kind with cached scores, in the order of their last use."""
        requests = [scores.request for scores in list(self._memo.values())]
        return tuple({request.kind: request for request in requests}.values())

    def prepare(self, snapshot: Snapshot, request: Request, pause: Pause) -> None:
        """Score the kind of the request in advance, with a pause after each step."""
        self._cached(snapshot, request, pause)
        if self._prices is not None:
            self._prices.totals(snapshot)

    def scores(self, snapshot: Snapshot, request: Request) -> Scores:
        """Return the value of placing the request on each row."""
        # Without the wish to stay apart, so that all workloads share the cache.
        shared = request if request.apart is None else replace(request, apart=None)
        if isinstance(snapshot, HeldSnapshot):
            cached = self._cached_with_holds(snapshot, shared)
        else:
            cached = self._cached(snapshot, shared)
        if request.apart is not None:
            rows = rows_with(snapshot.workloads, request.apart.workload)
            if len(rows):
                cached = self._patched(cached, snapshot, rows, request)
        worth = cached.best
        if self._prices is not None and cached.takes is not None:
            priced = self._priced(snapshot, request)
            worth = self._prices.charge(snapshot, priced, worth, cached.takes)
        values = worth[0] if len(worth) == 1 else np.maximum(worth[0], worth[1])
        if self._host is not None:
            values = np.where(self._host(snapshot, request), values, -np.inf)
        return Scores(values, worth, cached.devices)

    def score_devices(self, snapshot: Snapshot, rows: Rows, request: Request) -> Floats:
        """Return float64 (K, D): the value of each device of these rows, fitting or not.

        The values are not cached.
        """
        scores = self._value(snapshot, rows, request)
        if self._prices is None:
            return scores
        priced = self._priced(snapshot, request)
        return self._prices.charge_devices(snapshot, rows, priced, scores)

    def best_device(self, snapshot: Snapshot, row: int, request: Request) -> int | None:
        """Return the best single device of a row from the cache, the lowest index among equals.

        None if the cached row is out of date, or if the request fits no device; use
        `score_devices` then.
        """
        cached = self._memo.get(self._kind(snapshot, request))
        if (
            cached is None
            or request.apart is not None
            or cached.shapes.capacity is not snapshot.capacity
            or isinstance(snapshot, HeldSnapshot)
            or cached.generation > snapshot.generation
            or snapshot.row_generation[row] > cached.generation
        ):
            return None
        worth = cached.best[:, row]
        # A price of the whole row changes nothing between its devices.
        patterns, prices = cached.takes, self._prices
        if prices is not None and patterns is not None and len(worth) > 1 and patterns.index[row]:
            priced = self._priced(snapshot, request)
            worth = prices.charge_row(snapshot, row, priced, worth, patterns.row(row))
        highest = worth.max()
        if not highest > -np.inf:
            return None
        return int(cached.devices[:, row][worth == highest].min())

    def _kind(self, snapshot: Snapshot, request: Request) -> _Key:
        """Return the cache key of the request, for snapshots like this one."""
        kind = request.kind
        if self._ignores_host:  # with CPU and memory nearly every pod would be a kind
            kind = (*kind[:2], 0, 0, *kind[4:])
        # Pairing distinguishes pods by the sizes of the containers.
        return kind, request.sizes if snapshot.pinned else _UNPAIRED

    def _cached(
        self, snapshot: Snapshot, request: Request, pause: Pause | None = None
    ) -> CachedScores:
        """Return the scores of the books, from the cache as far as rows have not changed.

        pause: called between the steps if all rows are scored.
        """
        kind = self._kind(snapshot, request)
        cached = self._memo.get(kind)
        if cached is not None and cached.generation > snapshot.generation:
            return self._computed(snapshot, request)
        if cached is None or (
            cached.shapes.capacity is not snapshot.capacity
            and not cached.shapes.hold_for(snapshot, self._keys)
        ):
            cached = self._computed(snapshot, request, pause)
        elif cached.generation != snapshot.generation:
            rows = snapshot.changed_since(cached.generation)
            cached = self._patched(cached, snapshot, rows, request)
        max_kinds = self._kinds
        if max_kinds is None:
            max_kinds = max(_KINDS, min(_MAX_KINDS, _MAX_ROWS // max(len(snapshot.names), 1)))
        _keep_last(self._memo, kind, cached, max_kinds)
        return cached

    def _cached_with_holds(self, snapshot: HeldSnapshot, request: Request) -> CachedScores:
        """Return the scores of a snapshot with holds.

        A cache of their own has the last kinds: the rows that differ from the last such snapshot
        are scored again.
        """
        kind = self._kind(snapshot, request)
        last, rows = self._held_memo.get(kind), None
        if last is not None and last[1].shapes.capacity is snapshot.capacity:
            rows, cached = snapshot.differing_rows(last[0]), last[1]
        if rows is None:
            rows, cached = snapshot.rows, self._cached(snapshot.base, request)
        if len(rows):
            cached = self._patched(cached, snapshot, rows, request)
        _keep_last(self._held_memo, kind, (snapshot.held, cached), _HELD_KINDS)
        return cached

    def _computed(
        self, snapshot: Snapshot, request: Request, pause: Pause | None = None
    ) -> CachedScores:
        scored = self._score(snapshot, np.arange(len(snapshot.names)), request, pause)
        patterns = None if scored.takes is None else PatternRows.of(scored.takes)
        return CachedScores(
            generation=snapshot.generation,
            request=request,
            shapes=ShapesSeen.of(snapshot, self._keys),
            best=scored.best,
            devices=scored.devices,
            takes=patterns,
        )

    def _patched(
        self, cached: CachedScores, snapshot: Snapshot, rows: Rows, request: Request
    ) -> CachedScores:
        """Return the cached scores with fresh scores for these rows."""
        fresh, shapes = self._score(snapshot, rows, request), cached.shapes
        if shapes.capacity is not snapshot.capacity:
            shapes = ShapesSeen.of(snapshot, self._keys)
        # Rows are only added: that of a node that goes is used again.
        more = len(snapshot.names) - cached.best.shape[1]
        best, devices = (
            np.concatenate([array, np.zeros((len(array), more), array.dtype)], axis=1)
            for array in (cached.best, cached.devices)
        )
        best[:, rows], devices[:, rows] = fresh.best, fresh.devices
        patterns = cached.takes
        if patterns is not None and fresh.takes is not None:
            patterns = patterns.patched(rows, fresh.takes, more)
        return CachedScores(
            generation=snapshot.generation,
            request=request,
            shapes=shapes,
            best=best,
            devices=devices,
            takes=patterns,
        )

    def _score(
        self, snapshot: Snapshot, rows: Rows, request: Request, pause: Pause | None = None
    ) -> _Scored:
        parts = []
        for start in range(0, len(rows) or 1, _STEP):
            step = rows[start : start + _STEP]
            fits = self._fits(snapshot, step, request)
            if request.split:
                fits &= has_room(snapshot, step, request.part(request.units))
            scores = np.full(fits.shape, -np.inf)
            if fits.any():
                np.copyto(scores, self._value(snapshot, step, request), where=fits)
            if self._prices is None:
                by_state, takes = scores[None], None
            else:
                priced = self._priced(snapshot, request)
                by_state, takes = self._prices.split(snapshot, step, priced, scores)
            devices = by_state.argmax(axis=2).astype(np.int16)
            parts.append(_Scored(by_state.max(axis=2), devices, takes))
            if pause is not None:
                pause()
        return parts[0] if len(parts) == 1 else _joined(parts)

    def _value(self, snapshot: Snapshot, rows: Rows, request: Request) -> Floats:
        """Return float64 (K, D): the policy's scores with the term of neighbours."""
        if request.split:
            request = request.part(request.units)
        by_size = request.percents and not self._counts_percentages
        if by_size and memory_percent(request.percents):
            scores = self._by_size(snapshot, rows, request)
        else:
            scores = self.policy.score(snapshot, rows, request)
        limit = self.neighbours if request.neighbours is None else request.neighbours
        if request.devices and (limit != ANY_NEIGHBOURS or request.apart is not None):
            scores = with_term(scores, snapshot, rows, request, limit)
        return scores

    def _by_size(self, snapshot: Snapshot, rows: Rows, request: Request) -> Floats:
        """Return the policy's scores of a request that is charged other units on each size of
        device. A row is scored once for each number of units that its devices are charged.
        """
        needed = np.where(
            snapshot.capacity.take(rows, axis=0) > 0, needed_units(snapshot, rows, request), 0
        )
        charges = np.unique(needed[needed > 0]).tolist()
        if len(charges) == 1:
            return self.policy.score(snapshot, rows, replace(request, units=charges[0]))
        scores = np.zeros(needed.shape)
        for units in charges:
            alike = needed == units
            at = np.flatnonzero(alike.any(axis=1))
            of_units = self.policy.score(snapshot, rows[at], replace(request, units=units))
            scores[at] = np.where(alike[at], of_units, scores[at])
        return scores

    def _priced(self, snapshot: Snapshot, request: Request) -> Request:
        """Return the request for the prices of the whole cluster: a percentage of memory counts as
        on most cards.
        """
        if request.split:
            request = request.part(request.units)
        if not memory_percent(request.percents):
            return request
        capacity, size = self._typical
        if capacity is not snapshot.capacity:
            size = typical_size(common_sizes(snapshot.capacity))
            self._typical = snapshot.capacity, size
        return replace(request, units=charged_units(request.units, request.percents, size))


def _keep_last(memo: dict[_Key, _T], kind: _Key, value: _T, max_kinds: int) -> None:
    """Keep the value; the kind used longest ago is dropped first (a dict keeps the order)."""
    memo.pop(kind, None)
    memo[kind] = value
    if len(memo) > max_kinds:
        # list() of a dict is atomic; an iterator would fail if another thread added a kind.
        for old in list(memo)[:-max_kinds]:
            memo.pop(old, None)


def _joined(parts: list[_Scored]) -> _Scored:
    """Return the scores of all parts as one."""
    takes = [part.takes for part in parts if part.takes is not None]
    return _Scored(
        np.concatenate([part.best for part in parts], axis=1),
        np.concatenate([part.devices for part in parts], axis=1),
        np.concatenate(takes) if takes else None,
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
    """Called by any thread with a scorer's name, the scorer and its failure."""

    def scores(self, snapshot: Snapshot, request: Request) -> Scores:
        """Return the value of placing the request on each row."""
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
        """Return float64 (K, D): the value of each device of these rows, even without room."""
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
