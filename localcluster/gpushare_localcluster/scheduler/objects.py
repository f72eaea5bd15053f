"""Pods and nodes for scheduling, from raw API objects, and the terms that select them.

Knows the fields of core/v1 Pod and Node that matter to scheduling, and nothing of queues or
plugins. Must not change the raw object, which extenders get unchanged. Terms are plain dicts of the
API; the rules are in `gpushare.core.selectors`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from gpushare.core.selectors import NodeSelectorTerm, Taint, Toleration
from gpushare.wire.label_selectors import requirement_of, selects
from gpushare.wire.quantity import peak, to_bytes, to_milli

Json = dict[str, Any]
Amounts = Mapping[str, int]

CPU = "cpu"
MEMORY = "memory"
PODS = "pods"
# kube-scheduler scores a container without requests as if it requested this much.
DEFAULT_MILLI_CPU = 100
DEFAULT_MEMORY = 200 * 1024 * 1024
_MISSING = {CPU: DEFAULT_MILLI_CPU, MEMORY: DEFAULT_MEMORY}


@dataclass(frozen=True)
class HostPort:
    """A host port of a container."""

    address: str
    protocol: str
    port: int


@dataclass(frozen=True)
class PodView:
    """A pod for scheduling. Amounts: cpu in millicores, others in whole units."""

    uid: str
    namespace: str
    name: str
    node_name: str
    scheduler_name: str
    priority: int
    requests: Amounts
    scored: Amounts
    node_selector: Mapping[str, str]
    affinity_terms: tuple[Json, ...] | None
    tolerations: tuple[Toleration, ...]
    host_ports: tuple[HostPort, ...]
    deleting: bool
    ended: bool
    nominated_node: str
    resource_names: frozenset[str]
    raw: Json

    @property
    def key(self) -> str:
        """`namespace/name`, as kube-scheduler prints pods."""
        return f"{self.namespace}/{self.name}"

    @property
    def path(self) -> str:
        """The path on the API server."""
        return f"/api/v1/namespaces/{self.namespace}/pods/{self.name}"

    @property
    def spec(self) -> Json:
        """The spec in the API object."""
        return self.raw.get("spec") or {}

    @cached_property
    def labels(self) -> Mapping[str, str]:
        """The labels of the pod."""
        return (self.raw.get("metadata") or {}).get("labels") or {}

    @cached_property
    def affine(self) -> bool:
        """Whether the pod has pod affinity or anti-affinity."""
        affinity = self.spec.get("affinity") or {}
        return bool(affinity.get("podAffinity") or affinity.get("podAntiAffinity"))

    @property
    def preferred_nodes(self) -> tuple[Json, ...]:
        """The terms of the preferred node affinity, with weights."""
        affinity = (self.spec.get("affinity") or {}).get("nodeAffinity") or {}
        return tuple(affinity.get("preferredDuringSchedulingIgnoredDuringExecution") or ())

    @property
    def images(self) -> tuple[str, ...]:
        """The image of each container, of the init containers first."""
        return tuple(str(container.get("image") or "") for container in _containers(self.spec))


@dataclass(frozen=True)
class NodeView:
    """A node for scheduling. Amounts as in PodView."""

    name: str
    labels: Mapping[str, str]
    taints: tuple[Taint, ...]
    unschedulable: bool
    allocatable: Amounts
    raw: Json

    @cached_property
    def images(self) -> Mapping[str, int]:
        """The bytes of each image on the node, by each name of the image."""
        images = (self.raw.get("status") or {}).get("images") or ()
        return {
            str(name): int(image.get("sizeBytes") or 0)
            for image in images
            for name in image.get("names") or ()
        }


def read_pod(raw: Json) -> PodView:
    """Return the pod in an API object. Raises QuantityError for a malformed request."""
    meta: Json = raw.get("metadata") or {}
    spec: Json = raw.get("spec") or {}
    status: Json = raw.get("status") or {}
    return PodView(
        uid=str(meta.get("uid", "")),
        namespace=str(meta.get("namespace", "default")),
        name=str(meta.get("name", "")),
        node_name=str(spec.get("nodeName") or ""),
        scheduler_name=str(spec.get("schedulerName") or "default-scheduler"),
        priority=int(spec.get("priority") or 0),
        requests=pod_requests(spec),
        scored=pod_requests(spec, _MISSING),
        node_selector=spec.get("nodeSelector") or {},
        affinity_terms=_required_terms(spec),
        tolerations=tuple(_toleration(item) for item in spec.get("tolerations") or ()),
        host_ports=_host_ports(spec),
        deleting=bool(meta.get("deletionTimestamp")),
        ended=status.get("phase") in ("Succeeded", "Failed"),
        nominated_node=str(status.get("nominatedNodeName") or ""),
        resource_names=_resource_names(spec),
        raw=raw,
    )


def read_node(raw: Json) -> NodeView:
    """Return the node in an API object. Raises QuantityError for a malformed amount."""
    meta: Json = raw.get("metadata") or {}
    spec: Json = raw.get("spec") or {}
    status: Json = raw.get("status") or {}
    return NodeView(
        name=str(meta.get("name", "")),
        labels=meta.get("labels") or {},
        taints=tuple(_taint(item) for item in spec.get("taints") or ()),
        unschedulable=bool(spec.get("unschedulable")),
        allocatable=read_amounts(status.get("allocatable") or {}),
        raw=raw,
    )


def read_amounts(quantities: Mapping[str, object]) -> dict[str, int]:
    """Return the quantities as integers, rounded up: cpu in millicores, others in units."""
    return {name: _amount(name, value) for name, value in quantities.items()}


def pod_requests(spec: Json, missing: Amounts | None = None) -> dict[str, int]:
    """Return the requests of a pod, by Kubernetes' formula (`gpushare.wire.quantity`) plus
    overhead.

    missing: amounts for containers without a request.
    """
    none = missing or {}
    regular = [
        {**none, **_container_requests(container)} for container in spec.get("containers") or ()
    ]
    inits = [
        ({**none, **_container_requests(container)}, container.get("restartPolicy"))
        for container in spec.get("initContainers") or ()
    ]
    overhead = read_amounts(spec.get("overhead") or {})
    all_amounts = (*regular, *(amounts for amounts, _ in inits), overhead)
    return {
        name: overhead.get(name, 0)
        + peak(
            [amounts.get(name, 0) for amounts in regular],
            [(amounts.get(name, 0), policy) for amounts, policy in inits],
        )
        for name in dict.fromkeys(name for amounts in all_amounts for name in amounts)
    }


def add(one: Amounts, other: Amounts) -> dict[str, int]:
    """Return the sum by resource name."""
    return {name: one.get(name, 0) + other.get(name, 0) for name in one.keys() | other.keys()}


def subtract(one: Amounts, other: Amounts) -> dict[str, int]:
    """Return the difference by resource name."""
    return {name: one.get(name, 0) - other.get(name, 0) for name in one.keys() | other.keys()}


def _amount(name: str, value: object) -> int:
    return to_milli(str(value)) if name == CPU else to_bytes(str(value))


def _container_requests(container: Json) -> dict[str, int]:
    return read_amounts((container.get("resources") or {}).get("requests") or {})


def _containers(spec: Json) -> list[Json]:
    return [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]


def _host_ports(spec: Json) -> tuple[HostPort, ...]:
    """Return the host ports of all containers and sidecars."""
    return tuple(
        HostPort(
            str(port.get("hostIP") or "0.0.0.0"),  # noqa: S104 -- the meaning of an absent hostIP, not a socket
            str(port.get("protocol") or "TCP"),
            int(port["hostPort"]),
        )
        for container in (
            *(c for c in spec.get("initContainers") or () if c.get("restartPolicy") == "Always"),
            *(spec.get("containers") or ()),
        )
        for port in container.get("ports") or ()
        if port.get("hostPort")
    )


def _resource_names(spec: Json) -> frozenset[str]:
    """Return every name in requests or limits of containers and init containers, even with "0"."""
    names: set[str] = set()
    for container in _containers(spec):
        resources = container.get("resources") or {}
        names |= set(resources.get("requests") or {}) | set(resources.get("limits") or {})
    return frozenset(names)


def _required_terms(spec: Json) -> tuple[Json, ...] | None:
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    return None if required is None else tuple(required.get("nodeSelectorTerms") or ())


def _toleration(item: Json) -> Toleration:
    return Toleration(
        key=str(item.get("key") or ""),
        operator=str(item.get("operator") or "Equal"),
        value=str(item.get("value") or ""),
        effect=str(item.get("effect") or ""),
    )


def _taint(item: Json) -> Taint:
    return Taint(
        key=str(item.get("key") or ""),
        value=str(item.get("value") or ""),
        effect=str(item.get("effect") or ""),
    )


NamespaceLabels = Callable[[str], Mapping[str, str]]


@dataclass(frozen=True)
class AffinityTerm:
    """A pod affinity or anti-affinity term.

    weight: 0 for a required term. selector: None matches no pod. namespaces: the named ones, or the
    pod's own. namespace_selector: more namespaces by labels; None: no more.
    """

    topology_key: str
    selector: Json | None
    namespaces: frozenset[str]
    namespace_selector: Json | None
    weight: int = 0

    def matches(self, candidate: PodView, namespace_labels: NamespaceLabels) -> bool:
        """Return whether the term matches the pod."""
        if candidate.namespace not in self.namespaces and not (
            self.namespace_selector is not None
            and selects(self.namespace_selector, namespace_labels(candidate.namespace))
        ):
            return False
        return selects(self.selector, candidate.labels)


def affinity_terms(pod: PodView, kind: str, when: str) -> tuple[AffinityTerm, ...]:
    """Return the pod's terms. kind: podAffinity or podAntiAffinity; when: required or preferred."""
    affinity = (pod.spec.get("affinity") or {}).get(kind) or {}
    items = affinity.get(f"{when}DuringSchedulingIgnoredDuringExecution") or ()
    if when == "required":
        return tuple(_term(pod, item) for item in items)
    return tuple(
        _term(pod, item.get("podAffinityTerm") or {}, int(item.get("weight") or 0))
        for item in items
    )


def _term(pod: PodView, item: Json, weight: int = 0) -> AffinityTerm:
    namespaces = frozenset(item.get("namespaces") or ())
    selector = item.get("namespaceSelector")
    if not namespaces and selector is None:
        namespaces = frozenset({pod.namespace})
    return AffinityTerm(
        str(item.get("topologyKey") or ""),
        item.get("labelSelector"),
        namespaces,
        selector,
        weight,
    )


def any_term(terms: tuple[Json, ...] | None, node: NodeView) -> bool:
    """Return whether any term matches; an empty list of terms matches no node."""
    return terms is None or any(term_matches(term, node) for term in terms)


def term_matches(term: Json, node: NodeView) -> bool:
    """Return whether all expressions and fields of one term hold; an empty term matches no node."""
    labels = tuple(map(requirement_of, term.get("matchExpressions") or ()))
    fields = tuple(map(requirement_of, term.get("matchFields") or ()))
    return NodeSelectorTerm(labels, fields).matches(node.name, node.labels)
