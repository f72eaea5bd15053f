"""What first fit takes on each node for one kind of request, and the policy's score of that.

Predictions and scores are kept; only those of nodes that changed are made anew. Knows no lock and
no offers. Tested in `tests/unit/extender/claims/test_ranker.py`.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

import numpy as np

from gpushare.core.claims.model import Fit
from gpushare.core.node_names import NodeNames
from gpushare.core.snapshot import Bools, Floats, Ints, Snapshot
from gpushare.explain.claim_score import Part


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
