"""Pods: from the structs of objects.py to Request, ObservedPod and Claimant.

Knows the dialect's names. Requests of containers are summed up by Kubernetes' formula: the larger
of the running phase (containers and sidecars) and of each init container with the sidecars before;
for CPU and memory then the overhead. A quantity that makes no sense is an error; a placement
annotation that makes no sense is only no placement, because users can edit annotations and the pod
still holds memory.

Tested in `tests/unit/wire/test_pods.py`; `Claimant` in `tests/unit/wire/test_groups.py` and
`tests/unit/extender/verbs/test_offers.py`.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate, chain
from sys import intern

from gpushare.core.model import (
    HOST_BOUND,
    Labels,
    ObservedPod,
    PodRef,
    Request,
    Shares,
)
from gpushare.core.selectors import NO_DEMANDS
from gpushare.errors import AnnotationError, ApiNotFound, MessageError, QuantityError, WireError
from gpushare.wire.annotations import (
    LARGEST_ANNOTATIONS,
    MOST_GIVEN,
    Names,
    device_uuids,
    placement,
)
from gpushare.wire.demands import MOST_RESOURCES, demands_of
from gpushare.wire.device_request import (
    APART,
    container_sums,
    device_request,
    request_of_one_device,
    wanted_apart,
)
from gpushare.wire.given_annotation import read_given
from gpushare.wire.gpu_models import LABELS
from gpushare.wire.groups import NO_GROUP, Group, group_of, workload_of
from gpushare.wire.objects import (
    PODS,
    Container,
    Metadata,
    Pod,
    PodSpec,
    PodStatus,
    controller_of,
    seconds_of,
)
from gpushare.wire.placeholders import is_placeholder, is_unschedulable
from gpushare.wire.quantity import MAX_VALUE, Quantity, peak, to_bytes, to_milli

_OF_THE_HOST = ("cpu", "memory")

MAX_MODELS = 64
"""Upper bound of the kept models that one pod accepts."""
_MAX_LABEL = 63
"""Characters of the value of a label."""
MAX_LABELS = 16 * 1024
"""Bytes of the labels of a pod that are kept: characters, and _EACH_LABEL for each."""
_EACH_LABEL = 160
_MOST_NAMES = 4 * 1024
"""Upper bound of the characters of the kept resource names of one pod's requests."""

_MAX_STAMP = 32

_ENDED = frozenset({"Succeeded", "Failed"})


def pod_ref(pod: Pod) -> PodRef:
    """Return namespace, name and uid of the pod. Raises MessageError if one is missing."""
    metadata = pod.metadata or Metadata()
    if not (metadata.name and metadata.namespace and metadata.uid):
        raise MessageError("Pod.metadata: name, namespace or uid is missing")
    return PodRef(intern(metadata.namespace), metadata.name, metadata.uid)


def pod_path(ref: PodRef) -> str:
    """Return the path of a pod; path + "/eviction" takes an eviction."""
    return f"/api/v1/namespaces/{ref.namespace}/pods/{ref.name}"


def read_pod(get: Callable[[str], bytes], ref: PodRef) -> Pod | None:
    """Return the pod as the API server has it; None if it is gone, or another pod has the name.

    get: returns the answer to a GET of a path. Raises ApiError, or MessageError.
    """
    try:
        pod = PODS.decode_answer(get(pod_path(ref)), ref.namespace, ref.name)
    except ApiNotFound:
        return None
    return pod if (pod.metadata and pod.metadata.uid) == ref.uid else None


def pod_name(pod: Pod) -> str:
    """Return the pod as "namespace/name", or "?" for a pod without name or uid."""
    metadata = pod.metadata
    if metadata is None or not (metadata.namespace and metadata.name and metadata.uid):
        return "?"
    return f"{metadata.namespace}/{metadata.name}"


def request_of(pod: Pod, names: Names) -> Request:
    """Return the request of the pod. GPU memory by limits of the containers, CPU and memory by
    requests, both with Kubernetes' formula: the larger of the running phase (containers and
    sidecars) and of each init container with the sidecars before; for CPU and memory then the
    overhead. device_request.py applies the annotations. Raises QuantityError, AnnotationError, or
    MessageError if the devices cannot be had.
    """
    host, spec, metadata = host_sums(pod), pod.spec or PodSpec(), pod.metadata or Metadata()
    sums = container_sums(spec.containers or (), spec.init_containers or (), names)
    if not any(sums.totals):
        return host
    annotations = metadata.annotations or {}
    request = device_request(
        sums,
        annotations,
        metadata.labels or {},
        names,
        host=host,
        models=_accepted_models(spec) if spec.node_selector or spec.affinity else (),
        workload=workload_of(pod) if APART in annotations else "",
        node_selector=spec.node_selector or {},
    )
    return _one_request(request)


