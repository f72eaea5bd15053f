"""A search for the pods that cover a shortage of devices at the least loss; it may end early.

Knows devices by their position in a tuple, and of the loss only that it grows with every pod. Pods
that free the same differ only by their order, so of each kind the first in order are chosen first.
A partial set that cannot end better than the best set found so far is dropped.

Tested in `tests/unit/core/preemption/test_preemptor.py`.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from operator import add, sub

from gpushare.core.states.entry import Entry

Pods = tuple[Entry, ...]

Loss = tuple[int, int, int, int, float]
"""Violations of budgets, the highest priority, the number of pods, the sum of their priorities, and
minus the earliest start of a pod with the highest priority.
"""

Units = tuple[int, ...]
"""Units on each of the devices in question."""


@dataclass(slots=True)
class StepBudget:
    """A budget of steps: each look at a pod is one step, about 3 us.

    Counted, not timed, so that the same call has the same result on any machine.
    """

    left: int
    """How many may still be taken; those that take them count them down."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A pod and what its removal frees; pods of one `budget_class` affect budgets equally."""

    pod: Entry
    frees: Units
    budget_class: Hashable = None


def find_victims(
    shortage: Units,
    candidates: Sequence[Candidate],
    loss: Callable[[Pods], Loss],
    order: Callable[[Entry], tuple[object, ...]],
    steps: StepBudget,
) -> Pods:
    """Return the pods that cover the shortage at the least loss; with too few steps, any that do.

    `candidates`: together they free enough. First they are reprieved one by one, in their order,
    while the rest frees enough, as kube-scheduler does; then a search improves the result. `order`:
    sorts pods that free the same; the first is chosen first.
    """
    steps.left -= 2 * len(candidates)
    # Units beyond the shortage do not help.
    candidates = [
        Candidate(h.pod, tuple(map(min, h.frees, shortage)), h.budget_class) for h in candidates
    ]
    freed = map(sum, zip(*(one.frees for one in candidates), strict=True))
    spare = tuple(map(sub, freed, shortage))
    needed = [one for one in candidates if not _can_reprieve(one, spare)]
    others = [one for one in candidates if _can_reprieve(one, spare)]
    # Reprieved one by one, in their order, while the rest frees enough.
    needed_pods = victims = tuple(one.pod for one in needed)
    for one in others:
        if _can_reprieve(one, spare):
            spare = tuple(map(sub, spare, one.frees))
        else:
            victims = (*victims, one.pod)
    if not others or steps.left <= 0:
        return victims
    for one in needed:
        shortage = tuple(map(sub, shortage, one.frees))
    return _Search(_kinds(others, order), loss).improve(victims, needed_pods, shortage, steps)


def _can_reprieve(one: Candidate, spare: Units) -> bool:
    return all(units <= surplus for units, surplus in zip(one.frees, spare, strict=True))


@dataclass(frozen=True, slots=True)
class _Kind:
    """Pods that free the same; the first is chosen first."""

    frees: Units
    pods: Pods


def _kinds(
    candidates: Sequence[Candidate], order: Callable[[Entry], tuple[object, ...]]
) -> Sequence[_Kind]:
    """Return the kinds; the one that frees most comes first."""
    alike: dict[tuple[Units, Hashable], list[Entry]] = {}
    for one in candidates:
        alike.setdefault((one.frees, one.budget_class), []).append(one.pod)
    kinds = [_Kind(frees, tuple(sorted(pods, key=order))) for (frees, _), pods in alike.items()]
    return sorted(kinds, key=lambda kind: ([-units for units in kind.frees], order(kind.pods[0])))


@dataclass(frozen=True, slots=True)
class _Remaining:
    """Sums over a kind and all later ones: all units, the most in one pod, the lowest priority."""

    units: Units
    most: Units
    lowest: int


class _Search:
    """A depth-first search over the kinds: take one more pod of this kind, or go to the next."""

    def __init__(self, kinds: Sequence[_Kind], loss: Callable[[Pods], Loss]) -> None:
        self._kinds = kinds
        self._loss = loss
        remaining: list[_Remaining] = []
        for kind in reversed(kinds):
            units = tuple(units * len(kind.pods) for units in kind.frees)
            here = _Remaining(units, kind.frees, kind.pods[0].priority)
            if remaining:
                here = _Remaining(
                    tuple(map(add, here.units, remaining[-1].units)),
                    tuple(map(max, here.most, remaining[-1].most)),
                    min(here.lowest, remaining[-1].lowest),
                )
            remaining.append(here)
        self._remaining = remaining[::-1]
        self._widest = max(sum(units > 0 for units in kind.frees) for kind in kinds)

    def improve(self, victims: Pods, needed: Pods, shortage: Units, steps: StepBudget) -> Pods:
        """Return the set of least loss that contains `needed`; `victims` if none is better."""
        best = self._loss(victims)
        begun: list[tuple[int, int, Pods, Units]] = [(0, 0, needed, shortage)]
        while begun and steps.left > 0:
            at, taken, chosen, shortage = begun.pop()
            steps.left -= 1 + len(chosen)
            if max(shortage) <= 0:
                loss = self._loss(chosen)
                if loss < best:
                    victims, best = chosen, loss
                continue
            least = self._lower_bound(at, chosen, shortage)
            if least is None or least >= best:
                continue
            kind = self._kinds[at]
            begun.append((at + 1, 0, chosen, shortage))
            if taken < len(kind.pods):
                more = (*chosen, kind.pods[taken])
                begun.append((at, taken + 1, more, tuple(map(sub, shortage, kind.frees))))
        return victims

    def _lower_bound(self, at: int, chosen: Pods, shortage: Units) -> Loss | None:
        """Return a lower bound of the loss with pods of the remaining kinds.

        None if they free too little.
        """
        if at == len(self._kinds):
            return None
        remaining = self._remaining[at]
        pods = [0]
        for lack, units, most in zip(shortage, remaining.units, remaining.most, strict=True):
            if lack > units:
                return None
            if lack > 0:
                pods.append(-(-lack // most))
        more = max(*pods, -(-sum(pods) // self._widest))
        against, highest, count, total, earliest = self._loss(chosen)
        return against, highest, count + more, total + more * remaining.lowest, earliest
