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
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

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
class Blocks:
    """The Y kinds of blocks, for pods of one workload."""

    classes: Sequence[PodClass]
    share: Floats
    """float64 (Y,) of blocks; devices, cpu, memory and units are int64 (Y,)."""
    devices: Ints
    cpu: Ints
    memory: Ints
    units: Ints
    alone: Bools
    """bool (Y,) whether the block is an idle card, not room for several devices."""
    fewest: int
    """Devices of the smallest block."""
    key: Hashable
    """A value that equal kinds of blocks share."""

    @staticmethod
    def of(shares: Shares, largest: int) -> "Blocks":
        """Return the blocks for pods with these shares. largest: units of the largest card."""
        several = _commonest((cls, share) for cls, share in shares if cls.devices > 1)
        blocks = several + _alone(largest, shares)
        classes = [cls for cls, _ in blocks]
        amounts = [(cls.devices, max(cls.cpu, 1), max(cls.memory, 1), cls.total) for cls in classes]
        devices, cpu, memory, units = np.array(amounts, dtype=np.int64).reshape(-1, 4).T.copy()
        return Blocks(
            classes=classes,
            share=np.array([share for _, share in blocks]),
            devices=devices,
            cpu=cpu,
            memory=memory,
            units=units,
            alone=np.arange(len(blocks)) >= len(several),
            fewest=min((cls.devices for cls in classes), default=_NEVER),
            key=tuple(amounts),
        )


