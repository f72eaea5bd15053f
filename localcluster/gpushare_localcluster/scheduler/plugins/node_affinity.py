"""NodeAffinity: filters by required node affinity, and scores by preferred node affinity.

Required are a pod's nodeSelector, its required node affinity, and the operator's `addedAffinity`.
"""

from collections.abc import Mapping, Sequence

from gpushare.wire.fields import Fields, fields_of, items
from gpushare_localcluster.scheduler import framework as fwk
from gpushare_localcluster.scheduler.cache import NodeInfo
from gpushare_localcluster.scheduler.cluster_events import Action, Change, EventWithHint, Resource
from gpushare_localcluster.scheduler.cycle_state import CycleState
from gpushare_localcluster.scheduler.handle import Handle
from gpushare_localcluster.scheduler.objects import Json, NodeView, PodView
from gpushare_localcluster.scheduler.plugins.normalize import normalized
from gpushare_localcluster.scheduler.selectors import any_term, term_matches

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


class NodeAffinity:
    """Rejects nodes that miss a requirement, and scores by the weights of met preferences."""

    name = "NodeAffinity"

    def __init__(self, args: Fields | None = None, handle: Handle | None = None) -> None:
        """Make the plug-in. args: `addedAffinity`, a NodeAffinity. Raises SettingsError."""
        added = fields_of((args or {}).get("addedAffinity"), "addedAffinity")
        required = added.get(_REQUIRED)
        self._required: tuple[Json, ...] | None = None
        if required is not None:
            terms = items(fields_of(required, _REQUIRED), "nodeSelectorTerms", _REQUIRED)
            self._required = tuple(dict(fields_of(term, _REQUIRED)) for term in terms)
        self._preferred = tuple(
            dict(fields_of(term, _PREFERRED)) for term in items(added, _PREFERRED, "addedAffinity")
        )

    def events_to_register(self) -> tuple[EventWithHint, ...]:
        """Return the events: a new or relabelled node that the pod selects."""
        actions = Action.ADD | Action.UPDATE_NODE_LABEL
        return (EventWithHint(Resource.NODE, actions, self._matches_now),)

    def _matches_now(self, pod: PodView, change: Change) -> bool:
        old, new = change.old_node, change.new_node
        if new is None or not any_term(self._required, new) or not required_affinity(pod, new):
            return False
        return old is None or not required_affinity(pod, old)

    def pre_filter(
        self, state: CycleState, pod: PodView, nodes: Sequence[NodeInfo]
    ) -> tuple[fwk.NodeNames | None, fwk.Status]:
        """Return the nodes named by the terms, if every term names nodes; Skip without
        requirements.
        """
        if pod.affinity_terms is None and self._required is None and not pod.node_selector:
            return None, fwk.SKIP
        if not pod.affinity_terms:
            return None, fwk.SUCCESS
        names: fwk.NodeNames = frozenset()
        for term in pod.affinity_terms:
            term_names = _named(term)
            if term_names is None:
                return None, fwk.SUCCESS
            names |= term_names
        if not names:
            return None, fwk.Status(fwk.Code.UNRESOLVABLE, ("pod affinity terms conflict",))
        return names, fwk.SUCCESS

    def filter(self, state: CycleState, pod: PodView, node: NodeInfo) -> fwk.Status:
        """Return Success, or the objection that the labels do not match."""
        if not any_term(self._required, node.node):
            reason = "node(s) didn't match scheduler-enforced node affinity"
            return fwk.Status(fwk.Code.UNRESOLVABLE, (reason,))
        if required_affinity(pod, node.node):
            return fwk.SUCCESS
        return fwk.Status(
            fwk.Code.UNRESOLVABLE, ("node(s) didn't match Pod's node affinity/selector",)
        )

    def pre_score(self, state: CycleState, pod: PodView, nodes: Sequence[NodeInfo]) -> fwk.Status:
        """Return Success, or Skip without preferences."""
        return fwk.SUCCESS if pod.preferred_nodes or self._preferred else fwk.SKIP

    def score(self, state: CycleState, pod: PodView, node: NodeInfo) -> int:
        """Return the sum of the weights of the preferences that the node meets."""
        return sum(
            int(item.get("weight") or 0)
            for item in (*self._preferred, *pod.preferred_nodes)
            if term_matches(item.get("preference") or {}, node.node)
        )

    def normalize_score(
        self, state: CycleState, pod: PodView, scores: Mapping[str, int]
    ) -> dict[str, int]:
        """Return 100 for the highest sum."""
        return normalized(scores)


def required_affinity(pod: PodView, node: NodeView) -> bool:
    """Return whether the node meets the pod's nodeSelector and its required node affinity."""
    labels = node.labels
    return all(labels.get(key) == value for key, value in pod.node_selector.items()) and any_term(
        pod.affinity_terms, node
    )


def _named(term: Json) -> fwk.NodeNames | None:
    """Return the nodes that a term names by metadata.name, None for no names."""
    names: fwk.NodeNames | None = None
    for item in term.get("matchFields") or ():
        if item.get("key") == "metadata.name" and item.get("operator") == "In":
            values = frozenset(str(value) for value in item.get("values") or ())
            names = values if names is None else names & values
    return names
