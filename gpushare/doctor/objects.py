"""Objects of the API server as the checks need them: from JSON to what facts.py names.

Knows the JSON of nodes, pods, Leases and of what claims need; what a node offers and a pod asks for
is read by the codecs that the ledger uses, so that doctor and extender cannot disagree. Pure.

Tested in `tests/unit/doctor/test_parts.py` and `tests/unit/doctor/test_claims.py`.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

from gpushare.core.model import NodeSpec, Reason, Request
from gpushare.doctor import facts
from gpushare.errors import AnnotationError, MessageError, QuantityError, WireError
from gpushare.wire.annotations import SCALE_DOWN_GUARD, Names
from gpushare.wire.demands import node_state
from gpushare.wire.device_list import DEVICE_LIST, DeviceList, decode_device_list
from gpushare.wire.dra.claims import CLASS, CLASS_ASIDE, claim_request
from gpushare.wire.dra.objects import (
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Device,
    ResourceSlice,
    SliceSpec,
)
from gpushare.wire.dra.slices import MEMORY, UUID, DeviceKey, cards_of
from gpushare.wire.dra.templates import POD_CLAIM, sized_template
from gpushare.wire.inventory import UNHEALTHY_KEY, decode_inventory, decode_unhealthy
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


_DRIVER = re.compile(r"\.driver\s*[!=]=\s*'([^']+)'")
_GUARDED = frozenset({"resourceclaims/status", "resourceclaims/*", "*/*"})

_PLUGIN = "gpushare-device-plugin"
"""The label `app` of our device plug-in's pods."""
_OPERATOR_LABEL = "nvidia.com/gpu.deploy.device-plugin"


def read_node(node: Fields, names: Names, unit: str) -> facts.NodeSeen:
    """Return the node; one that cannot be read at all is closed."""
    metadata, status = _map(node.get("metadata")), _map(node.get("status"))
    name = str(metadata.get("name"))
    labels = _map(metadata.get("labels"))
    labelled, leads = labels.get("gpushare") == "true", any(role in labels for role in _ROLES)
    capacity, allocatable = _map(status.get("capacity")), _map(status.get("allocatable"))
    text = _map(metadata.get("annotations")).get(names.inventory)
    inventory, broken = None, ""
    if isinstance(text, str):
        try:
            inventory = decode_inventory(text)
        except AnnotationError as error:
            broken = str(error)
    state = None
    try:
        read = NODES.decode(json.dumps(node).encode())
        spec, state = node_spec(read, names, unit), node_state(read)
    except WireError:
        spec = NodeSpec(name, closed=Reason.BROKEN_CAPACITY)
    total = _units(capacity.get(names.resource, allocatable.get(names.resource)))
    usable = _units(allocatable.get(names.resource))
    whole = tuple(
        resource for resource in capacity if is_whole(resource) and _units(capacity[resource])
    )
    return facts.NodeSeen(
        *(name, spec, total, usable, inventory, broken, labelled, state, whole, leads),
        cores=_units(capacity.get(names.cores, allocatable.get(names.cores))),
        kept=SCALE_DOWN_GUARD in _map(metadata.get("annotations")),
        gpu_operator=labels.get(_OPERATOR_LABEL) == "true",
        device_list=_device_list(_map(metadata.get("annotations")).get(DEVICE_LIST)),
    )


def _device_list(text: object) -> DeviceList | None:
    """Return how devices are handed over; None if that is not told, or cannot be read."""
    try:
        return decode_device_list(text) if isinstance(text, str) else None
    except AnnotationError:
        return None


def _units(quantity: object) -> int | None:
    if not isinstance(quantity, str | int | float):
        return None
    try:
        return to_units(quantity)
    except QuantityError:
        return None


