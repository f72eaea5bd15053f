"""Facts about a managed resource in one Node or Pod, as the API server writes it.

Knows the JSON of both kinds and the rules of the ledger, which are in `gpushare/wire/pods.py` and
`nodes.py` over typed structs. Here they are repeated over plain dicts, for GPU memory only, because
the command line has to start at once and uses the standard library only. A contract test checks
that both read the same. Knows nothing of other objects.

A field of an impossible type counts as absent; the API server lets none through.

Tested in `tests/unit/cli/test_facts.py` and `tests/contract/test_golden_inspect.py`.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from gpushare.core.amounts import PERCENT_AMOUNTS, of_one_device, percents_of
from gpushare.core.model import MAX_UNITS, Given, PodRef, Reason, Request, Shares
from gpushare.core.node_filters import CORDON, CPU, NodeState
from gpushare.core.selectors import Taint
from gpushare.errors import AnnotationError, QuantityError, WireError
from gpushare.wire.annotations import Names, device_uuids, placement
from gpushare.wire.device_request import ContainerSums, device_request
from gpushare.wire.given_annotation import read_given
from gpushare.wire.inventory import MAX_DEVICES, InventoryDevice, decode_inventory
from gpushare.wire.quantity import peak, to_bytes, to_milli, to_units
from gpushare.wire.scale_down import mark_of

Fields = Mapping[str, object]

_ENDED = frozenset({"Succeeded", "Failed"})


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """A node that shares devices, or should."""

    name: str
    address: str
    """Its InternalIP, or ""."""
    unit: str
    """What its inventory counts memory in, "" if it has none."""
    devices: tuple[InventoryDevice, ...]
    """By index, memory in that unit."""
    closed: Reason | None = None
    """Why no pod may be placed there, or None."""
    detail: str = ""
    """More of that, if there is more to say."""
    serves_by_identity: bool = False
    gone: tuple[str, ...] = ()
    left_out: str = ""
    """What of its `state` keeps everybody from it, or ""."""
    state: NodeState | None = None
    """What kube-scheduler's own filters see of it, None if nobody asked."""
    kept: str = ""
    """Why autoscalers leave it alone, or ""."""


@dataclass(frozen=True, slots=True)
class PodFacts:
    """A pod that holds memory of a node: what it asks for of devices, and which if it is known."""

    ref: PodRef
    node: str
    request: Request
    shares: Shares
    """As its annotations name them."""
    phase: str
    assigned: bool
    uuids: tuple[str, ...] = ()
    """Those of the devices of `shares`, () if none is named."""
    given: Given = ()
    """What its device plug-in says that it has on other cards."""


@dataclass(frozen=True, slots=True)
class PendingFacts:
    """A pod that asks for memory and has no node yet: units in all, and why it waits."""

    ref: PodRef
    units: int
    reason: str
    devices: int = 1
    """Over how many the memory is spread; 1 if what the pod says of it makes no sense."""
    cores: int = 0
    """Percent of the compute of each of them."""


def mapping(value: object) -> Fields:
    """Return the JSON object, or an empty one if it is none."""
    return value if isinstance(value, dict) else {}


def text(value: object) -> str:
    """Return the text, or an empty one if it is none."""
    return value if isinstance(value, str) else ""


def elements(value: object) -> Sequence[object]:
    """Return the JSON list, or an empty one if it is none."""
    return value if isinstance(value, list) else ()


def pod_ref(pod: Fields) -> PodRef:
    """Return namespace, name and uid of the pod."""
    metadata = mapping(pod.get("metadata"))
    return PodRef(*(text(metadata.get(key)) for key in ("namespace", "name", "uid")))


def read_node(node: Fields, names: Names) -> NodeFacts | None:
    """Return what the node shares; None if it shares nothing.

    An inventory annotation leads; without one every device has total / count units of the node's
    capacity, or of allocatable if that alone is given. Whatever cannot be read closes the node.
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
    ready = (text(each.get("status")) for each in conditions if each.get("type") == "Ready")
    usable = status.get("allocatable")
    usable = status.get("capacity") if usable is None else usable
    state = NodeState(
        facts.name,
        {key: text(value) for key, value in mapping(metadata.get("labels")).items()},
        taints=tuple(taint for taint in taints if taint != CORDON),
        cordoned=spec.get("unschedulable") is True or CORDON in taints,
        ready=all(each == "True" for each in ready),
        allocatable=None
        if usable is None
        else {key: _amount(key, value) for key, value in mapping(usable).items()},
    )
    # A node of an inventory alone need not tell the kubelet of its memory.
    advertised = names.resource in (state.allocatable or {})
    judged = state if advertised else replace(state, allocatable=None)
    label = judged.label(names.resource, sum(device.mem for device in facts.devices))
    kept = mark_of(_annotations(metadata)).kept
    return replace(facts, left_out=label, state=state, kept=kept)


def _amount(resource: str, quantity: object) -> int:
    """Return the amount as `NodeState` counts it; 0 if it makes no sense."""
    with suppress(QuantityError):
        if isinstance(quantity, str | int | float):
            return (to_milli if resource == CPU else to_bytes)(quantity)
    return 0


def _read_devices(node: Fields, names: Names) -> NodeFacts | None:
    metadata, status = mapping(node.get("metadata")), mapping(node.get("status"))
    name, address = text(metadata.get("name")), ""
    for entry in map(mapping, elements(status.get("addresses"))):
        if entry.get("type") == "InternalIP":
            address = text(entry.get("address"))
            break
    written = mapping(metadata.get("annotations")).get(names.inventory)
    if isinstance(written, str):
        try:
            inventory = decode_inventory(written)
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
            gone=inventory.gone,
        )
    capacity, allocatable = (mapping(status.get(key)) for key in ("capacity", "allocatable"))
    try:
        devices, closed = _from_totals(capacity, allocatable, names)
    except QuantityError as error:
        return NodeFacts(name, address, "", (), Reason.BROKEN_CAPACITY, str(error))
    if not devices and closed is None:
        return None
    return NodeFacts(name, address, "", devices, closed)


def read_pod(pod: Fields, names: Names) -> PodFacts | None:
    """Return what the pod holds; None if it holds nothing: unscheduled, ended, or asks for none.

    Memory is held from the binding until the pod has ended or is gone. Raises QuantityError if
    what it asks for cannot be read.
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
    given = read_given(annotations, request.total, names)
    return PodFacts(pod_ref(pod), node, request, shares or (), phase, assigned, uuids, given)


