"""What a ResourceClaim asks for, and which devices it has been given.

Of a claim that is ours we take requests of the simple kind. Whatever else it says may be a
condition, and is refused: kube-scheduler would have kept it, and nobody checks an allocation after
it is written. Kubernetes lets two requests of a claim have parts of one device; here each has
devices of its own, as the devices of one request are: what may share a device is two claims.

Tested in `tests/unit/wire/dra`.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from gpushare.core.dealing import Asked
from gpushare.core.model import MAX_UNITS, Request
from gpushare.errors import MessageError, QuantityError
from gpushare.wire.annotations import MAX_DEVICES_PER_POD
from gpushare.wire.demands import TEXT
from gpushare.wire.dra.objects import (
    ClaimAllocation,
    ClaimMetadata,
    ClaimSpec,
    ClaimsPod,
    ResourceClaim,
    Result,
)
from gpushare.wire.dra.slices import MEMORY, DeviceKey
from gpushare.wire.quantity import to_bytes

CLASS = "gpushare.io"
"""The device class whose claims are ours."""

CLASS_ASIDE = "settings.gpushare.io"
"""The name under which the class may be kept instead. Then kube-scheduler finds none of the name
that claims have, and leaves their pods waiting without a look at any node."""

FINALIZER = "resource.kubernetes.io/delete-protection"
"""Without it a claim that is deleted is gone at once, and its card looks free under a running
pod."""

_MOST_TEXT = 500
_MOST_FINALIZERS = 4096
"""Bytes of the finalizers of a claim that may be given devices, ours left out."""

MAX_DEVICES = min(32, MAX_DEVICES_PER_POD)
"""Results that an allocation may have."""

_KNOWN = frozenset(
    {"deviceClassName", "allocationMode", "count", "capacity", "selectors", "adminAccess"}
    | {"tolerations"}
)


class Part(NamedTuple):
    """What a claim asks of one device."""

    request: str
    """By which the result of an allocation names it."""
    memory: int
    """Bytes."""


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """What a claim asks of our class: different cards of one node."""

    parts: tuple[Part, ...]
    """One for each card, the most memory first."""

    @property
    def requests(self) -> tuple[str, ...]:
        """The names of the requests."""
        return tuple(dict.fromkeys(part.request for part in self.parts))

    @property
    def memory(self) -> int:
        """Bytes on all cards together."""
        return sum(part.memory for part in self.parts)

    def asked(self, unit: int) -> Asked:
        """Return it in units of so many bytes, rounded up. Raises MessageError."""
        request = Request().of_parts(-(-part.memory // unit) for part in self.parts)
        if request.units > MAX_UNITS:
            name = self.parts[0].request
            raise MessageError(f"request {name}: more memory than any device has")
        return Asked(request, tuple(part.memory for part in self.parts))


@dataclass(frozen=True, slots=True)
class GivenDevice:
    """A device that an allocation gives to a claim."""

    key: DeviceKey
    memory: int | None
    """Bytes that it consumes; None: it has the whole device, or nobody can tell how much."""


def claim_request(claim: ResourceClaim, class_name: str) -> ClaimRequest | None:
    """Return what the claim asks of our class; None if it asks nothing of it.

    Raises MessageError with a sentence for its user if the claim asks for what we do not decide.
    """
    if claim.spec is None:
        raise MessageError("the claim's spec cannot be read (its parameters for drivers?)")
    if claim.spec.refusal:
        raise MessageError(claim.spec.refusal)
    devices = claim.spec.devices or {}
    requests = devices.get("requests")
    if not isinstance(requests, list) or not any(_names(item, class_name) for item in requests):
        return None
    _check_known(devices, {"requests", "config", "constraints"}, f"a claim of class {class_name}")
    if devices.get("constraints"):
        raise MessageError(
            f"a claim of class {class_name} may have no constraints: its devices are different"
            " cards of one node in any case"
        )
    parts = [part for item in requests for part in _parts(item, class_name)]
    if len(parts) > MAX_DEVICES:
        raise MessageError(
            f"the requests of a claim of class {class_name} may count {MAX_DEVICES} devices"
            " together"
        )
    return ClaimRequest(tuple(sorted(parts, key=lambda part: -part.memory)))


def kept_claim(claim: ResourceClaim, class_name: str) -> ResourceClaim:
    """Return what is kept of the claim: what it asks of our class, or why it can have nothing, and
    what is to be copied into an allocation; whatever its owner has written, not much more.
    """
    metadata, spec = claim.metadata, claim.spec
    if spec is not None:
        try:
            asked = claim_request(claim, class_name)
        except MessageError as error:
            spec = ClaimSpec(refusal=str(error)[:_MOST_TEXT])
        else:
            spec = ClaimSpec() if asked is None else spec.kept(_requests(asked, class_name))
    others = [name for name in (metadata and metadata.finalizers) or () if name != FINALIZER]
    if metadata and sum(TEXT + len(name) for name in others) > _MOST_FINALIZERS:
        # A patch would have to repeat them all, so none is written.
        names = (metadata.name, metadata.namespace, metadata.uid, metadata.resource_version)
        ours = [FINALIZER] if is_protected(claim) else []
        metadata = ClaimMetadata(*names, metadata.deletion_timestamp, ours)
        if spec is not None and spec.devices and not claim.allocation:
            spec = ClaimSpec(refusal=f"its finalizers take more than {_MOST_FINALIZERS} bytes")
    return ResourceClaim(metadata, spec, claim.status)


def _requests(asked: ClaimRequest, class_name: str) -> list[dict[str, Any]]:
    """Return requests that ask for the same."""
    counts = Counter(asked.parts)
    return [
        {
            "name": part.request,
            "exactly": {
                "deviceClassName": class_name,
                "count": count,
                "capacity": {"requests": {MEMORY: str(part.memory)}},
            },
        }
        for part, count in counts.items()
    ]


def given_devices(allocation: ClaimAllocation) -> tuple[GivenDevice, ...]:
    """Return the devices of an allocation, of whoever wrote it, and what it consumes of each.

    Administrators' access consumes nothing. Of a device that is given twice each time counts.
    """
    results = (allocation.devices and allocation.devices.results) or ()
    return tuple(
        GivenDevice(
            DeviceKey(result.driver or "", result.pool or "", result.device or ""), _taken(result)
        )
        for result in results
        if result.admin_access is not True
    )


def is_protected(claim: ResourceClaim) -> bool:
    """Return whether the claim stays, with its allocation, while a pod has it reserved."""
    return bool(claim.metadata and FINALIZER in (claim.metadata.finalizers or ()))


def _names(request: object, class_name: str) -> bool:
    """Return whether a request names the class, in a choice that it offers too."""
    if not isinstance(request, Mapping):
        return False
    choices = request.get("firstAvailable")
    every = [request.get("exactly"), *(choices if isinstance(choices, list) else ())]
    return any(
        isinstance(choice, Mapping) and choice.get("deviceClassName") == class_name
        for choice in every
    )


def _parts(request: object, class_name: str) -> list[Part]:
    """Return what a request of a claim that is ours asks of each of its devices.

    Raises MessageError with a sentence for its user.
    """
    if not _names(request, class_name) or not isinstance(request, Mapping):
        raise MessageError(
            f"all requests of a claim with class {class_name} have to be of that class: ask for the"
            " others by another claim"
        )
    name = str(request.get("name"))
    who = f"request {name} of class {class_name}"
    exactly = request.get("exactly")
    if not isinstance(exactly, Mapping):
        raise MessageError(f"{who} may offer no choice (firstAvailable)")
    _check_known(request, {"name", "exactly", "firstAvailable"}, who)
    _check_known(exactly, _KNOWN, who)
    for field in ("selectors", "adminAccess"):
        if exactly.get(field):
            raise MessageError(f"{who} may have no {field}")
    if exactly.get("allocationMode", "ExactCount") != "ExactCount":
        raise MessageError(f"{who} has to count its devices (ExactCount)")
    count = exactly.get("count", 1)
    if type(count) is not int or not 0 < count <= MAX_DEVICES:
        raise MessageError(f"{who} may count 1 to {MAX_DEVICES} devices")
    return [Part(name, _memory(exactly, who))] * count


def _check_known(part: Mapping[str, Any], known: set[str] | frozenset[str], who: str) -> None:
    unknown = sorted(key for key in part if key not in known)
    if unknown:
        raise MessageError(f"{who} says {unknown[0][:40]!a}, which we do not know")


def _memory(exactly: Mapping[str, Any], who: str) -> int:
    capacity = exactly.get("capacity")
    amounts = capacity.get("requests") if isinstance(capacity, Mapping) else None
    amounts = amounts if isinstance(amounts, Mapping) else {}
    if MEMORY not in amounts:
        raise MessageError(
            f"{who} has to say how much memory it needs (capacity.requests.{MEMORY})"
        )
    others = sorted(key for key in amounts if key != MEMORY)
    if others:
        raise MessageError(f"{who} may ask for {MEMORY} alone, not {others[0][:40]!a}")
    try:
        memory = to_bytes(amounts[MEMORY])
    except QuantityError as error:
        raise MessageError(f"{who}: capacity.requests.{MEMORY}: {error}") from error
    if not memory:
        raise MessageError(f"{who}: capacity.requests.{MEMORY} has to be more than 0")
    return memory


def _taken(result: Result) -> int | None:
    """Return the bytes that a result consumes.

    Nothing of what is consumed is checked when an allocation is written, so what cannot be read, or
    names no memory, counts as the whole.
    """
    amount = (result.consumed_capacity or {}).get(MEMORY)
    if amount is None:
        return None
    try:
        return to_bytes(amount)
    except QuantityError:
        return None


def nodes_of(allocation: ClaimAllocation) -> frozenset[str]:
    """Return the nodes that an allocation names, as we write them."""
    terms = (allocation.node_selector and allocation.node_selector.node_selector_terms) or ()
    fields = [field for term in terms for field in term.match_fields or ()]
    return frozenset(name for field in fields for name in field.values or ())


def claim_names(pod: ClaimsPod) -> tuple[str, ...] | None:
    """Return the names of the pod's claims; None while one is still to be made of a template."""
    statuses = (pod.status and pod.status.resource_claim_statuses) or ()
    by_name = {status.name: status.resource_claim_name for status in statuses}
    names: list[str] = []
    for claim in (pod.spec and pod.spec.resource_claims) or ():
        if not claim.resource_claim_name and claim.name not in by_name:
            return None
        name = claim.resource_claim_name or by_name.get(claim.name)
        if name:  # of a template that asks for nothing none is made
            names.append(name)
    return tuple(names)
