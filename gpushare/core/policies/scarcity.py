"""What is scarce in the whole cluster: blocks, and groups of nodes that some pods must have.

Two prices of the moment, both the share of GPU asked by those who need a good times all free GPU
over what is free of the good:

- A *group* is nodes alike when empty. Pods that fit the same groups (by model, devices, CPU and
  memory of the empty node) need those; each group bears the prices of all that need it. So pods
  that fit anywhere stay away from groups that others depend on, and those drain.
- A *block* is room on one node for a pod of several whole devices, with the CPU and memory that it
  asks. A placement pays for the blocks that it breaks, be it with devices, CPU or memory.

Amounts are whole numbers (millionths of devices, numbers of blocks; prices to a millionth), so that
sums are the same in whatever order they are made.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpushare.core.model import Request
from gpushare.core.policies.ground import idle, tightest
from gpushare.core.policy import Stakes
from gpushare.core.snapshot import Bools, Floats, Ints, Rows, Snapshot
from gpushare.core.workload import PodClass

DEAREST = 50.0
MICRO = 1_000_000
_FINE = 2**20
_RARE, _MOST_BLOCKS = 2e-4, 64

Shares = Sequence[tuple[PodClass, float]]
"""Classes with the share of all GPU asked that they ask for."""


@dataclass(frozen=True, slots=True, eq=False)
class Scarcity:
    """What is scarce among the nodes of one layout.

    needs: float64 (T,) the share of GPU asked by the pods that need a set of groups, needed: bool
    (T, groups) the sets. Blocks: share, devices, cpu, memory (Y,), and accepted: bool (Y, N).
    """

    needs: Floats
    needed: Bools
    share: Floats
    devices: Ints
    cpu: Ints
    memory: Ints
    accepted: Bools
    micro: Ints

    def offers(self, snapshot: Snapshot, rows: Rows) -> Ints:
        """int64 (K, 1 + Y): the free GPU of a row in millionths of devices, and its blocks."""
        free = (snapshot.free[rows] * MICRO) // self.micro[rows]
        blocks = self._blocks(snapshot, rows, idle(snapshot, rows).sum(axis=1), 0, 0)
        return np.concatenate([free.sum(axis=1, keepdims=True), blocks], axis=1)

    def stakes(self, snapshot: Snapshot, rows: Rows, request: Request) -> Stakes:
        """int8 (K, 2 Y) or (K, Y): the blocks that a placement breaks; for a pod of one device
        first on a device in use, then on an idle one.
        """
        untouched = idle(snapshot, rows)
        whole = untouched.sum(axis=1)
        before = self._blocks(snapshot, rows, whole, 0, 0)
        taken: list[Ints | int] = [0]
        if request.devices == 1:
            taken = [0, 1]
        elif request.devices:
            chosen = tightest(snapshot.free[rows], request)
            taken = [(chosen & untouched).sum(axis=1)]
        broken = [
            before - self._blocks(snapshot, rows, whole - count, request.cpu, request.memory)
            for count in taken
        ]
        return np.concatenate(broken, axis=1).astype(np.int8)

    def pressure(self, snapshot: Snapshot, rows: Rows, goods: Ints) -> Floats:
        """float64 (K,): the price of the group that each row belongs to."""
        free = goods[:, 0]
        every = float(free.sum()) / MICRO
        of_needed = np.maximum((self.needed * free).sum(axis=1) / MICRO, 1)
        price = (self.needed * (self.needs * every / of_needed)[:, None]).sum(axis=0)
        by_row: Floats = np.minimum(price, DEAREST)[snapshot.group[rows]]
        return by_row

    def broken(self, stakes: Stakes, goods: Ints) -> Floats:
        """float64 (K, 1 or 2): the price of the blocks that a placement breaks."""
        sums = goods.sum(axis=0)
        every, blocks = float(sums[0]) / MICRO, sums[1:]
        price = np.minimum(self.share * every / np.maximum(self.devices * blocks, 1), DEAREST)
        # Whole numbers below 2**53: the product is exact, however it is summed.
        exact = np.rint(price * _FINE) * self.devices
        variants = stakes.reshape(len(stakes), -1, len(self.share)) if len(self.share) else None
        if variants is None:
            return np.zeros((len(stakes), 1))
        cost: Floats = variants @ exact / _FINE
        return cost

    def _blocks(self, snapshot: Snapshot, rows: Rows, whole: Ints, cpu: int, memory: int) -> Ints:
        """int64 (K, Y): the blocks of each row with so many idle devices, less CPU and memory."""
        room = np.minimum(
            whole[:, None] // self.devices,
            (snapshot.cpu_free[rows] - cpu)[:, None] // self.cpu,
        )
        np.minimum(room, (snapshot.memory_free[rows] - memory)[:, None] // self.memory, out=room)
        return np.where(self.accepted[:, rows].T, np.maximum(room, 0), 0)


def scarcity(snapshot: Snapshot, shares: Shares) -> Scarcity:
    """What is scarce for pods with these shares of the GPU, among the nodes of the snapshot."""
    fits = np.array([_fits_empty(snapshot, cls) for cls, _ in shares]).reshape(
        len(shares), len(snapshot.names)
    )
    groups = int(snapshot.group.max(initial=0)) + 1
    needs: dict[bytes, float] = {}
    for line, (_, share) in zip(fits, shares, strict=True):
        # Nodes of a group are alike, so one speaks for all.
        members = np.zeros(groups, dtype=bool)
        members[snapshot.group[line]] = True
        if 0 < members.sum() < len(set(snapshot.group[_there(snapshot)].tolist())):
            needs[members.tobytes()] = needs.get(members.tobytes(), 0.0) + share
    blocks = _block_classes(shares)
    accepted = [_accepts(snapshot, cls) for cls, _ in blocks]
    return Scarcity(
        needs=np.array(list(needs.values())),
        needed=np.array([np.frombuffer(key, bool) for key in needs]).reshape(len(needs), groups),
        share=np.array([share for _, share in blocks]),
        devices=np.array([cls.devices for cls, _ in blocks], dtype=np.int64),
        cpu=np.array([max(cls.cpu, 1) for cls, _ in blocks], dtype=np.int64),
        memory=np.array([max(cls.memory, 1) for cls, _ in blocks], dtype=np.int64),
        accepted=np.array(accepted, dtype=bool).reshape(len(blocks), len(snapshot.names)),
        micro=np.maximum(snapshot.capacity, 1),
    )


def _block_classes(shares: Shares) -> list[tuple[PodClass, float]]:
    several = [(cls, share) for cls, share in shares if cls.devices > 1 and share > _RARE]
    return sorted(several, key=lambda item: (-item[1], item[0]))[:_MOST_BLOCKS]


def _there(snapshot: Snapshot) -> Bools:
    """bool (N,): rows that hold a node with devices."""
    there: Bools = snapshot.capacity.max(axis=1, initial=0) > 0
    return there


def _accepts(snapshot: Snapshot, cls: PodClass) -> Bools:
    """bool (N,): nodes of a model that the class accepts, with devices large enough."""
    large: Bools = snapshot.capacity.max(axis=1, initial=0) >= cls.units
    if not cls.models:
        return large
    known = [model in cls.models for model in snapshot.models]
    accepted: Bools = large & np.array([*known, False])[snapshot.model.max(axis=1, initial=-1)]
    return accepted


def _fits_empty(snapshot: Snapshot, cls: PodClass) -> Bools:
    """bool (N,): nodes on which a pod of the class fits while nothing else runs there."""
    enough = (snapshot.capacity >= max(cls.units, 1)).sum(axis=1) >= cls.devices
    for capacity, asked in (
        (snapshot.cpu_capacity, cls.cpu),
        (snapshot.memory_capacity, cls.memory),
    ):
        enough &= (capacity < 0) | (capacity >= asked)
    fits: Bools = enough & _accepts(snapshot, cls) & _there(snapshot)
    return fits