def read_pending(pod: Fields, names: Names) -> PendingFacts | None:
    """Return what the pod waits for; None if it has a node, has ended or asks for no memory.

    The reason is its scheduler's, as it stands in the condition PodScheduled. Raises QuantityError
    if what it asks for cannot be read.
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
            # What follows says the same again, of preemption.
            message = text(condition.get("message")).partition(" preemption: ")[0]
            reason = message or text(condition.get("reason")) or reason
    return PendingFacts(pod_ref(pod), request.total, reason, request.devices, request.cores)


def _annotations(metadata: Fields) -> dict[str, str]:
    written = mapping(metadata.get("annotations")).items()
    return {key: value for key, value in written if isinstance(value, str)}


def _request(spec: Fields, metadata: Fields, names: Names) -> Request | None:
    """Return what the pod asks for of devices, as the ledger counts it; None if it asks for no
    memory.

    What makes no sense is all of one device: a bound pod holds it in any case. Raises
    QuantityError if the memory cannot be read.
    """
    units, containers = _gpu_request(spec, names.resource)
    if not units:
        return None
    whole = Request(units, 1, containers=containers)
    totals: list[int] = []
    of_containers: list[Shares] = []
    for amount, of_amount in zip(PERCENT_AMOUNTS, names.percents, strict=True):
        try:
            total, shares = _gpu_request(spec, of_amount.resource)
        except QuantityError:  # the amount is not known, so it may be all of a device
            total, shares = amount.whole, ()
        totals.append(total)
        of_containers.append(shares)
    percents = percents_of(totals)
    percent_containers = tuple(of_containers) if percents else ()
    labels = mapping(metadata.get("labels"))
    try:
        return device_request(
            ContainerSums(
                units, containers, percents=percents, percent_containers=percent_containers
            ),
            _annotations(metadata),
            {key: text(value) for key, value in labels.items()},
            names,
        )
    except WireError:
        return replace(
            whole, percents=of_one_device(percents), percent_containers=percent_containers
        )


def _from_totals(
    capacity: Fields, allocatable: Fields, names: Names
) -> tuple[tuple[InventoryDevice, ...], Reason | None]:
    """Return the devices of a node without inventory, and why it is closed if it is.

    The kubelet takes unhealthy devices out of allocatable: if that says 0 they all are.
    """
    total = _units(capacity.get(names.resource, allocatable.get(names.resource, 0)))
    count = _units(capacity.get(names.count, allocatable.get(names.count, 0)))
    usable = _units(allocatable.get(names.resource, total))
    if not total:
        return (), None
    if not count:
        return (), Reason.NO_COUNT
    if count > MAX_DEVICES:
        return (), Reason.BROKEN_CAPACITY
    devices = (InventoryDevice(total // count, healthy=usable > 0),) * count
    return devices, Reason.UNEVEN if total % count else None


def _gpu_request(spec: Fields, resource: str) -> tuple[int, Shares]:
    """Return (units of the whole pod, units of each regular container that asks)."""
    regular = [_limit(mapping(item), resource) for item in elements(spec.get("containers"))]
    inits = map(mapping, elements(spec.get("initContainers")))
    units = peak(regular, ((_limit(each, resource), each.get("restartPolicy")) for each in inits))
    if units > MAX_UNITS:
        raise QuantityError(f"{resource}: the pod's total is larger than {MAX_UNITS}")
    return units, tuple((index, each) for index, each in enumerate(regular) if each)


def _limit(container: Fields, resource: str) -> int:
    resources = mapping(container.get("resources"))
    quantity = mapping(resources.get("limits")).get(resource)
    if quantity is None:
        quantity = mapping(resources.get("requests")).get(resource)
    return 0 if quantity is None else _units(quantity, f"{resource}: ")


def _units(quantity: object, where: str = "") -> int:
    if not isinstance(quantity, str | int | float):
        raise QuantityError(f"{where}a {type(quantity).__name__} is not a quantity")
    try:
        return to_units(quantity)
    except QuantityError as error:
        raise QuantityError(f"{where}{error}") from error
