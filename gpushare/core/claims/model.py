"""Devices, requests of claims, and the amounts that allocated claims hold, as values.

Amounts are exact integers in thousandths of the unit of the API: a capacity of 1 GiB is
1024**3 * 1000. A quantity with finer parts is rounded up.

Values are frozen; mappings in them must not be changed. Tested in `tests/unit/core/claims`.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import NamedTuple

from gpushare.core.selectors import NodeSelectorTerm, Taint, Toleration

THOUSANDTHS = 1000
"""Amounts of this module per unit of the API."""

Amounts = Mapping[str, int]
"""Amount of each capacity, in thousandths."""

MAX_RESULTS = 32
"""Devices that one claim can be allocated (AllocationResultsMaxSize)."""


class DeviceKey(NamedTuple):
    """Names of a device in an allocation."""

    driver: str
    pool: str
    device: str


class Attribute(NamedTuple):
    """Value of a device attribute; values of different kinds are never equal."""

    kind: str
    """"string", "int", "bool" or "version"; another kind is one that first fit does not compare."""
    value: str | int | bool


@dataclass(frozen=True, slots=True)
class RequestPolicy:
    """CapacityRequestPolicy: the amounts of a shared capacity that the driver accepts."""

    default: int | None = None
    """Amount for a request that names none; None: the whole capacity."""
    values: tuple[int, ...] | None = None
    """Accepted amounts in ascending order; None: a range, or any amount."""
    minimum: int | None = None
    """Least amount of the range; None: there is no range."""
    maximum: int | None = None
    step: int | None = None
    """Accepted amounts are the minimum plus multiples of the step; None: any amount of the range.
    """

    def rounded(self, requested: int) -> int:
        """Return the least accepted amount for a request; the request itself if there is none."""
        if self.minimum is not None:
            if requested <= self.minimum:
                return self.minimum
            if self.step is None:
                return requested
            return requested + (self.minimum - requested) % self.step
        return next((value for value in self.values or () if requested <= value), requested)

    def accepts(self, amount: int) -> bool:
        """Return whether a claim can hold such an amount."""
        if amount == self.default:
            return True
        if self.minimum is not None:
            return (self.maximum is None or amount <= self.maximum) and (
                self.step is None or (amount - self.minimum) % self.step == 0
            )
        return not self.values or amount in self.values


@dataclass(frozen=True, slots=True)
class Capacity:
    """Capacity of a device."""

    value: int
    policy: RequestPolicy | None = None

    def consumed(self, requested: int | None) -> int | None:
        """Return the amount that a request consumes, rounded up by the policy.

        requested: None if the request does not name this capacity. Returns None if the policy
        accepts no such amount, or the device has less.
        """
        policy = self.policy
        if policy is None:
            amount = self.value if requested is None else requested
        else:
            if requested is not None:
                amount = policy.rounded(requested)
            else:
                amount = self.value if policy.default is None else policy.default
            if not policy.accepts(amount):
                return None
        return amount if amount <= self.value else None


@dataclass(frozen=True, slots=True)
class NodeChoice:
    """Nodes that can use a slice or a device; the first of the three that is set counts."""

    node: str = ""
    all_nodes: bool = False
    terms: tuple[NodeSelectorTerm, ...] = ()
    """Alternatives of a node selector."""

    def matches(self, node: str, labels: Mapping[str, str]) -> bool:
        """Return whether a node with these labels can use the slice or device."""
        if self.node:
            return self.node == node
        return self.all_nodes or any(term.matches(node, labels) for term in self.terms)


class CounterUse(NamedTuple):
    """Amount that an allocated device consumes of a counter of the pool."""

    counter_set: str
    counter: str
    amount: int


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Device:
    """A device of a slice, compared by identity."""

    key: DeviceKey
    is_shared: bool = False
    """Several claims can hold amounts of the device (allowMultipleAllocations)."""
    capacities: Mapping[str, Capacity] = field(default_factory=dict)
    """By the name as the slice writes it."""
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    """By the fully qualified name, DOMAIN/NAME; the domain of a bare name is the driver."""
    taints: tuple[Taint, ...] = ()
    """Taints of the slice and of taint rules."""
    counters: tuple[CounterUse, ...] = ()
    has_binding_conditions: bool = False
    nodes: NodeChoice | None = None
    """Nodes that can use the device, if the slice says so by device."""
    verdicts: dict[tuple[str, ...], bool] = field(default_factory=dict, repr=False)
    """Cache of the results of CEL selectors for this device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """A ResourceSlice."""

    name: str
    driver: str
    pool: str
    generation: int
    slice_count: int
    """Slices that the pool has in this generation."""
    nodes: NodeChoice | None
    """None: each device names its nodes."""
    devices: tuple[Device, ...] = ()
    counters: Mapping[str, Amounts] = field(default_factory=dict)
    """Counter sets: amount of each counter that the devices of the pool share."""
    is_ignored: bool = False
    """kube-scheduler ignores the slice, which needs a feature that is off; so the pool stays
    incomplete."""


