"""device-bestfit and binpack by compiled loops: what other policies are compared with.

Their arithmetic is so short that all rows are judged anew for each pod. Values are those over
arrays to the last bit; a test compares them.
"""

import numpy as np
import numpy.typing as npt

from gpushare.core.model import Request
from gpushare.core.policies.binpack import Binpack
from gpushare.core.policies.device_bestfit import DeviceBestFit
from gpushare.core.ranking import Fits, Ranking, Scores
from gpushare.core.snapshot import Bools, Floats, Ints, Snapshot
from gpushare.sim.compiled import compiled


class SimpleRanking(Ranking):
    """A Ranking by one of the two, of one live snapshot; it keeps nothing of what it was asked."""

    def __init__(self, policy: DeviceBestFit | Binpack, fits: Fits) -> None:
        super().__init__(policy, fits=fits)
        self._packs = isinstance(policy, Binpack)

    def scores(self, snapshot: Snapshot, request: Request) -> Scores:
        """Return what placing the request on each row is worth."""
        enough = (snapshot.cpu_free >= request.cpu) & (snapshot.memory_free >= request.memory)
        if request.models:
            accepted = np.array([*(model in request.models for model in snapshot.models), False])
            enough &= accepted[snapshot.model.max(axis=1, initial=-1)]
        values = np.full((1, len(enough)), -np.inf)
        devices = np.zeros((1, len(enough)), dtype=np.int16)
        asked = (request.devices, max(request.units, 1) if request.devices else 0)
        rows = (snapshot.free, snapshot.capacity, enough)
        _judge(rows, asked, self._packs, (values[0], devices[0]))
        return Scores(values[0], values, devices)


@compiled
def _judge(
    rows: tuple[Ints, Ints, Bools],
    asked: tuple[int, int],
    packs: bool,
    judged: tuple[Floats, npt.NDArray[np.int16]],
) -> None:
    """Write the value of each row, and its best device; the first of equals."""
    free, capacity, enough = rows
    number, units = asked
    values, devices = judged
    for row in range(len(free)):
        if not enough[row]:
            continue
        room, has, largest = 0, 0, 0
        for device in range(free.shape[1]):
            room += free[row, device]
            has += capacity[row, device]
            largest = max(largest, capacity[row, device])
        fitting = np.sort(free[row][free[row] >= units])
        if len(fitting) < max(number, 1):
            continue
        if packs:
            values[row] = -(room + fitting[0] / (1.0 + largest))
        else:
            left = fitting[: max(number, 1)].sum() - max(number, 1) * units
            values[row] = -(left + room / (2.0 * max(has, 1)))
        for device in range(free.shape[1]):
            if free[row, device] == fitting[0]:
                devices[row] = device
                break
