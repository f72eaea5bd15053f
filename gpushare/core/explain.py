"""Why a request fits nowhere, and the remedies.

"Now" is the moment of the snapshot.

Pure: it needs a Snapshot, the books of a few nodes, kube-scheduler's own filters and the code that
decides (decide.py, and the search for victims of preemption). Each remedy is tried on a copy before
it is reported: the node's arrays are counted as if it had happened, and filter is called on them.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

import numpy as np

from gpushare.core import decide
from gpushare.core.amounts import PERCENT_AMOUNTS, Percents
from gpushare.core.model import ANY_CARD, Reason, Request
from gpushare.core.node_arrays import NodeArrays
from gpushare.core.node_filters import Obstacle, OwnFilters
from gpushare.core.preemption.selection import VictimSelection
from gpushare.core.preemption.victim_search import Pods, StepBudget
from gpushare.core.selectors import NO_DEMANDS, Demands
from gpushare.core.snapshot import (
    Ints,
    Rows,
    Snapshot,
    fellows,
    has_accepted_model,
    has_cards,
    has_percents,
    has_room,
    needed_units,
)
from gpushare.core.states.entry import Entry, NodeBooks

EntriesOf = Callable[[str], NodeBooks | None]
"""Returns the books of a node; None for a node that is not known or shares nothing."""

_MAX_NODES = 32
"""Nodes that are searched for pods whose end helps: those with the smallest shortage."""

_STEPS = 100_000
"""Steps of all these searches together: about 0.3 s."""

_MAX_FURTHER = 50
"""The most pods that are tried beside a remedy so that kube-scheduler's sums have room, too."""

_NO_FILTERS = OwnFilters()


@dataclass(frozen=True, slots=True)
class FreeDevice:
    """A device and the units that can be given out of it now."""

    node: str
    device: int
    units: int


@dataclass(frozen=True, slots=True)
class Remedy:
    """A remedy that makes a request fit on one node; every part of it is needed."""

    node: str
    ends: tuple[Entry, ...] = ()
    """Pods that have to end."""
    opens: tuple[int, ...] = ()
    """Indices of closed devices that have to return."""
    serves: tuple[Entry, ...] = ()
    """Pods that their device plug-in has to serve first."""
    lacks: tuple[str, ...] = ()
    """Resources that the node would still have too little of."""
    cures: tuple[str, ...] = ()
    """The reason why kube-scheduler itself does not use the node has to go."""
    capacity: tuple[int, ...] = ()
    """Units of each device of the node."""


class PodVerdict(StrEnum):
    """How a request stands on some nodes, in two words."""

    FITS_NOW = "fits now"
    WOULD_FIT = "would fit"
    """Once a remedy has happened."""
    MAY_FIT = "may fit"
    """No remedy is known: what keeps the request out is about to end."""
    NEVER_FITS = "never fits"


@dataclass(frozen=True, slots=True)
class Explanation:
    """How a request stands on some nodes.

    Those *in question* are the nodes that are not left out whatever pods end.
    """

    request: Request
    fit: tuple[str, ...] = ()
    """The nodes that it fits now."""
    reasons: Mapping[Reason, int] = field(default_factory=dict)
    """On how many of the others each reason applies."""
    unknown: int = 0
    """How many nodes the ledger does not have."""
    kept_out: Mapping[str, int] = field(default_factory=dict)
    """How many more kube-scheduler's own filters leave out, by the gravest reason. It does not ask
    about these."""
    other_models: int = 0
    """How many more have a GPU model that the pod does not accept. It does not ask about these."""
    largest: FreeDevice | None = None
    """Of the nodes in question, the device with the most free memory; None if all are full."""
    fits_now: int = 0
    """The most units on each device with which a request of as many devices, with the same
    percents, would fit now, 0 for none."""
    parts_now: tuple[int, ...] = ()
    """Of a split request, as much of each part as one node has now on as many devices, with the
    same percents: the node that lacks least. () if the request is not split, or no node has such
    devices."""
    most_units: int = 0
    """The same as `fits_now` on empty nodes with all devices healthy."""
    most_parts: tuple[int, ...] = ()
    """The same as `parts_now` there."""
    most_devices: int = 0
    """The most devices with as many units on each, there too; of a split request, the most of its
    parts that have a device each."""
    most_alone: int = 0
    """The units of the largest device."""
    split: int = 0
    """On how many devices the same total would fit where it never fits as it is, 0 for none."""
    remedies: tuple[Remedy, ...] = ()
    """Each alone is enough; () if the pod fits now, or never."""
    with_memory: int = 0
    """Open devices of the nodes in question with room for the memory, of a split request for its
    smallest part, whatever percents they have."""
    with_percents: int = 0
    """The same with room for the percents, whatever memory they have."""
    with_both: int = 0
    """The same with room for both."""
    most_percents: Percents = ()
    """For each of `PERCENT_AMOUNTS`, the most percent free on a device with room for the memory."""
    models: tuple[str, ...] = ()
    """The models that there are on the nodes in question, sorted, if the request wants certain
    cards."""
    closed_by_fellows: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """By node in question, the devices with pods of the same workload, if such devices are closed
    for the pod."""

    @property
    def nodes(self) -> int:
        """How many nodes this is about."""
        return len(self.fit) + sum(self.reasons.values()) + self.unknown

    @property
    def never(self) -> bool:
        """Whether it fits on no node even if every pod ends and every closed device returns."""
        return self.most_devices < self.request.devices

    @property
    def verdict(self) -> PodVerdict:
        """The verdict that every text about the request renders."""
        if self.fit:
            return PodVerdict.FITS_NOW
        if self.never:
            return PodVerdict.NEVER_FITS
        return PodVerdict.WOULD_FIT if self.remedies else PodVerdict.MAY_FIT


