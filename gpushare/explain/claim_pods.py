"""Pods that ask by claims, as pods that are to be placed on the nodes of a DRA driver.

All claims of a pod are given cards of one node, and a claim that several pods name is given them
once: these pods are placed as one. It reads pods and claims as they were shown; no I/O.

Tested in `tests/unit/explain/test_claim_pods.py`.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from gpushare.core.dealing import Asked
from gpushare.core.model import MAX_UNITS, Request
from gpushare.core.node_filters import PODS
from gpushare.core.selectors import NO_DEMANDS, Demands, Requirement, Term
from gpushare.errors import MessageError
from gpushare.explain.claims import ShownClaims
from gpushare.explain.placer import Wanted
from gpushare.wire.annotations import Names
from gpushare.wire.demands import demands_of
from gpushare.wire.dra.claims import CLASS, ClaimRequest, claim_request, nodes_of
from gpushare.wire.dra.counted import DealsInUnits, units_up
from gpushare.wire.dra.objects import ClaimsPod, PodClaim, ResourceClaim
from gpushare.wire.dra.slices import NO_SUCH_AMOUNT, SliceCard
from gpushare.wire.pods import priority_of, request_of


@dataclass(frozen=True, slots=True)
class AskedClaim:
    """A claim that wants devices."""

    asked: Asked
    key: str = ""
    """By what other pods know it, too; "": it is the pod's own."""


@dataclass(frozen=True, slots=True)
class ClaimsUser:
    """Equal pods that ask by claims."""

    name: str
    request: Request
    """What each takes of the host."""
    claims: tuple[AskedClaim, ...]
    """Those without devices."""
    demands: Demands = NO_DEMANDS
    priority: int = 0
    count: int = 1


class ClaimSource(ShownClaims, Protocol):
    """Claims and templates, and what a claim takes of the driver's cards at least."""

    def of_template(self, namespace: str, name: str) -> ResourceClaim | None:
        """Return a claim as the template of that name makes it; None if there is no template."""

    def least_dealt(self, memory: int) -> int:
        """Return the fewest bytes that a claim for so many takes. Raises MessageError if it can be
        had of no card.
        """


