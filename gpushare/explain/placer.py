"""Place pods one after the other by the decisions of the extender, as the simulator does.

kube-scheduler's own filters apply as far as the listed nodes and pods tell. They are arrays over
many nodes (core/node_filters.py has them for one node): thousands of pods on a thousand nodes
would otherwise take minutes. No I/O.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np

from gpushare.core.claims.model import PodClaims
from gpushare.core.decide import filter_nodes
from gpushare.core.defrag import Host
from gpushare.core.explain import Explanation, PodVerdict
from gpushare.core.model import Reason, Request, Shares
from gpushare.core.mutable_cluster import MutableCluster, OwnPolicyScorer, Placement
from gpushare.core.node_filters import OwnFilters, amounts_of
from gpushare.core.policy import Policy
from gpushare.core.selectors import NO_DEMANDS, Demands
from gpushare.core.snapshot import Bools, Ints, Rows, Snapshot, has_accepted_model
from gpushare.core.trial_streams import mutable

PlacerOver = Callable[[Snapshot, OwnFilters, Policy], "Placer"]
"""Makes a placer over the nodes of a snapshot."""

MOST = 10_000
"""The most pods that are placed for the question how many fit."""

HOST = "too little CPU or memory"
"""The reason if a device has room but the node has not."""

MODEL = "another GPU model than the pod accepts"

_PLENTY = 2**62
"""The free amount of a resource without a limit, and the upper bound of all amounts."""


def rows_by_name(snapshot: Snapshot) -> Rows:
    """Return intp (K,): the rows with nodes, by name, as the extender prefers equal nodes."""
    return np.array(sorted(snapshot.row.values(), key=snapshot.names.__getitem__), dtype=np.intp)


class HostFilters:
    """kube-scheduler's filters over these nodes, with cached answers."""

    def __init__(self, filters: OwnFilters, names: Sequence[str]) -> None:
        self.own_filters = filters
        self.names = names
        self._open: dict[Demands, Bools] = {}
        self._free: dict[str, Ints] = {}

    def open_to(self, demands: Demands) -> Bools:
        """Return bool (N,): the nodes open to pods with these demands, whatever is free there."""
        if demands not in self._open:
            is_refused = [self.own_filters.refuses(name, demands) for name in self.names]
            self._open[demands] = ~np.array(is_refused, dtype=bool)
        return self._open[demands]

    def free(self, resource: str) -> Ints:
        """Return int64 (N,): the free amount of the resource."""
        if resource not in self._free:
            amounts = (self.own_filters.free(name, resource) for name in self.names)
            bounded = [_PLENTY if amount is None else min(amount, _PLENTY) for amount in amounts]
            self._free[resource] = np.array(bounded, dtype=np.int64)
        return self._free[resource]


class HostRoom(Host):
    """Free amounts of some nodes while pods are placed. rows: of these nodes, in their order."""

    def __init__(self, filters: HostFilters, rows: Rows) -> None:
        super().__init__(len(rows))
        self._filters = filters
        self._rows = rows
        self._free: dict[str, Ints] = {}

    def open_to(self, demands: Demands) -> Bools:
        """Return bool (K,): the nodes open to pods with these demands, whatever is free there."""
        is_open: Bools = self._filters.open_to(demands)[self._rows]
        return is_open

    def among(self, request: Request, demands: Demands = NO_DEMANDS) -> Bools:
        """Return bool (K,): the nodes that pass kube-scheduler's own filters."""
        is_usable = self.open_to(demands)
        for resource, amount in amounts_of(request).items():
            if amount > 0:
                is_usable &= self._now(resource) >= amount
        return is_usable

    def lacks(self, row: int, request: Request) -> dict[str, int]:
        """Return the missing amounts of a node for the request, by resource."""
        short = {
            resource: amount - int(self._now(resource)[row])
            for resource, amount in amounts_of(request).items()
            if amount > 0
        }
        return {resource: amount for resource, amount in short.items() if amount > 0}

    def take(self, row: int, request: Request, pods: int = 1) -> None:
        """Take the amounts of this many pods from a node. -1: return those of one pod."""
        for resource, amount in amounts_of(request).items():
            self._now(resource)[row] -= pods * amount

    def _now(self, resource: str) -> Ints:
        if resource not in self._free:
            self._free[resource] = self._filters.free(resource)[self._rows]
        return self._free[resource]


