"""The pods to come: classes with counts.

Pure values, without cluster or policy. workload_estimator.py learns the classes.
"""

import heapq
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from gpushare.core.amounts import charged_units, memory_percent, memory_share
from gpushare.core.model import Request

MAX_CLASSES = 512
"""Classes of a workload. Policies take longer to prepare with more classes, and users choose the
sizes of pods; the traces that we ship have at most 447."""
MAX_SIZES = 64
"""Sizes of pods of several devices, by memory and cores: a node is scored for each of them."""
_MAX_CATEGORIES = 64
"""Pairs of (devices, accepted models) that stay distinct when classes are merged."""


@dataclass(frozen=True, slots=True, order=True)
class PodClass:
    """The request of all pods of one class, as in `Request`; equal for a policy."""

    cpu: int = 0
    """Thousandths of a core."""
    units: int = 0
    """Of memory, on each device."""
    devices: int = 0
    """0 for pods without GPU."""
    models: tuple[str, ...] = ()
    """The accepted GPU models, sorted; () for any."""
    memory: int = 0
    """Host memory in bytes."""
    cores: int = 0
    """Percent of the compute of each device."""
    share: int = 0
    """Percent of the memory of each device; 0 in a `Workload`, whose units count it."""

    @property
    def total(self) -> int:
        """Units over all devices."""
        return self.units * self.devices


@dataclass(frozen=True, slots=True)
class Workload:
    """The pods to expect, perhaps none.

    The classes and the capacities are sorted and unique. A policy prepares for these devices when
    it is made; a capacity that is missing here costs time when a snapshot first has it.
    """

    classes: tuple[tuple[PodClass, int], ...] = ()
    """(class, number of pods)."""

    capacities: tuple[tuple[int, int], ...] = ()
    """Units of a device, and the number of such devices."""

    turnover: float = 0.0
    """Pods that leave per placed pod: 0 while a cluster fills, at most 1."""

    evidence: int = 0
    """Number of observed pods behind the proportions; 0 if the proportions are exact."""

    lives: tuple[float, ...] = ()
    """Mean lifetime of each class as a multiple of the overall mean; () if all are equal."""

    @property
    def devices(self) -> dict[int, int]:
        """How many devices there are of each capacity."""
        return dict(self.capacities)

    @property
    def pods(self) -> int:
        """Pods of all classes."""
        return sum(count for _, count in self.classes)

    @property
    def gpu(self) -> int:
        """Units that the pods of all classes ask for."""
        return sum(cls.total * count for cls, count in self.classes)

    def typical(
        self, cover: float = 0.95, weight: Callable[[PodClass], int] = lambda _: 1
    ) -> tuple[tuple[PodClass, int], ...]:
        """Return the most common classes that cover this share of the pods, with memory 0.

        weight: how often each pod of a class counts. Of equally common classes the larger one comes
        first. These are the "typical pods" of Weng et al., "Beware of Fragmentation", USENIX ATC
        2023, where each pod counts once.
        """
        counts: Counter[PodClass] = Counter()
        for cls, count in self.classes:
            counts[replace(cls, memory=0)] += count * weight(cls)
        missing_pods, chosen = cover * counts.total(), []
        larger_first = sorted(counts.items(), reverse=True)
        for cls, count in sorted(larger_first, key=lambda item: -item[1]):
            if missing_pods <= 0:
                break
            chosen.append((cls, count))
            missing_pods -= count
        return tuple(chosen)


Capacities = Mapping[int, int] | Iterable[int]
"""The number of devices by capacity, or the capacity of each device."""


def workload_of(
    counts: Mapping[PodClass, int],
    capacities: Capacities = (),
    turnover: float = 0.0,
    evidence: int = 0,
    lives: Mapping[PodClass, float] = {},
) -> Workload:
    """Return the workload of these counts and devices, with at most MAX_CLASSES classes.

    If there are more, similar ones are merged, and all count as staying equally long. lives: of
    each class, or empty.
    """
    present = {cls: count for cls, count in counts.items() if count > 0}
    multi_device = {cls: count for cls, count in present.items() if cls.devices > 1}
    if len({(cls.units, cls.cores) for cls in multi_device}) > MAX_SIZES:
        present = {cls: count for cls, count in present.items() if cls.devices <= 1}
        present |= merge_classes(multi_device, MAX_SIZES)
    classes = tuple(sorted(merge_classes(present, MAX_CLASSES).items()))
    stay = tuple(lives.get(cls, 0.0) for cls, _ in classes)
    return Workload(
        classes,
        tuple(sorted(Counter(capacities).items())),
        turnover,
        evidence,
        stay if all(stay) else (),
    )


