"""Explain one pod from its object, the books, and the code that decides.

The extender explains by its own books, the command line by books that it fills from lists. Nothing
is changed; no I/O.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Protocol, Self, TypeVar

from gpushare.core.bound_pod import BoundPodScore, score_bound_pod
from gpushare.core.claims.model import DeviceKey
from gpushare.core.explain import Explanation, PodVerdict, explain
from gpushare.core.model import PodRef, Request, Shares
from gpushare.core.node_filters import OwnFilters
from gpushare.core.ranking import Ranking
from gpushare.core.selectors import NO_DEMANDS, Demands
from gpushare.core.snapshot import Snapshot
from gpushare.core.states.entry import Entry, NodeBooks
from gpushare.core.workload_names import deployment_of
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
from gpushare.wire.request_mistakes import is_whole, misplaced, resources_of, without_request

_NO_DEVICES = "its devices are not known, so its memory counts on every device of the node"
_NO_CARD = "the card that it was given is not on the node any more"
_NOT_IN_BOOKS = "it was bound without gpushare, or so recently that the books do not have it yet"


class ExplainSource(Protocol):
    """A managed resource with names, ledger, filters and rankings."""

    @property
    def names(self) -> Names:
        """Return the names of the resource and of the annotations."""

    @property
    def ledger(self) -> Reader:
        """Return the books."""

    @property
    def filters(self) -> OwnFilters:
        """Return kube-scheduler's own filters over the nodes."""

    @property
    def ranking_policy(self) -> str:
        """Return the name of the default policy."""

    def ranking(self, request: Request) -> Ranking:
        """Return the ranking for the request. Raises MessageError for an unknown policy."""


_Source = TypeVar("_Source", bound=ExplainSource)


@dataclass(frozen=True, slots=True)
class GroupNeed:
    """The places that the group of a pod still needs."""

    kinds: tuple[tuple[Request, int, int], ...]
    """(request, needed places, fitting places) for each kind of request, the pod's kind first."""
    at_once: bool
    """Whether the group has a size; otherwise the needed places are those of its pending pods."""


@dataclass(frozen=True, slots=True)
class GroupProgress:
    """The progress of the group of a pod."""

    name: str
    """Kind, namespace and name of the group."""
    size: int
    """Pods that must start at once; 0: no size is known, and each pod is bound by itself."""
    existing: int = 0
    """Existing pods that have not ended."""
    bound_pods: int = 0
    """Bound pods, and pods with a Binding on the way."""
    waiting_pods: int = 0
    """Pods with a place that wait at bind for the remaining pods."""
    until: float | None = None
    """The end of the first of these waits, in seconds since the epoch; None: no pod waits."""


@dataclass(frozen=True, slots=True)
class Outstanding:
    """Places between filter and bind that matter to a pending pod."""

    holds: tuple[HeldPlace, ...] = ()
    """Holds for other pods, the oldest first."""
    group: GroupNeed | None = None
    """None if no other pod of its group is pending."""
    reserved: HeldPlace | None = None
    """The pod's own reservation."""


@dataclass(frozen=True, slots=True)
class NodeAsk:
    """Whether an autoscaler was asked for a node for a pod."""

    asked_at: float | None = None
    """The time of the request, in seconds since the epoch; None: there was none yet."""
    why_not: str = ""
    """Why there was no request, or ""."""

    @classmethod
    def by(cls, placeholder: Placeholder) -> Self:
        """Return the answer that a placeholder for the pod gives."""
        if placeholder.gated:
            name = f"{placeholder.namespace}/{placeholder.name}"
            return cls(why_not=f"its placeholder {name} has a scheduling gate, as Kueue sets them")
        return cls(placeholder.created)


@dataclass(frozen=True, slots=True)
class GivenCard:
    """A device of a claim."""

    key: DeviceKey
    uuid: str
    """The uuid of the card, or "" if unknown."""
    units: int | None
    """Memory of the claim on the device; None: the whole device."""


@dataclass(frozen=True, slots=True)
class ClaimExplanation:
    """A ResourceClaim of a pod."""

    ref: PodRef
    state: str
    """One of "allocated", "waiting" and "missing"."""
    requests: tuple[str, ...] = ()
    """The requests in words."""
    node: str = ""
    """The node of the devices, or "" if the claim has none or the allocation names no node."""
    cards: tuple[GivenCard, ...] = ()
    """The devices of the claim."""
    pods: tuple[str, ...] = ()
    """Names of the pods with the claim reserved for them."""


