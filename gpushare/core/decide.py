"""The decisions: which nodes fit, which node is best, which devices are used.

Pure functions over a Snapshot. Filter, prioritize and bind use the same mask and the same matrix.
So while nothing changes, a node that passes filter can be bound, and bind ranks as prioritize did.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import compress

import numpy as np

from gpushare.core.held_snapshot import HeldSnapshot
from gpushare.core.model import Allocation, Reason, Request
from gpushare.core.node_names import NodeNames, looked_up
from gpushare.core.pairing import paired_devices
from gpushare.core.policy import APART
from gpushare.core.ranking import Scorer
from gpushare.core.snapshot import (
    REASONS,
    Bools,
    Floats,
    Ints,
    Rows,
    Snapshot,
    has_accepted_model,
)
from gpushare.errors import InsufficientMemory, UnknownNode

BEST = 10
"""The highest score of the extender protocol, given to only one node."""
_MAX_VALUE = 1e300


@dataclass(frozen=True, slots=True)
class FilterResult:
    """The answer to filter; every given name is in exactly one of the three.

    `fit`: names in the given order. `failed`: the reason by name. `unknown`: names that the ledger
    does not have.
    """

    fit: tuple[str, ...]
    failed: dict[str, Reason]
    unknown: tuple[str, ...]


def filter_nodes(snapshot: Snapshot, names: Sequence[str], request: Request) -> FilterResult:
    """Return which of the named nodes (each once) fit the request now, and why others do not."""
    rows = _rows(snapshot, names)
    every = np.arange(len(snapshot.names))
    # Row -1, the unknown node, is the last element: it never fits.
    fits_by_row = np.zeros(len(every) + 1, dtype=bool)
    fits_by_row[:-1] = _has_enough_devices(feasible(snapshot, every, request), request)
    fits = fits_by_row[rows]
    if fits.all():
        return FilterResult(names if isinstance(names, NodeNames) else tuple(names), {}, ())
    rejected = list(compress(names, (~fits).tolist()))
    rows = rows[~fits]
    unknown = tuple(compress(rejected, (rows < 0).tolist()))
    known = compress(rejected, (rows >= 0).tolist())
    codes = _reasons(snapshot, rows[rows >= 0], request).tolist()
    failed = {
        name: REASONS[code] or Reason.NO_DEVICE for name, code in zip(known, codes, strict=True)
    }
    if isinstance(names, NodeNames):
        return FilterResult(names.part(fits), failed, unknown)
    return FilterResult(tuple(compress(names, fits.tolist())), failed, unknown)


def restrict_to(result: FilterResult, node: str) -> FilterResult:
    """Return the result for a pod that is being bound to one of the nodes and fits only there."""
    others = (name for name in result.fit if name != node)
    failed = {name: why for name, why in result.failed.items() if name != node}
    failed.update(dict.fromkeys(others, Reason.BEING_BOUND))
    return FilterResult((node,), failed, tuple(name for name in result.unknown if name != node))


def fits_somewhere(snapshot: Snapshot, request: Request) -> bool:
    """Return whether some node has room for the request now, in CPU and host memory too."""
    rows = np.arange(len(snapshot.names))
    room = _has_enough_devices(feasible(snapshot, rows, request), request)
    room &= (snapshot.cpu_capacity < 0) | (snapshot.cpu_free >= request.cpu)
    room &= (snapshot.memory_capacity < 0) | (snapshot.memory_free >= request.memory)
    return bool(room.any())


def room_for(snapshot: Snapshot, request: Request, most: int) -> int:
    """Return how many pods that ask for this fit at once, by device memory alone, at most `most`.

    On one node `m` pods of `k` devices fit exactly if the devices' places, at most `m` of each,
    are `k * m` or more.
    """
    rows = np.flatnonzero(has_accepted_model(snapshot, np.arange(len(snapshot.names)), request))
    places = snapshot.free[rows] // max(request.units, 1)
    low, high = np.zeros(len(rows), np.int64), np.full(len(rows), most, np.int64)
    while (low < high).any():
        middle = (low + high + 1) // 2
        fits = np.minimum(places, middle[:, None]).sum(axis=1) >= request.devices * middle
        low, high = np.where(fits, middle, low), np.where(fits, high, middle - 1)
    return min(int(low.sum()), most)


def _rows(snapshot: Snapshot, names: Sequence[str]) -> Rows:
    """Return intp (len(names),): the row of each name, -1 where the ledger does not have it."""
    if isinstance(names, NodeNames):
        return names.rows(snapshot.row)
    return looked_up(names, snapshot.row)


def feasible(snapshot: Snapshot, rows: Rows, request: Request) -> Bools:
    """Return bool (K, D): devices with room for the request's units, for the given rows.

    A row may hold fewer of them than the request needs devices: see `_has_enough_devices`.
    """
    mask: Bools = snapshot.open[rows] & (snapshot.free[rows] >= max(request.units, 1))
    if not snapshot.pinned:
        return mask
    for place in np.flatnonzero(np.isin(rows, list(snapshot.pinned))):
        allowed = paired_devices(snapshot.pinned[int(rows[place])], request)
        if allowed is not None:
            keep = np.zeros(mask.shape[1], dtype=bool)
            keep[[device for device in allowed if device < len(keep)]] = True
            mask[place] &= keep
    return mask


def score_nodes(
    snapshot: Snapshot, names: Sequence[str], request: Request, scorer: Scorer
) -> dict[int, list[str]]:
    """Return the names (each once) by score, from 10 down to 1; all others score 0.

    Only the best node gets 10: kube-scheduler breaks ties at random, and the policy's preference
    would be lost. The others get 0..9 by their values; nodes that do not fit score 0.
    """
    places, values, best = _node_values(snapshot, names, request, scorer)
    if not len(places):
        return {}
    values = values.clip(-_MAX_VALUE, _MAX_VALUE)  # so that no difference of two is infinite
    near = values[np.abs(values) < APART / 2]
    if 0 < len(near) < len(values):
        # Nodes that stand apart rank first or last, and leave the others their differences.
        values = values.clip(near.min(), near.max())
    low, high = float(values.min()), float(values.max())
    scores = ((values - low) * ((BEST - 1) / (high - low) if high > low else 0)).astype(np.int8)
    scores[best] = BEST
    order = np.argsort(-scores, kind="stable")  # of bytes: it counts them, and compares none
    listed = list(map(names.__getitem__, places[order].tolist()))
    counts = np.bincount(scores, minlength=BEST + 1).tolist()
    found, start = {}, 0
    for score in range(BEST, 0, -1):
        if counts[score]:
            found[score] = listed[start : start + counts[score]]
            start += counts[score]
    return found


def best_node(
    snapshot: Snapshot, names: Sequence[str], request: Request, scorer: Scorer
) -> str | None:
    """Return the best of the named nodes, or None if none fits."""
    places, _, best = _node_values(snapshot, names, request, scorer)
    return names[places[best]] if len(places) else None


def _node_values(
    snapshot: Snapshot, names: Sequence[str], request: Request, scorer: Scorer
) -> tuple[Rows, Floats, int]:
    """Return (positions in `names` of the nodes that fit, their values, which of them is the best).

    Of equal values the node that comes first by name is the best: the order is total.
    """
    rows = _rows(snapshot, names)
    places = np.flatnonzero(rows >= 0)
    rows = rows[places]
    values = scorer.scores(snapshot, request).values[rows]
    pinned = np.flatnonzero(np.isin(rows, list(snapshot.pinned))) if snapshot.pinned else ()
    if len(pinned):
        # Pairing allows only some devices there, and the best of all may not be one of them.
        mask = feasible(snapshot, rows[pinned], request)
        mask &= _has_enough_devices(mask, request)[:, None]
        worth = scorer.score_devices(snapshot, rows[pinned], request)
        values[pinned] = np.where(mask, worth, -np.inf).max(axis=1)
    fits = values > -np.inf
    places, rows, values = places[fits], rows[fits], values[fits]
    if not len(places):
        return places, values, 0
    ties = np.flatnonzero(values == values.max())
    return places, values, int(ties[np.argmin(snapshot.order[rows[ties]])])


def place(snapshot: Snapshot, node: str, request: Request, scorer: Scorer) -> Allocation:
    """Return the devices of the node that the policy scores highest.

    Raises UnknownNode, or InsufficientMemory with the reason filter would give now.
    """
    row = snapshot.row.get(node)
    if row is None:
        raise UnknownNode(f"node {node!r} is not known; is it new, or does it share no GPU?")
    rows = np.array([row], dtype=np.intp)
    mask = feasible(snapshot, rows, request)
    if not _has_enough_devices(mask, request)[0]:
        reason = REASONS[int(_reasons(snapshot, rows, request)[0])]
        free = ", ".join(str(units) for units in snapshot.free[row][snapshot.healthy[row]])
        raise InsufficientMemory(
            f"node {node!r}: {reason.value if reason else ''}: {request.units} units on "
            f"{request.devices} device(s) asked, free by device: {free or 'none'}"
        )
    known = None
    if request.devices == 1 and row not in snapshot.pinned:  # a pin takes devices out
        known = scorer.best_device(snapshot, row, request)
    # What is kept only saves time: no device is taken that has no room now.
    if known is None or not mask[0, known]:
        chosen = best_devices(scorer, snapshot, rows, mask, request)
    else:
        chosen = (known,)
    return Allocation(node, chosen, (request.units,) * len(chosen))


def best_devices(
    scorer: Scorer, snapshot: Snapshot, rows: Rows, mask: Bools, request: Request
) -> tuple[int, ...]:
    """Return the sorted devices of the best placement on the one row of `rows`.

    The highest value first, then the lowest index; only devices within the mask (1, D).
    """
    values = np.where(mask, scorer.score_devices(snapshot, rows, request), -np.inf)[0]
    if request.devices == 1:
        within = np.flatnonzero(mask[0])
        return (int(within[values[within].argmax()]),)
    # Devices of equally good placements need not be a good one together: with leftovers 5, 5, 3
    # each device is in a best pair, but the first two are not one. So equal ones are ordered by
    # their value for a single device.
    alone = scorer.score_devices(snapshot, rows, replace(request, devices=1))[0]
    # lexsort is stable.
    order = np.lexsort((-alone, -values, ~mask[0]))
    return tuple(sorted(order[: request.devices].tolist()))


def take_best(offered: HeldSnapshot, row: int, request: Request, scorer: Scorer) -> None:
    """Take from the row the devices that bind would choose for the request, if it fits there."""
    rows = np.array([row], dtype=np.intp)
    mask = feasible(offered, rows, request)
    if _has_enough_devices(mask, request)[0]:
        offered.take(row, best_devices(scorer, offered, rows, mask, request), request)


def _has_enough_devices(mask: Bools, request: Request) -> Bools:
    """Return bool (K,): rows with enough feasible devices."""
    enough: Bools = mask.sum(axis=1) >= request.devices
    return enough


def _reasons(snapshot: Snapshot, rows: Rows, request: Request) -> Ints:
    """Return int64 (K,): why each row cannot take the request, as an index into REASONS."""
    units, devices = max(request.units, 1), request.devices
    usable, free = snapshot.open[rows], snapshot.free[rows]
    empty_fits = (usable & (snapshot.capacity[rows] >= units)).sum(axis=1)
    now_fits = (usable & (free >= units)).sum(axis=1)
    busy = Reason.INSUFFICIENT_MEMORY if devices == 1 else Reason.INSUFFICIENT_DEVICES
    # From the least specific to the most; np.select takes five times as long for a few nodes.
    codes = np.full(len(rows), _code(busy))
    codes[now_fits >= devices] = _code(Reason.WAITS_FOR_PLUGIN)
    if isinstance(snapshot, HeldSnapshot):
        fits_without = _has_enough_devices(feasible(snapshot.base, rows, request), request)
        codes[fits_without & (now_fits < devices)] = _code(Reason.PROMISED)
    codes[empty_fits < devices] = _code(Reason.TOO_MANY_DEVICES)
    codes[empty_fits == 0] = _code(Reason.TOO_LARGE)
    codes[~usable.any(axis=1)] = _code(Reason.NO_DEVICE)
    closed = snapshot.closed[rows]
    return np.where(closed, closed, codes)


def _code(reason: Reason) -> int:
    return REASONS.index(reason)