def copied_cluster(
    snapshot: Snapshot, rows: Rows, filters: HostFilters, policy: Policy
) -> tuple[MutableCluster, HostRoom]:
    """Return some nodes with their charges, and what is free there beside the devices."""
    scorer = OwnPolicyScorer(policy, len(rows))
    return MutableCluster(mutable(snapshot, rows, empty=False), scorer), HostRoom(filters, rows)


@dataclass(frozen=True, slots=True)
class PodBatch:
    """Equal pods to be placed."""

    name: str
    request: Request
    count: int | None = 1
    """The number of pods; None: as many as fit, at most MOST."""
    demands: Demands = NO_DEMANDS
    """Demands on nodes."""
    priority: int = 0
    """Pods of a higher priority are placed first."""
    claims: PodClaims | None = None
    """The claims of each pod; the request then has the memory for display alone."""
    held_node: str = ""
    """The node where filter holds a place for the pod, or ""."""

    @property
    def kind(self) -> tuple[Request, PodClaims | None, Demands]:
        """The values that decide where a pod has room."""
        return self.request, self.claims, self.demands


@dataclass(frozen=True, slots=True)
class PlacementResult:
    """The placement of a batch: how many of the pods fit, and where."""

    batch: PodBatch
    fit: int
    on: Mapping[str, int] = field(default_factory=dict)
    """Number of pods by node."""
    reasons: Mapping[str, int] = field(default_factory=dict)
    """Number of nodes without room for one more pod, by reason."""
    explanation: Explanation | None = None
    """Of one pod without a place; None: that depends on pods placed before, or is not known."""

    @property
    def verdict(self) -> PodVerdict | None:
        """The verdict on the pods of the batch; None: see `explanation`."""
        if self.all_fit:
            return PodVerdict.FITS_NOW
        return self.explanation.verdict if self.explanation else None

    @property
    def missing(self) -> int:
        """The number of pods without a place."""
        return (self.batch.count or 0) - self.fit

    @property
    def all_fit(self) -> bool:
        """Whether all pods of the batch fit; of a batch without a number, whether one does."""
        return self.fit > 0 if self.batch.count is None else self.fit == self.batch.count


@dataclass(frozen=True, slots=True)
class GangResult:
    """The placement of a group: all of its pods at once, or none. results: by kind of pod."""

    results: tuple[PlacementResult, ...]

    @property
    def fits(self) -> bool:
        """Whether all pods of the group fit."""
        return all(result.all_fit for result in self.results)


