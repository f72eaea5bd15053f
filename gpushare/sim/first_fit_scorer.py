"""first-fit: what kube-scheduler does with claims of Dynamic Resource Allocation by itself.

On a node it takes the first devices that fit, in the order of the driver's slice. The node it
chooses by its own default scores, which know CPU and memory and not how full a card is; packed:
with MostAllocated in the place of LeastAllocated, as an operator may set it. Pods without GPU are
placed by the same scores. For simulations only: in a cluster kube-scheduler does this without us.
Written from the behaviour of kube-scheduler 1.36 and 1.37.

Tested in `tests/unit/sim/test_first_fit_scorer.py`.
"""

import numpy as np

from gpushare.core.model import Request
from gpushare.core.mutable_cluster import fits
from gpushare.core.ranking import Scores
from gpushare.core.snapshot import Floats, Ints, Rows, Snapshot

_MOST = 100
"""kube-scheduler's MaxNodeScore."""

_UNASKED_CPU, _UNASKED_MEMORY = 100, 200 * 2**20
"""What LeastAllocated counts for a pod that requests nothing, in milli and bytes."""


class FirstFitScorer:
    """The best node by LeastAllocated and BalancedAllocation, and its first devices that fit.

    All nodes are scored; of equal ones one is taken by chance, by a seeded generator. packs: by
    MostAllocated.
    """

    def __init__(self, seed: int, *, packs: bool = False) -> None:
        self._rng = np.random.default_rng(seed)
        self._packs = packs

    def scores(self, snapshot: Snapshot, request: Request) -> Scores:
        """Return kube-scheduler's score of each node that the request fits."""
        rows = np.arange(len(snapshot.names))
        mask = fits(snapshot, rows, request)
        points = node_scores(snapshot, rows, request, packs=self._packs)
        values = np.where(mask.any(axis=1), points + self._rng.random(len(rows)), -np.inf)
        return Scores(values, values[None], mask.argmax(axis=1)[None].astype(np.int16))

    def score_devices(self, snapshot: Snapshot, rows: Rows, _request: Request) -> Floats:
        """Return a score that falls with the index: the first device is the best."""
        shape = len(rows), snapshot.used.shape[1]
        return np.broadcast_to(-np.arange(shape[1], dtype=np.float64), shape)

    def best_device(self, _snapshot: Snapshot, _row: int, _request: Request) -> int | None:
        """Return None: nothing is kept."""
        return None


def node_scores(snapshot: Snapshot, rows: Rows, request: Request, *, packs: bool) -> Ints:
    """Return int64 (K,): the sum of the two default scores that differ between nodes."""
    cpu, memory = snapshot.cpu_capacity[rows], snapshot.memory_capacity[rows]
    free_cpu, free_memory = snapshot.cpu_free[rows], snapshot.memory_free[rows]
    fit = _share(cpu, free_cpu - (request.cpu or _UNASKED_CPU), packs)
    fit += _share(memory, free_memory - (request.memory or _UNASKED_MEMORY), packs)
    before = _balance(_used(cpu, free_cpu), _used(memory, free_memory))
    after = _balance(
        _used(cpu, free_cpu - request.cpu), _used(memory, free_memory - request.memory)
    )
    half = _MOST // 2
    # Go's division rounds towards zero.
    balanced = half + np.trunc((half + after - before) / 2).astype(np.int64)
    scores: Ints = fit // 2 + balanced
    return scores


def _share(capacity: Ints, free: Ints, packs: bool) -> Ints:
    """Return the share that is free, or used if it packs, 0 to 100."""
    left = np.maximum(free, 0)
    return (np.maximum(capacity - left, 0) if packs else left) * _MOST // np.maximum(capacity, 1)


def _used(capacity: Ints, free: Ints) -> Floats:
    """Return the share in use, 0 to 1."""
    used: Floats = 1 - np.clip(free / np.maximum(capacity, 1), 0, 1)
    return used


def _balance(cpu: Floats, memory: Floats) -> Ints:
    """Return 100 where both are used equally, less the more they differ."""
    points: Ints = ((1 - np.abs(cpu - memory) / 2) * _MOST).astype(np.int64)
    return points
