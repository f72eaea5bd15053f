"""Pods placed one after the other by the decisions of the extender, as the simulator does.

What kube-scheduler's own filters enforce is enforced as far as nodes and pods tell it. It is said
as arrays over many nodes at once (core/node_filters.py says it of one): placing thousands of pods
on a thousand nodes would else take minutes. No I/O.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np

from gpushare.core.claims.model import PodClaims
from gpushare.core.decide import filter_nodes
from gpushare.core.defrag import Host
from gpushare.core.model import Reason, Request
from gpushare.core.mutable_cluster import MutableCluster, Placement, ranking
from gpushare.core.node_filters import OwnFilters, amounts_of
from gpushare.core.policy import Policy
from gpushare.core.selectors import NO_DEMANDS, Demands
from gpushare.core.snapshot import Bools, Ints, Rows, Snapshot, has_accepted_model
from gpushare.core.trial_streams import mutable

PlacerOver = Callable[[Snapshot, OwnFilters, Policy], "Placer"]
"""Makes a placer over the nodes of a snapshot."""

MOST = 10_000
"""Pods that are placed at most if the question is how many fit."""

HOST = "too little CPU or memory"
"""The reason if devices have room but the node still does not fit."""

MODEL = "another GPU model than the pod accepts"

_PLENTY = 2**62
"""What is left of a resource that is not counted, and the most that is counted."""


def rows_by_name(snapshot: Snapshot) -> Rows:
    """Return intp (K,): the rows with nodes, by name, as the extender prefers equal nodes."""
    return np.array(sorted(snapshot.row.values(), key=snapshot.names.__getitem__), dtype=np.intp)


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


@dataclass(frozen=True, slots=True)
class PodBatch:
    """Equal pods to be placed."""

    name: str
    request: Request
    count: int | None = 1
    """How many; None: as many as fit, at most MOST."""
    demands: Demands = NO_DEMANDS
    """What they demand of nodes."""
    priority: int = 0
    """Those of a higher one are placed first."""
    claims: PodClaims | None = None
    """Claims that each of them asks by; the request then has their memory for display alone."""

    @property
    def kind(self) -> tuple[Request, PodClaims | None, Demands]:
        """What decides where it has room."""
        return self.request, self.claims, self.demands


@dataclass(frozen=True, slots=True)
class PlacementResult:
    """The placement of a batch: how many of the pods fit, and where."""

    batch: PodBatch
    fit: int
    on: Mapping[str, int] = field(default_factory=dict)
    """How many on each node."""
    reasons: Mapping[str, int] = field(default_factory=dict)
    """By reason, how many nodes have no room for one more."""

    @property
    def all_fit(self) -> bool:
        """Whether all pods of the batch fit."""
        return self.batch.count is None or self.fit == self.batch.count


@dataclass(frozen=True, slots=True)
class GangResult:
    """How many pods of a group fit at once, one result for each kind of them.

    None of them is placed unless all fit.
    """

    placed: tuple[PlacementResult, ...]

    @property
    def fits(self) -> bool:
        """Whether the group fits whole."""
        return all(each.all_fit for each in self.placed)


class Placer:
    """Places pods on nodes, where kube-scheduler's own filters let them.

    rows: of the snapshot, the nodes that there are; of equally good ones the first is taken.
    filters: over all rows of the snapshot. view: the nodes with what is placed.
    shut: bool (K,), those on which nothing is placed.
    """

    def __init__(
        self, snapshot: Snapshot, rows: Rows, filters: HostFilters, policy: Policy
    ) -> None:
        self.view = mutable(snapshot, rows, empty=False)
        self._cluster = MutableCluster(self.view, ranking(policy, len(rows)))
        self._own = filters.own
        self._room = HostRoom(filters, rows)
        self._more: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._known: dict[object, tuple[int, Mapping[str, int]]] = {}
        self.shut = np.zeros(len(rows), dtype=bool)

    @classmethod
    def over(cls, snapshot: Snapshot, own: OwnFilters, policy: Policy) -> Self:
        """Return one over all nodes of the snapshot. own: kube-scheduler's filters."""
        filters = HostFilters(own, snapshot.names)
        return cls(snapshot, rows_by_name(snapshot), filters, policy)

    def put(self, batch: PodBatch) -> list[Placement]:
        """Place pods as long as they fit, and return where they are."""
        places: list[Placement] = []
        count = MOST if batch.count is None else batch.count
        while len(places) < count:
            among = self._room.among(batch.request, batch.demands) & ~self.shut
            place = self._place(batch, among)
            if place is None:
                break
            places.append(place)
            self._count(place, 1)
        return places

    def placed(self, batch: PodBatch) -> PlacementResult:
        """Place pods as long as they fit, and return how many did, and why no more."""
        return self._result(batch, self.put(batch))

    def placed_at_once(self, gang: Sequence[PodBatch]) -> GangResult:
        """Place all pods of the group, or none; return where they would be."""
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
        """Place all of these pods, or none; return where, and the first that has no place."""
        places: list[Placement] = []
        for batch in pods:
            put = self.put(batch)
            places += put
            if len(put) != batch.count:
                self.take_back(places)
                return [], batch
        return places, None

    def refused_by_device(self, batch: PodBatch) -> dict[str, tuple[Reason, bool]]:
        """Return why no device of a node takes one more, and whether all else would let it in, by
        name; without the nodes that share no device. Nothing if no node would let it in.
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
        """Take pods away that were placed."""
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
        taken = self._more[self.view.names[placement.row]]
        for resource, amount in amounts_of(placement.request).items():
            taken[resource] += sign * amount

    def _reasons(self, batch: PodBatch) -> Mapping[str, int]:
        """Return by reason how many nodes have no room for one more."""
        generation, known = self._known.get(batch.kind, (-1, {}))
        if generation == self.view.generation:
            return known
        reasons = Counter[str]()
        view, request = self.view, batch.request
        failed = self._refused(batch)
        accepted = has_accepted_model(view, np.arange(len(view.names)), request).tolist()
        for name, has_model in zip(view.names, accepted, strict=True):
            refused, more = failed.get(name), self._more[name]
            obstacles = self._own.obstacles(name, request, batch.demands, more)
            kept_out = any(each.lasting for each in obstacles)
            reason = HOST
            if refused == Reason.NO_DEVICE.value:
                reason = refused
            elif obstacles and (kept_out or refused is None):
                reason = obstacles[0].text
            elif not has_model:
                reason = MODEL
            elif refused is not None:
                reason = refused
            reasons[reason] += 1
        self._known[batch.kind] = self.view.generation, reasons
        return reasons

    def _refused(self, batch: PodBatch) -> Mapping[str, str]:
        """Return why the devices of nodes have no room for one more, by node name."""
        failed = filter_nodes(self.view, self.view.names, batch.request).failed
        return {name: reason.value for name, reason in failed.items()}
