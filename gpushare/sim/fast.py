"""A Ranking that judges by compiled loops: for the policies whose arithmetic the kernel has.

It keeps what a Ranking keeps, changed in place since a simulation has one thread, and leaves the
prices of the moment to the policy.
"""

import numpy as np

from gpushare.core.model import Kind, Request
from gpushare.core.policies.fgd import Fgd
from gpushare.core.policies.fragmentation import Fragmentation, Tables
from gpushare.core.policies.shadow_price import BLOCK_CPU, BLOCK_GPU, ShadowPrice
from gpushare.core.policy import Policy, Pressing
from gpushare.core.ranking import Fits, Judgement, Known, Ranking
from gpushare.core.snapshot import Ints, Snapshot
from gpushare.sim.compiled import (
    COMPILED,
    Asked,
    Blocks,
    Judged,
    Prices,
    Scarce,
    State,
    Typical,
    World,
    Worth,
)
from gpushare.sim.kernel import judge
from gpushare.sim.pressing import offer, press

_NONE = np.zeros(0, dtype=np.int64)
_NO_PRICES = np.zeros(0)


def has_kernel(policy: Policy) -> bool:
    """Whether compiled loops can stand in for the policy here."""
    known = isinstance(policy, Fgd | ShadowPrice) and policy.measure.pods > 0
    return COMPILED and known and not (isinstance(policy, ShadowPrice) and not policy.classes)


class FastRanking(Ranking):
    """A Ranking of one live snapshot, whose nodes do not change."""

    def __init__(self, policy: Fgd | ShadowPrice, kinds: int, fits: Fits) -> None:
        super().__init__(policy, kinds, fits)
        self._by_stakes = policy if isinstance(policy, ShadowPrice) else None
        self._fast = policy
        self._world: World | None = None
        self._asked: dict[Kind, tuple[Asked, Judged]] = {}
        self._seen: dict[Kind, int] = {}
        self._offers = self._offered = np.zeros((0, 0), dtype=np.int64)
        self._offered_at = -1

    def _known(self, snapshot: Snapshot, request: Request) -> Known:
        world = self._world or self._begin(snapshot)
        if request.kind not in self._asked:
            self._asked[request.kind] = self._new(snapshot, request, world)
        asked, judged = self._asked[request.kind]
        rows = snapshot.changed_since(self._seen.get(request.kind, -1))
        if len(rows):
            judge(world, asked, judged, rows)
        self._seen[request.kind] = snapshot.generation
        return Known(snapshot.generation, *judged)

    def judged(self, snapshot: Snapshot, request: Request) -> Judgement:
        """What placing the request on each row is worth."""
        known, policy = self._known(snapshot, request), self._by_stakes
        if policy is None:
            return Judgement(known.best[0], known.best, known.devices)
        goods, scarce = self._sums(policy, snapshot), policy.scarce(snapshot)
        weight = BLOCK_GPU if request.devices else BLOCK_CPU
        worth = Worth(np.empty(known.best.shape[1]), np.empty(known.best.shape))
        press(
            Scarce(scarce.needs, scarce.needed, scarce.share, scarce.devices, snapshot.group),
            goods,
            self._asked[request.kind][1],
            (weight, request.total * scarce.per_unit),
            worth,
        )
        return Judgement(*worth, known.devices)

    def _sums(self, _policy: Pressing, snapshot: Snapshot) -> Ints:
        world = self._world or self._begin(snapshot)
        rows = snapshot.changed_since(self._offered_at)
        if len(rows):
            offer(world, self._offers, self._offered, snapshot.group, rows)
        self._offered_at = snapshot.generation
        return self._offered

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
        )
        typical = _typical(self._fast.measure, self._fast.tables(snapshot))
        world = World(state, typical, self._prices(snapshot), self._blocks(snapshot))
        groups = int(snapshot.group.max(initial=0)) + 1
        number = 1 + len(world.blocks.devices)
        self._offers = np.zeros((len(snapshot.names), number), dtype=np.int64)
        self._offered = np.zeros((groups, number), dtype=np.int64)
        self._world = world
        return world

    def _prices(self, snapshot: Snapshot) -> Prices:
        facts, policy = self._fast.ground(snapshot), self._by_stakes
        if policy is None:
            none = _NONE, _NONE, _NO_PRICES, _NONE, _NO_PRICES
            return Prices(facts.milli, facts.capacity, *none, 0.0)
        tables = policy.priced(snapshot)
        return Prices(
            facts.milli,
            facts.capacity,
            tables.step,
            tables.worth_at,
            tables.worth,
            tables.left_at,
            tables.left,
            float(policy.drain),
        )

    def _blocks(self, snapshot: Snapshot) -> Blocks:
        unit = np.maximum(snapshot.capacity, 1)
        if self._by_stakes is None:
            return Blocks(_NONE, _NONE, _NONE, np.zeros((len(unit), 0), dtype=np.int64), unit)
        scarce = self._by_stakes.scarce(snapshot)
        return Blocks(scarce.devices, scarce.cpu, scarce.memory, scarce.accepted, unit)

    def _new(self, snapshot: Snapshot, request: Request, world: World) -> tuple[Asked, Judged]:
        accepted = [not request.models or model in request.models for model in snapshot.models]
        asked = Asked(
            max(request.units, 1) if request.devices else 0,
            request.devices,
            request.cpu,
            request.memory,
            np.array([*accepted, not request.models]),
        )
        states = 2 if request.devices == 1 and self._by_stakes else 1
        count, number = len(snapshot.names), len(world.blocks.devices)
        judged = Judged(
            np.full((states, count), -np.inf),
            np.zeros((states, count), dtype=np.int16),
            np.zeros((count, (2 if request.devices == 1 else 1) * number), dtype=np.int8),
            np.zeros(count, dtype=bool),
        )
        return asked, judged


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
