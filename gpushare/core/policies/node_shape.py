"""Facts of nodes and devices that policies share, in the units of the published policies.

Scores nothing. Published policies count a device as 1000 *milli*. If cards differ, the largest
device counts 1000 and any other device in proportion to the units (`even`), so a unit is worth the
same everywhere. Facts that change only with the nodes are computed once per layout.

Compute is the second dimension of a device, for policies that price the compute left over. The
*need* of a pod is the requested percent; 1 if the pod requests none, since a device without free
compute is of no use; and IDLE if the pod requests all, since only an idle device suffices. The
*free compute* of a device is the free percent, and IDLE while the device is idle. Needs are
compared in a few *levels*: tables have a column for each level.

Tested in `tests/unit/core/test_policies.py` and `tests/unit/core/test_policies_compute.py`.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from gpushare.core.model import ALL_CORES, MAX_UNITS, Request
from gpushare.core.policies.device_bestfit import DeviceBestFit
from gpushare.core.policy import APART
from gpushare.core.snapshot import Bools, Floats, Ints, Rows, Snapshot, has_room
from gpushare.core.workload import PodClass

MILLI = 1000
"""The value of one device."""

UNKNOWN_CPU_PENALTY = -1e9
"""Added to the value of a node with unknown CPU, to rank the node after all others: the values of
the two kinds of nodes have different scales."""

BEFORE_AFTER: Ints = np.array([[0], [1]])
"""A factor of the requested amount: row 0 is the state before the placement, row 1 after."""

HALF = 0.5 + 1e-9
"""floor(x + HALF) rounds x to the nearest whole number, halves up. The small part is for a quotient
that should be a half and is a little less, by an amount that depends on the units."""

HAIR = 1e-9
"""The same small part, for values that are rounded down."""

_Made = TypeVar("_Made")
_Array = TypeVar("_Array", bound=npt.NDArray[np.generic])

IDLE = ALL_CORES + 1
"""The free compute of an idle device."""

_MAX_LEVELS, _STEP = 10, 10
"""With more distinct percents than levels, percents are rounded up to whole steps."""


class PerGroups(Generic[_Made]):
    """A value computed from the shapes of the groups, and cached until a group is new or gone."""

    def __init__(self, make: Callable[[Snapshot], _Made]) -> None:
        self._make = make
        self._last: tuple[object, _Made] | None = None

    def __call__(self, snapshot: Snapshot) -> _Made:
        """Return the value for the layout of this snapshot."""
        last, key = self._last, self._key(snapshot)
        if last is None or last[0] is not key:
            last = self._last = key, self._make(snapshot)
        return last[1]

    def _key(self, snapshot: Snapshot) -> object:
        return snapshot.group_rows.shapes

    def __getstate__(self) -> dict[str, object]:
        """Return the pickled state, without the cached value."""
        return {"_make": self._make, "_last": None}


class PerLayout(PerGroups[_Made]):
    """A value computed from the shapes of all nodes, and cached until a node changes."""

    def _key(self, snapshot: Snapshot) -> object:
        return snapshot.capacity


@dataclass(frozen=True, slots=True, eq=False)
class CommonNodes:
    """The nodes of one layout with cards of the sizes that a policy was made for.

    All other nodes stand apart, without influence on scales, tables and prices: so the cards that a
    node reports have no effect on the scores of other nodes.
    """

    snapshot: Snapshot
    """The snapshot in which nodes that stand apart have no devices; for shapes alone."""

    apart: Bools | None
    """bool (groups,), None if no node stands apart."""

    sizes: Ints
    """The sizes of the cards, rising."""

    def with_apart(
        self, values: Floats, snapshot: Snapshot, rows: Rows, request: Request
    ) -> Floats:
        """Return float64 (K, D): the values; on nodes that stand apart those of DeviceBestFit.

        Nodes that stand apart rank first; they rank last if a smaller card of another node is large
        enough for the request, so that a large card is kept for the pods that need a large card.
        """
        if self.apart is None:
            return values
        stands_apart = self.apart[snapshot.group[rows]]
        if not stands_apart.any():
            return values
        enough = self.sizes[self.sizes.searchsorted(max(request.units, 1)) :]
        smallest = int(enough[0]) if len(enough) else MAX_UNITS
        larger = snapshot.capacity[rows].max(axis=1, initial=0) > smallest
        tight = DeviceBestFit().score(snapshot, rows, request)
        return np.where(
            stands_apart[:, None], tight + np.where(larger, -APART, APART)[:, None], values
        )

    def without_apart(self, amounts: _Array, snapshot: Snapshot, rows: Rows) -> _Array:
        """Return the amounts of some rows, (K, X), set to 0 on nodes that stand apart."""
        if self.apart is not None:
            amounts[self.apart[snapshot.group[rows]]] = 0
        return amounts


def common_nodes(snapshot: Snapshot, sizes: Collection[int]) -> CommonNodes:
    """Return the nodes with cards of these sizes alone; no node stands apart if there are none."""
    rising = np.array(sorted(sizes), dtype=np.int64)
    capacity = snapshot.capacity[snapshot.group_rows.row, :, None]
    apart: Bools = ((capacity != rising).all(axis=2) & (capacity[..., 0] != 0)).any(axis=1)
    if not sizes or not apart.any():
        return CommonNodes(snapshot, None, rising)
    common_capacity = np.where(apart[snapshot.group, None], 0, snapshot.capacity)
    return CommonNodes(replace(snapshot, capacity=common_capacity), apart, rising)


@dataclass(frozen=True, slots=True, eq=False)
class NodeShapes:
    """Facts of the nodes of one layout."""

    capacity: Ints
    """int64 (groups,) units of the largest device of a node, at least 1."""
    even: float
    """The value of one unit on any node, where a device of the largest capacity has 1000."""
    any_cpu_unknown: bool
    """Whether the CPU of a node is unknown."""


def node_shapes(snapshot: Snapshot, largest: int = 0) -> NodeShapes:
    """Return the facts of the nodes of a snapshot.

    largest: units of the device that counts 1000; 0: the largest one there is.
    """
    capacity = np.maximum(snapshot.group_rows.largest(snapshot.capacity), 1)
    even = MILLI / (largest or int(capacity.max(initial=1)))
    cpu = snapshot.cpu_capacity[snapshot.group_rows.row]
    return NodeShapes(capacity, even, bool(cpu.min(initial=0) < 0))


def tightest(free: Ints, request: Request) -> Bools:
    """Return bool (K, D): the devices with the least room among those where the request fits.

    The number of marked devices is `request.devices`, of equal devices those with the lowest index.
    For a request of one device all equally tight devices are marked.
    """
    room = np.where(free >= max(request.units, 1), free, MAX_UNITS)
    if request.devices <= 1:
        alike: Bools = room == room.min(axis=1, keepdims=True, initial=MAX_UNITS)
        return alike
    order = np.argsort(room, axis=1, kind="stable")[:, : request.devices]
    chosen = np.zeros(room.shape, dtype=bool)
    np.put_along_axis(chosen, order, values=True, axis=1)
    return chosen


def rank_unknown_last(
    values: Floats, shapes: NodeShapes, snapshot: Snapshot, rows: Rows, request: Request
) -> Floats:
    """Return float64 (K, D): the values; on nodes with unknown CPU those of DeviceBestFit, lower.

    Policies that price CPU are worse than DeviceBestFit if the CPU is not known.
    """
    if not shapes.any_cpu_unknown:
        return values
    tight = UNKNOWN_CPU_PENALTY + DeviceBestFit().score(snapshot, rows, request)
    return np.where(snapshot.cpu_capacity[rows, None] < 0, tight, values)


class Levels:
    """The needs of the pods to come, in levels."""

    def __init__(self, classes: Iterable[PodClass]) -> None:
        percents = {cls.cores for cls in classes if cls.devices}
        self._step = 1 if len(percents) <= _MAX_LEVELS else _STEP
        self.has_compute = any(percents)
        """Whether a pod asks for compute; otherwise the free compute does not matter."""
        self.needs = np.unique([self.need(cores) for cores in percents] or [1])
        """int64, rising."""
        self.columns = len(self.needs) + 1
        """Columns of a table: the number of levels that free compute meets, from none to all."""

    def need(self, cores: int) -> int:
        """Return the need of a pod that requests this percent."""
        return IDLE if cores >= ALL_CORES else max(-(-cores // self._step) * self._step, 1)


def free_compute(snapshot: Snapshot, rows: Rows) -> Ints:
    """Return int64 (K, D): the free compute of each device, IDLE if idle, 0 if not open."""
    compute = snapshot.cores_free.take(rows, axis=0)
    idle = (compute == ALL_CORES) & (snapshot.used.take(rows, axis=0) == 0)
    compute += idle
    return compute


def free_with_compute(snapshot: Snapshot, rows: Rows, request: Request, free: Ints) -> Ints:
    """Return int64 (K, D): the free units, 0 on devices without room for the request's compute."""
    return np.where(has_room(snapshot, rows, request), free, 0) if request.cores else free
