"""The rules for writes of ResourceClaims.

As in a real API server, next to nothing of an allocation is checked: no node, no device, no amount,
no finalizer. Pure: bodies in, bodies out. Facts: tried on kube-apiserver 1.37.
"""

import re

from gpushare_localcluster.api.objects import (
    Object,
    elements,
    name_of,
    section,
    with_fields,
)
from gpushare_localcluster.api.status import StatusError, invalid

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_IMMUTABLE = "Invalid value: field is immutable"


def with_defaults(body: Object) -> Object:
    """Return the claim with the defaults of its requests: a count of one device."""
    spec = section(body, "spec")
    devices = section(spec, "devices")
    if not isinstance(devices.get("requests"), list):
        return body
    requests = [
        {**request, "exactly": _counted(exactly)}
        if (exactly := section(request, "exactly"))
        else request
        for request in elements(devices, "requests")
    ]
    return {**body, "spec": {**spec, "devices": {**devices, "requests": requests}}}


def _counted(exactly: Object) -> Object:
    mode = exactly.get("allocationMode") or "ExactCount"
    count = {"count": exactly.get("count") or 1} if mode == "ExactCount" else {}
    return {**exactly, "allocationMode": mode, **count}


def check_update(old: Object, new: Object) -> None:
    """Refuse a change of the spec. Raises StatusError: 422."""
    if section(old, "spec") != section(new, "spec"):
        raise _invalid(new, "spec", _IMMUTABLE)


def with_status(old: Object, new: Object) -> Object:
    """Return the claim with the new status and the old metadata.

    Raises StatusError: 422.
    """
    status = with_fields(section(new, "status"))
    replaced: Object = {**old, "status": status}
    before, after = section(section(old, "status"), "allocation"), section(status, "allocation")
    if before and after and before != after:
        raise _invalid(old, "status.allocation", "field cannot be modified once set")
    if not after and status.get("reservedFor"):
        reason = "Forbidden: may not be specified when `allocated` is not set"
        raise _invalid(old, "status.reservedFor", reason)
    if after and not before:
        _check_results(old, after)
    return replaced


def _check_results(claim: Object, allocation: Object) -> None:
    requests = elements(section(section(claim, "spec"), "devices"), "requests")
    names = {str(request.get("name")) for request in requests}
    for at, result in enumerate(elements(section(allocation, "devices"), "results")):
        field_path = f"status.allocation.devices.results[{at}]"
        request, share = str(result.get("request")), result.get("shareID")
        if request.partition("/")[0] not in names:
            reason = f"Invalid value: {request!r}: must be the name of a request in the claim"
            raise _invalid(claim, f"{field_path}.request", reason)
        if share is not None and not _UUID.fullmatch(str(share)):
            reason = f"Invalid value: {share!r}: must be a lowercase UUID"
            raise _invalid(claim, f"{field_path}.shareID", reason)


def _invalid(claim: Object, field: str, reason: str) -> StatusError:
    return invalid("ResourceClaim", name_of(claim), field, reason)