@dataclass(frozen=True, slots=True)
class ClaimRemedy:
    """Claims with devices of a node: after their end the claims of the pod find devices there."""

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

    @property
    def verdict(self) -> PodVerdict | None:
        """The verdict that every text about the claims renders; None: the model cannot tell."""
        if self.fit:
            return PodVerdict.FITS_NOW
        if self.remedy is not None:
            return PodVerdict.WOULD_FIT
        return PodVerdict.NEVER_FITS if self.never else None


@dataclass(frozen=True, slots=True)
class Rollout:
    """A rolling update that waits for itself: a new pod fits only once old pods have ended."""

    deployment: str
    old_pods: tuple[PodRef, ...]
    """Among the pods that have to end."""


@dataclass(frozen=True, slots=True)
class PodEvent:
    """An event of the extender about a pod."""

    at: float
    """Seconds since the epoch, 0 if unknown."""
    reason: str
    note: str


@dataclass(frozen=True, slots=True)
class PodExplanation:
    """The explanation of one pod."""

    ref: PodRef
    resource: str
    unit: str
    """The memory unit of the cluster."""
    state: str
    """One of "pending", "refused" (a request that makes no sense), "binding" (a bind is under way
    or in doubt), "bound" and "ended"."""
    scheduler: SchedulerView
    request: Request | None = None
    node: str = ""
    """The node of the bound pod, or ""."""
    shares: Shares | None = None
    """Devices of the pod on the node."""
    detail: str = ""
    """A further note, or ""."""
    served: bool | None = None
    """Whether kube-scheduler's file has a profile with the schedulerName; None: unknown."""
    was_called: bool | None = None
    """Whether kube-scheduler called the extender for the pod; None: unknown."""
    explanation: Explanation | None = None
    """The nodes and remedies of a pending pod."""
    outstanding: Outstanding = Outstanding()
    judgement: BoundPodScore | None = None
    """The score of the place of a bound pod, if a policy can score the place."""
    mistake: str = ""
    """A field of the spec that has another effect than the user expects, or ""."""
    moves: int = 0
    """Moves of other pods that would make room; 0 if none is known or none was looked for."""
    rollout: Rollout | None = None
    """The rolling update of a pending pod that waits for old pods of its own Deployment."""
    claims: tuple[ClaimExplanation, ...] = ()
    """The claims of a pod that asks for no managed resource."""
    reading: DeviceReading | None = None
    """The nodes and remedies of a pending pod with a claim without devices."""
    node_ask: NodeAsk | None = None
    """Whether an autoscaler was asked for a node; None: unknown."""
    group: GroupProgress | None = None
    """The group of an unbound pod; None: no group, or unknown."""
    events: tuple[PodEvent, ...] = ()
    """Events of the extender about a pod that is judged without books, the newest first."""
    basis: str = ""
    """What a pod without books is judged by, and why; "" for a pod that is judged by books."""

    @property
    def asks_by_claims(self) -> bool:
        """Whether the pod asks for devices by ResourceClaims."""
        return self.resource == CLASS


def explain_pod(
    pod: Pod,
    sources: Sequence[_Source],
    unit: str,
    *,
    served: bool | None = None,
    was_called: bool | None = None,
    now: float = 0.0,
    offer: Callable[[_Source, Request], Snapshot] = lambda source, _: source.ledger.snapshot(),
) -> PodExplanation:
    """Return the explanation of the pod.

    now: seconds since the epoch. offer: returns the room for a pending pod with this request.
    Raises MessageError for a pod that asks for none of the resources.
    """
    ref, view = pod_ref(pod), scheduler_view(pod)
    resources = ", ".join(books.names.resource for books in sources)
    answer = PodExplanation(
        ref,
        resources,
        unit,
        "ended",
        view,
        served=served,
        was_called=was_called or bool(view.by_extender) or None,
    )
    for books in sources:
        entry = books.ledger.entry(ref.uid)
        if entry is not None:
            mistake = misplaced(pod, entry.request, books.names)
            answer = replace(answer, resource=books.names.resource, mistake=mistake)
            return _charged(answer, books, entry)
    try:
        match = request_among(pod, [books.names for books in sources])
        if match is not None:
            books, request = sources[match[0]], match[1]
            books.ranking(request)
    except WireError as error:
        return replace(answer, state="refused", detail=str(error))
    if match is None:
        offered = {
            name
            for books in sources
            for state in books.filters.states.values()
            for name in state.allocatable or ()
        }
        raise asks_for_none(pod, [books.names for books in sources], offered)
    answer = replace(answer, resource=books.names.resource, request=request)
    node = (pod.spec and pod.spec.node_name) or ""
    if has_ended(pod):
        return answer
    if node:
        return replace(answer, state="bound", node=node, detail=_NOT_IN_BOOKS)
    room = offer(books, request)
    explanation = explanation_of(books, request, demands_of(pod), now, snapshot=room)
    return replace(
        answer,
        state="pending",
        explanation=explanation,
        mistake=misplaced(pod, request, books.names),
        rollout=_rollout(pod, ref, explanation),
    )


