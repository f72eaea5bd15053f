"""The values that all modules share: pods, requests, placements, nodes, reasons.

Imports the standard library, the demands of pods and the table of amounts. All values are frozen,
so they can be cached and shared. Memory is a whole number of *units*. A unit (GiB, MiB, a chunk) is
one setting of the cluster, and only the device plug-in and the command line convert units. *Cores*
are the compute of a device, in percent of one device; amounts.py has a row for memory, for compute
and for whatever else devices have. CPU is in thousandths of a core (milli), host memory in bytes.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple

from gpushare.core.amounts import (
    COMPUTE,
    MEMORY,
    NO_PERCENTS,
    PERCENT_AMOUNTS,
    Percents,
    charged_units,
    of_one_device,
    usable_units,
)
from gpushare.core.selectors import NO_DEMANDS, Demands

MAX_UNITS = 2**31 - 1
"""Largest number of units accepted anywhere: sums over a node then fit int64 with room to spare."""

HOST_BOUND = 2**48
"""CPU and host memory of one pod or node count at most this much, so that sums stay in int64."""

ALL_CORES = COMPUTE.whole
"""The compute of one device, in percent."""

Shares = tuple[tuple[int, int], ...]
"""(device index, units) of each device a pod holds, by rising index, no index twice."""

Pinned = tuple[frozenset[int], tuple[int, ...]]
"""(sizes, devices) of a pod that holds back equal pods (see pairing)."""

Given = tuple[tuple[str, int], ...]
"""(uuid, units) of cards that a pod has in addition to the cards in the Binding."""


class Cards(NamedTuple):
    """The requested cards of a pod, on any node; an empty field is no condition."""

    models: tuple[str, ...] = ()
    """Parts of model names, in lower case: the card's model name contains at least one."""
    not_models: tuple[str, ...] = ()
    """Parts of model names that the card's model name must not contain."""
    uuids: tuple[str, ...] = ()
    """The card is one of these."""
    not_uuids: tuple[str, ...] = ()
    """The card is none of these."""

    def accepts_model(self, model: str) -> bool:
        """Return whether the model of a card meets the conditions on models."""
        model = model.lower()
        is_wanted = not self.models or any(part in model for part in self.models)
        return is_wanted and not any(part in model for part in self.not_models)

    def accepted(self, spec: "NodeSpec") -> tuple[bool, ...]:
        """Return, for each device of the node, whether the device meets all conditions."""
        models = spec.models or ("",) * len(spec.capacity)
        uuids = spec.uuids or ("",) * len(spec.capacity)
        return tuple(
            self.accepts_model(model)
            and (not self.uuids or uuid in self.uuids)
            and uuid not in self.not_uuids
            for model, uuid in zip(models, uuids, strict=True)
        )


ANY_CARD = Cards()


class Apart(NamedTuple):
    """The wish of a pod for devices without other pods of the pod's workload."""

    workload: str
    """The key of the pod's group, or else of the pod's controller."""
    required: bool
    """Whether other devices are closed for the pod; False: other devices come last."""


ANY_NEIGHBOURS, FEW_NEIGHBOURS = 0, 1
"""Limits of neighbours: no limit; the limit of a pod that asks for few (core/neighbours.py)."""

ANY_SHARERS = 2**15 - 1
"""No limit of the pods that hold a part of one device: a number of pods that no device has."""

_COMPUTE = PERCENT_AMOUNTS.index(COMPUTE)

Kind = tuple[int, int, int, int, tuple[str, ...], Percents, Cards, tuple[int, ...], int | None]
"""Units per device, devices, CPU, memory, accepted models, percents per device, wanted cards, the
split, the limit of neighbours."""

Amounts = Mapping[str, int]
"""Amounts by the name of a resource; CPU in thousandths of a core, memory in bytes."""

Labels = tuple[tuple[str, str], ...]
"""(key, value) of each label of a pod."""


