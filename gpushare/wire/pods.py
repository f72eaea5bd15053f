"""Pods: from the structs of objects.py to Request and ObservedPod.

Knows the dialect's names; what containers ask for is summed up in `pod_sums.py`. A quantity that
makes no sense is an error; a placement annotation that makes no sense is only no placement, because
users can edit annotations and the pod still holds memory.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from sys import intern

from gpushare.core.model import ALL_CORES, Labels, ObservedPod, PodRef, Request, Shares
from gpushare.core.selectors import NO_DEMANDS
from gpushare.errors import AnnotationError, MessageError, QuantityError, WireError
from gpushare.wire.annotations import (
    MAX_DEVICES_PER_POD,
    Names,
    check_room,
    device_uuids,
    placement,
    strict_number,
    wanted_policy,
)
from gpushare.wire.card_wishes import wanted_cards
from gpushare.wire.demands import demands_of
from gpushare.wire.given_annotation import read_given
from gpushare.wire.gpu_models import LABELS
from gpushare.wire.objects import Metadata, Pod, PodSpec, PodStatus
from gpushare.wire.placeholders import is_placeholder
from gpushare.wire.pod_cores import check_cores, without_memory
from gpushare.wire.pod_sums import device_sums, host_sums
from gpushare.wire.split import split_parts

MAX_MODELS = 64
"""Models that are kept of what one pod accepts."""
_MAX_LABEL = 63
"""Characters of the value of a label."""
MAX_LABELS = 8 * 1024
"""Characters of the labels of a pod that are kept."""

_MAX_STAMP = 32

_ENDED = frozenset({"Succeeded", "Failed"})


def pod_ref(pod: Pod) -> PodRef:
    """Return namespace, name and uid of the pod. Raises MessageError if one is missing."""
    metadata = pod.metadata or Metadata()
    if not (metadata.name and metadata.namespace and metadata.uid):
        raise MessageError("Pod.metadata: name, namespace or uid is missing")
    return PodRef(intern(metadata.namespace), metadata.name, metadata.uid)


def request_of(pod: Pod, names: Names) -> Request:
    """Return what the pod asks for.

    GPU memory by its containers' limits, CPU and memory by their requests, both with Kubernetes'
    formula: the larger of the running phase (containers and sidecars) and of each init container
    with the sidecars before it; for CPU and memory then the overhead. Annotation or label
    `names.count` splits the GPU memory and the cores evenly over several devices, annotation
    `gpushare.io/split` splits the memory unevenly. Raises QuantityError, AnnotationError, or
    MessageError if a total cannot be split, or if cores are asked for that cannot be had.
    """
    cpu_only = host_sums(pod)
    total, containers, inits = device_sums(pod, names.resource)
    cores, core_containers, _ = device_sums(pod, names.cores)
    if not total:
        if cores:
            raise MessageError(without_memory(names))
        return cpu_only
    metadata = pod.metadata or Metadata()
    annotations = metadata.annotations or {}
    devices = _devices(metadata, names)
    parts = split_parts(annotations, total, containers, names)
    if parts:
        devices = len(parts)
    elif total % devices:
        below = total - total % devices
        instead = f"{below} or {below + devices}" if below else str(devices)
        raise MessageError(
            f"{names.resource}: {total} cannot be split evenly over {devices} devices"
            f" ({names.count}): write {instead}, or another count"
        )
    request = Request(
        units=parts[0] if parts else total // devices,
        devices=devices,
        cpu=cpu_only.cpu,
        memory=cpu_only.memory,
        containers=containers,
        policy=wanted_policy(annotations, names),
        models=_accepted_models(pod.spec or PodSpec()),
        inits=inits,
        resources=cpu_only.resources,
        cores=cores // devices,
        core_containers=core_containers,
        cards=wanted_cards(annotations),
        split=parts if len(set(parts)) > 1 else (),
    )
    if cores:
        check_cores(cores, request, names)
    return request


def request_among(pod: Pod, every: Iterable[Names]) -> tuple[Names, Request] | None:
    """Return the one resource that the pod asks for, and its request; None if it asks for none.

    Raises WireError for a request that makes no sense or asks for two of the resources, and for a
    pod without a node that has no room for our annotations.
    """
    requests = ((names, request_of(pod, names)) for names in every)
    found = [(names, request) for names, request in requests if request.devices]
    if len(found) > 1:
        asked = ", ".join(names.resource for names, _ in found)
        raise MessageError(f"{asked}: a pod may ask for one of them alone")
    if found:
        names, request = found[0]
        check_annotations(pod, request, names)
    return found[0] if found else None


def check_annotations(pod: Pod, request: Request, names: Names) -> None:
    """Check that a pod without a node has room for the annotations that are written later.

    Raises AnnotationError. On a node it is too late: the pod holds its devices in any case.
    """
    if not (pod.spec and pod.spec.node_name):
        check_room((pod.metadata and pod.metadata.annotations) or {}, request, names)


def observe_pod(pod: Pod, names: Names) -> ObservedPod:
    """Return the pod as the API server shows it.

    Of a pod that has a node and asks for no GPU it is only what the pod holds. A pod that has a
    node holds its device memory whatever else it says: if its annotations make no sense, its
    whole total counts as requested of one device, CPU or memory that makes no sense as 0, and cores
    that make none as all of a device. Cores without memory are on no device. A placeholder asks for
    nothing: it stands for a pod that does.
    Raises MessageError or QuantityError if the pod or its devices cannot be read.
    """
    metadata = pod.metadata or Metadata()
    node = (pod.spec and pod.spec.node_name) or ""
    if is_placeholder(pod):
        return ObservedPod(pod_ref(pod), Request(), ended=has_ended(pod), gated=True, served=False)
    try:
        request = request_of(pod, names)
    except WireError:
        total, containers, inits = device_sums(pod, names.resource)
        try:
            cores, core_containers, _ = device_sums(pod, names.cores)
        except QuantityError:  # nobody knows how much, so it may be all
            cores, core_containers = ALL_CORES, ()
        if not node or not (total or cores):
            raise
        request = host_sums(pod, strict=False)
        if total:
            request = replace(
                request,
                units=total,
                devices=1,
                containers=containers,
                inits=inits,
                cores=min(cores, ALL_CORES),
                core_containers=core_containers,
            )
    if node and not request.devices:
        return ObservedPod(pod_ref(pod), request, intern(node), ended=has_ended(pod))
    annotations = metadata.annotations or {}
    status = pod.status or PodStatus()
    annotated: tuple[Shares | None, tuple[str, ...]] = (None, ())
    if node:
        shares = placement(annotations, request, names)
        uuids = None if shares is None else device_uuids(annotations, shares, names)
        annotated = (None, ()) if uuids is None else (shares, uuids)
    return ObservedPod(
        pod_ref(pod),
        request,
        intern(node),
        annotated[0],
        annotations.get(names.assigned) == "true",
        has_ended(pod),
        _seconds(metadata.creation_timestamp),
        _seconds(status.start_time),
        priority_of(pod),
        metadata.deletion_timestamp is not None,
        _labels(metadata) if node else (),
        not node and _is_kept_from_extenders(pod),
        # Ours has 19 digits: what is longer is none, and is not kept.
        annotations.get(names.assume_time, "")[:_MAX_STAMP] if node else "",
        status.phase == "Running",
        annotated[1],
        read_given(annotations, request.total, names) if node else (),
        not node and bool(request.devices) and _is_crowded(annotations, request, names),
        _seconds(metadata.deletion_timestamp),
        NO_DEMANDS if node else demands_of(pod),
    )


def _is_crowded(annotations: Mapping[str, str], request: Request, names: Names) -> bool:
    try:
        check_room(annotations, request, names)
    except AnnotationError:
        return True
    return False


def has_ended(pod: Pod) -> bool:
    """Return whether its containers have ended for good and hold nothing."""
    return pod.status is not None and pod.status.phase in _ENDED


def _is_kept_from_extenders(pod: Pod) -> bool:
    """Return whether no extender is called for it: it has gates, or no node passes kube-scheduler
    itself.
    """
    conditions = (pod.status and pod.status.conditions) or ()
    refused = any(
        (each.type, each.status, each.reason) == ("PodScheduled", "False", "Unschedulable")
        for each in conditions
    )
    return refused or bool(pod.spec and pod.spec.scheduling_gates)


def names_any(pod: Pod, resources: Collection[str]) -> bool:
    """Return whether kube-scheduler sends the pod to an extender that manages these resources.

    A container or init container names one, with whatever quantity (IsInterested, extender.go).
    """
    spec = pod.spec or PodSpec()
    return any(
        not amounts.keys().isdisjoint(resources)
        for container in (*(spec.containers or ()), *(spec.init_containers or ()))
        if container.resources is not None
        for amounts in (container.resources.limits or {}, container.resources.requests or {})
    )


def scheduler_of(pod: Pod) -> str:
    """Return the name of the scheduler that is to bind the pod."""
    return (pod.spec and pod.spec.scheduler_name) or "default-scheduler"


def priority_of(pod: Pod) -> int:
    """Return the pod's priority; 0 if it has none, as in kube-scheduler
    (corev1helpers.PodPriority).
    """
    return (pod.spec and pod.spec.priority) or 0


def may_preempt(pod: Pod) -> bool:
    """Return whether other pods may be evicted for it (spec.preemptionPolicy)."""
    return pod.spec is None or pod.spec.preemption_policy != "Never"


def _accepted_models(spec: PodSpec) -> tuple[str, ...]:
    """Return the models that the pod's node selector and its required node affinity accept, sorted.

    () means any, and stands for more than MAX_MODELS too. Affinity counts if it is one term:
    several are alternatives, of which each may name other labels. A value that is longer than any
    label's is no model. A node has to meet all conditions. kube-scheduler alone enforces them; a
    policy that knows which pods can only run on a scarce model keeps that model free for them.
    """
    selector = spec.node_selector or {}
    conditions = [frozenset({selector[key]}) for key in LABELS if key in selector]
    node = spec.affinity and spec.affinity.node_affinity
    terms = (node and node.required and node.required.node_selector_terms) or ()
    conditions += [
        frozenset(each.values or ())
        for each in (len(terms) == 1 and terms[0].match_expressions) or ()
        if each.key in LABELS and each.operator == "In"
    ]
    if not conditions:
        return ()
    models = [each for each in frozenset.intersection(*conditions) if len(each) <= _MAX_LABEL]
    return tuple(sorted(models)) if len(models) <= MAX_MODELS else ()


def _devices(metadata: Metadata, names: Names) -> int:
    """Return over how many devices the pod wants its memory spread; the annotation wins over the
    label.
    """
    text = (metadata.annotations or {}).get(names.count)
    if text is None:
        text = (metadata.labels or {}).get(names.count, "1")
    devices = strict_number(text, MAX_DEVICES_PER_POD)
    if not devices:
        raise AnnotationError(
            f"{names.count}: {text[:20]!a} is not a number of devices"
            f" from 1 to {MAX_DEVICES_PER_POD}"
        )
    return devices


def _labels(metadata: Metadata) -> Labels:
    """Return the labels, stored once for all pods of a controller.

    Of more than MAX_LABELS characters the first by key: a budget that selects by another one does
    not protect the pod.
    """
    found, room = [], MAX_LABELS
    for key, value in sorted((metadata.labels or {}).items()):
        room -= len(key) + len(value)
        if room < 0:
            break
        found.append((intern(key), intern(value)))
    return tuple(found)


def _seconds(timestamp: str | None) -> float:
    """Return seconds since the epoch of an RFC 3339 time; 0 if it cannot be read."""
    try:
        moment = datetime.fromisoformat(timestamp or "")
    except ValueError:
        return 0.0
    return moment.timestamp() if moment.tzinfo else 0.0
