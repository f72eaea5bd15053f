"""The effect of removing pods from a node: the room for a request, and the budgets it violates.

Pure arithmetic on the charges of one node, with plain numbers instead of arrays: it is called for
hundreds of sets of a few pods. Only memory counts: if an equal pod waits for its device plug-in
(see pairing.py), removing another pod does not help.

Tested in `tests/unit/core/preemption/test_preemptor.py`.
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from math import inf

from gpushare.core.model import Request, Shares
from gpushare.core.states.entry import Entry, NodeBooks


@dataclass(frozen=True, slots=True)
class Budget:
    """A PodDisruptionBudget: how many of the pods it covers (by uid) may go."""

    allowed: int
    covers: frozenset[str]


class RemovalEffect:
    """The effect of removals on one request on one node, and on the budgets of the pods."""

    def __init__(self, books: NodeBooks, request: Request, budgets: Sequence[Budget] = ()) -> None:
        self.request = request
        self._budgets = budgets
        self._budgets_by_uid: dict[str, tuple[int, ...]] = {}
        for number, budget in enumerate(budgets):
            for uid in budget.covers:
                self._budgets_by_uid[uid] = (*self._budgets_by_uid.get(uid, ()), number)
        # If no pod is covered twice, the order of the removals makes no difference to the budgets.
        self._overlapping = any(len(numbers) > 1 for numbers in self._budgets_by_uid.values())
        spec = books.spec
        self._devices = tuple(
            device
            for device, (units, fine) in enumerate(zip(spec.capacity, spec.healthy, strict=True))
            if fine and not spec.closed and units >= request.units
        )
        self._left = [has - held for has, held in zip(spec.capacity, books.used, strict=True)]

    def fits(self, removed: Iterable[Entry]) -> bool:
        """Return whether the request fits once the pods are gone."""
        return (
            sum(1 for shortage in self.shortages(removed).values() if not shortage)
            >= self.request.devices
        )

    def shortages(self, removed: Iterable[Entry]) -> dict[int, int]:
        """Return the units missing on each usable device once the pods are gone; 0: it has room."""
        left = self._left.copy()
        for entry in removed:
            for device, units in self.shares(entry):
                left[device] += units
        return {device: max(self.request.units - left[device], 0) for device in self._devices}

    def shares(self, entry: Entry) -> Shares:
        """Return the charge of the entry; without a placement its whole request on every device."""
        count = len(self._left)
        if entry.placement is not None and all(device < count for device, _ in entry.placement):
            return entry.placement
        return tuple((device, entry.request.total) for device in range(count))

    def violations(self, removed: Iterable[Entry]) -> int:
        """Return how many of the pods violate a budget, counting the most important first.

        Terminating pods do not count: a budget does not count them any more either.
        """
        allowed = [budget.allowed for budget in self._budgets]
        covered = [
            pod for pod in removed if pod.ref.uid in self._budgets_by_uid and not pod.terminating
        ]
        if self._overlapping:
            covered.sort(key=importance)
        count = 0
        for entry in covered:
            numbers = self.budgets_of(entry)
            count += any(allowed[number] <= 0 for number in numbers)
            for number in numbers:
                allowed[number] -= 1
        return count

    def budgets_of(self, entry: Entry) -> tuple[int, ...]:
        """Return the numbers of the budgets that cover the pod."""
        return self._budgets_by_uid.get(entry.ref.uid, ())

    def budget_class(self, entry: Entry) -> Hashable:
        """Return a key that is equal for pods with the same effect on all budgets."""
        numbers = self.budgets_of(entry)
        return entry.ref.uid if numbers and self._overlapping else numbers

    def is_protected(self, entry: Entry) -> bool:
        """Return whether a budget that covers the pod allows no disruption."""
        return any(self._budgets[number].allowed <= 0 for number in self.budgets_of(entry))


def importance(entry: Entry) -> tuple[object, ...]:
    """Return a key to sort the most important pods first: higher priority, then earlier start."""
    return (-entry.priority, started_at(entry), entry.ref.uid)


def started_at(entry: Entry) -> float:
    """Return when the pod started; one that has not counts as last.

    As kube-scheduler's GetPodStartTime.
    """
    return entry.started or inf
