"""The arrays of the ledger: nodes by row, and the sums of the charges on them.

Knows numpy and the model, no pods. The arrays change, and the Ledger has the lock for them.
Charging is linear, so adding and subtracting the same charge in any order leaves the arrays as they
were; therefore the incremental sums equal rebuilt ones. Readers get a copy, a `Snapshot`.

Tested in `tests/unit/core/test_node_arrays.py` and `tests/unit/core/test_snapshot.py`.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gpushare.core.amounts import PERCENT_AMOUNTS, Percents, charged_units
from gpushare.core.apart import Workloads, count_pod
from gpushare.core.layout import Layout, LayoutRows, with_rows
from gpushare.core.model import HOST_BOUND, Charge, NodeSpec, Pinned, Request, Shares
from gpushare.core.paired_rows import PairedRows
from gpushare.core.snapshot import (
    PODS,
    REASONS,
    Bools,
    Ints,
    PercentArray,
    Rows,
    Snapshot,
    counts_of,
)
from gpushare.core.spare_arrays import Arrays, SpareArrays
from gpushare.core.states.entry import Entry, NodeBooks

_ROWS = 64
"""Nodes that have room at first; doubled whenever all rows are in use."""


class ArrayCopies(NamedTuple):
    """A copy of all sums: row by node name, arrays as in a Snapshot, and `host`."""

    row: dict[str, int]
    capacity: Ints
    used: Ints
    percents: tuple[PercentArray, ...]
    pods: npt.NDArray[np.int16]
    healthy: Bools
    host: Ints
    """int64 (N, 6) CPU capacity and used, memory capacity and used, CPU of pods without GPU, pods
    with GPU."""
    closed: npt.NDArray[np.int8]
    workloads: Workloads


class NodeArrays:
    """Nodes by row, and the sums of the charges on them."""

    def __init__(self) -> None:
        self.generation = 0
        self._lineage, self._paired_rows = object(), PairedRows()
        self.row: dict[str, int] = {}
        self._rows = LayoutRows()
        self._empty_rows: list[int] = []
        self._capacity = np.zeros((_ROWS, 1), dtype=np.int64)
        self._used = np.zeros((_ROWS, 1), dtype=np.int64)
        # By PERCENT_AMOUNTS.
        self._percents = tuple(np.zeros((_ROWS, 1), dtype=np.int32) for _ in PERCENT_AMOUNTS)
        # The arrays of the last snapshot, until a pod with percents comes or goes.
        self._percents_shown: tuple[PercentArray, ...] | None = None
        self._healthy = np.zeros((_ROWS, 1), dtype=bool)
        # Columns: cpu capacity, cpu used, memory capacity, memory used, cpu of pods without GPU,
        # pods with GPU.
        self._host = np.zeros((_ROWS, 6), dtype=np.int64)
        self._pods = np.zeros((_ROWS, 1, 2), dtype=np.int16)
        self._closed = np.zeros(_ROWS, dtype=np.int8)
        self._workloads: Workloads = {}
        # The copy in the last snapshot, until a pod that stays apart comes or goes.
        self._workloads_shown: Workloads | None = None
        self.changed_at = np.zeros(_ROWS, dtype=np.int64)
        """By row, the generation of the last change."""
        self._layout: Layout | None = None
        self._last: Snapshot | None = None
        # The arrays of earlier snapshots, each with the generation of its snapshot.
        self._spare_sums, self._spare_free = SpareArrays[int](), SpareArrays[int]()
        # The mapping of pins that the last snapshot was made of.
        self._pins: Mapping[str, tuple[Pinned, ...]] | None = None

    def books(self, spec: NodeSpec, entries: tuple[Entry, ...] = ()) -> NodeBooks:
        """Return the sums on a known node of this shape, with its charges."""
        row, devices = self.row[spec.name], slice(len(spec.capacity))
        cpu, cpu_used, memory, memory_used, *_ = self._host[row].tolist()
        return NodeBooks(
            spec=spec,
            used=tuple(self._used[row, devices].tolist()),
            entries=entries,
            cpu_free=cpu - cpu_used if cpu >= 0 else None,
            memory_free=memory - memory_used if memory >= 0 else None,
            percents_used=tuple(tuple(array[row, devices].tolist()) for array in self._percents),
            pods=tuple(self._pods[row, devices, PODS].tolist()),
        )

    def has_room(
        self, node: str, device: int, units: int, request: Request, *, counted: bool = False
    ) -> bool:
        """Return whether the device of a known node is open and has room for so many units and the
        percents of the request. counted: the pod of the request is among the pods there.
        """
        row = self.row[node]
        spec = self._rows.specs[row]
        if spec is None or spec.closed or device >= len(spec.capacity) or not spec.healthy[device]:
            return False
        if request.percents:
            units = charged_units(units, request.percents, spec.capacity[device])
        used = self._used[row, device] - counted * units
        if self._pods[row, device, PODS] - counted >= spec.max_sharers:
            return False
        if request.percents or any(array[row, device] for array in self._percents):
            if request.alone and used:
                return False
            for amount, percents, percent in zip(
                PERCENT_AMOUNTS, self._percents, request.every_percent, strict=True
            ):
                free = amount.whole - percents[row, device] + counted * percent
                if free < amount.needed(percent):
                    return False
        if request.apart and request.apart.required:
            fellows = self._workloads.get(row, {}).get(request.apart.workload, ())
            if fellows.count(device) > counted:
                return False
        return bool(self._capacity[row, device] - used >= units)

    def set_node(self, spec: NodeSpec, charges: Iterable[Charge]) -> None:
        """Add the node, or replace the node's shape, and count the charges again."""
        row = self.row.get(spec.name)
        if row is None:
            row = self._empty_rows.pop() if self._empty_rows else self._grow_rows()
            self.row[spec.name] = row
        self._add_columns(len(spec.capacity))
        self._clear_row(row)
        self._rows.set(row, spec)
        count = len(spec.capacity)
        self._capacity[row, :count] = spec.capacity
        self._healthy[row, :count] = spec.healthy
        self._host[row, 0] = -1 if spec.cpu is None else min(spec.cpu, HOST_BOUND)
        self._host[row, 2] = -1 if spec.memory is None else min(spec.memory, HOST_BOUND)
        self._closed[row] = REASONS.index(spec.closed)
        self._layout = None
        for charge in charges:
            self.add(charge)

    def recount(self, spec: NodeSpec, charges: Iterable[Charge]) -> None:
        """Count the node again, but free no memory by it: the count with less free stays."""
        self._add_columns(len(spec.capacity))
        row = self.row.get(spec.name)
        if row is None:
            self.set_node(spec, charges)
            return
        capacity, used, healthy, *percents = (
            array[row].copy()
            for array in (self._capacity, self._used, self._healthy, *self._percents)
        )
        closed_before = self._closed[row]
        self.set_node(spec, charges)
        np.minimum(self._capacity[row], capacity, out=self._capacity[row])
        np.maximum(self._used[row], used, out=self._used[row])
        for array, before in zip(self._percents, percents, strict=True):
            np.maximum(array[row], before, out=array[row])
        self._healthy[row] &= healthy
        self._closed[row] = self._closed[row] or closed_before

    def remove_node(self, name: str) -> None:
        """Remove the node; a later node may use the row."""
        row = self.row.pop(name)
        self._clear_row(row)
        self._rows.set(row, None)
        self._empty_rows.append(row)
        self._layout = None

    def add(self, charge: Charge, sign: int = 1) -> None:
        """Count a charge; sign -1: subtract a counted one.

        On an unknown node it counts only once set_node adds the node.
        """
        row = self.row.get(charge.node)
        if row is None:
            return
        spec, request, host = self._rows.specs[row], charge.request, self._host[row]
        capacity = spec.capacity if spec else ()
        count, pods = len(capacity), self._pods[row, :, : counts_of(request)]
        shares: Shares | None = charge.placement
        percents_of_shares: tuple[Percents, ...] = ()
        if shares is None or not all(device < count for device, _ in shares):
            # The devices are unknown: the pod may be on any device, so every device is charged.
            shares = tuple(enumerate(request.charges_anywhere(capacity))) if request.devices else ()
            percents_of_shares = (request.all_percents,) * len(shares) if request.percents else ()
        elif request.percents:
            percents_of_shares = request.percents_on(shares)
            shares = tuple(
                (device, charged_units(units, percents, capacity[device]))
                for (device, units), percents in zip(shares, percents_of_shares, strict=True)
            )
        for device, units in shares:
            self._used[row, device] += sign * units
            pods[device] += sign
        for (device, _), percents in zip(shares, percents_of_shares, strict=False):
            for array, percent in zip(self._percents, percents, strict=True):
                array[row, device] += sign * percent
            self._percents_shown = None
        if request.apart is not None:
            count_pod(self._workloads, row, request, [device for device, _ in shares], sign)
            self._workloads_shown = None
        cpu = min(request.cpu, HOST_BOUND)
        host[1] += sign * cpu
        host[3] += sign * min(request.memory, HOST_BOUND)
        if request.devices:
            host[5] += sign
        else:
            host[4] += sign * cpu
        self.generation += 1
        self.changed_at[row] = self.generation

    def layout(self) -> Layout:
        """Return the part of a snapshot that only nodes change, made again after such a change."""
        if self._layout is None:
            count = len(self._rows.specs)
            self._layout = self._rows.layout(
                self.row,
                self._capacity[:count],
                self._healthy[:count],
                self._host[:count, 0:3:2],
                self._closed[:count],
            )
        return self._layout

    def snapshot(self, pinned: Mapping[str, tuple[Pinned, ...]]) -> Snapshot:
        """Return a copy of the arrays; those that only nodes change are shared by snapshots.

        pinned: by node, as `Snapshot.pinned`; if the caller passes the same mapping again, only
        rows with a change since the last snapshot may have other pins. The parts without a change
        since the last snapshot are taken from that one, to compute less.
        """
        count, layout = len(self._rows.specs), self._layout or self.layout()
        if self._percents_shown is None:
            self._percents_shown = tuple(array[:count].copy() for array in self._percents)
        if self._workloads_shown is None:
            self._workloads_shown = self._workloads.copy()
        if spare := self._spare_sums.take():
            generation, arrays = spare
            rows = np.flatnonzero(self.changed_at[:count] > generation)
            for name, values in self._sums_of(rows).items():
                arrays[name][rows] = values
        else:
            arrays = {name: array.copy() for name, array in self._sums_of(slice(count)).items()}
        self._spare_sums.keep(self.generation, arrays)
        for array in (*arrays.values(), *self._percents_shown):
            array.flags.writeable = False
        last, before = self._last, -1 if self._last is None else self._last.generation
        changed_rows = np.flatnonzero(arrays["row_generation"] > before)
        view = self._last = Snapshot(
            **layout._asdict(),
            **arrays,
            generation=self.generation,
            percents_used=self._percents_shown,
            pinned=self._pinned_rows(pinned, last, changed_rows) if pinned else {},
            workloads=self._workloads_shown,
        )
        self._pins = pinned or None
        # Where cached_property would put it.
        vars(view).update(
            lineage=self._lineage,
            paired_rows=self._paired_rows,
            group_rows=self._rows.group_rows,
        )
        if last is not None:
            _compute_again(last, view, changed_rows)
            self._compute_free(last, view, changed_rows)
        return view

    def _sums_of(self, rows: Rows | slice) -> Arrays:
        """Return the arrays of a snapshot that charges change, of these rows; some are views."""
        host = self._host[rows]
        return {
            "used": self._used[rows],
            "cpu_free": np.maximum(host[:, 0] - host[:, 1], 0),
            "memory_free": np.maximum(host[:, 2] - host[:, 3], 0),
            "cpu_only": host[:, 4],
            "gpu_pods": host[:, 5],
            "pods": self._pods[rows],
            "row_generation": self.changed_at[rows],
        }

    def _compute_free(self, last: Snapshot, view: Snapshot, rows: Rows) -> None:
        """Put `free` into `view`, made anew for the rows that have changed since `last`."""
        if view.capacity.shape[1] != last.free.shape[1]:
            return
        if spare := self._spare_free.take():
            generation, arrays = spare
            free, rows = arrays["free"], view.changed_since(generation)
        else:
            free = with_rows(last.free, len(view.names) - len(last.names))
        free[rows] = view.left(rows)
        free.flags.writeable = False
        self._spare_free.keep(view.generation, {"free": free})
        vars(view)["free"] = free

    def _pinned_rows(
        self, pinned: Mapping[str, tuple[Pinned, ...]], last: Snapshot | None, rows: Rows
    ) -> Mapping[int, tuple[Pinned, ...]]:
        """Return the pins by row. rows: the rows that have changed since the last snapshot."""
        if pinned is not self._pins or last is None:
            return {self.row[node]: pins for node, pins in pinned.items() if node in self.row}
        # Pins come and go with the charges of their pods.
        pins_by_row = dict(last.pinned)
        for row in rows.tolist():
            spec = self._rows.specs[row]
            pins = pinned.get(spec.name) if spec else None
            if pins:
                pins_by_row[row] = pins
            else:
                pins_by_row.pop(row, None)
        return pins_by_row

    def sums(self) -> ArrayCopies:
        """Return a copy of all arrays of sums, none of them shared with snapshots."""
        return ArrayCopies(
            dict(self.row),
            self._capacity.copy(),
            self._used.copy(),
            tuple(array.copy() for array in self._percents),
            self._pods.copy(),
            self._healthy.copy(),
            self._host.copy(),
            self._closed.copy(),
            self._workloads.copy(),
        )

    def _clear_row(self, row: int) -> None:
        for array in (self._capacity, self._used, self._host, self._pods):
            array[row] = 0
        for percents in self._percents:
            if percents[row].any():
                percents[row] = 0
                self._percents_shown = None
        if self._workloads.pop(row, None):
            self._workloads_shown = None
        self._closed[row] = 0
        self._healthy[row] = False
        self.generation += 1
        self.changed_at[row] = self.generation

    def _grow_rows(self) -> int:
        row = self._rows.append()
        self._spare_sums, self._spare_free = SpareArrays(), SpareArrays()
        self._percents_shown = None
        if row == len(self._used):
            self._capacity, self._used, self._healthy, self._host = (
                np.pad(array, ((0, row), (0, 0)))
                for array in (self._capacity, self._used, self._healthy, self._host)
            )
            self._percents = tuple(np.pad(array, ((0, row), (0, 0))) for array in self._percents)
            self._pods = np.pad(self._pods, ((0, row), (0, 0), (0, 0)))
            self._closed = np.pad(self._closed, (0, row))
            self.changed_at = np.pad(self.changed_at, (0, row))
        return row

    def _add_columns(self, devices: int) -> None:
        more = devices - self._used.shape[1]
        if more > 0:
            self._capacity, self._used, self._healthy = (
                np.pad(array, ((0, 0), (0, more)))
                for array in (self._capacity, self._used, self._healthy)
            )
            self._percents = tuple(np.pad(array, ((0, 0), (0, more))) for array in self._percents)
            self._pods = np.pad(self._pods, ((0, 0), (0, more), (0, 0)))
            self._spare_sums, self._spare_free = SpareArrays(), SpareArrays()
            self._percents_shown = None
            self._layout = None


