"""What is said of a pod: why it does not fit, what would help, how good the place is that it has.

Values only; `core/explain.py` computes them. "Now" is the moment of the snapshot it looked at.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpushare.core.entry import Entry
from gpushare.core.model import Reason, Request, Shares


@dataclass(frozen=True, slots=True)
class FreeDevice:
    """A device and the units that can be given out of it now."""

    node: str
    device: int
    units: int


@dataclass(frozen=True, slots=True)
class Remedy:
    """What would make a request fit on one node; without any part of it, it does not fit.

    ends: pods that have to end. opens: indices of closed devices that have to return. serves: pods
    that their device plug-in has to serve first. lacks: "cpu" or "memory" where the host would
    still have too little of it, as far as that is known.
    """

    node: str
    ends: tuple[Entry, ...] = ()
    opens: tuple[int, ...] = ()
    serves: tuple[Entry, ...] = ()
    lacks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Explanation:
    """How a request stands on some nodes.

    fit: the nodes that take it now. reasons: how many of the others each reason holds on. unknown:
    how many the ledger does not have. other_models: how many more are of a GPU model that the pod
    does not accept; kube-scheduler asks about none of them. largest: the device with most free
    memory; None where all are full. fits_now: the most units on each device with which it would
    fit now on as many devices, 0 for none. most_units, most_devices: the same on empty nodes with
    all their devices healthy, and the most devices with as many units on each. most_alone: the
    units of the largest device. remedies: each by itself is enough; () where the pod fits now, or
    never.
    """

    request: Request
    fit: tuple[str, ...] = ()
    reasons: Mapping[Reason, int] = field(default_factory=dict)
    unknown: int = 0
    other_models: int = 0
    largest: FreeDevice | None = None
    fits_now: int = 0
    most_units: int = 0
    most_devices: int = 0
    most_alone: int = 0
    remedies: tuple[Remedy, ...] = ()

    @property
    def nodes(self) -> int:
        """How many nodes this is about."""
        return len(self.fit) + sum(self.reasons.values()) + self.unknown

    @property
    def never(self) -> bool:
        """Whether it fits on no node even if every pod ends and every closed device returns."""
        return self.most_devices < self.request.devices


@dataclass(frozen=True, slots=True)
class DeviceScore:
    """A device of the node of a bound pod, as if the pod were not there.

    value: of the policy, higher is better, of no unit; None where the request does not fit.
    """

    device: int
    free: int
    value: float | None


@dataclass(frozen=True, slots=True)
class BoundPodScore:
    """How a policy judges now where a pod is bound.

    score: of its node, from 0 to 10 (0: it would not fit there any more). best: the node that has
    10, "" where none fits. fitting: how many nodes fit. devices: of its node. chosen: the devices
    that the policy would take there now.
    """

    node: str
    shares: Shares | None
    policy: str
    score: int
    best: str
    fitting: int
    devices: tuple[DeviceScore, ...]
    chosen: tuple[int, ...]
