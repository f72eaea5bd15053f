"""Filters by one fact of a node: its name, its cordon, the host ports in use there.

Texts and codes are kube-scheduler's, letter by letter: users search for them.
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
    """Rejects every node but the one the pod names."""

    name = "NodeName"

    def events_to_register(self) -> tuple[EventWithHint, ...]:
        """Return that the node may come."""
        return (EventWithHint(Resource.NODE, Action.ADD),)

    def filter(self, state: CycleState, pod: PodView, node: NodeInfo) -> fwk.Status:
        """Return Success, or that another node was named."""
        if pod.node_name in ("", node.name):
            return fwk.SUCCESS
        return fwk.Status(fwk.Code.UNRESOLVABLE, ("node(s) didn't match the requested node name",))


class NodeUnschedulable(PlainPlugin):
    """Rejects cordoned nodes, unless the pod tolerates the cordon's taint."""

    name = "NodeUnschedulable"

    def events_to_register(self) -> tuple[EventWithHint, ...]:
        """Return that a node may come or be uncordoned, or the pod tolerate the cordon."""
        return (
            EventWithHint(Resource.NODE, Action.ADD | Action.UPDATE_NODE_TAINT, _opened),
            EventWithHint(
                Resource.TARGET_POD,
                Action.UPDATE_POD_TOLERATION,
                lambda pod, _change: _tolerates_cordon(pod),
            ),
        )

    def filter(self, state: CycleState, pod: PodView, node: NodeInfo) -> fwk.Status:
        """Return Success, or that the node is cordoned."""
        if not node.node.unschedulable or _tolerates_cordon(pod):
            return fwk.SUCCESS
        return fwk.Status(fwk.Code.UNRESOLVABLE, ("node(s) were unschedulable",))


class NodePorts(PlainPlugin):
    """Rejects nodes where a pod has a host port that this one asks for."""

    name = "NodePorts"

    def events_to_register(self) -> tuple[EventWithHint, ...]:
        """Return that a node may come, or a pod go that has one of the ports."""
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
        """Return Success, or that a port is taken."""
        used_ports = (port for node_pod in node.pods.values() for port in node_pod.host_ports)
        if _collide(pod.host_ports, used_ports):
            reason = "node(s) didn't have free ports for the requested pod ports"
            return fwk.Status(fwk.Code.UNSCHEDULABLE, (reason,))
        return fwk.SUCCESS


def _tolerates_cordon(pod: PodView) -> bool:
    return any(toleration.tolerates(_CORDON) for toleration in pod.tolerations)


def _opened(_pod: PodView, change: Change) -> bool:
    """Return whether the node is new or was cordoned, and is not cordoned now."""
    was = change.old_node is None or change.old_node.unschedulable
    return was and change.new_node is not None and not change.new_node.unschedulable


def _collide(ports: Sequence[HostPort], used_ports: Iterable[HostPort]) -> bool:
    """Return whether a wanted port is taken; one of any address collides with that of each."""
    return any(
        (port.protocol, port.port) == (used_port.protocol, used_port.port)
        and (port.address == used_port.address or _ANY_ADDRESS in (port.address, used_port.address))
        for used_port in used_ports
        for port in ports
    )
