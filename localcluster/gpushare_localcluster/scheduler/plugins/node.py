"""Filters by one property of a node: name, cordon, used host ports.

Texts and codes are exactly those of kube-scheduler, since users search for them.
"""

from collections.abc import Iterable, Sequence

from gpushare.core.selectors import Taint
from gpushare_localcluster.scheduler import framework as fwk
from gpushare_localcluster.scheduler.cache import NodeInfo
from gpushare_localcluster.scheduler.cluster_events import Action, Change, EventWithHint, Resource
from gpushare_localcluster.scheduler.cycle_state import CycleState
from gpushare_localcluster.scheduler.handle import PlainPlugin
from gpushare_localcluster.scheduler.objects import HostPort, PodView

_CORDON = Taint("node.kubernetes.io/unschedulable", "", "NoSchedule")
_ANY_ADDRESS = "0.0.0.0"  # noqa: S104 -- compared, never listened on


class NodeName(PlainPlugin):
    """Rejects every node but the one named in the pod."""

    name = "NodeName"

    def events_to_register(self) -> tuple[EventWithHint, ...]:
        """Return the event: a new node."""
        return (EventWithHint(Resource.NODE, Action.ADD),)

    def filter(self, state: CycleState, pod: PodView, node: NodeInfo) -> fwk.Status:
        """Return Success, or the objection that another node is named."""
        if pod.node_name in ("", node.name):
            return fwk.SUCCESS
        return fwk.Status(fwk.Code.UNRESOLVABLE, ("node(s) didn't match the requested node name",))


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

    def filter(self, state: CycleState, pod: PodView, node: NodeInfo) -> fwk.Status:
        """Return Success, or the objection that the node is cordoned."""
        if not node.node.unschedulable or _tolerates_cordon(pod):
            return fwk.SUCCESS
        return fwk.Status(fwk.Code.UNRESOLVABLE, ("node(s) were unschedulable",))


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
    ) -> tuple[fwk.NodeNames | None, fwk.Status]:
        """Return Success, or Skip for a pod without host ports."""
        return None, fwk.SUCCESS if pod.host_ports else fwk.SKIP

    def filter(self, state: CycleState, pod: PodView, node: NodeInfo) -> fwk.Status:
        """Return Success, or the objection that a port is in use."""
        used_ports = (port for node_pod in node.pods.values() for port in node_pod.host_ports)
        if _collide(pod.host_ports, used_ports):
            reason = "node(s) didn't have free ports for the requested pod ports"
            return fwk.Status(fwk.Code.UNSCHEDULABLE, (reason,))
        return fwk.SUCCESS


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
