"""The policies that only simulations have, to show what a policy is worth.

They are none for the extender: its answers must not depend on earlier calls or on chance, and
first-fit is what kube-scheduler does without us.

Tested in `tests/unit/sim/test_experiments.py` and `tests/unit/sim/test_first_fit_scorer.py`.
"""

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from gpushare.core.model import Request
from gpushare.core.mutable_cluster import fits
from gpushare.core.ranking import Scorer, Scores
from gpushare.core.snapshot import Floats, Ints, Rows, Snapshot

RANDOM, FIRST_FIT, PACKED_FIT = "random", "first-fit", "first-fit-packed"
"""The names of the policies that only simulations have."""

_MOST = 100
"""kube-scheduler's MaxNodeScore."""

_UNASKED_CPU, _UNASKED_MEMORY = 100, 200 * 2**20
"""What LeastAllocated counts for a pod that requests nothing, in milli and bytes."""


class KeepsNothing:
    """A scorer that keeps no best devices, and is asked for the scores."""

    def best_device(self, _snapshot: Snapshot, _row: int, _request: Request) -> int | None:
        """Return None: nothing is kept."""
        return None


class RandomScorer(KeepsNothing):
    """Any node that fits, then any device that fits, by a seeded generator.

    Its scores differ at each call.
    """

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def scores(self, snapshot: Snapshot, request: Request) -> Scores:
        """Return a random score for each node that the request fits."""
        mask = fits(snapshot, np.arange(len(snapshot.names)), request)
        values = np.where(mask.any(axis=1), self._rng.random(len(mask)), -np.inf)
        devices = np.where(mask, self._rng.random(mask.shape), -1).argmax(axis=1)
        return Scores(values, values[None], devices[None].astype(np.int16))

    def score_devices(self, snapshot: Snapshot, rows: Rows, _request: Request) -> Floats:
        """Return a random score for each device."""
        return self._rng.random((len(rows), snapshot.used.shape[1]))


class FirstFitScorer(KeepsNothing):
    """What kube-scheduler does with claims of Dynamic Resource Allocation by itself.

    On a node it takes the first devices that fit, in the order of the driver's slice. The node it
    chooses by its own default scores, LeastAllocated and BalancedAllocation, which know CPU and
    memory and not how full a card is; packs: with MostAllocated in the place of LeastAllocated, as
    an operator may set it. Pods without GPU are placed by the same scores. All nodes are scored; of
    equal ones one is taken by chance, by a seeded generator. Written from the behaviour of
    kube-scheduler 1.36 and 1.37.
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


def node_scores(snapshot: Snapshot, rows: Rows, request: Request, *, packs: bool) -> Ints:
    """Return int64 (K,): the sum of the two default scores that differ between nodes."""
    fit: Ints = np.zeros(len(rows), dtype=np.int64)
    in_use = []
    for capacity, free, asked, unasked in (
        (snapshot.cpu_capacity[rows], snapshot.cpu_free[rows], request.cpu, _UNASKED_CPU),
        (
            snapshot.memory_capacity[rows],
            snapshot.memory_free[rows],
            request.memory,
            _UNASKED_MEMORY,
        ),
    ):
        whole = np.maximum(capacity, 1)
        left = np.maximum(free - (asked or unasked), 0)
        # The share that is free, or used if it packs, 0 to 100.
        fit += (np.maximum(capacity - left, 0) if packs else left) * _MOST // whole
        # The share in use, 0 to 1, before and after.
        in_use.append([1 - np.clip((free - taken) / whole, 0, 1) for taken in (0, asked)])
    # 100 where both are used equally, less the more they differ.
    before, after = (
        ((1 - np.abs(cpu - memory) / 2) * _MOST).astype(np.int64)
        for cpu, memory in zip(*in_use, strict=True)
    )
    half = _MOST // 2
    # Go's division rounds towards zero.
    balanced = half + np.trunc((half + after - before) / 2).astype(np.int64)
    scores: Ints = fit // 2 + balanced
    return scores


SIMULATED: Mapping[str, Callable[[int], Scorer]] = {
    RANDOM: RandomScorer,
    FIRST_FIT: FirstFitScorer,
    PACKED_FIT: partial(FirstFitScorer, packs=True),
}
"""What each of them is made by, from a seed."""
