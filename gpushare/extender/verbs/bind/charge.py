"""The charge of a bind: how it is made, and what a read of the pod says of it.

Tested in `tests/unit/extender/verbs/bind/test_bind_transaction.py`.
"""

from gpushare.core.decide import place
from gpushare.core.model import Allocation, ObservedPod, PodRef, Request
from gpushare.errors import InsufficientMemory, WireError
from gpushare.extender.managed_resources import ResourceRequest
from gpushare.wire.annotations import Names
from gpushare.wire.objects import Pod
from gpushare.wire.pods import has_ended, observe_pod

_BEST_ATTEMPTS = 4
"""Attempts that are charged only if the node has not changed since the choice."""
_PLACE_ATTEMPTS = _BEST_ATTEMPTS + 8
"""Attempts in all; in the later ones the chosen devices only have to fit."""


def charge(
    resource_request: ResourceRequest, ref: PodRef, node: str, *, now: float, stamp: str
) -> tuple[Allocation, int]:
    """Charge the best devices of the node, and return them with the units of the first one.

    Raises RequestRefused if the request does not fit there, WireError for a policy that is not
    installed.
    """
    managed, request = resource_request
    ranking = managed.scorer(request)
    for attempt in range(_PLACE_ATTEMPTS):
        snapshot = managed.ledger.snapshot()
        allocation = place(snapshot, node, request, ranking)
        seen = snapshot.generation if attempt < _BEST_ATTEMPTS else None
        try:
            charged = managed.ledger.assume(ref, request, allocation, now, stamp=stamp, seen=seen)
        except InsufficientMemory:
            # Another bind took something of the node between our look and the lock. Look again:
            # the best device may be another one now.
            if attempt == _PLACE_ATTEMPTS - 1:
                raise
            continue
        return charged, int(snapshot.capacity[snapshot.row[node], charged.devices[0]])
    raise AssertionError("unreachable")


def observed_pod(seen: Pod | None, ref: PodRef, names: Names) -> ObservedPod | None:
    """Return the pod as read by its name, for the ledger to settle the charge; None if it is gone.

    Another pod of that name means that ours is gone, even if that pod cannot be read. A pod without
    a node settles the charge even if its annotations make no sense. Raises WireError if the pod is
    on a node and cannot be read.
    """
    metadata = seen.metadata if seen else None
    if seen is None or (metadata and metadata.uid and metadata.uid != ref.uid):
        return None
    try:
        return observe_pod(seen, names)
    except WireError:
        if not metadata or not metadata.uid or (seen.spec and seen.spec.node_name):
            raise
        return ObservedPod(ref, Request(), ended=has_ended(seen))
