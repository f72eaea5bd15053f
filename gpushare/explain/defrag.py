"""A plan of few moves on books: what would open a place for a pod, and what keeps pods where they
are.

Pods may be moved whose owner says so, and that come back by themselves, as pods, namespaces and
PodDisruptionBudgets say; in doubt a pod stays where it is. Which of them are moved:
core/defrag.py. No I/O.

Tested in `tests/unit/cli/test_defrag.py`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from fnmatch import fnmatchcase
from typing import Protocol

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
from gpushare.explain.placer import HostFilters, HostRoom, rows_by_name
from gpushare.ledger import Reader
from gpushare.wire.annotations import strict_number
from gpushare.wire.budgets import DisruptionBudget
from gpushare.wire.demands import demands_of
from gpushare.wire.groups import NO_GROUP, group_of, may_wait
from gpushare.wire.objects import Metadata, OwnedPod, OwnedPodSpec, PodsAffinity
from gpushare.wire.pods import controller_of

MOST_MOVES = 4
"""Of a plan, if nobody says another number."""

MOST_STEPS = 1_000_000
"""Of a search whose answer is waited for: some seconds. What its steps are: core/defrag.py."""

A_GLANCE = 50_000
"""Of a search that must not delay another answer: a quarter of a second."""

LABEL = "gpushare.io/movable"
"""The label of a pod, or of its namespace, by which it may be moved; the pod's own wins."""

CHECKPOINT = "gpushare.io/checkpoint-seconds"
"""The annotation that says how often a pod saves its work: no more than that is lost."""

LEAST_AGE = 600.0
"""Seconds that a pod has to have run."""

_MOST_SECONDS = 10**9
_OWNERS = ("ReplicaSet", "StatefulSet")
"""Kinds of apps/v1 that make a pod anew for which no failure counts."""


class Rule(Enum):
    """Why a pod is not moved. The value says it in a sentence about the pod."""

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
class Verdict:
    """Whether a pod may be moved, whatever it is moved for, and what is known of its move."""

    rule: Rule | None
    """Why it may not; None if it may."""
    lost: float | None = None
    """The seconds of work that are lost; None if that is not known."""
    owner: str = ""
    """KIND/NAME of what makes it anew; "" if that is not known."""
    allowed: int | None = None
    """How many disruptions its budget allows; None if that is not known."""


class MoveRules(Protocol):
    """The rules of a cluster."""

    def judge(self, entry: Entry) -> Verdict:
        """Return what they say of the pod."""


@dataclass(frozen=True)
class ListedRules:
    """The rules of a cluster that was listed."""

    pods: Mapping[str, OwnedPod]
    """By uid."""
    namespaces: Mapping[str, Mapping[str, str]]
    """Their labels, as far as they may be read."""
    budgets: Sequence[DisruptionBudget]
    now: float
    """Seconds since the epoch."""

    def judge(self, entry: Entry) -> Verdict:
        """Return the first rule against the pod, else what is known of its move.

        Lost are the seconds since it started, or since its last checkpoint at worst.
        """
        pod, ref = self.pods.get(entry.ref.uid), entry.ref
        metadata = (pod and pod.metadata) or Metadata()
        labels, annotations = metadata.labels or {}, metadata.annotations or {}
        consent = labels.get(LABEL, self.namespaces.get(ref.namespace, {}).get(LABEL))
        if pod is None or consent != "true":
            return Verdict(Rule.CONSENT)
        owner = controller_of(pod)
        if owner is None or owner.kind not in _OWNERS or owner.api_version != "apps/v1":
            return Verdict(Rule.OWNER)
        if group_of(pod) != NO_GROUP:
            return Verdict(Rule.GROUP)
        if entry.terminating:
            return Verdict(Rule.ENDING)
        if not entry.running or not 0 < entry.started <= self.now - LEAST_AGE:
            return Verdict(Rule.AGE)
        if _is_bound_by_more(pod):
            return Verdict(Rule.CONSTRAINTS)
        covering = [each for each in self.budgets if each.covers(ref.namespace, ref.name, labels)]
        if len(covering) != 1:
            return Verdict(Rule.BUDGETS if covering else Rule.NO_BUDGET)
        lost, allowed = max(self.now - entry.started, 0.0), covering[0].allowed_disruptions
        interval = strict_number(annotations.get(CHECKPOINT, ""), _MOST_SECONDS)
        lost = lost if interval is None else min(lost, float(interval))
        rule = None if allowed > 0 else Rule.SPENT
        return Verdict(rule, lost, f"{owner.kind}/{owner.name}", allowed)


def _is_bound_by_more(pod: OwnedPod) -> bool:
    """Return whether it says more of where it may be than nodes show."""
    spec = pod.spec or OwnedPodSpec()
    affinity = spec.affinity or PodsAffinity()
    return bool(
        affinity.pod_affinity
        or affinity.pod_anti_affinity
        or spec.topology_spread_constraints
        or spec.host_network
        or any(
            port.host_port for container in spec.containers or () for port in container.ports or ()
        )
        or any(volume.host_path for volume in spec.volumes or ())
        or may_wait(pod)
        or not demands_of(pod).known
    )


@dataclass(frozen=True)
class NamedPods:
    """The rules where only the names of pods are known: whoever asks says which may move."""

    patterns: Sequence[str]
    """Of NAMESPACE/NAME, with `*` and `?`."""

    def judge(self, entry: Entry) -> Verdict:
        """Return that it consents to nothing if no pattern names it."""
        named = any(fnmatchcase(str(entry.ref), pattern) for pattern in self.patterns)
        return Verdict(None if named else Rule.CONSENT)


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
    verdicts: dict[str, Verdict] = {}
    against: dict[str, Rule | None] = {}
    movers: dict[str, Mover] = {}
    for uid, entry in entries.items():
        if not entry.request.devices or entry.node not in view.row:
            continue
        above = Rule.PRIORITY if entry.priority > hole.priority else None
        verdicts[uid] = verdict = rules.judge(entry)
        against[uid] = verdict.rule or above or _why_not_counted(entry, snapshot)
        if against[uid] is None:
            placement = Placement(view.row[entry.node], entry.placement or (), entry.request)
            cost = entry.request.total * (verdict.lost or 0.0)
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
            against[uid] = Rule.NO_PLACE
    where = {view.names[row] for row in ([plan.hole.row] if plan else able)}
    stays = [
        Stays(entries[uid], rule)
        for uid, rule in against.items()
        if rule is not None and entries[uid].node in where
    ]
    return DefragAnswer(
        view.names[plan.hole.row] if plan else "",
        plan.hole.shares if plan else (),
        tuple(
            _move(entries[uid], move.to, verdicts[uid], snapshot, view.names)
            for uid, move in moved.items()
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
    entry: Entry, to: Placement, verdict: Verdict, snapshot: Snapshot, names: tuple[str, ...]
) -> PodMove:
    lost, capacity = verdict.lost, snapshot.capacity[snapshot.row[entry.node]].tolist()
    cards = sum(units / capacity[device] for device, units in entry.placement or ())
    hours = cards * (lost or 0.0) / 3600
    return PodMove(entry, names[to.row], to.shares, lost, hours, verdict.owner, verdict.allowed)