def read_pods(pods: Iterable[Fields], names: Names, now: float, asks: str = "") -> facts.PodsSeen:
    """Return the facts about the pods that have not ended. asks: the namespace of placeholders."""
    gpu: list[facts.PodSeen] = []
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
    plugins: list[facts.PluginPodSeen] = []
    for pod in pods:
        images = [str(container.get("image")) for container in _containers(pod)]
        spec = _map(pod.get("spec"))
        node = str(spec.get("nodeName") or "")
        if spec.get("schedulerName") == SCHEDULER:
            placeholders.append(_name(pod))
            gated += [_name(pod)] if spec.get("schedulingGates") else []
        elif asks and _map(pod.get("metadata")).get("namespace") == asks:
            beside.append(_name(pod))
        labels = _map(_map(pod.get("metadata")).get("labels"))
        if _is_of_control_plane(pod) and labels.get("app") == _PLUGIN:
            plugins.append(_plugin_pod(pod, now))
        if _is_rewritten(spec):
            rewritten.append(_name(pod))
        static = _MIRROR in _map(_map(pod.get("metadata")).get("annotations"))
        if _is_of_control_plane(pod):
            made_by = node if static else ""
            tags |= {
                (tag, made_by)
                for name, tag in map(_name_and_tag, images)
                if name == _SCHEDULER and tag
            }
        if _is_original(pod, images):
            sure = _is_of_control_plane(pod) and not static
            (originals if sure else alike).append(_name(pod))
        asked = _resources(pod)
        if names.resource in asked:
            gpu += _read_pod(pod, names, now)
        elif names.count in asked or names.cores in asked:
            mistake = mistake_of(PODS.decode(json.dumps(pod).encode()), names, "GiB")
            counting += [(_name(pod), mistake)] if mistake else []
            cores_alone += [(_name(pod), node)] if mistake and names.cores in asked else []
        if any(map(is_whole, asked)):
            whole.append((_name(pod), node))
    releases = sorted(tags)
    return facts.PodsSeen(
        gpu=tuple(gpu),
        originals=tuple(originals),
        schedulers=tuple(tag for tag, node in releases if not node),
        alike=tuple(alike),
        counting=tuple(counting),
        cores_alone=tuple(cores_alone),
        whole=tuple(whole),
        static=tuple((tag, node) for tag, node in releases if node),
        placeholders=tuple(placeholders),
        gated=tuple(gated),
        beside=tuple(beside),
        rewritten=tuple(rewritten),
        plugins=tuple(plugins),
    )


def _plugin_pod(pod: Fields, now: float) -> facts.PluginPodSeen:
    """Return a pod of our device plug-in."""
    spec, status = _map(pod.get("spec")), _map(pod.get("status"))
    waiting = [
        str(_map(_map(container.get("state")).get("waiting")).get("reason") or "")
        for container in _maps(status.get("containerStatuses"))
    ]
    created = seconds(_map(pod.get("metadata")).get("creationTimestamp"))
    return facts.PluginPodSeen(
        name=_name(pod),
        node=str(spec.get("nodeName") or ""),
        runtime_class=str(spec.get("runtimeClassName") or ""),
        waiting=next(filter(None, waiting), ""),
        age=now - created if created else 0.0,
    )


def _is_rewritten(spec: Fields) -> bool:
    """Return whether its claim is one that is made in the place of GPU memory."""
    return any(
        claim.get("name") == POD_CLAIM
        and sized_template("", str(claim.get("resourceClaimTemplateName"))) is not None
        for claim in _maps(spec.get("resourceClaims"))
    )


def _read_pod(pod: Fields, names: Names, now: float) -> Iterable[facts.PodSeen]:
    """Yield the pod, unless it asks for 0: it holds nothing, so nothing can be wrong with it."""
    metadata, spec = _map(pod.get("metadata")), _map(pod.get("spec"))
    conditions = _maps(_map(pod.get("status")).get("conditions"))
    condition = next((each for each in conditions if each.get("type") == "PodScheduled"), {})
    bound = condition.get("status") == "True"
    observed, broken, out_of_place = None, "", ""
    try:
        decoded = PODS.decode(json.dumps(pod).encode())
        observed = observe_pod(decoded, names)
        out_of_place = misplaced(decoded, observed.request, names)
    except WireError as error:
        broken = str(error)
    if observed and not observed.request.devices:
        return ()
    notes = _map(metadata.get("annotations"))
    created = seconds(metadata.get("creationTimestamp"))
    seen = facts.PodSeen(
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
        misplaced=out_of_place,
        assigned=observed is not None and observed.assigned,
        request=observed.request if observed else Request(),
        runtime_class=str(spec.get("runtimeClassName") or ""),
        # The map is of containers: there is none if init containers alone ask.
        mapped=names.allocation in notes or not (observed and observed.request.containers),
    )
    return (seen,)