class Reason(Enum):
    """Why a node cannot take a pod.

    The texts reach users through kube-scheduler, which counts nodes by equal text and retries in a
    hot loop when a text changes (queueing hints, on since 1.32): few texts, no amounts, no names.
    The first text is exactly that of the original gpushare extender.
    """

    INSUFFICIENT_MEMORY = MEMORY.reason
    INSUFFICIENT_DEVICES = "Insufficient GPU Memory in enough devices"
    # A member for each other amount: INSUFFICIENT_CORES.
    vars().update({f"INSUFFICIENT_{row.title.upper()}": row.reason for row in PERCENT_AMOUNTS})
    INSUFFICIENT_TOGETHER = "Insufficient GPU Memory and Cores in one device"
    MOST_SHARERS = "GPU Memory is free only on devices with the most pods that the node allows"
    APART = "GPU Memory is free only beside pods of the same workload"
    WAITS_FOR_PLUGIN = "GPU Memory waits until an equal pod has been given its device"
    NO_DEVICE = "no shared GPU"
    NOT_WANTED = "no healthy GPU that the pod's annotations accept"
    TOO_LARGE = "GPU Memory request is larger than any healthy device"
    TOO_MANY_DEVICES = "fewer healthy devices of that size than requested"
    BEING_BOUND = "the pod is being bound to another node"
    PROMISED = "GPU Memory is promised to a pod that is being bound"
    GROUP_TOO_LARGE = "GPU Memory is not enough for all pods of the group at once"
    UNEVEN = "GPU Memory is not a whole multiple of the GPU count, and no inventory says more"
    OTHER_UNIT = "GPU Memory is counted in another unit than the cluster's"
    BROKEN_INVENTORY = "the GPU inventory of the node cannot be read"
    BROKEN_CAPACITY = "the GPU capacity of the node cannot be read"
    BROKEN_SHARERS = "the most sharers of a GPU of the node cannot be read"
    NO_COUNT = "the GPU count of the node is missing"
    GROWN = "the GPU capacity and the GPU count of the node do not agree with what its devices had"

    @property
    def resolvable(self) -> bool:
        """Whether removing other pods may help (kube-scheduler then tries preemption)."""
        return self in _RESOLVABLE


_RESOLVABLE = frozenset(
    {
        Reason.INSUFFICIENT_MEMORY,
        Reason.INSUFFICIENT_DEVICES,
        *(Reason(amount.reason) for amount in PERCENT_AMOUNTS),
        Reason.INSUFFICIENT_TOGETHER,
        Reason.MOST_SHARERS,
        Reason.APART,
        Reason.WAITS_FOR_PLUGIN,
    }
)


