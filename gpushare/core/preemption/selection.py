"""The choice of victims for any request on one node: freed amounts and violated budgets.

Independent of the victims that kube-scheduler proposes (see preemptor.py). Plain numbers, not
arrays, since hundreds of sets of a few pods are tried. Only memory and percents count: if an equal
pod waits for the device plug-in (see pairing.py), removing another pod does not help.

Tested in `tests/unit/core/preemption/test_preemptor.py`.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, combinations, islice
from math import inf

from gpushare.core.amounts import PERCENT_AMOUNTS, charged_units
from gpushare.core.model import ANY_SHARERS, MAX_UNITS, Request
from gpushare.core.preemption.victim_search import (
    Loss,
    Pods,
    StepBudget,
    VictimCandidate,
    find_victims,
)
from gpushare.core.states.entry import Entry, NodeBooks

PERCENTS = tuple(range(MAX_UNITS + 1, MAX_UNITS + 1 + len(PERCENT_AMOUNTS)))
"""The numbers of `PERCENT_AMOUNTS` in a `Part`: larger than any number of units."""
SHARERS = PERCENTS[-1] + 1
"""The number of the places for pods in a `Part`."""
FELLOWS = SHARERS + 1
"""The number in a `Part` of the pods of the same workload that have to leave a device."""
_COUNTED = (*PERCENTS, SHARERS, FELLOWS)

Part = tuple[int, int]
"""(device, units): the memory of a device, where a part of the request needs so many units; or
(device, a number of PERCENTS, SHARERS or FELLOWS)."""

_Target = tuple[Part, ...]
"""One Part of memory for each part of the request, on different devices."""

_MAX_TARGETS = 28
"""Upper bound of the targets tried one by one: the pairs of eight. With more, only the devices that
are cheapest alone are tried."""

_LOWEST = -(2**31)
"""The lowest priority: priorities are int32."""


@dataclass(frozen=True, slots=True)
class Budget:
    """A PodDisruptionBudget: the number of allowed disruptions, and the covered pods by uid."""

    allowed_disruptions: int
    covers: frozenset[str]


class VictimSelection:
    """The choice of victims for one request on one node, and the effect of removing any pods."""

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
        parts = Counter(request.parts)
        self._at_least = tuple(
            (size, sum(count for larger, count in parts.items() if larger >= size))
            for size in parts
        )
        self._capacity, self._count = spec.capacity, len(spec.capacity)
        # Percents matter only if the request or a charge has percents.
        used_percents = books.percents_used or ((0,) * self._count,) * len(PERCENT_AMOUNTS)
        self._with_percents = bool(request.percents or any(map(any, used_percents)))
        self._free: dict[Part, int] = {}
        self._needed: dict[Part, int] = {}
        self._of_device: dict[int, tuple[Part, ...]] = {}
        accepted = request.cards.accepted(spec)
        for device, (has, fine) in enumerate(zip(spec.capacity, spec.healthy, strict=True)):
            sizes = [size for size in parts if size <= has]
            if spec.closed or not (fine and accepted[device] and sizes):
                continue
            for size in sizes:
                self._free[device, size] = has - books.used[device]
                # A request for a device alone needs the whole memory, however little it asks for.
                charged = charged_units(size, request.percents, has)
                self._needed[device, size] = has if request.alone else charged
            self._of_device[device] = tuple((device, size) for size in sizes)
            if spec.max_sharers < ANY_SHARERS:
                self._free[device, SHARERS] = spec.max_sharers - books.pods[device]
                self._needed[device, SHARERS] = 1
            if self._with_percents:
                for number, amount, used, percent in zip(
                    PERCENTS, PERCENT_AMOUNTS, used_percents, request.every_percent, strict=True
                ):
                    self._free[device, number] = amount.whole - used[device]
                    self._needed[device, number] = amount.needed(percent)
        if request.apart and request.apart.required:
            self._exclude_fellows(books.entries)

    def _exclude_fellows(self, entries: Iterable[Entry]) -> None:
        """Note that each usable device must lose its pods of the request's workload."""
        for device in self._of_device:
            self._needed[device, FELLOWS] = self._free[device, FELLOWS] = 0
        for entry in entries:
            for part in self.frees(entry):
                if part[1] == FELLOWS:
                    self._free[part] -= 1

    def choose(self, removed: Pods, candidates: Pods, steps: StepBudget) -> Pods | None:
        """Return the candidates with the least loss that, with `removed`, free enough; None if
        none.

        The loss is the order in which kube-scheduler compares nodes: fewest violations of budgets,
        then the lowest highest priority, then fewest pods, then the smallest sum of priorities,
        then the latest start. Exact while steps are left and there are few sets of devices to
        choose from.
        """
        if self.fits(removed):
            return ()
        if not self.fits(removed + candidates):
            return None
        return _VictimChooser(self, self.request.parts, removed, candidates, steps).best()

    def fits(self, removed: Iterable[Entry]) -> bool:
        """Return whether the request fits once the pods are gone."""
        lacks = self.shortages(removed)
        full = {device for (device, size), lack in lacks.items() if size in _COUNTED and lack}
        ready = Counter(
            size for (device, size), lack in lacks.items() if not lack and device not in full
        )
        # A device with room for a part has room for each smaller part, too.
        return all(ready[size] >= count for size, count in self._at_least)

    def shortages(self, removed: Iterable[Entry]) -> dict[Part, int]:
        """Return the shortage of each part of the usable devices once the pods are gone.

        0: there is room.
        """
        free = self._free.copy()
        for entry in removed:
            for part, amount in self.frees(entry).items():
                free[part] += amount
        return {part: max(needed - free[part], 0) for part, needed in self._needed.items()}

    def frees(self, entry: Entry) -> dict[Part, int]:
        """Return the amounts of the usable devices that the end of the entry frees.

        The charge of the entry; without a placement the whole request on each device.
        """
        shares, request = entry.placement, entry.request
        if shares is None or any(device >= self._count for device, _ in shares):
            shares = tuple((device, request.total) for device in range(self._count))
            percents = (request.all_percents,) * self._count
        else:
            percents = entry.percents
        freed: dict[Part, int] = {}
        for (device, units), of_device in zip(shares, percents, strict=True):
            parts = self._of_device.get(device, ())
            charged = charged_units(units, of_device, self._capacity[device])
            for part in parts:
                freed[part] = charged
            if parts:
                numbered = zip(PERCENTS, of_device, strict=False)
                freed.update({(device, number): part for number, part in numbered if part})
            if (device, SHARERS) in self._needed:
                freed[device, SHARERS] = 1
            if (device, FELLOWS) in self._needed and self._is_fellow(request):
                freed[device, FELLOWS] = 1
        return freed

    def _is_fellow(self, request: Request) -> bool:
        """Return whether devices with a pod of this request are closed for the preemptor."""
        apart, own = request.apart, self.request.apart
        return bool(apart and own and own.required and apart.workload == own.workload)

    def violations(self, removed: Iterable[Entry]) -> int:
        """Return how many of the pods violate a budget, counting the most important first.

        Terminating pods do not count, as in a PodDisruptionBudget.
        """
        remaining = [budget.allowed_disruptions for budget in self._budgets]
        covered = [
            pod for pod in removed if pod.ref.uid in self._budgets_by_uid and not pod.terminating
        ]
        if self._overlapping:
            covered.sort(key=importance)
        count = 0
        for entry in covered:
            numbers = self.budgets_of(entry)
            count += any(remaining[number] <= 0 for number in numbers)
            for number in numbers:
                remaining[number] -= 1
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
        return any(
            self._budgets[number].allowed_disruptions <= 0 for number in self.budgets_of(entry)
        )


