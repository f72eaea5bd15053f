"""Objects of resource.k8s.io/v1 as the API server writes them: narrow typed structs, as in
gpushare/wire/objects.py.

Every field may be missing or null. Parameters for drivers are not read: users write any JSON there,
which the API server passes on to the letter, and which must hide nothing else of the object.
devices.py and requests.py read the meaning of the fields.

Tested in `tests/unit/wire/dra`.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.json import Decoder

from gpushare.wire.codec import Codec
from gpushare.wire.objects import (
    Container,
    Metadata,
    NodeSelector,
    Pod,
    PodSpec,
    PodStatus,
    Taint,
    Toleration,
)
from gpushare.wire.quantity import Quantity

CLASS = "gpushare.io"
"""DeviceClass of the driver's devices."""


class ResourcePool(Struct, gc=False, rename="camel"):
    name: str | None = None
    generation: int | None = None
    resource_slice_count: int | None = None


class DeviceAttribute(Struct, gc=False):
    """DeviceAttribute: one field is set."""

    string: str | None = None
    version: str | None = None
    integer: int | None = msgspec.field(default=None, name="int")
    boolean: bool | None = msgspec.field(default=None, name="bool")


class CapacityRequestPolicyRange(Struct, gc=False, frozen=True):
    min: Quantity | None = None
    max: Quantity | None = None
    step: Quantity | None = None


class CapacityRequestPolicy(Struct, gc=False, frozen=True, rename="camel"):
    default: Quantity | None = None
    valid_values: tuple[Quantity, ...] | None = None
    valid_range: CapacityRequestPolicyRange | None = None


class DeviceCapacity(Struct, gc=False, rename="camel"):
    value: Quantity | None = None
    request_policy: CapacityRequestPolicy | None = None


class Counter(Struct, gc=False):
    value: Quantity | None = None


class CounterSet(Struct, gc=False):
    name: str | None = None
    counters: dict[str, Counter] | None = None


class CounterConsumption(Struct, gc=False, rename="camel"):
    """DeviceCounterConsumption."""

    counter_set: str | None = None
    counters: dict[str, Counter] | None = None
    compatibility_groups: list[str] | None = None


class SliceDevice(Struct, gc=False, rename="camel"):
    """Device of a slice."""

    name: str | None = None
    attributes: dict[str, DeviceAttribute] | None = None
    capacity: dict[str, DeviceCapacity] | None = None
    allow_multiple_allocations: bool | None = None
    taints: list[Taint] | None = None
    consumes_counters: list[CounterConsumption] | None = None
    binding_conditions: list[str] | None = None
    node_name: str | None = None
    node_selector: NodeSelector | None = None
    all_nodes: bool | None = None


class SliceSpec(Struct, gc=False, rename="camel"):
    """ResourceSliceSpec; without a node name the devices are of several nodes."""

    driver: str | None = None
    pool: ResourcePool | None = None
    node_name: str | None = None
    devices: list[SliceDevice] | None = None
    node_selector: NodeSelector | None = None
    all_nodes: bool | None = None
    per_device_node_selection: bool | None = None
    shared_counters: list[CounterSet] | None = None


class ResourceSlice(Struct, gc=False):
    metadata: Metadata | None = None
    spec: SliceSpec | None = None


class CelSelector(Struct, gc=False):
    """CELDeviceSelector."""

    expression: str | None = None


class DeviceSelector(Struct, gc=False):
    cel: CelSelector | None = None


class ClassSpec(Struct, gc=False, rename="camel"):
    """DeviceClassSpec."""

    selectors: list[DeviceSelector] | None = None
    extended_resource_name: str | None = None


class DeviceClass(Struct, gc=False):
    metadata: Metadata | None = None
    spec: ClassSpec | None = None


class CapacityAmounts(Struct, gc=False):
    """CapacityRequirements."""

    requests: dict[str, Quantity] | None = None


class ExactRequest(Struct, gc=False, rename="camel", omit_defaults=True):
    """ExactDeviceRequest, and DeviceSubRequest by its name."""

    name: str | None = None
    device_class_name: str | None = None
    selectors: list[DeviceSelector] | None = None
    allocation_mode: str | None = None
    count: int | None = None
    admin_access: bool | None = None
    tolerations: list[Toleration] | None = None
    capacity: CapacityAmounts | None = None
    derived_attributes: list[Any] | None = None


class RequestItem(Struct, gc=False, rename="camel", omit_defaults=True):
    """DeviceRequest."""

    name: str | None = None
    exactly: ExactRequest | None = None
    first_available: list[ExactRequest] | None = None


class ConstraintItem(Struct, gc=False, rename="camel", omit_defaults=True):
    """DeviceConstraint."""

    requests: list[str] | None = None
    match_attribute: str | None = None
    distinct_attribute: str | None = None


