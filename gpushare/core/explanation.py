"""The explanation of a pod: why it does not fit, what would help, how good its place is.

Values only; `core/explain.py` computes them. "Now" is the moment of the snapshot.

Tested in `tests/unit/core/test_explain.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpushare.core.model import Reason, Request, Shares
from gpushare.core.states.entry import Entry

TOGETHER = "room for the pod's largest claim, not for all of them"
"""The reason of a node that takes the largest claim of a pod, and not its other ones besides."""


@dataclass(frozen=True, slots=True)
class FreeDevice:
    """A device and the units that can be given out of it now."""

    node: str
    device: int
    units: int


@dataclass(frozen=True, slots=True)
class Remedy:
    """What would make a request fit on one node; every part of it is needed."""

    node: str
    ends: tuple[Entry, ...] = ()
    """Pods that have to end."""
    opens: tuple[int, ...] = ()
    """Indices of closed devices that have to return."""
    serves: tuple[Entry, ...] = ()
    """Pods that their device plug-in has to serve first."""
    lacks: tuple[str, ...] = ()
    """Resources of which the node would still have too little."""
    cures: tuple[str, ...] = ()
    """What keeps kube-scheduler itself from using the node has to go."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """How a request stands on some nodes.

    Those *in question* are the nodes that are not left out whatever pods end.
    """

    request: Request
    fit: tuple[str, ...] = ()
    """The nodes that it fits now."""
    reasons: Mapping[Reason, int] = field(default_factory=dict)
    """On how many of the others each reason applies."""
    unknown: int = 0
    """How many nodes the ledger does not have."""
    kept_out: Mapping[str, int] = field(default_factory=dict)
    """How many more kube-scheduler's own filters leave out, by the gravest reason. It does not ask
    about these."""
    other_models: int = 0
    """How many more have a GPU model that the pod does not accept. It does not ask about these."""
    apart: int = 0
    """How many have room for the largest claim of a pod, which this is about, and not for all of
    its claims."""
    largest: FreeDevice | None = None
    """Of the nodes in question, the device with the most free memory; None if all are full."""
    fits_now: int = 0
    """The most units on each device with which a request of as many devices, with the same cores,
    would fit now, 0 for none."""
    parts_now: tuple[int, ...] = ()
    """Of a split request, as much of each part as one node has now on as many devices, with the
    same cores: the node that lacks least. () if the request is not split, or no node has them."""
    most_units: int = 0
    """The same as `fits_now` on empty nodes with all devices healthy."""
    most_parts: tuple[int, ...] = ()
    """The same as `parts_now` there."""
    most_devices: int = 0
    """The most devices with as many units on each, there too; of a split request, the most of its
    parts that have a device each."""
    most_alone: int = 0
    """The units of the largest device."""
    split: int = 0
    """On how many devices the same total would fit where it never fits as it is, 0 for none."""
    remedies: tuple[Remedy, ...] = ()
    """Each alone is enough; () if the pod fits now, or never."""
    with_memory: int = 0
    """Open devices of the nodes in question with room for the memory, of a split request for its
    least part, whatever cores they have."""
    with_cores: int = 0
    """The same with room for the cores, whatever memory they have."""
    with_both: int = 0
    """The same with room for both."""
    most_cores: int = 0
    """The most percent free on a device with room for the memory."""
    models: tuple[str, ...] = ()
    """The models that there are on the nodes in question, sorted, if the request wants certain
    cards."""
    rounded: bool = False
    """Devices round up what is asked for: units are then those that may be asked for, but those of
    the largest device, which are there."""

    @property
    def nodes(self) -> int:
        """How many nodes this is about."""
        return len(self.fit) + sum(self.reasons.values()) + self.unknown + self.apart

    @property
    def never(self) -> bool:
        """Whether it fits on no node even if every pod ends and every closed device returns."""
        return self.most_devices < self.request.devices


@dataclass(frozen=True, slots=True)
class DeviceScore:
    """A device of the node of a bound pod, as if the pod were not there."""

    device: int
    free: int
    value: float | None
    """Of the policy, higher is better, without a unit; None if the request does not fit."""


@dataclass(frozen=True, slots=True)
class BoundPodScore:
    """How a policy scores now the place of a bound pod."""

    node: str
    shares: Shares | None
    policy: str
    score: int
    """Of its node, from 0 to 10: the worst node that fits has 0."""
    best: str
    """The node that scores 10, "" if none fits."""
    fitting: int
    """How many nodes fit."""
    devices: tuple[DeviceScore, ...]
    """Those of its node."""
    chosen: tuple[int, ...]
    """The devices that the policy would take there now."""
    fits: bool = True
    """Whether it would fit there still."""
