"""The policy's score of the devices that first fit takes, as cards of a driver's ledger, and what
first fit takes on each node for one kind of request.

Predictions and scores are kept; only those of nodes that changed are made anew. Knows no lock and
no offers. Tested in `tests/unit/explain/test_claim_placer.py` and
`tests/unit/extender/claims/test_ranker.py`.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from gpushare.core.claims.model import Fit, Holding, PodClaims, Taken
from gpushare.core.model import Request
from gpushare.core.node_names import NodeNames
from gpushare.core.ranking import Scorer
from gpushare.core.snapshot import Bools, Floats, Ints, Snapshot
from gpushare.explain.claim_books import ClaimBooks
from gpushare.explain.claim_records import ClaimCard, memory_units

Part = tuple[int, int]
"""(index of a card on the node, units taken of the card)."""


def parts_of(
    books: ClaimBooks, node: str, fit: Fit, claims: PodClaims | None = None
) -> Iterator[Part]:
    """Yield the part of each card of the driver that a fit takes on a node.

    claims: with these a card that is taken whole counts with the requested amount, so that the
    tightest card has the best score.
    """
    for device_taken in fit.taken:
        card = books.card(device_taken.device.key, node)
        if card is None or device_taken.has_admin_access:
            continue
        units = books.units_of(Holding(device_taken.device.key, device_taken.consumed), card)
        if claims is not None and device_taken.consumed is None and not card.parts:
            units = min(units, _requested_units(books, device_taken, claims, card))
        if units:
            yield card.index, units


def _requested_units(
    books: ClaimBooks, device_taken: Taken, claims: PodClaims, card: ClaimCard
) -> int:
    """Return the units that a request asks of a card that is taken whole; 1 without an amount."""
    for request in claims.claims[device_taken.claim].requests:
        for alternative in request.alternatives:
            units = memory_units(dict(alternative.amounts), books.unit)
            if alternative.name == device_taken.request and units is not None:
                return max(min(units, card.units), 1)
    return 1


def values_of(
    scorer: Scorer, snapshot: Snapshot, placements: Sequence[tuple[int, Sequence[Part]]]
) -> list[float]:
    """Return the value of each placement (row, parts): the sum over the parts."""
    values = np.zeros(len(placements))
    by_units: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for at, (row, parts) in enumerate(placements):
        for index, units in parts:
            by_units[units].append((at, row, index))
    for units, cells in by_units.items():
        at, rows, indices = np.array(cells, dtype=np.intp).T
        scores = scorer.score_devices(snapshot, rows, _part(units))
        of_cells = scores[np.arange(len(rows)), indices]
        values += np.bincount(at, of_cells, minlength=len(values))
    values[np.isnan(values)] = -np.inf
    return [float(value) for value in values]


@lru_cache(maxsize=1 << 10)
def _part(units: int) -> Request:
    return Request().part(units)


@dataclass(slots=True)
class Prediction:
    """The devices that first fit takes on a node."""

    fit: Fit | None = None
    parts: tuple[Part, ...] = ()
    """Parts of the driver's cards; without any the node ranks last."""


class ClaimPredictions:
    """The predictions for one kind of request, as of one version of the books of claims."""

    def __init__(self) -> None:
        self.version = -1
        self.by_node: dict[str, Prediction] = {}
        # Snapshots share the array until a node changes.
        self._capacity: Ints | None = None
        # bool (N,): the rows with a prediction; float64 (N,): the scores, -inf ranks last.
        self._is_predicted: Bools = np.zeros(0, dtype=bool)
        self._values: Floats = np.zeros(0)

    def take_over(self, books: Snapshot, changed_nodes: Iterable[str]) -> bool:
        """Drop what is predicted for changed nodes; return whether no score is left, since
        capacities differ.
        """
        for node in changed_nodes:
            self.by_node.pop(node, None)
        is_stale = self._capacity is not books.capacity
        if is_stale:
            self._capacity = books.capacity
            known = self.by_node.keys() & books.row.keys()
            self.by_node = {node: self.by_node[node] for node in known}
            self._is_predicted = np.zeros(len(books.names), dtype=bool)
            self._is_predicted[[books.row[node] for node in known]] = True
            self._values = np.full(len(books.names), -np.inf)
        else:
            rows = [row for node in changed_nodes if (row := books.row.get(node)) is not None]
            self._is_predicted[rows], self._values[rows] = False, -np.inf
        return is_stale

    def missing(self, names: NodeNames, books: Snapshot) -> list[str]:
        """Return the named nodes of the books without a prediction."""
        rows = names.rows(books.row)
        rows = rows[rows >= 0]
        return [books.names[row] for row in rows[~self._is_predicted[rows]].tolist()]

    def put(self, node: str, prediction: Prediction, books: Snapshot) -> None:
        """Keep the prediction for a node of the books."""
        self.by_node[node] = prediction
        self._is_predicted[books.row[node]] = True

    def score(self, rows: Collection[int], values: Collection[float]) -> None:
        """Take over the scores of rows."""
        self._values[[*rows]] = [*values]

    def values(self, names: NodeNames, books: Snapshot) -> Floats:
        """Return float64 (len(names),): the score of each node; -inf for one that ranks last."""
        rows = names.rows(books.row)
        is_known, values = rows >= 0, np.full(len(rows), -np.inf)
        values[is_known] = self._values[rows[is_known]]
        return values


def best_place(names: NodeNames, values: Floats, books: Snapshot) -> int | None:
    """Return the index of the best node, of equal ones the first by name; None if all rank last."""
    best = values.max()
    if best == -np.inf:
        return None
    places = np.flatnonzero(values == best)
    return int(places[books.order[names.rows(books.row)[places]].argmin()])
