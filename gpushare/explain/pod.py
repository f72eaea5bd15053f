"""The explanation of one pod, from the pod, the books, and the code that decides.

It reads the books and changes nothing; no I/O. The extender uses its own books, the command line
books that it has filled from lists.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol, Self, TypeVar

from gpushare.core.explain import BoundPodScore, Explanation, explain, score_bound_pod
from gpushare.core.model import PodRef, Request, Shares
from gpushare.core.node_filters import OwnFilters
from gpushare.core.ranking import Ranking
from gpushare.core.selectors import NO_DEMANDS, Demands
from gpushare.core.snapshot import Snapshot
from gpushare.core.states.entry import Entry, NodeBooks
from gpushare.errors import MessageError, UnknownNode, WireError
from gpushare.ledger import Reader
from gpushare.wire.annotations import Names
from gpushare.wire.conditions import SchedulerView, scheduler_view
from gpushare.wire.demands import demands_of
from gpushare.wire.dra.objects import CLASS
from gpushare.wire.held import HeldPlace
from gpushare.wire.objects import Pod
from gpushare.wire.placeholders import Placeholder
from gpushare.wire.pods import has_ended, pod_ref, request_among
from gpushare.wire.request_mistakes import misplaced

_NO_DEVICES = "its devices are not known, so its memory counts on every device of the node"
_NO_CARD = "the card that it was given is not on the node any more"
_NOT_IN_BOOKS = "it was bound without gpushare, or so recently that the books do not have it yet"


class ExplainSource(Protocol):
    """A managed resource: its names, its ledger, and its rankings."""

    @property
    def names(self) -> Names:
        """Return the names of the resource and its annotations."""

    @property
    def ledger(self) -> Reader:
        """Return the books."""

    @property
    def filters(self) -> OwnFilters:
        """Return kube-scheduler's own filters over the nodes."""

    @property
    def ranking_policy(self) -> str:
        """Return the name of the policy for pods that ask for none."""

    def ranking(self, request: Request) -> Ranking:
        """Return the ranking for the request. Raises MessageError for an unknown policy."""


_Source = TypeVar("_Source", bound=ExplainSource)


@dataclass(frozen=True, slots=True)
class GroupNeed:
    """What the group of a pod has no place for yet."""

    kinds: tuple[tuple[Request, int, int], ...]
    """Of each kind of request, the pod's own first, (what it asks for, how many places the group
    needs, how many of them fit)."""
    at_once: bool
    """The group says how many pods it needs; else these are its pods that wait."""


@dataclass(frozen=True, slots=True)
class GroupProgress:
    """How far the group of a pod has come."""

    name: str
    """Its kind, namespace and name."""
    size: int
    """How many pods it needs at once; 0: nobody says it, so each of them is bound by itself."""
    existing: int = 0
    """Pods that are there and have not ended."""
    bound: int = 0
    """Pods that have their place: they are bound, or their Bindings are sent."""
    waiting: int = 0
    """Pods that wait at bind for the others, each with a place."""
    until: float | None = None
    """When the first of these gives its place back, in seconds since the epoch."""


@dataclass(frozen=True, slots=True)
class Outstanding:
    """What is between filter and bind that concerns a pod that waits."""

    held: tuple[HeldPlace, ...] = ()
    """Places that are held for others, oldest first."""
    group: GroupNeed | None = None
    """None if the pod is the only one of a group that waits."""


@dataclass(frozen=True, slots=True)
class NodeAsk:
    """Whether an autoscaler was asked for a node for a pod."""

    asked: float | None = None
    """When, in seconds since the epoch; None: not yet."""
    why_not: str = ""
    """Why not, if it was not."""

    @classmethod
    def by(cls, placeholder: Placeholder) -> Self:
        """Return it of a pod whose placeholder has its status."""
        if placeholder.gated:
            name = f"{placeholder.namespace}/{placeholder.name}"
            return cls(why_not=f"its placeholder {name} has a scheduling gate, as Kueue sets them")
        return cls(placeholder.created)


