"""A pod as the rules of holds and groups see it.

Tested in `tests/unit/wire/test_groups.py` and `tests/unit/extender/verbs/test_offers.py`.
"""

from dataclasses import dataclass

from gpushare.core.model import PodRef, Request
from gpushare.wire.groups import NO_GROUP, Group, group_of
from gpushare.wire.objects import Metadata, Pod, PodSpec, controller_of, seconds_of
from gpushare.wire.pods import has_ended, most_seconds, pod_ref, priority_of


def may_wait(pod: Pod) -> bool:
    """Return whether volumes or claims of the pod may have to be made after filter (PreBind)."""
    spec = pod.spec or PodSpec()
    return bool(spec.resource_claims) or any(
        volume.persistent_volume_claim is not None or volume.ephemeral is not None
        for volume in spec.volumes or ()
    )


def may_have_place(pod: Pod) -> bool:
    """Return whether a place may be kept for the pod: the pod has no node, gate, group or nominated
    node, has not ended, and is not being deleted.
    """
    spec, metadata = pod.spec or PodSpec(), pod.metadata or Metadata()
    is_held_back = bool(spec.scheduling_gates or spec.node_name)
    is_nominated = pod.status is not None and bool(pod.status.nominated_node_name)
    is_going = bool(metadata.deletion_timestamp) or has_ended(pod)
    return not (is_held_back or is_nominated or is_going) and group_of(pod) == NO_GROUP


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
    created: float = 0.0
    """Seconds since the epoch, 0 if unknown."""
    deadline: int = 0
    """The most seconds that the pod runs; 0: no limit."""


def claimant(pod: Pod, request: Request) -> Claimant:
    """Return the pod as the rules of holds see it. Raises MessageError for a pod without names."""
    owner, metadata, spec = controller_of(pod), pod.metadata or Metadata(), pod.spec or PodSpec()
    return Claimant(
        ref=pod_ref(pod),
        request=request,
        priority=priority_of(pod),
        group=group_of(pod),
        waits=may_wait(pod),
        owner=(owner and owner.uid) or "",
        created=seconds_of(metadata.creation_timestamp),
        deadline=most_seconds(spec),
    )
