"""Pods: from the structs of objects.py to Request and ObservedPod.

Knows the dialect's names. Requests of containers are summed up by Kubernetes' formula: the larger
of the running phase (containers and sidecars) and of each init container with the sidecars before;
for CPU and memory then the overhead. A quantity that makes no sense is an error; a placement
annotation that makes no sense is only no placement, because users can edit annotations and the pod
still holds memory.

Tested in `tests/unit/wire/test_pods.py`.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from itertools import accumulate, chain
from sys import intern
from typing import TypeVar

from gpushare.core.amounts import PERCENT_AMOUNTS, Percents, of_one_device
from gpushare.core.model import (
    HOST_BOUND,
    MAX_UNITS,
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
from gpushare.wire.codec import Codec
from gpushare.wire.demands import MOST_RESOURCES, demands_of
from gpushare.wire.device_request import APART, ContainerSums, device_request, wanted_apart
from gpushare.wire.given_annotation import read_given
from gpushare.wire.gpu_models import LABELS
from gpushare.wire.groups import workload_of
from gpushare.wire.objects import (
    Container,
    Metadata,
    Pod,
    PodSpec,
    PodStatus,
    Resources,
    seconds_of,
)
from gpushare.wire.placeholders import is_placeholder
from gpushare.wire.quantity import MAX_VALUE, Quantity, peak, to_bytes, to_milli, to_units

# Most pods have a controller, and ask for the same as others.
_remembered = lru_cache(maxsize=1 << 12, typed=True)
_to_units, _to_milli, _to_bytes = map(_remembered, (to_units, to_milli, to_bytes))

_PodT = TypeVar("_PodT", bound=Pod)
_OF_THE_HOST = ("cpu", "memory")
_NOTHING: Mapping[str, Quantity] = {}

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


def read_pod(get: Callable[[str], bytes], codec: Codec[_PodT], ref: PodRef) -> _PodT | None:
    """Return the pod as the API server has it; None if it is gone, or another pod has the name.

    get: returns the answer to a GET of a path. Raises ApiError, or MessageError.
    """
    try:
        pod = codec.decode_answer(get(pod_path(ref)), ref.namespace, ref.name)
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
    host = host_sums(pod)
    units, containers, inits = device_sums(pod, names.resource)
    percents, percent_containers, percent_inits = percent_sums(pod, names)
    if not (units or percents):
        return host
    metadata = pod.metadata or Metadata()
    request = device_request(
        ContainerSums(
            units=units,
            containers=containers,
            inits=inits,
            percents=percents,
            percent_containers=percent_containers,
            percent_inits=percent_inits,
        ),
        metadata.annotations or {},
        metadata.labels or {},
        names,
        host=host,
        models=_accepted_models(pod.spec or PodSpec()),
        workload=_workload(pod),
        node_selector=(pod.spec and pod.spec.node_selector) or {},
    )
    return _one_request(request)


def _workload(pod: Pod) -> str:
    """Return the workload of a pod that wants to stay apart from its fellows; else ""."""
    metadata = pod.metadata or Metadata()
    return workload_of(pod) if APART in (metadata.annotations or {}) else ""


@lru_cache(maxsize=1 << 10)
def _one_request(request: Request) -> Request:
    """Return the request, the same object for all pods that ask for the same."""
    return request


def request_among(pod: Pod, managed_names: Iterable[Names]) -> tuple[Names, Request] | None:
    """Return the one resource that the pod asks for, and the request; None without one.

    Raises WireError for a request that makes no sense or asks for two of the resources, and for a
    pod without a node that has no room for our annotations.
    """
    requests = ((names, request_of(pod, names)) for names in managed_names)
    matches = [(names, request) for names, request in requests if request.devices]
    if len(matches) > 1:
        resources = ", ".join(names.resource for names, _ in matches)
        raise MessageError(f"{resources}: a pod may ask for one of them alone")
    if not matches:
        return None
    names, request = matches[0]
    if mistake := lacks_room(pod, request, names):
        raise AnnotationError(mistake)
    return names, request


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


def units_of(pod: Pod, resource: str) -> int:
    """Return the units a pod asks for, over all devices: the `total` of the request.

    A tenth of the cost of `observe_pod`. Raises QuantityError.
    """
    return device_sums(pod, resource)[0]


def device_sums(pod: Pod, resource: str) -> tuple[int, Shares, Shares]:
    """Return (total GPU units, `containers` and `inits` of the sums). Raises QuantityError."""
    spec = pod.spec or PodSpec()
    regular = [gpu_units(container, resource) for container in spec.containers or ()]
    total = sum(regular)
    init_units: Shares = ()
    if spec.init_containers:
        inits = [
            (gpu_units(container, resource), container.restart_policy)
            for container in spec.init_containers
        ]
        total = peak([total], inits)
        init_units = tuple([(index, units) for index, (units, _) in enumerate(inits) if units])
    if not total:
        return 0, (), ()
    if total > MAX_UNITS:
        raise QuantityError(f"{resource}: the pod's total is larger than {MAX_UNITS}")
    containers = tuple([(index, units) for index, units in enumerate(regular) if units])
    return total, containers, init_units


def percent_sums(
    pod: Pod, names: Names, *, strict: bool = True
) -> tuple[Percents, tuple[Shares, ...], tuple[Shares, ...]]:
    """Return (the percents over all devices, `percent_containers` and `percent_inits` of the sums).

    Raises QuantityError; if not `strict`, an unreadable amount is a whole device, which may be the
    request of the pod.
    """
    sums = [_percent_sum(pod, index, names, strict=strict) for index in range(len(names.percents))]
    percents, of_containers, of_inits = zip(*sums, strict=True)
    return (percents, of_containers, of_inits) if any(percents) else ((), (), ())


def _percent_sum(pod: Pod, index: int, names: Names, *, strict: bool) -> tuple[int, Shares, Shares]:
    try:
        return device_sums(pod, names.percents[index].resource)
    except QuantityError:
        if strict:
            raise
        return PERCENT_AMOUNTS[index].whole, (), ()


def host_sums(pod: Pod, *, strict: bool = True) -> Request:
    """Return the request without GPU: CPU, memory, and some others by name, at most MOST_RESOURCES.

    Requests count, or the limits of a container without requests, as the API server defaults
    requests; the pod-level requests, if there are any, count first (1.34). At most HOST_BOUND: no
    node has so much, and a larger amount would only overflow the arithmetic of policies. Raises
    QuantityError if CPU or memory makes no sense or is more than Kubernetes itself can count; such
    an amount of another resource is left out, and if not `strict` these too.
    """
    spec = pod.spec or PodSpec()
    pod_amounts = _amounts(spec.resources)
    regular = [_amounts(container.resources) for container in spec.containers or ()]
    inits = [
        (_amounts(container.resources), container.restart_policy)
        for container in spec.init_containers or ()
    ]
    overhead = spec.overhead or _NOTHING
    resource_names = {*overhead, *chain(*regular, *(amounts for amounts, _ in inits))}
    extended_names = sorted(resource_names.difference(_OF_THE_HOST))[:MOST_RESOURCES]
    lengths = accumulate(map(len, extended_names))
    counted_names = [
        name for name, all_ in zip(extended_names, lengths, strict=True) if all_ <= _MOST_NAMES
    ]
    sums = dict.fromkeys(_OF_THE_HOST, 0)
    for name in (*_OF_THE_HOST, *counted_names):
        convert = _to_milli if name == "cpu" else _to_bytes
        try:
            total = convert(pod_amounts.get(name, 0))
            if not total:
                total = sum([convert(amounts[name]) for amounts in regular if name in amounts])
                if inits:
                    before = [(convert(amounts.get(name, 0)), policy) for amounts, policy in inits]
                    total = peak([total], before)
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


def _amounts(resources: Resources | None) -> Mapping[str, Quantity]:
    """Return the requested amounts by name: of those that are only limited, the limits."""
    limits, requests = resources and resources.limits, resources and resources.requests
    return {**limits, **requests} if limits and requests else limits or requests or _NOTHING


@_remembered
def _cpu_only(cpu: int, memory: int, resources: tuple[tuple[str, int], ...]) -> Request:
    """Return the request, one for all pods that ask for the same."""
    return Request(cpu=cpu, memory=memory, resources=resources)


def gpu_units(container: Container, resource: str) -> int:
    """Return the units a container is limited to.

    Kubernetes wants limit and request equal; limits lead.
    """
    resources = container.resources
    if resources is None:
        return 0
    quantity = (resources.limits or {}).get(resource)
    if quantity is None:
        quantity = (resources.requests or {}).get(resource)
    if quantity is None:
        return 0
    try:
        return _to_units(quantity)
    except QuantityError as error:
        raise QuantityError(f"{resource}: {error}{_without_suffix(quantity)}") from error


def _without_suffix(quantity: Quantity) -> str:
    """Return the text to write instead of an amount in bytes, such as 5Gi; else ""."""
    try:
        amount = to_bytes(quantity)
    except QuantityError:
        return ""
    if not str(quantity)[-1:].isalpha() or amount < 2**20:
        return ""
    return f": the unit is GiB already (unless --unit says otherwise): write {-(-amount // 2**30)}"


def observe_pod(pod: Pod, names: Names) -> ObservedPod:
    """Return the pod as the API server shows it.

    A bound pod without GPU request has only the host's sums. A bound pod holds device memory
    whatever the other fields say: if the annotations make no sense, the whole total counts as
    requested of one device, senseless CPU or memory as 0, and senseless percents as a whole device;
    the pod stays apart from others if that annotation makes sense.
    Percents without memory are on no device. A placeholder asks for nothing: it stands for a pod
    that does. Raises MessageError or QuantityError if the pod or its devices cannot be read.
    """
    metadata = pod.metadata or Metadata()
    node = (pod.spec and pod.spec.node_name) or ""
    if is_placeholder(pod):
        return ObservedPod(pod_ref(pod), Request(), ended=has_ended(pod), gated=True, served=False)
    try:
        request = request_of(pod, names)
    except WireError:
        total, containers, inits = device_sums(pod, names.resource)
        percents, percent_containers, _ = percent_sums(pod, names, strict=False)
        if not node or not (total or percents):
            raise
        request = host_sums(pod, strict=False)
        if total:
            request = replace(
                request,
                units=total,
                devices=1,
                containers=containers,
                inits=tuple([units for _, units in inits]),
                percents=of_one_device(percents),
                percent_containers=percent_containers,
            )
            with suppress(AnnotationError):
                apart = wanted_apart(metadata.annotations or {}, _workload(pod))
                request = replace(request, apart=apart)
    if node and not request.devices:
        return ObservedPod(pod_ref(pod), request, intern(node), ended=has_ended(pod))
    annotations = metadata.annotations or {}
    status = pod.status or PodStatus()
    annotated: tuple[Shares | None, tuple[str, ...]] = (None, ())
    no_extender_called = False
    if node:
        shares = placement(annotations, request, names)
        uuids = None if shares is None else device_uuids(annotations, shares, names)
        annotated = (None, ()) if uuids is None else (shares, uuids)
    else:
        # The pod has gates, or no node passes kube-scheduler's own filters.
        no_extender_called = bool(pod.spec and pod.spec.scheduling_gates) or any(
            (condition.type, condition.status, condition.reason)
            == ("PodScheduled", "False", "Unschedulable")
            for condition in status.conditions or ()
        )
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
