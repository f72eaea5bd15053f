"""What the books hold of a pod that is charged, and of a node.

Values only. What is known of a pod before the watch shows it on a node: assumption.py.

Tested in `tests/unit/ledger/test_ledger.py`.
"""

from dataclasses import dataclass, field
from typing import Final

from gpushare.core.assumption import Assumption, Phase
from gpushare.core.model import Cover, Labels, NodeSpec, PodRef, Request, Shares

MOST_GRACE = 600.0
"""Seconds that a pod that is being deleted may still have, to count as one that ends by itself."""

MOST_LATE = 60.0
"""Seconds that it may be overdue: the kubelet kills its containers and tells the API server."""

_NO_COVER = Cover()
# Python 3.11 takes as long to look a member up as for the rest of a property.
_BOUND: Final = Phase.BOUND


@dataclass(frozen=True, slots=True)
class Entry:
    """One charge in the ledger.

    placement: what it charges, by the indices that the node has now; () nothing of what is there,
    None: unplaced, charged on every device of the node. cover: what that follows from. assumption:
    our binding of it; None once the watch has shown it bound. assigned: its device plug-in has
    served it. priority, started, terminating, labels, running: as observed, for preemption and
    pairing; one that nobody has seen bound has none of them yet. ends_by: when it must be gone.
    """

    ref: PodRef
    request: Request
    node: str
    placement: Shares | None
    assumption: Assumption | None = None
    assigned: bool = False
    priority: int = 0
    started: float = 0.0
    terminating: bool = False
    labels: Labels = ()
    running: bool = False
    cover: Cover = _NO_COVER
    ends_by: float = 0.0

    @property
    def phase(self) -> Phase:
        """Where it stands."""
        return _BOUND if self.assumption is None else self.assumption.phase

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
    def pins(self) -> bool:
        """Whether it holds back equal pods, where pairing applies (see pairing.py).

        So does one whose cards have moved: its device plug-in still goes by what is written.
        """
        served = self.running or (self.assigned and self.started > 0)
        return self.cover.written is not None and not served

    @property
    def charged(self) -> tuple[int, int]:
        """Return (least, most) units that it is charged with; they differ only by a mistake.

        Counted as written: of a pod that may be on one of several devices each is charged, and one
        whose card has gone charges nothing that is there.
        """
        asked = self.request.total
        if self.cover.written is None:
            return asked, asked
        return min(sum([units for _, units in self.cover.written]), asked), asked


@dataclass(frozen=True, slots=True)
class NodeBooks:
    """What the ledger says of one node at one moment.

    spec: its shape. used: units per device. entries: its charges. cpu_free (milli), memory_free
    (bytes): what requests leave, negative where they exceed it, None where unknown.
    """

    spec: NodeSpec
    used: tuple[int, ...]
    entries: tuple[Entry, ...] = field(default=())
    cpu_free: int | None = None
    memory_free: int | None = None
