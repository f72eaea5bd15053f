"""The states of a pod in the books.

Values only. The next record after an event: records.py, by the table in phases.py.

Tested in `tests/unit/ledger/test_ledger.py`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from gpushare.core.amounts import COMPUTE, PERCENT_AMOUNTS, Percents
from gpushare.core.model import (
    ANY_SHARERS,
    Charge,
    Cover,
    Labels,
    NodeSpec,
    PodRef,
    Request,
    Shares,
)
from gpushare.core.selectors import NO_DEMANDS, Demands

MOST_GRACE = 600.0
"""Seconds that a pod that is being deleted may still have, to count as one that ends by itself."""

MOST_LATE = 60.0
"""Seconds that it may be overdue: the kubelet kills its containers and tells the API server."""


class Phase(StrEnum):
    """Where a pod stands in the books. The value is its name in the table of phases."""

    UNCHARGED = "uncharged"
    AT_GATE = "at the gate"
    IN_FLIGHT = "in flight"
    IN_DOUBT = "in doubt"
    RESENT = "in doubt, sent again"
    LANDED = "landed"
    BOUND = "bound"
    CPU_ONLY = "CPU only"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class Waiting:
    """A pod without a node, as the watch shows it."""

    ref: PodRef
    request: Request
    created: float
    """Seconds since the epoch, 0 if unknown."""
    gated: bool
    """No extender is called for it, as `ObservedPod` says."""
    crowded: bool = False
    """There is no room for our annotations."""
    counted: bool = True
    """It counts among the pods that come: it has been shown once while it was not gated."""
    priority: int = 0
    """The number of its PriorityClass."""
    demands: Demands = NO_DEMANDS
    """The pod's request of the node besides devices."""
    served: bool = True
    """As `ObservedPod.served`."""
    phase: ClassVar[Phase] = Phase.UNCHARGED
    assumption: ClassVar[None] = None
    charge: ClassVar[None] = None

    @property
    def uid(self) -> str:
        """Its identity."""
        return self.ref.uid


@dataclass(frozen=True, slots=True)
class Assumption:
    """A bind of ours that no watch has shown yet; at the gate nothing has been sent."""

    token: int
    """A new one whenever an earlier read must not settle it."""
    node: str
    """Where its Bindings were sent."""
    sent: Cover
    """The devices in them."""
    stamps: frozenset[str]
    """Their assume times."""
    since: float
    """When the entry came to its phase, in seconds of a monotonic clock."""
    due: bool = False
    """Its pod has to be read: no answer came, or a list came."""
    waiting: Waiting | None = None
    """The pod as the watch shows it, if it shows it without a node."""
    unbound: bool = False
    """The watch has shown it bound, and a list then without a node."""
    lost: bool = False
    """It had a node and reads without one, and the alarm has been raised."""
    sure: bool = False
    """It has landed, and the Binding that did is one of these."""


_NO_COVER = Cover()
_COMPUTE = PERCENT_AMOUNTS.index(COMPUTE)