def merge_classes(counts: Mapping[PodClass, int], max_classes: int) -> dict[PodClass, int]:
    """Return the classes with counts, merged if there are more than `max_classes`.

    Only classes with the same number of devices and the same models are merged, into the mean,
    rounded up. The set with the most pods and the widest range of a size is split at the median pod
    until there are enough sets: so common sizes are kept, and no pod is lost.
    """
    if len(counts) <= max_classes:
        return dict(counts)
    sets = [_ClassGroup.of(members) for members in _by_category(counts).values()]
    heapq.heapify(sets)
    while len(sets) < max_classes and sets[0].order:
        for part in heapq.heappop(sets).halves():
            heapq.heappush(sets, part)
    return dict(alike.mean() for alike in sets)


_SIZES = ("cpu", "units", "memory", "cores")


@dataclass(frozen=True, slots=True, order=True)
class _ClassGroup:
    """Classes to be merged."""

    order: float
    """The group with the lowest order is split first; 0 for a group that cannot be split."""
    dimension: str
    members: tuple[tuple[PodClass, int], ...]

    @staticmethod
    def of(members: Iterable[tuple[PodClass, int]]) -> "_ClassGroup":
        """Return the group of these classes, with the size of the widest range."""
        classes = tuple(members)
        width, dimension = max(
            (_width([getattr(cls, size) for cls, _ in classes]), size) for size in _SIZES
        )
        return _ClassGroup(-width * sum(count for _, count in classes), dimension, classes)

    def halves(self) -> tuple["_ClassGroup", "_ClassGroup"]:
        """Split the group between two values of the widest size."""
        ordered = sorted(self.members, key=lambda item: int(getattr(item[0], self.dimension)))
        sizes = [int(getattr(cls, self.dimension)) for cls, _ in ordered]
        cuts = [at for at in range(1, len(sizes)) if sizes[at] > sizes[at - 1]]
        before = [0]
        for _, count in ordered:
            before.append(before[-1] + count)
        cut = min(cuts, key=lambda at: abs(2 * before[at] - before[-1]))
        return _ClassGroup.of(ordered[:cut]), _ClassGroup.of(ordered[cut:])

    def mean(self) -> tuple[PodClass, int]:
        """Return (mean class of the group, number of pods)."""
        pods = sum(count for _, count in self.members)
        cpu, units, memory, cores = (
            -(-sum(getattr(cls, size) * count for cls, count in self.members) // pods)
            for size in _SIZES
        )
        first = self.members[0][0]
        return replace(first, cpu=cpu, units=units, memory=memory, cores=cores), pods


def _width(sizes: list[int]) -> float:
    return math.log2((max(sizes) + 1) / (min(sizes) + 1))


def _by_category(counts: Mapping[PodClass, int]) -> dict[object, list[tuple[PodClass, int]]]:
    """Return the classes by (devices, models); rare models are dropped."""
    pods: Counter[object] = Counter()
    ordered = sorted(counts.items())  # so that the result does not depend on the order of arrival
    for cls, count in ordered:
        pods[cls.devices, cls.models] += count
    common = {category for category, _ in pods.most_common(_MAX_CATEGORIES)}
    by_category: dict[object, list[tuple[PodClass, int]]] = defaultdict(list)
    for cls, count in ordered:
        common_class = cls if (cls.devices, cls.models) in common else replace(cls, models=())
        by_category[common_class.devices, common_class.models].append((common_class, count))
    return by_category


def class_of(request: Request) -> PodClass:
    """Return the class of a pod with this request."""
    models = tuple(sorted(request.models)) if request.devices else ()
    units, cores = (request.units, request.cores) if request.devices else (0, 0)
    return _shared(
        PodClass(
            cpu=request.cpu,
            units=units,
            share=memory_percent(request.percents) if request.devices else 0,
            devices=request.devices,
            models=models,
            memory=request.memory,
            cores=cores,
        )
    )


@lru_cache(4 * MAX_CLASSES)
def _shared(cls: PodClass) -> PodClass:
    """Return one object for equal classes: thousands of pods are remembered by their class."""
    return cls


def on_card(cls: PodClass, size: int) -> PodClass:
    """Return the class with the units that a card of this size is charged, in place of the percent
    of the memory.
    """
    if not cls.share:
        return cls
    return replace(cls, units=charged_units(cls.units, memory_share(cls.share), size), share=0)
