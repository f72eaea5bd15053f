"""The policy's score of the devices that first fit takes, as cards of a driver's ledger.

Tested in `tests/unit/explain/test_claim_placer.py`.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np

from gpushare.core.claims.model import Fit, Holding, PodClaims, Taken
from gpushare.core.model import Request
from gpushare.core.ranking import Scorer
from gpushare.core.snapshot import Snapshot
from gpushare.explain.claim_books import ClaimBooks
from gpushare.explain.claim_cards import ClaimCard, memory_units

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
