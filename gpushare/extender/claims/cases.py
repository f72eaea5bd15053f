"""The pods that wait: what each has and lacks, by its claims as last shown, and the gangs of them.

A gang is a group of pods whose claims are given out whole or not at all. It says how many of its
pods it needs at once. Its members are those that wait, and those that the watch of all pods knows
besides: they are bound, or have no claim.

Tested in `tests/unit/extender/claims/test_allocator.py` and
`tests/unit/extender/claims/test_gangs.py`.
"""

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field, replace

from gpushare.core.model import PodRef, Request
from gpushare.core.selectors import Demands
from gpushare.errors import MessageError, WireError
from gpushare.explain.claims import ON_SEVERAL, ClaimsLack, common_nodes, lasting_nodes
from gpushare.extender.claims.books import ClaimBooks, claim_ref
from gpushare.extender.claims.view import Wait
from gpushare.wire.annotations import Names
from gpushare.wire.demands import MOST_DEMANDS, demands_of
from gpushare.wire.dra.claims import CLASS, ClaimRequest, claim_names, claim_request
from gpushare.wire.dra.objects import ClaimsPod, ResourceClaim
from gpushare.wire.dra.templates import SizedTemplate, awaited_template
from gpushare.wire.groups import Group, group_of
from gpushare.wire.objects import Metadata, PodSpec
from gpushare.wire.pods import observe_pod, pod_ref, priority_of

COMPLETED_WITHIN = 30.0
"""Seconds that a gang of which a part alone has devices comes before all other pods. After them its
pods that are on no node lose what they have."""
_MOST_CLAIMS = 256
_LONGEST_TIME = 40
"""Characters of a time that are kept."""


@dataclass(frozen=True, slots=True)
class WaitingPod:
    """What is kept of a pod with claims that is on no node: mostly some hundred bytes, and some ten
    thousand at most.
    """

    ref: PodRef
    claims: tuple[str, ...] | None
    """The names of its claims, () of more than are looked at; None while one is still to be made of
    a template."""
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
    """Why nobody can tell what it asks for, or of nodes."""


def kept_pod(pod: ClaimsPod, names: Names) -> WaitingPod:
    """Return what is kept of the pod. Raises MessageError if it has no name or uid.

    names: of the resource whose node filters judge it.
    """
    spec, metadata = pod.spec or PodSpec(), pod.metadata or Metadata()
    request, mistake, claims, demands = Request(), "", claim_names(pod), demands_of(pod)
    if not demands.known:
        mistake = (
            "its node selector, affinity and tolerations are more than gpushare reads"
            f" ({MOST_DEMANDS >> 10} KiB): select its nodes by fewer labels"
        )
    try:
        request = observe_pod(pod, names).request
    except WireError as error:
        mistake = str(error)
    if claims and len(claims) > _MOST_CLAIMS:
        mistake, claims = f"it has more than {_MOST_CLAIMS} claims", ()
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
        demands,
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


def case_of(pod: WaitingPod, books: ClaimBooks) -> Case | None:
    """Return the pod's case; None if nothing can be done for it now.

    Raises WireError if it cannot be served.
    """
    # Whoever schedules the pod: nobody else can satisfy our class.
    if pod.claims is None or pod.ending or pod.gated:
        return None
    if not pod.claims and pod.mistake:
        raise MessageError(pod.mistake)
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


@dataclass(slots=True)
class Gang:
    """A gang of which at least one pod waits."""

    group: Group
    others: Set[str]
    """Its members that are bound or have no claim, by uid."""
    pods: list[WaitingPod] = field(default_factory=list)
    """Its members that wait, with devices or without."""
    tried: bool = False
    """It was tried in this round."""

    def needed(self, with_devices: int) -> int:
        """Return how many pods have to get devices at once. with_devices: of those that wait."""
        return max(self.group.size - len(self.others) - with_devices, 0)

    def why_not_yet(self, needed: int, able: int, with_devices: int) -> str:
        """Return why it cannot be tried, with so many pods of those needed; "" if it can."""
        if needed <= able:
            return ""
        size, known = self.group.size, len(self.others) + len(self.pods)
        if known < size:
            return f"its group needs {size} pods at once: {known} are there"
        ready = len(self.others) + with_devices + able
        return f"its group needs {size} pods at once: {ready} have their claims"


class Gangs:
    """The gangs of each round, and since when a part of one alone has devices.

    others: returns the uids of a group's pods that are bound or have no claims, by the watch of all
    pods. The two watches do not keep step: who is on its way from one to the other is in none.
    """

    def __init__(self, others: Callable[[str], Set[str]], clock: Callable[[], float]) -> None:
        self._others = others
        self._clock = clock
        self.of: dict[str, Gang] = {}
        """By the uid of a pod that waits, its gang."""
        self._in_part: dict[str, float] = {}

    def look(self, pods: Mapping[str, WaitingPod]) -> None:
        """Begin a round: these pods wait."""
        gangs: dict[str, Gang] = {}
        self.of = {}
        for uid, pod in pods.items():
            group = pod.group
            if not group.whole:
                continue
            if group.key not in gangs:
                gangs[group.key] = Gang(group, self._others(group.key) - pods.keys())
            self.of[uid] = gang = gangs[group.key]
            if not pod.ending:
                gang.pods.append(pod)
        self._in_part = {key: at for key, at in self._in_part.items() if key in gangs}

    def note(self, gang: Gang, *, in_part: bool) -> None:
        """Note whether a part of it alone has devices."""
        if in_part:
            self._in_part.setdefault(gang.group.key, self._clock())
        else:
            self._in_part.pop(gang.group.key, None)

    def comes_first(self, gang: Gang | None) -> bool:
        """Return whether a part of it has devices, and the others come before all other pods."""
        if gang is None or gang.group.key not in self._in_part:
            return False
        return not self.is_overdue(gang)

    def is_overdue(self, gang: Gang) -> bool:
        """Return whether it has had a part alone for too long."""
        since = self._in_part.get(gang.group.key)
        return since is not None and self._clock() >= since + COMPLETED_WITHIN