@lru_cache(maxsize=1 << 10)
def _one_request(request: Request) -> Request:
    """Return the request, the same object for all pods that ask for the same."""
    return request


def request_among(pod: Pod, managed_names: Sequence[Names]) -> tuple[int, Request] | None:
    """Return the index of the one resource that the pod asks for, and the request; None without
    one.

    Raises WireError for a request that makes no sense or asks for two of the resources, and for a
    pod without a node that has no room for our annotations.
    """
    requests = [request_of(pod, names) for names in managed_names]
    matches = [index for index, request in enumerate(requests) if request.devices]
    if not matches:
        return None
    if len(matches) > 1:
        resources = ", ".join(managed_names[index].resource for index in matches)
        raise MessageError(f"{resources}: a pod may ask for one of them alone")
    index = matches[0]
    if mistake := lacks_room(pod, requests[index], managed_names[index]):
        raise AnnotationError(mistake)
    return index, requests[index]


def lacks_room(pod: Pod, request: Request, names: Names) -> str:
    """Return why the annotations of a pod leave no room for all that we and the device plug-in
    write later; "" if there is room. A bound pod is not refused: the pod holds the devices in any
    case.

    A pod with too large annotations can never be updated again: the pod gets no status, no end and
    no deletion, and holds the devices for ever.
    """
    if pod.spec and pod.spec.node_name:
        return ""
    index = number = 11  # ten digits and a comma
    uuid = 129
    # Containers fill device after device: each piece ends a container, or a device.
    pieces = len(request.containers) + request.devices
    grants = (
        2
        + len(request.containers) * (index + len('"":{}'))
        + pieces * (index + len('"":') + number)
    )
    # The bytes that each annotation of ours may have over the life of the pod.
    max_bytes = {
        names.idx: index * request.devices,
        names.dev: number,
        names.pod: number,
        names.assigned: len("false"),
        names.assume_time: 20,
        names.allocation: grants,
        names.uuids: uuid * request.devices,
        names.given: 2 + MOST_GIVEN * (uuid + len('"":') + number),
    }
    for of_amount, percent in zip(names.percents, request.percents, strict=False):
        if percent and of_amount.allocation:
            max_bytes[of_amount.allocation] = grants
    # As the API server counts annotations.
    present_bytes = sum(
        len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
        for key, value in ((pod.metadata and pod.metadata.annotations) or {}).items()
        if key not in max_bytes
        for text in (key, value)
    )
    room = sum(len(key) + size for key, size in max_bytes.items())
    if present_bytes + room <= LARGEST_ANNOTATIONS:
        return ""
    return (
        f"its annotations have {present_bytes} bytes, and gpushare writes up to {room} more;"
        f" Kubernetes takes {LARGEST_ANNOTATIONS} in all: create the pod with smaller ones"
    )


def units_of(pod: Pod, names: Names) -> int:
    """Return the units a pod asks for, over all devices: the `total` of the request.

    A tenth of the cost of `observe_pod`. Raises QuantityError.
    """
    spec = pod.spec or PodSpec()
    sums = container_sums(spec.containers or (), spec.init_containers or (), names, strict=False)
    return sums.totals[0]


