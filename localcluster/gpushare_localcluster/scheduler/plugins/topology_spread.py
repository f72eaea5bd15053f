"""PodTopologySpread: spreads pods evenly over zones, nodes, or other topology domains.

A constraint of DoNotSchedule rejects nodes where the skew would be too large; ScheduleAnyway only
lowers their score. Pods without constraints that belong to a Service, a ReplicaSet or the like are
spread by default constraints, soft ones for nodes and zones.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from gpushare.core.selectors import untolerated
from gpushare.errors import SettingsError
from gpushare.wire.fields import Fields, fields_of, items, number, text
from gpushare.wire.label_selectors import selects
from gpushare_localcluster.scheduler import framework as fwk
from gpushare_localcluster.scheduler.cache import NodeInfo
from gpushare_localcluster.scheduler.cluster_events import Action, Change, EventWithHint, Resource
from gpushare_localcluster.scheduler.framework import CycleState
from gpushare_localcluster.scheduler.handle import Handle, PlainPlugin
from gpushare_localcluster.scheduler.objects import Json, NodeView, PodView
from gpushare_localcluster.scheduler.plugins.node import required_affinity

HOSTNAME = "kubernetes.io/hostname"
SYSTEM_DEFAULTS = (
    {"topologyKey": HOSTNAME, "whenUnsatisfiable": "ScheduleAnyway", "maxSkew": 3},
    {
        "topologyKey": "topology.kubernetes.io/zone",
        "whenUnsatisfiable": "ScheduleAnyway",
        "maxSkew": 5,
    },
)
"""The constraints of kube-scheduler for pods without constraints."""


@dataclass(frozen=True)
class Constraint:
    """One constraint of a pod. selector: a LabelSelector, with matchLabelKeys included."""

    max_skew: int
    key: str
    selector: Json | None
    min_domains: int
    honor_affinity: bool
    honor_taints: bool

    def counts(self, pod: PodView, node: NodeInfo) -> bool:
        """Return whether the node's pods count; by default on nodes that the pod selects."""
        if self.honor_affinity and not required_affinity(pod, node.node):
            return False
        return not (self.honor_taints and untolerated(node.node.taints, pod.tolerations))

    def matching(self, pod: PodView, node: NodeInfo) -> int:
        """Return how many pods on the node match the selector."""
        if not self.selector:  # an empty selector counts no pod
            return 0
        return sum(
            node_pod.namespace == pod.namespace
            and not node_pod.deleting
            and selects(self.selector, node_pod.labels)
            for node_pod in node.pods.values()
        )


def check_defaults(constraints: Sequence[object]) -> list[Json]:
    """Return valid default constraints. Raises SettingsError."""
    checked: list[Json] = []
    for index, item in enumerate(constraints):
        path = f"defaultConstraints[{index}]"
        entry = fields_of(item, path)
        if number(entry, "maxSkew", path) <= 0 or not text(entry, "topologyKey", path):
            raise SettingsError(f"{path}: needs a maxSkew above 0, and a topologyKey")
        if entry.get("whenUnsatisfiable") not in ("DoNotSchedule", "ScheduleAnyway"):
            raise SettingsError(f"{path}.whenUnsatisfiable: DoNotSchedule or ScheduleAnyway")
        if entry.get("labelSelector") is not None:
            raise SettingsError(f"{path}.labelSelector: must not be; it is found for each pod")
        checked.append(dict(entry))
    return checked


def constraints_of(
    pod: PodView, constraints: Sequence[Json], action: str
) -> tuple[Constraint, ...]:
    """Return the constraints of one whenUnsatisfiable."""
    return tuple(
        Constraint(
            max_skew=int(item.get("maxSkew") or 1),
            key=str(item.get("topologyKey") or ""),
            selector=_selector(pod, item),
            min_domains=int(item.get("minDomains") or 1),
            honor_affinity=item.get("nodeAffinityPolicy", "Honor") == "Honor",
            honor_taints=item.get("nodeTaintsPolicy", "Ignore") == "Honor",
        )
        for item in constraints
        if item.get("whenUnsatisfiable") == action
    )


def _selector(pod: PodView, item: Json) -> Json | None:
    """Return the label selector with the pod's own values of the keys in matchLabelKeys."""
    selector: Json | None = item.get("labelSelector")
    keys = [key for key in item.get("matchLabelKeys") or () if key in pod.labels]
    if selector is None or not keys:
        return selector
    more = [{"key": key, "operator": "In", "values": [pod.labels[key]]} for key in keys]
    return {**selector, "matchExpressions": [*(selector.get("matchExpressions") or ()), *more]}


_FILTER_KEY, _SCORE_KEY = "PreFilterPodTopologySpread", "PreScorePodTopologySpread"


