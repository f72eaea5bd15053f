"""Plan few moves of pods that open a place for another pod, and say why other pods stay.

A pod may be moved if its owner consents and a controller replaces it, as far as pods, namespaces
and PodDisruptionBudgets tell; in doubt it stays. core/defrag.py chooses the moves. No I/O.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Protocol, Self

from gpushare.core.defrag import MovablePod, Planner
from gpushare.core.model import Request, Shares
from gpushare.core.mutable_cluster import MutableCluster, Placement
from gpushare.core.node_filters import OwnFilters
from gpushare.core.policy import Policy
from gpushare.core.preemption.victim_search import StepBudget
from gpushare.core.selectors import NO_DEMANDS, Demands
from gpushare.core.snapshot import Snapshot
from gpushare.core.states.entry import Entry
from gpushare.explain.placer import HostFilters, HostRoom, copied_cluster, rows_by_name
from gpushare.ledger import Reader
from gpushare.wire.annotations import strict_number
from gpushare.wire.budgets import DisruptionBudget
from gpushare.wire.demands import demands_of
from gpushare.wire.groups import NO_GROUP, group_of
from gpushare.wire.objects import Affinity, Metadata, Pod, PodSpec, controller_of

MOST_MOVES = 4
"""Moves of a plan, by default."""

MOST_STEPS = 1_000_000
"""Steps (core/defrag.py) of a search for a user who waits: some seconds."""

A_GLANCE = 50_000
"""Steps of a search beside another answer: a quarter of a second."""

LABEL = "gpushare.io/movable"
"""The label of a pod, or of its namespace, that lets the pod be moved. The pod's label wins."""

CHECKPOINT = "gpushare.io/checkpoint-seconds"
"""The annotation with the seconds between two checkpoints of a pod: a move loses no more work."""

LEAST_AGE = 600.0
"""Seconds that a pod must have run."""

_MOST_SECONDS = 10**9
_OWNERS = ("ReplicaSet", "StatefulSet")
"""Kinds of apps/v1 that replace a pod without counting a failure."""


class Rule(Enum):
    """Why a pod is not moved. The value is a sentence about the pod."""

    CONSENT = f'no label {LABEL}: "true" on it or its namespace'
    OWNER = "no ReplicaSet or StatefulSet makes it anew"
    GROUP = "it is of a group"
    PRIORITY = "its priority is above the waiting pod's"
    ENDING = "it is being deleted"
    AGE = "it has not run for 10 minutes"
    CONSTRAINTS = "volumes, claims, host ports, spread or affinity to pods may bind it"
    NO_BUDGET = "no PodDisruptionBudget covers it"
    BUDGETS = "several PodDisruptionBudgets cover it, so it cannot be evicted"
    SPENT = "its PodDisruptionBudget allows no disruption now"
    DEVICES = "its devices are not known, or closed"
    NO_PLACE = "it fits on no other node"


@dataclass(frozen=True, slots=True)
class MoveVerdict:
    """Whether a pod may be moved for any pod, and the cost of the move."""

    rule: Rule | None
    """Why it may not; None if it may."""
    lost: float | None = None
    """Lost seconds of work; None if unknown."""
    owner: str = ""
    """KIND/NAME of the controller that replaces it; "" if unknown."""
    disruptions: int | None = None
    """Disruptions that its budget allows; None if unknown."""


class MoveRules(Protocol):
    """The rules of a cluster."""

    def judge(self, entry: Entry) -> MoveVerdict:
        """Return the verdict about the pod."""


