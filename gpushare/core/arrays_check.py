"""A check of the arrays of the ledger: count the charges a second time, without NodeArrays.

The check changes nothing.

Tested in `tests/unit/core/test_node_arrays.py`.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gpushare.core.amounts import PERCENT_AMOUNTS, Percents, charged_units
from gpushare.core.model import HOST_BOUND, Charge, NodeSpec
from gpushare.core.node_arrays import ArrayCopies
from gpushare.core.snapshot import PODS, REASONS, UNMETERED


def differing_nodes(
    sums: ArrayCopies, specs: Iterable[NodeSpec], charges: Iterable[Charge]
) -> list[str]:
    """Return the names of the nodes with sums that differ from these nodes and charges.

    A node that only one side has differs. The charges are counted in another way than in
    NodeArrays, so that one mistake does not hide in both.
    """
    nodes = {spec.name: spec for spec in specs}
    used = {name: [0] * len(spec.capacity) for name, spec in nodes.items()}
    percents = {
        name: [[0] * len(spec.capacity) for _ in PERCENT_AMOUNTS] for name, spec in nodes.items()
    }
    pods = {name: [[0, 0] for _ in spec.capacity] for name, spec in nodes.items()}
    host = {
        name: [_bounded(spec.cpu), 0, _bounded(spec.memory), *(0, 0, 0)]
        for name, spec in nodes.items()
    }
    workloads: dict[str, Counter[tuple[str, int]]] = {name: Counter() for name in nodes}
    for charge in charges:
        node = charge.node
        if node in nodes:
            capacity = nodes[node].capacity
            held_devices = _sum_up(charge, capacity, used[node], percents[node], pods[node])
            if charge.request.apart is not None:
                for device in held_devices:
                    workloads[node][charge.request.apart.workload, device] += 1
            cpu = min(charge.request.cpu, HOST_BOUND)
            host[node][1] += cpu
            host[node][3] += min(charge.request.memory, HOST_BOUND)
            host[node][4] += 0 if charge.request.devices else cpu
            host[node][5] += charge.request.devices > 0
    wrong = set(nodes) ^ set(sums.row)
    common = [name for name in nodes if name in sums.row]
    rows = [sums.row[name] for name in common]
    width = max((len(nodes[name].capacity) for name in common), default=0)
    expected: tuple[tuple[npt.NDArray[Any], Sequence[Sequence[int]]], ...] = (
        (sums.capacity, [nodes[name].capacity for name in common]),
        (sums.used, [used[name] for name in common]),
        *(
            (array, [percents[name][index] for name in common])
            for index, array in enumerate(sums.percents)
        ),
        *(
            (sums.pods[:, :, which], [[counts[which] for counts in pods[name]] for name in common])
            for which in (PODS, UNMETERED)
        ),
        (sums.healthy, [nodes[name].healthy for name in common]),
        (sums.host, [host[name] for name in common]),
        (sums.closed[:, None], [(REASONS.index(nodes[name].closed),) for name in common]),
    )
    wrong.update(
        name
        for name, row in zip(common, rows, strict=True)
        if workloads[name]
        != Counter(
            (workload, device)
            for workload, devices in sums.workloads.get(row, {}).items()
            for device in devices
        )
    )
    for array, values in expected:
        wrong.update(common[index] for index in _differing(array[rows], values, width))
    return sorted(wrong)


def _sum_up(
    charge: Charge,
    capacity: Sequence[int],
    used: list[int],
    percents: list[list[int]],
    pods: list[list[int]],
) -> Iterable[int]:
    """Add the charge to the sums of its node; return the devices that it is on."""
    request, placement = charge.request, charge.placement
    charges: dict[int, tuple[int, Percents]] = {}
    if placement and max(placement)[0] < len(used):
        on_devices = request.percents_on(placement)
        for (device, units), part in zip(placement, on_devices, strict=True):
            charges[device] = units, part
    elif placement != () and request.devices:
        everything = request.total, request.all_percents
        charges = dict.fromkeys(range(len(used)), everything)
    for device, (units, part) in charges.items():
        used[device] += charged_units(units, part, capacity[device])
        pods[device][PODS] += 1
        pods[device][UNMETERED] += not request.cores
        for by_device, percent in zip(percents, part, strict=False):
            by_device[device] += percent
    return charges


def _bounded(capacity: int | None) -> int:
    return -1 if capacity is None else min(capacity, HOST_BOUND)


def _differing(array: npt.NDArray[Any], values: Sequence[Sequence[int]], width: int) -> list[int]:
    """Return the rows that differ; devices without capacity and without charge do not count."""
    width = max(width, array.shape[1])
    filled = np.array([[*row, *[0] * (width - len(row))] for row in values], dtype=np.int64)
    wide = np.zeros((len(values), width), dtype=np.int64)
    wide[:, : array.shape[1]] = array
    rows: list[int] = np.flatnonzero((wide != filled.reshape(wide.shape)).any(axis=1)).tolist()
    return rows
