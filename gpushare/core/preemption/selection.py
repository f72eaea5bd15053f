"""The choice of victims for any request on one node.

Knows nothing of the victims that kube-scheduler proposes (see preemptor.py). It works on plain
numbers, not arrays, since it tries hundreds of sets of a few pods.

Tested in `tests/unit/core/preemption/test_preemptor.py`.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, combinations, islice
from math import inf

from gpushare.core.preemption.removals import CORES, Part, RemovalEffect, importance, started_at
from gpushare.core.preemption.victim_search import Candidate, Loss, Pods, StepBudget, find_victims
from gpushare.core.states.entry import Entry

_Target = tuple[Part, ...]
"""The memory of so many devices, each of one part of the request."""

_MAX_TARGETS = 28
"""Targets that are tried one by one: as many as pairs of eight. If there are more, only the devices
that are cheapest alone are tried."""

_LOWEST = -(2**31)
"""The lowest priority: priorities are int32."""


class VictimSelection(RemovalEffect):
    """The choice of victims for one request on one node."""

    def choose(self, removed: Pods, candidates: Pods, steps: StepBudget) -> Pods | None:
        """Return the candidates with the least loss that free enough, besides those removed anyway.

        None if none do. The order is that in which kube-scheduler compares nodes: fewest violations
        of budgets, then the lowest highest priority, then fewest pods, then the smallest sum of
        priorities, then the latest start. Exact while steps are left and there are few sets of
        devices to choose from.
        """
        if self.fits(removed):
            return ()
        if not self.fits(removed + candidates):
            return None
        return _VictimChooser(self, self.request.parts, removed, candidates, steps).best()


@dataclass(frozen=True, slots=True)
class _Need:
    """The pods that are needed to free one part of a device.

    There may be no set that reaches both `limit` and `fewest`.
    """

    limit: int
    """The pods up to this priority free it."""
    fewest: int
    """The smallest number of pods that does."""
    pods: frozenset[int]
    """It is not free unless all of these (positions) are removed."""


def _count_until(shortage: int, units: Iterable[int]) -> int:
    """Return how many of these units, from the first on, cover the shortage."""
    return sum(1 for had in accumulate(units, initial=0) if had < shortage)


def _targets_among(able: Sequence[Part], sizes: tuple[int, ...]) -> Iterator[_Target]:
    """Yield the targets for parts of these sizes, the largest first, each on another device."""
    if not sizes:
        yield ()
        return
    count = sizes.count(sizes[0])
    for chosen in combinations([part for part in able if part[1] == sizes[0]], count):
        devices = {device for device, _ in chosen}
        others = [part for part in able if part[0] not in devices]
        for target in _targets_among(others, sizes[count:]):
            yield chosen + target


class _VictimChooser:
    """The choice for one request: which devices to free, and which pods to remove for it.

    If no budget matters, parts of devices that share no pod do not depend on each other: each is
    freed alone, once for all the sets of devices that contain it.
    """

    def __init__(
        self,
        selection: RemovalEffect,
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
        for bound, target in sorted((self._bound(target), target) for target in self._targets()):
            if best is not None and (bound > best[0][:3] or self._steps.left <= 0):
                break
            chosen = self._victims_for(target)
            loss = self._total_order(chosen)
            if best is None or loss < best:
                victims, best = chosen, loss
        return victims and self._without_needless(victims)

    def _without_needless(self, chosen: Pods) -> Pods:
        """Return the pods without needless ones: a pod on several devices may free one too many,
        and parts of several sizes may change places.
        """
        may_be = self._multi_part_pods or len({*self._sizes}) > 1
        for pod in sorted(chosen, key=self._reprieve_order) if may_be else ():
            fewer = tuple(other for other in chosen if other is not pod)
            if self._selection.fits(self._removed + fewer):
                chosen = fewer
        return chosen

    def _reprieve_order(self, pod: Entry) -> tuple[object, ...]:
        """Return a sort key: pods protected by a budget first, then the most important ones."""
        return (not self._selection.is_protected(pod), importance(pod))

    def _need(self, part: Part) -> _Need | None:
        """Return the pods needed to free a part of a device; None if it cannot be freed."""
        shortage = self._shortages[part]
        units = {at: self._frees[at][part] for at in self._on[part]}
        spare = sum(units.values()) - shortage
        if spare < 0:
            return None
        rising = sorted(units, key=lambda at: self._pods[at].priority)
        most = sorted(units.values(), reverse=True)
        return _Need(
            self._pods[rising[_count_until(shortage, (units[at] for at in rising)) - 1]].priority,
            _count_until(shortage, most),
            frozenset(at for at in units if units[at] > spare),
        )

    def _targets(self) -> Iterator[_Target]:
        """Yield the sets of devices that the request may take, with its part on each."""
        unable = {part for part, need in self._needs.items() if need is None}
        able = [
            (device, size)
            for device, size in self._shortages
            if size != CORES and unable.isdisjoint([(device, size), (device, CORES)])
        ]
        targets = list(islice(_targets_among(able, self._sizes), _MAX_TARGETS + 1))
        if len(targets) <= _MAX_TARGETS:
            yield from targets
            return
        loss = {part: self._total_order(self._victims_for((part,))) for part in able}
        chosen: dict[int, Part] = {}
        for size in self._sizes:  # the largest first: it has the fewest devices to choose from
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

    def _short_of(self, target: _Target) -> dict[Part, _Need]:
        """Return the parts of these devices that have to be freed."""
        parts = (part for device, size in target for part in ((device, size), (device, CORES)))
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
            held = self._frees[at].keys() & set(shortages)
            if len(held) > 1 and self._pods[at].priority <= limit:
                apart = [part for part in parts if not part & held]
                parts = [*apart, set().union(*(part for part in parts if part & held))]
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
                    Candidate(
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
