"""Why a request fits nowhere, what would help, and how good the place of a bound pod is.

Pure: it needs a Snapshot, the books of a few nodes and the code that decides (decide.py, and the
search for victims of preemption). Each remedy is tried on a copy before it is reported: the node's
arrays are counted as if it had happened, and filter is called on them.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from gpushare.core.decide import BEST, best_devices, feasible, filter_nodes, score_nodes
from gpushare.core.entry import Entry, NodeBooks
from gpushare.core.explanation import BoundPodScore, DeviceScore, Explanation, FreeDevice, Remedy
from gpushare.core.model import Request
from gpushare.core.policy import Policy
from gpushare.core.preemption.selection import VictimSelection
from gpushare.core.preemption.victim_search import Pods, StepBudget
from gpushare.core.ranking import Ranking
from gpushare.core.snapshot import Bools, Ints, Pinned, Rows, Snapshot, has_accepted_model
from gpushare.core.what_if_node import WhatIfNode, healthy_with

EntriesOf = Callable[[str], NodeBooks | None]
"""Returns the books of a node; None for a node that is not known or shares nothing."""

_MAX_NODES = 32
"""Nodes that are searched for pods whose end helps: those with the smallest shortage."""

_STEPS = 100_000
"""Steps of all these searches together: about 0.3 s."""

_NO_ROOM = 2**40
"""The shortage of a device that the request can never use."""


def explain(
    snapshot: Snapshot,
    names: Sequence[str],
    request: Request,
    entries_of: EntriesOf,
    now: float = 0.0,
) -> Explanation:
    """Return how the request stands on the named nodes (each once).

    now: seconds since the epoch; it tells which pods that are being deleted are about to be gone.
    """
    unknown = [name for name in names if name not in snapshot.row]
    known = [name for name in names if name in snapshot.row]
    rows = np.array([snapshot.row[name] for name in known], dtype=np.intp)
    accepted = has_accepted_model(snapshot, rows, request)
    asked = [name for name, ok in zip(known, accepted.tolist(), strict=True) if ok]
    result = filter_nodes(snapshot, asked, request)
    rows = rows[accepted]
    capacity = np.where(snapshot.closed[rows, None] == 0, snapshot.capacity[rows], 0)
    found = Explanation(
        request,
        fit=result.fit,
        reasons=Counter(result.failed.values()),
        unknown=len(unknown),
        other_models=len(known) - len(asked),
        largest=_largest(snapshot, rows),
        fits_now=_most_units(snapshot.free[rows], request.devices),
        most_units=_most_units(capacity, request.devices),
        most_devices=int((capacity >= max(request.units, 1)).sum(axis=1).max(initial=0)),
        most_alone=int(capacity.max(initial=0)),
    )
    if found.never:
        return replace(found, split=_split(capacity, request))
    if found.fit:
        return found
    return replace(found, remedies=_remedies(snapshot, rows, request, entries_of, now))


def score_bound_pod(
    snapshot: Snapshot, books: NodeBooks, entry: Entry, policy: Policy, name: str
) -> BoundPodScore:
    """Return how the policy called `name` scores the place of a bound pod.

    It scores the cluster without this pod. Raises whatever the policy raises.
    """
    view = _without(snapshot, books, entry)
    request, node = entry.request, entry.node
    ranking = Ranking(policy, kinds=1)  # of its own: the books' ranking remembers true snapshots
    names = [each for each in view.names if each]
    scores = score_nodes(view, names, request, ranking)
    rows = np.array([view.row[node]], dtype=np.intp)
    mask = feasible(view, rows, request)
    fits = bool(mask.sum() >= request.devices)
    values = ranking.score_devices(view, rows, request)[0].tolist()
    return BoundPodScore(
        node=node,
        shares=entry.placement,
        policy=name,
        score=next((score for score, those in scores.items() if node in those), 0),
        best=scores[BEST][0] if scores else "",
        fitting=len(filter_nodes(view, names, request).fit),
        devices=tuple(
            DeviceScore(device, free, value if ok and fits else None)
            for device, (free, value, ok) in enumerate(
                zip(view.free[rows[0]].tolist(), values, mask[0].tolist(), strict=True)
            )
            if device < len(books.spec.capacity)
        ),
        chosen=best_devices(ranking, view, rows, mask, request) if fits else (),
    )


def _largest(snapshot: Snapshot, rows: Rows) -> FreeDevice | None:
    free = snapshot.free[rows]
    if not free.any():
        return None
    places = np.flatnonzero((free == free.max()).any(axis=1))
    place = places[snapshot.order[rows[places]].argmin()]
    device = int(free[place].argmax())
    return FreeDevice(snapshot.names[rows[place]], device, int(free[place, device]))


def _split(capacity: Ints, request: Request) -> int:
    """Return the least number of devices of one row of (K, D), more than asked for, on which the
    same total would fit in equal parts; 0 for none.
    """
    total = request.units * request.devices
    for devices in range(request.devices + 1, capacity.shape[1] + 1):
        if total % devices == 0 and _most_units(capacity, devices) >= total // devices > 0:
            return devices
    return 0


def _most_units(units: Ints, devices: int) -> int:
    """Return the most units that this many devices of one row of (K, D) each have; 0 for none."""
    if units.shape[1] < devices:
        return 0
    return int(np.sort(units, axis=1)[:, -devices].max(initial=0))


def _remedies(
    snapshot: Snapshot, rows: Rows, request: Request, entries_of: EntriesOf, now: float
) -> tuple[Remedy, ...]:
    """Return what would help: pods that end, closed devices that return, or both.

    Both together are tried only if neither helps alone.
    """
    rows = rows[snapshot.closed[rows] == 0]
    lacks = _shortages(snapshot, rows, request, snapshot.healthy[rows])
    lacks_with_closed = _shortages(snapshot, rows, request, np.ones_like(snapshot.healthy[rows]))
    search = _Search(snapshot, request, entries_of, now)
    found = [
        search.by_ends(rows[_rising(snapshot, rows, lacks)]),
        search.by_opens(rows[lacks_with_closed == 0], request),
    ]
    if not any(found):
        order = _rising(snapshot, rows, lacks_with_closed)
        found = [search.by_ends(rows[order], with_closed=True)]
    return tuple(remedy for remedy in found if remedy is not None)


def _shortages(snapshot: Snapshot, rows: Rows, request: Request, usable: Bools) -> Ints:
    """Return int64 (K,): the smallest number of units that are missing on each row.

    It is _NO_ROOM or more if too few devices are usable (K, D) and large enough.
    """
    units, devices = max(request.units, 1), request.devices
    capacity = snapshot.capacity[rows]
    lacks = np.maximum(units - (capacity - snapshot.used[rows]), 0)
    lacks[~usable | (capacity < units)] = _NO_ROOM
    if lacks.shape[1] < devices:
        return np.full(len(rows), _NO_ROOM)
    total: Ints = np.sort(lacks, axis=1)[:, :devices].sum(axis=1)
    return total


def _rising(snapshot: Snapshot, rows: Rows, lacks: Ints) -> Rows:
    """Return intp: positions in `rows` by rising shortage, without nodes that can never fit."""
    order = np.lexsort((snapshot.order[rows], lacks))
    return order[lacks[order] < _NO_ROOM][:_MAX_NODES]


class _Search:
    """A search for what makes the request fit on one node."""

    def __init__(
        self, snapshot: Snapshot, request: Request, entries_of: EntriesOf, now: float
    ) -> None:
        self._now = now
        self._snapshot = snapshot
        self._request = request
        self._entries_of = entries_of
        self._steps = StepBudget(_STEPS)

    def by_ends(self, rows: Rows, *, with_closed: bool = False) -> Remedy | None:
        """Return the remedy with the fewest pods on these nodes.

        Remedies of which all pods are ending already come first. with_closed: closed devices may
        return too.
        """
        found: list[tuple[tuple[bool, bool, int], int, NodeBooks, Remedy]] = []
        for place, row in enumerate(rows.tolist()):
            books = self._entries_of(self._snapshot.names[row])
            remedy = books and self._ends_on(books, row, with_closed=with_closed)
            if books and remedy:
                ends_anyway = all(entry.ends_soon(self._now) for entry in remedy.ends)
                pods = len(remedy.ends) + len(remedy.serves)
                found.append(((not ends_anyway, bool(remedy.lacks), pods), place, books, remedy))
        trimmed = (
            self._trimmed(books, remedy)
            for *_, books, remedy in sorted(found, key=lambda one: one[:2])
        )
        return next((remedy for remedy in trimmed if remedy is not None), None)

    def by_opens(self, rows: Rows, request: Request) -> Remedy | None:
        """Return the remedy with the fewest closed devices, on nodes where they are enough."""
        free = self._snapshot.free[rows] >= max(request.units, 1)
        needed = request.devices - free.sum(axis=1)
        for place in np.argsort(needed, kind="stable").tolist():
            if needed[place] <= 0:
                continue
            row = int(rows[place])
            books = self._entries_of(self._snapshot.names[row])
            if books is not None:
                return self._trimmed(books, self._remedy(books, row, (), _closed(books)))
        return None

    def _ends_on(self, books: NodeBooks, row: int, *, with_closed: bool) -> Remedy | None:
        """Return a remedy on the node, perhaps with needless parts; None if none helps."""
        opens = _closed(books) if with_closed else ()
        spec = replace(books.spec, healthy=healthy_with(books, opens))
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
        serves = tuple(e for e in books.entries if e.pins and e.request.sizes & sizes)
        return Remedy(books.spec.name, ends, tuple(opens), serves, self._lacks(books, ends))

    def _trimmed(self, books: NodeBooks, remedy: Remedy) -> Remedy | None:
        """Return the remedy without its needless parts.

        None if it does not help, or if the request fits without any remedy.
        """
        what_if = WhatIfNode(books, pairs=bool(remedy.serves))

        def helps(one: Remedy) -> bool:
            return bool(filter_nodes(what_if.after(one), [one.node], self._request).fit)

        if not helps(remedy) or helps(Remedy(books.spec.name)):
            return None
        for serve in remedy.serves:
            fewer = replace(remedy, serves=tuple(x for x in remedy.serves if x is not serve))
            remedy = fewer if helps(fewer) else remedy
        for device in remedy.opens:
            fewer = replace(remedy, opens=tuple(x for x in remedy.opens if x != device))
            remedy = fewer if helps(fewer) else remedy
        for end in remedy.ends:
            fewer = replace(remedy, ends=tuple(x for x in remedy.ends if x is not end))
            remedy = fewer if helps(fewer) else remedy
        return replace(remedy, lacks=self._lacks(books, remedy.ends))

    def _lacks(self, books: NodeBooks, ends: Pods) -> tuple[str, ...]:
        request = self._request
        cpu, memory = books.cpu_free, books.memory_free
        lacks_cpu = cpu is not None and cpu + sum(e.request.cpu for e in ends) < request.cpu
        lacks_memory = (
            memory is not None and memory + sum(e.request.memory for e in ends) < request.memory
        )
        return ("cpu",) * lacks_cpu + ("memory",) * lacks_memory


def _closed(books: NodeBooks) -> tuple[int, ...]:
    return tuple(device for device, ok in enumerate(books.spec.healthy) if not ok)


def _without(snapshot: Snapshot, books: NodeBooks, entry: Entry) -> Snapshot:
    """Return the snapshot without the charge of one pod of the node."""
    row = snapshot.row[entry.node]
    pairs = row in snapshot.pinned
    one = WhatIfNode(books, pairs=pairs).after(Remedy(entry.node, ends=(entry,)))
    used, kinds = snapshot.used.copy(), snapshot.kinds.copy()
    cpu_free, memory_free = snapshot.cpu_free.copy(), snapshot.memory_free.copy()
    used[row, : one.used.shape[1]] = one.used[0]
    kinds[row] = one.kinds[0]
    cpu_free[row] = max((books.cpu_free or 0) + entry.request.cpu, 0)
    memory_free[row] = max((books.memory_free or 0) + entry.request.memory, 0)
    pinned: dict[int, tuple[Pinned, ...]] = dict(snapshot.pinned)
    pinned.pop(row, None)
    if one.pinned:
        pinned[row] = one.pinned[0]
    return replace(
        snapshot,
        used=used,
        kinds=kinds,
        cpu_free=cpu_free,
        memory_free=memory_free,
        pinned=pinned,
    )
