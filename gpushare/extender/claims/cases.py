"""What a pod that waits has and lacks, by its claims as last shown.

Tested in `tests/unit/extender/claims/test_allocator.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from gpushare.core.model import PodRef, Request
from gpushare.core.selectors import Demands
from gpushare.errors import MessageError, WireError
from gpushare.explain.claims import ON_SEVERAL, ClaimsLack, common_nodes, lasting_nodes
from gpushare.extender.claims.books import ClaimBooks, claim_ref
from gpushare.extender.claims.view import Wait
from gpushare.wire.annotations import Names
from gpushare.wire.demands import demands_of
from gpushare.wire.dra.claims import CLASS, ClaimRequest, claim_names, claim_request
from gpushare.wire.dra.objects import ClaimsPod, ResourceClaim
from gpushare.wire.dra.templates import SizedTemplate, awaited_template
from gpushare.wire.objects import Metadata, PodSpec
from gpushare.wire.pods import Group, group_of, observe_pod, pod_ref, priority_of

_MOST_CLAIMS = 64
_LONGEST_TIME = 40
"""Characters of a time that are kept."""


@dataclass(frozen=True, slots=True)
class WaitingPod:
    """What is kept of a pod with claims that is on no node: some hundred bytes, whatever else its
    owner has written.
    """

    ref: PodRef
    claims: tuple[str, ...] | None
    """The names of its claims; None while one is still to be made of a template."""
    template: SizedTemplate | None
    """The template by size of which one is to be made."""
    gated: bool
    ending: bool
    """It is marked deleted."""
    created: str
    """RFC 3339."""
    priority: int
    group: Group
    request: Request
    demands: Demands
    nominated: str
    """The node on which kube-scheduler makes room for it by evicting others; "": none."""
    mistake: str = ""
    """Why nobody can tell what it asks for."""


def kept_pod(pod: ClaimsPod, names: Names) -> WaitingPod:
    """Return what is kept of the pod. Raises MessageError if it has no name or uid.

    names: of the resource whose node filters judge it.
    """
    spec, metadata = pod.spec or PodSpec(), pod.metadata or Metadata()
    request, mistake, claims = Request(), "", claim_names(pod)
    if claims and len(claims) > _MOST_CLAIMS:
        mistake, claims = f"it has more than {_MOST_CLAIMS} claims", claims[:_MOST_CLAIMS]
    else:
        try:
            request = observe_pod(pod, names).request
        except WireError as error:
            mistake = str(error)
    return WaitingPod(
        pod_ref(pod),
        claims,
        awaited_template(pod),
        bool(spec.scheduling_gates),
        metadata.deletion_timestamp is not None,
        (metadata.creation_timestamp or "")[:_LONGEST_TIME],
        priority_of(pod),
        group_of(pod),
        request,
        demands_of(pod),
        (pod.status and pod.status.nominated_node_name) or "",
        mistake,
    )


@dataclass(frozen=True, slots=True)
class Case:
    """A pod that waits, and its claims."""

    pod: PodRef
    wanted: tuple[tuple[ResourceClaim, ClaimRequest], ...]
    """Those that have no devices yet, the largest first."""
    held: tuple[ResourceClaim, ...]
    """Those of ours that have."""
    nodes: frozenset[str] | None
    """Where the devices are that it has; None: anywhere."""
    request: Request
    demands: Demands
    lasting: frozenset[str] | None = None
    """Those of the nodes that stay so if it gives back what is reserved for it alone."""
    nominated: str = ""
    """The node on which kube-scheduler makes room for it by evicting others; "": none."""

    def size(self) -> int:
        """Return the bytes that it wants on all devices together."""
        return sum(asked.memory for _, asked in self.wanted)

    def no_room(self, unit: int) -> Wait:
        """Return that no node has room for its claims. unit: the bytes of one."""
        if self.lasting is not None and not self.lasting:
            return Wait(self.pod, ON_SEVERAL)
        claims = tuple(asked.asked(unit) for _, asked in self.wanted)
        lack = ClaimsLack(claims, self.request, self.demands, self.lasting)
        names = ", ".join(str(claim_ref(claim)) for claim, _ in self.wanted)
        several = "s" * (len(self.wanted) > 1)
        why = f"no node has room for its claim{several} {names}"
        return Wait(self.pod, why, claim=names, lack=lack)

    def sharing(self, homes: Mapping[str, str]) -> "Case":
        """Return it without the claims that others bring to a node. homes: nodes by claim."""
        uids = {claim_ref(claim).uid for claim, _ in self.wanted}
        required = frozenset(homes[uid] for uid in uids & homes.keys())
        if not required:
            return self
        wanted = tuple(each for each in self.wanted if claim_ref(each[0]).uid not in homes)
        # Of two nodes none: it has to be on both.
        nodes = required if len(required) == 1 else frozenset[str]()
        return replace(
            self, wanted=wanted, nodes=nodes if self.nodes is None else nodes & self.nodes
        )

    def where_nominated(self) -> "Case":
        """Return it as one that may be nowhere else than where it is nominated."""
        nominated = frozenset({self.nominated})
        nodes = nominated if self.nodes is None else nominated & self.nodes
        return replace(self, nodes=nodes, nominated="")

    def only_node(self) -> str:
        """Return the node where all that it has is; "" if it may be anywhere, or nowhere."""
        return next(iter(self.nodes)) if self.nodes and len(self.nodes) == 1 else ""


def case_of(pod: WaitingPod, books: ClaimBooks) -> Case | None:
    """Return the pod's case; None if nothing can be done for it now.

    Raises WireError if it cannot be served.
    """
    # Whoever schedules the pod: nobody else can satisfy our class.
    if pod.claims is None or pod.ending or pod.gated:
        return None
    claims = [books.named(pod.ref.namespace, name) for name in dict.fromkeys(pod.claims)]
    if None in claims:
        return None
    present = [claim for claim in claims if claim is not None]
    requests = [(claim, _asked(claim)) for claim in present]
    ours = [(claim, asked) for claim, asked in requests if asked is not None]
    held = tuple(claim for claim, _ in ours if claim.allocation)
    wanted = [(claim, asked) for claim, asked in ours if not claim.allocation]
    under_way = books.in_flight()
    if not wanted or not all(
        claim.is_open and not claim.reserved and claim_ref(claim).uid not in under_way
        for claim, _ in wanted
    ):
        return None
    wanted.sort(key=lambda each: -each[1].memory)
    if pod.mistake:
        raise MessageError(pod.mistake)
    nodes, lasting = common_nodes(present), lasting_nodes(pod.ref.uid, present)
    return Case(
        pod.ref, tuple(wanted), held, nodes, pod.request, pod.demands, lasting, pod.nominated
    )


def has_devices(pod: WaitingPod, books: ClaimBooks) -> bool:
    """Return whether all its claims of our class have devices, or may have."""
    under_way = books.in_flight()
    try:
        claims = [books.named(pod.ref.namespace, name) for name in pod.claims or ()]
        return bool(claims) and all(
            claim is not None
            and (
                claim.allocation is not None
                or claim_ref(claim).uid in under_way
                or _asked(claim) is None
            )
            for claim in claims
        )
    except WireError:
        return False


def _asked(claim: ResourceClaim) -> ClaimRequest | None:
    """Return what the claim asks of our class, if anything. Raises MessageError that names it."""
    try:
        return claim_request(claim, CLASS)
    except MessageError as error:
        raise MessageError(f"claim {claim_ref(claim)}: {error}") from error
