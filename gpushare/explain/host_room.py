"""kube-scheduler's own filters over many nodes at once, while pods are placed on them.

It says the same as `core/node_filters.py`, as arrays: placing thousands of pods on a thousand nodes
would else take minutes.

Tested in `tests/unit/explain/test_host_room.py`.
"""

from collections.abc import Sequence

import numpy as np

from gpushare.core.defrag import Host
from gpushare.core.model import Request
from gpushare.core.node_filters import OwnFilters, amounts_of
from gpushare.core.selectors import NO_DEMANDS, Demands
from gpushare.core.snapshot import Bools, Ints, Rows

_PLENTY = 2**62
"""What is left of a resource that is not counted, and the most that is counted."""


class HostFilters:
    """The filters over these nodes as they are. What was looked at once is kept."""

    def __init__(self, own: OwnFilters, names: Sequence[str]) -> None:
        self.own = own
        self.names = names
        self._open: dict[Demands, Bools] = {}
        self._free: dict[str, Ints] = {}

    def open_to(self, demands: Demands) -> Bools:
        """Return bool (N,): the nodes that are not kept from such pods, whatever is free there."""
        if demands not in self._open:
            refused = [self.own.refuses(name, demands) for name in self.names]
            self._open[demands] = ~np.array(refused, dtype=bool)
        return self._open[demands]

    def free(self, resource: str) -> Ints:
        """Return int64 (N,): what is left of the resource."""
        if resource not in self._free:
            amounts = (self.own.free(name, resource) for name in self.names)
            counted = [_PLENTY if each is None else min(each, _PLENTY) for each in amounts]
            self._free[resource] = np.array(counted, dtype=np.int64)
        return self._free[resource]


class HostRoom(Host):
    """Some of these nodes, on which pods are placed. rows: of the nodes, in the order used here."""

    def __init__(self, filters: HostFilters, rows: Rows) -> None:
        super().__init__(len(rows))
        self._filters = filters
        self._rows = rows
        self._free: dict[str, Ints] = {}

    def open_to(self, demands: Demands) -> Bools:
        """Return bool (K,): the nodes that are not kept from such pods, whatever is free there."""
        allowed: Bools = self._filters.open_to(demands)[self._rows]
        return allowed

    def among(self, request: Request, demands: Demands = NO_DEMANDS) -> Bools:
        """Return bool (K,): the nodes on which kube-scheduler's own filters let the pod."""
        allowed = self.open_to(demands)
        for resource, amount in amounts_of(request).items():
            if amount > 0:
                allowed &= self._now(resource) >= amount
        return allowed

    def lacks(self, row: int, request: Request) -> dict[str, int]:
        """Return by resource how much too little a node has for the request, if it has."""
        short = {
            resource: amount - int(self._now(resource)[row])
            for resource, amount in amounts_of(request).items()
            if amount > 0
        }
        return {resource: amount for resource, amount in short.items() if amount > 0}

    def take(self, row: int, request: Request, pods: int = 1) -> None:
        """Count what this many pods take of a node; -1: give back what one took."""
        for resource, amount in amounts_of(request).items():
            self._now(resource)[row] -= pods * amount

    def _now(self, resource: str) -> Ints:
        if resource not in self._free:
            self._free[resource] = self._filters.free(resource)[self._rows]
        return self._free[resource]
