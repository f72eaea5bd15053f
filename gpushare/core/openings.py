"""The node that will have room for a waiting pod first, as far as known of the running pods.

Pods with a known end come first. In a steady state the pods without one run on for as long as they
have run, in the mean over all: that mean is `Outlook.rest`. The last of k such pods ends after
rest * (1 + 1/2 + ... + 1/k), as lives without memory do. So of two nodes the one with fewer pods
opens first, and each end on a node brings the node forward.

Tested in `tests/unit/core/test_openings.py`.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import accumulate
from math import inf

from gpushare.core.defrag import Host, Lack, Planner, device_lacks, freed_amounts, host_lack
from gpushare.core.model import Request
from gpushare.core.mutable_cluster import MutableCluster, Placement
from gpushare.core.selectors import NO_DEMANDS, Demands

MOST_PART = 0.2
"""Part of the memory that reservations have at most; one pod may have more."""

_MOST_TRIES = 20
"""Upper bound of the rows on which a search ends pods one by one, some milliseconds each."""

_MOST_PODS = 10_000
_HARMONIC = (0.0, *accumulate(1 / number for number in range(1, _MOST_PODS)))
"""The expected time until the last of so many pods ends, in times of the rest of one."""


@dataclass(frozen=True, slots=True, eq=False)
class Resident:
    """A running pod that may end; two pods of one template in one place are two."""

    placement: Placement
    """Exactly the charge of the pod on the cluster."""
    ends_by: float | None = None
    """The known end, by the clock of the caller; None: unknown."""


@dataclass(frozen=True, slots=True)
class Opening:
    """A place that will be free."""

    at: float
    """When the last pod that has to end before is expected to end."""
    placement: Placement


@dataclass(frozen=True, slots=True)
class Outlook:
    """A cluster, its host resources, and the running pods that may end, by row.

    Between two searches for the same request only `take` may change the cluster.
    """

    cluster: MutableCluster
    host: Host
    residents: Mapping[int, Sequence[Resident]]
    now: float
    rest: float
    """The time that a pod without a known end runs on, in the mean."""
    _freed: dict[Resident, Lack] = field(default_factory=dict, init=False)
    """What becomes free by the end of each pod, as far as computed."""
    _ends_by_row: dict[Request, dict[int, list[Resident]]] = field(default_factory=dict, init=False)
    """By request and row the result of `_first_ends`, as far as computed: pods that wait often ask
    for the same."""

    def take(self, placement: Placement) -> None:
        """Charge a place, whether or not its devices are free."""
        self.cluster.put(*placement)
        self.host.take(placement.row, placement.request)
        for by_row in self._ends_by_row.values():
            by_row.pop(placement.row, None)

    def opens_at(self, ending: Iterable[Resident]) -> float:
        """Return when the last of these pods is expected to end."""
        known, unknown = self.now, 0
        for resident in ending:
            if resident.ends_by is None:
                unknown += 1
            else:
                known = max(known, resident.ends_by)
        return max(known, self.now + self.rest * _HARMONIC[min(unknown, _MOST_PODS - 1)])

    def first_opening(
        self, request: Request, demands: Demands = NO_DEMANDS, kept: Placement | None = None
    ) -> Opening | None:
        """Return the first place for the request; None if no row opens by the ends of pods.

        Of equal rows the one that lacks the least memory is taken. Nothing is changed afterwards.
        kept: the place of the reservation, which stays if its devices are free and only the node's
        own resources are not.
        """
        if kept is not None and self._has_devices(kept):
            ending = self._with_host_ends(request, kept.row, ())
            if ending:
                return Opening(self.opens_at(ending), kept)
        guesses: list[tuple[float, int, list[Resident]]] = []
        by_row = self._ends_by_row.setdefault(request, {})
        for row in Planner(self.cluster, (), self.host).rows_for(request, demands):
            if row not in by_row:
                by_row[row] = self._first_ends(request, row)
            if ending := by_row[row]:
                guesses.append((self.opens_at(ending), row, ending))
        guesses.sort(key=lambda guess: guess[0])
        first: Opening | None = None
        for at, row, ending in guesses[:_MOST_TRIES]:
            if first is not None and at >= first.at:
                break
            opening = self._tried(request, row, ending)
            if opening is not None and (first is None or opening.at < first.at):
                first = opening
        return first

    def _has_devices(self, place: Placement) -> bool:
        """Return whether the devices of a place fit the request now."""
        row, shares, request = place
        return not any(
            device_lacks(self.cluster.view, row, request.part(units)).get(device, True)
            for device, units in shares
        )

    def _first_ends(self, request: Request, row: int) -> list[Resident]:
        """Return the pods to end so that the row has room for the request first; none where too few
        pods end.
        """
        devices = self._device_ends(request, row)
        ending = None if devices is None else self._with_host_ends(request, row, devices)
        return ending or []

    def _device_ends(self, request: Request, row: int) -> list[Resident] | None:
        """Return the pods to end so that enough devices fit the request first; None where too few
        pods end.
        """
        on_device: dict[int, list[Resident]] = defaultdict(list)
        for resident in self._others(row, ()):
            for device in resident.placement.devices:
                on_device[device].append(resident)
        ending, devices = dict[Resident, None](), set[int]()
        for units, count in Counter(request.parts).items():
            ways: list[tuple[float, int, list[Resident]]] = []
            for device, lack in device_lacks(self.cluster.view, row, request.part(units)).items():
                if device not in devices:
                    way = self._ends(lack, on_device[device])
                    if way is not None:
                        ways.append((self.opens_at(way), device, way))
            if len(ways) < count:
                return None
            ways.sort(key=lambda way: way[:2])
            for _, device, way in ways[:count]:
                devices.add(device)
                ending |= dict.fromkeys(way)
        return list(ending)

    def _with_host_ends(
        self, request: Request, row: int, ending: Sequence[Resident]
    ) -> list[Resident] | None:
        """Return these pods and those to end so that the node has its own resources free too; None
        where too few pods end.
        """
        lack = host_lack(self.cluster.view, self.host, row, request)
        if not lack:
            return list(ending)
        way = self._ends(lack, (*ending, *self._others(row, ending)))
        return None if way is None else list(dict.fromkeys((*ending, *way)))

    def _ends(self, lack: Lack, residents: Iterable[Resident]) -> list[Resident] | None:
        """Return the first of these pods whose ends free what lacks; None where all are too few."""
        lacking, ending = dict(lack), list[Resident]()
        for resident in residents:
            if not lacking:
                break
            if resident not in self._freed:
                self._freed[resident] = freed_amounts(resident.placement, self.cluster.view)
            freed = self._freed[resident]
            helpful = lacking.keys() & freed.keys()
            if helpful:
                ending.append(resident)
            for name in helpful:
                lacking[name] -= freed[name]
                if lacking[name] <= 0:
                    del lacking[name]
        return None if lacking else ending

    def _tried(self, request: Request, row: int, ending: Sequence[Resident]) -> Opening | None:
        """Return the opening of the row when these pods have ended, and others if that is too
        few.
        """
        others = self._others(row, ending)
        with ExitStack() as undo:
            for count, resident in enumerate((*ending, *others), 1):
                self.cluster.release(resident.placement)
                undo.callback(self.cluster.put, *resident.placement)
                self.host.take(row, resident.placement.request, -1)
                undo.callback(self.host.take, row, resident.placement.request)
                if count < len(ending) or self.host.lacks(row, request):
                    continue
                placement = self.cluster.place_on(row, request)
                if placement is not None:
                    self.cluster.release(placement)
                    return Opening(self.opens_at((*ending, *others)[:count]), placement)
        return None

    def _others(self, row: int, ending: Collection[Resident]) -> list[Resident]:
        """Return the other pods of the row that may end, those with a known end first."""
        others = (one for one in self.residents.get(row, ()) if one not in ending)
        return sorted(others, key=lambda one: inf if one.ends_by is None else one.ends_by)


class ReservedPart:
    """The memory that reservations have: at most a part of the cluster; one pod may have more."""

    def __init__(self, cluster: MutableCluster) -> None:
        self._capacity = cluster.view.capacity
        self._room = MOST_PART * cluster.capacity
        self.count = 0
        """The number of reservations."""

    def allows(self, placement: Placement) -> bool:
        """Return whether a further pod may have this place."""
        return not self.count or self._charged(placement) <= self._room

    def add(self, placement: Placement) -> None:
        """Count the place of a reservation."""
        self.count += 1
        self._room -= self._charged(placement)

    def _charged(self, placement: Placement) -> int:
        row, shares, request = placement
        charges = request.charges_on(shares, self._capacity[row].tolist())
        return sum(units for _, units in charges)
