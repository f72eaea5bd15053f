"""Which waiting pods need a node that no autoscaler would bring, since it counts sums.

The pods that wait are placed on a copy of the books. Of those without a place the ones are told
that kube-scheduler's own filters, and so an autoscaler's sums, would let on a node where no device
has room, but one would if the node were empty: another node like it would do. No I/O.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import NamedTuple, Self

from gpushare.core.model import PodRef, Request
from gpushare.core.node_filters import OwnFilters
from gpushare.core.policy import Policy
from gpushare.core.selectors import Demands
from gpushare.core.states.entry import Waiting
from gpushare.explain.host_room import HostFilters
from gpushare.explain.placer import Placer, Wanted
from gpushare.explain.whatif import rows_by_name
from gpushare.ledger import LedgerView
from gpushare.wire.placeholders import Placeholder

MOST_PODS = 500
"""Pods that are placed, the most important and the oldest ones."""

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


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the pods that wait wish for."""

    found: list[Wish] = field(default_factory=list)
    """The most important first, then the oldest."""
    why_not: dict[str, str] = field(default_factory=dict)
    """By uid, why a pod that has no room has no wish."""


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

    @property
    def text(self) -> str:
        """It as people read it."""
        if self.asked is None:
            return f"none was asked for: {self.why_not}"
        return f"asked for at {datetime.fromtimestamp(self.asked, UTC):%Y-%m-%d %H:%M:%S} UTC"


def node_wishes(view: LedgerView, own: OwnFilters, policy: Policy, most: int) -> Wishes:
    """Return what the pods that wait wish for: so many wishes at most."""
    wishes = Wishes()
    if not view.waiting:
        return wishes
    filters = HostFilters(own, view.snapshot.names)
    placer = Placer(view.snapshot, rows_by_name(view.snapshot), filters, policy)
    known: dict[tuple[Request, Demands], _Misleading] = {}
    for pod in _in_turn(view.waiting):
        wanted = Wanted(str(pod.ref), pod.request, 1, pod.demands, pod.priority)
        if placer.put(wanted):
            known.clear()
            continue
        if pod.request.cards.uuids:
            # It is on the node where it is, and on no other.
            wishes.why_not[pod.ref.uid] = "no new node has a card that is asked for by its uuid"
            continue
        if len(wishes.found) >= most:
            wishes.why_not[pod.ref.uid] = f"{most} other pods that need one come first"
            continue
        kind = pod.request, pod.demands
        if kind not in known:
            known[kind] = _misleading(placer, wanted)
        full, nodes, why_not = known[kind]
        if why_not:
            wishes.why_not[pod.ref.uid] = why_not
        else:
            wishes.found.append(Wish(pod.ref, pod.request, pod.created, full, nodes))
    return wishes


class _Misleading(NamedTuple):
    """`full` and `nodes` of a pod's wish, or why it is to have none."""

    full: frozenset[str] = frozenset()
    nodes: frozenset[str] = frozenset()
    why_not: str = ""


def _misleading(placer: Placer, wanted: Wanted) -> _Misleading:
    by_device = placer.refused_by_device(wanted)
    full = frozenset(name for name, (_, lets_in) in by_device.items() if lets_in)
    if not full:
        return _Misleading(why_not="no node has room by sum, so autoscalers see that it needs one")
    if len(full) > MOST_NODES:
        return _Misleading(why_not=f"more than {MOST_NODES} nodes have room by sum alone")
    if not any(by_device[name][0].resolvable for name in full):
        return _Misleading(why_not="it would not fit an empty node like those that are there")
    return _Misleading(full, frozenset(by_device) if len(by_device) <= MOST_NODES else full)


def _in_turn(waiting: Iterable[Waiting]) -> list[Waiting]:
    served = (pod for pod in waiting if pod.served and not pod.demands.gated)
    return sorted(served, key=lambda pod: -pod.priority)[:MOST_PODS]
