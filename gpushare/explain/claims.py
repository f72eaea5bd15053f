"""The explanation of a pod that asks by ResourceClaims, from the pod and the books of claims.

It reads the books and changes nothing; no I/O. How the pod stands on the nodes is told by the code
that tells it of pods by annotation, over the ledger whose holders are claims. Which nodes take pods
with claims is told by kube-scheduler's own filters, and by the mode of each node.

Tested in `tests/unit/explain/test_claims.py` and `tests/unit/explain/test_claim_filters.py`.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Protocol

from gpushare.core.dealing import AsDealt, Asked, Dealing
from gpushare.core.explain import Explanation
from gpushare.core.held_snapshot import HeldSnapshot
from gpushare.core.model import Amounts, PodRef, Request
from gpushare.core.node_filters import Obstacle, OwnFilters
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
from gpushare.wire.dra.objects import ClaimMetadata, ClaimsPod, ResourceClaim
from gpushare.wire.dra.slices import DeviceKey, SliceCard
from gpushare.wire.pods import has_ended, names_any, observe_pod, pod_ref

BY_ANNOTATION = Obstacle(
    "shares devices by annotation", "its device plug-in and the pods by annotation are gone"
)
UNKNOWN_NODE = Obstacle("known by slices alone", "the API server shows the node")

_NOTHING: Amounts = MappingProxyType({})
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


class ShownClaims(Protocol):
    """Claims as last shown."""

    @property
    def unit(self) -> int:
        """The bytes of a unit."""

    def named(self, namespace: str, name: str) -> ResourceClaim | None:
        """Return the claim of that name."""


class ClaimReader(ShownClaims, Protocol):
    """Claims as last shown, and what names of devices mean."""

    def card(self, key: DeviceKey) -> SliceCard | None:
        """Return the card that a slice last gave this name."""

    def in_flight(self) -> frozenset[str]:
        """Return the uids of claims of which nobody knows whether an allocation lands."""


class ClaimFilters(OwnFilters):
    """kube-scheduler's own filters, and which nodes take no claims whatever is free there.

    own: over the same nodes and all their pods. by_annotation: returns whether a node has devices
    by annotation, or pods that hold some.
    """

    def __init__(self, own: OwnFilters, by_annotation: Callable[[str], bool]) -> None:
        super().__init__(own.states)
        self._own = own
        self._by_annotation = by_annotation

    def obstacles(
        self,
        node: str,
        request: Request,
        demands: Demands = NO_DEMANDS,
        more: Amounts = _NOTHING,
    ) -> tuple[Obstacle, ...]:
        """Return all that keeps the pod from the node, the gravest first."""
        if node not in self.states:
            return (UNKNOWN_NODE,)
        both = (BY_ANNOTATION,) * self._by_annotation(node)
        return both + self._own.obstacles(node, request, demands, more)

    def refuses(self, node: str, demands: Demands) -> bool:
        """Return whether the node is kept from a pod with these demands, whatever is free there."""
        closed = node not in self.states or self._by_annotation(node)
        return closed or self._own.refuses(node, demands)

    def free(self, node: str, resource: str) -> int | None:
        """Return how much of a resource is left for pods; None if it is not counted there."""
        return self._own.free(node, resource)

    def shortages(
        self, node: str, request: Request, *, less: Iterable[Request] = (), more: Amounts = _NOTHING
    ) -> tuple[Obstacle, ...]:
        """Return the resources of which the node has too little; the end of claims frees none."""
        del less
        return self._own.shortages(node, request, more=more)


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
        largest, snapshot = lack.largest, self.source.ledger.snapshot()
        explanation = explanation_of(
            self.source,
            largest.request,
            lack.demands,
            now,
            snapshot=snapshot,
            dealt=AsDealt(self.dealing, largest),
            nodes=lack.nodes,
        )
        # Several cards for one amount are written as a count of the claim, which its author knows.
        explanation = replace(explanation, split=0)
        if not explanation.fit or len(lack.claims) == 1:
            return explanation
        held = HeldSnapshot.of(snapshot)
        scorer = self.source.ranking(largest.request)
        fit = tuple(
            node
            for node in explanation.fit
            if self.dealing.all_fit(held, node, lack.claims, scorer)
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
    shown = {name: books.named(ref.namespace, name) for name in names or ()}
    claims = [
        explain_claim(claim, books)
        if claim is not None
        else ClaimExplanation(PodRef(ref.namespace, name, ""), "missing")
        for name, claim in shown.items()
    ]
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
    lasting = lasting_nodes(ref.uid, (claim for claim in shown.values() if claim is not None))
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
    claim: ResourceClaim, books: ClaimReader, *, foreign: bool = False
) -> ClaimExplanation | None:
    """Return what is to be said of the claim; None if it is of another class.

    foreign: say it of another class too, if the claim is allocated.
    """
    read = claim.metadata or ClaimMetadata()
    ref = PodRef(read.namespace or "", read.name or "", read.uid or "")
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
        cards = []
        for device in given_devices(claim.allocation):
            card = books.card(device.key)
            units = None if device.memory is None else -(-device.memory // books.unit)
            cards.append(GivenCard(*device.key, card.uuid if card else "", units))
        return ClaimExplanation(ref, "allocated", wrong, asked, where, tuple(cards), pods)
    if wrong:
        return ClaimExplanation(ref, "refused", wrong)
    return ClaimExplanation(
        ref, "in doubt" if ref.uid in books.in_flight() else "waiting", "", asked
    )


def refusal(why: object) -> str:
    """Return why a claim can have no devices, and what its author can do."""
    return f"{why}{_ANEW}"


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
