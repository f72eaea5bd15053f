"""Filters by one fact of a node: its name, its cordon, the host ports in use there.

Texts and codes are kube-scheduler's, letter by letter: users search for them.
"""

from collections.abc import Iterable, Sequence

from gpushare.localcluster.scheduler import framework as fwk
from gpushare.localcluster.scheduler.cache import NodeInfo
from gpushare.localcluster.scheduler.cycle_state import CycleState
from gpushare.localcluster.scheduler.handle import PlainPlugin
from gpushare.localcluster.scheduler.objects import HostPort, PodView, Taint

_CORDON = Taint("node.kubernetes.io/unschedulable", "", "NoSchedule")
_ANY_ADDRESS = "0.0.0.0"  # noqa: S104 -- compared, never listened on


class NodeName(PlainPlugin):
    """Rejects every node but the one the pod names."""

    name = "NodeName"
    events: frozenset[fwk.ClusterEvent] = fwk.NODE_CHANGES

    def filter(self, state: CycleState, pod: PodView, node: NodeInfo) -> fwk.Status:
        """Return Success, or that another node was named."""
        if pod.node_name in ("", node.name):
            return fwk.SUCCESS
        return fwk.Status(fwk.Code.UNRESOLVABLE, ("node(s) didn't match the requested node name",))


class NodeUnschedulable(PlainPlugin):
    """Rejects cordoned nodes, unless the pod tolerates the cordon's taint."""

    name = "NodeUnschedulable"
    events: frozenset[fwk.ClusterEvent] = fwk.NODE_CHANGES

    def filter(self, state: CycleState, pod: PodView, node: NodeInfo) -> fwk.Status:
        """Return Success, or that the node is cordoned."""
        if not node.node.unschedulable or any(t.tolerates(_CORDON) for t in pod.tolerations):
            return fwk.SUCCESS
        return fwk.Status(fwk.Code.UNRESOLVABLE, ("node(s) were unschedulable",))


class NodePorts(PlainPlugin):
    """Rejects nodes where a pod has a host port that this one asks for."""

    name = "NodePorts"
    events: frozenset[fwk.ClusterEvent] = frozenset(
        {fwk.ClusterEvent.NODE_ADD, fwk.ClusterEvent.ASSIGNED_POD_DELETE}
    )

    def pre_filter(
        self, state: CycleState, pod: PodView, nodes: Sequence[NodeInfo]
    ) -> tuple[fwk.NodeNames | None, fwk.Status]:
        """Return Success, or Skip for a pod without host ports."""
        return None, fwk.SUCCESS if pod.host_ports else fwk.SKIP

    def filter(self, state: CycleState, pod: PodView, node: NodeInfo) -> fwk.Status:
        """Return Success, or that a port is taken."""
        taken = (port for other in node.pods.values() for port in other.host_ports)
        if _collide(pod.host_ports, taken):
            reason = "node(s) didn't have free ports for the requested pod ports"
            return fwk.Status(fwk.Code.UNSCHEDULABLE, (reason,))
        return fwk.SUCCESS


def _collide(wanted: Sequence[HostPort], taken: Iterable[HostPort]) -> bool:
    """Return whether a wanted port is taken; one of any address collides with that of each."""
    return any(
        (one.protocol, one.port) == (other.protocol, other.port)
        and (one.address == other.address or _ANY_ADDRESS in (one.address, other.address))
        for other in taken
        for one in wanted
    )