def _rollout(pod: Pod, ref: PodRef, explanation: Explanation) -> Rollout | None:
    """Return the rolling update that a pending pod is part of, if old pods have to end for it."""
    deployment, revision = deployment_of(ref.name, (pod.metadata and pod.metadata.labels) or {})
    old_pods: dict[PodRef, None] = {}
    for entry in chain.from_iterable(remedy.ends for remedy in explanation.remedies):
        owner, of_entry = deployment_of(entry.ref.name, dict(entry.labels))
        is_same = (owner, entry.ref.namespace) == (deployment, ref.namespace)
        if is_same and of_entry != revision and not entry.terminating:
            old_pods[entry.ref] = None
    return Rollout(deployment, tuple(old_pods)) if deployment and old_pods else None


def asks_for_none(
    pod: Pod, managed_names: Sequence[Names], offered: Collection[str] | None
) -> MessageError:
    """Return the error about a pod that asks for none of the resources, with its mistake if any.

    offered: the resources that nodes offer; None if unknown.
    """
    managed = [names.resource for names in managed_names]
    resources = resources_of(pod)
    if offered is None:  # nodes may offer whole cards
        offered = [name for name in resources if is_whole(name)]
    annotations = (pod.metadata and pod.metadata.annotations) or {}
    mistake = without_request(resources.difference(managed, offered), annotations, managed_names[0])
    why = mistake or "gpushare has no say in it"
    return MessageError(f"pod {pod_ref(pod)} asks for no {', '.join(managed)}: {why}")


def explanation_of(
    source: ExplainSource,
    request: Request,
    demands: Demands = NO_DEMANDS,
    now: float = 0.0,
    *,
    snapshot: Snapshot | None = None,
) -> Explanation:
    """Return the nodes and remedies for the request of a pod with these demands.

    snapshot: of the source's books; None: a new one.
    """
    ledger, own_filters = source.ledger, source.filters
    snapshot = snapshot or ledger.snapshot()
    names = sorted(filter(None, snapshot.names))  # the text must not depend on their arrival
    books_of = partial(node_books, ledger)
    return explain(snapshot, names, request, books_of, now, own=own_filters, demands=demands)


def node_books(ledger: Reader, node: str) -> NodeBooks | None:
    """Return the books of a node; None for an unknown node or one without devices."""
    try:
        return next(iter(ledger.dump(node)), None)
    except UnknownNode:
        return None


def _charged(answer: PodExplanation, books: ExplainSource, entry: Entry) -> PodExplanation:
    state = "bound" if entry.known_bound else "binding"
    answer = replace(answer, state=state, request=entry.request, node=entry.node)
    if not entry.placement:
        return replace(answer, detail=_NO_DEVICES if entry.placement is None else _NO_CARD)
    answer = replace(answer, shares=entry.placement)
    snapshot, of_node = books.ledger.snapshot(), node_books(books.ledger, entry.node)
    if of_node is None or entry.node not in snapshot.row:
        return replace(answer, detail=f"node {entry.node!r} shares no {answer.resource} now")
    answer = replace(answer, shares=entry.charges(of_node.spec.capacity))
    name = entry.request.policy or books.ranking_policy
    try:
        ranks = books.ranking(entry.request)
        return replace(answer, judgement=score_bound_pod(snapshot, of_node, entry, ranks, name))
    except (Exception, SystemExit) as error:  # a policy of another package may raise anything
        failed = f"the policy {name} cannot judge its place: {type(error).__name__}: {error}"
        return replace(answer, detail=failed)
