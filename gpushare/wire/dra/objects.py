"""Objects of resource.k8s.io/v1 as the API server writes them: narrow typed structs.

Every field may be missing or null. What a claim asks for and how it is configured stays as it came:
a field that is not known may be a condition, and what configures a device is copied to the letter.
Knows nothing of what the fields mean to us (see slices.py and claims.py).

Tested in `tests/unit/wire/dra`.
"""

from typing import Any

import msgspec
from msgspec import Struct

from gpushare.wire.codec import Codec
from gpushare.wire.objects import Metadata, Pod, PodSpec, PodStatus, Present, Terms
from gpushare.wire.quantity import Quantity


class Pool(Struct, gc=False, rename="camel"):
    """ResourcePool."""

    name: str | None = None
    generation: int | None = None
    resource_slice_count: int | None = None


class Attribute(Struct, gc=False):
    """DeviceAttribute, of which only text is read."""

    string: str | None = None


class Range(Struct, gc=False):
    """CapacityRequestPolicyRange."""

    min: Quantity | None = None
    max: Quantity | None = None
    step: Quantity | None = None


class RequestPolicy(Struct, gc=False, rename="camel"):
    """CapacityRequestPolicy."""

    default: Quantity | None = None
    valid_values: list[Quantity] | None = None
    valid_range: Range | None = None


class Capacity(Struct, gc=False, rename="camel"):
    """DeviceCapacity."""

    value: Quantity | None = None
    request_policy: RequestPolicy | None = None


class DeviceTaint(Struct, gc=False):
    """DeviceTaint."""

    effect: str | None = None


class Device(Struct, gc=False, rename="camel"):
    """Device of a slice."""

    name: str | None = None
    attributes: dict[str, Attribute] | None = None
    capacity: dict[str, Capacity] | None = None
    allow_multiple_allocations: bool | None = None
    taints: list[DeviceTaint] | None = None
    consumes_counters: list[Any] | None = None
    binding_conditions: list[str] | None = None


class SliceSpec(Struct, gc=False, rename="camel"):
    """ResourceSliceSpec; without a node name its devices are of several nodes."""

    driver: str | None = None
    pool: Pool | None = None
    node_name: str | None = None
    devices: list[Device] | None = None


class ResourceSlice(Struct, gc=False):
    """ResourceSlice."""

    metadata: Metadata | None = None
    spec: SliceSpec | None = None


class ClassSpec(Struct, gc=False):
    """DeviceClassSpec, of which only the settings for drivers are read."""

    config: list[dict[str, Any]] | None = None


class DeviceClass(Struct, gc=False):
    """DeviceClass."""

    metadata: Metadata | None = None
    spec: ClassSpec | None = None


class ClaimMetadata(Metadata, gc=False, rename="camel"):
    """ObjectMeta with what keeps the object from being removed."""

    finalizers: list[str] | None = None


class ClaimSpec(Struct, gc=False):
    """ResourceClaimSpec, its parts as they came."""

    devices: dict[str, Any] | None = None


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


class ClaimAllocation(Struct, gc=False, rename="camel"):
    """AllocationResult."""

    devices: DeviceResults | None = None
    allocation_timestamp: str | None = None
    node_selector: Terms | None = None


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
    """ResourceClaim."""

    metadata: ClaimMetadata | None = None
    spec: ClaimSpec | None = None
    status: ClaimStatus | None = None


class PodClaim(Present, gc=False, rename="camel"):
    """PodResourceClaim."""

    name: str | None = None
    resource_claim_name: str | None = None


class ClaimsPodSpec(PodSpec, gc=False, rename="camel"):
    """PodSpec with its claims."""

    resource_claims: list[PodClaim] | None = None  # type: ignore[assignment]  # decoded, not set


class PodClaimStatus(Struct, gc=False, rename="camel"):
    """PodResourceClaimStatus: the claim that was made from a template."""

    name: str | None = None
    resource_claim_name: str | None = None


class ClaimsPodStatus(PodStatus, gc=False, rename="camel"):
    """PodStatus with the claims that were made for it."""

    resource_claim_statuses: list[PodClaimStatus] | None = None


class ClaimsPod(Pod, gc=False):
    """Pod with its claims; others need not decode them."""

    spec: ClaimsPodSpec | None = None
    status: ClaimsPodStatus | None = None


CLAIMS_PODS: Codec[ClaimsPod] = Codec(ClaimsPod, "Pod")
RESOURCE_SLICES: Codec[ResourceSlice] = Codec(ResourceSlice)
DEVICE_CLASSES: Codec[DeviceClass] = Codec(DeviceClass)
RESOURCE_CLAIMS: Codec[ResourceClaim] = Codec(ResourceClaim)
