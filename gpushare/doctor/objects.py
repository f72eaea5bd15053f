"""Read objects of the API server from JSON into the records of facts.py.

The ledger's codecs read the devices of nodes and the requests of pods, so that doctor and extender
agree. Pure.

Tested in `tests/unit/doctor/test_parts.py` and `tests/unit/doctor/test_claims.py`.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from gpushare.core.model import NodeSpec, Reason, Request
from gpushare.doctor import facts
from gpushare.doctor.checks.claims import CLASS
from gpushare.errors import AnnotationError, QuantityError, WireError
from gpushare.wire.annotations import SCALE_DOWN_GUARD, Names
from gpushare.wire.demands import node_state
from gpushare.wire.device_list import DEVICE_LIST, DeviceList, decode_device_list
from gpushare.wire.inventory import MAX_SHARERS, UNHEALTHY_KEY, decode_inventory, decode_unhealthy
from gpushare.wire.kueue import CONTROLLER
from gpushare.wire.near_misses import nearest
from gpushare.wire.nodes import node_spec
from gpushare.wire.objects import NODES, PODS, seconds_of
from gpushare.wire.placeholders import HOSTNAME, SCHEDULER
from gpushare.wire.pods import observe_pod
from gpushare.wire.quantity import to_units
from gpushare.wire.request_mistakes import (
    SEES_NONE,
    VISIBLE,
    is_whole,
    misplaced,
    mistake_of,
    without_request,
)

Fields = Mapping[str, Any]

_SCHEDULERS_OF_OTHERS = frozenset({"kai-scheduler", "hami-scheduler", "volcano", "koord-scheduler"})

ORIGINAL = "gpushare-schd-extender"
"""The name of the original's Deployment, and a part of the image's name."""

CONTROL_PLANE = "kube-system"
"""The namespace of the control plane, where no tenant may create pods."""

_SCHEDULER = "kube-scheduler"

_ROLES = ("node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master")
"""Labels of nodes of the control plane. The admission plug-in NodeRestriction refuses such labels
from a kubelet.
"""

_MIRROR = "kubernetes.io/config.mirror"
"""The annotation of static pods, which a kubelet may make in any namespace."""


_PLUGIN = "gpushare-device-plugin"
"""The label `app` of our device plug-in's pods."""
_OPERATOR_LABEL = "nvidia.com/gpu.deploy.device-plugin"


def read_node(node: Fields, names: Names, unit: str) -> facts.ListedNode:
    """Return the node; one that cannot be read at all is closed."""
    metadata, status = mapping(node.get("metadata")), mapping(node.get("status"))
    name = str(metadata.get("name"))
    labels = mapping(metadata.get("labels"))
    labelled, leads = labels.get("gpushare") == "true", any(role in labels for role in _ROLES)
    capacity, allocatable = mapping(status.get("capacity")), mapping(status.get("allocatable"))
    notes = mapping(metadata.get("annotations"))
    text = notes.get(names.inventory)
    inventory, broken = None, ""
    if isinstance(text, str):
        try:
            inventory = decode_inventory(text)
        except AnnotationError as error:
            broken = str(error)
    state = None
    try:
        decoded = NODES.decode(json.dumps(node).encode())
        spec, state = node_spec(decoded, names, unit), node_state(decoded)
    except WireError:
        spec = NodeSpec(name, closed=Reason.BROKEN_CAPACITY)
    total = _units(capacity.get(names.resource, allocatable.get(names.resource)))
    usable = _units(allocatable.get(names.resource))
    whole = tuple(
        resource for resource in capacity if is_whole(resource) and _units(capacity[resource])
    )
    misnamed = [f"label {key}" for key in labels if nearest(key, (MAX_SHARERS,))]
    misnamed += [f"annotation {key}" for key in notes if key == MAX_SHARERS]
    return facts.ListedNode(
        *(name, spec, total, usable, inventory, broken, labelled, state, whole, leads),
        cores=_units(capacity.get(names.cores, allocatable.get(names.cores))),
        is_kept=SCALE_DOWN_GUARD in notes,
        misnamed=misnamed[0] if misnamed else "",
        gpu_operator=labels.get(_OPERATOR_LABEL) == "true",
        device_list=_device_list(notes.get(DEVICE_LIST)),
    )


def _device_list(text: object) -> DeviceList | None:
    """Return the way to hand devices over; None if unknown or unreadable."""
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


