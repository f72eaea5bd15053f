"""The arrays in which charges are counted; a Snapshot is a copy of them.

Plain arithmetic on numpy arrays. It knows no pods, only charges, and has no lock: the Ledger has
one. Charging is linear, so adding and subtracting the same charge in any order leaves the arrays as
they were; therefore the incremental sums equal rebuilt ones.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gpushare.core.model import ALL_CORES, HOST_BOUND, NodeSpec, Request, Shares
from gpushare.core.snapshot import KINDS, REASONS, Bools, Ints, Pinned, Snapshot, pod_kind

_GIB_BITS = 30

_ROWS = 64
"""Nodes that have room at first; doubled whenever all rows are in use."""


class Charge(NamedTuple):
    """What one pod takes from a node; placement None: its whole request from every device."""

    node: str
    request: Request
    placement: Shares | None


class _Layout(NamedTuple):
    """The fields of a Snapshot that only nodes change."""

    names: tuple[str, ...]
    row: dict[str, int]
    capacity: Ints
    healthy: Bools
    model: npt.NDArray[np.int16]
    models: tuple[str, ...]
    uuids: tuple[tuple[str, ...], ...]
    cpu_capacity: Ints
    memory_capacity: Ints
    group: npt.NDArray[np.int32]
    closed: npt.NDArray[np.int8]
    order: Ints


class Sums(NamedTuple):
    """A copy of all sums: row by node name, arrays as in a Snapshot, and `host`.

    host: int64 (N, 5): cpu capacity, cpu used, memory capacity, memory used, cpu of pods without
    GPU.
    """

    row: dict[str, int]
    capacity: Ints
    used: Ints
    cores: npt.NDArray[np.int32]
    healthy: Bools
    host: Ints
    closed: npt.NDArray[np.int8]


class NodeArrays:
    """Nodes by row, and the sums of the charges on them."""

    def __init__(self) -> None:
        self.generation = 0
        self.row: dict[str, int] = {}
        self._specs: list[NodeSpec | None] = []
        self._empty_rows: list[int] = []
        self._capacity = np.zeros((_ROWS, 1), dtype=np.int64)
        self._used = np.zeros((_ROWS, 1), dtype=np.int64)
        # Percent; the same array as in the last snapshot until a pod with cores comes or goes.
        self._cores = np.zeros((_ROWS, 1), dtype=np.int32)
        self._cores_shown: npt.NDArray[np.int32] | None = None
        self._healthy = np.zeros((_ROWS, 1), dtype=bool)
        # Columns: cpu capacity, cpu used, memory capacity, memory used, cpu of pods without GPU.
        self._host = np.zeros((_ROWS, 5), dtype=np.int64)
        self._kinds = np.zeros((_ROWS, KINDS), dtype=np.int16)
        self._closed = np.zeros(_ROWS, dtype=np.int8)
        self._changed = np.zeros(_ROWS, dtype=np.int64)
        self._layout: _Layout | None = None
        self._last: Snapshot | None = None

    def used(self, node: str) -> tuple[int, ...]:
        """Return the units used on each device of a known node."""
        row = self.row[node]
        spec = self._specs[row]
        return tuple(self._used[row, : len(spec.capacity) if spec else 0].tolist())

    def cores(self, node: str) -> tuple[int, ...]:
        """Return the percent of the compute that is used of each device of a known node."""
        row = self.row[node]
        spec = self._specs[row]
        return tuple(self._cores[row, : len(spec.capacity) if spec else 0].tolist())

    def host_free(self, node: str) -> tuple[int | None, int | None]:
        """Return (milli-cores, bytes) left on a known node; below 0 if over-full, None: unknown."""
        cpu, cpu_used, memory, memory_used, _ = self._host[self.row[node]].tolist()
        return (
            cpu - cpu_used if cpu >= 0 else None,
            memory - memory_used if memory >= 0 else None,
        )

    def has_room(self, node: str, device: int, units: int, cores: int) -> bool:
        """Return whether the device of a known node has room for so much of it, and is open."""
        row = self.row[node]
        spec = self._specs[row]
        if spec is None or spec.closed or device >= len(spec.capacity) or not spec.healthy[device]:
            return False
        used = self._used[row, device]
        if self._cores[row, device] > ALL_CORES - max(cores, 1) or (cores >= ALL_CORES and used):
            return False
        return bool(self._capacity[row, device] - used >= units)

    def changed(self, node: str) -> int:
        """Return the generation in which a known node changed last."""
        return int(self._changed[self.row[node]])

    def set_node(self, spec: NodeSpec, charges: Iterable[Charge]) -> None:
        """Add the node, or replace its shape, and count its charges again."""
        row = self.row.get(spec.name)
        if row is None:
            row = self._empty_rows.pop() if self._empty_rows else self._grow_rows()
            self.row[spec.name] = row
        self._add_columns(len(spec.capacity))
        self._clear_row(row)
        self._specs[row] = spec
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
        capacity, used, cores, healthy = (
            array[row].copy() for array in (self._capacity, self._used, self._cores, self._healthy)
        )
        closed = self._closed[row]
        self.set_node(spec, charges)
        np.minimum(self._capacity[row], capacity, out=self._capacity[row])
        np.maximum(self._used[row], used, out=self._used[row])
        np.maximum(self._cores[row], cores, out=self._cores[row])
        self._healthy[row] &= healthy
        self._closed[row] = self._closed[row] or closed

    def remove_node(self, name: str) -> None:
        """Remove the node; its row is used again later."""
        row = self.row.pop(name)
        self._clear_row(row)
        self._specs[row] = None
        self._empty_rows.append(row)
        self._layout = None

    def add(self, charge: Charge) -> None:
        """Count a charge. On an unknown node it counts only once set_node adds the node."""
        self._apply_charge(charge, 1)

    def subtract(self, charge: Charge) -> None:
        """Subtract a counted charge."""
        self._apply_charge(charge, -1)

    def snapshot(self, pinned: Mapping[int, tuple[Pinned, ...]]) -> Snapshot:
        """Return a copy of the arrays; those that only nodes change are shared by snapshots."""
        count = len(self._specs)
        if self._layout is None:
            self._layout = self._new_layout()
        host = self._host[:count]
        cpu_free = np.maximum(host[:, 0] - host[:, 1], 0)
        memory_free = np.maximum(host[:, 2] - host[:, 3], 0)
        used, changed, cpu_only = (
            array[:count].copy() for array in (self._used, self._changed, self._host[:, 4])
        )
        kinds = self._kinds[:count].copy()
        if self._cores_shown is None:
            self._cores_shown = self._cores[:count].copy()
        for array in (cpu_free, memory_free, used, changed, kinds, cpu_only, self._cores_shown):
            array.flags.writeable = False
        view = Snapshot(
            **self._layout._asdict(),
            generation=self.generation,
            used=used,
            cores_used=self._cores_shown,
            cpu_free=cpu_free,
            memory_free=memory_free,
            cpu_only=cpu_only,
            kinds=kinds,
            row_generation=changed,
            pinned=pinned,
        )
        if self._last is not None:
            view.inherit(self._last)
        self._last = view
        return view

    def sums(self) -> Sums:
        """Return a copy of all arrays, none of them shared with snapshots."""
        return Sums(
            dict(self.row),
            self._capacity.copy(),
            self._used.copy(),
            self._cores.copy(),
            self._healthy.copy(),
            self._host.copy(),
            self._closed.copy(),
        )

    def _new_layout(self) -> _Layout:
        count = len(self._specs)
        names = tuple(spec.name if spec else "" for spec in self._specs)
        order = np.empty(count, dtype=np.int64)
        order[np.argsort(np.array(names, dtype=np.str_), kind="stable")] = np.arange(count)
        groups: dict[object, int] = {}
        models: dict[str, int] = {}
        group = np.zeros(count, dtype=np.int32)
        model = np.full(self._capacity.shape, -1, dtype=np.int16)[:count]
        for row, spec in enumerate(self._specs):
            if spec is None:
                continue
            # Machines of one kind differ by some KiB, and each would be its own group.
            memory = None if spec.memory is None else spec.memory >> _GIB_BITS
            shape = (spec.capacity, spec.models, spec.cpu, memory)
            group[row] = groups.setdefault(shape, len(groups))
            model[row, : len(spec.models)] = [
                models.setdefault(name, len(models)) for name in spec.models
            ]
        layout = _Layout(
            names=names,
            row=dict(self.row),
            capacity=self._capacity[:count].copy(),
            healthy=self._healthy[:count].copy(),
            model=model,
            models=tuple(models),
            uuids=tuple(spec.uuids if spec else () for spec in self._specs),
            cpu_capacity=self._host[:count, 0].copy(),
            memory_capacity=self._host[:count, 2].copy(),
            group=group,
            closed=self._closed[:count].copy(),
            order=order,
        )
        for part in layout:
            if isinstance(part, np.ndarray):
                part.flags.writeable = False
        return layout

    def _apply_charge(self, charge: Charge, sign: int) -> None:
        row = self.row.get(charge.node)
        if row is None:
            return
        spec, request, host = self._specs[row], charge.request, self._host[row]
        count = len(spec.capacity) if spec else 0
        if charge.placement is not None and all(device < count for device, _ in charge.placement):
            for device, units in charge.placement:
                self._used[row, device] += sign * units
            if request.cores and charge.placement:
                devices = [device for device, _ in charge.placement]
                self._cores[row, devices] += sign * request.cores_on(len(devices))
                self._cores_shown = None
        elif request.devices:
            # Its devices are not known: it may be on any of them, so it counts on every one.
            self._used[row, :count] += sign * request.total
            if request.cores:
                self._cores[row, :count] += sign * request.cores_on(0)
                self._cores_shown = None
        cpu = min(request.cpu, HOST_BOUND)
        host[1] += sign * cpu
        host[3] += sign * min(request.memory, HOST_BOUND)
        if request.devices:
            largest = max(spec.capacity, default=0) if spec else 0
            self._kinds[row, pod_kind(request, largest)] += sign
        else:
            host[4] += sign * cpu
        self._bump_generation(row)

    def _bump_generation(self, row: int) -> None:
        self.generation += 1
        self._changed[row] = self.generation

    def _clear_row(self, row: int) -> None:
        for array in (self._capacity, self._used, self._cores, self._host, self._kinds):
            array[row] = 0
        self._cores_shown = None
        self._closed[row] = 0
        self._healthy[row] = False
        self._bump_generation(row)

    def _grow_rows(self) -> int:
        row = len(self._specs)
        self._specs.append(None)
        self._cores_shown = None
        if row == len(self._used):
            self._capacity, self._used, self._cores, self._healthy, self._host, self._kinds = (
                np.pad(array, ((0, row), (0, 0)))
                for array in (
                    self._capacity,
                    self._used,
                    self._cores,
                    self._healthy,
                    self._host,
                    self._kinds,
                )
            )
            self._closed = np.pad(self._closed, (0, row))
            self._changed = np.pad(self._changed, (0, row))
        return row

    def _add_columns(self, devices: int) -> None:
        more = devices - self._used.shape[1]
        if more > 0:
            self._capacity, self._used, self._cores, self._healthy = (
                np.pad(array, ((0, 0), (0, more)))
                for array in (self._capacity, self._used, self._cores, self._healthy)
            )
            self._cores_shown = None
            self._layout = None