@dataclass(frozen=True, slots=True)
class TaintRule:
    """A DeviceTaintRule; None: any driver, pool or device."""

    taint: Taint
    driver: str | None = None
    pool: str | None = None
    device: str | None = None

    def applies_to(self, key: DeviceKey) -> bool:
        """Return whether the rule taints a device."""
        return (
            self.driver in (None, key.driver)
            and self.pool in (None, key.pool)
            and self.device in (None, key.device)
        )


class PoolState(Enum):
    """Whether kube-scheduler allocates from a pool."""

    COMPLETE = "complete"
    INCOMPLETE = "incomplete"
    """Slices of the newest generation are missing."""
    INVALID = "invalid"
    """The slices contradict each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """A pool as one node sees it."""

    driver: str
    name: str
    state: PoolState = PoolState.COMPLETE
    devices: tuple[Device, ...] = ()
    """Devices for this node, in kube-scheduler's order."""
    devices_elsewhere: tuple[Device, ...] = ()
    """Devices of other nodes that consume counters of this pool."""
    counters: Mapping[str, Amounts] = field(default_factory=dict)
    """By counter set."""
    has_binding_conditions: bool = False


class NodeDevices:
    """The pools of a node, in kube-scheduler's order."""

    __slots__ = ("candidates", "pools")

    def __init__(self, pools: tuple[Pool, ...] = ()) -> None:
        """Keep the pools, and the devices of the complete ones in the order of the search."""
        self.pools = pools
        self.candidates = tuple((device, pool) for pool in pools for device in pool.devices)

    @property
    def devices(self) -> tuple[Device, ...]:
        """Devices of the complete pools, in kube-scheduler's order."""
        return tuple(device for device, _ in self.candidates)

    def counted_devices(self) -> Iterator[Device]:
        """Yield the devices of the node, and devices of other nodes that consume counters of the
        node's pools.
        """
        for pool in self.pools:
            yield from pool.devices
            yield from pool.devices_elsewhere


@dataclass(frozen=True, slots=True)
class Use:
    """Devices that allocated claims hold, on this node or on any; admin access holds nothing."""

    exclusive: Collection[DeviceKey] = frozenset()
    """Devices that a claim holds whole."""
    shares: Mapping[DeviceKey, Amounts] = field(default_factory=dict)
    """Shared devices that claims hold parts of: the sum by capacity, perhaps of none."""

    def plus(self, holdings: Iterable["Holding"]) -> "Use":
        """Return the use once claims hold these devices, too."""
        exclusive, added = {*self.exclusive}, dict[DeviceKey, dict[str, int]]()
        for key, consumed in holdings:
            if consumed is None:
                exclusive.add(key)
                continue
            amounts = added.get(key)
            if amounts is None:
                amounts = added[key] = dict(self.shares.get(key, ()))
            for name, amount in consumed.items():
                amounts[name] = amounts.get(name, 0) + amount
        return Use(exclusive, {**self.shares, **added})


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRequest:
    """A request for devices, or an alternative of a request (firstAvailable)."""

    name: str
    """As in results of an allocation: REQUEST or REQUEST/ALTERNATIVE."""
    device_class: str = ""
    """Name of the DeviceClass."""
    selectors: tuple[str, ...] = ()
    """CEL expressions that all have to be true of a device, those of the class first
    (`ClaimRequest.with_classes`)."""
    count: int | None = 1
    """Number of devices; None: all that match (allocationMode All)."""
    has_admin_access: bool = False
    amounts: tuple[tuple[str, int], ...] = ()
    """(capacity, thousandths) requested of each device, by the name as the claim writes it."""
    tolerations: tuple[Toleration, ...] = ()


