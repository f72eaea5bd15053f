"""Which waiting pods need a node that no autoscaler would bring, since it counts sums.

The pods that wait are placed on a copy of the books. Of those without a place the ones are told
that kube-scheduler's own filters, and so an autoscaler's sums, would let on a node where no device
has room, but one would if the node were empty: another node like it would do. No I/O.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from gpushare.core.model import PodRef, Request
from gpushare.core.node_filters import OwnFilters
from gpushare.core.policy import Policy
from gpushare.core.selectors import Demands
from gpushare.core.states.entry import Waiting
from gpushare.explain.host_room import HostFilters
from gpushare.explain.placer import Placer, Wanted
from gpushare.explain.whatif import rows_by_name
from gpushare.ledger import LedgerView

MOST_PODS = 500
"""Pods that are placed, the most important and the oldest ones."""

MOST_NODES = 300
"""Names that one pod's node affinity may have to list."""


@dataclass(frozen=True, slots=True)
class Wish:
    """A pod that needs another node.

    created: when it was, in seconds since the epoch. full: the nodes that sums would let it on and
    no device has room on. nodes: they, and if they are not too many all others that no device has
    room on.
    """

    ref: PodRef
    request: Request
    created: float
    full: frozenset[str]
    nodes: frozenset[str]


def node_wishes(view: LedgerView, own: OwnFilters, policy: Policy, most: int) -> list[Wish]:
    """Return the wishes, the most important first, then the oldest; at most so many."""
    if not view.waiting:
        return []
    filters = HostFilters(own, view.snapshot.names)
    placer = Placer(view.snapshot, rows_by_name(view.snapshot), filters, policy)
    found: list[Wish] = []
    known: dict[tuple[Request, Demands], tuple[frozenset[str], frozenset[str]]] = {}
    for pod in _in_turn(view.waiting):
        wanted = Wanted(str(pod.ref), pod.request, 1, pod.demands, pod.priority)
        # A card by its name is on the node where it is, and on no other.
        if placer.put(wanted):
            known.clear()
        elif not pod.request.cards.uuids and len(found) < most:
            kind = pod.request, pod.demands
            if kind not in known:
                known[kind] = _misleading(placer, wanted)
            full, nodes = known[kind]
            if full:
                found.append(Wish(pod.ref, pod.request, pod.created, full, nodes))
    return found


def _misleading(placer: Placer, wanted: Wanted) -> tuple[frozenset[str], frozenset[str]]:
    """Return `full` and `nodes` of the pod's wish; nothing if it is to have none."""
    by_device = placer.refused_by_device(wanted)
    full = frozenset(name for name, (_, lets_in) in by_device.items() if lets_in)
    if len(full) > MOST_NODES or not any(by_device[name][0].resolvable for name in full):
        return frozenset(), frozenset()
    return full, frozenset(by_device) if len(by_device) <= MOST_NODES else full


def _in_turn(waiting: Iterable[Waiting]) -> list[Waiting]:
    served = (pod for pod in waiting if pod.served and not pod.demands.gated)
    return sorted(served, key=lambda pod: -pod.priority)[:MOST_PODS]