def importance(entry: Entry) -> tuple[object, ...]:
    """Return a key to sort the most important pods first: higher priority, then earlier start."""
    return (-entry.priority, started_at(entry), entry.ref.uid)


def started_at(entry: Entry) -> float:
    """Return when the pod started; one that has not counts as last.

    As kube-scheduler's GetPodStartTime.
    """
    return entry.started or inf


@dataclass(frozen=True, slots=True)
class _PartNeed:
    """The pods that are needed to free one part of a device.

    There may be no set that reaches both `limit` and `fewest`.
    """

    limit: int
    """The lowest priority such that the pods up to that priority free the part."""
    fewest: int
    """The smallest number of pods that free the part."""
    pods: frozenset[int]
    """The pods (positions) without which the part cannot be free."""


def _count_until(shortage: int, units: Iterable[int]) -> int:
    """Return how many of these units, from the first on, cover the shortage."""
    return sum(1 for had in accumulate(units, initial=0) if had < shortage)


def _with_counted(device: int, size: int) -> tuple[Part, ...]:
    """Return the need of a part of the request on a device: memory, each of `PERCENTS`, a place,
    and no pods of the same workload.
    """
    return tuple((device, number) for number in (size, *_COUNTED))


def _targets_among(able: Sequence[Part], sizes: tuple[int, ...]) -> Iterator[_Target]:
    """Yield the targets for parts of these sizes, the largest first, each on another device."""
    if not sizes:
        yield ()
        return
    count = sizes.count(sizes[0])
    for chosen in combinations([part for part in able if part[1] == sizes[0]], count):
        devices = {device for device, _ in chosen}
        other_parts = [part for part in able if part[0] not in devices]
        for target in _targets_among(other_parts, sizes[count:]):
            yield chosen + target


