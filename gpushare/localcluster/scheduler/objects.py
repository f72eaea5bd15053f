"""Pods and nodes as the scheduler reads them out of raw API objects.

Knows the fields of core/v1 Pod and Node that scheduling looks at, and nothing of queues or plugins.
Must not change the raw object: it travels to extenders as it came from the API server.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gpushare.wire.quantity import to_bytes, to_milli

Json = dict[str, Any]
Amounts = Mapping[str, int]

CPU = "cpu"
MEMORY = "memory"
PODS = "pods"
# kube-scheduler scores a container that requests nothing as if it asked for this much.
DEFAULT_MILLI_CPU = 100
DEFAULT_MEMORY = 200 * 1024 * 1024


@dataclass(frozen=True)
class Taint:
    """A taint of a node."""

    key: str
    value: str
    effect: str


@dataclass(frozen=True)
class Toleration:
    """A toleration of a pod; empty `effect` matches every effect, empty `key` every key."""

    key: str
    operator: str
    value: str
    effect: str

    def tolerates(self, taint: Taint) -> bool:
        """Return whether this toleration covers the taint (core/v1 Toleration.ToleratesTaint)."""
        if self.effect and self.effect != taint.effect:
            return False
        if self.key and self.key != taint.key:
            return False
        return self.operator == "Exists" or self.value == taint.value


@dataclass(frozen=True)
class PodView:
    """What scheduling asks of one pod. Amounts: cpu in millicores, all else in whole units."""

    uid: str
    namespace: str
    name: str
    resource_version: str
    node_name: str
    scheduler_name: str
    priority: int
    requests: Amounts
    scored: Amounts
    node_selector: Mapping[str, str]
    affinity_terms: tuple[Json, ...] | None
    tolerations: tuple[Toleration, ...]
    gated: bool
    deleting: bool
    ended: bool
    nominated_node: str
    resource_names: frozenset[str]
    raw: Json

    @property
    def key(self) -> str:
        """`namespace/name`, as kube-scheduler prints pods."""
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True)
class NodeView:
    """What scheduling asks of one node. Amounts as in PodView."""

    name: str
    labels: Mapping[str, str]
    taints: tuple[Taint, ...]
    unschedulable: bool
    allocatable: Amounts
    raw: Json


def read_pod(raw: Json) -> PodView:
    """Return the pod as scheduling sees it. Raises QuantityError for a request that
    is no quantity.
    """
    meta: Json = raw.get("metadata") or {}
    spec: Json = raw.get("spec") or {}
    status: Json = raw.get("status") or {}
    return PodView(
        uid=str(meta.get("uid", "")),
        namespace=str(meta.get("namespace", "default")),
        name=str(meta.get("name", "")),
        resource_version=str(meta.get("resourceVersion", "")),
        node_name=str(spec.get("nodeName") or ""),
        scheduler_name=str(spec.get("schedulerName") or "default-scheduler"),
        priority=int(spec.get("priority") or 0),
        requests=pod_requests(spec),
        scored=_scored_requests(spec),
        node_selector=spec.get("nodeSelector") or {},
        affinity_terms=_required_terms(spec),
        tolerations=tuple(_toleration(item) for item in spec.get("tolerations") or ()),
        gated=bool(spec.get("schedulingGates")),
        deleting=bool(meta.get("deletionTimestamp")),
        ended=status.get("phase") in ("Succeeded", "Failed"),
        nominated_node=str(status.get("nominatedNodeName") or ""),
        resource_names=_resource_names(spec),
        raw=raw,
    )


def read_node(raw: Json) -> NodeView:
    """Return the node as scheduling sees it. Raises QuantityError for an amount that is no
    quantity.
    """
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


def pod_requests(spec: Json) -> dict[str, int]:
    """Return what a pod holds on its node while it runs.

    The larger of (containers + sidecars) and the peak of the init phase, plus overhead: a sidecar
    (an init container with restartPolicy Always) keeps running beside every init container after
    it. (k8s.io/component-helpers resource.PodRequests)
    """
    sidecars: dict[str, int] = {}
    peak: dict[str, int] = {}
    for container in spec.get("initContainers") or ():
        wanted = add(_container_requests(container), sidecars)
        if container.get("restartPolicy") == "Always":
            sidecars = wanted
        peak = _larger(peak, wanted)
    running = dict(sidecars)
    for container in spec.get("containers") or ():
        running = add(running, _container_requests(container))
    return add(_larger(running, peak), read_amounts(spec.get("overhead") or {}))


def add(one: Amounts, other: Amounts) -> dict[str, int]:
    """Return the sum by resource name."""
    return {name: one.get(name, 0) + other.get(name, 0) for name in one.keys() | other.keys()}


def subtract(one: Amounts, other: Amounts) -> dict[str, int]:
    """Return the difference by resource name."""
    return {name: one.get(name, 0) - other.get(name, 0) for name in one.keys() | other.keys()}


def _larger(one: Amounts, other: Amounts) -> dict[str, int]:
    return {name: max(one.get(name, 0), other.get(name, 0)) for name in one.keys() | other.keys()}


def _amount(name: str, value: object) -> int:
    return to_milli(str(value)) if name == CPU else to_bytes(str(value))


def _container_requests(container: Json) -> dict[str, int]:
    return read_amounts((container.get("resources") or {}).get("requests") or {})


def _scored_requests(spec: Json) -> dict[str, int]:
    cpu = memory = 0
    for container in spec.get("containers") or ():
        wanted = _container_requests(container)
        cpu += wanted.get(CPU, DEFAULT_MILLI_CPU)
        memory += wanted.get(MEMORY, DEFAULT_MEMORY)
    return {CPU: cpu, MEMORY: memory}


def _resource_names(spec: Json) -> frozenset[str]:
    """Return every name in requests or limits of containers and init containers; a
    "0" counts too.
    """
    containers: Iterable[Json] = [
        *(spec.get("containers") or ()),
        *(spec.get("initContainers") or ()),
    ]
    names: set[str] = set()
    for container in containers:
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
