"""Filters by what a node says of itself: cordoned, named, tainted, labelled.

Texts and codes are kube-scheduler's, letter by letter: users search for them. All of them are
unresolvable: evicting pods changes neither a label nor a taint.
"""

from collections.abc import Mapping

from gpushare.localcluster.scheduler.cache import NodeInfo
from gpushare.localcluster.scheduler.framework import (
    NODE_CHANGES,
    SUCCESS,
    ClusterEvent,
    Code,
    Status,
)
from gpushare.localcluster.scheduler.objects import Json, PodView, Taint

_CORDON = Taint("node.kubernetes.io/unschedulable", "", "NoSchedule")
_HARD_EFFECTS = ("NoSchedule", "NoExecute")


class NodeUnschedulable:
    """Rejects cordoned nodes, unless the pod tolerates the cordon's taint."""

    name = "NodeUnschedulable"
    events: frozenset[ClusterEvent] = NODE_CHANGES

    def filter(self, pod: PodView, node: NodeInfo) -> Status:
        """Return Success, or that the node is cordoned."""
        if not node.node.unschedulable or any(t.tolerates(_CORDON) for t in pod.tolerations):
            return SUCCESS
        return Status(Code.UNRESOLVABLE, ("node(s) were unschedulable",))


class NodeName:
    """Rejects every node but the one the pod names."""

    name = "NodeName"
    events: frozenset[ClusterEvent] = NODE_CHANGES

    def filter(self, pod: PodView, node: NodeInfo) -> Status:
        """Return Success, or that another node was named."""
        if pod.node_name in ("", node.name):
            return SUCCESS
        return Status(Code.UNRESOLVABLE, ("node(s) didn't match the requested node name",))


class TaintToleration:
    """Rejects nodes with a hard taint that the pod does not tolerate."""

    name = "TaintToleration"
    events: frozenset[ClusterEvent] = NODE_CHANGES

    def filter(self, pod: PodView, node: NodeInfo) -> Status:
        """Return Success, or that there is such a taint. Older releases name it: `taint {KEY:
        VALUE}`.
        """
        for taint in node.node.taints:
            if taint.effect in _HARD_EFFECTS and not any(
                toleration.tolerates(taint) for toleration in pod.tolerations
            ):
                return Status(Code.UNRESOLVABLE, ("node(s) had untolerated taint(s)",))
        return SUCCESS


class NodeAffinity:
    """Rejects nodes outside the pod's nodeSelector or its required node affinity."""

    name = "NodeAffinity"
    events: frozenset[ClusterEvent] = NODE_CHANGES

    def filter(self, pod: PodView, node: NodeInfo) -> Status:
        """Return Success, or that the labels do not match."""
        labels = node.node.labels
        selected = all(labels.get(key) == value for key, value in pod.node_selector.items())
        if selected and _any_term(pod.affinity_terms, node):
            return SUCCESS
        return Status(Code.UNRESOLVABLE, ("node(s) didn't match Pod's node affinity/selector",))


def _any_term(terms: tuple[Json, ...] | None, node: NodeInfo) -> bool:
    """Return whether any of the terms matches; an empty list of terms matches no node."""
    return terms is None or any(_term_matches(term, node) for term in terms)


def _term_matches(term: Json, node: NodeInfo) -> bool:
    """Return whether all expressions and fields of one term hold; an empty term matches no node."""
    expressions = term.get("matchExpressions") or ()
    fields = term.get("matchFields") or ()
    if not expressions and not fields:
        return False
    return all(_holds(item, node.node.labels) for item in expressions) and all(
        _holds(item, {"metadata.name": node.name}) for item in fields
    )


def _holds(requirement: Json, labels: Mapping[str, str]) -> bool:
    """Return whether one requirement holds (core/v1 NodeSelectorRequirement)."""
    value = labels.get(str(requirement.get("key")))
    wanted = [str(item) for item in requirement.get("values") or ()]
    operator = requirement.get("operator")
    if operator == "Exists":
        return value is not None
    if operator == "DoesNotExist":
        return value is None
    if operator == "In":
        return value in wanted
    if operator == "NotIn":
        return value not in wanted
    return _compared(str(operator), value, wanted)


def _compared(operator: str, value: str | None, wanted: list[str]) -> bool:
    """Return whether the value is greater (Gt) or less (Lt) than the bound; what is no integer is
    neither.
    """
    try:
        have, bound = int(value or ""), int(wanted[0])
    except (ValueError, IndexError):
        return False
    return have > bound if operator == "Gt" else operator == "Lt" and have < bound
