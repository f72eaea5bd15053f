"""What fits a node without some of its pods, and which of them are missed least.

Pure arithmetic on the books of one node, for any request; knows nothing of the victims that
kube-scheduler names (see victims.py). Plain numbers, not arrays: it asks about hundreds of sets of
a few pods. Memory alone counts: where an equal pod waits for its device plug-in (see pairing.py) it
helps nobody that another goes.
"""

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, combinations
from math import comb, inf

from gpushare.core.model import Entry, NodeBooks, Request, Shares
from gpushare.core.preemption.victim_search import Help, Loss, Pods, Steps, least_missed

_MOST_TARGETS = 28
"""Sets of devices looked at one by one: two of eight. Of more, those that are cheapest alone."""

_LOWEST = -(2**31)
"""No priority is lower: it is an int32."""


@dataclass(frozen=True, slots=True)
class Budget:
    """A PodDisruptionBudget: how many of the pods it covers (by uid) may go."""

    allowed: int
    covers: frozenset[str]


class Removal:
    """One node, one request, and the budgets that cover pods of the node."""

    def __init__(self, books: NodeBooks, request: Request, budgets: Sequence[Budget] = ()) -> None:
        self._request = request
        self._budgets = budgets
        self._covering: dict[str, tuple[int, ...]] = {}
        for number, budget in enumerate(budgets):
            for uid in budget.covers:
                self._covering[uid] = (*self._covering.get(uid, ()), number)
        # If no pod is covered twice, it makes no difference to the budgets in which order they go.
        self._overlapping = any(len(covering) > 1 for covering in self._covering.values())
        spec = books.spec
        self._devices = tuple(
            device
            for device, (units, fine) in enumerate(zip(spec.capacity, spec.healthy, strict=True))
            if fine and not spec.closed and units >= request.units
        )
        self._left = [has - held for has, held in zip(spec.capacity, books.used, strict=True)]

    def fits(self, gone: Iterable[Entry]) -> bool:
        """Whether the request fits once the pods are gone."""
        return sum(1 for lack in self.short(gone).values() if not lack) >= self._request.devices

    def least(self, gone: Pods, pool: Pods, steps: Steps) -> Pods | None:
        """The set of the pool that is missed least, besides those gone anyway; None: none frees.

        As kube-scheduler compares nodes: fewest against a budget, then the lowest highest priority,
        then fewest, then the smallest sum of priorities, then started last. Exact while the steps
        last and there are few sets of devices to choose from.
        """
        if self.fits(gone):
            return ()
        if not self.fits(gone + pool):
            return None
        return _Choice(self, self._request.devices, gone, pool, steps).best()

    def short(self, gone: Iterable[Entry]) -> dict[int, int]:
        """What each device that could do lacks once the pods are gone; 0: it has room."""
        left = self._left.copy()
        for entry in gone:
            for device, units in self.shares(entry):
                left[device] += units
        return {device: max(self._request.units - left[device], 0) for device in self._devices}

    def shares(self, entry: Entry) -> Shares:
        """What the entry is charged with: an unplaced one its whole request on every device."""
        count = len(self._left)
        if entry.placement is not None and all(device < count for device, _ in entry.placement):
            return entry.placement
        return tuple((device, entry.request.total) for device in range(count))

    def violations(self, gone: Iterable[Entry]) -> int:
        """How many of the pods go against a budget, the most important first.

        Those that end anyway are not among them: a budget does not count on them any more.
        """
        allowed = [budget.allowed for budget in self._budgets]
        covered = [pod for pod in gone if pod.ref.uid in self._covering and not pod.terminating]
        if self._overlapping:
            covered.sort(key=importance)
        count = 0
        for entry in covered:
            covering = self.covering(entry)
            count += any(allowed[number] <= 0 for number in covering)
            for number in covering:
                allowed[number] -= 1
        return count

    def covering(self, entry: Entry) -> tuple[int, ...]:
        """The numbers of the budgets that cover the pod."""
        return self._covering.get(entry.ref.uid, ())

    def kin(self, entry: Entry) -> Hashable:
        """Equal for pods of which a budget counts one like the other, whatever else goes."""
        covering = self.covering(entry)
        return entry.ref.uid if covering and self._overlapping else covering

    def spared(self, entry: Entry) -> bool:
        """Whether a budget that covers the pod has nothing left."""
        return any(self._budgets[number].allowed <= 0 for number in self.covering(entry))