class ClaimDevices(Struct, gc=False):
    """DeviceClaim without the configuration of devices."""

    requests: list[RequestItem] | None = None
    constraints: list[ConstraintItem] | None = None


class TaintedDevices(Struct, gc=False):
    """DeviceTaintSelector."""

    driver: str | None = None
    pool: str | None = None
    device: str | None = None


class TaintRuleSpec(Struct, gc=False, rename="camel"):
    """DeviceTaintRuleSpec."""

    device_selector: TaintedDevices | None = None
    taint: Taint | None = None


class DeviceTaintRule(Struct, gc=False):
    metadata: Metadata | None = None
    spec: TaintRuleSpec | None = None


class ClaimMetadata(Struct, gc=False, rename="camel"):
    """ObjectMeta of a claim."""

    name: str | None = None
    namespace: str | None = None
    uid: str | None = None
    resource_version: str | None = None


class ClaimSpec(Struct, gc=False):
    """ResourceClaimSpec."""

    devices: ClaimDevices | None = None


class Result(Struct, gc=False, rename="camel"):
    """DeviceRequestAllocationResult."""

    request: str | None = None
    driver: str | None = None
    pool: str | None = None
    device: str | None = None
    admin_access: bool | None = None
    share_id: str | None = msgspec.field(default=None, name="shareID")
    consumed_capacity: dict[str, Quantity] | None = None


class DeviceResults(Struct, gc=False):
    """DeviceAllocationResult."""

    results: list[Result] | None = None


class ClaimAllocation(Struct, gc=False):
    """AllocationResult."""

    devices: DeviceResults | None = None


class Consumer(Struct, gc=False):
    """ResourceClaimConsumerReference."""

    resource: str | None = None
    name: str | None = None
    uid: str | None = None


class ClaimStatus(Struct, gc=False, rename="camel"):
    """ResourceClaimStatus."""

    allocation: ClaimAllocation | None = None
    reserved_for: list[Consumer] | None = None


class ResourceClaim(Struct, gc=False):
    metadata: ClaimMetadata | None = None
    spec: ClaimSpec | None = None
    status: ClaimStatus | None = None

    @property
    def allocation(self) -> ClaimAllocation | None:
        """The allocation, or None."""
        return self.status.allocation if self.status else None

    @property
    def reserved(self) -> Sequence[Consumer]:
        """The consumers that the claim is reserved for."""
        return (self.status and self.status.reserved_for) or ()


class ClaimTemplateSpec(Struct, gc=False):
    """ResourceClaimTemplateSpec."""

    spec: ClaimSpec | None = None


class ResourceClaimTemplate(Struct, gc=False):
    metadata: Metadata | None = None
    spec: ClaimTemplateSpec | None = None

    def claim(self) -> ResourceClaim:
        """Return a claim of the template, without a name."""
        return ResourceClaim(spec=(self.spec and self.spec.spec) or ClaimSpec())


def needs_of(pod: Pod) -> bytes:
    """Return the fields that decide which nodes and devices the pod can get, as JSON."""
    metadata, spec = pod.metadata or Metadata(), pod.spec or PodSpec()
    status = pod.status or PodStatus()
    needs = Pod(
        metadata=Metadata(name=metadata.name, namespace=metadata.namespace, uid=metadata.uid),
        spec=PodSpec(
            node_selector=spec.node_selector,
            affinity=spec.affinity,
            containers=_amounts_alone(spec.containers),
            init_containers=_amounts_alone(spec.init_containers),
            overhead=spec.overhead,
            resources=spec.resources,
            tolerations=spec.tolerations,
            resource_claims=spec.resource_claims,
        ),
        status=PodStatus(resource_claim_statuses=status.resource_claim_statuses),
    )
    return msgspec.json.encode(needs)


def _amounts_alone(containers: Sequence[Container] | None) -> list[Container]:
    return [
        Container(resources=container.resources, restart_policy=container.restart_policy)
        for container in containers or ()
    ]


RESOURCE_SLICES: Codec[ResourceSlice] = Codec(ResourceSlice)
DEVICE_CLASSES: Codec[DeviceClass] = Codec(DeviceClass, rescue=Decoder(DeviceClass).decode)
DEVICE_TAINT_RULES: Codec[DeviceTaintRule] = Codec(DeviceTaintRule)
CLAIM_TEMPLATES: Codec[ResourceClaimTemplate] = Codec(
    ResourceClaimTemplate, rescue=Decoder(ResourceClaimTemplate).decode
)
RESOURCE_CLAIMS: Codec[ResourceClaim] = Codec(ResourceClaim, rescue=Decoder(ResourceClaim).decode)
