"""The node that will have room for a waiting pod first, as far as known of the running pods.

Pods with a known end come first. In a steady state the pods without one run on for as long as they
have run, in the mean over all: that mean is `Outlook.rest`. The last of k such pods ends after
rest * (1 + 1/2 + ... + 1/k), as lives without memory do. So of two nodes the one with fewer pods
opens first, and each end on a node brings the node forward.

Tested in `tests/unit/core/test_openings.py`.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import accumulate, chain
from math import inf

from gpushare.core.amounts import charged_units
from gpushare.core.defrag import Host, Planner
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


@dataclass(frozen=True, slots=True)
class Resident:
    """A running pod that may end."""

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
    """A cluster, its host resources, and the running pods that may end, by row."""

    cluster: MutableCluster
    host: Host
    residents: Mapping[int, Sequence[Resident]]
    now: float
    rest: float
    """The time that a pod without a known end runs on, in the mean."""

    def opens_at(self, ending: Iterable[Resident]) -> float:
        """Return when the last of these pods is expected to end."""
        known, unknown = self.now, 0
        for resident in ending:
            if resident.ends_by is None:
                unknown += 1
            else:
                known = max(known, resident.ends_by)
        return max(known, self.now + self.rest * _HARMONIC[min(unknown, _MOST_PODS - 1)])

    def first_opening(self, request: Request, demands: Demands = NO_DEMANDS) -> Opening | None:
        """Return the first place for the request; None if no row opens by the ends of pods.

        Of equal rows the one that lacks the least memory is taken. Nothing is changed afterwards.
        """
        guesses: list[tuple[float, int, list[Resident]]] = []
        for row in Planner(self.cluster, (), self.host).rows_for(request, demands):
            ending = self._least_ends(request, row)
            if ending:
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

    def _least_ends(self, request: Request, row: int) -> list[Resident]:
        """Return the pods to end so that enough memory is free first; [] where no ends do."""
        on_device: dict[int, list[tuple[int, Resident]]] = defaultdict(list)
        capacity = self.cluster.view.capacity[row].tolist()
        for resident in sorted(self.residents.get(row, ()), key=_known_first):
            percents = resident.placement.request.percents
            for device, units in resident.placement.shares:
                charged = charged_units(units, percents, capacity[device])
                on_device[device].append((charged, resident))
        largest, ways = max(request.parts, default=0), list[tuple[float, list[Resident]]]()
        for device, free in enumerate(self.cluster.view.free[row].tolist()):
            ending: list[Resident] = []
            needed, room = charged_units(largest, request.percents, capacity[device]), free
            for units, resident in on_device[device]:
                if room >= needed:
                    break
                room += units
                ending.append(resident)
            if room >= needed:
                ways.append((self.opens_at(ending), ending))
        ways.sort(key=lambda way: way[0])
        if len(ways) < request.devices:
            return []
        return list(dict.fromkeys(chain.from_iterable(way for _, way in ways[: request.devices])))

    def _tried(self, request: Request, row: int, ending: Sequence[Resident]) -> Opening | None:
        """Return the opening of the row when these pods have ended, and others if that is too
        few.
        """
        others = sorted(set(self.residents[row]) - set(ending), key=_known_first)
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


def _known_first(resident: Resident) -> float:
    return inf if resident.ends_by is None else resident.ends_by
