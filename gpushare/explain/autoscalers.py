"""What autoscalers do not see, since they count sums: which pods need a node that they would not
bring, and which nodes they must not take away.

The pods that wait are placed on a copy of the books. Of those without a place the ones are told
that kube-scheduler's own filters, and so an autoscaler's sums, would let on a node where no device
has room, but one would if the node were empty: another node like it would do.

All of the nodes that may go could go at once: one after the other is taken out of a copy of the
books, and its pods are placed on what is left, or it stays. So of two nodes that could each be
emptied into the other one may go. A node without pods may go, and its room counts for nobody.
No I/O.

Tested in `tests/unit/explain/test_node_wishes.py` and `tests/unit/explain/test_scale_down.py`.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Self, TypeVar

from gpushare.core.model import ObservedPod, PodRef, Request
from gpushare.core.mutable_cluster import Placement
from gpushare.core.node_filters import PODS, OwnFilters
from gpushare.core.policy import Policy
from gpushare.core.selectors import NO_DEMANDS, Demands
from gpushare.core.states.entry import Entry, Waiting
from gpushare.explain.placer import Placer, PodBatch
from gpushare.ledger import LedgerView
from gpushare.turns import in_turns

MOST_PODS = 500
"""Pods that are placed, in the turns of their namespaces."""

MOST_NODES = 300
"""Names that one pod's node affinity may have to list."""


@dataclass(frozen=True, slots=True)
class Wish:
    """A pod that needs another node."""

    ref: PodRef
    request: Request
    created: float
    """When it was, in seconds since the epoch."""
    full: frozenset[str]
    """The nodes that sums would let it on and no device has room on."""
    nodes: frozenset[str]
    """They, and if they are not too many all others that no device has room on."""


_Waits = TypeVar("_Waits", Waiting, Wish)


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the pods that wait wish for."""

    found: list[Wish] = field(default_factory=list)
    """In the turns of namespaces; of each the most important first, then the oldest."""
    why_not: dict[str, str] = field(default_factory=dict)
    """By uid, why a pod that has no room has no wish."""
    cut: set[str] = field(default_factory=set)
    """The namespaces of which a wish was left out because there were too many."""


def wish_turns(pods: Iterable[_Waits], last: Collection[str] = ()) -> list[_Waits]:
    """Return pending pods, or wishes, in the turns of their namespaces.

    last: uids of pods that come after all others, again in turns.
    """
    first, after = list[_Waits](), list[_Waits]()
    for pod in pods:
        (after if pod.ref.uid in last else first).append(pod)
    return [pod for part in (first, after) for pod in in_turns(part, lambda pod: pod.ref.namespace)]


def node_wishes(
    view: LedgerView,
    own: OwnFilters,
    policy: Policy,
    most: int,
    last: Collection[str] = (),
) -> Wishes:
    """Return what the pods that wait wish for: so many wishes at most.

    last: uids of pods whose wishes come after those of all others.
    """
    wishes = Wishes()
    if not view.waiting:
        return wishes
    placer = Placer.over(view.snapshot, own, policy)
    known: dict[tuple[Request, Demands], tuple[frozenset[str], frozenset[str], str]] = {}
    waiting = [pod for pod in view.waiting if pod.served and not pod.demands.gated]
    waiting.sort(key=_importance)
    without_room = list[Waiting]()
    for pod in sorted(wish_turns(waiting, last)[:MOST_PODS], key=_importance):
        if placer.put(_wanted(pod)):
            continue
        if pod.request.cards.uuids:
            # It is on the node where it is, and on no other.
            wishes.why_not[pod.ref.uid] = "no new node has a card that is asked for by its uuid"
        else:
            without_room.append(pod)
    for pod in wish_turns(without_room, last):
        if len(wishes.found) >= most:
            wishes.why_not[pod.ref.uid] = f"{most} other pods that need one come first"
            wishes.cut.add(pod.ref.namespace)
            continue
        kind = pod.request, pod.demands
        if kind not in known:
            known[kind] = _misleading(placer, _wanted(pod))
        full, nodes, why_not = known[kind]
        if why_not:
            wishes.why_not[pod.ref.uid] = why_not
        else:
            wishes.found.append(Wish(pod.ref, pod.request, pod.created, full, nodes))
    return wishes


def _importance(pod: Waiting) -> int:
    return -pod.priority


def _wanted(pod: Waiting) -> PodBatch:
    return PodBatch(str(pod.ref), pod.request, 1, pod.demands, pod.priority)


def _misleading(placer: Placer, wanted: PodBatch) -> tuple[frozenset[str], frozenset[str], str]:
    """Return `full` and `nodes` of a pod's wish, and why it is to have none, or ""."""
    none = frozenset[str]()
    by_device = placer.refused_by_device(wanted)
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
    """The books of one managed resource, or of the claims of a DRA driver, at one moment."""

    view: LedgerView
    own: OwnFilters
    """kube-scheduler's filters."""
    pods: Mapping[str, Sequence[PodBatch]]
    """Those that have devices of a node, by its name, in the order in which they are placed."""

    @classmethod
    def of_pods(cls, view: LedgerView, own: OwnFilters, running: Mapping[str, ObservedPod]) -> Self:
        """Return those of a managed resource. running: pods on nodes by uid, with their demands."""
        pods = defaultdict[str, list[PodBatch]](list)
        for entry in _in_turn(view.entries.values()):
            if entry.request.devices:
                shown = running.get(entry.ref.uid)
                known = NO_DEMANDS if shown is None else shown.demands
                pod = PodBatch(str(entry.ref), entry.request, 1, known, entry.priority)
                pods[entry.node].append(pod)
        return cls(view, own, pods)

    @classmethod
    def of_claims(
        cls,
        view: LedgerView,
        own: OwnFilters,
        running: Mapping[str, ObservedPod],
        reserved: Mapping[str, Collection[str]],
    ) -> Self:
        """Return those whose holders are claims (claim_books.py).

        running: pods on nodes by uid, with their demands. reserved: by claim, the uids of the pods
        that it is reserved for. Pods and all claims that they share count as one pod with a device
        for each part of a claim: two claims may fit on fewer devices, so a node may stay that could
        go. A claim whose pods are on no node yet is placed by itself.
        """
        wanted = defaultdict[str, list[PodBatch]](list)
        groups = defaultdict[str, list[tuple[set[str], list[Entry]]]](list)
        for entry in _in_turn(view.entries.values()):
            uids = reserved.get(entry.ref.uid.removesuffix(f"/{entry.node}"), ())
            pods = {uid for uid in uids if uid in running and running[uid].node == entry.node}
            if uids and not pods:
                wanted[entry.node].append(PodBatch(f"claim {entry.ref}", entry.request))
            if pods:
                on_node = groups[entry.node]
                joined = [group for group in on_node if group[0] & pods]
                entries = [entry, *(one for _, others in joined for one in others)]
                on_node[:] = [group for group in on_node if group not in joined]
                on_node.append((pods.union(*(others for others, _ in joined)), entries))
        for node, on_node in groups.items():
            wanted[node] += [
                _as_one(_in_turn(running[uid] for uid in uids), entries)
                for uids, entries in on_node
            ]
            wanted[node].sort(key=lambda pod: (-pod.priority, pod.name))
        return cls(view, own, wanted)