@dataclass(frozen=True, slots=True)
class PodRef:
    """A reference to a pod: the uid identifies the pod, namespace and name are for look-ups."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class Request:
    """The request of a pod: devices, host resources, policy and cards."""

    units: int = 0
    """Memory units on *each* device; of a `split` request, the largest part."""
    devices: int = 0
    """How many devices; 0: the pod asks for no GPU."""
    cpu: int = 0
    """Milli-cores."""
    memory: int = 0
    """Bytes."""
    containers: Shares = ()
    """(index in spec.containers, units) of each regular container that asks for GPU memory."""
    policy: str = ""
    """The name of the policy that the pod asks for, or ""."""
    models: tuple[str, ...] = ()
    """The accepted GPU models, sorted; () for any. kube-scheduler enforces them before it calls the
    extender, so the extender refuses no node for its model."""
    inits: tuple[int, ...] = ()
    """Units of each init container and sidecar that asks, in order."""
    resources: tuple[tuple[str, int], ...] = ()
    """(name, amount) of every resource that kube-scheduler counts besides CPU and memory, including
    the managed device resources."""
    percents: Percents = ()
    """Percent of each amount on *each* device, at most the whole; () if the pod asks for none."""
    percent_containers: tuple[Shares, ...] = ()
    """For each of `PERCENT_AMOUNTS`, (index in spec.containers, percent) of each regular container
    that asks for the amount; () if none asks for any."""
    cards: Cards = ANY_CARD
    """The requested cards."""
    split: tuple[int, ...] = ()
    """The units on each device, largest first, if the devices differ; else ()."""
    neighbours: int | None = None
    """The limit of neighbours; None: that of the cluster."""
    apart: Apart | None = None
    """The wish for devices without pods of the same workload; None: no such wish."""
    memory_limit: int = 0
    """The most units that the pod may use over all devices, at least `total`; 0: as charged."""

    @property
    def parts(self) -> tuple[int, ...]:
        """The units on each device, largest first."""
        return self.split or (self.units,) * self.devices

    @property
    def total(self) -> int:
        """Units over all devices: the sum of the pod's limits."""
        return sum(self.split) or self.units * self.devices

    def part(self, units: int) -> "Request":
        """Return the request for one part of so many units on one device."""
        return self.of_parts((units,))

    def of_parts(self, parts: Iterable[int]) -> "Request":
        """Return the request with these parts, each on its own device."""
        sizes = tuple(sorted(parts, reverse=True))
        even = sizes[0] == sizes[-1]
        return replace(self, units=sizes[0], devices=len(sizes), split=() if even else sizes)

    @property
    def cores(self) -> int:
        """Percent of the compute of *each* device, at most ALL_CORES; 0 if the pod asks for none.

        Policies read this.
        """
        return self.percents[_COMPUTE] if self.percents else 0

    @property
    def every_percent(self) -> Percents:
        """The percent of each of `PERCENT_AMOUNTS` on each device, zeros included."""
        return self.percents or NO_PERCENTS

    @property
    def alone(self) -> bool:
        """Whether the pod takes devices that no other pod uses, and shares them with no pod."""
        amounts = zip(PERCENT_AMOUNTS, self.percents, strict=False)
        return any(amount.is_exclusive and percent >= amount.whole for amount, percent in amounts)

    @property
    def all_percents(self) -> Percents:
        """The percents of all devices together, at most the whole of one device for each amount:
        the charge of a device where everything of the pod may be.
        """
        return of_one_device(self._percent_totals)

    def percents_on(self, shares: Shares) -> tuple[Percents, ...]:
        """Return the percents of each device of a placement, in the order of the shares.

        The percents are where the memory is: a device with a third of the pod's units has a third
        of the pod's percents, rounded up. A placement tells only units. So where a container has
        not as large a part of the percents as of the units, and the placement is not of as many
        devices with the requested units, each device counts with all percents.
        """
        known_units: tuple[int, ...] = (self.units,)
        if self.split:
            known_units = self.split if len(shares) == self.devices else ()
        return tuple(
            [
                self.percents if units in known_units else self._percents_of_part(units)
                for _, units in shares
            ]
        )

    def charges_on(self, shares: Shares, capacity: Sequence[int]) -> Shares:
        """Return the units charged on each device of a placement. capacity: of all devices."""
        return tuple(
            (device, charged_units(units, percents, *capacity[device : device + 1]))
            for (device, units), percents in zip(shares, self.percents_on(shares), strict=True)
        )

    def limits_on(self, shares: Shares, capacity: Sequence[int]) -> Shares:
        """Return the most units that the pod may use on each device of a placement. capacity: of
        all devices.
        """
        charges = self.charges_on(shares, capacity)
        if not self.memory_limit:
            return charges
        return tuple(
            (
                device,
                usable_units(
                    units, self.total, self.memory_limit, sum(capacity[device : device + 1])
                ),
            )
            for device, units in charges
        )

    def charges_anywhere(self, capacity: Iterable[int]) -> tuple[int, ...]:
        """Return the units charged on each device where everything of the pod may be. capacity: of
        all devices.
        """
        percents = self.all_percents
        return tuple([charged_units(self.total, percents, units) for units in capacity])

    @property
    def _percent_totals(self) -> Percents:
        """The percents over all devices, or the sums of the containers if these are larger.

        The sums are larger if the number of devices is unreadable: such a pod counts as a request
        for one device.
        """
        if not self.percents:
            return ()
        of_containers = self.percent_containers or ((),) * len(self.percents)
        return tuple(
            max(percent * self.devices, sum(share for _, share in shares))
            for percent, shares in zip(self.percents, of_containers, strict=True)
        )

    def _percents_of_part(self, units: int) -> Percents:
        """Return the percents of a device with so many of the pod's units."""
        if self.split or not self.percent_containers:
            return self.all_percents
        of_container = dict(self.containers)
        percents = []
        for amount, total, shares in zip(
            PERCENT_AMOUNTS, self._percent_totals, self.percent_containers, strict=True
        ):
            # Without shares of containers the percents are those of sidecars or init containers.
            is_even = bool(shares) and all(
                percent * self.total == total * of_container.get(container, 0)
                for container, percent in shares
            )
            part = -(-total * units // self.total) if is_even else total
            percents.append(min(part, amount.whole))
        return tuple(percents)

    @property
    def kind(self) -> Kind:
        """The part of the request that scores may depend on: equal kinds have equal scores, except
        on nodes with pods of the workload of `apart`.
        """
        return (
            self.units,
            self.devices,
            self.cpu,
            self.memory,
            self.models,
            self.percents,
            self.cards,
            self.split,
            self.neighbours,
        )

    @property
    def sizes(self) -> frozenset[int]:
        """The sizes by which a device plug-in may confuse this pod with another (see pairing).

        The kubelet asks for each container alone, init containers and sidecars too. What a plug-in
        compares that with is the container's own, the pod's total (our POD annotation), or the sum
        of its regular containers (the original's, podutils.go: getGPUMemoryFromPodResource).
        """
        regular = [units for _, units in self.containers]
        return frozenset([self.total, sum(regular), *regular, *self.inits]) - {0}


class Charge(NamedTuple):
    """The charge of one pod on a node; placement None: the whole request on every device."""

    node: str
    request: Request
    placement: Shares | None
    pinned: tuple[int, ...] | None = None
    """The devices by which the pod holds back equal pods, where pairing applies (see pairing).

    None: no pod is held back."""


@dataclass(frozen=True, slots=True)
class Allocation:
    """A decision: these units on these devices of this node."""

    node: str
    shares: Shares
    uuids: tuple[str, ...] = ()
    """Of each device, "" for one without; () if none has one."""

    @property
    def devices(self) -> tuple[int, ...]:
        """The devices by index, sorted."""
        return tuple(device for device, _ in self.shares)


class ObservedPod(NamedTuple):
    """A pod as the API server shows it.

    A list creates one for each pod; creating a frozen dataclass with so many fields would take four
    times as long.
    """

    ref: PodRef
    request: Request
    node: str = ""
    """"" while unscheduled."""
    placement: Shares | None = None
    """The devices in the annotations, or None if the annotations name no usable device (absent,
    malformed, not adding up to the request): the ledger then charges every device of the node."""
    assigned: bool = False
    """The device plug-in has marked the pod served."""
    ended: bool = False
    """The pod's phase is Succeeded or Failed."""
    created: float = 0.0
    """Seconds since the epoch, 0 where there is no such time."""
    started: float = 0.0
    """When the kubelet started the pod, in the same way."""
    priority: int = 0
    """The number of the PriorityClass."""
    terminating: bool = False
    """The pod has a deletionTimestamp."""
    labels: Labels = ()
    """Sorted."""
    gated: bool = False
    """No extender is called for the pod for now: the pod has gates (spec.schedulingGates), or its
    condition says that kube-scheduler found it unschedulable, perhaps by a filter of ours."""
    stamp: str = ""
    """The assume time in the annotations, which distinguishes Bindings, or ""."""
    running: bool = False
    """The pod's phase is Running."""
    uuids: tuple[str, ...] = ()
    """The uuids in the annotations for the devices of `placement`, "" for a device without one; ()
    for no uuids."""
    given: Given = ()
    """The units on other cards, as the device plug-in reports them."""
    crowded: bool = False
    """The annotations leave no room for gpushare's annotations."""
    ends_by: float = 0.0
    """Seconds since the epoch when the pod must be gone: the deletionTimestamp, which includes the
    grace period, else the end of activeDeadlineSeconds; 0 without both."""
    demands: Demands = NO_DEMANDS
    """The demands on nodes of a pod without a node."""
    served: bool = True
    """kube-scheduler has a profile for the pod's schedulerName; True if unknown."""


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """A node as the API server shows it, for one managed resource."""

    name: str
    capacity: tuple[int, ...] = ()
    """Units of each device, by index; () where the node shares none."""
    healthy: tuple[bool, ...] = ()
    """One for each device."""
    models: tuple[str, ...] = ()
    """One for each device."""
    uuids: tuple[str, ...] = ()
    """One for each device."""
    cpu: int | None = None
    """Milli-cores allocatable, None where unknown."""
    memory: int | None = None
    """Bytes allocatable, None where unknown."""
    closed: Reason | None = None
    """Why no pod may be placed here whatever is free."""
    marks_assigned: bool = False
    """The node's device plug-in says that it marks served pods."""
    serves_by_identity: bool = False
    """The device plug-in identifies the pod of each kubelet call, and gives the pod the cards that
    the Binding names by uuid, or none; so equal pods are never confused (see pairing)."""
    counted: bool = False
    """The devices are computed from a total and a count, without an inventory."""
    gone: tuple[str, ...] = ()
    """Uuids of cards that have been on the node, and are not."""
    max_sharers: int = ANY_SHARERS
    """The most pods that hold a part of one device."""

    @property
    def has_known_devices(self) -> bool:
        """Whether the devices are known, though perhaps no pod may be placed on any."""
        return bool(self.capacity) and self.closed in (None, Reason.BROKEN_SHARERS)

    @property
    def marks_served(self) -> bool:
        """Whether a pod without the mark has not been served.

        An unknown plug-in may be the original's, which marks no pods on nodes of
        one device (allocate.go).
        """
        return self.marks_assigned or len(self.capacity) > 1


@dataclass(frozen=True, slots=True)
class Cover:
    """The devices in a pod's annotations when first read, and the possible cards (see cover)."""

    written: Shares | None = None
    """Units by index; None: nothing usable."""
    uuids: tuple[str, ...] = ()
    """For each of these the uuid that the Binding names, "" for a device without one; () for none
    at all."""
    cards: tuple[frozenset[str], ...] = ()
    """For each device in `written` the possible cards; () until the first comparison with a node
    that has devices."""
    of: int = 0
    """The number of the node's devices when all written devices were first found there; 0 before
    that, -1 if that number cannot be known any more."""
    given: Given = ()
    """The pod's units on other cards, as the device plug-in reports them."""
    indexed: bool = False
    """The device plug-in may use the index although the Binding names a card, and the card at the
    index has had no uuid since."""