@dataclass(frozen=True, slots=True)
class NamedRequest:
    """A request of a claim."""

    name: str
    alternatives: tuple[DeviceRequest, ...]
    """In order of preference; one if the request offers no choice."""
    is_choice: bool = False
    """The alternatives come from firstAvailable, however many there are."""


@dataclass(frozen=True, slots=True)
class Constraint:
    """A constraint of a claim: an attribute is equal, or distinct, in all devices."""

    attribute: str
    """Fully qualified name."""
    is_distinct: bool = False
    requests: frozenset[str] = frozenset()
    """Names of the requests, or REQUEST/ALTERNATIVE; empty: all requests of the claim."""


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """Devices that one claim asks for; equal for claims of different names."""

    requests: tuple[NamedRequest, ...]
    constraints: tuple[Constraint, ...] = ()

    def with_classes(self, classes: Mapping[str, "ClassRecord"]) -> "ClaimRequest | None":
        """Return the claim with the selectors of the classes before those of the requests; None if
        a class is missing.

        classes: by name of the DeviceClass.
        """
        requests = []
        for request in self.requests:
            alternatives = []
            for alternative in request.alternatives:
                record = classes.get(alternative.device_class)
                if record is None:
                    return None
                selectors = record.selectors + alternative.selectors
                alternatives.append(replace(alternative, selectors=selectors))
            requests.append(replace(request, alternatives=tuple(alternatives)))
        return replace(self, requests=tuple(requests))


@dataclass(frozen=True, slots=True)
class ClassRecord:
    """A DeviceClass."""

    name: str
    selectors: tuple[str, ...] = ()
    """CEL expressions."""
    extended_resource: str = ""
    """Extended resource that pods may name in place of a claim, besides the implicit name."""
    created_at: str = ""
    """RFC 3339; of classes that name the same extended resource the newest counts."""


class PodClaims:
    """Claims of a pod that kube-scheduler has to allocate, in kube-scheduler's order; hashable.

    Two pods with equal requests in their claims are equal: the key of a cache of predictions.
    The hash is computed once.
    """

    __slots__ = ("_hash", "claims")

    def __init__(self, claims: tuple[ClaimRequest, ...]) -> None:
        """Keep the claims; an empty tuple: nothing has to be allocated."""
        self.claims = claims
        self._hash = hash(claims)

    def __hash__(self) -> int:
        """Return the hash of the claims."""
        return self._hash

    def __eq__(self, claims: object) -> bool:
        """Return whether the claims ask for the same."""
        return self is claims or (
            isinstance(claims, PodClaims)
            and self._hash == claims._hash
            and self.claims == claims.claims
        )


class Holding(NamedTuple):
    """A device of an allocation of a claim, and the amounts that the claim holds of it."""

    key: DeviceKey
    consumed: Amounts | None
    """By capacity; None: the claim holds the whole device."""


class Taken(NamedTuple):
    """A device that first fit takes."""

    claim: int
    """Index of the claim in PodClaims."""
    request: str
    """Name of the request, or REQUEST/ALTERNATIVE."""
    device: Device
    consumed: Amounts | None
    """Amount consumed of each capacity of a shared device; None: the device is held whole."""
    has_admin_access: bool
    """Admin access to a device that is not shared holds nothing."""


@dataclass(frozen=True, slots=True)
class Fit:
    """Devices that kube-scheduler would allocate, in the order of the results."""

    taken: tuple[Taken, ...]

    def holdings(self) -> Iterator[Holding]:
        """Yield the devices that the claims hold then; admin access holds nothing."""
        for result in self.taken:
            if not result.has_admin_access:
                yield Holding(result.device.key, result.consumed)


class NoFit(Enum):
    """Why first fit names no devices."""

    TOO_FEW_DEVICES = "kube-scheduler finds no devices for the claims on the node"
    ERROR = "kube-scheduler ends its attempt with an error"
    NOT_MODELLED = "the search takes more steps than the model makes"
