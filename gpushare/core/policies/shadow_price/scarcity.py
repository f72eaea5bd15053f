"""The scarce goods of the whole cluster: groups that some pods need, blocks, and idle cards.

The prices follow the current state. The price of a group or a block is S * F / A: S is the share of
requested GPU that belongs to pods that need the good, F all free GPU, A the free amount of the
good.

- A *group* is a set of nodes that are equal when empty. Pods that fit only some groups (by model,
  devices, CPU and memory of the empty node) need these groups; the price of a group is the sum over
  all such pods. So pods that fit anywhere avoid groups that other pods depend on, and such groups
  drain.
- A *block* is room on one node for a pod of several whole devices, with the requested CPU and
  memory. A placement pays for the broken blocks, by devices, CPU or memory.
- An *idle card* is room for a pod of one device that asks for more than half of
  the largest card. A placement that opens an idle card pays the value of the card, times the
  probability that as many of these pods come as there are idle cards. The value of residues does
  not show this: a card that is cut into small pieces has the value of a whole card, however few
  small pods still come.

Amounts are whole numbers (units, numbers of blocks; prices to a millionth), so that the order of a
sum does not matter.

Tested in `tests/unit/core/test_prices.py`.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from gpushare.core.model import Request
from gpushare.core.policies.node_shape import BEFORE_AFTER, tightest
from gpushare.core.policy import Taken
from gpushare.core.snapshot import Bools, Floats, Ints, Rows, Snapshot, idle_devices
from gpushare.core.workload import PodClass

DEAREST = 50.0
FINE = 2**20

MISSED = 200.0
"""The price of an idle card that will certainly be missed. MISSED times the weight of a block is
the value of the residue of such a card (see policy.py: 200 * 2.5 = 10 * 1000 / 20)."""

NEARLY_ALL = 0.95
"""A share of the cluster's devices: no group drains for pods that fit nodes with this share."""

_RARE, _MAX_BLOCKS = 2e-4, 64
_NEVER = 1 << 30

Shares = Sequence[tuple[PodClass, float]]
"""(class, share of all requested GPU)."""


