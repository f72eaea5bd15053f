"""Pods that share a device slow each other down: the speed of a pod by the utilization around it.

The utilization of a pod is the percent of each of its devices that it keeps busy while it runs
alone. A pod runs at the speed of its slowest device. The curve is measured: the mean speed of 1,388
pairs of training jobs by the sum of their utilization (Hu et al., *Lucid: A Non-intrusive, Scalable
and Interpretable Scheduler for Deep Learning Training Jobs*, ASPLOS 2023; the pairs are in the
repository S-Lab-System-Group/Lucid). Beyond the last point, which no pair reaches, a device does no
more work, and the pods share it.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gpushare.core.mutable_cluster import Placement

_SUMS = (100.0, 112.0, 137.0, 162.0, 187.0)
_SPEEDS = (1.0, 0.93, 0.84, 0.75, 0.70)

_Device = tuple[int, int]
"""(row, index)."""


def speed(utilization: float) -> float:
    """Return the part of full speed on a device with this sum of utilization, in percent."""
    if utilization > _SUMS[-1]:
        return _SPEEDS[-1] * _SUMS[-1] / utilization
    return float(np.interp(utilization, _SUMS, _SPEEDS))


@dataclass(slots=True)
class _Run:
    devices: tuple[_Device, ...]
    utilization: int
    began: float
    work: float
    """The time that the rest of the pod takes at full speed."""
    done: float = 0.0
    """The time that the work so far would have taken at full speed."""
    since: float = 0.0
    """Begin of the current speed."""
    speed: float = 1.0


class Interference:
    """The running pods of a simulation with their speeds.

    stretches: whether a pod that is slowed down stays longer (training), or as long as ever
    (services).
    """

    def __init__(self, *, stretches: bool) -> None:
        self._stretches = stretches
        self._runs: dict[int, _Run] = {}
        self._on_device: dict[_Device, set[int]] = defaultdict(set)

    def begin(
        self, number: int, placement: Placement, utilization: int, work: float, now: float
    ) -> Iterator[tuple[int, float]]:
        """Add a pod; yield the number and the time of the end of each pod whose end changes.

        work: the time that the pod takes at full speed.
        """
        devices = tuple((placement.row, device) for device in placement.devices)
        self._runs[number] = _Run(devices, utilization, now, work, since=now)
        for device in devices:
            self._on_device[device].add(number)
        yield number, now + work
        yield from self._changed(devices, now)

    def end(self, number: int, now: float) -> tuple[float, list[tuple[int, float]]]:
        """Remove a pod; return how many times as long as alone it took, and the changed ends."""
        run = self._runs[number]
        self._advance(run, now)
        for device in run.devices:
            self._on_device[device].remove(number)
        del self._runs[number]
        slowdown = (now - run.began) / run.done if run.done else 1.0
        return slowdown, list(self._changed(run.devices, now))

    def _changed(self, devices: tuple[_Device, ...], now: float) -> Iterator[tuple[int, float]]:
        for number in sorted(set().union(*(self._on_device[device] for device in devices))):
            run = self._runs[number]
            before = run.speed
            self._advance(run, now)
            sums = (
                sum(self._runs[other].utilization for other in self._on_device[device])
                for device in run.devices
            )
            run.speed = min(map(speed, sums))
            if self._stretches and run.speed != before:
                yield number, now + run.work / run.speed

    def _advance(self, run: _Run, now: float) -> None:
        progress = (now - run.since) * run.speed
        run.done += progress
        run.work -= progress
        run.since = now
