"""Groups of pods that are meant to run together, and pods that wait between filter and bind.

Knows what the pod itself says: `spec.schedulingGroup` (1.36 on), and the labels and annotations of
the schedulers and controllers that make groups. What a PodGroup object says is not read.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from gpushare.wire.annotations import strict_number
from gpushare.wire.objects import Metadata, Pod, PodSpec

MAX_MEMBERS = 10_000
"""A group that says that it has more says nothing."""


@dataclass(frozen=True, slots=True)
class Group:
    """A group as one of its pods names it.

    key: namespace and name, with the kind of group. size: how many pods it needs at once, 0 if the
    pod does not say it. whole: its scheduler binds all of them or none.
    """

    key: str = ""
    size: int = 0
    whole: bool = False


NO_GROUP = Group()

_LABEL, _ANNOTATION = "label", "annotation"
_KINDS = (
    # kind, where its name stands, the key; where its size stands, the key; all of them or none
    (
        ("coscheduling", _LABEL, "scheduling.x-k8s.io/pod-group"),
        (_LABEL, "pod-group.scheduling.sigs.k8s.io/min-available"),
        True,
    ),
    (
        ("coscheduling", _LABEL, "pod-group.scheduling.sigs.k8s.io/name"),
        (_LABEL, "pod-group.scheduling.sigs.k8s.io/min-available"),
        True,
    ),
    (
        ("volcano", _ANNOTATION, "scheduling.k8s.io/group-name"),
        (_ANNOTATION, "scheduling.volcano.sh/group-min-member"),
        False,
    ),
    (
        ("kueue", _LABEL, "kueue.x-k8s.io/pod-group-name"),
        (_ANNOTATION, "kueue.x-k8s.io/pod-group-total-count"),
        False,
    ),
    (
        ("lws", _LABEL, "leaderworkerset.sigs.k8s.io/group-key"),
        (_ANNOTATION, "leaderworkerset.sigs.k8s.io/size"),
        False,
    ),
    (("jobset", _LABEL, "jobset.sigs.k8s.io/jobset-name"), (_LABEL, ""), False),
)


def group_of(pod: Pod) -> Group:
    """Return the group of the pod; NO_GROUP if it names none."""
    metadata, spec = pod.metadata or Metadata(), pod.spec or PodSpec()
    labels, annotations = metadata.labels or {}, metadata.annotations or {}
    namespace = metadata.namespace or ""
    name = (spec.scheduling_group and spec.scheduling_group.pod_group_name) or ""
    if name:
        return Group(f"podgroup {namespace}/{name[:253]}")
    if not (labels or annotations):
        return NO_GROUP
    texts: dict[str, Mapping[str, str]] = {_LABEL: labels, _ANNOTATION: annotations}
    for (kind, place, key), (size_place, size_key), whole in _KINDS:
        name = texts[place].get(key, "")
        if name:
            size = strict_number(texts[size_place].get(size_key, ""), MAX_MEMBERS) or 0
            return Group(f"{kind} {namespace}/{name[:253]}", size, whole and size > 0)
    return NO_GROUP


def may_wait(pod: Pod) -> bool:
    """Return whether its volumes or claims may have to be made after filter (PreBind)."""
    spec = pod.spec or PodSpec()
    return bool(spec.resource_claims) or any(
        volume.persistent_volume_claim is not None or volume.ephemeral is not None
        for volume in spec.volumes or ()
    )