@dataclass(frozen=True)
class ListedRules:
    """The rules of a cluster that was listed."""

    pods: Mapping[str, Pod]
    """By uid."""
    namespaces: Mapping[str, Mapping[str, str]]
    """Labels of the namespaces that the user may read."""
    budgets: Sequence[DisruptionBudget]
    now: float
    """Seconds since the epoch."""

    @cached_property
    def demands(self) -> Mapping[str, Demands]:
        """The demands of the pods on nodes, by uid."""
        return {uid: demands_of(pod) for uid, pod in self.pods.items()}

    def judge(self, entry: Entry) -> MoveVerdict:
        """Return the first rule against the move of the pod, or its cost.

        Lost are the seconds since the start of the pod, or at worst since its last checkpoint.
        """
        pod, ref = self.pods.get(entry.ref.uid), entry.ref
        metadata = (pod and pod.metadata) or Metadata()
        labels, annotations = metadata.labels or {}, metadata.annotations or {}
        consent = labels.get(LABEL, self.namespaces.get(ref.namespace, {}).get(LABEL))
        if pod is None or consent != "true":
            return MoveVerdict(Rule.CONSENT)
        owner = controller_of(pod)
        if owner is None or owner.kind not in _OWNERS or owner.api_version != "apps/v1":
            return MoveVerdict(Rule.OWNER)
        if group_of(pod) != NO_GROUP:
            return MoveVerdict(Rule.GROUP)
        if entry.terminating:
            return MoveVerdict(Rule.ENDING)
        if not entry.running or not 0 < entry.started <= self.now - LEAST_AGE:
            return MoveVerdict(Rule.AGE)
        if _is_bound_by_more(pod):
            return MoveVerdict(Rule.CONSTRAINTS)
        covering = [
            budget for budget in self.budgets if budget.covers(ref.namespace, ref.name, labels)
        ]
        if len(covering) != 1:
            return MoveVerdict(Rule.BUDGETS if covering else Rule.NO_BUDGET)
        lost_seconds = max(self.now - entry.started, 0.0)
        disruptions = covering[0].allowed_disruptions
        interval = strict_number(annotations.get(CHECKPOINT, ""), _MOST_SECONDS)
        lost_seconds = lost_seconds if interval is None else min(lost_seconds, float(interval))
        rule = None if disruptions > 0 else Rule.SPENT
        return MoveVerdict(rule, lost_seconds, f"{owner.kind}/{owner.name}", disruptions)


def _is_bound_by_more(pod: Pod) -> bool:
    """Return whether constraints of the pod depend on more than the nodes."""
    spec = pod.spec or PodSpec()
    affinity = spec.affinity or Affinity()
    return bool(
        affinity.pod_affinity
        or affinity.pod_anti_affinity
        or spec.topology_spread_constraints
        or spec.host_network
        or any(
            port.host_port for container in spec.containers or () for port in container.ports or ()
        )
        or spec.resource_claims
        or any(
            volume.host_path or volume.persistent_volume_claim or volume.ephemeral
            for volume in spec.volumes or ()
        )
        or not demands_of(pod).is_complete
    )


@dataclass(frozen=True)
class NamedPods:
    """Rules by pod names alone, for a saved report: the user names the movable pods."""

    patterns: Sequence[str]
    """Patterns of NAMESPACE/NAME with `*` and `?`."""

    def judge(self, entry: Entry) -> MoveVerdict:
        """Return a verdict without consent unless a pattern names the pod."""
        is_named = any(fnmatchcase(str(entry.ref), pattern) for pattern in self.patterns)
        return MoveVerdict(None if is_named else Rule.CONSENT)


@dataclass(frozen=True, slots=True)
class Hole:
    """The place that moves have to open."""

    request: Request
    priority: int = 0
    """Priority of the pending pod."""
    demands: Demands = NO_DEMANDS


@dataclass(frozen=True, slots=True)
class PodMove:
    """A pod, and the place that it moves to."""

    entry: Entry
    node: str
    shares: Shares
    lost: float | None
    """Lost seconds of work; None if unknown."""
    units: int
    """The charged units on all devices, before the move."""
    gpu_hours: float
    """The lost work in hours of a whole device."""
    owner: str
    """KIND/NAME of the controller that replaces it."""
    disruptions: int | None
    """Disruptions that its budget allows now."""

    @property
    def devices(self) -> tuple[int, ...]:
        """The devices after the move."""
        return tuple(device for device, _ in self.shares)


@dataclass(frozen=True, slots=True)
class UnmovedPod:
    """A pod that is not moved, and the rule against the move."""

    entry: Entry
    rule: Rule


@dataclass(frozen=True, slots=True)
class DefragAnswer:
    """The moves that open the hole, in their order."""

    node: str
    """The node of the hole; "" if no plan was found."""
    shares: Shares
    """The devices of the hole."""
    moves: tuple[PodMove, ...]
    stays: tuple[UnmovedPod, ...]
    """The remaining pods with devices on that node; without a plan, on all candidates."""
    candidates: int
    """The number of nodes that could have the hole."""
    is_complete: bool
    """Whether the search was complete, if no plan was found."""

    @property
    def devices(self) -> tuple[int, ...]:
        """The devices of the hole."""
        return tuple(device for device, _ in self.shares)

    @property
    def unit_seconds(self) -> float | None:
        """The cost of the moves: lost seconds times units; None if unknown."""
        if any(move.lost is None for move in self.moves):
            return None
        return sum(move.units * (move.lost or 0.0) for move in self.moves)


