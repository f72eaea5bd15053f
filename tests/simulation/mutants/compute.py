"""Bugs about compute beside memory: where compute counts, and which pods fit together."""

from dataclasses import replace
from typing import Any

import numpy as np

from gpushare.core import decide, ranking
from gpushare.core.amounts import compute
from gpushare.core.model import ALL_CORES, Request
from gpushare.core.node_arrays import NodeArrays
from gpushare.core.snapshot import Snapshot
from gpushare.wire import pods
from tests.simulation.mutants.museum import mutant


def _without_cores(charge: Any) -> Any:
    return charge._replace(request=replace(charge.request, percents=compute(0)))


@mutant("C19", "the books count memory alone", NodeArrays, "add")
def counts_no_cores(original: Any) -> Any:
    return lambda self, charge, sign=1: original(self, _without_cores(charge), sign)


@mutant("C19", "of several devices one is charged", NodeArrays, "add")
def counts_cores_on_one_device(original: Any) -> Any:
    def add(self: Any, charge: Any, sign: int = 1) -> None:
        original(self, charge, sign)
        row, cores = self.row.get(charge.node), charge.request.cores
        for device, _ in (charge.placement or ())[1:]:
            if row is not None and cores and device < self._used.shape[1]:
                self._percents[0][row, device] -= sign * cores

    return add


@mutant("C19", "memory is given back, and its compute is not", NodeArrays, "add")
def keeps_cores_of_the_gone(original: Any) -> Any:
    def add(self: Any, charge: Any, sign: int = 1) -> None:
        original(self, charge if sign > 0 else _without_cores(charge), sign)

    return add


def _reserves_by_memory(original: Any) -> Any:
    """Reserved room has to fit by memory, regardless of free compute."""

    def has_room(
        self: Any, node: str, device: int, units: int, request: Any, *, counted: bool = False
    ) -> bool:
        row, (cores, *_) = self.row[node], self._percents
        cores_before = cores[row].copy()
        cores[row] = 0
        request = _beside_others(request)
        fits = bool(original(self, node, device, units, request, counted=counted))
        cores[row] = cores_before
        return fits

    return has_room


def _looks_at_two_devices(original: Any) -> Any:
    def has_room(snapshot: Any, rows: Any, request: Any, *, pairing: bool = False) -> Any:
        by_memory = replace(request, percents=compute(0))
        memory = original(snapshot, rows, by_memory, pairing=pairing)
        free_cores = ALL_CORES - snapshot.cores_used[rows]
        return memory & np.any(free_cores >= request.cores, axis=1)[:, None]

    return has_room


@mutant("C19", "there is memory on one device, and compute on another", ranking, "has_room",
        also=[(decide, "has_room", _looks_at_two_devices),
              (NodeArrays, "has_room", _reserves_by_memory)])  # fmt: skip
def looks_at_two_devices(original: Any) -> Any:
    return _looks_at_two_devices(original)


def _beside_others(request: Any) -> Any:
    """The request, for less than all of a device's compute."""
    return replace(request, percents=compute(min(request.cores, ALL_CORES - 1)))


def _reserves_beside_others(original: Any) -> Any:
    return lambda self, node, device, units, request, *, counted=False: original(
        self, node, device, units, _beside_others(request), counted=counted
    )


@mutant("C19", "all of a device's compute fits beside who asked for none", Request, "alone",
        also=[(NodeArrays, "has_room", _reserves_beside_others)])  # fmt: skip
def shares_a_device_wholly_asked_for(original: Any) -> Any:
    del original
    return property(lambda self: False)


def _reserves_without_cores(original: Any) -> Any:
    by_memory = _reserves_by_memory(original)

    def has_room(
        self: Any, node: str, device: int, units: int, request: Any, *, counted: bool = False
    ) -> bool:
        rule = original if request.cores else by_memory
        return bool(rule(self, node, device, units, request, counted=counted))

    return has_room


@mutant("C19", "who asks for no compute fits where all of it is given", Snapshot, "left",
        also=[(NodeArrays, "has_room", _reserves_without_cores)])  # fmt: skip
def counts_memory_that_is_no_use(original: Any) -> Any:
    del original

    def left(self: Any, rows: Any) -> Any:
        free_units = np.maximum(self.capacity[rows] - self.used[rows], 0)
        free_units[~self.open[rows]] = 0
        return free_units

    return left


@mutant("C19", "who starts anew finds the memory of pods alone", pods, "request_of")
def forgets_cores_on_restart(original: Any) -> Any:
    def request_of(pod: Any, names: Any) -> Any:
        request = original(pod, names)
        return replace(request, percents=compute(0)) if pod.spec and pod.spec.node_name else request

    return request_of
