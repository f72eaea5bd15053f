"""Which nodes an autoscaler may take away: those whose pods would have devices elsewhere.

All of the nodes that may go could go at once: one after the other is taken out of a copy of the
books, and its pods are placed on what is left, or it stays. So of two nodes that could each be
emptied into the other one may go. A node without pods may go, and its room counts for nobody.
No I/O.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from gpushare.core.node_filters import OwnFilters
from gpushare.core.policy import Policy
from gpushare.core.selectors import NO_DEMANDS, Demands
from gpushare.explain.host_room import HostFilters
from gpushare.explain.placer import Place, Placer, Wanted
from gpushare.explain.whatif import rows_by_name
from gpushare.ledger import LedgerView


@dataclass(frozen=True, slots=True)
class Books:
    """The books of one managed resource at one moment. own: kube-scheduler's filters."""

    view: LedgerView
    own: OwnFilters


def must_stay(
    books: Sequence[Books],
    policy: Policy,
    demands: Mapping[str, Demands],
    *,
    staying: Collection[str] = (),
    last: Collection[str] = (),
    pause: Callable[[], None] = lambda: None,
) -> dict[str, str]:
    """Return why nodes must stay, by name: a pod that would have no device elsewhere.

    demands: of the pods, by uid. staying: nodes that nobody takes away; they are not judged, and
    their room counts. last: nodes that are judged after all others with pods, so that what was
    found last time holds as long as it can. pause: called after each node.
    """
    every = [_OneResource(each, policy, demands) for each in books]
    nodes = {name for each in books for name, spec in each.view.nodes.items() if spec.capacity}
    used = {name: sum(each.used(name) for each in every) for name in nodes}
    order = sorted(
        nodes - {*staying}, key=lambda name: (used[name] > 0, name in last, used[name], name)
    )
    found = {}
    for name in order:
        stranded = _take_out(name, every)
        if stranded is not None:
            found[name] = f"{stranded.name} would have no device on another node"
        pause()
    return found


def _take_out(node: str, every: Sequence["_OneResource"]) -> Wanted | None:
    """Empty the node into the others, or leave all as it is; return a pod that has no place."""
    for number, each in enumerate(every):
        stranded = each.take_out(node)
        if stranded is not None:
            for done in every[:number]:
                done.put_back(node)
            return stranded
    return None


class _OneResource:
    """The nodes and pods of one managed resource, while nodes are taken out."""

    def __init__(self, books: Books, policy: Policy, demands: Mapping[str, Demands]) -> None:
        snapshot = books.view.snapshot
        filters = HostFilters(books.own, snapshot.names)
        self._placer = Placer(snapshot, rows_by_name(snapshot), filters, policy)
        self._pods = defaultdict[str, list[Wanted]](list)
        entries = books.view.entries.values()
        for each in sorted(entries, key=lambda entry: (-entry.priority, str(entry.ref))):
            if each.request.devices:
                known = demands.get(each.ref.uid, NO_DEMANDS)
                pod = Wanted(str(each.ref), each.request, 1, known, each.priority)
                self._pods[each.node].append(pod)
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