def read_pods(pods: Iterable[Fields], names: Names, now: float, asks: str = "") -> facts.ListedPods:
    """Return the facts about the pods that have not ended. asks: the namespace of placeholders."""
    found = facts.ListedPods()
    # (tag, the node of a static pod)
    tags: set[tuple[str, str]] = set()
    for pod in pods:
        images = [str(container.get("image")) for container in _containers(pod)]
        spec = mapping(pod.get("spec"))
        node = str(spec.get("nodeName") or "")
        if spec.get("schedulerName") == SCHEDULER:
            found.placeholders.append(name_of(pod))
            found.gated += [name_of(pod)] if spec.get("schedulingGates") else []
        elif asks and mapping(pod.get("metadata")).get("namespace") == asks:
            found.neighbours.append(name_of(pod))
        if spec.get("resourceClaims"):
            found.claiming.append(_claiming_pod(pod))
        labels = mapping(mapping(pod.get("metadata")).get("labels"))
        if _is_of_control_plane(pod) and labels.get("app") == _PLUGIN:
            found.plugins.append(_plugin_pod(pod, now))
        static = _MIRROR in mapping(mapping(pod.get("metadata")).get("annotations"))
        if _is_of_control_plane(pod):
            made_by = node if static else ""
            tags |= {
                (tag, made_by)
                for name, tag in map(_name_and_tag, images)
                if name == _SCHEDULER and tag
            }
        if _is_original(pod, images):
            sure = _is_of_control_plane(pod) and not static
            (found.originals if sure else found.alike).append(name_of(pod))
        resources = _resources(pod)
        if names.resource in resources:
            found.gpu += _read_pod(pod, names, now)
        elif not resources.isdisjoint({names.count, names.cores, names.share}):
            mistake = mistake_of(PODS.decode(json.dumps(pod).encode()), names, "GiB")
            found.without_memory += [(name_of(pod), mistake)] if mistake else []
            if mistake and names.cores in resources:
                found.cores_alone.append((name_of(pod), node))
        else:
            found.strays += _strays(pod, resources, names)
        if any(map(is_whole, resources)):
            found.whole.append((name_of(pod), node))
    found.schedulers = [tag for tag, node in sorted(tags) if not node]
    found.static = [(tag, node) for tag, node in sorted(tags) if node]
    return found


def _strays(pod: Fields, resources: set[str], names: Names) -> Iterable[facts.StrayPod]:
    """Return (the pod,) if it seems to want a part of a card; () for any other pod.

    Pods of DaemonSets, of kube-system and of other products' schedulers see to devices themselves,
    and a pod on a node has whole cards by another device plug-in.
    """
    metadata, spec = mapping(pod.get("metadata")), mapping(pod.get("spec"))
    owners = [owner.get("kind") for owner in mappings(metadata.get("ownerReferences"))]
    on_node = bool(spec.get("nodeName"))
    has_own_scheduler = spec.get("schedulerName") in _SCHEDULERS_OF_OTHERS
    if _is_of_control_plane(pod) or "DaemonSet" in owners or (on_node and has_own_scheduler):
        return ()
    extended = frozenset(name for name in resources if "/" in name)
    annotations = mapping(metadata.get("annotations"))
    mistake = without_request(frozenset() if on_node else extended, annotations, names)
    if mistake:
        return (facts.StrayPod(name_of(pod), mistake, extended),)
    if extended or spec.get("resourceClaims"):
        return ()
    for container in _containers(pod):
        for variable in mappings(container.get("env")):
            value = variable.get("value")
            if variable.get("name") == VISIBLE[0] and value and value not in SEES_NONE:
                mistake = (
                    f"container {container.get('name')} sets {VISIBLE[0]} and asks for no"
                    f" {names.resource}: it sees cards that nobody counts for it, where NVIDIA's"
                    " toolkit accepts the variable"
                )
                return (facts.StrayPod(name_of(pod), mistake),)
    return ()


def _plugin_pod(pod: Fields, now: float) -> facts.PluginPod:
    spec, status = mapping(pod.get("spec")), mapping(pod.get("status"))
    waiting_reasons = [
        str(mapping(mapping(container.get("state")).get("waiting")).get("reason") or "")
        for container in mappings(status.get("containerStatuses"))
    ]
    created = seconds_of(str(mapping(pod.get("metadata")).get("creationTimestamp")))
    return facts.PluginPod(
        name=name_of(pod),
        node=str(spec.get("nodeName") or ""),
        runtime_class=str(spec.get("runtimeClassName") or ""),
        waiting_reason=next(filter(None, waiting_reasons), ""),
        age=now - created if created else 0.0,
    )


def _claiming_pod(pod: Fields) -> facts.ClaimingPod:
    spec, name = mapping(pod.get("spec")), name_of(pod)
    references = [*mappings(spec.get("resourceClaims"))]
    references += mappings(mapping(pod.get("status")).get("resourceClaimStatuses"))
    claim_names = [reference.get("resourceClaimName") for reference in references]
    namespace = name.partition("/")[0]
    claims = tuple(f"{namespace}/{claim}" for claim in claim_names if claim)
    return facts.ClaimingPod(name, str(spec.get("schedulerName") or "default-scheduler"), claims)


