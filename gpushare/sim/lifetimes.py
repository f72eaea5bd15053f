"""How long the pods of a file ran, and how long pods drawn from it stay.

Knows the times of a file, but no clusters. A pod stays as long as a random pod of the file ran that
has the same size: no GPU, a share of a device, one device, two to four, or more. The unit of time
is the mean lifetime, each pod of the file weighted by its GPU, so that an offered load means the
same as with exponential lifetimes.

A few pods live long and hold most of the GPU, so an empty cluster would take long to reach its
steady state. So it begins with the pods that would run then if none had been refused.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import cycle

import numpy as np

from gpushare.core.snapshot import Floats, Ints
from gpushare.trace.nodes_and_pods import TracePod

EXPONENTIAL, TRACE = "exponential", "trace"
"""The kinds of lifetimes."""

_FEW = 4
"""Devices of a pod up to which it is counted with those of two."""


@dataclass(frozen=True, slots=True, eq=False)
class Lifetimes:
    """The lifetimes of pods."""

    by_size: tuple[Floats, ...]
    """The times of each size."""
    size: Ints
    """int64, the size of each pod."""

    @property
    def means(self) -> Floats:
        """float64: the mean time of each pod's size."""
        means = np.array([times.mean() for times in self.by_size])
        return means[self.size]

    def drawn(self, which: Ints, rng: np.random.Generator, *, long_lived: bool = False) -> Floats:
        """Return float64: how long each of these pods stays, a random time of its size.

        long_lived: the chance of a time is proportional to it.
        """
        drawn = np.zeros(len(which))
        for size, times in enumerate(self.by_size):
            those = np.flatnonzero(self.size[which] == size)
            chances = times / times.sum() if long_lived else None
            drawn[those] = rng.choice(times, size=len(those), p=chances)
        return drawn

    def running_at_start(self, rate: float, rng: np.random.Generator) -> tuple[Ints, Floats]:
        """Return the pods that run at a moment, the oldest first, and how long each still stays.

        `rate`: pods that come in a unit of time. The chance of a pod to run is proportional to its
        lifetime, and its age is uniform.
        """
        means = self.means
        number = rng.poisson(rate * means.mean())
        which = rng.choice(len(means), size=number, p=means / means.sum())
        times = self.drawn(which, rng, long_lived=True)
        ages = times * rng.random(number)
        oldest_first = np.argsort(-ages, kind="stable")
        return which[oldest_first], (times - ages)[oldest_first]


def lifetimes_of(pods: Sequence[TracePod], capacity: int) -> Lifetimes:
    """Return the lifetimes of these pods, on devices of this capacity.

    A size without known times uses those of all pods. Raises ValueError if no pod has any.
    """
    ran = [_ran(pod) for pod in pods]
    sizes = [_size(pod, capacity) for pod in pods]
    known = [(time, size) for time, size in zip(ran, sizes, strict=True) if time is not None]
    if not any(time for time, _ in known):
        raise ValueError("no pod has a time of placement and a later one of deletion")
    names = sorted(set(sizes))
    of_size = [[time for time, size in known if size == name] for name in names]
    every = [time for time, _ in known]
    times = [np.array(some if any(some) else every) for some in of_size]
    size = np.array([names.index(name) for name in sizes])
    gpu = np.array([pod.devices * pod.units for pod in pods])
    unit = np.array([some.mean() for some in times])[size] @ gpu / gpu.sum()
    return Lifetimes(tuple(some / unit for some in times), size)


def lent(pods: Sequence[TracePod], lenders: Sequence[TracePod], capacity: int) -> list[TracePod]:
    """Return the pods with times taken in turn from the lenders of the same size.

    For a list of pods without times. A pod whose size no lender has stays as it is.
    """
    turns = {}
    for size in {_size(pod, capacity) for pod in lenders}:
        turns[size] = cycle(
            [pod for pod in lenders if _size(pod, capacity) == size and _ran(pod) is not None]
        )
    timed = []
    for pod in pods:
        lender = next(turns.get(_size(pod, capacity), iter(())), pod)
        timed.append(replace(pod, scheduled=lender.scheduled, deleted=lender.deleted))
    return timed


def _ran(pod: TracePod) -> float | None:
    """Return how long the pod ran; None if it never did, or if that is not known."""
    if pod.scheduled is None or pod.deleted is None:
        return None
    return pod.deleted - pod.scheduled


def _size(pod: TracePod, capacity: int) -> str:
    if not pod.devices:
        return "none"
    if pod.devices == 1:
        return "share" if pod.units < capacity else "one"
    return "few" if pod.devices <= _FEW else "many"
