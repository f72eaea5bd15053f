"""A plan of few moves on books: what would open a place for a pod, and what keeps pods where they
are.

Which pods may be moved: movable.py; which of them are: core/defrag.py. No I/O.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from gpushare.core.defrag import Mover, Planner
from gpushare.core.model import Request, Shares
from gpushare.core.mutable_cluster import MutableCluster, Placement, ranking
from gpushare.core.node_filters import OwnFilters
from gpushare.core.policy import Policy
from gpushare.core.preemption.victim_search import StepBudget
from gpushare.core.selectors import NO_DEMANDS, Demands
from gpushare.core.snapshot import Snapshot
from gpushare.core.states.entry import Entry
from gpushare.core.trial_streams import mutable
from gpushare.explain.host_room import HostFilters, HostRoom
from gpushare.explain.movable import MoveRules, Rule
from gpushare.explain.whatif import rows_by_name
from gpushare.ledger import Reader

MOST_MOVES = 4
"""Of a plan, if nobody says another number."""

MOST_STEPS = 1_000_000
"""Of a search whose answer is waited for: some seconds. What its steps are: core/defrag.py."""

A_GLANCE = 50_000
"""Of a search that must not delay another answer: a quarter of a second."""


@dataclass(frozen=True, slots=True)
class Hole:
    """The place that is wanted."""

    request: Request
    priority: int = 0
    """That of the pod that waits for it."""
    demands: Demands = NO_DEMANDS


@dataclass(frozen=True, slots=True)
class PodMove:
    """A pod that is moved."""

    entry: Entry
    node: str
    shares: Shares
    lost: float | None
    """Seconds of work that are lost, None if not known."""
    gpu_hours: float
    """The lost work, in hours of a whole device."""
    owner: str
    """What makes it anew."""
    allowed: int | None
    """Disruptions that its budget allows now."""

    @property
    def devices(self) -> tuple[int, ...]:
        """Those that it has then."""
        return tuple(device for device, _ in self.shares)


@dataclass(frozen=True, slots=True)
class Stays:
    """A pod that is not moved, and why."""

    entry: Entry
    rule: Rule


@dataclass(frozen=True, slots=True)
class DefragAnswer:
    """Which moves open the hole, in their order."""

    node: str
    """Where the hole is then; "" if no plan was found."""
    shares: Shares
    """Its devices there."""
    moves: tuple[PodMove, ...]
    stays: tuple[Stays, ...]
    """Who else is on that node and holds devices; without a plan who is on all nodes that could
    have the place."""
    able: int
    """How many nodes could have the place."""
    every: bool
    """Whether all plans were tried, if none is found."""

    @property
    def devices(self) -> tuple[int, ...]:
        """Those of the hole."""
        return tuple(device for device, _ in self.shares)

    @property
    def unit_seconds(self) -> float | None:
        """What the moves cost: lost seconds times units; None if not known."""
        if any(move.lost is None for move in self.moves):
            return None
        return sum(move.entry.request.total * (move.lost or 0.0) for move in self.moves)


def find_moves(
    ledger: Reader,
    hole: Hole,
    rules: MoveRules,
    policy: Policy,
    own: OwnFilters,
    *,
    most: int,
    demands: Mapping[str, Demands],
    steps: int = MOST_STEPS,
) -> DefragAnswer:
    """Return the fewest moves, at most so many, that open the hole. Nothing is changed.

    own: kube-scheduler's filters. demands: of nodes, of pods that run, by uid.
    """
    snapshot, (entries, _) = ledger.snapshot(), ledger.entries_and_specs()
    rows = rows_by_name(snapshot)
    view = mutable(snapshot, rows, empty=False)
    cluster = MutableCluster(view, ranking(policy, len(rows)))
    room = HostRoom(HostFilters(own, snapshot.names), rows)
    verdicts: dict[str, Rule | None] = {}
    movers: dict[str, Mover] = {}
    for uid, entry in entries.items():
        if not entry.request.devices or entry.node not in view.row:
            continue
        above = Rule.PRIORITY if entry.priority > hole.priority else None
        verdicts[uid] = rules.why_not(entry) or above or _why_not_counted(entry, snapshot)
        if verdicts[uid] is None:
            placement = Placement(view.row[entry.node], entry.placement or (), entry.request)
            cost = entry.request.total * (rules.lost(entry) or 0.0)
            demanded = demands.get(uid, NO_DEMANDS)
            movers[uid] = Mover(f"{entry.ref} {uid}", placement, cost, demanded)
    planner = Planner(cluster, movers.values(), room)
    budget = StepBudget(steps)
    plan = planner.plan(hole.request, most, budget, hole.demands)
    able = planner.rows_for(hole.request, hole.demands)
    uids = {mover.name: uid for uid, mover in movers.items()}
    moved = {uids[move.mover.name]: move for move in plan.moves} if plan else {}
    for uid, mover in movers.items():
        if uid not in moved and not planner.has_place(mover):
            verdicts[uid] = Rule.NO_PLACE
    where = {view.names[row] for row in ([plan.hole.row] if plan else able)}
    stays = [
        Stays(entries[uid], rule)
        for uid, rule in verdicts.items()
        if rule is not None and entries[uid].node in where
    ]
    return DefragAnswer(
        view.names[plan.hole.row] if plan else "",
        plan.hole.shares if plan else (),
        tuple(
            _move(entries[uid], move.to, rules, snapshot, view.names) for uid, move in moved.items()
        ),
        tuple(sorted(stays, key=lambda each: str(each.entry.ref))),
        len(able),
        budget.left > 0,
    )


def _why_not_counted(entry: Entry, snapshot: Snapshot) -> Rule | None:
    """Return why the books do not tell exactly what its end frees; None if they do."""
    request, row = entry.request, snapshot.row[entry.node]
    shares = entry.placement or ()
    exact = sorted((units for _, units in shares), reverse=True) == list(request.parts)
    if not exact or not entry.known_bound:
        return Rule.DEVICES
    devices = [device for device, _ in shares]
    fine = snapshot.open[row, devices]
    fine = fine & (snapshot.used[row, devices] <= snapshot.capacity[row, devices])
    return None if fine.all() else Rule.DEVICES


def _move(
    entry: Entry, to: Placement, rules: MoveRules, snapshot: Snapshot, names: tuple[str, ...]
) -> PodMove:
    lost = rules.lost(entry)
    capacity = snapshot.capacity[snapshot.row[entry.node]].tolist()
    cards = sum(units / capacity[device] for device, units in entry.placement or ())
    hours = cards * (lost or 0.0) / 3600
    owner, allowed = rules.owner(entry), rules.allowed(entry)
    return PodMove(entry, names[to.row], to.shares, lost, hours, owner, allowed)
