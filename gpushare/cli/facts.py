"""Read facts about a managed resource from the JSON of one Node or Pod.

These are the rules of `gpushare/wire/pods.py` and `nodes.py`, which read typed structs. Here they
read plain dicts, for GPU memory alone, with the standard library alone, so that the command line
starts at once. A contract test compares both.

A field of an impossible type counts as absent; the API server lets none through.

Tested in `tests/unit/cli/test_facts.py` and `tests/contract/test_golden_inspect.py`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from gpushare.core.amounts import memory_percent
from gpushare.core.model import ANY_SHARERS, Given, PodRef, Reason, Request, Shares
from gpushare.core.node_filters import CORDON, NodeState
from gpushare.core.selectors import Taint
from gpushare.errors import AnnotationError, QuantityError, WireError
from gpushare.wire.annotations import Names, device_uuids, placement, strict_number
from gpushare.wire.device_request import container_sums, device_request, request_of_one_device
from gpushare.wire.given_annotation import read_given
from gpushare.wire.inventory import (
    InventoryDevice,
    decode_inventory,
    devices_of_totals,
    most_sharers,
)
from gpushare.wire.quantity import Quantity, node_amount
from gpushare.wire.scale_down import mark_of

Fields = Mapping[str, object]

_ENDED = frozenset({"Succeeded", "Failed"})


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """A node that shares devices, or should."""

    name: str
    address: str
    """InternalIP of the node, or ""."""
    unit: str
    """Memory unit of the inventory, "" without an inventory."""
    devices: tuple[InventoryDevice, ...]
    """By index, memory in that unit."""
    closed_reason: Reason | None = None
    """Why no pod may be placed there, or None."""
    detail: str = ""
    """Details of this reason, or ""."""
    serves_by_identity: bool = False
    gone_uuids: tuple[str, ...] = ()
    state: NodeState | None = None
    """The state for kube-scheduler's own filters."""
    kept_reason: str = ""
    """Why autoscalers must keep the node, or ""."""
    max_sharers: int = ANY_SHARERS
    """The most pods that hold a part of one device."""


@dataclass(frozen=True, slots=True)
class PodFacts:
    """A pod that holds memory of a node."""

    ref: PodRef
    node: str
    request: Request
    shares: Shares
    """The shares in the annotations, () if unknown."""
    phase: str
    assigned: bool
    uuids: tuple[str, ...] = ()
    """The uuids of the devices of `shares`, () if none is named."""
    given_shares: Given = ()
    """Shares on other cards, as the device plug-in has written them."""
    capacity: int = 0
    """Units of the first device, as the Binding has written them; 0 if unknown."""


@dataclass(frozen=True, slots=True)
class PendingFacts:
    """A pending pod that asks for memory. units: of all devices."""

    ref: PodRef
    units: int
    reason: str
    devices: int = 1
    """The number of devices; 1 if the pod names no valid number."""
    cores: int = 0
    """Percent of compute of each device."""
    share: int = 0
    """Percent of memory of each device."""


class _ResourceFacts(NamedTuple):
    """ResourceRequirements."""

    limits: Mapping[str, Quantity]
    requests: Mapping[str, Quantity]


class _ContainerFacts(NamedTuple):
    """Container."""

    resources: _ResourceFacts
    restart_policy: object


def mapping(value: object) -> Fields:
    """Return the value if it is a JSON object, and an empty object otherwise."""
    return value if isinstance(value, dict) else {}


def text(value: object) -> str:
    """Return the value if it is a text, and "" otherwise."""
    return value if isinstance(value, str) else ""


def elements(value: object) -> Sequence[object]:
    """Return the value if it is a JSON list, and an empty list otherwise."""
    return value if isinstance(value, list) else ()


def pod_ref(pod: Fields) -> PodRef:
    """Return namespace, name and uid of the pod."""
    metadata = mapping(pod.get("metadata"))
    return PodRef(*(text(metadata.get(key)) for key in ("namespace", "name", "uid")))


def read_node(node: Fields, names: Names) -> NodeFacts | None:
    """Return the facts about a node; None for a node without shared devices.

    The inventory annotation wins. Without one every device has total / count units of the node's
    capacity, or of allocatable without a capacity. An unreadable value closes the node.
    """
    facts = _read_devices(node, names)
    if facts is None:
        return None
    spec, status, metadata = (mapping(node.get(key)) for key in ("spec", "status", "metadata"))
    taints = [
        Taint(*(text(taint.get(key)) for key in ("key", "value", "effect")))
        for taint in map(mapping, elements(spec.get("taints")))
    ]
    conditions = map(mapping, elements(status.get("conditions")))
    ready = (
        text(condition.get("status"))
        for condition in conditions
        if condition.get("type") == "Ready"
    )
    usable = status.get("allocatable")
    usable = status.get("capacity") if usable is None else usable
    state = NodeState(
        facts.name,
        {key: text(value) for key, value in mapping(metadata.get("labels")).items()},
        taints=tuple(taint for taint in taints if taint != CORDON),
        cordoned=spec.get("unschedulable") is True or CORDON in taints,
        ready=all(condition == "True" for condition in ready),
        allocatable=None
        if usable is None
        else {key: node_amount(key, value) for key, value in _quantities(usable).items()},
    )
    try:
        facts = replace(facts, max_sharers=most_sharers(state.labels or {}))
    except AnnotationError as error:
        reason = facts.closed_reason or Reason.BROKEN_SHARERS
        facts = replace(facts, closed_reason=reason, detail=facts.detail or str(error))
    return replace(facts, state=state, kept_reason=mark_of(_annotations(metadata)).kept)


