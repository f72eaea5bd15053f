"""The pods that stay on other devices than the other pods of their workload (`Request.apart`).

The books keep, by row, the devices of each such pod under its workload, and nothing of other pods.

Tested in `tests/unit/core/test_apart.py`.
"""

from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt

from gpushare.core.model import Request

Workloads = dict[int, Mapping[str, tuple[int, ...]]]
"""By row and workload, the devices of the pods that stay apart, a device once for each pod."""


def count_pod(
    workloads: Workloads, row: int, request: Request, devices: Iterable[int], sign: int
) -> None:
    """Count a pod that stays apart on these devices, or, with sign -1, subtract the pod; ignore any
    other pod. The values of `workloads` are replaced, and never changed.
    """
    if request.apart is None:
        return
    on_row = dict(workloads.get(row, {}))
    counted = list(on_row.pop(request.apart.workload, ()))
    for device in devices:
        if sign > 0:
            counted.append(device)
        elif device in counted:
            counted.remove(device)
    if counted:
        on_row[request.apart.workload] = tuple(sorted(counted))
    if on_row:
        workloads[row] = on_row
    else:
        workloads.pop(row, None)


def rows_with(workloads: Workloads, workload: str) -> npt.NDArray[np.intp]:
    """Return intp (K,): the rows with pods of the workload."""
    return np.array([row for row, on_row in workloads.items() if workload in on_row], dtype=np.intp)


def pods_of_workload(
    workloads: Workloads, rows: npt.NDArray[np.intp], width: int, request: Request
) -> npt.NDArray[np.int64]:
    """Return int64 (K, width): the pods of the request's workload on each device of the rows; 0
    everywhere for a request that need not stay apart.
    """
    pods = np.zeros((len(rows), width), dtype=np.int64)
    if request.apart is not None:
        for place, row in enumerate(rows.tolist() if workloads else ()):
            for device in workloads.get(row, {}).get(request.apart.workload, ()):
                pods[place, device] += 1
    return pods
