"""The effective NodeSpec of a node, given its history: a half-written node must not free memory.

A node's total and its count come in two writes (the kubelet writes one, the original's device
plug-in the other), so for a moment its devices seem larger. If an inventory is removed for a
moment, the devices have no names and an average size. Cards do not grow. So sizes computed from a
total and a count are believed only up to what the node was known to have, unless both have changed;
and cards keep their names while the number of devices stays and nothing contradicts them.

Values only; the Ledger keeps one for each known node.

Tested in `tests/unit/ledger/test_ledger.py`.
"""

from dataclasses import dataclass, replace

from gpushare.core.model import NodeSpec, Reason


@dataclass(frozen=True, slots=True)
class NodeHistory:
    """What is remembered of a node."""

    uuids: tuple[str, ...] = ()
    """The last ones that an inventory named."""
    total: int = 0
    """The units that were last believed."""
    count: int = 0
    """The devices that were last believed."""
    size: int = 0
    """The most units that a device without an inventory may have."""

    def effective_spec(self, spec: NodeSpec) -> NodeSpec:
        """Return the spec that counts, for a node that the API server shows like this."""
        if not spec.capacity:
            return spec
        if not any(spec.uuids) and len(self.uuids) == len(spec.capacity):
            spec = replace(spec, uuids=self.uuids)
        if spec.closed is None and self._has_grown(spec):
            spec = replace(spec, closed=Reason.GROWN)
        return spec

    def updated(self, spec: NodeSpec) -> "NodeHistory":
        """Return the history after the API server has shown the node like this."""
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
        """Return whether devices without an inventory have grown while only one of total and count
        has changed.
        """
        if not spec.counted or not self.count or max(spec.capacity) <= self.size:
            return False
        return sum(spec.capacity) == self.total or len(spec.capacity) == self.count