def explain(
    snapshot: Snapshot,
    names: Sequence[str],
    request: Request,
    entries_of: EntriesOf,
    now: float = 0.0,
    *,
    own: OwnFilters = _NO_FILTERS,
    demands: Demands = NO_DEMANDS,
) -> Explanation:
    """Return how the request stands on the named nodes (each once).

    now: seconds since the epoch; it tells which pods that are being deleted are about to be gone.
    own: kube-scheduler's filters; demands: the pod's demands for these filters.
    """
    unknown = [name for name in names if name not in snapshot.row]
    known_names = [name for name in names if name in snapshot.row]
    shares = (snapshot.capacity > 0).sum(axis=1) > 0
    obstacles = {
        # Of a node without devices nothing else needs to be said.
        name: own.obstacles(name, request, demands) if shares[snapshot.row[name]] else ()
        for name in known_names
    }
    # A dict for its order: texts must not depend on chance.
    left_out = dict.fromkeys(
        name for name, hurdles in obstacles.items() if any(obstacle.lasting for obstacle in hurdles)
    )
    usable = [name for name in known_names if name not in left_out]
    accepted = has_accepted_model(snapshot, np.arange(len(snapshot.names)), request)
    accepted_names = [name for name in usable if accepted[snapshot.row[name]]]
    result = decide.filter_nodes(snapshot, accepted_names, request)
    fit = tuple(name for name in result.fit if not obstacles[name])
    short = [name for name in result.fit if obstacles[name]]
    # Those that would take pods again if somebody did something about them.
    curable = [
        name
        for name in left_out
        if accepted[snapshot.row[name]] and all(obstacle.cure for obstacle in obstacles[name])
    ]
    rows, possible = _rows(snapshot, accepted_names), _rows(snapshot, [*accepted_names, *curable])
    capacity = np.where(snapshot.closed[possible, None] == 0, snapshot.capacity[possible], 0)
    is_wanted = has_cards(snapshot, rows, request.cards)
    is_apart = request.apart is not None and request.apart.required
    beside_fellows = (fellows(snapshot, rows, request) > 0) & is_apart
    is_wanted &= ~beside_fellows
    capacity[~has_cards(snapshot, possible, request.cards)] = 0
    unused = snapshot.capacity[rows] - snapshot.used[rows]
    memory = snapshot.open[rows] & is_wanted & (unused >= needed_units(snapshot, rows, request))
    percents = is_wanted & has_percents(snapshot, rows, request)
    free = np.where(percents, snapshot.free[rows], 0)
    explanation = Explanation(
        request,
        fit=fit,
        reasons=Counter(result.failed.values()),
        unknown=len(unknown),
        kept_out=Counter(obstacles[name][0].text for name in (*left_out, *short)),
        other_models=len(usable) - len(accepted_names),
        largest=_largest(snapshot, rows),
        fits_now=_most_units(free, request.devices),
        parts_now=_nearest_parts(free, request) if request.split else (),
        most_units=_most_units(capacity, request.devices),
        most_parts=_nearest_parts(capacity, request) if request.split else (),
        most_devices=_most_devices(capacity, request),
        most_alone=int(capacity.max(initial=0)),
        with_memory=int(memory.sum()),
        with_percents=int(percents.sum()),
        with_both=int((memory & percents).sum()),
        most_percents=tuple(
            int(np.where(memory, left[rows], 0).max(initial=0)) for left in snapshot.percents_free
        ),
        models=_models(snapshot, possible) if request.cards != ANY_CARD else (),
        closed_by_fellows={
            snapshot.names[row]: tuple(np.flatnonzero(mask).tolist())
            for row, mask in zip(rows.tolist(), beside_fellows, strict=True)
            if mask.any()
        },
    )
    if explanation.never:
        return replace(explanation, split=_split(capacity, request))
    if explanation.fit:
        return explanation
    search = _Search(snapshot, request, entries_of, now, own=own)
    cured = search.cured({name: obstacles[name] for name in sorted([*short, *curable])})
    return replace(explanation, remedies=(*search.remedies(rows), *cured))


