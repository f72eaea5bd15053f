"""The shapes of nodes that could come.

Tested in `tests/unit/explain/test_need.py` and `tests/unit/cli/test_whatif.py`.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import count

from gpushare.core.model import ALL_CORES, NodeSpec
from gpushare.core.node_filters import NodeState
from gpushare.wire.annotations import Names
from gpushare.wire.dra.claims import CLASS

_HOSTNAME = "kubernetes.io/hostname"
_OF_CONTROLLERS = "node.kubernetes.io/"
"""Taints that kube-controller-manager writes and removes by the state of a node."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What a node that could come is like."""

    name: str
    spec: NodeSpec
    """As `bare` returns it."""
    like: NodeState | None = None
    """What kube-scheduler sees of a node that is there and is like it; None: nothing is known that
    keeps pods out."""
    price: Fraction | None = None
    """That of one node, None if none has a price."""

    @property
    def units(self) -> int:
        """Units of all devices."""
        return sum(self.spec.capacity)

    @property
    def cost(self) -> Fraction:
        """What counts against one node: its price, else that it is one."""
        return Fraction(1) if self.price is None else self.price

    def node(self, name: str, resource: str) -> tuple[NodeSpec, NodeState]:
        """Return a node of this shape; resource: the managed one."""
        spec = replace(self.spec, name=name)
        return spec, state_like(spec, self.like, resource)


def bare(spec: NodeSpec) -> NodeSpec:
    """Return what another node like this one is before any pod is there: all devices healthy."""
    size = len(spec.capacity)
    return replace(
        spec,
        healthy=(True,) * size,
        uuids=("",) * size,
        closed=None,
        counted=False,
        gone=(),
    )


def new_names(taken: Collection[str], prefix: str = "new") -> Iterator[str]:
    """Yield names for nodes that come, which no other node has."""
    return (name for number in count(1) if (name := f"{prefix}-{number}") not in taken)


def state_like(spec: NodeSpec, like: NodeState | None, resource: str) -> NodeState:
    """Return what kube-scheduler sees of a node that comes: like one that is there, but in order.

    Of one that is like none that is there nothing is known that keeps pods out.
    """
    if like is None:
        return NodeState(spec.name)
    labels = None if like.labels is None else dict(like.labels) | {_HOSTNAME: spec.name}
    amounts = like.allocatable
    if amounts is not None and resource != CLASS:  # cards of claims are no resource of the node
        cores = Names.for_resource(resource).cores
        amounts = dict(amounts) | {resource: sum(spec.capacity)}
        if cores in amounts:
            amounts[cores] = ALL_CORES * len(spec.capacity)
    taints = tuple(each for each in like.taints if not each.key.startswith(_OF_CONTROLLERS))
    return NodeState(spec.name, labels, taints, allocatable=amounts)
