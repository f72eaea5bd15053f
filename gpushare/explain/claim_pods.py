"""Pods that ask by claims, as pods that are to be placed on the nodes of a DRA driver.

All claims of a pod need devices of one node, and a claim that several pods name needs devices once:
such pods are placed as one. Pure.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from gpushare.core.claims.model import ClaimRequest, PodClaims
from gpushare.core.model import MAX_UNITS, Request
from gpushare.core.node_filters import PODS
from gpushare.core.selectors import NO_DEMANDS, Demands, NodeSelectorTerm, Requirement
from gpushare.errors import MessageError
from gpushare.explain.claim_records import memory_units
from gpushare.explain.placer import PodBatch
from gpushare.wire.annotations import Names
from gpushare.wire.demands import demands_of
from gpushare.wire.dra.objects import ResourceClaim
from gpushare.wire.objects import Pod
from gpushare.wire.pods import priority_of, request_of


class ClaimSource(Protocol):
    """Claims and templates of a cluster and of manifests."""

    def named(self, namespace: str, name: str) -> ResourceClaim | None:
        """Return the claim of that name."""

    def of_template(self, namespace: str, name: str) -> ResourceClaim | None:
        """Return a claim of the template of that name; None if there is no template."""

    def request(self, claim: ResourceClaim) -> ClaimRequest:
        """Return the requests of a claim with the selectors of the classes. Raises MessageError."""

    def nodes_of(self, claim: ResourceClaim) -> frozenset[str] | None:
        """Return the nodes that can use the devices of an allocated claim; None: not known."""


@dataclass(frozen=True, slots=True)
class OpenClaim:
    """A claim that needs devices."""

    request: ClaimRequest
    key: str = ""
    """Namespace/name of a claim that several pods can name; "" for a claim of one pod alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimsUser:
    """Equal pods that ask by claims."""

    name: str
    request: Request
    """CPU, memory and other resources of each."""
    claims: tuple[OpenClaim, ...]
    demands: Demands = NO_DEMANDS
    priority: int = 0
    count: int = 1


def wanted_of(users: Iterable[ClaimsUser], unit: int) -> list[PodBatch]:
    """Return the pods to be placed, in order; pods that share claims come as one.

    unit: bytes of a memory unit. Users without a claim that needs devices are left out.
    """
    groups: list[list[ClaimsUser]] = []
    for user in users:
        keys = _keys([user])
        joined = [group for group in groups if keys & _keys(group)] if keys else []
        merged = [member for group in joined for member in group] + [user]
        if joined:
            groups[groups.index(joined[0])] = merged
            for group in joined[1:]:
                groups.remove(group)
        elif user.claims:
            groups.append(merged)
    return [_wanted(group, unit) for group in groups]


def user_of(
    pod: Pod,
    names: Names,
    source: ClaimSource,
    *,
    name: str,
    namespace: str,
    anew: bool = False,
) -> ClaimsUser | None:
    """Return the pod with the claims that need devices; None for a pod without claims.

    names: of a resource that the pod does not ask for. namespace: the pod's. anew: the pod's node
    goes, so all claims need devices again. Raises WireError if a claim is missing or not modelled.
    """
    claims: list[OpenClaim] = []
    demands, has_claims = demands_of(pod), False
    for claim, key in _claims(pod, namespace, source):
        has_claims = True
        if claim.allocation is None or anew:
            claims.append(OpenClaim(source.request(claim), key))
        elif (nodes := source.nodes_of(claim)) is not None:
            term = NodeSelectorTerm(
                fields=(Requirement("metadata.name", "In", tuple(sorted(nodes))),)
            )
            demands = demands.both(Demands(terms=(term,), tolerations=demands.tolerations))
    if not has_claims:
        return None
    return ClaimsUser(
        name=name,
        request=request_of(pod, names),
        claims=tuple(claims),
        demands=demands,
        priority=priority_of(pod),
    )


def memory_parts(claims: Iterable[ClaimRequest], unit: int) -> list[int]:
    """Return the units of memory that claims ask of each device, for requests that name memory."""
    parts: list[int] = []
    for claim in claims:
        for request in claim.requests:
            first = request.alternatives[0]
            units = memory_units(dict(first.amounts), unit)
            if units is not None:
                parts += [min(units, MAX_UNITS)] * (first.count or 1)
    return parts


def _claims(pod: Pod, namespace: str, source: ClaimSource) -> Iterator[tuple[ResourceClaim, str]]:
    """Yield (claim, key of the claim for other pods) for each claim of the pod, once a claim."""
    statuses = (pod.status and pod.status.resource_claim_statuses) or ()
    generated = {item.name: item.resource_claim_name for item in statuses}
    seen_keys: set[str] = set()
    for pod_claim in (pod.spec and pod.spec.resource_claims) or ():
        name = pod_claim.resource_claim_name or generated.get(pod_claim.name) or ""
        if name:
            claim = source.named(namespace, name)
            key = f"{namespace}/{name}" if pod_claim.resource_claim_name else ""
            label = f"claim {namespace}/{name}"
        elif pod_claim.name in generated:  # of a template without requests none is made
            continue
        else:
            template = pod_claim.resource_claim_template_name or ""
            claim, key = source.of_template(namespace, template), ""
            label = f"ResourceClaimTemplate {namespace}/{template}"
        if claim is None:
            raise MessageError(f"there is no {label}")
        if key not in seen_keys:
            seen_keys |= {key} - {""}
            yield claim, key


def _keys(users: Iterable[ClaimsUser]) -> frozenset[str]:
    return frozenset(claim.key for user in users for claim in user.claims if claim.key)


def _wanted(users: Sequence[ClaimsUser], unit: int) -> PodBatch:
    """Return equal pods, or all these as one."""
    first = users[0]
    if not _keys(users):
        return _of_claims(first, [claim.request for claim in first.claims], unit)
    pods = sum(user.count for user in users)
    demands, amounts = first.demands, Counter({PODS: pods} if pods > 1 else {})
    for user in users:
        demands = demands.both(user.demands)
        for resource, amount in user.request.resources:
            amounts[resource] += amount * user.count
    host = Request(
        cpu=sum(user.request.cpu * user.count for user in users),
        memory=sum(user.request.memory * user.count for user in users),
        resources=tuple(sorted(amounts.items())),
    )
    shared = {claim.key: claim for user in users for claim in user.claims if claim.key}
    own_claims = [claim for user in users for claim in user.claims * user.count if not claim.key]
    as_one = replace(
        first,
        name=first.name if pods == 1 else f"{first.name} ({pods} pods that share a claim)",
        request=host,
        demands=demands,
        priority=max(user.priority for user in users),
        count=1,
    )
    return _of_claims(as_one, [claim.request for claim in (*shared.values(), *own_claims)], unit)


def _of_claims(user: ClaimsUser, claims: Sequence[ClaimRequest], unit: int) -> PodBatch:
    parts = memory_parts(claims, unit)
    request = user.request.of_parts(parts) if parts else user.request
    return PodBatch(
        name=user.name,
        request=request,
        count=user.count,
        demands=user.demands,
        priority=user.priority,
        claims=PodClaims(tuple(claims)),
    )
