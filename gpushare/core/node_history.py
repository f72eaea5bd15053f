"""The effective NodeSpec of a node, given its history: a half-written node must not free memory.

The total and the count of a node's devices come in two writes (the kubelet writes one, the
original's device plug-in the other), so for a moment the devices seem larger. If an inventory is
removed for a moment, the devices have no names and an average size. Cards do not grow. So sizes
computed from a total and a count are trusted only up to the earlier size, unless both have changed;
and cards keep their names while the number of devices stays and nothing contradicts the names.

Values only; the Ledger keeps one history for each node.

Tested in `tests/unit/ledger/test_ledger.py`.
"""

from dataclasses import dataclass, replace

from gpushare.core.model import NodeSpec, Reason


@dataclass(frozen=True, slots=True)
class NodeHistory:
    """The last trusted devices of a node."""

    uuids: tuple[str, ...] = ()
    """The uuids of the last inventory."""
    total: int = 0
    """Units of all devices when last trusted."""
    count: int = 0
    """Number of devices when last trusted."""
    size: int = 0
    """Upper bound of the units of a device without an inventory."""

    def effective_spec(self, spec: NodeSpec) -> NodeSpec:
        """Return the spec to use for a node that the API server reports with this spec."""
        if not spec.capacity:
            return spec
        if not any(spec.uuids) and len(self.uuids) == len(spec.capacity):
            spec = replace(spec, uuids=self.uuids)
        if spec.has_known_devices and self._has_grown(spec):
            spec = replace(spec, closed=Reason.GROWN)
        return spec

    def updated(self, spec: NodeSpec) -> "NodeHistory":
        """Return the history after the API server reported the node with this spec."""
        if not spec.has_known_devices or self._has_grown(spec):
            return self
        total, count = sum(spec.capacity), len(spec.capacity)
        has_new_uuids = any(spec.uuids) or len(self.uuids) != count
        uuids = spec.uuids if has_new_uuids else self.uuids
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
