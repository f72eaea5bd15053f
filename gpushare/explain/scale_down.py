"""Which nodes an autoscaler may take away: those whose pods would have devices elsewhere.

All of the nodes that may go could go at once: one after the other is taken out of a copy of the
books, and its pods are placed on what is left, or it stays. So of two nodes that could each be
emptied into the other one may go. A node without pods may go, and its room counts for nobody.
No I/O.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Self, TypeVar

from gpushare.core.dealing import Asked, Dealing
from gpushare.core.model import ObservedPod, Request
from gpushare.core.node_filters import OwnFilters
from gpushare.core.policy import Policy
from gpushare.core.selectors import NO_DEMANDS
from gpushare.core.states.entry import Entry
from gpushare.explain.claim_pods import AskedClaim, ClaimsUser, wanted_of
from gpushare.explain.host_room import HostFilters
from gpushare.explain.placer import Place, Placer, Wanted
from gpushare.explain.whatif import rows_by_name
from gpushare.ledger import LedgerView


@dataclass(frozen=True, slots=True)
class Books:
    """The books of one managed resource, or of the claims of a DRA driver, at one moment."""

    view: LedgerView
    own: OwnFilters
    """kube-scheduler's filters."""
    pods: Mapping[str, Sequence[Wanted]]
    """Those that have devices of a node, by its name, in the order in which they are placed."""

    @classmethod
    def of_pods(cls, view: LedgerView, own: OwnFilters, running: Mapping[str, ObservedPod]) -> Self:
        """Return those of a managed resource. running: pods on nodes by uid, with their demands."""
        pods = defaultdict[str, list[Wanted]](list)
        for entry in _in_turn(view.entries.values()):
            if entry.request.devices:
                shown = running.get(entry.ref.uid)
                known = NO_DEMANDS if shown is None else shown.demands
                pod = Wanted(str(entry.ref), entry.request, 1, known, entry.priority)
                pods[entry.node].append(pod)
        return cls(view, own, pods)

    @classmethod
    def of_claims(
        cls,
        view: LedgerView,
        own: OwnFilters,
        running: Mapping[str, ObservedPod],
        reserved: Mapping[str, Collection[str]],
        asked: Mapping[str, Asked] = MappingProxyType({}),
    ) -> Self:
        """Return those whose holders are claims (wire/dra/counted.py).

        running: pods on nodes by uid, with their demands. reserved: by claim, the uids of the pods
        that it is reserved for. A claim whose pods are on no node yet is placed by itself. asked:
        by claim, what it asks for, which may take more elsewhere; else it is what it has.
        """
        held = defaultdict[str, list[AskedClaim]](list)
        users = defaultdict[str, list[ClaimsUser]](list)
        for entry in view.entries.values():
            of_claim = entry.ref.uid.removesuffix(f"/{entry.node}")
            uids = reserved.get(of_claim, ())
            on_node = [uid for uid in uids if uid in running and running[uid].node == entry.node]
            wants = asked.get(of_claim, Asked(entry.request))
            claim = AskedClaim(wants, str(entry.ref) if len(on_node) > 1 else "")
            for uid in on_node:
                held[uid].append(claim)
            if uids and not on_node:
                users[entry.node].append(ClaimsUser(f"claim {entry.ref}", Request(), (claim,)))
        for pod in _in_turn(running[uid] for uid in held):
            claims = tuple(held[pod.ref.uid])
            user = ClaimsUser(str(pod.ref), pod.request, claims, pod.demands, pod.priority)
            users[pod.node].append(user)
        return cls(view, own, {node: wanted_of(node_users) for node, node_users in users.items()})


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
    used = {name: sum(each.used(name) for each in every) for name in nodes}
    order = sorted(
        nodes - {*staying}, key=lambda name: (used[name] > 0, name in last, used[name], name)
    )
    reasons = {}
    for name in order:
        stranded = _take_out(name, every)
        if stranded is not None:
            reasons[name] = f"{stranded.name} would have no device on another node"
        pause()
    return reasons


def _take_out(node: str, every: Sequence["_OneResource"]) -> Wanted | None:
    """Empty the node into the others, or leave all as it is; return a pod that has no place."""
    for number, resource in enumerate(every):
        stranded = resource.take_out(node)
        if stranded is not None:
            for done in every[:number]:
                done.put_back(node)
            return stranded
    return None


class _OneResource:
    """The nodes and pods of some books, while nodes are taken out."""

    def __init__(self, books: Books, policy: Policy) -> None:
        snapshot = books.view.snapshot
        filters = HostFilters(books.own, snapshot.names)
        dealing = Dealing(books.view.nodes.values())
        self._placer = Placer(snapshot, rows_by_name(snapshot), filters, policy, dealing)
        self._pods = defaultdict[str, list[Wanted]](list)
        self._pods |= {node: [*pods] for node, pods in books.pods.items()}
        self._moved: list[Place] = []

    def used(self, node: str) -> int:
        """Return the units that the pods of the node ask for."""
        return sum(pod.total for pod in self._pods[node])

    def take_out(self, node: str) -> Wanted | None:
        """Place the pods of the node elsewhere: its own, and those that have come meanwhile.

        Return the first one that has no place; then nothing has changed.
        """
        if node not in self._placer.view.row:
            return None
        self._placer.shut(node)
        self._moved, stranded = self._placer.put_all(self._pods[node])
        if stranded is not None:
            self._placer.reopen(node)
            return stranded
        for pod, place in zip(self._pods[node], self._moved, strict=True):
            self._pods[self._placer.view.names[place[0].row]].append(pod)
        return None

    def put_back(self, node: str) -> None:
        """Undo the last `take_out`, which was of this node."""
        if node not in self._placer.view.row:
            return
        self._placer.take_back(self._moved)
        for place in self._moved:
            self._pods[self._placer.view.names[place[0].row]].pop()
        self._placer.reopen(node)
