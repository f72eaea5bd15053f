"""What the books hold of a pod that is charged, and of a node.

Values only. How a pod comes from one phase to another: ledger/phases.py.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar, Final, Literal

from gpushare.core.model import Cover, Labels, NodeSpec, PodRef, Request, Shares


class Phase(StrEnum):
    """Where a pod stands in the books. The value is its name in the table of phases."""

    UNCHARGED = "uncharged"
    IN_FLIGHT = "in flight"
    IN_DOUBT = "in doubt"
    RESENT = "in doubt, sent again"
    LANDED = "landed"
    BOUND = "bound"
    CPU_ONLY = "CPU only"
    GONE = "gone"


Assumed = Literal[Phase.IN_FLIGHT, Phase.IN_DOUBT, Phase.RESENT, Phase.LANDED]
"""The phases of a pod that is charged and that no watch has shown bound."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A pod without a node, as the watch shows it. created: seconds since the epoch, 0 if unknown.

    gated: nobody need ask about it as it is.
    """

    ref: PodRef
    request: Request
    created: float
    gated: bool
    phase: ClassVar[Phase] = Phase.UNCHARGED

    @property
    def uid(self) -> str:
        """Its identity."""
        return self.ref.uid


@dataclass(frozen=True, slots=True)
class Assumption:
    """A binding of ours that no watch has shown yet.

    token: a new one whenever an earlier read must not settle it. node, sent: where its Bindings
    were sent, and the devices in them; stamps: their assume times. since: when it came to its
    phase, seconds of a monotonic clock. due: its pod has to be read: no answer came, or a list
    came. sure: the Binding that landed is one of these. unbound: the watch has shown it bound, and
    a list then without a node. lost: it had a node and reads without one, which has been told.
    waiting: the pod as the watch shows it, if it shows it without a node.
    """

    phase: Assumed
    token: int
    node: str
    sent: Cover
    stamps: frozenset[str]
    since: float
    due: bool = False
    sure: bool = False
    unbound: bool = False
    lost: bool = False
    waiting: Waiting | None = None


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
    pairing; one that nobody has seen bound has none of them yet.
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