def _read_pod(pod: Fields, names: Names, now: float) -> Iterable[facts.ListedPod]:
    """Return (the pod,), or () for a pod that asks for 0 units and so holds nothing."""
    metadata, spec = mapping(pod.get("metadata")), mapping(pod.get("spec"))
    conditions = mappings(mapping(pod.get("status")).get("conditions"))
    condition = next((item for item in conditions if item.get("type") == "PodScheduled"), {})
    is_bound = condition.get("status") == "True"
    observed, broken, out_of_place = None, "", ""
    try:
        decoded = PODS.decode(json.dumps(pod).encode())
        observed = observe_pod(decoded, names)
        out_of_place = misplaced(decoded, observed.request, names)
    except WireError as error:
        broken = str(error)
    if observed and not observed.request.devices:
        return ()
    notes = mapping(metadata.get("annotations"))
    created = seconds_of(str(metadata.get("creationTimestamp")))
    listed = facts.ListedPod(
        name=name_of(pod),
        node=str(spec.get("nodeName") or ""),
        scheduler=str(spec.get("schedulerName") or "default-scheduler"),
        age=now - created if created else 0.0,
        gated=bool(spec.get("schedulingGates")),
        reason=None if is_bound or not condition else str(condition.get("reason") or ""),
        message="" if is_bound else str(condition.get("message") or ""),
        bound_at=seconds_of(str(condition.get("lastTransitionTime"))) if is_bound else 0.0,
        broken=broken,
        placement=observed.placement if observed else None,
        uuids=observed.uuids if observed else (),
        assumed=names.assume_time in notes,
        misplaced=out_of_place,
        assigned=observed is not None and observed.assigned,
        request=observed.request if observed else Request(),
        runtime_class=str(spec.get("runtimeClassName") or ""),
        # The map names no init containers.
        mapped=names.allocation in notes or not (observed and observed.request.containers),
    )
    return (listed,)


def _is_original(pod: Fields, images: Iterable[str]) -> bool:
    is_named = name_of(pod).partition("/")[2].startswith(ORIGINAL)
    running = mapping(pod.get("status")).get("phase") == "Running"
    return running and (is_named or any(ORIGINAL in image for image in images))


def _is_of_control_plane(pod: Fields) -> bool:
    """Return whether an administrator has created the pod, which names and images do not prove."""
    return mapping(pod.get("metadata")).get("namespace") == CONTROL_PLANE


def _resources(pod: Fields) -> set[str]:
    return {
        resource
        for container in _containers(pod)
        for resources in (mapping(container.get("resources")),)
        for kind in ("limits", "requests")
        for resource in mapping(resources.get(kind))
    }


def _containers(pod: Fields) -> Iterator[Fields]:
    spec = mapping(pod.get("spec"))
    for key in ("containers", "initContainers"):
        yield from mappings(spec.get(key))


def name_of(item: Fields) -> str:
    """Return namespace/name of an object."""
    metadata = mapping(item.get("metadata"))
    return f"{metadata.get('namespace')}/{metadata.get('name')}"


def _name_and_tag(image: str) -> tuple[str, str]:
    """Return the last part of the name and the tag of an image: ("kube-scheduler", "v1.30.2") for
    "registry.k8s.io/kube-scheduler:v1.30.2".
    """
    name, _, tag = image.rpartition("/")[2].partition("@")[0].partition(":")
    return name, tag


def read_lease(lease: Fields) -> facts.ListedLease:
    """Return the Lease."""
    spec = mapping(lease.get("spec"))
    duration = spec.get("leaseDurationSeconds")
    return facts.ListedLease(
        namespace=str(mapping(lease.get("metadata")).get("namespace")),
        holder=str(spec.get("holderIdentity") or ""),
        duration=float(duration) if isinstance(duration, int) else 0.0,
        renewed=seconds_of(str(spec.get("renewTime"))),
        acquired=seconds_of(str(spec.get("acquireTime"))),
    )


def read_closed(config_map: Fields, names: Names) -> facts.UnhealthyConfigMap | None:
    """Return the devices that the ConfigMap closes; None for a ConfigMap of another purpose."""
    name, data = (
        str(mapping(config_map.get("metadata")).get("name")),
        mapping(config_map.get("data")),
    )
    if not name.startswith(names.unhealthy):
        return None
    node = name.removeprefix(names.unhealthy)
    if not isinstance(data.get(UNHEALTHY_KEY), str):
        return facts.UnhealthyConfigMap(node, broken=f"no text under the key {UNHEALTHY_KEY}")
    try:
        return facts.UnhealthyConfigMap(node, decode_unhealthy(data))
    except AnnotationError as error:
        return facts.UnhealthyConfigMap(node, broken=str(error))


def mapping(value: object) -> Fields:
    """Return the value if it is a JSON object, and an empty object otherwise."""
    return value if isinstance(value, dict) else {}


