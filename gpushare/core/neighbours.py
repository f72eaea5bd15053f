"""Few neighbours on a device: a penalty that `Ranking` subtracts from the scores of any policy.

Memory says nothing about compute: pods that share a device by time slices slow each other down by
the sum of their utilization. So a pod with a limit N goes to a device with at most N other pods
while such a device has room; of the devices above the limit those with fewer pods come first. The
policy decides between devices that are equal in this. The term refuses no pod.

Where pods ask for compute, the sum of compute decides. A pod that asks for none counts as an equal
part of the device: with N neighbours 1 / (N + 1).

Tested in `tests/unit/core/test_neighbours.py`.
"""

import numpy as np

from gpushare.core.model import ALL_CORES, ANY_NEIGHBOURS, Request
from gpushare.core.policy import APART
from gpushare.core.snapshot import PODS, UNMETERED, Floats, Ints, Rows, Snapshot, fellows, has_room

_STEP = 4 * APART
"""The value of one pod too many: more than any difference that a policy makes between devices."""

MANY = 4
"""Devices with so many pods, or with more, are counted together."""


def devices_by_pods(snapshot: Snapshot) -> list[int]:
    """Return the number of open devices with 0, 1, 2 ... pods; the last with MANY and more."""
    pods = snapshot.pods[:, :, PODS][snapshot.open & (snapshot.capacity > 0)]
    counts: list[int] = np.bincount(np.minimum(pods, MANY), minlength=MANY + 1).tolist()
    return counts


def with_term(
    scores: Floats, snapshot: Snapshot, rows: Rows, request: Request, limit: int
) -> Floats:
    """Return the scores (K, D) less the value of the pods above the limit, and of the pods of the
    same workload for a pod that prefers to stay apart.

    A placement on several devices counts by the device with the most pods.
    """
    above = fellows(snapshot, rows, request)
    if limit != ANY_NEIGHBOURS:
        parts = limit + 1
        load: Ints = snapshot.cores_used.take(rows, axis=0).astype(np.int64) * parts
        load += ALL_CORES * snapshot.pods[:, :, UNMETERED].take(rows, axis=0).astype(np.int64)
        load += request.cores * parts if request.cores else ALL_CORES
        # A part of a pod too many counts as a whole pod.
        above += -(-np.maximum(load - ALL_CORES * parts, 0) // ALL_CORES)
    if request.devices > 1 and above.any():
        usable = np.where(has_room(snapshot, rows, request), above, above.max())
        fewest = np.sort(usable, axis=1)[:, : request.devices]
        above = np.maximum(above, fewest[:, -1:])
    return scores - float(_STEP) * above