def wanted_of(users: Iterable[ClaimsUser]) -> list[Wanted]:
    """Return the pods to be placed, in their order; those that share claims as one.

    Users that ask for nothing are left out.
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
    return [_wanted(group) for group in groups]


def user_of(
    pod: ClaimsPod,
    names: Names,
    source: ClaimSource,
    *,
    name: str,
    namespace: str,
    anew: bool = False,
) -> ClaimsUser | None:
    """Return what the pod wants by its claims; None if none of them is of our class.

    names: of a resource that the pod does not ask for. namespace: the pod's. anew: the pod is on a
    node that goes, and its claims with it. Raises WireError if a claim is missing, or can have no
    devices.
    """
    claims: list[AskedClaim] = []
    demands, ours = demands_of(pod), False
    for pod_claim, claim, key in _claims(pod, namespace, source):
        try:
            asked = claim_request(claim, CLASS)
        except MessageError as error:
            raise MessageError(f"its claim {pod_claim.name}: {error}") from error
        ours = ours or asked is not None
        if claim.allocation and not anew:
            nodes = tuple(sorted(nodes_of(claim.allocation)))
            if nodes:  # else any will do
                named = Term(fields=(Requirement("metadata.name", "In", nodes),))
                demands = demands.both(Demands(terms=(named,), tolerations=demands.tolerations))
        elif asked is not None:
            claims.append(AskedClaim(asked_of(asked, source), key))
    if not ours:
        return None
    return ClaimsUser(name, request_of(pod, names), tuple(claims), demands, priority_of(pod))


def asked_of(claim: ClaimRequest, source: ClaimSource) -> Asked:
    """Return what the claim asks for, with the units that it takes at least.

    Raises MessageError if no card has it.
    """
    least = (part._replace(memory=source.least_dealt(part.memory)) for part in claim.parts)
    units = ClaimRequest(tuple(least)).asked(source.unit).request
    return Asked(units, claim.asked(source.unit).exact)


def least_dealt(cards: Iterable[SliceCard], memory: int) -> int:
    """Return the bytes that a claim for so many takes of a card; of unlike cards the fewest.

    Raises MessageError if cards are large enough, and deal out no such amount.
    """
    large = [card for card in cards if card.shared and card.open and card.memory >= memory]
    amounts = [amount for card in large if (amount := card.consumed(memory)) is not None]
    if large and not amounts:
        raise MessageError(NO_SUCH_AMOUNT)
    return min(amounts, default=memory)


@dataclass(frozen=True, slots=True)
class DealsAsAny:
    """How a card is dealt out of which nothing is known: as any of these, whichever takes most."""

    cards: frozenset[DealsInUnits]
    unit: int

    def takes(self, asked: int) -> int:
        """Return the units that a claim for so many bytes takes."""
        units = (deals.takes(asked) for deals in self.cards)
        known = [each for each in units if each <= MAX_UNITS]
        return max(known, default=units_up(asked, self.unit))

    def most(self, units: int) -> int:
        """Return the most units that may be asked for to take so many, 0 for none."""
        large = (deals for deals in self.cards if deals.card.memory >= units * self.unit)
        return min((deals.most(units) for deals in large), default=units)


def _claims(
    pod: ClaimsPod, namespace: str, source: ClaimSource
) -> Iterator[tuple[PodClaim, ResourceClaim, str]]:
    """Yield the pod's claims, and by what key others know each; what is only named comes once."""
    statuses = (pod.status and pod.status.resource_claim_statuses) or ()
    generated = {each.name: each.resource_claim_name for each in statuses}
    seen: set[str] = set()
    for pod_claim in (pod.spec and pod.spec.resource_claims) or ():
        name = pod_claim.resource_claim_name or generated.get(pod_claim.name) or ""
        if name:
            claim = source.named(namespace, name)
            key = f"{namespace}/{name}" if pod_claim.resource_claim_name else ""
            label = f"claim {namespace}/{name}"
        elif pod_claim.name in generated:  # of a template that asks for nothing none is made
            continue
        else:
            template = pod_claim.resource_claim_template_name or ""
            claim, key = source.of_template(namespace, template), ""
            label = f"ResourceClaimTemplate {namespace}/{template}"
        if claim is None:
            raise MessageError(f"there is no {label}")
        if key not in seen:
            seen |= {key} - {""}
            yield pod_claim, claim, key


def _keys(users: Iterable[ClaimsUser]) -> frozenset[str]:
    return frozenset(claim.key for user in users for claim in user.claims if claim.key)


def _wanted(users: Sequence[ClaimsUser]) -> Wanted:
    """Return equal pods, or all these as one."""
    first = users[0]
    if not _keys(users):
        return _of_claims(first.name, first.count, first.request, first.claims, first)
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
    own = [claim for user in users for claim in user.claims * user.count if not claim.key]
    name = first.name if pods == 1 else f"{first.name} ({pods} pods that share a claim)"
    priority = max(user.priority for user in users)
    as_one = replace(first, demands=demands, priority=priority)
    return _of_claims(name, 1, host, [*shared.values(), *own], as_one)


def _of_claims(
    name: str, count: int, host: Request, claims: Iterable[AskedClaim], like: ClaimsUser
) -> Wanted:
    """Return what asks for all these claims; the largest one is with what is taken of the host."""
    every = (claim.asked for claim in claims)
    largest, *rest = sorted(every, key=lambda each: (-sum(each.exact), -each.request.total))
    request = host.of_parts(largest.request.parts)
    return Wanted(name, request, count, like.demands, like.priority, largest.exact, tuple(rest))
