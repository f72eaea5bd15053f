"""Objects of the API server as the checks need them: from JSON to what facts.py names.

Knows the JSON of nodes, pods and Leases; what a node offers and a pod asks for is read by the
codecs that the ledger uses, so that doctor and extender cannot disagree. Pure.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

from gpushare.core.model import NodeSpec, Reason, Request
from gpushare.doctor.facts import ClosedSeen, LeaseSeen, NodeSeen, PodSeen, PodsSeen
from gpushare.errors import AnnotationError, QuantityError, WireError
from gpushare.wire.annotations import SCALE_DOWN_GUARD, Names
from gpushare.wire.demands import node_state
from gpushare.wire.dra.templates import POD_CLAIM, sized_template
from gpushare.wire.inventory import UNHEALTHY_KEY, Inventory, decode_inventory, decode_unhealthy
from gpushare.wire.nodes import node_spec
from gpushare.wire.objects import NODES, PODS
from gpushare.wire.placeholders import SCHEDULER
from gpushare.wire.pods import observe_pod
from gpushare.wire.quantity import to_units
from gpushare.wire.request_mistakes import is_whole, misplaced, mistake_of

Fields = Mapping[str, Any]

ORIGINAL = "gpushare-schd-extender"
"""The name of the original's Deployment, and part of its image's."""

CONTROL_PLANE = "kube-system"
"""The namespace of the control plane, where no tenant may create pods."""

_SCHEDULER = "kube-scheduler"

_ROLES = ("node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master")
"""Labels of its nodes. The admission plug-in NodeRestriction keeps a kubelet from setting one."""

_MIRROR = "kubernetes.io/config.mirror"
"""The annotation of static pods, which a kubelet may make in any namespace."""


def read_node(node: Fields, names: Names, unit: str) -> NodeSeen:
    """Return the node; one that cannot be read at all is closed."""
    metadata, status = _map(node.get("metadata")), _map(node.get("status"))
    name = str(metadata.get("name"))
    labels = _map(metadata.get("labels"))
    labelled, leads = labels.get("gpushare") == "true", any(role in labels for role in _ROLES)
    capacity, allocatable = _map(status.get("capacity")), _map(status.get("allocatable"))
    text = _map(metadata.get("annotations")).get(names.inventory)
    inventory, broken = _inventory(text)
    state = None
    try:
        read = NODES.decode(json.dumps(node).encode())
        spec, state = node_spec(read, names, unit), node_state(read)
    except WireError:
        spec = NodeSpec(name, closed=Reason.BROKEN_CAPACITY)
    total = _units(capacity.get(names.resource, allocatable.get(names.resource)))
    usable = _units(allocatable.get(names.resource))
    whole = tuple(each for each in capacity if is_whole(each) and _units(capacity[each]))
    return NodeSeen(
        *(name, spec, total, usable, inventory, broken, labelled, state, whole, leads),
        cores=_units(capacity.get(names.cores, allocatable.get(names.cores))),
        kept=SCALE_DOWN_GUARD in _map(metadata.get("annotations")),
    )


def _inventory(text: object) -> tuple[Inventory | None, str]:
    if not isinstance(text, str):
        return None, ""
    try:
        return decode_inventory(text), ""
    except AnnotationError as error:
        return None, str(error)


def _units(quantity: object) -> int | None:
    if not isinstance(quantity, str | int | float):
        return None
    try:
        return to_units(quantity)
    except QuantityError:
        return None


def read_pods(pods: Iterable[Fields], names: Names, now: float, asks: str = "") -> PodsSeen:
    """Return the facts about the pods that have not ended. asks: the namespace of placeholders."""
    gpu: list[PodSeen] = []
    originals: list[str] = []
    alike: list[str] = []
    counting: list[tuple[str, str]] = []
    cores_alone: list[tuple[str, str]] = []
    whole: list[tuple[str, str]] = []
    # (tag, the node of a static pod)
    tags: set[tuple[str, str]] = set()
    placeholders: list[str] = []
    gated: list[str] = []
    beside: list[str] = []
    rewritten: list[str] = []
    for pod in pods:
        images = [str(container.get("image")) for container in _containers(pod)]
        schedules = any(_base(image) == _SCHEDULER for image in images)
        spec = _map(pod.get("spec"))
        node = str(spec.get("nodeName") or "")
        if spec.get("schedulerName") == SCHEDULER:
            placeholders.append(_name(pod))
            gated += [_name(pod)] if spec.get("schedulingGates") else []
        elif asks and _map(pod.get("metadata")).get("namespace") == asks:
            beside.append(_name(pod))
        if _is_rewritten(spec):
            rewritten.append(_name(pod))
        static = _MIRROR in _map(_map(pod.get("metadata")).get("annotations"))
        if schedules and _is_of_control_plane(pod):
            made_by = node if static else ""
            tags |= {(_tag(image), made_by) for image in images if _base(image) == _SCHEDULER}
        if _is_original(pod, images):
            sure = _is_of_control_plane(pod) and not static
            (originals if sure else alike).append(_name(pod))
        if _asks(pod, names.resource):
            gpu += _read_pod(pod, names, now)
        elif _asks(pod, names.count) or _asks(pod, names.cores):
            mistake = mistake_of(PODS.decode(json.dumps(pod).encode()), names, "GiB")
            counting += [(_name(pod), mistake)] if mistake else []
            cores_alone += [(_name(pod), node)] if mistake and _asks(pod, names.cores) else []
        if any(is_whole(resource) for resource in _resources(pod)):
            whole.append((_name(pod), node))
    told = sorted((tag, node) for tag, node in tags if tag)
    return PodsSeen(
        gpu=tuple(gpu),
        originals=tuple(originals),
        schedulers=tuple(tag for tag, node in told if not node),
        alike=tuple(alike),
        counting=tuple(counting),
        cores_alone=tuple(cores_alone),
        whole=tuple(whole),
        static=tuple((tag, node) for tag, node in told if node),
        placeholders=tuple(placeholders),
        gated=tuple(gated),
        beside=tuple(beside),
        rewritten=tuple(rewritten),
    )


def _is_rewritten(spec: Fields) -> bool:
    """Return whether its claim is one that is made in the place of GPU memory."""
    return any(
        claim.get("name") == POD_CLAIM
        and sized_template("", str(claim.get("resourceClaimTemplateName"))) is not None
        for claim in _maps(spec.get("resourceClaims"))
    )


def _read_pod(pod: Fields, names: Names, now: float) -> Iterable[PodSeen]:
    """Yield the pod, unless it asks for 0: it holds nothing, so nothing can be wrong with it."""
    metadata, spec = _map(pod.get("metadata")), _map(pod.get("spec"))
    condition = _scheduled(pod)
    bound = condition.get("status") == "True"
    observed, broken, told = None, "", ""
    try:
        decoded = PODS.decode(json.dumps(pod).encode())
        observed = observe_pod(decoded, names)
        told = misplaced(decoded, observed.request, names)
    except WireError as error:
        broken = str(error)
    if observed and not observed.request.devices:
        return ()
    notes = _map(metadata.get("annotations"))
    created = seconds(metadata.get("creationTimestamp"))
    seen = PodSeen(
        name=_name(pod),
        node=str(spec.get("nodeName") or ""),
        scheduler=str(spec.get("schedulerName") or "default-scheduler"),
        age=now - created if created else 0.0,
        gated=bool(spec.get("schedulingGates")),
        reason=None if bound or not condition else str(condition.get("reason") or ""),
        message="" if bound else str(condition.get("message") or ""),
        bound=seconds(condition.get("lastTransitionTime")) if bound else 0.0,
        broken=broken,
        placement=observed.placement if observed else None,
        uuids=observed.uuids if observed else (),
        assumed=names.assume_time in notes,
        misplaced=told,
        assigned=observed is not None and observed.assigned,
        request=observed.request if observed else Request(),
        # The map is of containers: there is none if init containers alone ask.
        mapped=names.allocation in notes or not (observed and observed.request.containers),
    )
    return (seen,)


def _scheduled(pod: Fields) -> Fields:
    """Return the condition PodScheduled; empty if there is none yet."""
    found = (
        item
        for item in _maps(_map(pod.get("status")).get("conditions"))
        if item.get("type") == "PodScheduled"
    )
    return next(found, {})


def _is_original(pod: Fields, images: Iterable[str]) -> bool:
    named = _name(pod).partition("/")[2].startswith(ORIGINAL)
    running = _map(pod.get("status")).get("phase") == "Running"
    return running and (named or any(ORIGINAL in image for image in images))


def _is_of_control_plane(pod: Fields) -> bool:
    """Return whether those who run the cluster have made it: a tenant can name a pod, and its
    image, as he likes.
    """
    return _map(pod.get("metadata")).get("namespace") == CONTROL_PLANE


def _asks(pod: Fields, resource: str) -> bool:
    return resource in _resources(pod)


def _resources(pod: Fields) -> set[str]:
    return {
        resource
        for container in _containers(pod)
        for resources in (_map(container.get("resources")),)
        for kind in ("limits", "requests")
        for resource in _map(resources.get(kind))
    }


def _containers(pod: Fields) -> Iterator[Fields]:
    spec = _map(pod.get("spec"))
    for key in ("containers", "initContainers"):
        yield from _maps(spec.get(key))


def _name(pod: Fields) -> str:
    metadata = _map(pod.get("metadata"))
    return f"{metadata.get('namespace')}/{metadata.get('name')}"


def _base(image: str) -> str:
    """Return the last part of an image's name: "kube-scheduler" of
    "registry.k8s.io/kube-scheduler:v1.30.2".
    """
    return image.rpartition("/")[2].partition("@")[0].partition(":")[0]


def _tag(image: str) -> str:
    return image.rpartition("/")[2].partition("@")[0].partition(":")[2]


def read_lease(lease: Fields) -> LeaseSeen:
    """Return the Lease."""
    spec = _map(lease.get("spec"))
    duration = spec.get("leaseDurationSeconds")
    return LeaseSeen(
        namespace=str(_map(lease.get("metadata")).get("namespace")),
        holder=str(spec.get("holderIdentity") or ""),
        duration=float(duration) if isinstance(duration, int) else 0.0,
        renewed=seconds(spec.get("renewTime")),
        acquired=seconds(spec.get("acquireTime")),
    )


def read_closed(config_map: Fields, names: Names) -> ClosedSeen | None:
    """Return the devices that the ConfigMap closes; None if it is about something else."""
    name, data = str(_map(config_map.get("metadata")).get("name")), _map(config_map.get("data"))
    if not name.startswith(names.unhealthy):
        return None
    node = name.removeprefix(names.unhealthy)
    if not isinstance(data.get(UNHEALTHY_KEY), str):
        return ClosedSeen(node, broken=f"no text under the key {UNHEALTHY_KEY}")
    try:
        return ClosedSeen(node, decode_unhealthy(data))
    except AnnotationError as error:
        return ClosedSeen(node, broken=str(error))


def seconds(stamp: object) -> float:
    """Return seconds since the epoch of a timestamp as the API writes it; 0 if it is none."""
    try:
        return datetime.fromisoformat(stamp).timestamp() if isinstance(stamp, str) else 0.0
    except ValueError:
        return 0.0


def _map(value: object) -> Fields:
    return value if isinstance(value, dict) else {}


def _maps(value: object) -> Iterator[Fields]:
    return (_map(item) for item in (value if isinstance(value, list) else ()))