@dataclass(frozen=True, slots=True)
class _Need:
    """What it takes to free one device, each for itself: no set need have both limit and fewest.

    limit: pods up to this priority free it. fewest: no fewer do. pods: without any of these (by
    place) it is not free.
    """

    limit: int
    fewest: int
    pods: frozenset[int]


def _first(lack: int, units: Iterable[int]) -> int:
    """How many of these, from the first on, it takes to have what lacks."""
    return sum(1 for had in accumulate(units, initial=0) if had < lack)


class _Choice:
    """The choice for one request: which devices to free, and by whose end.

    Where no budget is in the way, devices that share no pod do not depend on each other: each is
    freed by itself, once for all the sets of devices it is in.
    """

    def __init__(self, removal: Removal, count: int, gone: Pods, pool: Pods, steps: Steps) -> None:
        self._removal = removal
        self._count = count
        self._gone = gone
        self._steps = steps
        self._broken = removal.violations(gone)
        self._short = removal.short(gone)
        self._pods = sorted(pool, key=self._given_back)
        self._frees = [
            {device: units for device, units in removal.shares(pod) if self._short.get(device)}
            for pod in self._pods
        ]
        self._on: dict[int, list[int]] = {device: [] for device in self._short}
        for at, frees in enumerate(self._frees):
            for device in frees:
                self._on[device].append(at)
        self._wide = [at for at, frees in enumerate(self._frees) if len(frees) > 1]
        self._needs = {device: self._need(device) for device, lack in self._short.items() if lack}
        self._freed: dict[tuple[tuple[int, ...], int, bool], Pods] = {}

    def best(self) -> Pods | None:
        """The pods that are missed least; None where no set of devices can be freed."""
        found: Pods | None = None
        best: tuple[Loss, list[str]] | None = None
        for bound, target in sorted((self._bound(target), target) for target in self._targets()):
            if best is not None and (bound > best[0][:3] or self._steps.left <= 0):
                break
            chosen = self._for(target)
            loss = self._told_apart(chosen)
            if best is None or loss < best:
                found, best = chosen, loss
        return found and self._without_needless(found)

    def _without_needless(self, chosen: Pods) -> Pods:
        """A pod on several devices may free one more than was meant: then another need not go."""
        for pod in sorted(chosen, key=self._given_back) if self._wide else ():
            fewer = tuple(other for other in chosen if other is not pod)
            if self._removal.fits(self._gone + fewer):
                chosen = fewer
        return chosen

    def _given_back(self, pod: Entry) -> tuple[object, ...]:
        """Sorts those that a budget spares before the others, of both the most important first."""
        return (not self._removal.spared(pod), importance(pod))

    def _need(self, device: int) -> _Need | None:
        """What it takes to free a device; None: it cannot be freed."""
        lack = self._short[device]
        units = {at: self._frees[at][device] for at in self._on[device]}
        spare = sum(units.values()) - lack
        if spare < 0:
            return None
        rising = sorted(units, key=lambda at: self._pods[at].priority)
        most = sorted(units.values(), reverse=True)
        return _Need(
            self._pods[rising[_first(lack, (units[at] for at in rising)) - 1]].priority,
            _first(lack, most),
            frozenset(at for at in units if units[at] > spare),
        )

    def _targets(self) -> Iterator[tuple[int, ...]]:
        """The sets of devices that the request may take."""
        able = [device for device, lack in self._short.items() if not lack or self._needs[device]]
        if comb(len(able), self._count) <= _MOST_TARGETS:
            yield from combinations(able, self._count)
            return
        loss = {device: self._told_apart(self._for((device,))) for device in able}
        yield tuple(sorted(sorted(able, key=loss.__getitem__)[: self._count]))

    def _bound(self, target: tuple[int, ...]) -> tuple[int, int, int]:
        """No loss of pods that free the target starts with less."""
        needs = [need for device in target if (need := self._needs.get(device))]
        needed = frozenset[int]().union(*(need.pods for need in needs))
        at_once = max((sum(d in self._frees[at] for d in target) for at in self._wide), default=1)
        fewest = -(-sum(need.fewest for need in needs) // max(at_once, 1))
        return (
            self._removal.violations(self._gone + tuple(self._pods[at] for at in needed)),
            max(need.limit for need in needs),
            max(fewest, *(need.fewest for need in needs)),
        )

    def _for(self, target: tuple[int, ...]) -> Pods:
        """The pods that free these devices at the least loss; each of them can be freed."""
        needs = {device: need for device in target if (need := self._needs.get(device))}
        if not needs:
            return ()
        short = tuple(needs)
        limit = max(need.limit for need in needs.values())
        low = tuple(self._pods[at] for at in self._useful(short, limit))
        if self._removal.violations(self._gone + low) > self._broken:
            return self._freeing(short, limit, guarded=True)
        parts = self._parts(short, limit)
        return tuple(pod for part in parts for pod in self._freeing(part, limit, guarded=False))

    def _parts(self, short: tuple[int, ...], limit: int) -> list[tuple[int, ...]]:
        """The devices, those together that a pod up to the priority holds parts of."""
        parts = [{device} for device in short]
        for at in self._wide:
            held = self._frees[at].keys() & set(short)
            if len(held) > 1 and self._pods[at].priority <= limit:
                apart = [part for part in parts if not part & held]
                parts = [*apart, set().union(*(part for part in parts if part & held))]
        return sorted(tuple(sorted(part)) for part in parts)

    def _freeing(self, part: tuple[int, ...], limit: int, *, guarded: bool) -> Pods:
        """The pods that free a part at the least loss.

        guarded: budgets are in the way. Where none is, a higher priority than the limit is not
        needed, and somebody of that priority goes in any case, be it for another part.
        """
        key = (part, limit, guarded)
        if key not in self._freed:
            self._freed[key] = least_missed(
                tuple(self._short[device] for device in part),
                [
                    Help(
                        self._pods[at],
                        tuple(self._frees[at].get(device, 0) for device in part),
                        self._removal.kin(self._pods[at]) if guarded else None,
                    )
                    for at in self._useful(part, None if guarded else limit)
                ],
                lambda pods: self._loss(pods, limit, guarded=guarded),
                lambda pod: (pod.priority, -_started(pod), pod.ref.uid),
                self._steps,
            )
        return self._freed[key]

    def _useful(self, devices: Iterable[int], limit: int | None) -> list[int]:
        """The pods that hold parts of the devices, up to a priority."""
        found = sorted(set().union(*(self._on[device] for device in devices)))
        return [at for at in found if limit is None or self._pods[at].priority <= limit]

    def _loss(self, chosen: Pods, floor: int, *, guarded: bool) -> Loss:
        """The loss of these pods, when the highest priority is not below the floor in any case."""
        highest = max(floor, *(pod.priority for pod in chosen)) if chosen else floor
        return (
            self._removal.violations(self._gone + chosen) if guarded else self._broken,
            highest,
            len(chosen),
            sum(pod.priority for pod in chosen),
            -min((_started(pod) for pod in chosen if pod.priority == highest), default=inf),
        )

    def _told_apart(self, chosen: Pods) -> tuple[Loss, list[str]]:
        """The loss, and the uids, so that no two sets are equal."""
        loss = self._loss(chosen, _LOWEST, guarded=True)
        return loss, sorted(pod.ref.uid for pod in chosen)


def importance(entry: Entry) -> tuple[object, ...]:
    """Sorts the most important first: higher priority, then started earlier."""
    return (-entry.priority, _started(entry), entry.ref.uid)


def _started(entry: Entry) -> float:
    """When it started; one that has not counts as the last (kube-scheduler's GetPodStartTime)."""
    return entry.started or inf