@dataclass(frozen=True, slots=True)
class GivenCard:
    """A device that a claim has."""

    driver: str
    """The driver, the pool and the device name it in its slice."""
    pool: str
    device: str
    uuid: str
    """That of the card, "" if it is not known."""
    units: int | None
    """Memory that the claim has of it; None: the whole device."""


@dataclass(frozen=True, slots=True)
class ClaimExplanation:
    """A ResourceClaim of a pod."""

    ref: PodRef
    state: str
    """One of "allocated", "waiting" and "missing"."""
    requests: tuple[str, ...] = ()
    """Its requests in words."""
    node: str = ""
    """Where its devices can be used, "" if it has none or the allocation names no node."""
    cards: tuple[GivenCard, ...] = ()
    """Its devices."""
    pods: tuple[str, ...] = ()
    """Names of the pods that it is reserved for."""


@dataclass(frozen=True, slots=True)
class ClaimRemedy:
    """Claims that hold devices of a node: once they end, the claims of the pod find devices."""

    node: str
    ends: tuple[ClaimExplanation, ...]


@dataclass(frozen=True, slots=True)
class DeviceReading:
    """How the claims of a pending pod stand on the devices, by the model of first fit."""

    nodes: int = 0
    """Nodes with devices that were judged."""
    fit: tuple[str, ...] = ()
    """Nodes where kube-scheduler would find devices now."""
    kept_out: Mapping[str, int] = field(default_factory=dict)
    """How many more nodes kube-scheduler's other filters leave out, by reason."""
    not_judged: Mapping[str, int] = field(default_factory=dict)
    """How many more nodes are not judged, by reason."""
    remedy: ClaimRemedy | None = None
    """None if the pod has devices now on a node, or if no end of claims is known to help."""
    never: bool = False
    """No judged node has devices for the claims, even if all other claims end."""
    detail: str = ""
    """Why nothing can be judged, or ""."""


@dataclass(frozen=True, slots=True)
class PodExplanation:
    """The explanation of one pod."""

    ref: PodRef
    resource: str
    unit: str
    """The memory unit of the cluster."""
    state: str
    """One of "pending", "refused" (its request makes no sense), "binding" (a bind of it is under
    way, or in doubt), "bound" and "ended"."""
    scheduler: SchedulerView
    request: Request | None = None
    node: str = ""
    """Where it is bound, "" if it is not."""
    shares: Shares | None = None
    """Its devices there."""
    detail: str = ""
    """A further note, or ""."""
    served: bool | None = None
    """Whether kube-scheduler's file has a profile of its schedulerName; None: not known."""
    asked: bool | None = None
    """Whether the extender was called for it; None: not known."""
    explanation: Explanation | None = None
    """How it stands, while it is pending."""
    outstanding: Outstanding = Outstanding()
    judgement: BoundPodScore | None = None
    """How its place is scored, while it is bound, if a policy can score it."""
    mistake: str = ""
    """What in its spec does not go with device memory and takes effect all the same, or ""."""
    moves: int = 0
    """How many moves of other pods would make room, 0 if none is known or nobody has looked."""
    claims: tuple[ClaimExplanation, ...] = ()
    """Of a pod that asks for no managed resource."""
    reading: DeviceReading | None = None
    """How the claims stand on the devices, of a pending pod whose claims have no devices."""
    node_ask: NodeAsk | None = None
    """Whether an autoscaler was asked for a node for it; None if that is not known."""
    group: GroupProgress | None = None
    """Its group, while it is not bound; None if it has none, or that is not known."""

    @property
    def asks_by_claims(self) -> bool:
        """Whether the pod asks for devices by ResourceClaims."""
        return self.resource == CLASS