def _rows(snapshot: Snapshot, names: Sequence[str]) -> Rows:
    return np.array([snapshot.row[name] for name in names], dtype=np.intp)


def _models(snapshot: Snapshot, rows: Rows) -> tuple[str, ...]:
    """Return the names of the models of these rows, sorted."""
    indices = np.unique(snapshot.model[rows])
    names = (snapshot.models[index] for index in indices.tolist() if index >= 0)
    return tuple(sorted(filter(None, names)))


def _largest(snapshot: Snapshot, rows: Rows) -> FreeDevice | None:
    free = snapshot.free[rows]
    if not free.any():
        return None
    places = np.flatnonzero((free == free.max()).any(axis=1))
    place = places[snapshot.order[rows[places]].argmin()]
    device = int(free[place].argmax())
    return FreeDevice(snapshot.names[rows[place]], device, int(free[place, device]))


def _split(capacity: Ints, request: Request) -> int:
    """Return the least number of devices of one row of (K, D), more than asked for if these have
    equal parts, so that the same total fits in equal parts, the percents too; 0 for none.
    """
    total = request.total
    percents = [
        (amount, percent * request.devices)
        for amount, percent in zip(PERCENT_AMOUNTS, request.percents, strict=False)
    ]
    for devices in range(1 if request.split else request.devices + 1, capacity.shape[1] + 1):
        if total % devices or any(
            percent % devices or percent > amount.whole * devices for amount, percent in percents
        ):
            continue
        if _most_units(capacity, devices) >= total // devices > 0:
            return devices
    return 0


def _most_devices(capacity: Ints, request: Request) -> int:
    """Return the most devices of one row of (K, D) that are large enough for the request."""
    large = capacity >= max(min(request.parts, default=0), 1)
    counts = decide.parts_placed(large, request, capacity) if request.split else large.sum(axis=1)
    return int(counts.max(initial=0))


def _most_units(units: Ints, devices: int) -> int:
    """Return the most units that this many devices of one row of (K, D) each have; 0 for none."""
    if units.shape[1] < devices:
        return 0
    return int(np.sort(units, axis=1)[:, -devices].max(initial=0))


def _nearest_parts(units: Ints, request: Request) -> tuple[int, ...]:
    """Return as much of each part of a split request as one row of (K, D) has, the row with most in
    all; () if no row has so many devices.
    """
    if not _most_units(units, request.devices):
        return ()
    largest = np.sort(units, axis=1)[:, ::-1][:, : request.devices]
    parts = np.minimum(largest, request.split)[largest[:, -1] > 0]
    return max((sum(row), tuple(row)) for row in parts.tolist())[1]


