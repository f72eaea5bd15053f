"""Kubernetes objects as the API server writes them: narrow typed structs.

A struct has the name of the type in Kubernetes' API unless the docstring has another.

Knows the JSON of Node, Pod, ConfigMap, PodDisruptionBudget and of the objects that size groups of
pods, only the fields that we read; every field may be missing or null, quantities may be numbers,
unknown fields are skipped. Knows no meaning of the fields (see pods.py and nodes.py), and no lists
and watches (codec.py).
"""

from datetime import datetime
from typing import Any

import msgspec
from msgspec import Raw, Struct

from gpushare.wire.codec import Codec
from gpushare.wire.quantity import Quantity

_MOST_NAME = 80
"""The most characters of a scheduling gate's name."""


class _SchedulingGate(Struct, gc=False):
    """PodSchedulingGate."""

    name: str | None = None


class Owner(Struct, gc=False, rename="camel"):
    """OwnerReference."""

    api_version: str | None = None
    kind: str | None = None
    name: str | None = None
    uid: str | None = None
    controller: bool | None = None


class Metadata(Struct, gc=False, rename="camel"):
    """ObjectMeta."""

    name: str | None = None
    namespace: str | None = None
    uid: str | None = None
    resource_version: str | None = None
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: list[Owner] | None = None


class Resources(Struct, gc=False):
    """ResourceRequirements, of a container or of a pod."""

    limits: dict[str, Quantity] | None = None
    requests: dict[str, Quantity] | None = None


class Variable(Struct, gc=False):
    """EnvVar, by name alone."""

    name: str | None = None


class SecurityContext(Struct, gc=False):
    """SecurityContext of a container."""

    privileged: bool | None = None


class Port(Struct, gc=False, rename="camel"):
    """ContainerPort."""

    host_port: int | None = None


class Container(Struct, gc=False, rename="camel"):
    """Container; restart_policy "Always" makes an init container a sidecar."""

    name: str | None = None
    env: list[Variable] | None = None
    ports: list[Port] | None = None
    resources: Resources | None = None
    restart_policy: str | None = None
    security_context: SecurityContext | None = None


class NodeSelectorRequirement(Struct, gc=False):
    key: str | None = None
    operator: str | None = None
    values: list[str] | None = None


class NodeSelectorTerm(Struct, gc=False, rename="camel"):
    match_expressions: list[NodeSelectorRequirement] | None = None
    match_fields: list[NodeSelectorRequirement] | None = None


class NodeSelector(Struct, gc=False, rename="camel"):
    """NodeSelector: alternatives."""

    node_selector_terms: list[NodeSelectorTerm] | None = None


class NodeAffinity(Struct, gc=False):
    """NodeAffinity, without the preferred terms."""

    required: NodeSelector | None = msgspec.field(
        default=None, name="requiredDuringSchedulingIgnoredDuringExecution"
    )


class Present(Struct, gc=False):
    """An object that counts by the presence alone."""


class Affinity(Struct, gc=False, rename="camel"):
    node_affinity: NodeAffinity | None = None
    pod_affinity: Present | None = None
    pod_anti_affinity: Present | None = None


class Toleration(Struct, gc=False):
    key: str | None = None
    operator: str | None = None
    value: str | None = None
    effect: str | None = None


class Volume(Struct, gc=False, rename="camel"):
    """Volume, of the kinds that may have to be made for a pod, or bind the pod to a node."""

    persistent_volume_claim: Present | None = None
    ephemeral: Present | None = None
    host_path: Present | None = None


class PodClaim(Struct, gc=False, rename="camel"):
    """PodResourceClaim."""

    name: str | None = None
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


class PodClaimStatus(Struct, gc=False, rename="camel"):
    """PodResourceClaimStatus: the claim that was made from a template."""

    name: str | None = None
    resource_claim_name: str | None = None


class SchedulingGroup(Struct, gc=False, rename="camel"):
    """PodSchedulingGroup."""

    pod_group_name: str | None = None