def mappings(value: object) -> Iterator[Fields]:
    """Yield the items of a JSON list as objects; nothing for any other value."""
    return (mapping(item) for item in (value if isinstance(value, list) else ()))


def read_kueue(
    checks: Iterable[Fields], flavors: Iterable[Fields] = (), topologies: Iterable[Fields] = ()
) -> facts.ListedKueue:
    """Return the facts about these AdmissionChecks, ResourceFlavors and Topologies."""
    own = [item for item in checks if mapping(item.get("spec")).get("controllerName") == CONTROLLER]
    active = {
        _name_of(item): condition
        for item in own
        for condition in mappings(mapping(item.get("status")).get("conditions"))
        if condition.get("type") == "Active"
    }
    by_host = {
        _name_of(item)
        for item in topologies
        if (levels := mapping(item.get("spec")).get("levels"))
        and mapping(levels[-1]).get("nodeLabel") == HOSTNAME
    }
    return facts.ListedKueue(
        tuple(map(_name_of, own)),
        by_host=tuple(
            _name_of(item)
            for item in flavors
            if mapping(item.get("spec")).get("topologyName") in by_host
        ),
        inactive=tuple(
            f"{name} ({active.get(name, {}).get('message') or 'nobody has written the condition'})"
            for name in map(_name_of, own)
            if active.get(name, {}).get("status") != "True"
        ),
    )


def _name_of(item: Fields) -> str:
    return str(mapping(item.get("metadata")).get("name"))


LEFT_OVER = frozenset(
    {
        "validatingadmissionpolicies/gpushare-claims",
        "validatingadmissionpolicybindings/gpushare-claims",
        "validatingadmissionpolicies/gpushare-claims-pods",
        "validatingadmissionpolicybindings/gpushare-claims-pods",
        "mutatingadmissionpolicies/gpushare-claims-pods",
        "mutatingadmissionpolicybindings/gpushare-claims-pods",
        "mutatingadmissionpolicies/gpushare-claims-protect",
        "mutatingadmissionpolicybindings/gpushare-claims-protect",
        "deviceclasses/settings.gpushare.io",
    }
)
"""Objects of earlier releases, when the extender allocated claims, as kind/name."""


def read_selectors(classes: Iterable[Fields]) -> tuple[str, ...] | None:
    """Return the CEL expressions of our DeviceClass; None if there is no such class."""
    for item in classes:
        if mapping(item.get("metadata")).get("name") == CLASS:
            selectors = mappings(mapping(item.get("spec")).get("selectors"))
            return tuple(str(mapping(one.get("cel")).get("expression")) for one in selectors)
    return None


def read_left_over(kind: str, items: Iterable[Fields]) -> Iterator[str]:
    """Yield the left-over objects of this kind, as kind/name."""
    names = (f"{kind}/{mapping(item.get('metadata')).get('name')}" for item in items)
    return (name for name in names if name in LEFT_OVER)


def read_drivers(slices: Iterable[Fields]) -> dict[str, facts.ListedDriver]:
    """Return the drivers with slices of single nodes, by name."""
    nodes: dict[str, dict[str, set[str]]] = {}
    devices: dict[str, list[bool]] = {}
    for item in slices:
        spec = mapping(item.get("spec"))
        driver, node = str(spec.get("driver")), spec.get("nodeName")
        uuids = nodes.setdefault(driver, {}).setdefault(str(node), set()) if node else set()
        for device in mappings(spec.get("devices")):
            shared = device.get("allowMultipleAllocations") is True
            devices.setdefault(driver, []).append(shared)
            attributes = mapping(device.get("attributes"))
            uuid = attributes.get("uuid") or attributes.get(f"{driver}/uuid")
            uuids.update(filter(None, [mapping(uuid).get("string")]))
    return {
        driver: facts.ListedDriver(
            {node: frozenset(uuids) for node, uuids in nodes.get(driver, {}).items()},
            len(shared),
            sum(shared),
        )
        for driver, shared in devices.items()
    }


def read_claims(claims: Iterable[Fields]) -> dict[str, facts.ListedClaim]:
    """Return the device classes and drivers of each claim, by namespace/name."""
    by_name = {}
    for claim in claims:
        devices = mapping(mapping(claim.get("spec")).get("devices"))
        requests = [*mappings(devices.get("requests"))]
        exact = [mapping(request.get("exactly")) for request in requests]
        exact += [one for request in requests for one in mappings(request.get("firstAvailable"))]
        allocation = mapping(mapping(claim.get("status")).get("allocation"))
        results = mappings(mapping(allocation.get("devices")).get("results"))
        by_name[name_of(claim)] = facts.ListedClaim(
            frozenset(str(one["deviceClassName"]) for one in exact if "deviceClassName" in one),
            frozenset(str(result.get("driver")) for result in results),
        )
    return by_name
