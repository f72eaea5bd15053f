"""Plug-ins that look at one node: its name, cordon, host ports, taints, labels and images.

Texts and codes are exactly those of kube-scheduler, since users search for them. Required node
affinity is a pod's nodeSelector, its required terms, and the operator's `addedAffinity`. An image
counts by size, weighted by the share of nodes that have the image, so that not all pods go to a
single node.
"""

from collections.abc import Iterable, Mapping, Sequence

from gpushare.core.selectors import Taint, untolerated
from gpushare.wire.fields import Fields, fields_of, items
from gpushare_localcluster.scheduler.cache import NodeInfo
from gpushare_localcluster.scheduler.cluster_events import Action, Change, EventWithHint, Resource
from gpushare_localcluster.scheduler.framework import (
    MAX_NODE_SCORE,
    SKIP,
    SUCCESS,
    Code,
    CycleState,
    NodeNames,
    Status,
)
from gpushare_localcluster.scheduler.handle import Handle, PlainPlugin
from gpushare_localcluster.scheduler.objects import (
    HostPort,
    Json,
    NodeView,
    PodView,
    any_term,
    term_matches,
)


def normalized(scores: Mapping[str, int], *, reverse: bool = False) -> dict[str, int]:
    """Return each score as its share of the highest; with `reverse` the missing share."""
    highest = max(scores.values(), default=0)
    if highest == 0:
        return dict.fromkeys(scores, MAX_NODE_SCORE) if reverse else dict(scores)
    shares = {name: MAX_NODE_SCORE * score // highest for name, score in scores.items()}
    if reverse:
        return {name: MAX_NODE_SCORE - share for name, share in shares.items()}
    return shares


_CORDON = Taint("node.kubernetes.io/unschedulable", "", "NoSchedule")
_ANY_ADDRESS = "0.0.0.0"  # noqa: S104 -- compared, never listened on


class NodeName(PlainPlugin):
    """Rejects every node but the one named in the pod."""

    name = "NodeName"

    def events_to_register(self) -> tuple[EventWithHint, ...]:
        """Return the event: a new node."""
        return (EventWithHint(Resource.NODE, Action.ADD),)

    def filter(self, state: CycleState, pod: PodView, node: NodeInfo) -> Status:
        """Return Success, or the objection that another node is named."""
        if pod.node_name in ("", node.name):
            return SUCCESS
        return Status(Code.UNRESOLVABLE, ("node(s) didn't match the requested node name",))


class NodeUnschedulable(PlainPlugin):
    """Rejects cordoned nodes, unless the pod tolerates the cordon's taint."""

    name = "NodeUnschedulable"

    def events_to_register(self) -> tuple[EventWithHint, ...]:
        """Return the events: a new or uncordoned node, or a new toleration of the pod."""
        return (
            EventWithHint(Resource.NODE, Action.ADD | Action.UPDATE_NODE_TAINT, _opened),
            EventWithHint(
                Resource.TARGET_POD,
                Action.UPDATE_POD_TOLERATION,
                lambda pod, _change: _tolerates_cordon(pod),
            ),
        )

    def filter(self, state: CycleState, pod: PodView, node: NodeInfo) -> Status:
        """Return Success, or the objection that the node is cordoned."""
        if not node.node.unschedulable or _tolerates_cordon(pod):
            return SUCCESS
        return Status(Code.UNRESOLVABLE, ("node(s) were unschedulable",))


class NodePorts(PlainPlugin):
    """Rejects nodes where another pod uses a requested host port."""

    name = "NodePorts"

    def events_to_register(self) -> tuple[EventWithHint, ...]:
        """Return the events: a new node, or the end of a pod with one of the ports."""
        return (
            EventWithHint(Resource.NODE, Action.ADD),
            EventWithHint(
                Resource.ASSIGNED_POD,
                Action.DELETE,
                lambda pod, change: (
                    change.old_pod is None or _collide(pod.host_ports, change.old_pod.host_ports)
                ),
            ),
        )

    def pre_filter(
        self, state: CycleState, pod: PodView, nodes: Sequence[NodeInfo]
    ) -> tuple[NodeNames | None, Status]:
        """Return Success, or Skip for a pod without host ports."""
        return None, SUCCESS if pod.host_ports else SKIP

    def filter(self, state: CycleState, pod: PodView, node: NodeInfo) -> Status:
        """Return Success, or the objection that a port is in use."""
        used_ports = (port for node_pod in node.pods.values() for port in node_pod.host_ports)
        if _collide(pod.host_ports, used_ports):
            reason = "node(s) didn't have free ports for the requested pod ports"
            return Status(Code.UNSCHEDULABLE, (reason,))
        return SUCCESS


def _tolerates_cordon(pod: PodView) -> bool:
    return any(toleration.tolerates(_CORDON) for toleration in pod.tolerations)


def _opened(_pod: PodView, change: Change) -> bool:
    """Return whether the node is schedulable now, and was new or cordoned before."""
    was = change.old_node is None or change.old_node.unschedulable
    return was and change.new_node is not None and not change.new_node.unschedulable


def _collide(ports: Sequence[HostPort], used_ports: Iterable[HostPort]) -> bool:
    """Return whether a requested port is in use; 0.0.0.0 collides with all addresses."""
    return any(
        (port.protocol, port.port) == (used_port.protocol, used_port.port)
        and (port.address == used_port.address or _ANY_ADDRESS in (port.address, used_port.address))
        for used_port in used_ports
        for port in ports
    )


_SOFT_EFFECT = "PreferNoSchedule"


class TaintToleration(PlainPlugin):
    """Rejects nodes with an untolerated hard taint, and scores by untolerated soft taints."""

    name = "TaintToleration"

    def events_to_register(self) -> tuple[EventWithHint, ...]:
        """Return the events: a new node, a removed taint, or a new toleration of the pod."""
        return (
            EventWithHint(Resource.NODE, Action.ADD | Action.UPDATE_NODE_TAINT, _let_in),
            EventWithHint(Resource.TARGET_POD, Action.UPDATE_POD_TOLERATION),
        )

    def filter(self, state: CycleState, pod: PodView, node: NodeInfo) -> Status:
        """Return Success, or the objection to a taint (up to 1.35 with its name)."""
        if node.node.taints and untolerated(node.node.taints, pod.tolerations):
            return Status(Code.UNRESOLVABLE, ("node(s) had untolerated taint(s)",))
        return SUCCESS

    def score(self, state: CycleState, pod: PodView, node: NodeInfo) -> int:
        """Return the number of untolerated soft taints of the node."""
        return sum(
            taint.effect == _SOFT_EFFECT and not any(t.tolerates(taint) for t in pod.tolerations)
            for taint in node.node.taints
        )

    def normalize_score(
        self, state: CycleState, pod: PodView, scores: Mapping[str, int]
    ) -> dict[str, int]:
        """Return 100 for no such taint, 0 for the largest number."""
        return normalized(scores, reverse=True)


def _let_in(pod: PodView, change: Change) -> bool:
    """Return whether the pod tolerates the node now, and did not before or the node is new."""
    old, new = change.old_node, change.new_node
    was = old is None or untolerated(old.taints, pod.tolerations) is not None
    return was and new is not None and untolerated(new.taints, pod.tolerations) is None


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
    ) -> tuple[NodeNames | None, Status]:
        """Return the nodes that every term names, if all name nodes; Skip without requirements."""
        if pod.affinity_terms is None and self._required is None and not pod.node_selector:
            return None, SKIP
        if not pod.affinity_terms:
            return None, SUCCESS
        names: NodeNames = frozenset()
        for term in pod.affinity_terms:
            term_names = _named(term)
            if term_names is None:
                return None, SUCCESS
            names |= term_names
        if not names:
            return None, Status(Code.UNRESOLVABLE, ("pod affinity terms conflict",))
        return names, SUCCESS

    def filter(self, state: CycleState, pod: PodView, node: NodeInfo) -> Status:
        """Return Success, or the objection that the labels do not match."""
        if not any_term(self._required, node.node):
            reason = "node(s) didn't match scheduler-enforced node affinity"
            return Status(Code.UNRESOLVABLE, (reason,))
        if required_affinity(pod, node.node):
            return SUCCESS
        return Status(Code.UNRESOLVABLE, ("node(s) didn't match Pod's node affinity/selector",))

    def pre_score(self, state: CycleState, pod: PodView, nodes: Sequence[NodeInfo]) -> Status:
        """Return Success, or Skip without preferences."""
        return SUCCESS if pod.preferred_nodes or self._preferred else SKIP

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