class PodSpec(Struct, gc=False, rename="camel"):
    node_name: str | None = None
    scheduler_name: str | None = None
    node_selector: dict[str, str] | None = None
    affinity: Affinity | None = None
    containers: list[Container] | None = None
    init_containers: list[Container] | None = None
    overhead: dict[str, Quantity] | None = None
    resources: Resources | None = None
    priority: int | None = None
    preemption_policy: str | None = None
    tolerations: list[Toleration] | None = None
    scheduling_gates: list[Raw] | None = None
    active_deadline_seconds: int | None = None
    termination_grace_period_seconds: int | None = None
    scheduling_group: SchedulingGroup | None = None
    volumes: list[Volume] | None = None
    resource_claims: list[PodClaim] | None = None
    topology_spread_constraints: list[Present] | None = None
    host_network: bool | None = None


class PodCondition(Struct, gc=False):
    type: str | None = None
    status: str | None = None
    reason: str | None = None
    message: str | None = None


class PodStatus(Struct, gc=False, rename="camel"):
    phase: str | None = None
    conditions: list[PodCondition] | None = None
    start_time: str | None = None
    nominated_node_name: str | None = None
    resource_claim_statuses: list[PodClaimStatus] | None = None


class Pod(Struct, gc=False):
    metadata: Metadata | None = None
    spec: PodSpec | None = None
    status: PodStatus | None = None


class ContainerStatus(Struct, gc=False):
    """ContainerStatus; container_id is RUNTIME://ID."""

    name: str | None = None
    container_id: str | None = msgspec.field(default=None, name="containerID")


class StartedPodStatus(PodStatus, gc=False, rename="camel"):
    """PodStatus with the container runtime's ids of the containers."""

    container_statuses: list[ContainerStatus] | None = None
    init_container_statuses: list[ContainerStatus] | None = None


class StartedPod(Pod, gc=False):
    """Pod with container statuses, for a program on the node; others need not decode these."""

    status: StartedPodStatus | None = None


class Namespace(Struct, gc=False):
    metadata: Metadata | None = None


class Taint(Struct, gc=False):
    key: str | None = None
    value: str | None = None
    effect: str | None = None


class NodeFields(Struct, gc=False):
    """NodeSpec of the API, which has another meaning here."""

    unschedulable: bool | None = None
    taints: list[Taint] | None = None


class NodeCondition(Struct, gc=False):
    type: str | None = None
    status: str | None = None


class NodeInfo(Struct, gc=False, rename="camel"):
    """NodeSystemInfo."""

    container_runtime_version: str | None = None
    kubelet_version: str | None = None


class NodeStatus(Struct, gc=False, rename="camel"):
    capacity: dict[str, Quantity] | None = None
    allocatable: dict[str, Quantity] | None = None
    conditions: list[NodeCondition] | None = None
    node_info: NodeInfo | None = None


class Node(Struct, gc=False):
    metadata: Metadata | None = None
    spec: NodeFields | None = None
    status: NodeStatus | None = None


class ConfigMap(Struct, gc=False):
    metadata: Metadata | None = None
    data: dict[str, str] | None = None


class PriorityClass(Struct, gc=False, rename="camel"):
    metadata: Metadata | None = None
    value: int = 0
    global_default: bool | None = None


class PodDisruptionBudget(Struct, gc=False):
    """PodDisruptionBudget; budgets.py reads the parts."""

    metadata: Metadata | None = None
    spec: dict[str, Any] | None = None
    status: dict[str, Any] | None = None


class Gang(Struct, gc=False, rename="camel"):
    """GangSchedulingPolicy of a PodGroup of Kubernetes."""

    min_count: int | None = None


class SchedulingPolicy(Struct, gc=False):
    """PodGroupSchedulingPolicy; without gang it is basic."""

    gang: Gang | None = None


class PodGroupSpec(Struct, gc=False, rename="camel"):
    """PodGroupSpec: min_member of coscheduling and Volcano, scheduling_policy of Kubernetes."""

    min_member: int | None = None
    scheduling_policy: SchedulingPolicy | None = None


class PodGroup(Struct, gc=False):
    """PodGroup of scheduling.k8s.io, scheduling.x-k8s.io or scheduling.volcano.sh."""

    metadata: Metadata | None = None
    spec: PodGroupSpec | None = None


