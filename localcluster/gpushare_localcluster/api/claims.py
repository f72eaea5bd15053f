"""ResourceClaims on their way in: what may be written, and what may change later.

Of an allocation next to nothing is checked: no node, no device, no amount, no finalizer. That is as
in a real API server. Pure: bodies in, bodies out. Facts: tried on kube-apiserver 1.37.
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
    """Return the claim with what a request leaves out: one device, counted."""
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
    counted = {"count": exactly.get("count") or 1} if mode == "ExactCount" else {}
    return {**exactly, "allocationMode": mode, **counted}


def check_update(old: Object, new: Object) -> None:
    """Refuse a change of what a claim asks for. Raises StatusError: 422."""
    if section(old, "spec") != section(new, "spec"):
        raise _invalid(new, "spec", _IMMUTABLE)


def with_status(old: Object, new: Object) -> Object:
    """Return the claim after a write of its status: its metadata stays, whatever was sent.

    Raises StatusError: 422.
    """
    status = with_fields(section(new, "status"))
    replaced: Object = {**old, "status": status}
    before, after = section(section(old, "status"), "allocation"), section(status, "allocation")
    if before and after and before != after:
        raise _invalid(old, "status.allocation", "field cannot be modified once set")
    if not after and status.get("reservedFor"):
        why = "Forbidden: may not be specified when `allocated` is not set"
        raise _invalid(old, "status.reservedFor", why)
    if after and not before:
        _check_results(old, after)
    return replaced


def _check_results(claim: Object, allocation: Object) -> None:
    asked = elements(section(section(claim, "spec"), "devices"), "requests")
    names = {str(request.get("name")) for request in asked}
    for at, result in enumerate(elements(section(allocation, "devices"), "results")):
        where = f"status.allocation.devices.results[{at}]"
        request, share = str(result.get("request")), result.get("shareID")
        if request.partition("/")[0] not in names:
            why = f"Invalid value: {request!r}: must be the name of a request in the claim"
            raise _invalid(claim, f"{where}.request", why)
        if share is not None and not _UUID.fullmatch(str(share)):
            why = f"Invalid value: {share!r}: must be a lowercase UUID"
            raise _invalid(claim, f"{where}.shareID", why)


def _invalid(claim: Object, field: str, why: str) -> StatusError:
    return invalid("ResourceClaim", name_of(claim), field, why)
