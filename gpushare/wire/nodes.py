"""Nodes: from the structs of objects.py to NodeSpec, for one managed resource.

Knows our inventory annotation and, without one, the resources of the aliyun device plug-in: a total
and a count. An unreadable value closes the node with a reason instead of failing: the pods already
there stay in the ledger.

Nodes that do not exist yet are made up by an autoscaler: a template is a copy of a node of the
group under another name, or, for an empty group, the labels and sums of the cloud provider's
settings. Sums say nothing of single devices, so a label may: `gpushare.io/shape: 4x24GiB`.
"""

import hashlib
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from gpushare.core.amounts import PERCENT_AMOUNTS
from gpushare.core.model import NodeSpec, Reason
from gpushare.errors import AnnotationError, MessageError, QuantityError, SettingsError
from gpushare.wire.annotations import Names
from gpushare.wire.gpu_models import label_value, labelled_gpus, node_model
from gpushare.wire.inventory import (
    LARGEST_IN_GIB,
    Inventory,
    InventoryDevice,
    decode_inventory,
    devices_of_totals,
    encode_inventory,
    mib_of,
    most_sharers,
)
from gpushare.wire.objects import Metadata, Node, NodeStatus
from gpushare.wire.quantity import Quantity, to_bytes, to_milli

SHAPE = re.compile(r"(\d{1,3})x(\d{1,9})(GiB|MiB)?", re.ASCII)
"""How many devices, and the memory of each; without GiB or MiB in units of the cluster."""

_Quantities = Mapping[str, Quantity]


class InventoryCache:
    """The last decoded inventories, by node: an unchanged text is not parsed again.

    A kubelet writes its Node every five minutes and more often, and nearly never other devices.
    Keeps the digest of a text. For one thread.
    """

    def __init__(self) -> None:
        self._read: dict[str, dict[str, tuple[bytes, NodeSpec]]] = {}

    def spec(self, bare: NodeSpec, text: str, unit: str, annotation: str) -> NodeSpec:
        """Return the node with the devices of its inventory, as `node_spec` does.

        bare: the node without devices. annotation: the key that the text has.
        """
        of_node = self._read.setdefault(bare.name, {})
        digest = hashlib.sha256(text.encode(errors="surrogatepass")).digest()
        cached = of_node.get(annotation)
        if cached is None or cached[0] != digest:
            cached = of_node[annotation] = digest, _from_inventory(NodeSpec(bare.name), text, unit)
        return replace(cached[1], cpu=bare.cpu, memory=bare.memory)

    def keep(self, names: Collection[str]) -> None:
        """Forget all nodes but these."""
        self._read = {name: specs for name, specs in self._read.items() if name in names}

    def forget(self, name: str) -> None:
        """Forget a deleted node."""
        self._read.pop(name, None)


def node_spec(
    node: Node, names: Names, unit: str, inventories: InventoryCache | None = None
) -> NodeSpec:
    """Return the devices of the node in units; closed with a Reason if the devices are unreadable.

    unit: the cluster's unit of memory (GiB, MiB, a chunk). An inventory annotation leads. Without
    one every device has total / count units, if both are there. The total is the node's
    *capacity*, as the original reads it: the kubelet takes unhealthy devices out of allocatable,
    which would make every device look smaller. A node with allocatable alone counts by allocatable,
    and if that is 0 every device is unhealthy (the plug-in is away, or all devices are).
    inventories: the cache of decoded inventories. Raises MessageError if the node has no name.
    """
    metadata = node.metadata or Metadata()
    if not metadata.name:
        raise MessageError("Node.metadata: name is missing")
    status = node.status or NodeStatus()
    capacity, allocatable = status.capacity or {}, status.allocatable or {}
    bare = NodeSpec(
        metadata.name,
        cpu=_host_amount(allocatable, capacity, "cpu", to_milli),
        memory=_host_amount(allocatable, capacity, "memory", to_bytes),
    )
    text = (metadata.annotations or {}).get(names.inventory)
    if text is not None:
        inventories = inventories or InventoryCache()
        spec = inventories.spec(bare, text, unit, names.inventory)
    else:
        spec = _from_totals(bare, capacity, allocatable, names)
    labels = metadata.labels or {}
    try:
        spec = replace(spec, max_sharers=most_sharers(labels))
    except AnnotationError:
        spec = replace(spec, closed=spec.closed or Reason.BROKEN_SHARERS)
    model = node_model(labels)
    # The label first: kube-scheduler compares selectors of pods with the label.
    return replace(spec, models=(model,) * len(spec.capacity)) if model else spec


