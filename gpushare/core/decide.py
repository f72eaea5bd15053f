"""The decisions: which nodes fit, which node is best, which devices are used.

Pure functions over a Snapshot. Filter, prioritize and bind use the same mask and the same matrix.
So while nothing changes, a node that passes filter can be bound, and bind ranks as prioritize did.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import compress
from typing import NamedTuple

import numpy as np

from gpushare.core.amounts import PERCENT_AMOUNTS, beside_memory, memory_text
from gpushare.core.held_snapshot import HeldSnapshot, HeldSnapshotBuilder
from gpushare.core.model import ANY_CARD, Allocation, Reason, Request, Shares
from gpushare.core.node_names import looked_up
from gpushare.core.policy import APART
from gpushare.core.ranking import Scorer
from gpushare.core.snapshot import (
    PODS,
    REASONS,
    Bools,
    Floats,
    Ints,
    Rows,
    Snapshot,
    fellows,
    has_accepted_model,
    has_cards,
    has_devices,
    has_percent,
    has_percents,
    has_place,
    has_room,
    needed_units,
)
from gpushare.errors import InsufficientMemory, UnknownNode

BEST = 10
"""The highest score of the extender protocol, given to only one node."""
_MAX_VALUE = 1e300

CODES: dict[Reason | None, int] = {reason: code for code, reason in enumerate(REASONS)}
"""The index of each reason in REASONS; None is FITS."""
FITS = CODES[None]
UNKNOWN_NODE = "node not found"
"""The reason for a node that the ledger does not have, without its name."""
UNKNOWN = len(REASONS)
"""The code of a node that the ledger does not have."""
NO_ROOM = 2**40
"""The result of `missing_units` for a row that could never have room."""
_REASON_OF = (*REASONS, None)
_TEXTS = ["", *(reason.value for reason in Reason), UNKNOWN_NODE]
_RESOLVABLE = np.array([reason is not None and reason.resolvable for reason in _REASON_OF])
_FINAL = np.array([reason is not None and not reason.resolvable for reason in _REASON_OF])


@dataclass(frozen=True, eq=False)
class Judgement:
    """Which of K nodes fit a request, and why the others do not."""

    codes: Ints
    """int64 (K,): FITS, UNKNOWN for a node that the ledger does not have, else the index into
    REASONS of why it does not fit."""
    fits: Bools
    """bool (K,): the nodes that fit."""

    @property
    def may_change(self) -> bool:
        """Whether no node fits, but one would if some pods were gone."""
        return not self.fits.any() and bool(_RESOLVABLE[self.codes].any())

    def has(self, reason: Reason) -> bool:
        """Return whether this is why some node does not fit."""
        return bool((self.codes == CODES[reason]).any())

    def refusals(self, names: Sequence[str]) -> "Refusals":
        """Return why nodes do not fit. names: of these nodes."""
        by_name: list[dict[str, str]] = []
        for chosen in (_RESOLVABLE, _FINAL):
            mask = chosen[self.codes]
            texts = map(_TEXTS.__getitem__, self.codes[mask].tolist())
            refused_names = compress(names, mask.tolist()) if mask.any() else ()
            by_name.append(dict(zip(refused_names, texts, strict=True)))
        busy, never = by_name
        unknown = self.codes == UNKNOWN
        if unknown.any():
            refused_names = compress(names, unknown.tolist())
            busy.update((node, f'node "{node}" not found') for node in refused_names)
        numbers = np.bincount(self.codes, minlength=UNKNOWN + 1).tolist()
        counts = {text: n for text, n in zip(_TEXTS, numbers, strict=True) if text and n}
        return Refusals(busy, never, counts)

    def only(self, place: int) -> "Judgement":
        """Return the judgement for a pod that is being bound to the node at this place."""
        codes = np.where(self.fits, CODES[Reason.BEING_BOUND], self.codes)
        codes[place] = FITS
        return Judgement(codes, codes == FITS)


class Refusals(NamedTuple):
    """Why nodes do not fit."""

    busy: dict[str, str]
    """By name, those where removing pods may help, or that are unknown so far."""
    never: dict[str, str]
    """By name, those where nothing helps."""
    counts: dict[str, int]
    """How many there are, by a reason without names."""


def judge(snapshot: Snapshot, rows: Rows, request: Request) -> Judgement:
    """Return which of the rows fit the request now. rows: intp (K,), -1 for an unknown node."""
    is_known = rows >= 0
    codes = np.where(is_known, FITS, UNKNOWN)
    named = rows if is_known.all() else rows[is_known]
    fits = np.zeros(len(rows), dtype=bool)
    room = has_room(snapshot, named, request, pairing=True)
    fits[is_known] = has_devices(room, request, snapshot.free, named)
    rejected = np.flatnonzero(is_known & ~fits)
    if len(rejected):
        codes[rejected] = _reasons(snapshot, rows[rejected], request)
    return Judgement(codes, fits)


def judge_all(names: Sequence[str], reason: Reason) -> Judgement:
    """Return that none of the nodes fits, for one reason."""
    return Judgement(np.full(len(names), CODES[reason]), np.zeros(len(names), dtype=bool))


@dataclass(frozen=True, slots=True)
class FilterResult:
    """Which nodes fit, by name; every given name is in exactly one of the three."""

    fit: tuple[str, ...]
    """In the given order."""
    failed: dict[str, Reason]
    unknown: tuple[str, ...]
    """Those that the ledger does not have."""


def filter_nodes(snapshot: Snapshot, names: Sequence[str], request: Request) -> FilterResult:
    """Return which of the named nodes (each once) fit the request now, and why others do not."""
    judgement = judge(snapshot, rows_of(snapshot, names), request)
    reasons = zip(names, map(_REASON_OF.__getitem__, judgement.codes.tolist()), strict=True)
    return FilterResult(
        tuple(compress(names, judgement.fits.tolist())),
        {name: reason for name, reason in reasons if reason is not None},
        tuple(compress(names, (judgement.codes == UNKNOWN).tolist())),
    )


def rows_of(snapshot: Snapshot, names: Sequence[str]) -> Rows:
    """Return intp (len(names),): the row of each name, -1 where the ledger does not have it."""
    return looked_up(names, snapshot.row)


def fits_somewhere(snapshot: Snapshot, request: Request) -> bool:
    """Return whether some node has room for the request now, in CPU and host memory too."""
    rows = np.arange(len(snapshot.names))
    room = has_devices(has_room(snapshot, rows, request, pairing=True), request, snapshot.free)
    room &= (snapshot.cpu_capacity < 0) | (snapshot.cpu_free >= request.cpu)
    room &= (snapshot.memory_capacity < 0) | (snapshot.memory_free >= request.memory)
    return bool(room.any())


def room_for(snapshot: Snapshot, request: Request, limit: int, rows: Rows | None = None) -> int:
    """Return how many pods that ask for this fit at once, by their devices alone, at most `limit`.

    rows: intp (K,), the rows that count; None: all. On one node `m` pods of `k` devices fit exactly
    if the devices' places, at most `m` of each, are `k * m` or more. For a split request the result
    is an upper bound: the least over its part sizes, each with the parts of that size or larger
    counted as equal, and the smaller ones ignored.
    """
    among = np.arange(len(snapshot.names)) if rows is None else rows
    rows = among[has_accepted_model(snapshot, among, request)]
    at_least = {units: number for number, units in enumerate(request.parts, 1)}
    rooms = [
        _room_by_row(snapshot, rows, request.of_parts([units] * number), limit)
        for units, number in at_least.items()
    ]
    return min(int(np.min(rooms, axis=0, initial=limit).sum()), limit)


def _room_by_row(snapshot: Snapshot, rows: Rows, request: Request, limit: int) -> Ints:
    """Return int64 (K,): on each row, how many pods with the same units on each device fit."""
    places = snapshot.free[rows] // needed_units(snapshot, rows, request)
    if snapshot.limits_sharers:
        limits, pods = snapshot.sharers[rows, None], snapshot.pods[rows, :, PODS]
        places = np.minimum(places, np.maximum(limits - pods, 0))
    if request.percents:
        for free, percent in zip(snapshot.percents_free, request.percents, strict=True):
            if percent:
                places = np.minimum(places, free[rows] // percent)
        places[~has_percents(snapshot, rows, request)] = 0
    if request.cards != ANY_CARD:
        places = places * has_cards(snapshot, rows, request.cards)
    if request.apart and request.apart.required:
        places = np.minimum(places, fellows(snapshot, rows, request) == 0)
    low, high = np.zeros(len(rows), np.int64), np.full(len(rows), limit, np.int64)
    while (low < high).any():
        middle = (low + high + 1) // 2
        fits = np.minimum(places, middle[:, None]).sum(axis=1) >= request.devices * middle
        low, high = np.where(fits, middle, low), np.where(fits, high, middle - 1)
    return low


def parts_placed(among: Bools, request: Request, units: Ints) -> Ints:
    """Return int64 (K,): for how many parts of the request each row has devices at once.

    among: bool (K, D), the devices that may be used. units: int64 (K, D), the units of each.
    """
    counts = np.zeros(len(among), dtype=np.int64)
    for part in request.parts:
        # A device with room for a part has room for each smaller one.
        counts = np.minimum(counts + 1, (among & (units >= max(part, 1))).sum(axis=1))
    return counts


def missing_units(snapshot: Snapshot, rows: Rows, request: Request, usable: Bools) -> Ints:
    """Return int64 (K,): how few units have to become free on each row for the request.

    usable: bool (K, D), the devices that may be used, if they are wanted and large enough. A
    missing percent counts as one percent of the device's memory, a missing place as that of one of
    the most sharers, both rounded up; a pod of the same workload that has to leave as one unit. 0
    where the request fits, NO_ROOM or more if there are too few such devices.
    """
    capacity, limits = snapshot.capacity[rows], snapshot.sharers[rows, None].astype(np.int64)
    if not capacity.shape[1]:
        return np.full(len(rows), NO_ROOM)
    free_units = capacity - snapshot.used[rows]
    missing_places = np.maximum(snapshot.pods[rows, :, PODS] + 1 - limits, 0)
    missing_percents = -(-missing_places * capacity // limits)
    if request.percents or snapshot.any_percents:
        for amount, used, percent in zip(
            PERCENT_AMOUNTS, snapshot.percents_used, request.every_percent, strict=True
        ):
            if amount.is_memory:  # as units
                continue
            missing = amount.needed(percent) - (amount.whole - used[rows])
            missing_percents += -(-np.maximum(missing, 0) * capacity // amount.whole)
    usable = usable & has_cards(snapshot, rows, request.cards)
    if request.apart and request.apart.required:
        missing_percents += fellows(snapshot, rows, request)
    total = np.zeros(len(rows), dtype=np.int64)
    # The largest part first: any other fits where it would have fitted.
    for units in request.parts:
        needed = capacity if request.alone else needed_units(snapshot, rows, request.part(units))
        lacks = np.maximum(needed - free_units, 0) + missing_percents
        lacks[~usable | (capacity < max(units, 1))] = NO_ROOM
        device = lacks.argmin(axis=1)
        total += lacks[np.arange(len(rows)), device]
        usable[np.arange(len(rows)), device] = False
    return total


def score_rows(snapshot: Snapshot, rows: Rows, request: Request, scorer: Scorer) -> dict[int, Rows]:
    """Return the places in `rows` by score, from 10 down to 1; all others score 0.

    rows: intp (K,), each once; -1 never scores. Only the best node gets 10: kube-scheduler breaks
    ties at random, and the policy's preference would be lost. The others get 0..9 by their values;
    nodes that do not fit score 0.
    """
    places, values, best = _values(snapshot, rows, request, scorer)
    if not len(places):
        return {}
    values = values.clip(-_MAX_VALUE, _MAX_VALUE)  # so that no difference of two is infinite
    near = values[np.abs(values) < APART / 2]
    if 0 < len(near) < len(values):
        # Values moved by APART are clipped to the range of the other values, which keep their
        # differences.
        values = values.clip(near.min(), near.max())
    low, high = float(values.min()), float(values.max())
    scores = ((values - low) * ((BEST - 1) / (high - low) if high > low else 0)).astype(np.int8)
    scores[best] = BEST
    order = places[np.argsort(-scores, kind="stable")]  # of bytes: counted, not compared
    counts = np.bincount(scores, minlength=BEST + 1).tolist()
    by_score, start = {}, 0
    for score in range(BEST, 0, -1):
        if counts[score]:
            by_score[score] = order[start : start + counts[score]]
            start += counts[score]
    return by_score


def score_nodes(
    snapshot: Snapshot, names: Sequence[str], request: Request, scorer: Scorer
) -> dict[int, list[str]]:
    """Return the names (each once) by score, as `score_rows` does."""
    scores = score_rows(snapshot, rows_of(snapshot, names), request, scorer)
    return {score: [names[place] for place in places] for score, places in scores.items()}


def best_row(
    snapshot: Snapshot, rows: Rows, request: Request, scorer: Scorer, among: Bools | None = None
) -> int | None:
    """Return the place of the best of the rows, or None if none fits.

    among: bool (len(rows),), the places that may be chosen; None: all.
    """
    if among is not None:
        rows = np.where(among, rows, -1)
    places, _, best = _values(snapshot, rows, request, scorer)
    return int(places[best]) if len(places) else None


def _values(
    snapshot: Snapshot, rows: Rows, request: Request, scorer: Scorer
) -> tuple[Rows, Floats, int]:
    """Return (places in `rows` of the nodes that fit, their values, which of them is the best).

    Of equal values the node that comes first by name is the best: the order is total.
    """
    places = np.flatnonzero(rows >= 0)
    rows = rows[places]
    values = scorer.scores(snapshot, request).values[rows]
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
    mask = has_room(snapshot, rows, request, pairing=True)
    if not has_devices(mask, request, snapshot.free, rows)[0]:
        reason = REASONS[int(_reasons(snapshot, rows, request)[0])]
        fine = snapshot.healthy[row]
        free = ", ".join(str(units) for units in snapshot.free[row][fine])
        units = "+".join(map(str, request.split)) or str(request.units)
        size = memory_text(f"{units} units", request.units, request.percents)
        need = f"{size} on {request.devices} device(s) asked"
        for amount, percent, free_percents in zip(
            PERCENT_AMOUNTS, beside_memory(request.percents), snapshot.percents_free, strict=False
        ):
            if percent:
                by_device = ", ".join(f"{part} %" for part in free_percents[row][fine]) or "none"
                need += f", with {percent} % of each one's {amount.name} (free: {by_device})"
        raise InsufficientMemory(
            f"node {node!r}: {reason.value if reason else ''}: {need}, free by device:"
            f" {free or 'none'}"
        )
    kept_device = None
    if request.devices == 1:
        kept_device = scorer.best_device(snapshot, row, request)
    # The kept score only saves time: a device without room now is not taken.
    if kept_device is None or not mask[0, kept_device]:
        shares = best_shares(scorer, snapshot, rows, mask, request)
    else:
        shares = ((kept_device, request.units),)
    return Allocation(node, shares)


def best_shares(
    scorer: Scorer, snapshot: Snapshot, rows: Rows, mask: Bools, request: Request
) -> Shares:
    """Return the units by device of the best placement on the one row of `rows`, where it fits.

    The highest value first, then the lowest index; only devices within the mask (1, D).
    """
    if not request.split:
        devices = _best_devices(scorer, snapshot, rows, mask, request)
        return tuple((device, request.units) for device in devices)
    # The largest first. Whichever device it takes of those where it fits, the others fit on the
    # remaining devices, since they would have fitted on that one too.
    shares, spare = {}, mask.copy()
    for units in request.split:
        within = spare & (snapshot.free[rows] >= units)
        (device,) = _best_devices(scorer, snapshot, rows, within, request.part(units))
        shares[device] = units
        spare[0, device] = False
    return tuple(sorted(shares.items()))


def _best_devices(
    scorer: Scorer, snapshot: Snapshot, rows: Rows, mask: Bools, request: Request
) -> tuple[int, ...]:
    values = np.where(mask, scorer.score_devices(snapshot, rows, request), -np.inf)[0]
    if request.devices == 1:
        within = np.flatnonzero(mask[0])
        return (int(within[values[within].argmax()]),)
    # Two devices can each be part of some best placement and be no best placement together: with
    # leftovers 5, 5, 3 each device is in a best pair, but the first two are not one. So devices of
    # equal value are ordered by their value for a single device.
    alone = scorer.score_devices(snapshot, rows, replace(request, devices=1))[0]
    # lexsort is stable.
    order = np.lexsort((-alone, -values, ~mask[0]))
    return tuple(sorted(order[: request.devices].tolist()))


def take_best(builder: HeldSnapshotBuilder, row: int, request: Request, scorer: Scorer) -> None:
    """Take from the row the devices that bind would choose for the request, if it fits there."""
    rows, snapshot = np.array([row], dtype=np.intp), builder.draft()
    mask = has_room(snapshot, rows, request, pairing=True)
    if has_devices(mask, request, snapshot.free, rows)[0]:
        builder.take(row, best_shares(scorer, snapshot, rows, mask, request), request)


def _reasons(snapshot: Snapshot, rows: Rows, request: Request) -> Ints:
    """Return int64 (K,): why each row cannot take the request, as an index into REASONS.

    rows: where it does not fit now.
    """
    capacity, usable = snapshot.capacity[rows], snapshot.open[rows]
    shares = usable.any(axis=1)
    if request.cards != ANY_CARD:
        usable = usable & has_cards(snapshot, rows, request.cards)
    busy = Reason.INSUFFICIENT_MEMORY if request.devices == 1 else Reason.INSUFFICIENT_DEVICES
    # From the least specific to the most; np.select takes five times as long for a few nodes.
    codes = np.full(len(rows), CODES[busy])
    if request.percents or snapshot.any_percents or snapshot.limits_sharers:
        unused = capacity - snapshot.used[rows]
        has_memory = usable & (unused >= needed_units(snapshot, rows, request))
        memory_fits = has_devices(has_memory, request, unused)
        codes[memory_fits] = CODES[Reason.INSUFFICIENT_TOGETHER]
        if snapshot.limits_sharers:
            places = has_devices(has_memory & has_place(snapshot, rows), request, unused)
            codes[memory_fits & ~places] = CODES[Reason.MOST_SHARERS]
        # The first amount that too few devices have.
        for index, percent in reversed(tuple(enumerate(request.every_percent))):
            amount = PERCENT_AMOUNTS[index]
            if not amount.is_memory:
                enough = usable & has_percent(snapshot, rows, index, percent)
                lacks = enough.sum(axis=1) < request.devices
                codes[memory_fits & lacks] = CODES[Reason(amount.reason)]
    if request.apart and request.apart.required:
        beside_fellows = has_room(snapshot, rows, replace(request, apart=None), pairing=True)
        fits_beside = has_devices(beside_fellows, request, snapshot.free, rows)
        codes[fits_beside] = CODES[Reason.APART]
    if isinstance(snapshot, HeldSnapshot):
        books = snapshot.base
        room = has_room(books, rows, request, pairing=True)
        codes[has_devices(room, request, books.free, rows)] = CODES[Reason.PROMISED]
    if snapshot.pinned:
        room = has_room(snapshot, rows, request)
        codes[has_devices(room, request, snapshot.free, rows)] = CODES[Reason.WAITS_FOR_PLUGIN]
    large = usable & (capacity >= max(request.units, 1))
    among = usable & (capacity > 0) if request.split else large
    codes[~has_devices(among, request, capacity)] = CODES[Reason.TOO_MANY_DEVICES]
    codes[~large.any(axis=1)] = CODES[Reason.TOO_LARGE]
    codes[~usable.any(axis=1)] = CODES[Reason.NOT_WANTED]
    codes[~shares] = CODES[Reason.NO_DEVICE]
    closing_reasons = snapshot.closed[rows]
    return np.where(closing_reasons, closing_reasons, codes)
