"""The sizes of groups from PodGroups, LeaderWorkerSets and JobSets: how many pods a group needs at
once.

Knows the wire types; no I/O. A size is a key and a number. If the API of a kind is missing, or the
right to read the kind, groups of that kind have the size that their pods name. A group without a
size is no gang: each pod is bound by itself.
"""

from dataclasses import dataclass
from typing import Any

from gpushare.extender.follow.shown import ObjectHandler, Shown, path_of
from gpushare.wire.codec import Codec
from gpushare.wire.groups import (
    COSCHEDULING,
    JOB_SET,
    LEADER_WORKER_SET,
    POD_GROUP,
    VOLCANO,
    Group,
    pods_at_once,
)
from gpushare.wire.objects import (
    JOB_SETS,
    LEADER_WORKER_SETS,
    POD_GROUPS,
    JobSet,
    LeaderWorkerSet,
    PodGroup,
)

MOST_OBJECTS = 50_000
"""Upper bound of the sizes of one kind; groups of further objects have no size."""

SizingObject = PodGroup | LeaderWorkerSet | JobSet


@dataclass(frozen=True, slots=True)
class SizeSource:
    """A kind of object that says how many pods a group needs."""

    kind: str
    name: str
    """As in metrics."""
    path: str
    codec: Codec[Any]


SIZE_SOURCES = tuple(
    SizeSource(kind, name, f"/apis/{path}", codec)
    for kind, name, path, codec in (
        (POD_GROUP, "podgroups", "scheduling.k8s.io/v1beta1/podgroups", POD_GROUPS),
        (
            *(COSCHEDULING, "coscheduling_podgroups"),
            *("scheduling.x-k8s.io/v1alpha1/podgroups", POD_GROUPS),
        ),
        (VOLCANO, "volcano_podgroups", "scheduling.volcano.sh/v1beta1/podgroups", POD_GROUPS),
        (
            *(LEADER_WORKER_SET, "leaderworkersets"),
            *("leaderworkerset.x-k8s.io/v1/leaderworkersets", LEADER_WORKER_SETS),
        ),
        (JOB_SET, "jobsets", "jobset.x-k8s.io/v1alpha2/jobsets", JOB_SETS),
    )
)


class GroupSizes:
    """The sizes of groups. Written by reflectors, read by any thread."""

    def __init__(self) -> None:
        self._sizes = {source.kind: Shown[int](MOST_OBJECTS) for source in SIZE_SOURCES}

    def size_of(self, group: Group) -> int:
        """Return how many pods the group needs at once; 0: not known, 1: each pod by itself.

        The object that the group's pods name counts before what the pods say themselves.
        """
        sizes = self._sizes.get(group.sized_by.partition(" ")[0])
        return (sizes.get(group.sized_by) if sizes else 0) or group.size

    def handler(self, kind: str) -> ObjectHandler[SizingObject, int]:
        """Return the event handler for the objects of one kind."""
        sizes = self._sizes[kind]
        return ObjectHandler(
            pods_at_once, sizes.replace, sizes.put, lambda ref: f"{kind} {path_of(ref)}"
        )