@dataclass(frozen=True, slots=True)
class Entry:
    """One charge in the ledger.

    The observed fields keep their defaults until the watch, a list or a read shows it on a node.
    """

    ref: PodRef
    request: Request
    node: str
    placement: Shares | None
    """The charge, by the indices that the node has now; () for nothing on present devices, None:
    unplaced, charged on every device of the node."""
    assumption: Assumption | None = None
    """Our binding of it; None once the watch has shown it bound."""
    assigned: bool = False
    """Its device plug-in has served it."""
    priority: int = 0
    """As observed, for preemption."""
    started: float = 0.0
    """As observed: when it began to run, in seconds since the epoch."""
    terminating: bool = False
    """As observed: it is being deleted."""
    labels: Labels = ()
    """As observed, for disruption budgets."""
    running: bool = False
    """As observed: its containers run."""
    cover: Cover = _NO_COVER
    """The basis of `placement`."""
    ends_by: float = 0.0
    """When it must be gone, in seconds since the epoch; 0 if nothing ends it."""
    phase: Phase = Phase.BOUND
    """With an assumption one of `ASSUMED` in phases.py, without one `BOUND`."""

    @property
    def known_bound(self) -> bool:
        """Whether the watch, a read or the answer to a Binding says that it is bound."""
        return self.phase in (Phase.BOUND, Phase.LANDED)

    @property
    def in_doubt(self) -> bool:
        """Whether no answer to a Binding of it came."""
        return self.phase in (Phase.IN_DOUBT, Phase.RESENT)

    def ends_soon(self, now: float) -> bool:
        """Return whether it is being deleted and about to be gone; now: seconds since the epoch.

        Whoever creates a pod chooses its grace, and one whose node is dead, or that a finalizer
        holds, outlives it.
        """
        return self.terminating and -MOST_LATE <= self.ends_by - now <= MOST_GRACE

    @property
    def charge(self) -> Charge:
        """The amounts that the pod takes from its node, and the devices where it holds equals back.

        A pod whose cards have moved holds equals back too: its device plug-in still goes by the
        written indices. See pairing.py for when one does not any more.
        """
        shares, pinned = self.cover.written, None
        if shares is not None and not self.running and not (self.assigned and self.started > 0):
            pinned = tuple(device for device, _ in shares)
        return Charge(self.node, self.request, self.placement, pinned)

    @property
    def percents(self) -> tuple[Percents, ...]:
        """The percents of each device in `placement`."""
        return self.request.percents_on(self.placement or ())

    def charges(self, capacity: Sequence[int]) -> Shares:
        """Return the units charged on each device of `placement`. capacity: of all devices."""
        return self.request.charges_on(self.placement or (), capacity)

    def units(self, capacity: Sequence[int]) -> int:
        """Return the units charged on all devices; of an unplaced pod those of one device, the most
        if devices differ.
        """
        if self.placement is None:
            return max(self.request.charges_anywhere(capacity), default=self.request.total)
        return sum(units for _, units in self.charges(capacity)) or self.request.total

    @property
    def largest_percents(self) -> Percents:
        """For each amount the largest percent that the entry charges on one device."""
        if not self.placement:
            return self.request.all_percents
        return tuple(map(max, zip(*self.percents, strict=True)))

    @property
    def charged(self) -> tuple[int, int]:
        """Return (least, most) units that it is charged with; they differ only by a mistake.

        Counted as written: of a pod that may be on one of several devices each is charged, and a
        pod with a missing card charges nothing on the present devices.
        """
        total = self.request.total
        if self.cover.written is None:
            return total, total
        return min(sum([units for _, units in self.cover.written]), total), total


@dataclass(frozen=True, slots=True)
class NodeBooks:
    """The ledger's view of one node at one moment."""

    spec: NodeSpec
    used: tuple[int, ...]
    """Units per device."""
    entries: tuple[Entry, ...] = ()
    """Its charges."""
    cpu_free: int | None = None
    """Milli-cores that requests leave, negative where they exceed it, None where unknown."""
    memory_free: int | None = None
    """The same in bytes."""
    percents_used: tuple[tuple[int, ...], ...] = ()
    """For each of `PERCENT_AMOUNTS`, the percent in use of each device; () where no pod has any."""
    pods: tuple[int, ...] = ()
    """How many pods hold a part of each device; () if unknown."""

    def has_place(self, device: int) -> bool:
        """Return whether the device has fewer pods than the most sharers of the node."""
        return self.spec.max_sharers == ANY_SHARERS or self.pods[device] < self.spec.max_sharers

    @property
    def cores_used(self) -> tuple[int, ...]:
        """Percent of the compute in use of each device; () where no pod has any."""
        return self.percents_used[_COMPUTE] if self.percents_used else ()


def memory_limits(
    entries: Iterable[Entry], used: Sequence[int], capacity: Sequence[int]
) -> tuple[int, ...]:
    """Return the most units that the pods of each device may use together; () if no pod of the node
    may use more than the charge. used: the charges of each device.
    """
    above = [entry for entry in entries if entry.request.memory_limit]
    sums = list(used) if above else []
    for entry in above:
        request, shares = entry.request, entry.placement
        if shares is None:
            shares = tuple((device, request.total) for device in range(len(capacity)))
        charges, limits = request.charges_on(shares, capacity), request.limits_on(shares, capacity)
        for (device, charged), (_, limit) in zip(charges, limits, strict=True):
            if limit > charged:  # else the node may have lost the device
                sums[device] += limit - charged
    return tuple(sums)