def _is_original(pod: Fields, images: Iterable[str]) -> bool:
    named = _name(pod).partition("/")[2].startswith(ORIGINAL)
    running = _map(pod.get("status")).get("phase") == "Running"
    return running and (named or any(ORIGINAL in image for image in images))


def _is_of_control_plane(pod: Fields) -> bool:
    """Return whether those who run the cluster have made it: a tenant can name a pod, and its
    image, as he likes.
    """
    return _map(pod.get("metadata")).get("namespace") == CONTROL_PLANE


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


def _name_and_tag(image: str) -> tuple[str, str]:
    """Return the last part of an image's name, and its tag: ("kube-scheduler", "v1.30.2") of
    "registry.k8s.io/kube-scheduler:v1.30.2".
    """
    name, _, tag = image.rpartition("/")[2].partition("@")[0].partition(":")
    return name, tag


def read_lease(lease: Fields) -> facts.LeaseSeen:
    """Return the Lease."""
    spec = _map(lease.get("spec"))
    duration = spec.get("leaseDurationSeconds")
    return facts.LeaseSeen(
        namespace=str(_map(lease.get("metadata")).get("namespace")),
        holder=str(spec.get("holderIdentity") or ""),
        duration=float(duration) if isinstance(duration, int) else 0.0,
        renewed=seconds(spec.get("renewTime")),
        acquired=seconds(spec.get("acquireTime")),
    )


def read_closed(config_map: Fields, names: Names) -> facts.ClosedSeen | None:
    """Return the devices that the ConfigMap closes; None if it is about something else."""
    name, data = str(_map(config_map.get("metadata")).get("name")), _map(config_map.get("data"))
    if not name.startswith(names.unhealthy):
        return None
    node = name.removeprefix(names.unhealthy)
    if not isinstance(data.get(UNHEALTHY_KEY), str):
        return facts.ClosedSeen(node, broken=f"no text under the key {UNHEALTHY_KEY}")
    try:
        return facts.ClosedSeen(node, decode_unhealthy(data))
    except AnnotationError as error:
        return facts.ClosedSeen(node, broken=str(error))


def seconds(stamp: object) -> float:
    """Return seconds since the epoch of a timestamp as the API writes it; 0 if it is none."""
    try:
        return datetime.fromisoformat(stamp).timestamp() if isinstance(stamp, str) else 0.0
    except ValueError:
        return 0.0


def read_classes(classes: Iterable[Fields]) -> dict[str, tuple[str, ...]]:
    """Return the expressions that a device has to meet, by the names that our class may have."""
    expressions = {}
    for device_class in classes:
        name = str(_map(device_class.get("metadata")).get("name"))
        if name in {CLASS, CLASS_ASIDE}:
            every = _maps(_map(device_class.get("spec")).get("selectors"))
            expressions[name] = tuple(str(_map(one.get("cel")).get("expression")) for one in every)
    return expressions