class LeaderWorkerTemplate(Struct, gc=False):
    """LeaderWorkerTemplate, by size alone."""

    size: int | None = None


class LeaderWorkerSetSpec(Struct, gc=False, rename="camel"):
    startup_policy: str | None = None
    leader_worker_template: LeaderWorkerTemplate | None = None


class LeaderWorkerSet(Struct, gc=False):
    """LeaderWorkerSet of leaderworkerset.x-k8s.io."""

    metadata: Metadata | None = None
    spec: LeaderWorkerSetSpec | None = None


class JobSpec(Struct, gc=False):
    """JobSpec of batch/v1, by the number of pods."""

    parallelism: int | None = None
    completions: int | None = None


class JobTemplate(Struct, gc=False):
    """JobTemplateSpec."""

    metadata: Metadata | None = None
    spec: JobSpec | None = None


class ReplicatedJob(Struct, gc=False, rename="camel"):
    """ReplicatedJob of a JobSet."""

    name: str | None = None
    replicas: int | None = None
    depends_on: list[Present] | None = None
    template: JobTemplate | None = None


class JobSetStartupPolicy(Struct, gc=False, rename="camel"):
    """StartupPolicy of a JobSet."""

    startup_policy_order: str | None = None


class JobSetSpec(Struct, gc=False, rename="camel"):
    replicated_jobs: list[ReplicatedJob] | None = None
    startup_policy: JobSetStartupPolicy | None = None


class ReplicatedJobStatus(Struct, gc=False):
    """ReplicatedJobStatus; succeeded counts Jobs."""

    name: str | None = None
    succeeded: int | None = None


class JobSetStatus(Struct, gc=False, rename="camel"):
    replicated_jobs_status: list[ReplicatedJobStatus] | None = None


class JobSet(Struct, gc=False):
    """JobSet of jobset.x-k8s.io."""

    metadata: Metadata | None = None
    spec: JobSetSpec | None = None
    status: JobSetStatus | None = None


PODS: Codec[Pod] = Codec(Pod)
STARTED_PODS: Codec[Pod] = Codec(StartedPod, "Pod")
NAMESPACES: Codec[Namespace] = Codec(Namespace)
NODES: Codec[Node] = Codec(Node)
CONFIG_MAPS: Codec[ConfigMap] = Codec(ConfigMap)
PRIORITY_CLASSES: Codec[PriorityClass] = Codec(PriorityClass)
BUDGETS: Codec[PodDisruptionBudget] = Codec(PodDisruptionBudget)
POD_GROUPS: Codec[PodGroup] = Codec(PodGroup)
LEADER_WORKER_SETS: Codec[LeaderWorkerSet] = Codec(LeaderWorkerSet)
JOB_SETS: Codec[JobSet] = Codec(JobSet)


def gate_names(spec: PodSpec) -> tuple[str, ...]:
    """Return the names of the scheduling gates, cut; "?" for one without a name."""
    return tuple(_gate_name(gate) for gate in spec.scheduling_gates or ())


def _gate_name(gate: Raw) -> str:
    try:
        return (msgspec.json.decode(gate, type=_SchedulingGate).name or "?")[:_MOST_NAME]
    except ValueError:  # also of msgspec, and of text that is no UTF-8
        return "?"


def seconds_of(timestamp: str | None) -> float:
    """Return seconds since the epoch of an RFC 3339 time; 0 for any other text."""
    try:
        moment = datetime.fromisoformat(timestamp or "")
    except ValueError:
        return 0.0
    return moment.timestamp() if moment.tzinfo else 0.0


def controller_of(pod: Pod) -> Owner | None:
    """Return the owner reference of the pod's controller; None without one."""
    owners = (pod.metadata and pod.metadata.owner_references) or ()
    return next((owner for owner in owners if owner.controller), None)


def own(pod: Pod, controller: Owner) -> None:
    """Make the controller the only owner of a pod from a template, as the controller will do."""
    pod.metadata = pod.metadata or Metadata()
    pod.metadata.owner_references = [controller]
