"""Compute as the second dimension of a device, for policies that price what they leave of it.

A pod *needs* the percent it asks for; 1 if it asks for none, since no device is any use whose
compute is all given; and IDLE if it asks for all, since it takes only a device that nobody uses. A
device has a *rest*: the percent that is free, and IDLE while nobody uses it. Needs are compared in
a few *levels*: tables have a column for each.

Tested in `tests/unit/core/test_policies_compute.py`.
"""

from collections.abc import Iterable

import numpy as np

from gpushare.core.model import ALL_CORES, Request
from gpushare.core.snapshot import Ints, Rows, Snapshot, has_room
from gpushare.core.workload import PodClass

IDLE = ALL_CORES + 1
"""The rest of a device that nobody uses."""

_MOST_LEVELS, _STEP = 10, 10
"""If pods ask for more different percents, these are rounded up to whole steps."""


class Levels:
    """The needs of the pods to come, in levels."""

    def __init__(self, classes: Iterable[PodClass]) -> None:
        asked = {cls.cores for cls in classes if cls.devices}
        self._step = 1 if len(asked) <= _MOST_LEVELS else _STEP
        self.asked = any(asked)
        """Whether a pod asks for compute; else its rests need not be looked at."""
        self.needs = np.unique([self.need(cores) for cores in asked] or [1])
        """int64, rising."""
        self.columns = len(self.needs) + 1
        """The columns of a table: how many levels a rest may meet, from none to all."""

    def need(self, cores: int) -> int:
        """Return what a pod needs that asks for this much."""
        return IDLE if cores >= ALL_CORES else max(-(-cores // self._step) * self._step, 1)

    def column(self, cores: int) -> int:
        """Return the first column in which a pod finds enough that asks for this much."""
        return int(self.needs.searchsorted(self.need(cores))) + 1

    def met(self, rest: Ints) -> Ints:
        """Return int64: how many of the levels these rests meet."""
        return self.needs.searchsorted(rest, "right")


def rest_of(snapshot: Snapshot, rows: Rows) -> Ints:
    """Return int64 (K, D): the rest of each device; 0 if it is not open."""
    rest = snapshot.cores_free.take(rows, axis=0)
    idle = (rest == ALL_CORES) & (snapshot.used.take(rows, axis=0) == 0)
    rest += idle
    return rest


def free_with_compute(snapshot: Snapshot, rows: Rows, request: Request, free: Ints) -> Ints:
    """Return int64 (K, D): the free units, 0 on devices without room for the request's compute."""
    return np.where(has_room(snapshot, rows, request), free, 0) if request.cores else free