def explain_pod(
    pod: Pod,
    every: Sequence[ExplainSource],
    unit: str,
    *,
    served: bool | None = None,
    asked: bool | None = None,
    now: float = 0.0,
) -> PodExplanation:
    """Return the explanation of the pod as it is now, in seconds since the epoch.

    Raises MessageError for a pod that asks for none of the resources.
    """
    ref, view = pod_ref(pod), scheduler_view(pod)
    resources = ", ".join(books.names.resource for books in every)
    answer = PodExplanation(
        ref,
        resources,
        unit,
        "ended",
        view,
        served=served,
        asked=asked or bool(view.by_extender) or None,
    )
    for books in every:
        entry = books.ledger.entry(ref.uid)
        if entry is not None:
            mistake = misplaced(pod, entry.request, books.names)
            answer = replace(answer, resource=books.names.resource, mistake=mistake)
            return _charged(answer, books, entry)
    try:
        resolved = resolve(pod, every)
    except WireError as error:
        return replace(answer, state="refused", detail=str(error))
    if resolved is None:
        raise MessageError(f"pod {ref} asks for no {resources}: gpushare has no say in it")
    books, request = resolved
    answer = replace(answer, resource=books.names.resource, request=request)
    node = (pod.spec and pod.spec.node_name) or ""
    if has_ended(pod):
        return answer
    if node:
        return replace(answer, state="bound", node=node, detail=_NOT_IN_BOOKS)
    explanation = explanation_of(books, request, demands_of(pod), now)
    mistake = misplaced(pod, request, books.names)
    return replace(answer, state="pending", explanation=explanation, mistake=mistake)


def resolve(pod: Pod, every: Sequence[_Source]) -> tuple[_Source, Request] | None:
    """Return the resource that a pod asks for, and its request there; None if it asks for none.

    Raises WireError for a request that makes no sense or asks for two of the resources.
    """
    asked = request_among(pod, (books.names for books in every))
    if asked is None:
        return None
    names, request = asked
    source = next(books for books in every if books.names is names)
    source.ranking(request)
    return source, request


def explanation_of(
    source: ExplainSource,
    request: Request,
    demands: Demands = NO_DEMANDS,
    now: float = 0.0,
    *,
    snapshot: Snapshot | None = None,
) -> Explanation:
    """Return how the request of a pod that demands this stands on all nodes.

    snapshot: of the source's books; None: as they are now.
    """
    ledger, own = source.ledger, source.filters
    snapshot = snapshot or ledger.snapshot()
    names = [name for name in snapshot.names if name]
    books_of = partial(node_books, ledger)
    return explain(snapshot, names, request, books_of, now, own=own, demands=demands)


def node_books(ledger: Reader, node: str) -> NodeBooks | None:
    """Return the books of a node; None if it is not known or shares nothing."""
    try:
        return next(iter(ledger.dump(node)), None)
    except UnknownNode:
        return None


def _charged(answer: PodExplanation, books: ExplainSource, entry: Entry) -> PodExplanation:
    """Return the explanation of a pod that is in the books."""
    state = "bound" if entry.known_bound else "binding"
    answer = replace(answer, state=state, request=entry.request, node=entry.node)
    if not entry.placement:
        return replace(answer, detail=_NO_DEVICES if entry.placement is None else _NO_CARD)
    answer = replace(answer, shares=entry.placement)
    snapshot, of_node = books.ledger.snapshot(), node_books(books.ledger, entry.node)
    if of_node is None or entry.node not in snapshot.row:
        return replace(answer, detail=f"node {entry.node!r} shares no {answer.resource} now")
    name = entry.request.policy or books.ranking_policy
    try:
        policy = books.ranking(entry.request).policy
        return replace(answer, judgement=score_bound_pod(snapshot, of_node, entry, policy, name))
    except (Exception, SystemExit) as error:  # a policy may raise whatever it likes
        failed = f"the policy {name} cannot judge its place: {type(error).__name__}: {error}"
        return replace(answer, detail=failed)