def _compute_again(last: Snapshot, view: Snapshot, rows: Rows) -> None:
    """Copy the computed properties of the last snapshot to `view`, made anew for these rows."""
    computed, more = vars(view), len(view.names) - len(last.names)
    has_same_width = view.capacity.shape[1] == last.free.shape[1]
    if view.healthy is last.healthy and view.closed is last.closed:
        computed["open"] = last.open
    elif has_same_width:
        is_open = with_rows(last.open, more) if more else last.open.copy()
        is_open[rows] = view.healthy[rows] & (view.closed[rows] == 0)[:, None]
        is_open.flags.writeable = False
        computed["open"] = is_open
    if view.percents_used is last.percents_used:
        computed["any_percents"] = last.any_percents
    elif not last.any_percents:
        computed["any_percents"] = any(bool(used[rows].any()) for used in view.percents_used)
    if view.sharers is last.sharers:
        computed["limits_sharers"] = last.limits_sharers
    if "cards" in vars(last):
        is_kept = view.uuids is last.uuids
        computed["cards"] = last.cards if is_kept else _cards_again(last, view, rows)


def _cards_again(
    last: Snapshot, view: Snapshot, rows: Rows
) -> Mapping[str, tuple[tuple[int, int], ...]]:
    """Return `cards` of `view`, of which these rows have changed since `last`."""
    cards = dict(last.cards)
    changed_rows = set(rows.tolist())
    for row in changed_rows:
        for uuid in filter(None, last.uuids[row] if row < len(last.uuids) else ()):
            places = tuple(place for place in cards.pop(uuid, ()) if place[0] not in changed_rows)
            if places:
                cards[uuid] = places
    for row in sorted(changed_rows):
        for device, uuid in enumerate(view.uuids[row]):
            if uuid:
                cards[uuid] = tuple(sorted((*cards.get(uuid, ()), (row, device))))
    return cards
