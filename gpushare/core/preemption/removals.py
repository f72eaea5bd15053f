"""The effect of removing pods from a node: the room for a request, and the budgets it violates.

Pure arithmetic on the charges of one node, with plain numbers instead of arrays: it is called for
hundreds of sets of a few pods. Only memory and cores count: if an equal pod waits for its device
plug-in (see pairing.py), removing another pod does not help.

Tested in `tests/unit/core/preemption/test_preemptor.py`.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from types import MappingProxyType

from gpushare.core.model import ALL_CORES, MAX_UNITS, Request
from gpushare.core.states.entry import Entry, NodeBooks

CORES = MAX_UNITS + 1
"""Stands for the cores of a device, where else units of its memory are meant."""

Part = tuple[int, int]
"""(device, units): its memory, of which a part of the request needs so many; or (device, CORES)."""


@dataclass(frozen=True, slots=True)
class Budget:
    """A PodDisruptionBudget: how many of the pods it covers (by uid) may go."""

    allowed: int
    covers: frozenset[str]


class RemovalEffect:
    """The effect of removals on one request on one node, and on the budgets of the pods.

    takes: what a part of the request takes of a device that deals out memory in other amounts.
    """

    def __init__(
        self,
        books: NodeBooks,
        request: Request,
        budgets: Sequence[Budget] = (),
        takes: Mapping[Part, int] = MappingProxyType({}),
    ) -> None:
        self.request = request
        self._budgets = budgets
        self._budgets_by_uid: dict[str, tuple[int, ...]] = {}
        for number, budget in enumerate(budgets):
            for uid in budget.covers:
                self._budgets_by_uid[uid] = (*self._budgets_by_uid.get(uid, ()), number)
        # If no pod is covered twice, the order of the removals makes no difference to the budgets.
        self._overlapping = any(len(numbers) > 1 for numbers in self._budgets_by_uid.values())
        spec = books.spec
        parts = Counter(request.parts)
        self._at_least = tuple(
            (size, sum(count for other, count in parts.items() if other >= size)) for size in parts
        )
        self._count = len(spec.capacity)
        # Cores that nobody has asked for matter to nobody.
        self._with_cores = bool(request.cores or any(books.cores_used))
        self._free: dict[Part, int] = {}
        self._needed: dict[Part, int] = {}
        self._of_device: dict[int, tuple[Part, ...]] = {}
        accepted = request.cards.accepted(spec)
        for device, (has, fine) in enumerate(zip(spec.capacity, spec.healthy, strict=True)):
            sizes = [size for size in parts if takes.get((device, size), size) <= has]
            if spec.closed or not (fine and accepted[device] and sizes):
                continue
            for size in sizes:
                self._free[device, size] = has - books.used[device]
                # Who wants a device alone needs all of it, however little memory is asked for.
                needed = takes.get((device, size), size)
                self._needed[device, size] = has if request.alone else needed
            self._of_device[device] = tuple((device, size) for size in sizes)
            if self._with_cores:
                held = books.cores_used[device] if books.cores_used else 0
                self._free[device, CORES] = ALL_CORES - held
                # One whose cores are all given has no room for a pod without cores either.
                self._needed[device, CORES] = max(request.cores, 1)

    def fits(self, removed: Iterable[Entry]) -> bool:
        """Return whether the request fits once the pods are gone."""
        lacks = self.shortages(removed)
        no_cores = {device for (device, size), lack in lacks.items() if size == CORES and lack}
        ready = Counter(
            size for (device, size), lack in lacks.items() if not lack and device not in no_cores
        )
        # What is ready for a part is ready for each smaller one, too.
        return all(ready[size] >= count for size, count in self._at_least)

    def shortages(self, removed: Iterable[Entry]) -> dict[Part, int]:
        """Return what is missing of each part of the usable devices once the pods are gone.

        0: there is room. The parts of one device are beside each other.
        """
        free = self._free.copy()
        for entry in removed:
            for part, amount in self.frees(entry).items():
                free[part] += amount
        return {part: max(needed - free[part], 0) for part, needed in self._needed.items()}

    def frees(self, entry: Entry) -> dict[Part, int]:
        """Return what the end of the entry frees of the usable devices: its charge, and without a
        placement its whole request on each.
        """
        shares, cores = entry.placement, entry.cores
        if shares is None or any(device >= self._count for device, _ in shares):
            shares = tuple((device, entry.request.total) for device in range(self._count))
            cores = entry.request.cores_on(0)
        freed: dict[Part, int] = {}
        for device, units in shares:
            parts = self._of_device.get(device, ())
            for part in parts:
                freed[part] = units
            if cores and self._with_cores and parts:
                freed[device, CORES] = cores
        return freed

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
