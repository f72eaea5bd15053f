"""The phases of a pod in the books, and what is known of it before the watch shows it on a node.

Values only: each phase of a binding of ours has a class, with the fields that it can have. How a
pod comes from one phase to another: ledger/phases.py.

Tested in `tests/unit/ledger/test_ledger.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Any, ClassVar

from gpushare.core.model import Cover, PodRef, Request
from gpushare.core.selectors import NO_DEMANDS, Demands


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


@dataclass(frozen=True, slots=True)
class Waiting:
    """A pod without a node, as the watch shows it. created: seconds since the epoch, 0 if unknown.

    gated: no extender is called for it; crowded: there is no room for our annotations; as
    `ObservedPod` says. counted: it counts among the pods that come: it has been shown once while it
    was not gated. priority: the number of its PriorityClass. demands, served: as there.
    """

    ref: PodRef
    request: Request
    created: float
    gated: bool
    crowded: bool = False
    counted: bool = True
    priority: int = 0
    demands: Demands = NO_DEMANDS
    served: bool = True
    phase: ClassVar[Phase] = Phase.UNCHARGED

    @property
    def uid(self) -> str:
        """Its identity."""
        return self.ref.uid


@dataclass(frozen=True, slots=True)
class _Assumed:
    """A binding of ours that no watch has shown yet; each phase of it has a class.

    token: a new one whenever an earlier read must not settle it. node, sent: where its Bindings
    were sent, and the devices in them; stamps: their assume times. since: when it came to its
    phase, seconds of a monotonic clock. due: its pod has to be read: no answer came, or a list
    came. waiting: the pod as the watch shows it, if it shows it without a node.
    """

    token: int
    node: str
    sent: Cover
    stamps: frozenset[str]
    since: float
    due: bool = False
    waiting: Waiting | None = None


@dataclass(frozen=True, slots=True)
class InFlight(_Assumed):
    """Its first Binding is under way: nothing but the answer tells what becomes of it."""

    phase: ClassVar[Phase] = Phase.IN_FLIGHT


@dataclass(frozen=True, slots=True)
class _Outlasted(_Assumed):
    """What a binding can come to once it is in doubt, or has landed.

    unbound: the watch has shown it bound, and a list then without a node. lost: it had a node and
    reads without one, and the alarm has been raised.
    """

    unbound: bool = False
    lost: bool = False


@dataclass(frozen=True, slots=True)
class InDoubt(_Outlasted):
    """No answer came, or a list shows without a node what the watch has shown on one."""

    phase: ClassVar[Phase] = Phase.IN_DOUBT


@dataclass(frozen=True, slots=True)
class Resent(_Outlasted):
    """It is in doubt, and the same Binding is under way once more."""

    phase: ClassVar[Phase] = Phase.RESENT


@dataclass(frozen=True, slots=True)
class Landed(_Outlasted):
    """The API server took a Binding of it, or a read has shown it bound.

    sure: the Binding that landed is one of these.
    """

    sure: bool = False
    phase: ClassVar[Phase] = Phase.LANDED


Assumption = InFlight | InDoubt | Resent | Landed

_CLASSES: Mapping[Phase, type[InDoubt | Resent | Landed]] = {
    each.phase: each for each in (InDoubt, Resent, Landed)
}
# Looked up once: each bind comes by here, with the ledger's lock held.
_FIELDS: Mapping[type, frozenset[str]] = {
    cls: frozenset(each.name for each in fields(cls)) for cls in (InFlight, *_CLASSES.values())
}


def in_phase(
    phase: Phase,
    assumption: Assumption,
    **changes: Any,  # noqa: ANN401 -- a field of that phase each
) -> Assumption:
    """Return the assumption in this phase, with what that phase keeps of it, and the changes."""
    cls = _CLASSES[phase]
    if isinstance(assumption, cls):
        return replace(assumption, **changes)
    common = _FIELDS[cls] & _FIELDS[type(assumption)]
    return cls(**{name: getattr(assumption, name) for name in common} | changes)
