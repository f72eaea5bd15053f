"""Requests of claims, device classes, and allocations, as core types.

Tested in `tests/unit/wire/dra/test_requests.py`.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from gpushare.core.claims.model import (
    Amounts,
    ClaimRequest,
    ClassRecord,
    Constraint,
    DeviceKey,
    DeviceRequest,
    Holding,
    NamedRequest,
)
from gpushare.errors import MessageError, QuantityError
from gpushare.wire.demands import read_toleration
from gpushare.wire.dra.objects import (
    ClaimAllocation,
    ClaimDevices,
    ClaimSpec,
    ClassSpec,
    ConstraintItem,
    DeviceClass,
    DeviceSelector,
    ExactRequest,
    RequestItem,
    Result,
)
from gpushare.wire.objects import Container, Metadata, PodSpec
from gpushare.wire.quantity import Quantity, parse_quantity, to_thousandths

MAX_CLAIM_TEXT = 16 << 10
"""Upper bound on the bytes of one claim's requests and constraints; a larger claim is not
modelled."""

IMPLICIT_RESOURCE = "deviceclass.resource.kubernetes.io/"
"""Prefix of the extended resource that each DeviceClass has by name."""


def claim_request(spec: ClaimSpec) -> ClaimRequest:
    """Return the devices that a claim asks for, without the selectors of the classes.

    Raises MessageError with a sentence for the user if the claim says something that the model does
    not understand, or is too large.
    """
    devices = spec.devices or ClaimDevices()
    if len(msgspec.json.encode(devices)) > MAX_CLAIM_TEXT:
        raise MessageError(f"the requests of the claim take more than {MAX_CLAIM_TEXT} bytes")
    return ClaimRequest(
        tuple(map(_request, devices.requests or ())),
        tuple(map(_constraint, devices.constraints or ())),
    )


def class_record(item: DeviceClass) -> ClassRecord:
    """Return a DeviceClass. Raises MessageError naming the field."""
    metadata, spec = item.metadata or Metadata(), item.spec or ClassSpec()
    if not metadata.name:
        raise MessageError("DeviceClass.metadata: name is missing")
    return ClassRecord(
        metadata.name,
        _selectors(spec.selectors, f"class {metadata.name}"),
        spec.extended_resource_name or "",
        metadata.creation_timestamp or "",
    )


def classes_by_resource(classes: Iterable[ClassRecord]) -> dict[str, ClassRecord]:
    """Return the class of each extended resource that kube-scheduler allocates by a claim."""
    newest: dict[str, ClassRecord] = {}
    # Of two classes of the same age the first by name counts, so that one is written last.
    for record in sorted(classes, key=lambda r: r.name, reverse=True):
        newest[IMPLICIT_RESOURCE + record.name] = record
        resource = record.extended_resource
        if resource and record.created_at >= newest.get(resource, record).created_at:
            newest[resource] = record
    return newest


def extended_request(spec: PodSpec, classes: Mapping[str, ClassRecord]) -> ClaimRequest | None:
    """Return the claim that kube-scheduler makes for the extended resources of a pod, or None.

    classes: by extended resource, without resources that the node has an allocatable amount of: a
    device plug-in serves those. kube-scheduler allocates this claim after the pod's own claims.
    Raises MessageError if an amount is unreadable.
    """
    containers = [*(spec.init_containers or ()), *(spec.containers or ())]
    # Init containers that end before the next one starts.
    short_lived = {
        index
        for index, container in enumerate(spec.init_containers or ())
        if container.restart_policy != "Always"
    }
    requests: list[DeviceRequest] = []
    for resource in sorted({name for container in containers for name in _amounts(container)}):
        if resource not in classes:
            continue
        counts = [_count(container, resource) for container in containers]
        for index in short_lived:  # an init container can use the devices of later containers
            later = range(index + 1, len(counts))
            counts[index] -= sum(counts[i] for i in later if i not in short_lived)
        # Init containers run one after the other, so the largest request serves all.
        largest = max(sorted(short_lived), key=counts.__getitem__, default=-1)
        for index, count in enumerate(counts):
            if count > 0 and (index == largest or index not in short_lived):
                position = sorted(_amounts(containers[index])).index(resource)
                name = f"container-{index}-request-{position}"
                device_class = classes[resource].name
                requests.append(DeviceRequest(name=name, device_class=device_class, count=count))
    requests.sort(key=lambda request: request.name)
    return (
        ClaimRequest(tuple(NamedRequest(request.name, (request,)) for request in requests))
        if requests
        else None
    )


def holdings(allocation: ClaimAllocation) -> tuple[Holding, ...]:
    """Return the devices that an allocation holds; results with admin access hold none.

    A device with an unreadable amount counts as held whole.
    """
    results = (allocation.devices and allocation.devices.results) or ()
    return tuple(
        Holding(
            DeviceKey(result.driver or "", result.pool or "", result.device or ""),
            _consumed(result),
        )
        for result in results
        if result.admin_access is not True
    )


def _consumed(result: Result) -> Amounts | None:
    if result.share_id is None:
        return None
    try:
        return {
            name: to_thousandths(amount)
            for name, amount in (result.consumed_capacity or {}).items()
        }
    except QuantityError:
        return None


def _request(item: RequestItem) -> NamedRequest:
    name = item.name or ""
    if item.first_available:
        alternatives = tuple(
            _alternative(choice, f"{name}/{choice.name or ''}") for choice in item.first_available
        )
        return NamedRequest(name, alternatives, is_choice=True)
    if item.exactly is None:
        raise MessageError(f"request {name} asks for devices in a way that is not modelled")
    return NamedRequest(name, (_alternative(item.exactly, name),))


def _alternative(item: ExactRequest, name: str) -> DeviceRequest:
    if item.derived_attributes:
        raise MessageError(f"request {name} derives attributes, which is not modelled")
    mode = item.allocation_mode or "ExactCount"
    if mode not in ("ExactCount", "All"):
        raise MessageError(f"request {name}: the allocation mode {mode[:40]!a} is not modelled")
    amounts = (item.capacity and item.capacity.requests) or {}
    try:
        requested = tuple(sorted((key, to_thousandths(value)) for key, value in amounts.items()))
    except QuantityError as error:
        raise MessageError(f"request {name}: capacity: {error}") from error
    return DeviceRequest(
        name=name,
        device_class=item.device_class_name or "",
        selectors=_selectors(item.selectors, f"request {name}"),
        count=None if mode == "All" else (1 if item.count is None else item.count),
        has_admin_access=item.admin_access is True,
        amounts=requested,
        tolerations=tuple(map(read_toleration, item.tolerations or ())),
    )


def _selectors(items: Sequence[DeviceSelector] | None, owner: str) -> tuple[str, ...]:
    expressions = [item.cel and item.cel.expression for item in items or ()]
    if not all(expressions):
        raise MessageError(f"{owner} has a selector that is not CEL")
    return tuple(expression for expression in expressions if expression)


def _constraint(item: ConstraintItem) -> Constraint:
    attribute = item.match_attribute or item.distinct_attribute
    if not attribute:
        raise MessageError("the claim has a constraint that is not modelled")
    return Constraint(attribute, not item.match_attribute, frozenset(item.requests or ()))


def _amounts(container: Container) -> Mapping[str, Quantity]:
    resources = container.resources
    return (resources and (resources.requests or resources.limits)) or {}


def _count(container: Container, resource: str) -> int:
    """Return the devices that a container asks for; 0 if the amount is not whole.

    Raises MessageError if the amount is unreadable.
    """
    try:
        count = parse_quantity(_amounts(container).get(resource, 0))
    except QuantityError as error:
        raise MessageError(f"resource {resource[:100]}: {error}") from error
    return count if isinstance(count, int) else 0
