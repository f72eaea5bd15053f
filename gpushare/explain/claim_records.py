"""What is kept of ResourceClaims, and what is asked of them for a pod.

Pure. Tested in `tests/unit/explain/test_claim_books.py`.
"""

from dataclasses import dataclass

from gpushare.core.claims.model import ClaimRequest, Holding, PodClaims
from gpushare.core.model import PodRef
from gpushare.errors import MessageError
from gpushare.wire.dra.objects import ClaimMetadata, ClaimsPod, ResourceClaim
from gpushare.wire.dra.requests import claim_request, holdings


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRecord:
    """What is kept of a ResourceClaim."""

    ref: PodRef
    is_allocated: bool
    holdings: tuple[Holding, ...] = ()
    """Devices of its allocation, of any driver."""
    users: tuple[tuple[str, str], ...] = ()
    """(name, uid) of each pod for which it is reserved."""
    request: ClaimRequest | None = None
    """What it asks for; None once it is allocated, or if it is not modelled."""
    mistake: str = ""
    """Why it is not modelled, as a sentence for its owner."""


@dataclass(frozen=True, slots=True)
class PodRequests:
    """What kube-scheduler has to allocate for a pod, as far as the books show it."""

    claims: PodClaims
    """Empty if every claim of the pod is allocated, or if `mistake` is set."""
    uids: tuple[str, ...] = ()
    """Uid of each of the claims; "" for one that kube-scheduler makes for extended resources."""
    missing: tuple[str, ...] = ()
    """Names of claims that are not shown yet."""
    mistake: str = ""
    """Why the claims are not modelled, as a sentence for their owner."""


def claim_record(claim: ResourceClaim) -> ClaimRecord:
    """Return what is kept of a claim. Raises MessageError if it has no name or uid."""
    metadata = claim.metadata or ClaimMetadata()
    if not (metadata.namespace and metadata.name and metadata.uid):
        raise MessageError("ResourceClaim.metadata: namespace, name or uid is missing")
    ref = PodRef(metadata.namespace, metadata.name, metadata.uid)
    users = tuple((user.name or "", user.uid or "") for user in claim.reserved)
    if claim.allocation is not None:
        held = holdings(claim.allocation)
        return ClaimRecord(ref=ref, is_allocated=True, holdings=held, users=users)
    if claim.spec is None:
        return ClaimRecord(ref=ref, is_allocated=False, mistake=f"claim {ref} cannot be read")
    try:
        request = claim_request(claim.spec)
    except MessageError as error:
        return ClaimRecord(ref=ref, is_allocated=False, mistake=f"claim {ref}: {error}")
    return ClaimRecord(ref=ref, is_allocated=False, users=users, request=request)


def claim_names(pod: ClaimsPod) -> tuple[str, ...] | None:
    """Return the names of the pod's claims; None while one is still to be made of a template."""
    statuses = (pod.status and pod.status.resource_claim_statuses) or ()
    made = {status.name: status.resource_claim_name for status in statuses}
    names: list[str] = []
    for claim in (pod.spec and pod.spec.resource_claims) or ():
        if not claim.resource_claim_name and claim.name not in made:
            return None
        # Of a template without requests the controller makes no claim.
        if name := claim.resource_claim_name or made.get(claim.name):
            names.append(name)
    return tuple(names)
