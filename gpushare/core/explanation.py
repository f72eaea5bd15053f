"""The explanation of a pod: why it does not fit, what would help, how good its place is.

Values only; `core/explain.py` computes them. "Now" is the moment of the snapshot.

Tested in `tests/unit/core/test_explain.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpushare.core.model import Reason, Request, Shares
from gpushare.core.states.entry import Entry


@dataclass(frozen=True, slots=True)
class FreeDevice:
    """A device and the units that can be given out of it now."""

    node: str
    device: int
    units: int


@dataclass(frozen=True, slots=True)
class Remedy:
    """What would make a request fit on one node; every part of it is needed.

    ends: pods that have to end. opens: indices of closed devices that have to return. serves: pods
    that their device plug-in has to serve first. lacks: resources of which the node would still
    have too little. cures: what keeps kube-scheduler itself from using the node has to go.
    """

    node: str
    ends: tuple[Entry, ...] = ()
    opens: tuple[int, ...] = ()
    serves: tuple[Entry, ...] = ()
    lacks: tuple[str, ...] = ()
    cures: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Explanation:
    """How a request stands on some nodes.

    fit: the nodes that it fits now. reasons: on how many of the others each reason applies.
    unknown: how many nodes the ledger does not have. kept_out: how many more kube-scheduler's own
    filters leave out, by the gravest reason; other_models: how many more have a GPU model that the
    pod does not accept. It does not ask about these. largest: of the nodes that are not left out
    whatever pods end, the device with the most free memory; None if all are full. fits_now: the
    most units on each device with which a request of as many devices would fit now, 0 for none.
    most_units: the same on empty nodes with all devices healthy. most_devices: the most devices
    with as many units on each, there too. most_alone: the units of the largest device. split: on
    how many devices the same total would fit where it never fits as it is, 0 for none.
    remedies: each alone is enough; () if the pod fits now, or never.
    """

    request: Request
    fit: tuple[str, ...] = ()
    reasons: Mapping[Reason, int] = field(default_factory=dict)
    unknown: int = 0
    kept_out: Mapping[str, int] = field(default_factory=dict)
    other_models: int = 0
    largest: FreeDevice | None = None
    fits_now: int = 0
    most_units: int = 0
    most_devices: int = 0
    most_alone: int = 0
    split: int = 0
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

    value: of the policy, higher is better, without a unit; None if the request does not fit.
    """

    device: int
    free: int
    value: float | None


@dataclass(frozen=True, slots=True)
class BoundPodScore:
    """How a policy scores now the place of a bound pod.

    fits: whether it would fit there still. score: of its node, from 0 to 10: the worst node that
    fits has 0. best: the node that scores 10, "" if none fits. fitting: how many nodes fit.
    devices: those of its node. chosen: the devices that the policy would take there now.
    """

    node: str
    shares: Shares | None
    policy: str
    score: int
    best: str
    fitting: int
    devices: tuple[DeviceScore, ...]
    chosen: tuple[int, ...]
    fits: bool = True