class _Search:
    """A search for remedies that make the request fit on one node."""

    def __init__(
        self,
        snapshot: Snapshot,
        request: Request,
        entries_of: EntriesOf,
        now: float,
        *,
        own: OwnFilters,
    ) -> None:
        self._now = now
        self._snapshot = snapshot
        self._request = request
        self._entries_of = entries_of
        self._own = own
        self._steps = StepBudget(_STEPS)

    def remedies(self, rows: Rows) -> tuple[Remedy, ...]:
        """Return the remedies: pods that end, closed devices that return, or both.

        Both together are tried only if neither helps alone.
        """
        remedies = [self._by_ends(rows), self._by_opens(rows)]
        if not any(remedies):
            remedies = [self._by_ends(rows, with_closed=True)]
        return tuple(remedy for remedy in remedies if remedy is not None)

    def cured(self, obstacles: Mapping[str, Sequence[Obstacle]]) -> tuple[Remedy, ...]:
        """Return the remedies on one of these nodes, which kube-scheduler itself leaves
        out.

        One that has room on its devices comes first, then one with as few obstacles as possible.
        """
        roomy = decide.filter_nodes(self._snapshot, list(obstacles), self._request).fit
        if roomy:
            node = min(roomy, key=lambda name: len(obstacles[name]))
            return (Remedy(node, cures=tuple(obstacle.cure for obstacle in obstacles[node])),)
        remedy = next(iter(self.remedies(_rows(self._snapshot, list(obstacles)))), None)
        if remedy is None:
            return ()
        lasting = [obstacle for obstacle in obstacles[remedy.node] if obstacle.lasting]
        books = self._entries_of(remedy.node)
        if books and books.spec.counted:  # its devices are closed by the cure alone
            remedy = replace(remedy, opens=())
        # A present shortage may be over once these pods have ended.
        lacks = set(remedy.lacks) - {obstacle.resource for obstacle in lasting}
        cures = tuple(obstacle.cure for obstacle in lasting)
        return (replace(remedy, lacks=tuple(sorted(lacks)), cures=cures),)

    def _missing(self, rows: Rows, *, with_closed: bool) -> Ints:
        """Return int64 (K,): how few units are missing, of closed devices too if they return."""
        healthy = self._snapshot.healthy[rows] | with_closed
        usable = healthy & (self._snapshot.closed[rows] == 0)[:, None]
        return decide.missing_units(self._snapshot, rows, self._request, usable)

    def _by_ends(self, rows: Rows, *, with_closed: bool = False) -> Remedy | None:
        """Return the remedy with the fewest pods on these nodes.

        Remedies whose pods are all ending already come first, and those with pods of the same
        workload last: their controller replaces them. with_closed: closed devices may return too.
        """
        missing = self._missing(rows, with_closed=with_closed)
        order = np.lexsort((self._snapshot.order[rows], missing))
        nearest = rows[order[missing[order] < decide.NO_ROOM][:_MAX_NODES]]
        candidates: list[tuple[tuple[bool, bool, bool, int], int, NodeBooks, Remedy]] = []
        apart = self._request.apart
        for place, row in enumerate(nearest.tolist()):
            books = self._entries_of(self._snapshot.names[row])
            remedy = books and self._ends_on(books, row, with_closed=with_closed)
            if books and remedy:
                ends_anyway = all(entry.ends_soon(self._now) for entry in remedy.ends)
                has_fellows = apart is not None and any(
                    entry.request.apart and entry.request.apart.workload == apart.workload
                    for entry in remedy.ends
                )
                cost = (
                    *(not ends_anyway, has_fellows, bool(remedy.lacks)),
                    len(remedy.ends) + len(remedy.serves),
                )
                candidates.append((cost, place, books, remedy))
        trimmed = (
            self._trimmed(books, remedy)
            for *_, books, remedy in sorted(candidates, key=lambda candidate: candidate[:2])
        )
        return next((remedy for remedy in trimmed if remedy is not None), None)

    def _by_opens(self, rows: Rows) -> Remedy | None:
        """Return the remedy with the fewest closed devices, on nodes where they are enough."""
        rows = rows[self._missing(rows, with_closed=True) == 0]
        free = has_room(self._snapshot, rows, self._request)
        part_counts = decide.parts_placed(free, self._request, self._snapshot.free[rows])
        for place in np.argsort(-part_counts, kind="stable").tolist():
            if part_counts[place] == self._request.devices:
                continue
            row = int(rows[place])
            books = self._entries_of(self._snapshot.names[row])
            if books is not None:
                return self._trimmed(books, self._remedy(books, row, (), _closed(books)))
        return None

    def _ends_on(self, books: NodeBooks, row: int, *, with_closed: bool) -> Remedy | None:
        """Return a remedy on the node, perhaps with needless parts; None if none helps."""
        opens = _closed(books) if with_closed else ()
        spec = replace(books.spec, healthy=_healthy_with(books, opens))
        selection = VictimSelection(replace(books, spec=spec), self._request)
        # Nobody preempts here, so all pods cost the same, except that ending pods cost less.
        alike = tuple(
            replace(entry, priority=-entry.ends_soon(self._now)) for entry in books.entries
        )
        chosen = selection.choose((), alike, self._steps)
        if chosen is None:
            return None
        uids = {entry.ref.uid for entry in chosen}
        ends = tuple(entry for entry in books.entries if entry.ref.uid in uids)
        return self._remedy(books, row, ends, opens)

    def _remedy(self, books: NodeBooks, row: int, ends: Pods, opens: Sequence[int]) -> Remedy:
        """Return the remedy, with all pods that must be served first if pairing applies."""
        sizes = self._request.sizes if row in self._snapshot.pinned else frozenset[int]()
        serves = tuple(
            entry
            for entry in books.entries
            if entry.request.sizes & sizes and entry.charge.pinned is not None
        )
        return Remedy(
            node=books.spec.name,
            ends=ends,
            opens=tuple(opens),
            serves=serves,
            lacks=self._lacks(books, ends),
            capacity=books.spec.capacity,
        )

    def _trimmed(self, books: NodeBooks, remedy: Remedy) -> Remedy | None:
        """Return the remedy without its needless parts.

        None if it does not help, or if the request fits without any remedy.
        """
        what_if = WhatIfNode(books, pairs=bool(remedy.serves))

        def helps(one: Remedy) -> bool:
            after = what_if.after(one)
            return bool(decide.filter_nodes(after, [one.node], self._request).fit)

        if not helps(remedy) or helps(Remedy(books.spec.name)):
            return None
        for name in ("serves", "opens", "ends"):
            for part in getattr(remedy, name):
                others = tuple(other for other in getattr(remedy, name) if other is not part)
                fewer_parts: dict[str, Any] = {name: others}
                fewer = replace(remedy, **fewer_parts)
                remedy = fewer if helps(fewer) else remedy
        lacks = self._lacks(books, remedy.ends)
        if not lacks:
            return remedy
        # A pod on a dead device counts in kube-scheduler's sums, although its end opens no device.
        further = sorted(books.entries, key=lambda entry: (-entry.request.total, str(entry.ref)))
        ends = dict.fromkeys((*remedy.ends, *further[:_MAX_FURTHER]))
        enough = replace(remedy, ends=tuple(ends))
        if self._lacks(books, enough.ends):
            return replace(remedy, lacks=lacks)
        for end in reversed(enough.ends):
            fewer = replace(enough, ends=tuple(entry for entry in enough.ends if entry is not end))
            if not self._lacks(books, fewer.ends) and helps(fewer):
                enough = fewer
        return replace(enough, lacks=())

    def _lacks(self, books: NodeBooks, ends: Pods) -> tuple[str, ...]:
        """Return the resources that the node would still have too little of."""
        ended_requests = [entry.request for entry in ends]
        short = self._own.shortages(books.spec.name, self._request, less=ended_requests)
        return tuple(obstacle.resource for obstacle in short)


