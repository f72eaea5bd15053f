"""The books that a shadow policy keeps: the nodes of the real ones, each pod where it puts it.

Pure arithmetic, for one thread; knows no queue and no policy by name. The cluster is that of the
simulator and of trials (`core/mutable_cluster.py`). It is made of the real books, without the
charges that stand elsewhere here: so pods without GPU, nodes, and pods with unknown devices
are as they really are.
"""

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from gpushare.core.model import Request, Shares
from gpushare.core.mutable_cluster import MutableCluster, MutableSnapshot, Placement, fits
from gpushare.core.node_names import NodeNames, looked_up
from gpushare.core.ranking import NoPreference, Ranking, Scorer
from gpushare.core.snapshot import Bools, Rows, Snapshot
from gpushare.core.states.entry import Entry, Phase
from gpushare.core.trial_streams import mutable

_ASKED = 10_000
"""Pods whose nodes are kept until they are placed, a bit for each node; the first go first."""


class Place(NamedTuple):
    """The node, the shares and the request of a pod in the shadow's books."""

    node: str
    shares: Shares
    request: Request


class Sums(NamedTuple):
    """Units and pods of some books."""

    pods: int = 0
    allocated: int = 0
    stranded: int = 0


class Settled(NamedTuple):
    """The pods that the shadow could not follow exactly when it took over the real nodes."""

    moved: int
    """Pods whose node here is gone, or has other devices, while they run on: placed anew."""
    unplaced: int
    """New pods with unknown devices: they count here as in the real books."""


def sums_of(snapshot: Snapshot, pods: int, typical: int) -> Sums:
    """Return the sums of these nodes. typical: the commonest request, in units on a device."""
    free = snapshot.free
    stranded = free[(free > 0) & (free < typical)]
    return Sums(pods, int(snapshot.used.sum()), int(stranded.sum()))