def read_fences(
    policies: Iterable[Fields], bindings: Iterable[Fields]
) -> Iterator[facts.FenceSeen]:
    """Yield the policies that look at allocations."""
    bound: dict[str, list[Fields]] = {}
    for binding in bindings:
        spec = _map(binding.get("spec"))
        bound.setdefault(str(spec.get("policyName")), []).append(spec)
    for policy in policies:
        spec, name = _map(policy.get("spec")), str(_map(policy.get("metadata")).get("name"))
        matches = _map(spec.get("matchConstraints"))
        rules = [
            rule
            for rule in _maps(matches.get("resourceRules"))
            if {"resource.k8s.io", "*"}.intersection(_texts(rule.get("apiGroups")))
            and _GUARDED.intersection(_texts(rule.get("resources")))
        ]
        if not rules:
            continue
        text = " ".join(
            str(validation.get("expression")) for validation in _maps(spec.get("validations"))
        )
        gaps = (
            [] if spec.get("failurePolicy", "Fail") == "Fail" else ["its failurePolicy is not Fail"]
        )
        if not any({"UPDATE", "*"}.intersection(_texts(rule.get("operations"))) for rule in rules):
            gaps.append("it does not look at UPDATE")
        if any(_map(matches.get(key)) for key in ("namespaceSelector", "objectSelector")):
            gaps.append("it looks at some namespaces or objects alone")
        faults = [
            "its binding does not Deny"
            if "Deny" not in _texts(binding.get("validationActions"))
            else "its binding is for some namespaces or objects alone"
            if binding.get("matchResources")
            else ""
            for binding in bound.get(name, [])
        ] or ["no ValidatingAdmissionPolicyBinding names it"]
        # One binding without a fault is enough.
        gaps += [] if "" in faults else faults[:1]
        yield facts.FenceSeen(name, frozenset(_DRIVER.findall(text)), tuple(gaps))


def read_drivers(slices: Iterable[Fields]) -> dict[str, facts.DriverSeen]:
    """Return the drivers, by name."""
    read: list[SliceSpec] = []
    whole: list[ResourceSlice] = []
    for item in slices:
        try:
            decoded = RESOURCE_SLICES.decode(json.dumps(item).encode())
        except WireError:
            continue  # its devices are given out by nobody
        whole.append(decoded)
        read += [decoded.spec] if decoded.spec else []
    cards = cards_of(whole)
    nodes: dict[str, dict[str, set[str]]] = {spec.driver or "": {} for spec in read}
    unfit: dict[str, Counter[str]] = {driver: Counter() for driver in nodes}
    for spec in read:
        driver, pool = spec.driver or "", (spec.pool and spec.pool.name) or ""
        for device in spec.devices or ():
            card = cards.get(DeviceKey(driver, pool, device.name or ""))
            if card is not None and card.shared and card.open:
                nodes[driver].setdefault(card.node, set()).add(card.uuid)
            else:
                unfit[driver][_lack(driver, device)] += 1
    return {
        driver: facts.DriverSeen(
            {name: frozenset(uuids) for name, uuids in by_node.items()}, unfit[driver]
        )
        for driver, by_node in nodes.items()
    }


def _lack(driver: str, device: Device) -> str:
    """Return what keeps the device from being shared by memory."""
    if MEMORY not in (device.capacity or {}):
        return f"no capacity {MEMORY}"
    if not {UUID, f"{driver}/{UUID}"} & (device.attributes or {}).keys():
        return f"no attribute {UUID}"
    if device.allow_multiple_allocations is not True:
        return "no allowMultipleAllocations"
    return "a taint, counters, conditions, the uuid of another one, or a pool that is not whole"


def read_unused(claims: Iterable[Fields]) -> Iterator[tuple[str, float]]:
    """Yield the claims of our class that have devices, and that nobody has reserved."""
    for claim in claims:
        status, metadata = _map(claim.get("status")), _map(claim.get("metadata"))
        allocation = _map(status.get("allocation"))
        if not allocation or status.get("reservedFor"):
            continue
        try:
            if claim_request(RESOURCE_CLAIMS.decode(json.dumps(claim).encode()), CLASS) is None:
                continue
        except MessageError:
            pass  # it has devices all the same
        name = f"{metadata.get('namespace')}/{metadata.get('name')}"
        yield name, seconds(allocation.get("allocationTimestamp"))


def _map(value: object) -> Fields:
    return value if isinstance(value, dict) else {}


def _maps(value: object) -> Iterator[Fields]:
    return (_map(item) for item in (value if isinstance(value, list) else ()))


def _texts(value: object) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, list) else ()