class WhatIfNode:
    """A node, counted as if a remedy had happened. pairs: pairing applies there.

    All its pods are counted once. To try a remedy, its pods are subtracted from the sums and added
    again. With 10,000 pods on a node a try would otherwise take a third of a second.
    """

    def __init__(self, books: NodeBooks, *, pairs: bool) -> None:
        self._books = books
        self._charges = {entry.ref.uid: entry.charge for entry in books.entries}
        self._pins = {
            uid: (charge.request.sizes, charge.pinned)
            for uid, charge in self._charges.items()
            if pairs and charge.pinned is not None
        }
        self._arrays: dict[tuple[int, ...], NodeArrays] = {}

    def after(self, remedy: Remedy) -> Snapshot:
        """Return the node, counted as if the remedy had happened."""
        if remedy.opens not in self._arrays:
            # The sums of all pods, with these closed devices open again.
            arrays = self._arrays[remedy.opens] = NodeArrays()
            spec = replace(self._books.spec, healthy=_healthy_with(self._books, remedy.opens))
            arrays.set_node(spec, self._charges.values())
        arrays = self._arrays[remedy.opens]
        ended = [self._charges[entry.ref.uid] for entry in remedy.ends]
        for charge in ended:
            arrays.add(charge, -1)
        still_pinned = self._pins.keys() - {
            entry.ref.uid for entry in (*remedy.ends, *remedy.serves)
        }
        pins = tuple(pin for uid, pin in self._pins.items() if uid in still_pinned)
        view = arrays.snapshot({self._books.spec.name: pins} if pins else {})
        for charge in ended:
            arrays.add(charge)
        return view


def _healthy_with(books: NodeBooks, opens: Collection[int]) -> tuple[bool, ...]:
    """Return which devices are healthy once these closed ones have returned."""
    return tuple(ok or device in opens for device, ok in enumerate(books.spec.healthy))


def _closed(books: NodeBooks) -> tuple[int, ...]:
    return tuple(device for device, ok in enumerate(books.spec.healthy) if not ok)
