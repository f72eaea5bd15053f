"""The sizes of groups from PodGroups, LeaderWorkerSets and JobSets: how many pods a group needs at
once.

Knows the wire types; no I/O. A size is a key and a number. If the API of a kind is missing, or the
right to read the kind, groups of that kind have the size that their pods name. A group without a
size is no gang: each pod is bound by itself.

Tested in `tests/unit/extender/follow/test_group_sizes.py`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gpushare.wire.codec import Codec, Decoded, WatchEvent
from gpushare.wire.groups import (
    COSCHEDULING,
    JOB_SET,
    LEADER_WORKER_SET,
    POD_GROUP,
    VOLCANO,
    Group,
    sized_object,
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
_Size = tuple[str, int]
"""(key of an object as `Group.sized_by`, pods that a group of the object needs at once)."""


@dataclass(frozen=True, slots=True)
class SizeSource:
    """A kind of object that says how many pods a group needs."""

    kind: str
    name: str
    """As in metrics."""
    path: str
    codec: Codec[Any]


SIZE_SOURCES = (
    SizeSource(
        POD_GROUP,
        "podgroups",
        "/apis/scheduling.k8s.io/v1beta1/podgroups",
        POD_GROUPS,
    ),
    SizeSource(
        COSCHEDULING,
        "coscheduling_podgroups",
        "/apis/scheduling.x-k8s.io/v1alpha1/podgroups",
        POD_GROUPS,
    ),
    SizeSource(
        VOLCANO,
        "volcano_podgroups",
        "/apis/scheduling.volcano.sh/v1beta1/podgroups",
        POD_GROUPS,
    ),
    SizeSource(
        LEADER_WORKER_SET,
        "leaderworkersets",
        "/apis/leaderworkerset.x-k8s.io/v1/leaderworkersets",
        LEADER_WORKER_SETS,
    ),
    SizeSource(
        JOB_SET,
        "jobsets",
        "/apis/jobset.x-k8s.io/v1alpha2/jobsets",
        JOB_SETS,
    ),
)


class GroupSizes:
    """The sizes of groups. Written by reflectors, read by any thread."""

    def __init__(self) -> None:
        self._sizes: dict[str, int] = {}

    def size_of(self, group: Group) -> int:
        """Return how many pods the group needs at once; 0: not known, 1: each pod by itself.

        The object that the group's pods name counts before what the pods say themselves.
        """
        return self._sizes.get(group.sized_by, 0) or group.size

    def handler(self, kind: str) -> "SizeHandler":
        """Return the event handler for the objects of one kind."""
        return SizeHandler(kind, self._sizes)


class SizeHandler:
    """Takes the objects of one kind from a reflector; for one thread."""

    def __init__(self, kind: str, sizes: dict[str, int]) -> None:
        """sizes: the sizes of all kinds by key; this handler writes the sizes of one kind."""
        self._kind = kind
        self._sizes = sizes
        self._keys: set[str] = set()

    def trim(self, page: Decoded[SizingObject]) -> Decoded[_Size]:
        """Return the page with sizes instead of objects."""
        return page.with_items([sized_object(self._kind, item) for item in page.items])

    def replace(
        self, pages: Sequence[Decoded[SizingObject] | Decoded[_Size]], started: float
    ) -> None:
        """Set the sizes of all objects; the size of an unreadable object stays."""
        del started
        unread = {
            f"{self._kind} {bad.ref.namespace}/{bad.ref.name}" for page in pages for bad in page.bad
        }
        objects = dict(
            item if isinstance(item, tuple) else sized_object(self._kind, item)
            for page in pages
            for item in page.items
        )
        for key in self._keys - objects.keys() - unread:
            self._remove(key)
        for key, size in objects.items():
            self._put(key, size)

    def apply(self, event: WatchEvent[SizingObject]) -> None:
        """Take over one object."""
        if event.object is not None:
            key, size = sized_object(self._kind, event.object)
            if event.kind != "DELETED":
                self._put(key, size)
                return
        elif event.bad is not None and event.kind == "DELETED":
            key = f"{self._kind} {event.bad.ref.namespace}/{event.bad.ref.name}"
        else:
            return
        self._remove(key)

    def _put(self, key: str, size: int) -> None:
        if key in self._keys or len(self._keys) < MOST_OBJECTS:
            self._keys.add(key)
            # One write to a dict, which readers see before or after.
            self._sizes[key] = size

    def _remove(self, key: str) -> None:
        self._keys.discard(key)
        self._sizes.pop(key, None)
