"""The explanation of a pod that asks by ResourceClaims, from the pod and the books of claims.

It reads the books and changes nothing; no I/O. How the pod stands on the nodes is told by the code
that tells it of pods by annotation, over the ledger whose holders are claims.

Tested in `tests/unit/explain/test_claims.py`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from gpushare.core.dealing import AsDealt, Asked, Dealing
from gpushare.core.explanation import Explanation
from gpushare.core.held_snapshot import HeldSnapshot
from gpushare.core.model import PodRef, Request
from gpushare.core.selectors import NO_DEMANDS, Demands
from gpushare.errors import MessageError, WireError
from gpushare.explain.pod import (
    ClaimExplanation,
    ExplainSource,
    GivenCard,
    PodExplanation,
    explanation_of,
)
from gpushare.wire.conditions import scheduler_view
from gpushare.wire.demands import demands_of
from gpushare.wire.dra.claims import CLASS, claim_names, claim_request, given_devices, nodes_of
from gpushare.wire.dra.objects import ClaimAllocation, ClaimsPod, ResourceClaim
from gpushare.wire.dra.slices import DeviceKey, SliceCard
from gpushare.wire.pods import has_ended, names_any, observe_pod, pod_ref

_NO_HOST = Request()
_TO_BE_MADE = "its claims are still to be made of their templates"
ON_SEVERAL = (
    "its claims have devices on different nodes, and other pods use them: no node has them all;"
    " delete those pods, or create this one with other claims"
)
"""Why a pod can be on no node, whatever is free."""

_ANEW = (
    "; what a claim asks for cannot be changed: correct it, or its template, and create it and the"
    " pod again"
)


class ClaimReader(Protocol):
    """Claims as last shown, and what names of devices mean."""

    @property
    def unit(self) -> int:
        """The bytes of a unit."""

    def named(self, namespace: str, name: str) -> ResourceClaim | None:
        """Return the claim of that name."""

    def card(self, key: DeviceKey) -> SliceCard | None:
        """Return the card that a slice last gave this name."""

    def in_flight(self) -> frozenset[str]:
        """Return the uids of claims of which nobody knows whether an allocation lands."""


@dataclass(frozen=True, slots=True)
class ClaimsLack:
    """What a pod has no devices for yet, and where it may have them."""

    claims: tuple[Asked, ...]
    """What they ask for, all on one node, in the order in which they are given devices."""
    host: Request = _NO_HOST
    """The CPU and memory of the pod."""
    demands: Demands = NO_DEMANDS
    """What the pod demands of its node."""
    nodes: frozenset[str] | None = None
    """Where the devices are that others use with it, so that they are not given back; None:
    anywhere."""

    @property
    def largest(self) -> Asked:
        """What it needs of a node for its largest claim: what keeps it out, if one claim does."""
        claim = max(self.claims, key=lambda asked: (asked.exact[0], sum(asked.exact)))
        return Asked(self.host.of_parts(claim.request.parts), claim.exact)


@dataclass(frozen=True, slots=True)
class DriverNodes:
    """The nodes of the driver."""

    source: ExplainSource
    """A resource named after the class, whose pods are claims."""
    dealing: Dealing
    """How the cards are dealt out."""

    def explanation(self, lack: ClaimsLack, now: float) -> Explanation:
        """Return how a pod stands on the nodes that lacks this.

        It is that of the largest claim, which fits only where all others do with it.
        """
        largest = lack.largest
        explanation = explanation_of(
            self.source,
            largest.request,
            lack.demands,
            now,
            dealt=AsDealt(self.dealing, largest),
            nodes=lack.nodes,
        )
        # Several cards for one amount are written as a count of the claim, which its author knows.
        explanation = replace(explanation, split=0)
        if not explanation.fit or len(lack.claims) == 1:
            return explanation
        held = HeldSnapshot.of(self.source.ledger.snapshot())
        scorer = self.source.ranking(largest.request)
        fit = tuple(
            node
            for node in explanation.fit
            if node in held.row and self.dealing.all_fit(held, node, lack.claims, scorer)
        )
        return replace(explanation, fit=fit, apart=len(explanation.fit) - len(fit))


def explain_claims(
    pod: ClaimsPod,
    books: ClaimReader,
    nodes: DriverNodes | None,
    unit: str,
    *,
    waits: str = "",
    now: float = 0.0,
) -> PodExplanation:
    """Return the explanation of a pod with claims as it is now, in seconds since the epoch.

    nodes: None if nothing is to be said of them. waits: why its claims got no devices when that was
    last tried, or "". Raises MessageError if none of its claims is of our class.
    """
    ref = pod_ref(pod)
    answer = PodExplanation(ref, CLASS, unit, "ended", scheduler_view(pod))
    if has_ended(pod):
        return answer
    names = claim_names(pod)
    claims = [explain_claim(ref.namespace, name, books) for name in dict.fromkeys(names or ())]
    ours = tuple(claim for claim in claims if claim is not None)
    if names is not None and not ours:
        raise MessageError(
            f"none of the claims of pod {ref} is of class {CLASS}: gpushare has no say in it"
        )
    answer = replace(answer, claims=ours)
    node = (pod.spec and pod.spec.node_name) or ""
    if node:
        return replace(answer, state="bound", node=node)
    if names is None:
        return replace(answer, state="pending", waits=_TO_BE_MADE)
    waiting = [claim.asked for claim in ours if claim.state == "waiting" and claim.asked]
    answer = replace(answer, state="pending", waits=waits if waiting else "")
    if not waiting or nodes is None:
        return answer
    try:
        request = observe_pod(pod, nodes.source.names).request
    except WireError as error:
        return replace(answer, waits=str(error))
    shown = (books.named(ref.namespace, name) for name in names)
    lasting = lasting_nodes(ref.uid, (claim for claim in shown if claim is not None))
    if lasting is not None and not lasting:
        return replace(answer, waits=ON_SEVERAL)
    in_order = tuple(sorted(waiting, key=lambda asked: -sum(asked.exact)))
    lack = ClaimsLack(in_order, request, demands_of(pod), lasting)
    explanation = nodes.explanation(lack, now)
    return replace(answer, request=lack.largest.request, explanation=explanation)


def by_claims(pod: ClaimsPod, resources: Sequence[str]) -> bool:
    """Return whether the pod has claims, and asks for none of the resources."""
    return bool(pod.spec and pod.spec.resource_claims) and not names_any(pod, resources)


def explain_claim(
    namespace: str, name: str, books: ClaimReader, *, foreign: bool = False
) -> ClaimExplanation | None:
    """Return what is to be said of the claim; None if it is of another class.

    foreign: say it of another class too, if the claim is allocated.
    """
    claim = books.named(namespace, name)
    if claim is None:
        return ClaimExplanation(PodRef(namespace, name, ""), "missing")
    ref = PodRef(namespace, name, (claim.metadata and claim.metadata.uid) or "")
    asked, wrong = None, ""
    try:
        request = claim_request(claim, CLASS)
        if request is None and not (foreign and claim.allocation):
            return None
        asked = request.asked(books.unit) if request is not None else None
    except MessageError as error:
        wrong = refusal(error)
    if claim.allocation:
        where = ", ".join(sorted(nodes_of(claim.allocation)))
        pods = tuple(each.name or "" for each in claim.reserved)
        cards = given_cards(claim.allocation, books)
        return ClaimExplanation(ref, "allocated", wrong, asked, where, cards, pods)
    if wrong:
        return ClaimExplanation(ref, "refused", wrong)
    return ClaimExplanation(
        ref, "in doubt" if ref.uid in books.in_flight() else "waiting", "", asked
    )


def refusal(why: object) -> str:
    """Return why a claim can have no devices, and what its author can do."""
    return f"{why}{_ANEW}"


def given_cards(allocation: ClaimAllocation, books: ClaimReader) -> tuple[GivenCard, ...]:
    """Return the devices of an allocation, and of which cards they are now."""
    cards = []
    for device in given_devices(allocation):
        card = books.card(device.key)
        units = None if device.memory is None else -(-device.memory // books.unit)
        cards.append(GivenCard(*device.key, card.uuid if card else "", units))
    return tuple(cards)


def lasting_nodes(uid: str, claims: Iterable[ResourceClaim]) -> frozenset[str] | None:
    """Return the nodes where a pod has to be for devices that its claims have; None: any.

    What is reserved for the pod alone is given back if its other claims need another node.
    """
    return common_nodes(
        claim for claim in claims if [consumer.uid for consumer in claim.reserved] != [uid]
    )


def common_nodes(claims: Iterable[ResourceClaim]) -> frozenset[str] | None:
    """Return the nodes where all devices can be used that these claims have; None: any."""
    allocations = [claim.allocation for claim in claims if claim.allocation]
    pinned = [nodes for nodes in map(nodes_of, allocations) if nodes]
    return frozenset.intersection(*pinned) if pinned else None
