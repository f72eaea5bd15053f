"""A pod as the rules of holds and groups see it.

Tested in `tests/unit/wire/test_groups.py` and `tests/unit/extender/verbs/test_offers.py`.
"""

from dataclasses import dataclass

from gpushare.core.model import PodRef, Request
from gpushare.wire.groups import NO_GROUP, Group, group_of
from gpushare.wire.objects import Pod, PodSpec, controller_of
from gpushare.wire.pods import pod_ref, priority_of


def may_wait(pod: Pod) -> bool:
    """Return whether volumes or claims of the pod may have to be made after filter (PreBind)."""
    spec = pod.spec or PodSpec()
    return bool(spec.resource_claims) or any(
        volume.persistent_volume_claim is not None or volume.ephemeral is not None
        for volume in spec.volumes or ()
    )


@dataclass(frozen=True, slots=True)
class Claimant:
    """A pod that asks for devices, with the request and the fields that the rules of holds read."""

    ref: PodRef
    request: Request
    priority: int = 0
    group: Group = NO_GROUP
    waits: bool = False
    """Whether the pod may have to wait for a volume or a claim."""
    owner: str = ""
    """The uid of the pod's controller, or ""."""


def claimant(pod: Pod, request: Request) -> Claimant:
    """Return the pod as the rules of holds see it. Raises MessageError for a pod without names."""
    owner = controller_of(pod)
    return Claimant(
        ref=pod_ref(pod),
        request=request,
        priority=priority_of(pod),
        group=group_of(pod),
        waits=may_wait(pod),
        owner=(owner and owner.uid) or "",
    )
