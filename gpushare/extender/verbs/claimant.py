"""A pod that asks for a place, as the rules of holds see it.

Tested in `tests/unit/extender/verbs/test_offers.py`.
"""

from dataclasses import dataclass

from gpushare.core.model import PodRef, Request
from gpushare.wire.groups import NO_GROUP, Group, group_of, may_wait
from gpushare.wire.objects import Pod
from gpushare.wire.pods import pod_ref, priority_of


@dataclass(frozen=True, slots=True)
class Claimant:
    """A pod that asks: who it is, what it asks for, and what the rules look at.

    waits: it may have to wait for a volume or a claim.
    """

    ref: PodRef
    request: Request
    priority: int = 0
    group: Group = NO_GROUP
    waits: bool = False


def claimant(pod: Pod, request: Request) -> Claimant:
    """Return the pod as the rules of holds see it. Raises MessageError for a pod without names."""
    return Claimant(pod_ref(pod), request, priority_of(pod), group_of(pod), may_wait(pod))