class ShadowBooks:
    """The shadow's books.

    refused: uids of pods that really run, and had no room here. places: of those that have.
    """

    def __init__(self, real: Snapshot, entries: Mapping[str, Entry]) -> None:
        self.places: dict[str, Place] = {}
        self.refused: set[str] = set()
        self._unplaced: set[str] = set()
        self._asked: OrderedDict[str, bytes] = OrderedDict()
        self._rows: Rows = np.array([], np.intp)
        self._cluster = MutableCluster(_copy(real, self._rows), _NOBODY)
        self.rebase(real, entries)

    @property
    def snapshot(self) -> Snapshot:
        """The nodes as these books have them; it changes when the books do."""
        return self._cluster.view

    @property
    def pods(self) -> int:
        """How many pods hold something here."""
        return len(self.places) + len(self._unplaced)

    def rebase(self, real: Snapshot, entries: Mapping[str, Entry]) -> Settled:
        """Forget the placements here: each running pod is at its real place."""
        real_places = dict(_placed(real, entries))
        # A Binding that was sent, and that no watch has shown yet, may still be refused.
        self.places = {
            uid: place for uid, place in real_places.items() if entries[uid].phase is Phase.BOUND
        }
        self.refused = set()
        return self._build(real, entries, real_places, None)

    def settle(self, real: Snapshot, entries: Mapping[str, Entry], scorer: Scorer) -> Settled:
        """Take over nodes, pods without GPU and sizes of pods as they really are now."""
        real_places = dict(_placed(real, entries))
        for uid in self._unplaced & real_places.keys():  # their devices have become known
            self.places[uid] = real_places[uid]
        for uid, entry in entries.items():
            if uid in self.places:  # CPU and memory of a running pod may be resized
                self.places[uid] = self.places[uid]._replace(request=entry.request)
        return self._build(real, entries, real_places, scorer)

    def _build(
        self,
        real: Snapshot,
        entries: Mapping[str, Entry],
        real_places: Mapping[str, Place],
        scorer: Scorer | None,
    ) -> Settled:
        """Make the cluster anew. known: where the pods really are; scorer: None if here, too."""
        before, self._unplaced = self._unplaced, set()
        for uid, entry in entries.items():
            if entry.phase is Phase.BOUND and uid not in real_places:
                self._look_again(uid, is_there=entry.node in real.row)
        # By name, as the extender orders equal nodes: of those the first is taken.
        order, names = np.argsort(real.order, kind="stable"), self.snapshot.names
        self._rows = np.array([row for row in order.tolist() if real.names[row]], np.intp)
        self._layout = real.capacity, real.healthy, real.closed
        self._cluster = MutableCluster(_copy(real, self._rows), _NOBODY)
        self._renumber(names)
        row = self.snapshot.row
        self._count_cpu(entries)
        for uid, place in real_places.items():
            if self.places.get(uid) != place:
                self._cluster.release(Placement(row[place.node], place.shares, place.request))
        lost_places = []
        for uid, place in self.places.items():
            if real_places.get(uid) == place:
                continue
            if self._has(place):
                self._cluster.put(row[place.node], place.shares, place.request)
            else:
                lost_places.append((uid, place.request))
        for uid, request in lost_places:
            del self.places[uid]
            if scorer is not None and uid in real_places:
                self.place(uid, request, scorer)
            else:  # its node is gone in both books, and it will go
                self._unplaced.add(uid)
        return Settled(len(lost_places), len(self._unplaced - before))

    def _look_again(self, uid: str, *, is_there: bool) -> None:
        """Note a running pod with unknown devices; is_there: its node is."""
        if is_there:  # the real books count it, and these with them
            self.places.pop(uid, None)
            self.refused.discard(uid)
        if not (uid in self.places or uid in self.refused):
            self._unplaced.add(uid)

    def _count_cpu(self, entries: Mapping[str, Entry]) -> None:
        """Count the free CPU: the real books say 0 of a node that has given out too much."""
        view = self._cluster.view
        used_cpu = view.cpu_only.copy()
        for entry in entries.values():
            if (row := view.row.get(entry.node)) is not None:
                used_cpu[row] += entry.request.cpu
        is_known = view.cpu_capacity >= 0
        view.cpu_free[is_known] = (view.cpu_capacity - used_cpu)[is_known]

    def follows(self, real: Snapshot) -> bool:
        """Return whether the nodes are still those of the real books."""
        now = real.capacity, real.healthy, real.closed
        return all(one is layout_array for one, layout_array in zip(now, self._layout, strict=True))

    def follow_host(self, real: Snapshot) -> None:
        """Take over the CPU of pods without GPU; of a snapshot that `follows` is true for."""
        view, now = self._cluster.view, real.cpu_only[self._rows]
        more = now - view.cpu_only
        for row in np.flatnonzero(more).tolist():
            if view.cpu_capacity[row] >= 0:
                view.cpu_free[row] -= more[row]
            view.cpu_only[row] = now[row]
            view.changed(row)

    def ask(self, uid: str, names: NodeNames) -> None:
        """Remember which nodes kube-scheduler has asked about, for when the pod is placed."""
        self._asked[uid] = np.packbits(self._among(names)).tobytes()
        self._asked.move_to_end(uid)
        if len(self._asked) > _ASKED:
            self._asked.popitem(last=False)

    def was_asked(self, uid: str) -> bool:
        """Return whether the nodes of the pod are remembered."""
        return uid in self._asked

    def _renumber(self, names: Sequence[str]) -> None:
        """Keep the requests for nodes whose rows have changed. names: by their old rows."""
        now = self.snapshot
        if names == now.names:
            return
        rows = looked_up(names, now.row)
        for uid, bits in self._asked.items():
            old, mask = _unpacked(bits, len(names)), np.zeros(len(now.names), dtype=bool)
            mask[rows[old & (rows >= 0)]] = True
            self._asked[uid] = np.packbits(mask).tobytes()

    def _among(self, names: NodeNames) -> Bools:
        mask = np.zeros(len(self.snapshot.names), dtype=bool)
        rows = looked_up(names, self.snapshot.row)  # filter keeps the memo of `rows`
        mask[rows[rows >= 0]] = True
        return mask

    def has_room(self, request: Request, names: NodeNames) -> bool:
        """Return whether the request fits one of these nodes."""
        return bool(fits(self.snapshot, np.flatnonzero(self._among(names)), request).any())

    def place(self, uid: str, request: Request, scorer: Scorer) -> Place | None:
        """Place a pod where the scorer likes it best, of the nodes that were asked about, and
        return where; None: it is refused.
        """
        bits = self._asked.pop(uid, None)
        among = None if bits is None else _unpacked(bits, len(self.snapshot.names))
        self._cluster.scorer = scorer
        placement = self._cluster.place(request, among)
        if placement is None:
            self.refused.add(uid)
            return None
        place = Place(self.snapshot.names[placement.row], placement.shares, request)
        self.places[uid] = place
        return place

    def put(self, uid: str, place: Place) -> bool:
        """Charge a pod to these devices, whatever is free; return whether they are there."""
        if not self._has(place):
            return False
        self.places[uid] = place
        self._cluster.put(self.snapshot.row[place.node], place.shares, place.request)
        return True

    def leave(self, uid: str) -> None:
        """Note a running pod whose place only the next look at the real books tells."""
        self._unplaced.add(uid)

    def free(self, uid: str) -> bool:
        """Give back the charge of a pod that has really ended.

        Return False if only a look at the real books tells the charge.
        """
        self.refused.discard(uid)
        self._asked.pop(uid, None)
        place = self.places.pop(uid, None)
        if place is None:
            return uid not in self._unplaced
        row = self.snapshot.row.get(place.node)
        if row is not None:
            self._cluster.release(Placement(row, place.shares, place.request))
        return True

    def knows(self, uid: str) -> bool:
        """Return whether the pod is in the books, or was refused."""
        return uid in self.places or uid in self.refused or uid in self._unplaced

    def _has(self, place: Place) -> bool:
        row = self.snapshot.row.get(place.node)
        if row is None:
            return False
        capacity = self.snapshot.capacity[row].tolist()
        return all(device < len(capacity) and capacity[device] > 0 for device, _ in place.shares)


def _unpacked(bits: bytes, count: int) -> Bools:
    return np.unpackbits(np.frombuffer(bits, np.uint8), count=count).astype(bool)


_NOBODY = Ranking(NoPreference())


def _placed(real: Snapshot, entries: Mapping[str, Entry]) -> Iterator[tuple[str, Place]]:
    """Yield the uid and the place of each charge that equals its request."""
    for uid, entry in entries.items():
        shares = entry.placement
        if entry.node not in real.row or shares is None:
            continue
        if sorted((units for _, units in shares), reverse=True) == list(entry.request.parts):
            yield uid, Place(entry.node, shares, entry.request)


def _copy(real: Snapshot, rows: Rows) -> MutableSnapshot:
    """Return these nodes as they are, to be changed."""
    return replace(
        mutable(real, rows, empty=False),
        capacity=real.capacity[rows],
        used=real.used[rows],
        healthy=real.healthy[rows],
        closed=real.closed[rows],
    )
