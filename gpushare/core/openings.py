"""The node that will have room for a waiting pod first, by the expected ends of running pods.

Tested in `tests/unit/core/test_openings.py`.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from math import inf
from operator import attrgetter

from gpushare.core.defrag import Host
from gpushare.core.model import Request
from gpushare.core.mutable_cluster import MutableCluster, Placement

_LEAST_REST = 600.0
"""Seconds that a pod without a known end is expected to run on at least."""

_MOST_ROWS = 200
"""Upper bound of the rows of one search, some 5 ms each on nodes with many pods."""

_at = attrgetter("at")


@dataclass(frozen=True, slots=True)
class ExpectedEnd:
    """A running pod of a cluster, and when it is expected to end."""

    at: float
    """Seconds, by the clock of the caller."""
    placement: Placement
    """Exactly the charge of the pod on the cluster."""


@dataclass(frozen=True, slots=True)
class Opening:
    """A place that will be free."""

    at: float
    """When the last pod that has to end before is expected to end."""
    placement: Placement


def expected_end(now: float, began: float, ends_by: float = inf) -> float:
    """Return when a pod is expected to end: after as long again as it has run, as lives with a
    heavy tail do, and no later than `ends_by`.
    """
    return min(now + max(now - began, _LEAST_REST), max(ends_by, now))


def first_opening(
    cluster: MutableCluster,
    ends: Mapping[int, Sequence[ExpectedEnd]],
    request: Request,
    rows: Iterable[int],
    host: Host,
) -> Opening | None:
    """Return the first place for the request; None if no row opens by the expected ends.

    The cluster and the host are as before afterwards. ends: of pods, by row. rows: those that would
    fit the request when empty; the first _MOST_ROWS count, and of equal openings the first row.
    """
    first: Opening | None = None
    for _, row in zip(range(_MOST_ROWS), rows, strict=False):
        with ExitStack() as undo:
            for end in sorted(ends.get(row, ()), key=_at):
                if first is not None and end.at >= first.at:
                    break
                cluster.release(end.placement)
                undo.callback(cluster.put, *end.placement)
                host.take(row, end.placement.request, -1)
                undo.callback(host.take, row, end.placement.request)
                if host.lacks(row, request):
                    continue
                placement = cluster.place_on(row, request)
                if placement is not None:
                    cluster.release(placement)
                    first = Opening(end.at, placement)
                    break
    return first