def _named(term: Json) -> NodeNames | None:
    """Return the nodes that a term names by metadata.name, None for no names."""
    names: NodeNames | None = None
    for item in term.get("matchFields") or ():
        if item.get("key") == "metadata.name" and item.get("operator") == "In":
            values = frozenset(str(value) for value in item.get("values") or ())
            names = values if names is None else names & values
    return names


_MIB = 1024 * 1024
_LEAST = 23 * _MIB
_MOST_OF_A_CONTAINER = 1000 * _MIB
_KEY = "PreScoreImageLocality"


class ImageLocality(PlainPlugin):
    """Scores by the sizes of the images on a node."""

    name = "ImageLocality"

    def pre_score(self, state: CycleState, pod: PodView, nodes: list[NodeInfo]) -> Status:
        """Count the nodes with each of the pod's images; return Skip if no node has any.
        kube-scheduler counts in its cache.

        If no node has an image, all nodes score 0.
        """
        everywhere = self._handle.snapshot.nodes
        images = [_normalized(name) for name in pod.images]
        shares = {
            name: sum(name in node.node.images for node in everywhere) / max(len(everywhere), 1)
            for name in images
        }
        if not any(shares.values()):
            return Status(Code.SKIP)
        state.write(_KEY, (images, shares))
        return SUCCESS

    def score(self, state: CycleState, pod: PodView, node: NodeInfo) -> int:
        """Return 0 for up to 23 MiB of images, 100 for 1000 MiB per container."""
        images, shares = state.read(_KEY, tuple)
        size = sum(int(node.node.images.get(name, 0) * shares[name]) for name in images)
        max_size = _MOST_OF_A_CONTAINER * len(images)
        size = min(max(size, _LEAST), max_size)
        return MAX_NODE_SCORE * (size - _LEAST) // (max_size - _LEAST)


def _normalized(name: str) -> str:
    """Return an image's name with the tag, by default `latest`."""
    return name if name.rfind(":") > name.rfind("/") else f"{name}:latest"
