"""Which pods free what some devices are short of, at the least loss: a search that may end early.

Knows devices by their place in a tuple, and of the loss only that it grows with every pod. Pods
that free the same differ by how much they are missed alone, so of each kind the least missed go
first; and a beginning that can only end worse than what is found already is not followed.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from operator import add, sub

from gpushare.core.model import Entry

Pods = tuple[Entry, ...]

Loss = tuple[int, int, int, int, float]
"""Pods against a budget, the highest priority, how many pods, the sum of their priorities, and the
negative of when the first one of the highest priority started.
"""

Units = tuple[int, ...]
"""On each of the devices looked at."""


@dataclass(slots=True)
class Steps:
    """How often a pod may still be looked at: some 3 us each.

    Counted, not timed: the same question has the same answer on any machine.
    """

    left: int


@dataclass(frozen=True, slots=True)
class Help:
    """A pod and what its end frees. kin: pods of the same kin count alike against budgets."""

    pod: Entry
    frees: Units
    kin: Hashable = None


def least_missed(
    short: Units,
    helps: Sequence[Help],
    loss: Callable[[Pods], Loss],
    missed: Callable[[Entry], tuple[object, ...]],
    steps: Steps,
) -> Pods:
    """The pods that free what is short at the least loss; with too few steps, a set that frees it.

    helps: together they free enough. Those that can be spared are given back one by one, the first
    one first, while the rest frees enough, as kube-scheduler does; search improves upon what that
    leaves. missed: sorts pods that free the same, the least missed first.
    """
    steps.left -= 2 * len(helps)
    # More than is short helps no more.
    helps = [Help(h.pod, tuple(map(min, h.frees, short)), h.kin) for h in helps]
    freed = map(sum, zip(*(one.frees for one in helps), strict=True))
    spare = tuple(map(sub, freed, short))
    needed = tuple(one for one in helps if not _dispensable(one, spare))
    others = [one for one in helps if _dispensable(one, spare)]
    found = tuple(one.pod for one in needed) + _given_back(spare, others)
    if not others or steps.left <= 0:
        return found
    for one in needed:
        short = tuple(map(sub, short, one.frees))
    search = _Search(_kinds(others, missed), loss)
    return search.below(found, tuple(one.pod for one in needed), short, steps)


def _dispensable(one: Help, spare: Units) -> bool:
    return all(units <= left for units, left in zip(one.frees, spare, strict=True))


def _given_back(spare: Units, helps: Sequence[Help]) -> Pods:
    kept: list[Entry] = []
    for one in helps:
        if _dispensable(one, spare):
            spare = tuple(map(sub, spare, one.frees))
        else:
            kept.append(one.pod)
    return tuple(kept)


@dataclass(frozen=True, slots=True)
class _Kind:
    """Pods that free the same, the least missed first."""

    frees: Units
    pods: Pods


def _kinds(helps: Sequence[Help], missed: Callable[[Entry], tuple[object, ...]]) -> Sequence[_Kind]:
    """Those that free most first."""
    alike: dict[tuple[Units, Hashable], list[Entry]] = {}
    for one in helps:
        alike.setdefault((one.frees, one.kin), []).append(one.pod)
    kinds = [_Kind(frees, tuple(sorted(pods, key=missed))) for (frees, _), pods in alike.items()]
    return sorted(kinds, key=lambda kind: ([-units for units in kind.frees], missed(kind.pods[0])))


@dataclass(frozen=True, slots=True)
class _Ahead:
    """What one kind and those after it have: units in all, most in one pod, the lowest priority."""

    units: Units
    most: Units
    lowest: int


def _ahead(kinds: Sequence[_Kind]) -> list[_Ahead]:
    found: list[_Ahead] = []
    for kind in reversed(kinds):
        here = _Ahead(
            tuple(units * len(kind.pods) for units in kind.frees), kind.frees, kind.pods[0].priority
        )
        if found:
            here = _Ahead(
                tuple(map(add, here.units, found[-1].units)),
                tuple(map(max, here.most, found[-1].most)),
                min(here.lowest, found[-1].lowest),
            )
        found.append(here)
    return found[::-1]


class _Search:
    """Goes through the kinds: one more of this kind, or none and on to the next."""

    def __init__(self, kinds: Sequence[_Kind], loss: Callable[[Pods], Loss]) -> None:
        self._kinds = kinds
        self._loss = loss
        self._ahead = _ahead(kinds)
        self._widest = max(sum(units > 0 for units in kind.frees) for kind in kinds)

    def below(self, found: Pods, needed: Pods, short: Units, steps: Steps) -> Pods:
        """The set of the least loss, all with those needed; `found` where no step shows a lower."""
        best = self._loss(found)
        begun: list[tuple[int, int, Pods, Units]] = [(0, 0, needed, short)]
        while begun and steps.left > 0:
            at, taken, chosen, lacks = begun.pop()
            steps.left -= 1 + len(chosen)
            if max(lacks) <= 0:
                loss = self._loss(chosen)
                if loss < best:
                    found, best = chosen, loss
                continue
            least = self._least(at, chosen, lacks)
            if least is None or least >= best:
                continue
            kind = self._kinds[at]
            begun.append((at + 1, 0, chosen, lacks))
            if taken < len(kind.pods):
                more = (*chosen, kind.pods[taken])
                begun.append((at, taken + 1, more, tuple(map(sub, lacks, kind.frees))))
        return found

    def _least(self, at: int, chosen: Pods, lacks: Units) -> Loss | None:
        """No loss is below this with pods of the kinds ahead; None: those free too little."""
        if at == len(self._kinds):
            return None
        ahead = self._ahead[at]
        pods = [0]
        for lack, units, most in zip(lacks, ahead.units, ahead.most, strict=True):
            if lack > units:
                return None
            if lack > 0:
                pods.append(-(-lack // most))
        more = max(*pods, -(-sum(pods) // self._widest))
        against, highest, count, total, earliest = self._loss(chosen)
        return against, highest, count + more, total + more * ahead.lowest, earliest