class Placer:
    """Places pods on nodes that pass kube-scheduler's own filters.

    rows: of the snapshot; of equally good nodes the first gets the pod. host_filters: over all rows
    of the snapshot. view: the nodes with the placed pods. shut: bool (K,), nodes that get no pods.
    """

    def __init__(
        self, snapshot: Snapshot, rows: Rows, host_filters: HostFilters, policy: Policy
    ) -> None:
        self._cluster, self._room = copied_cluster(snapshot, rows, host_filters, policy)
        self.view = self._cluster.view
        self._own_filters = host_filters.own_filters
        self._more: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._reason_cache: dict[object, tuple[int, Mapping[str, int]]] = {}
        self.shut = np.zeros(len(rows), dtype=bool)

    @classmethod
    def over(cls, snapshot: Snapshot, own_filters: OwnFilters, policy: Policy) -> Self:
        """Return a placer over all nodes of the snapshot. own_filters: kube-scheduler's filters."""
        filters = HostFilters(own_filters, snapshot.names)
        return cls(snapshot, rows_by_name(snapshot), filters, policy)

    def put(self, batch: PodBatch) -> list[Placement]:
        """Place pods as long as they fit; return their places."""
        places: list[Placement] = []
        count = MOST if batch.count is None else batch.count
        while len(places) < count:
            among = self._room.among(batch.request, batch.demands) & ~self.shut
            row, place = self.view.row.get(batch.held_node), None
            if row is not None and among[row]:
                place = self._cluster.place_on(row, batch.request)
            if place is None:
                place = self._place(batch, among)
            if place is None:
                break
            places.append(place)
            self._count(place, 1)
        return places

    def keep(self, node: str, request: Request, shares: Shares = ()) -> bool:
        """Take a place on the node for a pod; return whether there is one.

        shares: units by device, of which the free part is taken, and no CPU or memory, as filter
        does for a reservation; (): of the best devices with room.
        """
        row, width = self.view.row.get(node), self.view.capacity.shape[1]
        if row is None or any(device >= width for device, _ in shares):
            return False
        if shares:
            self._cluster.put(row, shares, replace(request, cpu=0, memory=0))
            return True
        place = self._cluster.place_on(row, request)
        if place is not None:
            self._count(place, 1)
        return place is not None

    def placed(self, batch: PodBatch) -> PlacementResult:
        """Place pods as long as they fit; return the result with reasons against one more."""
        return self._result(batch, self.put(batch))

    def placed_at_once(self, gang: Sequence[PodBatch]) -> GangResult:
        """Place all pods of the group, or none; return the result of all kinds in any case."""
        places: list[Placement] = []
        results = []
        for batch in gang:
            put = self.put(batch)
            results.append(self._result(batch, put))
            places += put
        result = GangResult(tuple(results))
        if not result.fits:
            self.take_back(places)
        return result

    def put_all(self, pods: Iterable[PodBatch]) -> tuple[list[Placement], PodBatch | None]:
        """Place all of these pods, or none; return the places, and the first batch without one."""
        places: list[Placement] = []
        for batch in pods:
            put = self.put(batch)
            places += put
            if len(put) != batch.count:
                self.take_back(places)
                return [], batch
        return places, None

    def refused_by_device(self, batch: PodBatch) -> dict[str, tuple[Reason, bool]]:
        """Return by node with devices (why no device takes one more pod, whether the node passes
        kube-scheduler's filters). Empty if no node passes these filters.
        """
        view, request = self.view, batch.request
        lets_in = self._room.among(request, batch.demands)
        if not lets_in.any():
            return {}
        return {
            name: (reason, bool(lets_in[view.row[name]]))
            for name, reason in filter_nodes(view, view.names, request).failed.items()
            if reason is not Reason.NO_DEVICE
        }

    def take_back(self, places: Iterable[Placement]) -> None:
        """Remove placed pods."""
        for place in places:
            self._cluster.release(place)
            self._count(place, -1)

    def _place(self, batch: PodBatch, among: Bools) -> Placement | None:
        """Place one pod on the best of these nodes; None if none has room."""
        return self._cluster.place(batch.request, among)

    def _result(self, batch: PodBatch, places: Sequence[Placement]) -> PlacementResult:
        count = MOST if batch.count is None else batch.count
        reasons = self._reasons(batch) if len(places) < count else {}
        on = Counter(self.view.names[place.row] for place in places)
        return PlacementResult(batch, len(places), on, reasons)

    def _count(self, placement: Placement, sign: int) -> None:
        self._room.take(placement.row, placement.request, sign)
        amounts = self._more[self.view.names[placement.row]]
        for resource, amount in amounts_of(placement.request).items():
            amounts[resource] += sign * amount

    def _reasons(self, batch: PodBatch) -> Mapping[str, int]:
        """Return the number of nodes without room for one more pod, by reason."""
        generation, cached = self._reason_cache.get(batch.kind, (-1, {}))
        if generation == self.view.generation:
            return cached
        reasons = Counter[str]()
        view, request = self.view, batch.request
        failed = self._refused(batch)
        accepted = has_accepted_model(view, np.arange(len(view.names)), request).tolist()
        for name, has_model in zip(view.names, accepted, strict=True):
            device_reason, more = failed.get(name), self._more[name]
            obstacles = self._own_filters.obstacles(name, request, batch.demands, more)
            kept_out = any(obstacle.lasting for obstacle in obstacles)
            reason = HOST
            if device_reason == Reason.NO_DEVICE.value:
                reason = device_reason
            elif obstacles and (kept_out or device_reason is None):
                reason = obstacles[0].text
            elif not has_model:
                reason = MODEL
            elif device_reason is not None:
                reason = device_reason
            reasons[reason] += 1
        self._reason_cache[batch.kind] = self.view.generation, reasons
        return reasons

    def _refused(self, batch: PodBatch) -> Mapping[str, str]:
        """Return why the devices of nodes have no room for one more pod, by node name."""
        failed = filter_nodes(self.view, self.view.names, batch.request).failed
        return {name: reason.value for name, reason in failed.items()}