@dataclass(frozen=True, slots=True)
class CopiedBooks:
    """A cluster in memory with the nodes and the charges of books, for pods that may leave."""

    snapshot: Snapshot
    entries: Mapping[str, Entry]
    """By uid."""
    cluster: MutableCluster
    host: HostRoom

    @classmethod
    def of(cls, ledger: Reader, own_filters: OwnFilters, policy: Policy) -> Self:
        """Return a copy of the books. own_filters: kube-scheduler's filters."""
        snapshot, (entries, _) = ledger.snapshot(), ledger.entries_and_specs()
        filters = HostFilters(own_filters, snapshot.names)
        nodes = copied_cluster(snapshot, rows_by_name(snapshot), filters, policy)
        return cls(snapshot, entries, *nodes)

    def placement(self, entry: Entry) -> Placement | None:
        """Return the place of the pod; None if the books do not tell exactly what its end frees."""
        row, shares = self.cluster.view.row.get(entry.node), entry.placement or ()
        exact = sorted((units for _, units in shares), reverse=True) == list(entry.request.parts)
        if row is None or not exact or not entry.known_bound:
            return None
        place = self.snapshot.row[entry.node], [device for device, _ in shares]
        fine = self.snapshot.used[place] <= self.snapshot.capacity[place]
        fine &= self.snapshot.open[place]
        return Placement(row, shares, entry.request) if fine.all() else None


def find_moves(
    ledger: Reader,
    hole: Hole,
    rules: MoveRules,
    policy: Policy,
    own_filters: OwnFilters,
    *,
    max_moves: int,
    demands: Mapping[str, Demands],
    steps: int = MOST_STEPS,
) -> DefragAnswer:
    """Return the fewest moves, up to the limit, that open the hole. Nothing is changed.

    own_filters: kube-scheduler's filters. demands: of running pods on nodes, by uid.
    """
    books = CopiedBooks.of(ledger, own_filters, policy)
    entries, cluster, view = books.entries, books.cluster, books.cluster.view
    verdicts: dict[str, MoveVerdict] = {}
    rule_of: dict[str, Rule | None] = {}
    movers: dict[str, MovablePod] = {}
    for uid, entry in entries.items():
        if not entry.request.devices or entry.node not in view.row:
            continue
        above = Rule.PRIORITY if entry.priority > hole.priority else None
        verdicts[uid] = verdict = rules.judge(entry)
        placement = books.placement(entry)
        rule_of[uid] = verdict.rule or above or (None if placement else Rule.DEVICES)
        if rule_of[uid] is None and placement is not None:
            capacity = view.capacity[placement.row].tolist()
            cost = entry.units(capacity) * (verdict.lost or 0.0)
            demanded = demands.get(uid, NO_DEMANDS)
            movers[uid] = MovablePod(f"{entry.ref} {uid}", placement, cost, demanded)
    planner = Planner(cluster, movers.values(), books.host)
    budget = StepBudget(steps)
    plan = planner.plan(hole.request, max_moves, budget, hole.demands)
    candidates = planner.rows_for(hole.request, hole.demands)
    uids = {mover.name: uid for uid, mover in movers.items()}
    moves = {uids[move.mover.name]: move for move in plan.moves} if plan else {}
    for uid, mover in movers.items():
        if uid not in moves and not planner.has_place(mover):
            rule_of[uid] = Rule.NO_PLACE
    nodes = {view.names[row] for row in ([plan.hole.row] if plan else candidates)}
    stays = [
        UnmovedPod(entries[uid], rule)
        for uid, rule in rule_of.items()
        if rule is not None and entries[uid].node in nodes
    ]
    return DefragAnswer(
        node=view.names[plan.hole.row] if plan else "",
        shares=plan.hole.shares if plan else (),
        moves=tuple(
            _move(entries[uid], move.to, verdicts[uid], books.snapshot, view.names)
            for uid, move in moves.items()
        ),
        stays=tuple(sorted(stays, key=lambda pod: str(pod.entry.ref))),
        candidates=len(candidates),
        is_complete=budget.remaining > 0,
    )


def _move(
    entry: Entry, to: Placement, verdict: MoveVerdict, snapshot: Snapshot, names: tuple[str, ...]
) -> PodMove:
    lost_seconds, capacity = verdict.lost, snapshot.capacity[snapshot.row[entry.node]].tolist()
    cards = sum(units / capacity[device] for device, units in entry.charges(capacity))
    hours = cards * (lost_seconds or 0.0) / 3600
    return PodMove(
        entry=entry,
        node=names[to.row],
        shares=to.shares,
        lost=lost_seconds,
        units=entry.units(capacity),
        gpu_hours=hours,
        owner=verdict.owner,
        disruptions=verdict.disruptions,
    )
