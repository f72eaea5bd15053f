"""Find the pods that need a node no autoscaler would add, and the nodes that autoscalers must keep.

Autoscalers count the sums of a node, not the devices. `node_wishes` places the pending pods on a
copy of the books. A pod without a place needs a new node if the sums of some node have room, no
device there has, and an empty node of this kind would have.

`must_stay` removes one node after the other from a copy of the books, and places the pods of that
node on the remaining nodes; the node stays if a pod finds no place. So all other nodes may go at
once, and of two nodes that could be emptied into each other one may go. A node without pods may go,
and gets no pods of other nodes. No I/O.

Tested in `tests/unit/explain/test_node_wishes.py` and `tests/unit/explain/test_scale_down.py`.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self, TypeVar

from gpushare.core.model import ObservedPod, PodRef, Request
from gpushare.core.mutable_cluster import Placement
from gpushare.core.node_filters import OwnFilters
from gpushare.core.policy import Policy
from gpushare.core.selectors import NO_DEMANDS, Demands
from gpushare.core.states.entry import Entry, Waiting
from gpushare.explain.placer import Placer, PodBatch
from gpushare.ledger import LedgerView
from gpushare.turns import in_turns

MOST_PODS = 500
"""The most pending pods that are placed, in the turns of their namespaces."""

MOST_NODES = 300
"""The most nodes that one pod's node affinity may have to list."""


@dataclass(frozen=True, slots=True)
class Wish:
    """A pod that needs a new node."""

    ref: PodRef
    request: Request
    created: float
    """Creation of the pod, in seconds since the epoch."""
    full: frozenset[str]
    """The nodes with room in their sums and none on a device."""
    nodes: frozenset[str]
    """All nodes with devices and no room on one; of more than MOST_NODES only those of `full`."""


_Waits = TypeVar("_Waits", Waiting, Wish)


@dataclass(frozen=True, slots=True)
class Wishes:
    """The wishes of pending pods."""

    wishes: list[Wish] = field(default_factory=list)
    """In the turns of namespaces; within a namespace by priority, then the oldest first."""
    why_not: dict[str, str] = field(default_factory=dict)
    """Why a pod without a place has no wish, by uid."""
    cut: set[str] = field(default_factory=set)
    """Namespaces with a wish beyond the limit."""


def wish_turns(pods: Iterable[_Waits], last: Collection[str] = ()) -> list[_Waits]:
    """Return pending pods, or wishes, in the turns of their namespaces.

    last: uids of pods that come last, again in turns.
    """
    first, after = list[_Waits](), list[_Waits]()
    for pod in pods:
        (after if pod.ref.uid in last else first).append(pod)
    return [pod for part in (first, after) for pod in in_turns(part, lambda pod: pod.ref.namespace)]


def node_wishes(
    view: LedgerView,
    own_filters: OwnFilters,
    policy: Policy,
    limit: int,
    last: Collection[str] = (),
) -> Wishes:
    """Return the wishes of the pending pods, up to the limit.

    last: uids of pods that get a wish after all other pods.
    """
    answer = Wishes()
    if not view.waiting:
        return answer
    placer = Placer.over(view.snapshot, own_filters, policy)
    by_kind: dict[tuple[Request, Demands], tuple[frozenset[str], frozenset[str], str]] = {}
    without_room = list[Waiting]()
    for pod in first_pending(view, last):
        if placer.put(batch_of(pod)):
            continue
        if pod.request.cards.uuids:
            # The card is on an existing node.
            answer.why_not[pod.ref.uid] = "no new node has a card that is asked for by its uuid"
        else:
            without_room.append(pod)
    for pod in wish_turns(without_room, last):
        if len(answer.wishes) >= limit:
            answer.why_not[pod.ref.uid] = f"{limit} other pods that need one come first"
            answer.cut.add(pod.ref.namespace)
            continue
        kind = pod.request, pod.demands
        if kind not in by_kind:
            by_kind[kind] = _misleading(placer, batch_of(pod))
        full, nodes, refusal = by_kind[kind]
        if refusal:
            answer.why_not[pod.ref.uid] = refusal
        else:
            answer.wishes.append(Wish(pod.ref, pod.request, pod.created, full, nodes))
    return answer


def _importance(pod: Waiting) -> int:
    return -pod.priority


def first_pending(view: LedgerView, last: Collection[str] = ()) -> list[Waiting]:
    """Return the first MOST_PODS pending pods by priority, of equal priority the oldest first.

    last: uids of pods that come after all other pods.
    """
    pending = [pod for pod in view.waiting if pod.served and not pod.demands.gated]
    pending.sort(key=_importance)
    return sorted(wish_turns(pending, last)[:MOST_PODS], key=_importance)