def _as_one(pods: Sequence[ObservedPod], claims: Iterable[Entry]) -> PodBatch:
    """Return pods and the claims that they share as one pod."""
    amounts = Counter({PODS: len(pods)} if len(pods) > 1 else {})
    for pod in pods:
        amounts.update(dict(pod.request.resources))
    host = Request(
        cpu=sum(pod.request.cpu for pod in pods),
        memory=sum(pod.request.memory for pod in pods),
        resources=tuple(sorted(amounts.items())),
    )
    name = str(pods[0].ref)
    return PodBatch(
        name if len(pods) == 1 else f"{name} ({len(pods)} pods that share a claim)",
        host.of_parts(part for claim in claims for part in claim.request.parts),
        demands=reduce(Demands.both, (pod.demands for pod in pods)),
        priority=max(pod.priority for pod in pods),
    )


_P = TypeVar("_P", Entry, ObservedPod)


def _in_turn(pods: Iterable[_P]) -> list[_P]:
    return sorted(pods, key=lambda pod: (-pod.priority, str(pod.ref)))


def must_stay(
    books: Sequence[Books],
    policy: Policy,
    *,
    staying: Collection[str] = (),
    last: Collection[str] = (),
    pause: Callable[[], None] = lambda: None,
) -> dict[str, str]:
    """Return why nodes must stay, by name: a pod that would have no device elsewhere.

    staying: nodes that nobody takes away; they are not judged, and their room counts. last: nodes
    that are judged after all others with pods, so that what was found last time holds as long as it
    can. pause: called after each node.
    """
    every = [_OneResource(each, policy) for each in books]
    nodes = {
        name for resource in books for name, spec in resource.view.nodes.items() if spec.capacity
    }
    used = {
        name: sum(pod.request.total for each in every for pod in each.pods[name]) for name in nodes
    }
    order = sorted(
        nodes - {*staying}, key=lambda name: (used[name] > 0, name in last, used[name], name)
    )
    reasons = {}
    for name in order:
        for number, resource in enumerate(every):
            stranded = resource.take_out(name)
            if stranded is not None:
                reasons[name] = f"{stranded.name} would have no device on another node"
                for done in every[:number]:
                    done.put_back(name)
                break
        pause()
    return reasons


class _OneResource:
    """The nodes and pods of some books, while nodes are taken out. pods: by node."""

    def __init__(self, books: Books, policy: Policy) -> None:
        self._placer = Placer.over(books.view.snapshot, books.own, policy)
        self.pods = defaultdict[str, list[PodBatch]](list)
        self.pods |= {node: [*pods] for node, pods in books.pods.items()}
        self._moved: list[Placement] = []

    def take_out(self, node: str) -> PodBatch | None:
        """Place the pods of the node elsewhere: its own, and those that have come meanwhile.

        Return the first one that has no place; then nothing has changed.
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
        """Undo the last `take_out`, which was of this node."""
        row = self._placer.view.row.get(node)
        if row is None:
            return
        self._placer.take_back(self._moved)
        for place in self._moved:
            self.pods[self._placer.view.names[place.row]].pop()
        self._placer.shut[row] = False