class _VictimChooser:
    """The choice for one request: the devices to free, and the pods to remove.

    If no budget matters, parts of devices that share no pod are independent: each part is freed
    alone, once for all sets of devices that contain the part.
    """

    def __init__(
        self,
        selection: VictimSelection,
        sizes: tuple[int, ...],
        removed: Pods,
        candidates: Pods,
        steps: StepBudget,
    ) -> None:
        self._selection = selection
        self._sizes = sizes
        self._removed = removed
        self._steps = steps
        self._violations_before = selection.violations(removed)
        self._shortages = selection.shortages(removed)
        self._pods = sorted(candidates, key=self._reprieve_order)
        self._frees = [
            {
                part: amount
                for part, amount in selection.frees(pod).items()
                if self._shortages.get(part)
            }
            for pod in self._pods
        ]
        self._on: dict[Part, list[int]] = {part: [] for part in self._shortages}
        for at, frees in enumerate(self._frees):
            for part in frees:
                self._on[part].append(at)
        self._multi_part_pods = [at for at, frees in enumerate(self._frees) if len(frees) > 1]
        self._needs = {
            part: self._need(part) for part, shortage in self._shortages.items() if shortage
        }
        self._freed: dict[tuple[tuple[Part, ...], int, bool], Pods] = {}

    def best(self) -> Pods | None:
        """Return the set of pods with the least loss; None if no set of devices can be freed."""
        victims: Pods | None = None
        best: tuple[Loss, list[str]] | None = None
        for lower_bound, target in sorted(
            (self._bound(target), target) for target in self._targets()
        ):
            if best is not None and (lower_bound > best[0][:3] or self._steps.remaining <= 0):
                break
            chosen = self._victims_for(target)
            loss = self._total_order(chosen)
            if best is None or loss < best:
                victims, best = chosen, loss
        if victims is None:
            return None
        # A pod on several devices may free one too many, and parts of several sizes may change
        # places: then some are needless.
        may_be = self._multi_part_pods or len({*self._sizes}) > 1
        for pod in sorted(victims, key=self._reprieve_order) if may_be else ():
            fewer = tuple(victim for victim in victims if victim is not pod)
            if self._selection.fits(self._removed + fewer):
                victims = fewer
        return victims

    def _reprieve_order(self, pod: Entry) -> tuple[object, ...]:
        """Return a sort key: pods protected by a budget first, then the most important ones."""
        return (not self._selection.is_protected(pod), importance(pod))

    def _need(self, part: Part) -> _PartNeed | None:
        """Return the pods needed to free a part of a device; None if it cannot be freed."""
        shortage = self._shortages[part]
        units = {at: self._frees[at][part] for at in self._on[part]}
        spare = sum(units.values()) - shortage
        if spare < 0:
            return None
        rising = sorted(units, key=lambda at: self._pods[at].priority)
        falling_units = sorted(units.values(), reverse=True)
        return _PartNeed(
            self._pods[rising[_count_until(shortage, (units[at] for at in rising)) - 1]].priority,
            _count_until(shortage, falling_units),
            frozenset(at for at in units if units[at] > spare),
        )

    def _targets(self) -> Iterator[_Target]:
        """Yield the sets of devices that the request may take, with its part on each."""
        unable = {part for part, need in self._needs.items() if need is None}
        able = [
            (device, size)
            for device, size in self._shortages
            if size not in _COUNTED and unable.isdisjoint(_with_counted(device, size))
        ]
        targets = list(islice(_targets_among(able, self._sizes), _MAX_TARGETS + 1))
        if len(targets) <= _MAX_TARGETS:
            yield from targets
            return
        loss = {part: self._total_order(self._victims_for((part,))) for part in able}
        chosen: dict[int, Part] = {}
        for size in self._sizes:  # the largest size first: it has the fewest candidate devices
            free = (part for part in able if part[1] == size and part[0] not in chosen)
            best = min(free, key=loss.__getitem__)
            chosen[best[0]] = best
        yield tuple(sorted(chosen.values()))

    def _bound(self, target: _Target) -> tuple[int, int, int]:
        """Return a lower bound of the first three parts of the loss that frees the target."""
        parts = self._short_of(target)
        needs = list(parts.values())
        needed = frozenset[int]().union(*(need.pods for need in needs))
        at_once = max(
            (len(parts.keys() & self._frees[at].keys()) for at in self._multi_part_pods), default=1
        )
        fewest = -(-sum(need.fewest for need in needs) // max(at_once, 1))
        return (
            self._selection.violations(self._removed + tuple(self._pods[at] for at in needed)),
            max(need.limit for need in needs),
            max(fewest, *(need.fewest for need in needs)),
        )

    def _short_of(self, target: _Target) -> dict[Part, _PartNeed]:
        """Return the parts of these devices that have to be freed."""
        parts = (part for device, size in target for part in _with_counted(device, size))
        return {part: need for part in parts if (need := self._needs.get(part))}

    def _victims_for(self, target: _Target) -> Pods:
        """Return the pods that free these devices at the least loss; each can be freed."""
        needs = self._short_of(target)
        if not needs:
            return ()
        shortages = tuple(needs)
        limit = max(need.limit for need in needs.values())
        low = tuple(self._pods[at] for at in self._pods_on(shortages, limit))
        if self._selection.violations(self._removed + low) > self._violations_before:
            return self._victims_for_part(shortages, limit, with_budgets=True)
        parts = self._independent_parts(shortages, limit)
        return tuple(
            pod for one in parts for pod in self._victims_for_part(one, limit, with_budgets=False)
        )

    def _independent_parts(self, shortages: tuple[Part, ...], limit: int) -> list[tuple[Part, ...]]:
        """Return the parts in groups: those that share a pod up to the limit are together."""
        parts = [{part} for part in shortages]
        for at in self._multi_part_pods:
            shared = self._frees[at].keys() & set(shortages)
            if len(shared) > 1 and self._pods[at].priority <= limit:
                apart = [part for part in parts if not part & shared]
                parts = [*apart, set().union(*(part for part in parts if part & shared))]
        return sorted(tuple(sorted(part)) for part in parts)

    def _victims_for_part(self, group: tuple[Part, ...], limit: int, *, with_budgets: bool) -> Pods:
        """Return the pods that free a group of parts at the least loss.

        `with_budgets`: budgets matter. If none does, no pod above the limit is needed: some pod of
        that priority is removed in any case, perhaps for another group.
        """
        key = (group, limit, with_budgets)
        if key not in self._freed:
            self._freed[key] = find_victims(
                tuple(self._shortages[part] for part in group),
                [
                    VictimCandidate(
                        self._pods[at],
                        tuple(self._frees[at].get(part, 0) for part in group),
                        self._selection.budget_class(self._pods[at]) if with_budgets else None,
                    )
                    for at in self._pods_on(group, None if with_budgets else limit)
                ],
                lambda pods: self._loss(pods, limit, with_budgets=with_budgets),
                lambda pod: (pod.priority, -started_at(pod), pod.ref.uid),
                self._steps,
            )
        return self._freed[key]

    def _pods_on(self, parts: Iterable[Part], limit: int | None) -> list[int]:
        """Return the pods (positions) that hold something of these parts, up to a priority."""
        positions = sorted(set().union(*(self._on[part] for part in parts)))
        return [at for at in positions if limit is None or self._pods[at].priority <= limit]

    def _loss(self, chosen: Pods, floor: int, *, with_budgets: bool) -> Loss:
        """Return the loss of these pods, with `floor` as the least highest priority."""
        highest = max(floor, *(pod.priority for pod in chosen)) if chosen else floor
        return (
            self._selection.violations(self._removed + chosen)
            if with_budgets
            else self._violations_before,
            highest,
            len(chosen),
            sum(pod.priority for pod in chosen),
            -min((started_at(pod) for pod in chosen if pod.priority == highest), default=inf),
        )

    def _total_order(self, chosen: Pods) -> tuple[Loss, list[str]]:
        """Return the loss and the uids, so that no two sets compare equal."""
        loss = self._loss(chosen, _LOWEST, with_budgets=True)
        return loss, sorted(pod.ref.uid for pod in chosen)