def batch_of(pod: Waiting) -> PodBatch:
    """Return a pending pod as a batch of one."""
    return PodBatch(str(pod.ref), pod.request, 1, pod.demands, pod.priority)


def _misleading(placer: Placer, batch: PodBatch) -> tuple[frozenset[str], frozenset[str], str]:
    """Return `full` and `nodes` of a pod's wish, and why the pod gets no wish or ""."""
    none = frozenset[str]()
    by_device = placer.refused_by_device(batch)
    full = frozenset(name for name, (_, lets_in) in by_device.items() if lets_in)
    if not full:
        return none, none, "no node has room by sum, so autoscalers see that it needs one"
    if len(full) > MOST_NODES:
        return none, none, f"more than {MOST_NODES} nodes have room by sum alone"
    if not any(by_device[name][0].resolvable for name in full):
        return none, none, "it would not fit an empty node like those that are there"
    return full, frozenset(by_device) if len(by_device) <= MOST_NODES else full, ""


@dataclass(frozen=True, slots=True)
class Books:
    """The books of one managed resource at one moment."""

    view: LedgerView
    own_filters: OwnFilters
    """kube-scheduler's filters."""
    pods: Mapping[str, Sequence[PodBatch]]
    """The pods with devices by node, in the order of their placement."""

    @classmethod
    def of_pods(
        cls, view: LedgerView, own_filters: OwnFilters, running: Mapping[str, ObservedPod]
    ) -> Self:
        """Return the books of a managed resource. running: pods on nodes with demands, by uid."""
        pods = defaultdict[str, list[PodBatch]](list)
        for entry in _in_turn(view.entries.values()):
            if entry.request.devices:
                observed = running.get(entry.ref.uid)
                demands = NO_DEMANDS if observed is None else observed.demands
                pod = PodBatch(str(entry.ref), entry.request, 1, demands, entry.priority)
                pods[entry.node].append(pod)
        return cls(view, own_filters, pods)


def _in_turn(pods: Iterable[Entry]) -> list[Entry]:
    return sorted(pods, key=lambda pod: (-pod.priority, str(pod.ref)))


def must_stay(
    books: Sequence[Books],
    policy: Policy,
    *,
    staying: Collection[str] = (),
    last: Collection[str] = (),
    pause: Callable[[], None] = lambda: None,
) -> dict[str, str]:
    """Return why nodes must stay, by name: a pod would have no device on another node.

    staying: nodes that no autoscaler removes; they get pods, and no answer. last: nodes that are
    judged last, so that the earlier answer about them remains if possible. pause: called after each
    node.
    """
    resources = [_OneResource(resource_books, policy) for resource_books in books]
    nodes = {
        name for resource in books for name, spec in resource.view.nodes.items() if spec.capacity
    }
    used = {
        name: sum(pod.request.total for resource in resources for pod in resource.pods[name])
        for name in nodes
    }
    order = sorted(
        nodes - {*staying}, key=lambda name: (used[name] > 0, name in last, used[name], name)
    )
    reasons = {}
    for name in order:
        for number, resource in enumerate(resources):
            stranded = resource.take_out(name)
            if stranded is not None:
                reasons[name] = f"{stranded.name} would have no device on another node"
                for earlier in resources[:number]:
                    earlier.put_back(name)
                break
        pause()
    return reasons


class _OneResource:
    """The nodes and pods of one resource while nodes are removed. pods: by node."""

    def __init__(self, books: Books, policy: Policy) -> None:
        self._placer = Placer.over(books.view.snapshot, books.own_filters, policy)
        self.pods = defaultdict[str, list[PodBatch]](list)
        self.pods |= {node: [*pods] for node, pods in books.pods.items()}
        self._moved: list[Placement] = []

    def take_out(self, node: str) -> PodBatch | None:
        """Place all pods of the node elsewhere, also pods of nodes that were removed before.

        Return the first pod without a place; then nothing has changed.
        """
        row = self._placer.view.row.get(node)
        if row is None:
            return None
        self._placer.shut[row] = True
        self._moved, stranded = self._placer.put_all(self.pods[node])
        if stranded is not None:
            self._placer.shut[row] = False
            return stranded
        for pod, place in zip(self.pods[node], self._moved, strict=True):
            self.pods[self._placer.view.names[place.row]].append(pod)
        return None

    def put_back(self, node: str) -> None:
        """Undo the last `take_out`, of this node."""
        row = self._placer.view.row.get(node)
        if row is None:
            return
        self._placer.take_back(self._moved)
        for place in self._moved:
            self.pods[self._placer.view.names[place.row]].pop()
        self._placer.shut[row] = False
