"""InterPodAffinity: affinity and anti-affinity between pods.

Nodes with the same value of a label, the term's topologyKey, are one topology domain: a pair of a
label and its value. The anti-affinity of running pods counts as well as that of the new pod.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpushare.errors import SettingsError
from gpushare.wire.fields import Fields, flag, number
from gpushare_localcluster.scheduler import framework as fwk
from gpushare_localcluster.scheduler.cache import NodeInfo
from gpushare_localcluster.scheduler.cluster_events import Action, Change, EventWithHint, Resource
from gpushare_localcluster.scheduler.framework import CycleState
from gpushare_localcluster.scheduler.handle import Handle
from gpushare_localcluster.scheduler.objects import AffinityTerm, PodView, affinity_terms

_FILTER_KEY, _SCORE_KEY = "PreFilterInterPodAffinity", "PreScoreInterPodAffinity"
_NEAR, _AWAY = "podAffinity", "podAntiAffinity"

Places = Counter[tuple[str, str]]
"""Counts by topology domain (label, value)."""


@dataclass
class _Found:
    """The result of PreFilter: the pod's required terms, and counts by topology domain.

    near, away: pods that match the pod's affinity and anti-affinity. unwelcome: pods with an
    anti-affinity that matches the pod.
    """

    affinity: tuple[AffinityTerm, ...]
    anti: tuple[AffinityTerm, ...]
    near: Places
    away: Places
    unwelcome: Places

    def clone(self) -> "_Found":
        return _Found(
            self.affinity,
            self.anti,
            Counter(self.near),
            Counter(self.away),
            Counter(self.unwelcome),
        )


class InterPodAffinity:
    """Rejects nodes by required terms, and scores nodes by preferred terms.

    args: `hardPodAffinityWeight` (1), the weight of a running pod's required affinity;
    `ignorePreferredTermsOfExistingPods`.
    """

    name = "InterPodAffinity"

    def __init__(self, args: Fields | None = None, handle: Handle | None = None) -> None:
        """Make the plug-in. Raises SettingsError."""
        self._handle = handle or Handle()
        self._hard = number(args or {}, "hardPodAffinityWeight", default=1)
        if not 0 <= self._hard <= fwk.MAX_NODE_SCORE:
            raise SettingsError("hardPodAffinityWeight: not in valid range [0, 100]")
        self._only_own = flag(args or {}, "ignorePreferredTermsOfExistingPods")

    def events_to_register(self) -> tuple[EventWithHint, ...]:
        """Return the events: changes of matching pods, of domains, or of the pod's labels."""
        labels = Action.UPDATE_POD_LABEL
        pods, nodes = Action.ADD | Action.DELETE | labels, Action.ADD | Action.UPDATE_NODE_LABEL
        return (
            EventWithHint(Resource.ASSIGNED_POD, pods, self._pod_matters),
            EventWithHint(Resource.TARGET_POD, labels),
            EventWithHint(Resource.NODE, nodes, _place_matters),
        )

    def _pod_matters(self, pod: PodView, change: Change) -> bool:
        """Return whether a pod of the affinity was added, or one of the anti-affinity removed."""
        old, new, labels_of = change.old_pod, change.new_pod, self._handle.namespace_labels
        near = affinity_terms(pod, _NEAR, "required")

        def wanted(candidate: PodView | None) -> bool:
            return candidate is not None and self._all_mean(near, candidate)

        def unwanted(candidate: PodView | None) -> bool:
            terms = affinity_terms(pod, _AWAY, "required")
            return candidate is not None and any(
                term.matches(candidate, labels_of) for term in terms
            )

        if (wanted(new) and not wanted(old)) or (unwanted(old) and not unwanted(new)):
            return True
        if old is None or new is not None:
            return False
        return any(term.matches(pod, labels_of) for term in affinity_terms(old, _AWAY, "required"))

    def pre_filter(
        self, state: CycleState, pod: PodView, nodes: Sequence[NodeInfo]
    ) -> tuple[fwk.NodeNames | None, fwk.Status]:
        """Count matching pods by topology domain; return Skip without matching pods and terms."""
        counts = _Found(
            affinity_terms(pod, _NEAR, "required"),
            affinity_terms(pod, _AWAY, "required"),
            Counter(),
            Counter(),
            Counter(),
        )
        has_terms = bool(counts.affinity or counts.anti)
        for node in nodes:
            if has_terms or node.affine:
                for node_pod in node.pods.values():
                    self._count(counts, pod, node_pod, node, 1)
        if not has_terms and not counts.unwelcome:
            return None, fwk.SKIP
        state.write(_FILTER_KEY, counts)
        return None, fwk.SUCCESS

    def add_pod(self, state: CycleState, pod: PodView, other: PodView, node: NodeInfo) -> None:
        """Count `other` on the node."""
        self._count(state.read(_FILTER_KEY, _Found), pod, other, node, 1)

    def remove_pod(self, state: CycleState, pod: PodView, other: PodView, node: NodeInfo) -> None:
        """Stop counting `other` on the node."""
        self._count(state.read(_FILTER_KEY, _Found), pod, other, node, -1)

    def filter(self, state: CycleState, pod: PodView, node: NodeInfo) -> fwk.Status:
        """Return Success, or the rule that the node breaks, of three."""
        counts = state.read(_FILTER_KEY, _Found)
        labels = node.node.labels
        if not self._near_enough(counts, pod, labels):
            return fwk.Status(fwk.Code.UNRESOLVABLE, ("node(s) didn't match pod affinity rules",))
        keys = [term.topology_key for term in counts.anti if term.topology_key in labels]
        if any(counts.away[key, labels[key]] > 0 for key in keys):
            reason = "node(s) didn't match pod anti-affinity rules"
            return fwk.Status(fwk.Code.UNSCHEDULABLE, (reason,))
        if counts.unwelcome and any(counts.unwelcome[place] > 0 for place in labels.items()):
            reason = "node(s) didn't satisfy existing pods anti-affinity rules"
            return fwk.Status(fwk.Code.UNSCHEDULABLE, (reason,))
        return fwk.SUCCESS

    def pre_score(self, state: CycleState, pod: PodView, nodes: Sequence[NodeInfo]) -> fwk.Status:
        """Sum the weights of matching terms by topology domain; return Skip without matches."""
        near = affinity_terms(pod, _NEAR, "preferred")
        away = affinity_terms(pod, _AWAY, "preferred")
        has_terms = bool(near or away)
        places: Places = Counter()
        touched = False
        if self._only_own and not has_terms:
            return fwk.SKIP
        for node in self._handle.snapshot.nodes:
            if not node.node.labels or not (has_terms or node.affine):
                continue
            for node_pod in node.pods.values():
                if has_terms or node_pod.affine:
                    touched |= self._weigh(places, (near, away), pod, node_pod, node)
        if not touched:
            return fwk.SKIP
        state.write(_SCORE_KEY, places)
        return fwk.SUCCESS

    def score(self, state: CycleState, pod: PodView, node: NodeInfo) -> int:
        """Return the sum over the node's topology domains, which may be negative."""
        places = state.read(_SCORE_KEY, Counter)
        return sum(places[place] for place in node.node.labels.items())

    def normalize_score(
        self, state: CycleState, pod: PodView, scores: Mapping[str, int]
    ) -> dict[str, int]:
        """Return 0 for the lowest sum and 100 for the highest."""
        minimum, maximum = min(scores.values(), default=0), max(scores.values(), default=0)
        if minimum == maximum:
            return dict.fromkeys(scores, 0)
        return {
            name: int(fwk.MAX_NODE_SCORE * ((score - minimum) / (maximum - minimum)))
            for name, score in scores.items()
        }

    def _near_enough(self, counts: _Found, pod: PodView, labels: Mapping[str, str]) -> bool:
        """Return whether each affinity term has a matching pod in the node's topology domain.

        The first pod of a group with affinity to itself may go to any node with the labels.
        """
        if not counts.affinity:
            return True
        if any(term.topology_key not in labels for term in counts.affinity):
            return False
        if all(counts.near[t.topology_key, labels[t.topology_key]] > 0 for t in counts.affinity):
            return True
        nobody = not any(counts.near.values())
        return nobody and self._all_mean(counts.affinity, pod)

    def _all_mean(self, terms: Sequence[AffinityTerm], candidate: PodView) -> bool:
        labels_of = self._handle.namespace_labels
        return bool(terms) and all(term.matches(candidate, labels_of) for term in terms)

    def _count(
        self, counts: _Found, pod: PodView, node_pod: PodView, node: NodeInfo, by: int
    ) -> None:
        labels, labels_of = node.node.labels, self._handle.namespace_labels
        if self._all_mean(counts.affinity, node_pod):
            for term in counts.affinity:
                _put(counts.near, term, labels, by)
        for term in counts.anti:
            if term.matches(node_pod, labels_of):
                _put(counts.away, term, labels, by)
        if node_pod.affine:
            for term in affinity_terms(node_pod, _AWAY, "required"):
                if term.matches(pod, labels_of):
                    _put(counts.unwelcome, term, labels, by)

    def _weigh(
        self,
        places: Places,
        pod_terms: tuple[Sequence[AffinityTerm], Sequence[AffinityTerm]],
        pod: PodView,
        node_pod: PodView,
        node: NodeInfo,
    ) -> bool:
        """Add the weights of the two pods' matching terms; return whether any term matches."""
        near, away = pod_terms
        rules = [(near, node_pod, 1), (away, node_pod, -1)]
        if node_pod.affine:
            hard = affinity_terms(node_pod, _NEAR, "required") if self._hard else ()
            rules += [
                (affinity_terms(node_pod, _NEAR, "preferred"), pod, 1),
                (affinity_terms(node_pod, _AWAY, "preferred"), pod, -1),
                (hard, pod, self._hard),
            ]
        labels, labels_of = node.node.labels, self._handle.namespace_labels
        has_effect = False
        for terms, meant, sign in rules:
            for term in terms:
                if term.topology_key in labels and term.matches(meant, labels_of):
                    _put(places, term, labels, sign * (term.weight or 1))
                    has_effect = True
        return has_effect


def _place_matters(pod: PodView, change: Change) -> bool:
    """Return whether the node joined a domain of an affinity term, or left one of anti-affinity.

    As in kube-scheduler, a new node alone does not wake a pod that other pods' anti-affinity
    rejects.
    """
    if change.new_node is None:
        return True
    new, old = change.new_node.labels, change.old_node.labels if change.old_node else None
    near = (term.topology_key for term in affinity_terms(pod, _NEAR, "required"))
    away = (term.topology_key for term in affinity_terms(pod, _AWAY, "required"))
    return any(new.get(key) not in (None, (old or {}).get(key)) for key in near) or any(
        old is None or old.get(key) not in (None, new.get(key)) for key in away
    )


def _put(places: Places, term: AffinityTerm, labels: Mapping[str, str], by: int) -> None:
    value = labels.get(term.topology_key)
    if value is not None:
        places[term.topology_key, value] += by