def host_sums(pod: Pod, *, strict: bool = True) -> Request:
    """Return the request without GPU: CPU, memory, and some others by name, at most MOST_RESOURCES.

    Requests count, or the limits of a container without requests, as the API server defaults
    requests; the pod-level requests, if there are any, count first (1.34). At most HOST_BOUND: no
    node has so much, and a larger amount would only overflow the arithmetic of policies. Raises
    QuantityError if CPU or memory makes no sense or is more than Kubernetes itself can count; such
    an amount of another resource is left out, and if not `strict` these too.
    """
    spec = pod.spec or PodSpec()
    containers, inits = spec.containers or (), spec.init_containers or ()
    holders: tuple[PodSpec | Container, ...] = (spec, *containers, *inits)
    amounts: list[Mapping[str, Quantity]] = []
    for resources in [holder.resources for holder in holders]:
        limits, requests = resources and resources.limits, resources and resources.requests
        amounts.append({**limits, **requests} if limits and requests else limits or requests or {})
    of_pod, of_containers = amounts[0], amounts[1:]
    regular, before = of_containers[: len(containers)], of_containers[len(containers) :]
    overhead = spec.overhead or {}
    extended_names = sorted({*overhead, *chain(*of_containers)}.difference(_OF_THE_HOST))
    lengths = accumulate(map(len, extended_names[:MOST_RESOURCES]))
    counted_names = [
        name for name, length in zip(extended_names, lengths, strict=False) if length <= _MOST_NAMES
    ]
    sums = dict.fromkeys(_OF_THE_HOST, 0)
    for name in (*_OF_THE_HOST, *counted_names):
        convert = to_milli if name == "cpu" else to_bytes
        try:
            total = convert(of_pod.get(name, 0))
            if not total:
                total = sum([convert(requests[name]) for requests in regular if name in requests])
                if inits:
                    of_inits = [convert(requests.get(name, 0)) for requests in before]
                    policies = [container.restart_policy for container in inits]
                    total = peak([total], zip(of_inits, policies, strict=True))
            total += convert(overhead.get(name, 0))
            if total > MAX_VALUE:
                raise QuantityError(f"{name}: the pod's total is larger than {MAX_VALUE}")
        except QuantityError:
            if strict and name in sums:
                raise
            continue
        sums[name] = min(total, HOST_BOUND)
    (_, cpu), (_, memory), *others = sums.items()
    return _cpu_only(cpu, memory, tuple([(name, amount) for name, amount in others if amount]))


@lru_cache(maxsize=1 << 12)
def _cpu_only(cpu: int, memory: int, resources: tuple[tuple[str, int], ...]) -> Request:
    """Return the request, one for all pods that ask for the same."""
    return Request(cpu=cpu, memory=memory, resources=resources)


def observe_pod(pod: Pod, names: Names) -> ObservedPod:
    """Return the pod as the API server shows it.

    A bound pod without GPU request has only the host's sums. A bound pod holds device memory
    whatever the other fields say: if the annotations make no sense, the whole total counts as
    requested of one device, senseless CPU or memory as 0, and senseless percents as a whole device;
    the pod stays apart from others if that annotation makes sense.
    Percents without memory are on no device. A placeholder asks for nothing: it stands for a pod
    that does. Raises MessageError or QuantityError if the pod or its devices cannot be read.
    """
    metadata, spec = pod.metadata or Metadata(), pod.spec or PodSpec()
    annotations, node = metadata.annotations or {}, spec.node_name or ""
    if is_placeholder(pod):
        return ObservedPod(pod_ref(pod), Request(), ended=has_ended(pod), gated=True, served=False)
    try:
        request = request_of(pod, names)
    except WireError:
        containers, inits = spec.containers or (), spec.init_containers or ()
        sums = container_sums(containers, inits, names, strict=False)
        if not node or not any(sums.totals):
            raise
        request = host_sums(pod, strict=False)
        if sums.totals[0]:
            request = request_of_one_device(sums, request)
            with suppress(AnnotationError):
                request = replace(request, apart=wanted_apart(annotations, workload_of(pod)))
    if node and not request.devices:
        return ObservedPod(pod_ref(pod), request, intern(node), ended=has_ended(pod))
    status = pod.status or PodStatus()
    annotated: tuple[Shares | None, tuple[str, ...]] = (None, ())
    no_extender_called = False
    if node:
        shares = placement(annotations, request, names)
        uuids = None if shares is None else device_uuids(annotations, shares, names)
        annotated = (None, ()) if uuids is None else (shares, uuids)
    else:
        # The pod has gates, or no node passes kube-scheduler's own filters.
        no_extender_called = bool(spec.scheduling_gates) or is_unschedulable(pod)
    return ObservedPod(
        ref=pod_ref(pod),
        request=request,
        node=intern(node),
        placement=annotated[0],
        assigned=annotations.get(names.assigned) == "true",
        ended=has_ended(pod),
        created=seconds_of(metadata.creation_timestamp),
        started=seconds_of(status.start_time),
        priority=priority_of(pod),
        terminating=metadata.deletion_timestamp is not None,
        labels=_labels(metadata) if node else (),
        gated=no_extender_called,
        # Our stamp has 19 digits: a longer text is no stamp, and is cut.
        stamp=annotations.get(names.assume_time, "")[:_MAX_STAMP] if node else "",
        running=status.phase == "Running",
        uuids=annotated[1],
        given=read_given(annotations, request.total, names) if node else (),
        crowded=bool(request.devices and lacks_room(pod, request, names)),
        ends_by=_ends_by(pod),
        demands=NO_DEMANDS if node else demands_of(pod),
    )