def _read_devices(node: Fields, names: Names) -> NodeFacts | None:
    metadata, status = mapping(node.get("metadata")), mapping(node.get("status"))
    name, address = text(metadata.get("name")), ""
    for entry in map(mapping, elements(status.get("addresses"))):
        if entry.get("type") == "InternalIP":
            address = text(entry.get("address"))
            break
    inventory_text = mapping(metadata.get("annotations")).get(names.inventory)
    if isinstance(inventory_text, str):
        try:
            inventory = decode_inventory(inventory_text)
        except AnnotationError as error:
            return NodeFacts(name, address, "", (), Reason.BROKEN_INVENTORY, str(error))
        if not inventory.devices:
            return None
        return NodeFacts(
            name,
            address,
            inventory.unit,
            inventory.devices,
            serves_by_identity=inventory.serves_by_identity,
            gone_uuids=inventory.gone,
        )
    capacity, allocatable = (_quantities(status.get(key)) for key in ("capacity", "allocatable"))
    try:
        devices, closed_reason = devices_of_totals(capacity, allocatable, names)
    except QuantityError as error:
        return NodeFacts(name, address, "", (), Reason.BROKEN_CAPACITY, str(error))
    if not devices and closed_reason is None:
        return None
    return NodeFacts(name, address, "", devices, closed_reason)


def read_pod(pod: Fields, names: Names) -> PodFacts | None:
    """Return the facts about a pod that holds memory; None if it is pending, has ended, or asks for
    none.

    A pod holds memory from the binding to its end or deletion. Raises QuantityError for an
    unreadable amount.
    """
    spec, metadata = mapping(pod.get("spec")), mapping(pod.get("metadata"))
    node = text(spec.get("nodeName"))
    phase = text(mapping(pod.get("status")).get("phase"))
    if not node or phase in _ENDED:
        return None
    request = _request(spec, metadata, names)
    if request is None:
        return None
    annotations, whole = _annotations(metadata), request
    if request.devices > 1:
        whole = replace(request, units=request.total, devices=1)
    shares = placement(annotations, whole, names)
    uuids = device_uuids(annotations, shares or (), names)
    if uuids is None:
        shares, uuids = None, ()
    assigned = annotations.get(names.assigned) == "true"
    given_shares = read_given(annotations, request.total, names)
    capacity = strict_number(annotations.get(names.dev, "")) or 0
    return PodFacts(
        pod_ref(pod), node, request, shares or (), phase, assigned, uuids, given_shares, capacity
    )


def read_pending(pod: Fields, names: Names) -> PendingFacts | None:
    """Return the facts about a pending pod; None if it has a node, has ended or asks for no memory.

    The reason is that of the condition PodScheduled. Raises QuantityError for an unreadable amount.
    """
    spec, status = mapping(pod.get("spec")), mapping(pod.get("status"))
    if text(spec.get("nodeName")) or text(status.get("phase")) in _ENDED:
        return None
    request = _request(spec, mapping(pod.get("metadata")), names)
    if request is None:
        return None
    scheduler = text(spec.get("schedulerName")) or "default-scheduler"
    reason = f"{scheduler} has not looked at it"
    for condition in map(mapping, elements(status.get("conditions"))):
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            # The part about preemption repeats the reasons.
            message = text(condition.get("message")).partition(" preemption: ")[0]
            reason = message or text(condition.get("reason")) or reason
    return PendingFacts(
        pod_ref(pod),
        units=request.total,
        reason=reason,
        devices=request.devices,
        cores=request.cores,
        share=memory_percent(request.percents),
    )


def _annotations(metadata: Fields) -> dict[str, str]:
    items = mapping(metadata.get("annotations")).items()
    return {key: value for key, value in items if isinstance(value, str)}


def _request(spec: Fields, metadata: Fields, names: Names) -> Request | None:
    """Return the pod's request for devices, as in the ledger; None if it asks for no memory.

    A request that makes no sense counts on one device: a bound pod holds its memory in any case.
    Raises QuantityError for an unreadable amount of memory.
    """
    containers, inits = map(_containers, (spec.get("containers"), spec.get("initContainers")))
    sums = container_sums(containers, inits, names, strict=False)
    if not sums.totals[0]:
        return None
    labels, selector = mapping(metadata.get("labels")), mapping(spec.get("nodeSelector"))
    try:
        return device_request(
            sums,
            _annotations(metadata),
            {key: text(value) for key, value in labels.items()},
            names,
            node_selector={key: text(value) for key, value in selector.items()},
        )
    except WireError:
        return request_of_one_device(sums)


def _containers(items: object) -> list[_ContainerFacts]:
    """Return the containers of a list in the pod's spec."""
    containers = []
    for container in map(mapping, elements(items)):
        resources = mapping(container.get("resources"))
        limits, requests = (_quantities(resources.get(key)) for key in ("limits", "requests"))
        amounts = _ResourceFacts(limits, requests)
        containers.append(_ContainerFacts(amounts, container.get("restartPolicy")))
    return containers


def _quantities(amounts: object) -> dict[str, Quantity]:
    items = mapping(amounts).items()
    return {name: amount for name, amount in items if isinstance(amount, str | int | float)}
