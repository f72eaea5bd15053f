"""What the books of claims keep: records of ResourceClaims, the requests of a pod's claims, and the
devices with memory of one driver on a node, as cards of a ledger.

Pure. Tested in `tests/unit/explain/test_claim_books.py`.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from gpushare.core.claims.model import (
    THOUSANDTHS,
    Amounts,
    ClaimRequest,
    Device,
    DeviceKey,
    Holding,
    NodeDevices,
    PodClaims,
)
from gpushare.core.model import MAX_UNITS, PodRef
from gpushare.errors import MessageError
from gpushare.wire.dra.objects import ClaimMetadata, ResourceClaim
from gpushare.wire.dra.requests import claim_request, holdings
from gpushare.wire.objects import Pod

MEMORY = "memory"
"""Capacity that counts in the ledger, with the driver's domain or without."""
UUID, PARENT, MODEL = "uuid", "parentUUID", "productName"
"""Attributes that identify a card, or the card of a partition, and name the model."""

_CLOSING = ("NoSchedule", "NoExecute")
"""Effects of a taint that keep claims without a toleration from a device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimCard:
    """A card of the ledger: a device with memory of the driver, or all partitions of one card."""

    key: DeviceKey
    """For a card with partitions the device that is the whole card, else the first partition."""
    node: str
    index: int
    """Index of the device on the node."""
    uuid: str
    """`POOL/DEVICE` if the driver publishes none."""
    model: str
    units: int
    """Memory in whole units."""
    is_shared: bool
    is_offered: bool
    """No taint keeps claims from the card, or from at least one partition."""
    parts: Mapping[DeviceKey, int] = field(default_factory=dict, hash=False)
    """Units that each partition takes of the card (MIG); empty for a card without partitions."""

    @property
    def keys(self) -> Collection[DeviceKey]:
        """Devices that are this card, or partitions of the card."""
        return self.parts.keys() or (self.key,)


def cards_of(node: str, devices: NodeDevices, driver: str, unit: int) -> Iterator[ClaimCard]:
    """Yield the cards of a node; devices with counters of one set are partitions of one.

    unit: bytes of a memory unit.
    """
    groups: dict[object, list[Device]] = {}
    memory_of: dict[object, int] = {}
    for pool in devices.pools:
        for device in pool.devices if pool.driver == driver else ():
            sets = {use.counter_set for use in device.counters}
            counters = pool.counters[next(iter(sets))] if len(sets) == 1 else {}
            memory = device.capacities.get(MEMORY) or device.capacities.get(f"{driver}/{MEMORY}")
            card: object
            if MEMORY in counters:
                card = (pool.name, *sets)
                memory_of[card] = counters[MEMORY]
            elif memory is not None:
                card = device.key
                memory_of[card] = memory.value
            else:
                continue
            groups.setdefault(card, []).append(device)
    for index, (card, group) in enumerate(groups.items()):
        # The whole card, if that is a device too.
        device = max(group, key=_memory_used)
        parts = {part.key: max(_units(unit, _memory_used(part)), 1) for part in group}
        yield ClaimCard(
            key=device.key,
            node=node,
            index=index,
            uuid=_text(device, UUID)
            or _text(device, PARENT)
            or f"{device.key.pool}/{device.key.device}",
            model=_text(device, MODEL),
            units=min(_units(unit, memory_of[card]), MAX_UNITS),
            is_shared=device.is_shared or len(group) > 1,
            is_offered=not all(
                any(taint.effect in _CLOSING for taint in part.taints) for part in group
            ),
            parts=parts if card != device.key else {},
        )


def memory_units(amounts: Amounts, unit: int) -> int | None:
    """Return the units of memory among amounts of capacities, rounded up; None without memory.

    unit: bytes of a memory unit.
    """
    for name, amount in amounts.items():
        if name.rpartition("/")[2] == MEMORY:
            return -(-amount // (unit * THOUSANDTHS))
    return None


def _units(unit: int, amount: int) -> int:
    return amount // THOUSANDTHS // unit


def _memory_used(device: Device) -> int:
    """Return the memory that a partition takes of the card, in thousandths; 0 for other devices."""
    return sum(use.amount for use in device.counters if use.counter == MEMORY)


def _text(device: Device, name: str) -> str:
    attribute = device.attributes.get(f"{device.key.driver}/{name}")
    return attribute.value if attribute and isinstance(attribute.value, str) else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRecord:
    """Record of a ResourceClaim."""

    ref: PodRef
    is_allocated: bool
    holdings: tuple[Holding, ...] = ()
    """Devices of the allocation, of any driver."""
    users: tuple[tuple[str, str], ...] = ()
    """(name, uid) of each pod in status.reservedFor."""
    request: ClaimRequest | None = None
    """Requests; None for an allocated claim, or for a claim that is not modelled."""
    mistake: str = ""
    """Reason why the claim is not modelled, as a sentence for the owner."""


@dataclass(frozen=True, slots=True)
class PodRequests:
    """Requests that kube-scheduler has to allocate for a pod, by the books."""

    claims: PodClaims
    """Empty if every claim of the pod is allocated, or if `mistake` is set."""
    uids: tuple[str, ...] = ()
    """Uid of each of the claims; "" for one that kube-scheduler makes for extended resources."""
    missing: tuple[str, ...] = ()
    """Names of claims that are not shown yet."""
    mistake: str = ""
    """Reason why the claims are not modelled, as a sentence for the owner."""


def claim_record(claim: ResourceClaim) -> ClaimRecord:
    """Return the record of a claim. Raises MessageError for a claim without a name or uid."""
    metadata = claim.metadata or ClaimMetadata()
    if not (metadata.namespace and metadata.name and metadata.uid):
        raise MessageError("ResourceClaim.metadata: namespace, name or uid is missing")
    ref = PodRef(metadata.namespace, metadata.name, metadata.uid)
    users = tuple((user.name or "", user.uid or "") for user in claim.reserved)
    if claim.allocation is not None:
        claim_holdings = holdings(claim.allocation)
        return ClaimRecord(ref=ref, is_allocated=True, holdings=claim_holdings, users=users)
    if claim.spec is None:
        return ClaimRecord(ref=ref, is_allocated=False, mistake=f"claim {ref} cannot be read")
    try:
        request = claim_request(claim.spec)
    except MessageError as error:
        return ClaimRecord(ref=ref, is_allocated=False, mistake=f"claim {ref}: {error}")
    return ClaimRecord(ref=ref, is_allocated=False, users=users, request=request)


def claim_names(pod: Pod) -> tuple[str, ...] | None:
    """Return the names of the pod's claims; None while a template's claim is still to be made."""
    statuses = (pod.status and pod.status.resource_claim_statuses) or ()
    generated_names = {status.name: status.resource_claim_name for status in statuses}
    names: list[str] = []
    for claim in (pod.spec and pod.spec.resource_claims) or ():
        if not claim.resource_claim_name and claim.name not in generated_names:
            return None
        # Of a template without requests the controller makes no claim.
        if name := claim.resource_claim_name or generated_names.get(claim.name):
            names.append(name)
    return tuple(names)
