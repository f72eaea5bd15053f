"""Requests of claims, device classes, and allocations, as core types.

Tested in `tests/unit/wire/dra/test_requests.py`.
"""

from collections.abc import Iterable, Mapping

from gpushare.core.claims.model import ClaimRequest, ClassRecord, Holding
from gpushare.wire.dra.objects import ClaimAllocation, ClaimSpec, DeviceClass
from gpushare.wire.objects import PodSpec

MAX_CLAIM_TEXT = 64 << 10
"""Upper bound on the characters of one claim's requests and constraints; a larger claim is not
modelled."""

IMPLICIT_RESOURCE = "deviceclass.resource.kubernetes.io/"
"""Prefix of the extended resource that each DeviceClass has by its name."""


def claim_request(spec: ClaimSpec) -> ClaimRequest:
    """Return the devices that a claim asks for, still without the selectors of its classes.

    Raises MessageError with a sentence for the user if the claim says something that the model does
    not understand, or is too large.
    """
    raise NotImplementedError


def class_record(item: DeviceClass) -> ClassRecord:
    """Return a DeviceClass. Raises MessageError naming the field."""
    raise NotImplementedError


def classes_by_resource(classes: Iterable[ClassRecord]) -> dict[str, ClassRecord]:
    """Return the class of each extended resource that kube-scheduler allocates by a claim."""
    raise NotImplementedError


def extended_request(spec: PodSpec, classes: Mapping[str, ClassRecord]) -> ClaimRequest | None:
    """Return the claim that kube-scheduler makes for the extended resources of a pod; None if the
    pod asks for none of them.

    classes: by extended resource, without those of which the node has an allocatable amount: a
    device plug-in serves those. kube-scheduler allocates this claim after the pod's own claims.
    Raises MessageError if an amount is unreadable.
    """
    raise NotImplementedError


def holdings(allocation: ClaimAllocation) -> tuple[Holding, ...]:
    """Return the devices that an allocation holds; results with admin access hold none."""
    raise NotImplementedError