def unit_of(nodes: Collection[Node], resource_names: Collection[Names]) -> str:
    """Return the memory unit of the inventories, or a guess by the size of the devices.

    Raises SettingsError if inventories name several units.
    """
    stated: set[str] = set()
    largest = 0
    for node in nodes:
        for names in resource_names:
            text = ((node.metadata and node.metadata.annotations) or {}).get(names.inventory)
            try:
                stated |= {decode_inventory(text).unit} if text is not None else set()
            except AnnotationError:
                continue
            spec = node_spec(node, names, "")
            largest = max(largest, *spec.capacity, 0)
    if len(stated) > 1:
        units = " and ".join(sorted(stated))
        raise SettingsError(f"nodes count memory in {units}: say --unit, as of `gpushare serve`")
    return next(iter(stated), "MiB" if largest > LARGEST_IN_GIB else "GiB")


def share_by_labels(nodes: Collection[Node], names: Names, unit: str) -> dict[str, int]:
    """Change nodes with labels of GPU feature discovery alone, as if a device plug-in shared their
    GPUs. Return the number of GPUs by name of the changed nodes.

    Compute is advertised where any node advertises it.
    """
    amounts = {
        name
        for node in nodes
        for name in ((node.status and node.status.allocatable) or {})
        if name in {of_amount.resource for of_amount in names.percents}
    }
    changed: dict[str, int] = {}
    for node in nodes:
        spec, metadata = node_spec(node, names, unit), node.metadata or Metadata()
        count, mib = labelled_gpus(metadata.labels or {})
        units = mib // mib_of(unit)
        if spec.capacity or spec.closed or not units:
            continue
        devices = (InventoryDevice(units),) * count
        annotation = {names.inventory: encode_inventory(Inventory(unit, devices))}
        metadata.annotations = (metadata.annotations or {}) | annotation
        status = node.status or NodeStatus()
        usable: dict[str, Quantity] = {names.resource: units * count, names.count: count}
        for amount, of_amount in zip(PERCENT_AMOUNTS, names.percents, strict=True):
            if of_amount.resource in amounts:
                usable[of_amount.resource] = amount.whole * count
        status.allocatable = (status.allocatable or status.capacity or {}) | usable
        node.status = status
        changed[spec.name] = count
    return changed


def _from_inventory(bare: NodeSpec, text: str, unit: str) -> NodeSpec:
    try:
        inventory = decode_inventory(text)
    except AnnotationError:
        return replace(bare, closed=Reason.BROKEN_INVENTORY)
    if inventory.unit != unit:
        return replace(bare, closed=Reason.OTHER_UNIT)
    return replace(
        bare,
        capacity=tuple(device.mem for device in inventory.devices),
        healthy=tuple(device.healthy for device in inventory.devices),
        models=tuple(label_value(device.model) for device in inventory.devices),
        uuids=tuple(device.uuid for device in inventory.devices),
        marks_assigned=inventory.marks_assigned,
        serves_by_identity=inventory.serves_by_identity,
        gone=inventory.gone,
    )


def _from_totals(
    bare: NodeSpec, capacity: _Quantities, allocatable: _Quantities, names: Names
) -> NodeSpec:
    """Return the node by the totals, as `devices_of_totals` does."""
    try:
        devices, closed = devices_of_totals(capacity, allocatable, names)
    except QuantityError:
        return replace(bare, closed=Reason.BROKEN_CAPACITY)
    return replace(
        bare,
        capacity=tuple(device.mem for device in devices),
        healthy=tuple(device.healthy for device in devices),
        models=("",) * len(devices),
        uuids=("",) * len(devices),
        closed=closed,
        counted=bool(devices),
    )


def _host_amount(
    allocatable: _Quantities,
    capacity: _Quantities,
    name: str,
    convert: Callable[[Quantity], int],
) -> int | None:
    """Return CPU or memory for pods: allocatable (the node keeps a part for itself); None if
    unknown.
    """
    quantity = allocatable.get(name, capacity.get(name))
    try:
        return None if quantity is None else convert(quantity)
    except QuantityError:
        return None
