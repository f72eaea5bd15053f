"""Groups of pods: which group a pod names, and how many pods a group needs at once.

A group is pods that are meant to run together. The key and, in some dialects, the size stand on
each pod: `spec.schedulingGroup` (1.36 on), the labels and annotations of the schedulers and
controllers that make groups, and our own annotation GROUP_SIZE. Other dialects have the size in an
object that the pods name: a PodGroup, a LeaderWorkerSet or a JobSet; `sized_object` reads it.

Tested in `tests/unit/wire/test_groups.py` and `tests/unit/wire/test_sized_objects.py`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpushare.wire.annotations import strict_number
from gpushare.wire.objects import (
    JobSet,
    JobSpec,
    LeaderWorkerSet,
    Metadata,
    Pod,
    PodGroup,
    PodSpec,
    ReplicatedJob,
    controller_of,
)

MAX_MEMBERS = 10_000
"""A group with a larger size has no size."""

_MAX_NAME = 253
"""Characters of the name of an object."""

GROUP_SIZE = "gpushare.io/group-size"
"""Annotation of a pod: the number of pods that the group needs at once, before any other source of
a size; 0 or 1: each pod is bound alone. Without another name the group is all pods of one
controller (a Job).
"""

_LWS_EXCLUSIVE = "leaderworkerset.sigs.k8s.io/exclusive-topology"
_JOB_SET_EXCLUSIVE = "alpha.jobset.sigs.k8s.io/exclusive-topology"
_JOB_SET_NODE_SELECTOR = "alpha.jobset.sigs.k8s.io/node-selector"

POD_GROUP, COSCHEDULING, VOLCANO = "podgroup", "coscheduling", "volcano"
LEADER_WORKER_SET, JOB_SET = "lws", "jobset"


@dataclass(frozen=True, slots=True)
class Group:
    """A group as one of its pods names it."""

    key: str = ""
    """Namespace and name, with the kind of group."""
    size: int = 0
    """The number of pods that the group needs at once, 0 if the pod does not say."""
    whole: bool = False
    """The scheduler of the dialect binds all pods of the group or none."""
    sized_by: str = ""
    """The key of the object with the number of pods, as `sized_object` returns it;
    "": only the pod does."""


NO_GROUP = Group()

_LABEL, _ANNOTATION = "label", "annotation"
_KINDS = (
    # kind, place and key of the name; place and key of the size; all pods or none
    (
        (COSCHEDULING, _LABEL, "scheduling.x-k8s.io/pod-group"),
        (_LABEL, "pod-group.scheduling.sigs.k8s.io/min-available"),
        True,
    ),
    (
        (COSCHEDULING, _LABEL, "pod-group.scheduling.sigs.k8s.io/name"),
        (_LABEL, "pod-group.scheduling.sigs.k8s.io/min-available"),
        True,
    ),
    (
        (VOLCANO, _ANNOTATION, "scheduling.k8s.io/group-name"),
        (_ANNOTATION, "scheduling.volcano.sh/group-min-member"),
        False,
    ),
    (
        ("kueue", _LABEL, "kueue.x-k8s.io/pod-group-name"),
        (_ANNOTATION, "kueue.x-k8s.io/pod-group-total-count"),
        False,
    ),
    # The size on the pods does not say whether the workers exist before the leader runs.
    ((LEADER_WORKER_SET, _LABEL, "leaderworkerset.sigs.k8s.io/group-key"), (_LABEL, ""), False),
    ((JOB_SET, _LABEL, "jobset.sigs.k8s.io/jobset-name"), (_LABEL, ""), False),
)
_OBJECT_LABELS = {LEADER_WORKER_SET: "leaderworkerset.sigs.k8s.io/name"}
"""Labels that name the object with the size, if that name is not the name of the group."""
_SIZED = frozenset({POD_GROUP, COSCHEDULING, VOLCANO, LEADER_WORKER_SET, JOB_SET})
"""The kinds with an object that says how many pods the group needs."""

GROUP_ANNOTATIONS = (
    GROUP_SIZE,
    *(key for (_, *name), size, _ in _KINDS for place, key in (name, size) if place == _ANNOTATION),
)
"""The annotations that are read of groups."""


def group_of(pod: Pod) -> Group:
    """Return the group of the pod; NO_GROUP without one."""
    metadata, spec = pod.metadata or Metadata(), pod.spec or PodSpec()
    labels, annotations = metadata.labels or {}, metadata.annotations or {}
    if not (labels or annotations or spec.scheduling_group):
        return NO_GROUP
    namespace = metadata.namespace or ""
    texts: dict[str, Mapping[str, str]] = {_LABEL: labels, _ANNOTATION: annotations}
    own_size = strict_number(annotations.get(GROUP_SIZE, ""), MAX_MEMBERS)
    name = (spec.scheduling_group and spec.scheduling_group.pod_group_name) or ""
    if name:
        return _group(POD_GROUP, namespace, name, own_size=own_size)
    for (kind, place, key), (size_place, size_key), whole in (
        _KINDS if labels or annotations else ()
    ):
        name = texts[place].get(key, "")
        if name:
            size = strict_number(texts[size_place].get(size_key, ""), MAX_MEMBERS) or 0
            sized_name = labels.get(_OBJECT_LABELS[kind], "") if kind in _OBJECT_LABELS else name
            return _group(kind, namespace, name, size, sized_name, whole=whole, own_size=own_size)
    return NO_GROUP if own_size is None else _controlled(pod, own_size)


def workload_of(pod: Pod) -> str:
    """Return the key of the pod's group, or else of the pods of its controller; "" for a pod
    without both.
    """
    return group_of(pod).key or _controlled(pod, 1).key


def _controlled(pod: Pod, own_size: int) -> Group:
    """Return all pods of the pod's controller as a group; NO_GROUP without a controller."""
    controller, namespace = controller_of(pod), (pod.metadata and pod.metadata.namespace) or ""
    if controller is None or not controller.uid:
        return NO_GROUP
    # By uid: a new Job of the same name has other pods.
    name = f"{(controller.name or '')[:_MAX_NAME]} {controller.uid[:_MAX_NAME]}"
    return _group((controller.kind or "")[:_MAX_NAME].lower(), namespace, name, own_size=own_size)