@dataclass(frozen=True, slots=True, eq=False)
class Scarcity:
    """The scarce goods among the nodes of one layout: T sets of groups, and Y kinds of blocks."""

    needs: Floats
    """float64 (T,) the share of GPU requested by the pods that need a set of groups."""
    needed: Bools
    """bool (T, groups) the sets."""
    share: Floats
    """float64 (Y,) of blocks; devices, cpu, memory and units are int64 (Y,)."""
    devices: Ints
    cpu: Ints
    memory: Ints
    accepted: Ints
    """int64 (groups, Y), 1 if the model of the group's nodes is accepted."""
    units: Ints
    alone: Bools
    """bool (Y,) whether the block is an idle card, not room for several devices."""
    largest: int
    """Units of the largest device."""
    per_unit: Floats
    """float64 (groups,) the part of the largest device that one unit is; 0 if CPU is unknown, since
    such nodes have no price."""
    fewest: int
    """Devices of the smallest block."""
    idle_needed: Bools
    """bool (classes, groups): the groups where a class needs several idle devices, and fits."""
    idle_share: Floats
    """float64 (classes,) the share of requested GPU that belongs to each of these classes."""
    roaming: float = 0.0
    """Share of GPU requested by pods of several idle devices that fit nearly all nodes; no price of
    a group makes nodes drain for these pods."""

    def with_nodes(self, snapshot: Snapshot) -> "Scarcity":
        """Return the same goods for these numbers of nodes: with `roaming`."""
        groups = snapshot.group_rows
        units = snapshot.capacity.take(groups.row, axis=0).sum(axis=1) * groups.nodes
        units_that_fit = self.idle_needed[:, : len(units)] @ units
        fits_nearly_all = units_that_fit >= max(NEARLY_ALL * units.sum(), 1)
        return replace(self, roaming=sum(self.idle_share[fits_nearly_all].tolist()))

    def supply(self, snapshot: Snapshot, rows: Rows) -> Ints:
        """Return int64 (K, 1 + Y): the free units and the blocks of each row."""
        supply = np.zeros((len(rows), 1 + len(self.devices)), dtype=np.int64)
        np.add.reduce(snapshot.free.take(rows, axis=0), axis=1, out=supply[:, 0])
        whole = np.add.reduce(idle_devices(snapshot, rows), axis=1)
        if whole.max(initial=0) >= self.fewest:
            cpu, memory = snapshot.cpu_free.take(rows), snapshot.memory_free.take(rows)
            supply[:, 1:] = self._blocks(snapshot.group.take(rows), whole, cpu, memory)
        return supply

    def taken(self, snapshot: Snapshot, rows: Rows, request: Request) -> Taken:
        """Return int8 (K, 2 Y) or (K, Y): the blocks that a placement breaks.

        2 Y for a pod of one device: first for a device in use, then for an idle device.
        """
        untouched = idle_devices(snapshot, rows)
        whole = np.add.reduce(untouched, axis=1)
        variants = 2 if request.devices == 1 else 1
        if whole.max(initial=0) < self.fewest:
            # Usual in a busy cluster: there is no block to break.
            return np.zeros((len(rows), variants * len(self.devices)), dtype=np.int8)
        still_whole = whole[None]
        if request.devices == 1:
            still_whole = whole - BEFORE_AFTER
        elif request.devices:
            chosen = tightest(snapshot.free.take(rows, axis=0), request)
            still_whole = still_whole - np.add.reduce(chosen & untouched, axis=1)
        cpu, memory = snapshot.cpu_free.take(rows), snapshot.memory_free.take(rows)
        group = snapshot.group.take(rows)
        before = self._blocks(group, whole, cpu, memory)
        after = self._blocks(group, still_whole, cpu - request.cpu, memory - request.memory)
        broken = (before - after).transpose(1, 0, 2).reshape(len(rows), -1)
        return broken.astype(np.int8)

    def group_prices(self, totals: Ints) -> Floats:
        """Return float64 (groups,): the price of a device on the nodes of each group."""
        free = totals[:, 0]
        all_free = float(free.sum())
        of_needed = np.maximum((self.needed * free).sum(axis=1), self.largest)
        price = (self.needed * (self.needs * all_free / of_needed)[:, None]).sum(axis=0)
        dear: Floats = np.minimum(price, DEAREST)
        return dear

    def taken_prices(self, amounts: Taken, totals: Ints) -> Floats:
        """Return float64 (V, K): the price of the blocks that a placement breaks."""
        sums = totals.sum(axis=0)
        blocks = np.maximum(self.units * sums[1:], self.largest)
        price = np.minimum(self.share * float(sums[0]) / blocks, DEAREST)
        for index in np.flatnonzero(self.alone):
            come = self.share[index] * float(sums[0]) / self.units[index]
            price[index] = MISSED * missed(come, float(sums[1 + index]))
        # Whole numbers below 2**53: the product is exact in any order of summing.
        exact = np.rint(price * FINE * (self.units / self.largest))
        if not len(exact):
            return np.zeros((1, len(amounts)))
        cost: Floats = amounts.reshape(-1, len(exact)).astype(np.float64) @ exact / FINE
        return cost.reshape(len(amounts), -1).T

    def _blocks(self, group: npt.NDArray[np.int32], whole: Ints, cpu: Ints, memory: Ints) -> Ints:
        """Return int64 (..., K, Y): the blocks of K rows. group: int32 (K,). whole: int64 (..., K),
        idle devices. cpu, memory: int64 (K,), free.
        """
        room = cpu[:, None] // self.cpu
        np.minimum(room, memory[:, None] // self.memory, out=room)
        blocks: Ints = np.minimum(whole[..., None] // self.devices, room)
        return np.maximum(blocks, 0) * self.accepted.take(group, axis=0)


def missed(come: float, idle: float) -> float:
    """Return the probability that one idle card less means one pod less.

    come: the expected number of pods, Poisson, approximated by the normal distribution.
    """
    return 0.5 * math.erfc((idle - come) / math.sqrt(2 * max(come, 1.0)))


class ScarceGoods:
    """The scarce goods for pods with these shares of GPU; made again when a group of nodes is new
    or gone, not for each node.
    """

    def __init__(self, shares: Shares) -> None:
        self._shares = shares
        self._last: tuple[tuple[object, ...], Scarcity] | None = None

    def __call__(self, snapshot: Snapshot) -> Scarcity:
        """Return the scarce goods among the snapshot's nodes."""
        capacity = snapshot.group_rows.largest(snapshot.capacity)
        rows = snapshot.group_rows.row[capacity > 0]
        shapes = (
            snapshot.capacity,
            snapshot.model,
            snapshot.cpu_capacity,
            snapshot.memory_capacity,
        )
        of_groups = (array.take(rows, axis=0).tobytes() for array in shapes)
        key = snapshot.models, capacity.tobytes(), *of_groups
        last = self._last
        if last is None or last[0] != key:
            last = self._last = key, scarcity(snapshot, self._shares)
        return last[1].with_nodes(snapshot)


def scarcity(snapshot: Snapshot, shares: Shares) -> Scarcity:
    """Return the scarce goods among the snapshot's nodes for pods with these shares of GPU, without
    `roaming`.
    """
    # Nodes of a group are equal, so one represents all.
    groups = max(len(snapshot.group_rows.nodes), 1)
    largest_of_group = snapshot.group_rows.largest(snapshot.capacity)
    filled = np.flatnonzero(largest_of_group)
    rows = snapshot.group_rows.row[filled]
    fits = np.zeros((len(shares), groups), dtype=bool)
    fits[:, filled] = _fits_empty(snapshot, rows, [cls for cls, _ in shares])
    needs: dict[bytes, float] = {}
    for line, (_, share) in zip(fits, shares, strict=True):
        if 0 < line.sum() < len(filled):
            needs[line.tobytes()] = needs.get(line.tobytes(), 0.0) + share
    per_unit = np.zeros(groups)
    largest = int(snapshot.capacity[rows].max(initial=1))
    per_unit[filled] = 1 / largest
    per_unit[filled[snapshot.cpu_capacity[rows] < 0]] = 0
    units = np.array([cls.units for cls, _ in shares], dtype=np.int64)
    several_devices = np.array([cls.devices > 1 for cls, _ in shares], dtype=bool)
    several = _commonest((cls, share) for cls, share in shares if cls.devices > 1)
    blocks = several + _alone(snapshot.capacity[rows], shares)
    accepted = np.zeros((groups, len(blocks)), dtype=np.int64)
    for column, (cls, _) in enumerate(blocks):
        accepted[filled, column] = _accepts(snapshot, rows, cls)
    return Scarcity(
        needs=np.array(list(needs.values())),
        needed=np.array([np.frombuffer(key, bool) for key in needs]).reshape(len(needs), groups),
        share=np.array([share for _, share in blocks]),
        devices=np.array([cls.devices for cls, _ in blocks], dtype=np.int64),
        cpu=np.array([max(cls.cpu, 1) for cls, _ in blocks], dtype=np.int64),
        memory=np.array([max(cls.memory, 1) for cls, _ in blocks], dtype=np.int64),
        accepted=accepted,
        units=np.array([cls.total for cls, _ in blocks], dtype=np.int64),
        alone=np.arange(len(blocks)) >= len(several),
        largest=largest,
        per_unit=per_unit,
        fewest=min((cls.devices for cls, _ in blocks), default=_NEVER),
        # A pod that asks for shares of devices needs no idle devices.
        idle_needed=(fits & (2 * units[:, None] > largest_of_group))[several_devices],
        idle_share=np.array([share for _, share in shares])[several_devices],
    )


def _commonest(shares: Iterable[tuple[PodClass, float]]) -> list[tuple[PodClass, float]]:
    """Return the most common classes, at most _MAX_BLOCKS, without rare ones."""
    common = [(cls, share) for cls, share in shares if share > _RARE]
    return sorted(common, key=lambda item: (-item[1], item[0]))[:_MAX_BLOCKS]


def _alone(capacity: Ints, shares: Shares) -> list[tuple[PodClass, float]]:
    """Return the pods of one device that need an idle card, as classes without CPU and memory.

    CPU is omitted because otherwise a pod that needs a card would pay for all other idle cards on
    the node, on any node.
    """
    largest = int(capacity.max(initial=0))
    weights: dict[PodClass, float] = {}
    for cls, share in shares:
        if cls.devices == 1 and 2 * cls.units > largest:
            card = PodClass(units=cls.units, devices=1, models=cls.models)
            weights[card] = weights.get(card, 0.0) + share
    return _commonest(weights.items())


def _accepts(snapshot: Snapshot, rows: Rows, cls: PodClass) -> Bools:
    """Return bool (K,): nodes with an accepted model and large enough devices."""
    large: Bools = snapshot.capacity[rows].max(axis=1, initial=0) >= cls.units
    if not cls.models:
        return large
    is_accepted = [model in cls.models for model in snapshot.models]
    model = snapshot.model[rows].max(axis=1, initial=-1)
    accepted: Bools = large & np.array([*is_accepted, False])[model]
    return accepted


def _fits_empty(snapshot: Snapshot, rows: Rows, classes: Sequence[PodClass]) -> Bools:
    """Return bool (classes, K): nodes that fit a pod of the class when empty.

    Each class has devices.
    """
    falling = np.sort(snapshot.capacity[rows], axis=1)[:, ::-1]
    width = falling.shape[1]
    if not (width and classes):
        return np.zeros((len(classes), len(rows)), dtype=bool)
    units, devices, cpu, memory = np.array(
        [(max(cls.units, 1), cls.devices, cls.cpu, cls.memory) for cls in classes], dtype=np.int64
    ).T[:, :, None]
    # The smallest of the devices that a pod would have, the largest ones.
    smallest = falling[:, np.minimum(devices[:, 0], width) - 1].T
    fits: Bools = (smallest >= units) & (devices <= width)
    for capacity, requested in (
        (snapshot.cpu_capacity[rows], cpu),
        (snapshot.memory_capacity[rows], memory),
    ):
        fits &= (capacity < 0) | (capacity >= requested)
    for number, cls in enumerate(classes):
        if cls.models:
            fits[number] &= _accepts(snapshot, rows, cls)
    return fits