@dataclass(frozen=True, slots=True, eq=False)
class Scarcity:
    """The scarce goods among the nodes of one layout: T sets of groups, and Y kinds of blocks."""

    needs: Floats
    """float64 (T,) the share of GPU requested by the pods that need a set of groups."""
    needed: Bools
    """bool (T, groups) the sets."""
    blocks: Blocks
    accepted: Ints
    """int64 (groups, Y), 1 if the model of the group's nodes is accepted."""
    largest: int
    """Units of the largest device."""
    per_unit: Floats
    """float64 (groups,) the part of the largest device that one unit is; 0 if CPU is unknown, since
    such nodes have no price."""
    idle_needed: Bools
    """bool (classes, groups): the groups where a class needs several idle devices, and fits."""
    idle_share: Floats
    """float64 (classes,) the share of requested GPU that belongs to each of these classes."""
    units_of_node: Ints
    """int64 (groups,) units of all devices of a node."""

    def roaming(self, nodes: Ints) -> float:
        """Return the share of GPU requested by pods of several idle devices that fit nearly all
        nodes; no price of a group makes nodes drain for these pods.

        nodes: int64 (groups,), the number of nodes.
        """
        groups = len(nodes)
        units = self.units_of_node[:groups] * nodes
        enough = self.idle_needed[:, :groups] @ units >= max(NEARLY_ALL * units.sum(), 1)
        return float(sum(self.idle_share[enough].tolist()))

    def supply(self, snapshot: Snapshot, rows: Rows) -> Ints:
        """Return int64 (K, 1 + Y): the free units and the blocks of each row."""
        supply = np.zeros((len(rows), 1 + len(self.blocks.devices)), dtype=np.int64)
        np.add.reduce(snapshot.free.take(rows, axis=0), axis=1, out=supply[:, 0])
        whole = np.add.reduce(idle_devices(snapshot, rows), axis=1)
        if whole.max(initial=0) >= self.blocks.fewest:
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
        if whole.max(initial=0) < self.blocks.fewest:
            # Usual in a busy cluster: there is no block to break.
            return np.zeros((len(rows), variants * len(self.blocks.devices)), dtype=np.int8)
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
        sums, blocks = totals.sum(axis=0), self.blocks
        units = np.maximum(blocks.units * sums[1:], self.largest)
        price = np.minimum(blocks.share * float(sums[0]) / units, DEAREST)
        for index in np.flatnonzero(blocks.alone):
            come = blocks.share[index] * float(sums[0]) / blocks.units[index]
            price[index] = MISSED * missed(come, float(sums[1 + index]))
        # Whole numbers below 2**53: the product is exact in any order of summing.
        exact = np.rint(price * FINE * (blocks.units / self.largest))
        if not len(exact):
            return np.zeros((1, len(amounts)))
        cost: Floats = amounts.reshape(-1, len(exact)).astype(np.float64) @ exact / FINE
        return cost.reshape(len(amounts), -1).T

    def _blocks(self, group: npt.NDArray[np.int32], whole: Ints, cpu: Ints, memory: Ints) -> Ints:
        """Return int64 (..., K, Y): the blocks of K rows. group: int32 (K,). whole: int64 (..., K),
        idle devices. cpu, memory: int64 (K,), free.
        """
        kinds = self.blocks
        room = cpu[:, None] // kinds.cpu
        np.minimum(room, memory[:, None] // kinds.memory, out=room)
        blocks: Ints = np.minimum(whole[..., None] // kinds.devices, room)
        return np.maximum(blocks, 0) * self.accepted.take(group, axis=0)


def missed(come: float, idle: float) -> float:
    """Return the probability that one idle card less means one pod less.

    come: the expected number of pods, Poisson, approximated by the normal distribution.
    """
    return 0.5 * math.erfc((idle - come) / math.sqrt(2 * max(come, 1.0)))


class ScarceGoods:
    """The scarce goods for pods with these shares of GPU, for any nodes."""

    def __init__(self, shares: Shares) -> None:
        self._shares = shares
        self._classes = [cls for cls, _ in shares]
        self._several = np.flatnonzero([cls.devices > 1 for cls in self._classes])
        self._several_share = np.array([share for _, share in shares])[self._several]
        units = np.array([cls.units for cls in self._classes], dtype=np.int64)
        self._several_units = units[self._several]
        # For the last size of card.
        self._blocks: tuple[int, Blocks] | None = None

    def __call__(self, snapshot: Snapshot) -> Scarcity:
        """Return the scarce goods among the snapshot's nodes."""
        # Nodes of a group are equal, so one represents all.
        groups = max(len(snapshot.group_rows.nodes), 1)
        largest_of_group = snapshot.group_rows.largest(snapshot.capacity)
        filled = np.flatnonzero(largest_of_group)
        rows, largest = snapshot.group_rows.row[filled], int(largest_of_group.max(initial=0))
        units_of_node = np.zeros(groups, dtype=np.int64)
        units_of_node[filled] = snapshot.capacity[rows].sum(axis=1)
        fits = np.zeros((len(self._classes), groups), dtype=bool)
        fits[:, filled] = _fits_empty(snapshot, rows, self._classes)
        needs: dict[bytes, float] = {}
        number_of_groups = fits.sum(axis=1)
        fits_some = (number_of_groups > 0) & (number_of_groups < len(filled))
        for at in np.flatnonzero(fits_some).tolist():
            key = fits[at].tobytes()
            needs[key] = needs.get(key, 0.0) + self._shares[at][1]
        per_unit = np.zeros(groups)
        per_unit[filled] = 1 / max(largest, 1)
        per_unit[filled[snapshot.cpu_capacity[rows] < 0]] = 0
        last = self._blocks
        if last is None or last[0] != largest:
            last = self._blocks = largest, Blocks.of(self._shares, largest)
        accepted = np.zeros((groups, len(last[1].classes)), dtype=np.int64)
        for column, cls in enumerate(last[1].classes):
            accepted[filled, column] = _accepts(snapshot, rows, cls)
        return Scarcity(
            needs=np.array(list(needs.values())),
            needed=np.array([np.frombuffer(key, bool) for key in needs]).reshape(-1, groups),
            blocks=last[1],
            accepted=accepted,
            largest=max(largest, 1),
            per_unit=per_unit,
            # A pod that asks for shares of devices needs no idle devices.
            idle_needed=fits[self._several] & (2 * self._several_units[:, None] > largest_of_group),
            idle_share=self._several_share,
            units_of_node=units_of_node,
        )


def _commonest(shares: Iterable[tuple[PodClass, float]]) -> list[tuple[PodClass, float]]:
    """Return the most common classes, at most _MAX_BLOCKS, without rare ones."""
    common = [(cls, share) for cls, share in shares if share > _RARE]
    return sorted(common, key=lambda item: (-item[1], item[0]))[:_MAX_BLOCKS]


def _alone(largest: int, shares: Shares) -> list[tuple[PodClass, float]]:
    """Return the pods of one device that need an idle card, as classes without CPU and memory.

    largest: units of the largest card.

    CPU is omitted because otherwise a pod that needs a card would pay for all other idle cards on
    the node, on any node.
    """
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
