"""What fits a node without some of its pods, and which of them are missed least.

Pure arithmetic on the books of one node, for any request; knows nothing of the victims that
kube-scheduler names (see victims.py). Plain numbers, not arrays: it asks about hundreds of sets of
a few pods. Memory alone counts: that an equal pod waits for its device plug-in (see pairing.py) is
over in a second or two, and nobody has to go for it.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, combinations
from math import comb, inf

from gpushare.core.model import Entry, NodeBooks, Request, Shares

EXACT = 8
"""Up to this many pods that hold parts of the same devices the best set is found by trying all."""

EXACT_IN_BUDGETS = 6
"""The same where a budget is in the way: then no smaller set ends the search."""

_MOST_TARGETS = 28
"""Sets of devices looked at one by one: two of eight. Of more, those that are cheapest alone."""

Pods = tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class Budget:
    """A PodDisruptionBudget: how many of the pods it covers (by uid) may go."""

    allowed: int
    covers: frozenset[str]


class Removal:
    """One node, one request, and the budgets that cover pods of the node."""

    def __init__(self, books: NodeBooks, request: Request, budgets: Sequence[Budget] = ()) -> None:
        self._books = books
        self._request = request
        self._budgets = budgets
        spec = books.spec
        self._devices = tuple(
            device
            for device, (units, fine) in enumerate(zip(spec.capacity, spec.healthy, strict=True))
            if fine and not spec.closed and units >= request.units
        )
        self._left = [has - held for has, held in zip(spec.capacity, books.used, strict=True)]

    def fits(self, gone: Iterable[Entry], target: tuple[int, ...] = ()) -> bool:
        """Whether the request fits (on the target devices) once the pods are gone."""
        gone = tuple(gone)
        left = self._left.copy()
        for entry in gone:
            for device, units in self._shares(entry):
                left[device] += units
        wanted = self._request.units
        roomy = sum(1 for device in target or self._devices if left[device] >= wanted)
        return roomy >= self._request.devices

    def least(self, gone: Pods, pool: Pods) -> Pods | None:
        """The set of the pool that is missed least, besides those gone anyway; None: none frees.

        As kube-scheduler compares nodes: fewest against a budget, then the lowest highest priority,
        then fewest, then the smallest sum of priorities, then started last. Exact where few pods
        hold parts of the same devices (see EXACT) and there are few sets of devices to choose from.
        Where more pods do, they are given back one by one, the most important first, while the rest
        still frees enough, as kube-scheduler does.
        """
        if self.fits(gone):
            return ()
        if not self.fits(gone + pool):
            return None
        sets = [
            found for target in self._targets(gone, pool) for found in self._on(target, gone, pool)
        ]
        return min(sets, key=lambda chosen: self._loss(gone, chosen), default=None)

    def violations(self, gone: Iterable[Entry]) -> int:
        """How many of the pods go against a budget, the most important first.

        Those that end anyway are not among them: a budget does not count on them any more.
        """
        allowed = [budget.allowed for budget in self._budgets]
        count = 0
        for entry in sorted(gone, key=importance) if allowed else ():
            covering = [
                index
                for index, budget in enumerate(self._budgets)
                if entry.ref.uid in budget.covers and not entry.terminating
            ]
            count += any(allowed[index] <= 0 for index in covering)
            for index in covering:
                allowed[index] -= 1
        return count

    def _targets(self, gone: Pods, pool: Pods) -> Iterator[tuple[int, ...]]:
        """The sets of devices that the request may take."""
        count = self._request.devices
        if comb(len(self._devices), count) <= _MOST_TARGETS:
            yield from combinations(self._devices, count)
            return
        losses = self._alone(gone, pool)
        yield tuple(sorted(sorted(losses, key=losses.__getitem__)[:count]))

    def _alone(self, gone: Pods, pool: Pods) -> dict[int, tuple[object, ...]]:
        """What each device costs by itself, for those that can be freed."""
        one = Removal(self._books, replace(self._request, devices=1), self._budgets)
        costs: dict[int, tuple[object, ...]] = {}
        for device in self._devices:
            if one.fits(gone, (device,)):
                costs[device] = ()
            elif found := one._on((device,), gone, pool):
                costs[device] = min(self._loss(gone, chosen) for chosen in found)
        return costs

    def _on(self, target: tuple[int, ...], gone: Pods, pool: Pods) -> list[Pods]:
        """Sets of the pool that free the target, the least among them; [] where none does."""
        useful = tuple(
            entry for entry in pool if any(device in target for device, _ in self._shares(entry))
        )
        if not self.fits(gone + useful, target):
            return []
        free_to_go = not self.violations(gone + useful)
        if len(useful) > (EXACT if free_to_go else EXACT_IN_BUDGETS):
            return [self._given_back(target, gone, useful)]
        if free_to_go:
            useful = self._lowest(target, gone, useful)
        found: list[Pods] = []
        for size in range(self._fewest(target, gone, useful), len(useful) + 1):
            found += [c for c in combinations(useful, size) if self.fits(gone + c, target)]
            if found and free_to_go:
                # With no budget in the way, the highest priority settled: the fewest are the best.
                break
        return found

    def _lowest(self, target: tuple[int, ...], gone: Pods, useful: Pods) -> Pods:
        """Those up to the lowest priority at which they free the target."""
        for limit in sorted({entry.priority for entry in useful}):
            low = tuple(entry for entry in useful if entry.priority <= limit)
            if self.fits(gone + low, target):
                return low
        return useful

    def _fewest(self, target: tuple[int, ...], gone: Pods, useful: Pods) -> int:
        """No fewer pods than this can free the target."""
        most = 1
        for device in target:
            freed = sorted((self._on_device(entry, device) for entry in useful), reverse=True)
            room = self._left[device] + sum(self._on_device(entry, device) for entry in gone)
            rooms = accumulate(freed, initial=room)
            most = max(most, sum(1 for left in rooms if left < self._request.units))
        return most

    def _given_back(self, target: tuple[int, ...], gone: Pods, useful: Pods) -> Pods:
        covered = frozenset[str]().union(*(b.covers for b in self._budgets if b.allowed <= 0))
        for entry in sorted(useful, key=lambda e: (e.ref.uid not in covered, importance(e))):
            fewer = tuple(other for other in useful if other is not entry)
            if self.fits(gone + fewer, target):
                useful = fewer
        return useful

    def _loss(self, gone: Pods, chosen: Pods) -> tuple[object, ...]:
        highest = max(entry.priority for entry in chosen)
        earliest = min(_started(entry) for entry in chosen if entry.priority == highest)
        return (
            self.violations(gone + chosen),
            highest,
            len(chosen),
            sum(entry.priority for entry in chosen),
            -earliest,
            sorted(entry.ref.uid for entry in chosen),
        )

    def _on_device(self, entry: Entry, device: int) -> int:
        return sum(units for held, units in self._shares(entry) if held == device)

    def _shares(self, entry: Entry) -> Shares:
        """What the entry is charged with: an unplaced one its whole request on every device."""
        count = len(self._left)
        if entry.placement is not None and all(device < count for device, _ in entry.placement):
            return entry.placement
        return tuple((device, entry.request.total) for device in range(count))


def importance(entry: Entry) -> tuple[object, ...]:
    """Sorts the most important first: higher priority, then started earlier."""
    return (-entry.priority, _started(entry), entry.ref.uid)


def _started(entry: Entry) -> float:
    """When it started; one that has not counts as the last (kube-scheduler's GetPodStartTime)."""
    return entry.started or inf
