"""What a node counts as, given what it was: no moment between two writes may free memory.

A node that states its total and its count in two writes (the kubelet the one, the original's device
plug-in the other) seems for a moment to have larger devices. One whose inventory is removed for a
moment has devices without names, of an average size. Cards do not grow. So the sizes that follow
from a total and a count are believed only up to what the node was known to have, unless both have
changed; and cards keep their names while there are as many devices and nothing says otherwise.

Values only; the Ledger keeps one for each known node.
"""

from dataclasses import dataclass, replace

from gpushare.core.model import NodeSpec, Reason


@dataclass(frozen=True, slots=True)
class NodeHistory:
    """What is remembered of a node.

    uuids: the last that an inventory named. total, count: units and devices as last believed. size:
    the most units that a device without a description may have.
    """

    uuids: tuple[str, ...] = ()
    total: int = 0
    count: int = 0
    size: int = 0

    def effective_spec(self, spec: NodeSpec) -> NodeSpec:
        """Return what the node counts as, as it is shown now."""
        if not spec.capacity:
            return spec
        if not any(spec.uuids) and len(self.uuids) == len(spec.capacity):
            spec = replace(spec, uuids=self.uuids)
        if spec.closed is None and self._has_grown(spec):
            spec = replace(spec, closed=Reason.GROWN)
        return spec

    def updated(self, spec: NodeSpec) -> "NodeHistory":
        """Return what is remembered once the node has been shown like this."""
        if not spec.capacity or spec.closed is not None or self._has_grown(spec):
            return self
        total, count = sum(spec.capacity), len(spec.capacity)
        named = any(spec.uuids) or len(self.uuids) != count
        uuids = spec.uuids if named else self.uuids
        if spec.counted:
            return NodeHistory(uuids, total, count, max(*spec.capacity, self.size))
        size = min((units for units in spec.capacity if units), default=0)
        return NodeHistory(uuids, total, count, size)

    def _has_grown(self, spec: NodeSpec) -> bool:
        """Return whether devices that no inventory describes have become larger, other than by two
        writes.
        """
        if not spec.counted or not self.count or max(spec.capacity) <= self.size:
            return False
        return sum(spec.capacity) == self.total or len(spec.capacity) == self.count
