"""Records of ResourceClaims, and the requests of a pod's claims.

Pure. Tested in `tests/unit/explain/test_claim_books.py`.
"""

from dataclasses import dataclass

from gpushare.core.claims.model import ClaimRequest, Holding, PodClaims
from gpushare.core.model import PodRef
from gpushare.errors import MessageError
from gpushare.wire.dra.objects import ClaimMetadata, ResourceClaim
from gpushare.wire.dra.requests import claim_request, holdings
from gpushare.wire.objects import Pod


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRecord:
    """Record of a ResourceClaim."""

    ref: PodRef
    is_allocated: bool
    holdings: tuple[Holding, ...] = ()
    """Devices of the allocation, of any driver."""
    users: tuple[tuple[str, str], ...] = ()
    """(name, uid) of each pod in status.reservedFor."""
    request: ClaimRequest | None = None
    """Requests; None for an allocated claim, or for a claim that is not modelled."""
    mistake: str = ""
    """Reason why the claim is not modelled, as a sentence for the owner."""


@dataclass(frozen=True, slots=True)
class PodRequests:
    """Requests that kube-scheduler has to allocate for a pod, by the books."""

    claims: PodClaims
    """Empty if every claim of the pod is allocated, or if `mistake` is set."""
    uids: tuple[str, ...] = ()
    """Uid of each of the claims; "" for one that kube-scheduler makes for extended resources."""
    missing: tuple[str, ...] = ()
    """Names of claims that are not shown yet."""
    mistake: str = ""
    """Reason why the claims are not modelled, as a sentence for the owner."""


def claim_record(claim: ResourceClaim) -> ClaimRecord:
    """Return the record of a claim. Raises MessageError for a claim without a name or uid."""
    metadata = claim.metadata or ClaimMetadata()
    if not (metadata.namespace and metadata.name and metadata.uid):
        raise MessageError("ResourceClaim.metadata: namespace, name or uid is missing")
    ref = PodRef(metadata.namespace, metadata.name, metadata.uid)
    users = tuple((user.name or "", user.uid or "") for user in claim.reserved)
    if claim.allocation is not None:
        claim_holdings = holdings(claim.allocation)
        return ClaimRecord(ref=ref, is_allocated=True, holdings=claim_holdings, users=users)
    if claim.spec is None:
        return ClaimRecord(ref=ref, is_allocated=False, mistake=f"claim {ref} cannot be read")
    try:
        request = claim_request(claim.spec)
    except MessageError as error:
        return ClaimRecord(ref=ref, is_allocated=False, mistake=f"claim {ref}: {error}")
    return ClaimRecord(ref=ref, is_allocated=False, users=users, request=request)


def claim_names(pod: Pod) -> tuple[str, ...] | None:
    """Return the names of the pod's claims; None while a template's claim is still to be made."""
    statuses = (pod.status and pod.status.resource_claim_statuses) or ()
    generated_names = {status.name: status.resource_claim_name for status in statuses}
    names: list[str] = []
    for claim in (pod.spec and pod.spec.resource_claims) or ():
        if not claim.resource_claim_name and claim.name not in generated_names:
            return None
        # Of a template without requests the controller makes no claim.
        if name := claim.resource_claim_name or generated_names.get(claim.name):
            names.append(name)
    return tuple(names)
