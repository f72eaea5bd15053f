"""A search for the pods that cover a shortage of devices at the least loss; it may end early.

A device is a position in a tuple; the only property of the loss used here is that it grows with
every pod. Pods that free the same amounts differ only by order, so of each kind the first in order
are chosen first. A partial set that cannot end better than the best set found so far is dropped.

Tested in `tests/unit/core/preemption/test_preemptor.py`.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from operator import add, sub

from gpushare.core.states.entry import Entry

Pods = tuple[Entry, ...]

Loss = tuple[int, int, int, int, float]
"""Violations of budgets, the highest priority, the number of pods, the sum of priorities, and minus
the earliest start of a pod with the highest priority.
"""

Units = tuple[int, ...]
"""Units on each of the devices in question."""


@dataclass(slots=True)
class StepBudget:
    """A budget of steps: each look at a pod is one step, about 3 us.

    Counted, not timed, so that the same call has the same result on any machine.
    """

    remaining: int
    """Steps left; each search subtracts the steps that it used."""


@dataclass(frozen=True, slots=True)
class VictimCandidate:
    """A pod and the units that its removal frees; pods of one `budget_class` affect budgets
    equally.
    """

    pod: Entry
    frees: Units
    budget_class: Hashable = None


def find_victims(
    shortage: Units,
    candidates: Sequence[VictimCandidate],
    loss: Callable[[Pods], Loss],
    order: Callable[[Entry], tuple[object, ...]],
    steps: StepBudget,
) -> Pods:
    """Return the pods that cover the shortage at the least loss; with too few steps, any that do.

    `candidates`: all together free enough. First the candidates are reprieved one by one, in order,
    while the rest frees enough, as kube-scheduler does; then a search improves the result. `order`:
    sorts pods that free the same units; the first is chosen first.
    """
    steps.remaining -= 2 * len(candidates)
    # Units beyond the shortage do not help.
    candidates = [
        VictimCandidate(h.pod, tuple(map(min, h.frees, shortage)), h.budget_class)
        for h in candidates
    ]
    freed = map(sum, zip(*(one.frees for one in candidates), strict=True))
    spare = tuple(map(sub, freed, shortage))
    needed = [one for one in candidates if not _can_reprieve(one, spare)]
    spared = [one for one in candidates if _can_reprieve(one, spare)]
    # Reprieve one by one, in order, while the rest frees enough.
    needed_pods = victims = tuple(one.pod for one in needed)
    for one in spared:
        if _can_reprieve(one, spare):
            spare = tuple(map(sub, spare, one.frees))
        else:
            victims = (*victims, one.pod)
    if not spared or steps.remaining <= 0:
        return victims
    for one in needed:
        shortage = tuple(map(sub, shortage, one.frees))
    return _VictimSearch(_kinds(spared, order), loss).improve(victims, needed_pods, shortage, steps)


def _can_reprieve(one: VictimCandidate, spare: Units) -> bool:
    return all(units <= surplus for units, surplus in zip(one.frees, spare, strict=True))


@dataclass(frozen=True, slots=True)
class _EqualPods:
    """Pods that free the same; the first is chosen first."""

    frees: Units
    pods: Pods


def _kinds(
    candidates: Sequence[VictimCandidate], order: Callable[[Entry], tuple[object, ...]]
) -> Sequence[_EqualPods]:
    """Return the kinds; the one that frees most comes first."""
    alike: dict[tuple[Units, Hashable], list[Entry]] = {}
    for one in candidates:
        alike.setdefault((one.frees, one.budget_class), []).append(one.pod)
    kinds = [
        _EqualPods(frees, tuple(sorted(pods, key=order))) for (frees, _), pods in alike.items()
    ]
    return sorted(kinds, key=lambda kind: ([-units for units in kind.frees], order(kind.pods[0])))


@dataclass(frozen=True, slots=True)
class _Remaining:
    """Sums over a kind and all later ones: all units, the most in one pod, the lowest priority."""

    units: Units
    largest: Units
    lowest: int


class _VictimSearch:
    """A depth-first search over the kinds: take one more pod of this kind, or go to the next."""

    def __init__(self, kinds: Sequence[_EqualPods], loss: Callable[[Pods], Loss]) -> None:
        self._kinds = kinds
        self._loss = loss
        remaining: list[_Remaining] = []
        for kind in reversed(kinds):
            units = tuple(units * len(kind.pods) for units in kind.frees)
            sums = _Remaining(units, kind.frees, kind.pods[0].priority)
            if remaining:
                sums = _Remaining(
                    tuple(map(add, sums.units, remaining[-1].units)),
                    tuple(map(max, sums.largest, remaining[-1].largest)),
                    min(sums.lowest, remaining[-1].lowest),
                )
            remaining.append(sums)
        self._remaining = remaining[::-1]
        self._widest = max(sum(units > 0 for units in kind.frees) for kind in kinds)

    def improve(self, victims: Pods, needed: Pods, shortage: Units, steps: StepBudget) -> Pods:
        """Return the set of least loss that contains `needed`; `victims` if none is better."""
        best = self._loss(victims)
        begun: list[tuple[int, int, Pods, Units]] = [(0, 0, needed, shortage)]
        while begun and steps.remaining > 0:
            at, chosen_of_kind, chosen, shortage = begun.pop()
            steps.remaining -= 1 + len(chosen)
            if max(shortage) <= 0:
                loss = self._loss(chosen)
                if loss < best:
                    victims, best = chosen, loss
                continue
            loss_bound = self._lower_bound(at, chosen, shortage)
            if loss_bound is None or loss_bound >= best:
                continue
            kind = self._kinds[at]
            begun.append((at + 1, 0, chosen, shortage))
            if chosen_of_kind < len(kind.pods):
                more = (*chosen, kind.pods[chosen_of_kind])
                begun.append((at, chosen_of_kind + 1, more, tuple(map(sub, shortage, kind.frees))))
        return victims

    def _lower_bound(self, at: int, chosen: Pods, shortage: Units) -> Loss | None:
        """Return a lower bound of the loss with pods of the remaining kinds.

        None if these pods free too little.
        """
        if at == len(self._kinds):
            return None
        remaining = self._remaining[at]
        pods = [0]
        for lack, units, largest in zip(shortage, remaining.units, remaining.largest, strict=True):
            if lack > units:
                return None
            if lack > 0:
                pods.append(-(-lack // largest))
        more = max(*pods, -(-sum(pods) // self._widest))
        against, highest, count, total, earliest = self._loss(chosen)
        return against, highest, count + more, total + more * remaining.lowest, earliest
