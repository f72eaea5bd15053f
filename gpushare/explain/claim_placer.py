"""Pods with claims placed one after the other: the node by the policy, the devices by first fit.

Pure; the books of claims are read and not changed.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from gpushare.core.claims.first_fit import Matcher, Steps, first_fit
from gpushare.core.claims.model import Fit, NodeDevices, NoFit, PodClaims, Use
from gpushare.core.mutable_cluster import Placement
from gpushare.core.node_filters import OwnFilters
from gpushare.core.policy import ClusterPricing, Policy
from gpushare.core.snapshot import Bools, Floats, Snapshot
from gpushare.explain.claim_books import ClaimBooks
from gpushare.explain.claim_score import parts_of, values_of
from gpushare.explain.claims import REASONS
from gpushare.explain.placer import HostFilters, Placer, PlacerOver, PodBatch, rows_by_name

_STEPS = 20_000
"""Steps of first fit on one node: about 20 ms."""


@dataclass(slots=True)
class _FreeDevices:
    """The devices of a node while pods are placed."""

    name: str
    """Name in the books; for a node to come, the name of the model node."""
    devices: NodeDevices | None
    base: Use
    """Use by claims of the cluster."""
    use: Use
    placements: list[tuple[Placement, Fit]]
    outcomes: dict[PodClaims, Fit | NoFit]


class ClaimPlacer(Placer):
    """Places pods with claims; other pods take CPU and host memory alone.

    books: of the snapshot's ledger. like: by the name of a node that comes, a node of the books
    with the same devices.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        filters: HostFilters,
        policy: Policy,
        *,
        books: ClaimBooks,
        matches: Matcher,
        like: Mapping[str, str],
    ) -> None:
        super().__init__(snapshot, rows_by_name(snapshot), filters, policy)
        self._books = books
        self._matches = matches
        self._has_prices = isinstance(policy, ClusterPricing)
        """Values of a row change with other rows."""
        self._values: dict[PodClaims, Floats] = {}
        self._nodes = []
        for name in self.view.names:
            use = Use() if name in like else books.use(name)
            model = like.get(name, name)
            self._nodes.append(_FreeDevices(model, books.devices(model), use, use, [], {}))

    @classmethod
    def over_books(cls, books: ClaimBooks, matches: Matcher, like: Mapping[str, str]) -> PlacerOver:
        """Return the factory of placers over snapshots of the books' ledger."""

        def placer(snapshot: Snapshot, own_filters: OwnFilters, policy: Policy) -> Placer:
            filters = HostFilters(own_filters, snapshot.names)
            return cls(snapshot, filters, policy, books=books, matches=matches, like=like)

        return placer

    def take_back(self, places: Iterable[Placement]) -> None:
        """Take pods away that were placed."""
        places = list(places)
        super().take_back(places)
        for place in places:
            node = self._nodes[place.row]
            node.placements = [item for item in node.placements if item[0] is not place]
            node.use = node.base
            for _, fit in node.placements:
                node.use = node.use.plus(fit.holdings())
            self._forget(place.row)

    def _place(self, batch: PodBatch, among: Bools) -> Placement | None:
        """Place one pod on the best of these nodes; None if none has devices."""
        if batch.claims is None:
            return super()._place(batch, among)
        values = np.where(among, self._scores(batch.claims), -np.inf)
        row = int(values.argmax())  # of equal rows the first by name
        fit = self._fit(row, batch.claims)
        if values[row] == -np.inf or isinstance(fit, NoFit):
            return None
        node = self._nodes[row]
        units: Counter[int] = Counter()
        for index, part_units in parts_of(self._books, node.name, fit):
            units[index] += part_units
        placement = self._cluster.put(row, tuple(sorted(units.items())), batch.request)
        node.use = node.use.plus(fit.holdings())
        node.placements.append((placement, fit))
        self._forget(row)
        return placement

    def _scores(self, claims: PodClaims) -> Floats:
        """Return float64 (K,): the policy's value of each row, -inf where first fit has none."""
        values = self._values.setdefault(claims, np.full(len(self._nodes), np.nan))
        if self._has_prices:
            values[:] = np.nan
        placements = []
        for row in np.flatnonzero(np.isnan(values)).tolist():
            values[row] = -np.inf
            fit = self._fit(row, claims)
            if isinstance(fit, Fit):
                parts = parts_of(self._books, self._nodes[row].name, fit, claims)
                placements.append((row, [*parts]))
        rows = [row for row, _ in placements]
        # A policy may give the worst value there is; the node fits all the same.
        scores = values_of(self._cluster.scorer, self.view, placements)
        values[rows] = np.maximum(scores, np.finfo(np.float64).min)
        return values

    def _forget(self, row: int) -> None:
        self._nodes[row].outcomes = {}
        for values in self._values.values():
            values[row] = np.nan

    def _refused(self, batch: PodBatch) -> Mapping[str, str]:
        """Return why first fit finds no devices on nodes, by node name."""
        if batch.claims is None:
            return super()._refused(batch)
        outcomes = ((name, self._fit(row, batch.claims)) for name, row in self.view.row.items())
        return {name: REASONS[fit] for name, fit in outcomes if isinstance(fit, NoFit)}

    def _fit(self, row: int, claims: PodClaims) -> Fit | NoFit:
        node = self._nodes[row]
        if claims not in node.outcomes:
            node.outcomes[claims] = (
                NoFit.NOT_MODELLED
                if node.devices is None
                else first_fit(node.devices, claims, node.use, self._matches, Steps(_STEPS))
            )
        return node.outcomes[claims]
