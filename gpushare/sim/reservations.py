"""Reservations for pods that wait, as `gpushare serve --reserve-after` makes them.

Pods of one kind are alike here, so a reservation is for the oldest waiting pod of a kind, and a
kind has one at most.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field

from gpushare.core.defrag import Host
from gpushare.core.model import Kind, Request
from gpushare.core.mutable_cluster import MutableCluster, Placement
from gpushare.core.openings import Opening, Outlook, ReservedPart, Resident
from gpushare.sim.engine import Cluster

_NOTHING = Request()
"""The request of a hold: only the units of the hold count."""


@dataclass(slots=True)
class _Reservation:
    opening: Opening
    held: Placement = field(default=Placement(0, (), _NOTHING))
    """The free part of the place, which the cluster counts as in use."""


class Reservations:
    """The reservations of a cluster. after: the time that a pod must have waited."""

    def __init__(self, cluster: Cluster, after: float) -> None:
        self.after = after
        # Changes the same arrays, and the cluster counts no pod.
        self._cluster = MutableCluster(cluster.view, cluster.scorer)
        self._host = Host(len(cluster.view.names))
        self._reserved: dict[Kind, _Reservation] = {}

    def on(self, row: int) -> list[Kind]:
        """Return the kinds with a reservation on the row, the oldest reservation first."""
        reserved = self._reserved.items()
        return [kind for kind, one in reserved if one.opening.placement.row == row]

    def lift(self, kind: Kind) -> None:
        """Let the place of the kind be free, to try whether the kind fits now."""
        one = self._reserved[kind]
        self._cluster.release(one.held)
        one.held = Placement(one.opening.placement.row, (), _NOTHING)

    def hold(self, kind: Kind) -> None:
        """Hold what is free of the place of the kind."""
        one, free = self._reserved[kind], self._cluster.view.free
        row, shares, _ = one.opening.placement
        parts = ((device, min(units, int(free[row, device]))) for device, units in shares)
        held = tuple((device, units) for device, units in parts if units > 0)
        one.held = self._cluster.put(row, held, _NOTHING)

    def end(self, kind: Kind) -> None:
        """End the reservation of the kind."""
        self.lift(kind)
        del self._reserved[kind]

    def renew(
        self, late: Mapping[Kind, Request], running: Iterable[tuple[Placement, float]], now: float
    ) -> None:
        """Make all reservations anew.

        late: the kinds with a pod that has waited for long, the oldest pod first. running: (place,
        start) of pods.
        """
        for kind in list(self._reserved):
            self.end(kind)
        if not late:
            return
        residents: defaultdict[int, list[Resident]] = defaultdict(list)
        ages: list[float] = []
        for placement, began in running:
            residents[placement.row].append(Resident(placement))
            ages.append(now - began)
        rest = sum(ages) / max(len(ages), 1)
        outlook = Outlook(self._cluster, self._host, residents, now, rest)
        part = ReservedPart(self._cluster)
        for kind, request in late.items():
            opening = self._opening(request, outlook)
            if opening is None:
                continue
            if not part.allows(opening.placement):
                break  # a later kind that is smaller does not overtake
            part.add(opening.placement)
            self._reserved[kind] = _Reservation(opening)
            self.hold(kind)

    def _opening(self, request: Request, outlook: Outlook) -> Opening | None:
        """Return the first place that opens besides the reserved places."""
        with ExitStack() as undo:
            for kind, one in self._reserved.items():
                self.lift(kind)
                undo.callback(self.hold, kind)
                undo.callback(self._cluster.release, self._cluster.put(*one.opening.placement))
            return outlook.first_opening(request)