def _ends_by(pod: Pod) -> float:
    """Return when the pod must be gone, in seconds since the epoch; 0 if nothing ends the pod."""
    metadata, spec, status = pod.metadata or Metadata(), pod.spec or PodSpec(), pod.status
    most = most_seconds(spec)
    if metadata.deletion_timestamp or not most:
        return seconds_of(metadata.deletion_timestamp)
    started = seconds_of(status.start_time if status is not None else None)
    return started + most if started else 0.0


def most_seconds(spec: PodSpec) -> int:
    """Return how long the pod runs at most: its deadline, and its grace after that; 0: no limit."""
    deadline = spec.active_deadline_seconds or 0
    # Before Kubernetes 1.27 the grace may be negative, which counts as 1 second.
    return deadline and deadline + max(spec.termination_grace_period_seconds or 0, 0)


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
    metadata, spec = pod.metadata or Metadata(), pod.spec or PodSpec()
    owner = controller_of(pod) if metadata.owner_references else None
    # Volumes and claims may have to be made after filter (PreBind).
    waits = bool(spec.resource_claims) or any(
        volume.persistent_volume_claim or volume.ephemeral for volume in spec.volumes or ()
    )
    return Claimant(
        ref=pod_ref(pod),
        request=request,
        priority=spec.priority or 0,
        group=group_of(pod),
        waits=waits,
        owner=(owner and owner.uid) or "",
        created=seconds_of(metadata.creation_timestamp),
        deadline=most_seconds(spec) if spec.active_deadline_seconds else 0,
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


def has_ended(pod: Pod) -> bool:
    """Return whether the pod's containers have ended for good and hold nothing."""
    return pod.status is not None and pod.status.phase in _ENDED


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
    """Return the pod's priority; 0 without one, as in kube-scheduler
    (corev1helpers.PodPriority).
    """
    return (pod.spec and pod.spec.priority) or 0


def may_preempt(pod: Pod) -> bool:
    """Return whether kube-scheduler may evict other pods for the pod (spec.preemptionPolicy)."""
    return pod.spec is None or pod.spec.preemption_policy != "Never"


def _accepted_models(spec: PodSpec) -> tuple[str, ...]:
    """Return the models that the pod's node selector and required node affinity accept, sorted.

    () means any, and stands for more than MAX_MODELS too. Affinity counts if there is one term:
    several terms are alternatives, and each may name other labels. A value longer than the value of
    any label is no model. A node has to meet all conditions. kube-scheduler alone enforces them; a
    policy that knows which pods can only run on a scarce model keeps that model free for them.
    """
    selector = spec.node_selector or {}
    conditions = [frozenset({selector[key]}) for key in LABELS if key in selector]
    node = spec.affinity and spec.affinity.node_affinity
    terms = (node and node.required and node.required.node_selector_terms) or ()
    conditions += [
        frozenset(expression.values or ())
        for expression in (len(terms) == 1 and terms[0].match_expressions) or ()
        if expression.key in LABELS and expression.operator == "In"
    ]
    if not conditions:
        return ()
    models = [model for model in frozenset.intersection(*conditions) if len(model) <= _MAX_LABEL]
    return tuple(sorted(models)) if len(models) <= MAX_MODELS else ()


def _labels(metadata: Metadata) -> Labels:
    """Return the labels, stored once for all pods of a controller.

    Of more than MAX_LABELS bytes the first by key: a budget that selects by another one does
    not protect the pod.
    """
    labels, room = [], MAX_LABELS
    for key, value in sorted((metadata.labels or {}).items()):
        room -= _EACH_LABEL + len(key) + len(value)
        if room < 0:
            break
        labels.append((intern(key), intern(value)))
    return _one_labels(tuple(labels))


@lru_cache(maxsize=1 << 10)
def _one_labels(labels: Labels) -> Labels:
    """Return the labels, the same object for all pods with equal labels."""
    return labels