class _Counts:
    """The result of PreFilter: the pods in each domain, by constraint."""

    def __init__(self, constraints: Sequence[Constraint], counts: Sequence[Counter[str]]) -> None:
        self.constraints = constraints
        self.counts = counts

    def clone(self) -> "_Counts":
        return _Counts(self.constraints, [Counter(count) for count in self.counts])

    def change(self, pod: PodView, changed_pod: PodView, node: NodeInfo, by: int) -> None:
        """Count a pod that is added to the node, or removed."""
        labels = node.node.labels
        if changed_pod.namespace != pod.namespace or any(
            c.key not in labels for c in self.constraints
        ):
            return
        for constraint, count in zip(self.constraints, self.counts, strict=True):
            if selects(constraint.selector, changed_pod.labels) and constraint.counts(pod, node):
                count[labels[constraint.key]] += by


@dataclass(frozen=True)
class _Soft:
    """The result of PreScore; the nodes in `ignored` lack a topology label and score 0."""

    constraints: Sequence[Constraint]
    counts: Sequence[Mapping[str | None, int]]
    weights: Sequence[float]
    ignored: frozenset[str]


class PodTopologySpread(PlainPlugin):
    """Rejects and scores nodes by the pod's topologySpreadConstraints, or the default ones.

    args: `defaultingType` System or List, and the `defaultConstraints` of a List.
    """

    name = "PodTopologySpread"

    def __init__(self, args: Fields | None = None, handle: Handle | None = None) -> None:
        """Make the plug-in. Raises SettingsError."""
        super().__init__(args, handle)
        kind = text(args or {}, "defaultingType") or "System"
        defaults = items(args or {}, "defaultConstraints")
        if kind not in ("System", "List") or (defaults and kind == "System"):
            raise SettingsError(
                "defaultingType: must be System, or List where there are defaultConstraints"
            )
        self._system = kind == "System"
        self._defaults: Sequence[Json] = (
            SYSTEM_DEFAULTS if self._system else check_defaults(defaults)
        )
        if self._defaults:
            self._handle.spreads_by_default = True

    def _constraints(self, pod: PodView, action: str) -> tuple[Constraint, ...]:
        """Return the pod's constraints of one whenUnsatisfiable, or else the default ones."""
        pod_constraints = pod.spec.get("topologySpreadConstraints")
        if pod_constraints:
            return constraints_of(pod, pod_constraints, action)
        defaults = constraints_of(pod, self._defaults, action)
        selector = self._handle.default_selector(pod) if defaults else None
        return tuple(replace(c, selector=selector) for c in defaults) if selector else ()

    def events_to_register(self) -> tuple[EventWithHint, ...]:
        """Return the events: changes of counted pods, of domains, or of the pod itself."""
        labels, taints = Action.UPDATE_POD_LABEL, Action.UPDATE_NODE_TAINT
        pods, pod_actions = (
            Action.ADD | Action.DELETE | labels,
            labels | Action.UPDATE_POD_TOLERATION,
        )
        nodes = Action.ADD | Action.DELETE | Action.UPDATE_NODE_LABEL | taints
        return (
            EventWithHint(Resource.ASSIGNED_POD, pods, self._counts_otherwise),
            EventWithHint(Resource.TARGET_POD, pod_actions, self._counts_otherwise),
            EventWithHint(Resource.NODE, nodes, self._other_domains),
        )

    def _counts_otherwise(self, pod: PodView, change: Change) -> bool:
        """Return whether a constraint selects one state of the changed pod, old or new."""
        old, new = change.old_pod, change.new_pod
        constraints = self._constraints(pod, "DoNotSchedule")
        tolerated = change.action & Action.UPDATE_POD_TOLERATION
        if tolerated and new and new.uid == pod.uid and any(c.honor_taints for c in constraints):
            return True

        def counts(constraint: Constraint, candidate: PodView | None) -> bool:
            if candidate is None or candidate.namespace != pod.namespace:
                return False
            return selects(constraint.selector, candidate.labels)

        return any(counts(constraint, old) != counts(constraint, new) for constraint in constraints)

    def _other_domains(self, pod: PodView, change: Change) -> bool:
        """Return whether the changed node counts differently."""
        old, new = change.old_node, change.new_node
        constraints = self._constraints(pod, "DoNotSchedule")
        before = old is not None and _has_all(old, constraints)
        if before != (new is not None and _has_all(new, constraints)):
            return True
        if not before or old is None or new is None:
            return False
        keys = [constraint.key for constraint in constraints]
        return old.taints != new.taints or any(old.labels[k] != new.labels[k] for k in keys)

    def pre_filter(
        self, state: CycleState, pod: PodView, nodes: Sequence[NodeInfo]
    ) -> tuple[fwk.NodeNames | None, fwk.Status]:
        """Count the pods in each domain; return Skip for a pod without a hard constraint."""
        constraints = self._constraints(pod, "DoNotSchedule")
        if not constraints:
            return None, fwk.SKIP
        counts: list[Counter[str]] = [Counter() for _ in constraints]
        for node in nodes:
            labels = node.node.labels
            if not _has_all(node.node, constraints):
                continue
            for constraint, count in zip(constraints, counts, strict=True):
                if constraint.counts(pod, node):
                    count[labels[constraint.key]] += constraint.matching(pod, node)
        state.write(_FILTER_KEY, _Counts(constraints, counts))
        return None, fwk.SUCCESS

    def add_pod(self, state: CycleState, pod: PodView, other: PodView, node: NodeInfo) -> None:
        """Count `other` on the node."""
        state.read(_FILTER_KEY, _Counts).change(pod, other, node, 1)

    def remove_pod(self, state: CycleState, pod: PodView, other: PodView, node: NodeInfo) -> None:
        """Count `other` on the node no longer."""
        state.read(_FILTER_KEY, _Counts).change(pod, other, node, -1)

    def filter(self, state: CycleState, pod: PodView, node: NodeInfo) -> fwk.Status:
        """Return Success, or the objection to a missing label or a too large skew."""
        counts = state.read(_FILTER_KEY, _Counts)
        for constraint, count in zip(counts.constraints, counts.counts, strict=True):
            domain = node.node.labels.get(constraint.key)
            reason = "node(s) didn't match pod topology spread constraints"
            if domain is None:
                return fwk.Status(fwk.Code.UNRESOLVABLE, (f"{reason} (missing required label)",))
            minimum = min(count.values(), default=2**31)
            if len(count) < constraint.min_domains:
                minimum = 0
            matches_itself = selects(constraint.selector, pod.labels)
            if count[domain] + matches_itself - minimum > constraint.max_skew:
                return fwk.Status(fwk.Code.UNSCHEDULABLE, (reason,))
        return fwk.SUCCESS

    def pre_score(self, state: CycleState, pod: PodView, nodes: Sequence[NodeInfo]) -> fwk.Status:
        """Count the pods in each domain of `nodes`; return Skip without a soft constraint."""
        constraints = self._constraints(pod, "ScheduleAnyway")
        if not constraints:
            return fwk.SKIP
        # With the system defaults a node without a zone counts by its host name alone.
        partly = self._system and not pod.spec.get("topologySpreadConstraints")
        ignored = frozenset(n.name for n in nodes if not (partly or _has_all(n.node, constraints)))
        counts: list[dict[str | None, int]] = [
            {}
            if constraint.key == HOSTNAME
            else {n.node.labels.get(constraint.key): 0 for n in nodes if n.name not in ignored}
            for constraint in constraints
        ]
        sizes = [len(count) for count in counts]
        for index, constraint in enumerate(constraints):
            if constraint.key == HOSTNAME:
                sizes[index] = len(nodes) - len(ignored)
        for node in self._handle.snapshot.nodes:
            if not (partly or _has_all(node.node, constraints)):
                continue
            for constraint, count in zip(constraints, counts, strict=True):
                domain = node.node.labels.get(constraint.key)
                if domain in count and constraint.counts(pod, node):
                    count[domain] += constraint.matching(pod, node)
        weights = [math.log(size + 2) for size in sizes]
        state.write(_SCORE_KEY, _Soft(constraints, counts, weights, ignored))
        return fwk.SUCCESS

    def score(self, state: CycleState, pod: PodView, node: NodeInfo) -> int:
        """Return the raw score, which grows with the pods in the node's domains."""
        soft = state.read(_SCORE_KEY, _Soft)
        if node.name in soft.ignored:
            return 0
        total = 0.0
        for constraint, count, weight in zip(
            soft.constraints, soft.counts, soft.weights, strict=True
        ):
            if constraint.key not in node.node.labels:
                continue
            pods = (
                constraint.matching(pod, node)
                if constraint.key == HOSTNAME
                else count[node.node.labels[constraint.key]]
            )
            total += pods * weight + (constraint.max_skew - 1)
        return math.floor(total + 0.5)

    def normalize_score(
        self, state: CycleState, pod: PodView, scores: Mapping[str, int]
    ) -> dict[str, int]:
        """Return 100 for the least crowded nodes, 0 for nodes without the labels."""
        ignored = state.read(_SCORE_KEY, _Soft).ignored
        rated = [score for name, score in scores.items() if name not in ignored]
        maximum, minimum = max(rated, default=0), min(rated, default=0)
        return {
            name: 0
            if name in ignored
            else fwk.MAX_NODE_SCORE * (maximum + minimum - score) // maximum
            if maximum
            else fwk.MAX_NODE_SCORE
            for name, score in scores.items()
        }


def _has_all(node: NodeView, constraints: Sequence[Constraint]) -> bool:
    return all(constraint.key in node.labels for constraint in constraints)
