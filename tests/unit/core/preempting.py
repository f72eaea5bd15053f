"""Small nodes for the tests of preemption: as books, and a brute-force search for `least`."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import inf

from hypothesis import strategies as st

from gpushare.core.amounts import compute
from gpushare.core.decide import filter_nodes
from gpushare.core.model import ANY_SHARERS, Apart, Cards, NodeSpec, ObservedPod, PodRef, Request
from gpushare.core.pairing import Pairing
from gpushare.core.preemption.preemptor import Preemptor
from gpushare.core.preemption.selection import Budget
from gpushare.core.states.entry import Entry, NodeBooks, Phase
from gpushare.ledger import Ledger
from tests.unit.core.clusters import APART, node, with_share

NODE = "n1"
HOST = {"cpu": 1000, "memory": 1000}


def pod(uid: str, units: int, *devices: int, **more: object) -> ObservedPod:
    """A pod on the node; without devices: unplaced. size, priority, started, terminating, cpu."""
    count = max(len(devices), 1)
    cpu, cores = int(str(more.pop("cpu", 0))), int(str(more.pop("cores", 0)))
    apart = more.pop("apart", None)
    assert apart is None or isinstance(apart, Apart)
    request = Request(units, count, cpu=cpu, percents=compute(cores), apart=apart)
    placement = tuple((device, units) for device in devices) or None
    observed = ObservedPod(PodRef("ns", uid, uid), request, NODE, placement, assigned=True)
    return observed._replace(**more)  # type: ignore[arg-type]  # fields of ObservedPod


def filled(spec: NodeSpec, pods: Iterable[ObservedPod], pairing: Pairing = Pairing.OFF) -> Ledger:
    ledger = Ledger(pairing)
    ledger.node_changed(spec)
    for observed in pods:
        ledger.pod_changed(observed)
    return ledger


def books(capacity: Sequence[int], *pods: ObservedPod, sick: Iterable[int] = ()) -> NodeBooks:
    """The books of one node with these pods."""
    return filled(node(NODE, *capacity, unhealthy=sick, **HOST), pods).dump(NODE)[0]


@dataclass(frozen=True)
class PreemptionCase:
    """A node with pods, and a pod that preempts."""

    spec: NodeSpec
    pods: tuple[ObservedPod, ...]
    preemptor: Preemptor
    budgets: tuple[Budget, ...] = ()

    @property
    def books(self) -> NodeBooks:
        return self._ledger(()).dump(NODE)[0]

    def fits_without(self, removed: Iterable[str]) -> bool:
        """Whether filter accepts the node without these pods."""
        snapshot = self._ledger(removed).snapshot()
        return filter_nodes(snapshot, [NODE], self.preemptor.request).fit == (NODE,)

    def _ledger(self, removed: Iterable[str]) -> Ledger:
        removed = set(removed)
        return filled(self.spec, (p for p in self.pods if p.ref.uid not in removed))

    @property
    def ending(self) -> set[str]:
        return {p.ref.uid for p in self.pods if p.terminating}

    @property
    def lower(self) -> list[ObservedPod]:
        """The pods that may be added: of lower priority, and not ending anyway."""
        return [p for p in self.pods if p.priority < self.preemptor.priority and not p.terminating]

    def least_loss(self) -> tuple[float, ...] | None:
        """The smallest loss of any set that frees enough, trying all; None where none does."""
        losses = [
            self.loss(chosen)
            for size in range(1, len(self.lower) + 1)
            for chosen in combinations(self.lower, size)
            if self.fits_without({p.ref.uid for p in chosen} | self.ending)
        ]
        return min(losses, default=None)

    def loss(self, chosen: Sequence[ObservedPod]) -> tuple[float, ...]:
        """Violations, highest priority, how many, sum of priorities, started last."""
        priorities = [p.priority for p in chosen]
        highest = max(priorities)
        return (
            self.violations(chosen),
            highest,
            len(chosen),
            sum(priorities),
            -min(p.started or inf for p in chosen if p.priority == highest),
        )

    def violations(self, chosen: Sequence[ObservedPod]) -> int:
        """The pods that go against a budget, counted the most important first."""
        violated = [0] * len(self.budgets)
        count = 0
        for p in sorted(chosen, key=lambda p: (-p.priority, p.started or 1e99, p.ref.uid)):
            mine = [i for i, budget in enumerate(self.budgets) if p.ref.uid in budget.covers]
            count += any(violated[i] >= self.budgets[i].allowed_disruptions for i in mine)
            for i in mine:
                violated[i] += 1
        return count


@st.composite
def cases(draw: st.DrawFn) -> PreemptionCase:
    """Up to four devices and six pods, some unplaced, ending, or of high priority."""
    capacity = draw(st.lists(st.integers(1, 8), min_size=1, max_size=4))
    devices = st.lists(
        st.integers(0, len(capacity) - 1), max_size=min(3, len(capacity)), unique=True
    )
    cores = draw(st.sampled_from([st.just(0), st.sampled_from([0, 20, 50, 100])]))
    pods = tuple(
        pod(
            f"u{number}",
            draw(st.integers(1, 6)),
            *sorted(draw(devices)),
            priority=draw(st.sampled_from([0, 0, 1, 2, 5, 9])),
            started=float(draw(st.integers(0, 4))),
            terminating=draw(st.integers(0, 5)) == 0,
            cores=draw(cores),
            apart=draw(APART),
        )
        for number in range(draw(st.integers(0, 6)))
    )
    parts = draw(st.lists(st.integers(1, 8), min_size=1, max_size=min(3, len(capacity))))
    parts = parts if draw(st.booleans()) else parts[:1] * len(parts)
    unwanted = draw(st.sampled_from([(), (), ("0",), ("1", "2")]))
    cards = Cards(not_uuids=unwanted)
    percents = with_share(draw(cores), draw(st.sampled_from([0, 0, 50])))
    request = Request(percents=percents, cards=cards, apart=draw(APART)).of_parts(parts)
    sick = draw(st.sets(st.integers(0, 3), max_size=1))
    limit = draw(st.sampled_from([ANY_SHARERS, ANY_SHARERS, 1, 2]))
    uuids = tuple(map(str, range(len(capacity))))
    uids = [p.ref.uid for p in pods]
    covers = st.frozensets(st.sampled_from(uids), min_size=1) if uids else st.just(frozenset())
    budget = st.builds(Budget, st.integers(0, 2), covers)
    budgets = draw(st.one_of(st.just([]), st.lists(budget, max_size=2)))
    return PreemptionCase(
        node(NODE, *capacity, unhealthy=sick, uuids=uuids, max_sharers=limit, **HOST),
        pods,
        Preemptor(request, draw(st.sampled_from([1, 5, 9]))),
        tuple(budgets),
    )


def entries_of(books: NodeBooks) -> dict[str, Entry]:
    assert all(entry.phase is Phase.BOUND for entry in books.entries)
    return {entry.ref.uid: entry for entry in books.entries}
