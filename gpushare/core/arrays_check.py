"""A check of the arrays of the ledger: count the charges a second time, without NodeArrays.

The check changes nothing.

Tested in `tests/unit/core/test_node_arrays.py`.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

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
    counted = {name: _NodeSums(spec) for name, spec in nodes.items()}
    for charge in charges:
        if charge.node in counted:
            counted[charge.node].add(charge)
    wrong = nodes.keys() ^ sums.row.keys()
    return sorted(wrong | {name for name in nodes.keys() - wrong if not counted[name].equals(sums)})


class _NodeSums:
    """The sums of the charges on one node, in lists."""

    def __init__(self, spec: NodeSpec) -> None:
        self._spec = spec
        devices = range(len(spec.capacity))
        self._used = [0 for _ in devices]
        self._percents = [[0 for _ in devices] for _ in PERCENT_AMOUNTS]
        self._pods = [[0, 0] for _ in devices]
        self._host = [_bounded(spec.cpu), 0, _bounded(spec.memory), 0, 0, 0]
        self._workloads = Counter[tuple[str, int]]()

    def add(self, charge: Charge) -> None:
        """Count a charge."""
        request, placement, capacity = charge.request, charge.placement, self._spec.capacity
        charges: dict[int, tuple[int, Percents]] = {}
        if placement and max(placement)[0] < len(capacity):
            on_devices = request.percents_on(placement)
            for (device, units), part in zip(placement, on_devices, strict=True):
                charges[device] = units, part
        elif placement != () and request.devices:
            everything = request.total, request.all_percents
            charges = dict.fromkeys(range(len(capacity)), everything)
        for device, (units, part) in charges.items():
            self._used[device] += charged_units(units, part, capacity[device])
            self._pods[device][PODS] += 1
            self._pods[device][UNMETERED] += not request.cores
            for by_device, percent in zip(self._percents, part, strict=False):
                by_device[device] += percent
            if request.apart is not None:
                self._workloads[request.apart.workload, device] += 1
        cpu = min(request.cpu, HOST_BOUND)
        self._host[1] += cpu
        self._host[3] += min(request.memory, HOST_BOUND)
        self._host[4] += 0 if request.devices else cpu
        self._host[5] += request.devices > 0

    def equals(self, sums: ArrayCopies) -> bool:
        """Return whether the arrays have these sums; devices beyond the node's have none."""
        spec, row = self._spec, sums.row[self._spec.name]
        pairs: tuple[tuple[npt.NDArray[Any], Sequence[object]], ...] = (
            (sums.capacity, spec.capacity),
            (sums.healthy, spec.healthy),
            (sums.used, self._used),
            (sums.pods, self._pods),
            (sums.host, self._host),
            *zip(sums.percents, self._percents, strict=True),
        )
        return (
            REASONS[sums.closed[row]] is spec.closed
            and self._workloads
            == Counter(
                (workload, device)
                for workload, devices in sums.workloads.get(row, {}).items()
                for device in devices
            )
            and all(
                array[row, : len(values)].tolist() == list(values)
                and (len(values) == array.shape[1] or not array[row, len(values) :].any())
                for array, values in pairs
            )
        )


def _bounded(capacity: int | None) -> int:
    return -1 if capacity is None else min(capacity, HOST_BOUND)