def _group(
    kind: str,
    namespace: str,
    name: str,
    size: int = 0,
    sized_name: str | None = None,
    *,
    whole: bool = False,
    own_size: int | None,
) -> Group:
    """Return the group; own_size: of the annotation GROUP_SIZE, which comes first."""
    key = f"{kind} {namespace}/{name[: 2 * _MAX_NAME + 1]}"
    if own_size is not None:
        return Group(key, max(own_size, 1), whole and own_size > 1)
    sized_name = name if sized_name is None else sized_name
    sized_by = f"{kind} {namespace}/{sized_name[:_MAX_NAME]}" if kind in _SIZED else ""
    return Group(key, size, whole and size > 0, sized_by)


def pods_at_once(workload: PodGroup | LeaderWorkerSet | JobSet) -> int:
    """Return how many pods a group of the object needs at once.

    0 if the object names no size, 1 if the pods do not have to exist at once: then each is bound
    alone.
    """
    if isinstance(workload, PodGroup):
        size = _pod_group_size(workload)
    elif isinstance(workload, LeaderWorkerSet):
        size = _leader_worker_set_size(workload)
    else:
        size = _job_set_size(workload)
    return size if 0 < size <= MAX_MEMBERS else 0


def _pod_group_size(pod_group: PodGroup) -> int:
    spec = pod_group.spec
    if spec is None:
        return 0
    policy = spec.scheduling_policy
    if policy is None:
        return spec.min_member or 0
    return 1 if policy.gang is None else policy.gang.min_count or 0


def _leader_worker_set_size(worker_set: LeaderWorkerSet) -> int:
    """Return the number of pods of one group; 1 if the workers are created when the leader runs."""
    spec = worker_set.spec
    if spec is None or spec.leader_worker_template is None:
        return 0
    annotations = (worker_set.metadata and worker_set.metadata.annotations) or {}
    # With exclusive placement the workers are created only when the leader is bound.
    if spec.startup_policy not in (None, "", "LeaderCreated") or _LWS_EXCLUSIVE in annotations:
        return 1
    return spec.leader_worker_template.size or 1


def _job_set_size(job_set: JobSet) -> int:
    """Return the number of pods of all unfinished Jobs; 1 if some Jobs wait for others."""
    spec = job_set.spec
    if spec is None:
        return 0
    jobs = spec.replicated_jobs or []
    policy = spec.startup_policy
    in_order = policy is not None and policy.startup_policy_order not in (None, "", "AnyOrder")
    if in_order or any(job.depends_on for job in jobs) or _has_followers(job_set, jobs):
        return 1
    statuses = (job_set.status and job_set.status.replicated_jobs_status) or []
    succeeded = {status.name: status.succeeded or 0 for status in statuses}
    size = 0
    for job in jobs:
        template = (job.template.spec if job.template else None) or JobSpec()
        at_once = 1 if template.parallelism is None else template.parallelism
        if template.completions is not None:
            at_once = min(at_once, template.completions)
        replicas = 1 if job.replicas is None else job.replicas
        size += max(replicas - succeeded.get(job.name, 0), 0) * max(at_once, 0)
    return size


def _has_followers(job_set: JobSet, jobs: Sequence[ReplicatedJob]) -> bool:
    """Return whether pods of a Job are admitted only when the first pod is bound: exclusive
    placement does that, unless the nodes were labelled before.
    """
    metadatas = (job_set.metadata, *(job.template and job.template.metadata for job in jobs))
    return any(
        _JOB_SET_EXCLUSIVE in annotations and _JOB_SET_NODE_SELECTOR not in annotations
        for metadata in metadatas
        if (annotations := (metadata and metadata.annotations) or {})
    )
