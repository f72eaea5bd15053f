"""A Ranking that scores with compiled loops, for the policies whose arithmetic the kernel has.

It keeps what a Ranking keeps, but changes it in place, since a simulation has one thread.
"""

from typing import TypeGuard

import numpy as np

from gpushare.core.model import Kind, Request
from gpushare.core.pattern_rows import NOTHING
from gpushare.core.policies.fgd import Fgd
from gpushare.core.policies.fragmentation import Fragmentation, Tables
from gpushare.core.policies.shadow_price.policy import ShadowPrice
from gpushare.core.policy import Policy
from gpushare.core.ranking import Fits, Known, Ranking, Scores
from gpushare.core.snapshot import Snapshot
from gpushare.sim.cluster_pricing import score_and_price
from gpushare.sim.compiled import (
    COMPILED,
    Blocks,
    KindScores,
    Prices,
    RequestArrays,
    State,
    Supply,
    Typical,
    WantedKind,
    World,
)
from gpushare.sim.kernel import score_rows

_NONE = np.zeros(0, dtype=np.int64)
_NO_PRICES = np.zeros(0)


def has_kernel(policy: Policy) -> TypeGuard[Fgd | ShadowPrice]:
    """Return whether compiled loops can stand in for the policy here."""
    known = isinstance(policy, Fgd | ShadowPrice) and policy.measure.pods > 0
    return COMPILED and known and not (isinstance(policy, ShadowPrice) and not policy.classes)


class FastRanking(Ranking):
    """A Ranking of one live snapshot, whose nodes do not change."""

    def __init__(self, policy: Fgd | ShadowPrice, kinds: int, fits: Fits) -> None:
        super().__init__(policy, kinds, fits)
        self._pricing_policy = policy if isinstance(policy, ShadowPrice) else None
        self._fast = policy
        self._world: World | None = None
        self._wanted: dict[Kind, WantedKind] = {}
        self._seen: dict[Kind, int] = {}
        self._supply: Supply | None = None
        self._counted = -1

    @property
    def recent_kinds(self) -> tuple[Kind, ...]:
        """The kinds whose scores are kept, the last one used at the end."""
        return tuple(self._wanted)

    def scores(self, snapshot: Snapshot, request: Request) -> Scores:
        """Return the value of placing the request on each row; valid until the next call."""
        world = self._world or self._begin(snapshot)
        if self._supply is None:
            known = self._known(snapshot, request)
            return Scores(known.best[0], known.best, known.devices)
        wanted = self._kept(snapshot, request, world)
        known_at = self._seen.get(request.kind, -1)
        score_and_price(world, self._supply, wanted, known_at, self._counted)
        self._seen[request.kind] = self._counted = snapshot.generation
        return Scores(wanted.values, wanted.by_state, wanted.scores.devices)

    def _known(self, snapshot: Snapshot, request: Request) -> Known:
        world = self._world or self._begin(snapshot)
        wanted = self._kept(snapshot, request, world)
        rows = snapshot.changed_since(self._seen.get(request.kind, -1))
        if len(rows):
            score_rows(world, wanted.request, wanted.scores, rows)
        self._seen[request.kind] = snapshot.generation
        # This is called only if the policy has no prices; what is taken matters only for prices.
        best, devices = wanted.scores.best, wanted.scores.devices
        return Known(snapshot.generation, snapshot.capacity, best, devices, NOTHING)

    def _begin(self, snapshot: Snapshot) -> World:
        model = snapshot.model.max(axis=1, initial=-1).astype(np.int64)
        state = State(
            snapshot.free,
            snapshot.capacity,
            snapshot.cpu_free,
            snapshot.memory_free,
            snapshot.cpu_only,
            snapshot.cpu_capacity,
            model % (len(snapshot.models) + 1),
            snapshot.kinds,
        )
        typical = _typical(self._fast.measure, self._fast.tables(snapshot))
        world = World(state, typical, self._price_tables(snapshot), self._blocks(snapshot))
        if self._pricing_policy is not None:
            scarce = self._pricing_policy.scarce(snapshot)
            number = 1 + len(scarce.devices)
            self._supply = Supply(
                scarce.needs,
                scarce.needed,
                scarce.share,
                scarce.units,
                scarce.alone,
                scarce.largest,
                snapshot.group,
                snapshot.row_generation,
                np.zeros((len(snapshot.names), number), dtype=np.int64),
                np.zeros((len(scarce.per_unit), number), dtype=np.int64),
            )
        self._world = world
        return world

    def _price_tables(self, snapshot: Snapshot) -> Prices:
        shapes, policy = self._fast.shapes(snapshot), self._pricing_policy
        if policy is None:
            none = _NONE, _NONE, _NO_PRICES, _NONE, _NO_PRICES
            return Prices(shapes.even, shapes.capacity, *none, 0.0, 0.0, 0.0, 0.0)
        tables = policy.priced(snapshot)
        return Prices(
            shapes.even,
            shapes.capacity,
            tables.steps,
            tables.worth_at,
            tables.worth,
            tables.left_at,
            tables.left,
            float(policy.alpha),
            float(policy.mu),
            float(policy.drain),
            float(policy.hold(snapshot)),
        )

    def _blocks(self, snapshot: Snapshot) -> Blocks:
        if self._pricing_policy is None:
            none = np.zeros((len(snapshot.names), 0), dtype=np.int64)
            return Blocks(_NONE, _NONE, _NONE, none)
        scarce = self._pricing_policy.scarce(snapshot)
        return Blocks(scarce.devices, scarce.cpu, scarce.memory, scarce.accepted)

    def _kept(self, snapshot: Snapshot, request: Request, world: World) -> WantedKind:
        """Return what is kept of the kind; drop the least recently used of too many kinds."""
        wanted = self._wanted.pop(request.kind, None) or self._want(snapshot, request, world)
        self._wanted[request.kind] = wanted
        if len(self._wanted) > self._kinds:
            oldest = next(iter(self._wanted))
            del self._wanted[oldest], self._seen[oldest]
        return wanted

    def _want(self, snapshot: Snapshot, request: Request, world: World) -> WantedKind:
        accepted = [not request.models or model in request.models for model in snapshot.models]
        arrays = RequestArrays(
            max(request.units, 1) if request.devices else 0,
            request.devices,
            request.cpu,
            request.memory,
            np.array([*accepted, not request.models]),
        )
        states = 2 if request.devices == 1 and self._pricing_policy else 1
        count, number = len(snapshot.names), len(world.blocks.devices)
        scores = KindScores(
            np.full((states, count), -np.inf),
            np.zeros((states, count), dtype=np.int16),
            np.zeros((count, (2 if request.devices == 1 else 1) * number), dtype=np.int8),
            np.zeros(count, dtype=bool),
        )
        weight, per_unit = 0.0, _NO_PRICES
        if self._pricing_policy is not None:
            weight = self._pricing_policy.block_weight(request)
            per_unit = self._pricing_policy.scarce(snapshot).per_unit
        return WantedKind(
            arrays,
            scores,
            weight,
            request.total * per_unit,
            np.empty(count),
            np.empty((states, count)),
        )


def _typical(measure: Fragmentation, tables: Tables) -> Typical:
    many = [table for _, table in tables.many]
    return Typical(
        measure.cpus,
        measure.sizes,
        tables.base,
        tables.barred,
        tables.small,
        np.array([size for size, _ in tables.many], dtype=np.int64),
        np.array(many, dtype=np.int64).reshape(len(many), len(tables.barred), -1)
        if many
        else np.zeros((0, 0, 0), dtype=np.int64),
        measure.pods,
    )
