"""Objects of Kueue: from the JSON of the API server to records, and the patches of their statuses.

Knows Workload, AdmissionCheck and ResourceFlavor of kueue.x-k8s.io/v1beta2 (Kueue 0.16 on), only
the fields that we read. Kueue reserves quota for a Workload, and admits the Workload once all
admission checks of its ClusterQueue are Ready. A check in the state Retry gives the quota back.

Tested in `tests/unit/wire/test_kueue.py`.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from msgspec import Struct

from gpushare.core.model import PodRef, Request
from gpushare.core.selectors import Demands, Toleration
from gpushare.errors import MessageError, WireError
from gpushare.wire import objects
from gpushare.wire.annotations import Names
from gpushare.wire.codec import Codec
from gpushare.wire.demands import demands_of, read_toleration
from gpushare.wire.groups import MAX_MEMBERS
from gpushare.wire.objects import Metadata, Owner, Pod, own, seconds_of
from gpushare.wire.placeholders import HOSTNAME
from gpushare.wire.pods import has_ended, request_among

CONTROLLER = "gpushare.io/devices"
"""The controllerName of the AdmissionChecks that the extender answers."""

GROUP = "kueue.x-k8s.io"
API = f"/apis/{GROUP}/v1beta2"
PENDING, READY, RETRY = "Pending", "Ready", "Retry"
"""States of a check."""

_WORKLOAD = "kueue.x-k8s.io/workload"
"""Annotation that Kueue adds to each pod of a Workload (feature gate TopologyAwareScheduling)."""
_POD_SET = "kueue.x-k8s.io/podset"
"""Label that Kueue adds to each pod of a Workload."""


class PodSet(Struct, gc=False):
    """PodSet; a PodTemplateSpec has the fields of a Pod."""

    name: str | None = None
    count: int | None = None
    template: Pod | None = None


class IndividualValues(Struct, gc=False):
    """TopologyAssignmentSliceLevelIndividualValues: a value is prefix, root of a domain, suffix."""

    prefix: str | None = None
    suffix: str | None = None
    roots: list[str] | None = None


class LevelValues(Struct, gc=False):
    """TopologyAssignmentSliceLevelValues: one value for all domains, or one for each."""

    universal: str | None = None
    individual: IndividualValues | None = None


class PodCounts(Struct, gc=False):
    """TopologyAssignmentSlicePodCounts: one number for all domains, or one for each."""

    universal: int | None = None
    individual: list[int] | None = None


class TopologySlice(Struct, gc=False, rename="camel"):
    """TopologyAssignmentSlice."""

    domain_count: int | None = None
    values_per_level: list[LevelValues] | None = None
    pod_counts: PodCounts | None = None


class TopologyAssignment(Struct, gc=False):
    """TopologyAssignment; levels are keys of node labels."""

    levels: list[str] | None = None
    slices: list[TopologySlice] | None = None


class PodSetAssignment(Struct, gc=False, rename="camel"):
    """PodSetAssignment; flavors: the name of the ResourceFlavor by resource."""

    name: str | None = None
    flavors: dict[str, str] | None = None
    count: int | None = None
    topology_assignment: TopologyAssignment | None = None


class Admission(Struct, gc=False, rename="camel"):
    pod_set_assignments: list[PodSetAssignment] | None = None


class ReclaimablePods(Struct, gc=False):
    """ReclaimablePod: pods of a PodSet that need nothing any more."""

    name: str | None = None
    count: int | None = None


class RequeueState(Struct, gc=False, rename="camel"):
    requeue_at: str | None = None


class WorkloadSpec(Struct, gc=False, rename="camel"):
    pod_sets: list[PodSet] | None = None
    priority: int | None = None


class WorkloadStatus(Struct, gc=False, rename="camel"):
    """WorkloadStatus; checks and conditions stay as they are, since a patch of one repeats all."""

    admission: Admission | None = None
    admission_checks: list[dict[str, Any]] | None = None
    conditions: list[dict[str, Any]] | None = None
    reclaimable_pods: list[ReclaimablePods] | None = None
    requeue_state: RequeueState | None = None


class QueuedWorkload(Struct, gc=False):
    """Workload."""

    metadata: Metadata | None = None
    spec: WorkloadSpec | None = None
    status: WorkloadStatus | None = None


class AdmissionCheckSpec(Struct, gc=False, rename="camel"):
    controller_name: str | None = None
    parameters: dict[str, Any] | None = None


class AdmissionCheckStatus(Struct, gc=False):
    """AdmissionCheckStatus; the conditions stay as they are, since a patch of one repeats all."""

    conditions: list[dict[str, Any]] | None = None


class AdmissionCheck(Struct, gc=False):
    metadata: Metadata | None = None
    spec: AdmissionCheckSpec | None = None
    status: AdmissionCheckStatus | None = None


class ResourceFlavorSpec(Struct, gc=False, rename="camel"):
    node_labels: dict[str, str] | None = None
    tolerations: list[objects.Toleration] | None = None


class ResourceFlavor(Struct, gc=False):
    metadata: Metadata | None = None
    spec: ResourceFlavorSpec | None = None


WORKLOADS: Codec[QueuedWorkload] = Codec(QueuedWorkload, "Workload")
ADMISSION_CHECKS: Codec[AdmissionCheck] = Codec(AdmissionCheck)
RESOURCE_FLAVORS: Codec[ResourceFlavor] = Codec(ResourceFlavor)


@dataclass(frozen=True, slots=True)
class Flavor:
    """The demands that a ResourceFlavor adds to pods."""

    labels: tuple[tuple[str, str], ...] = ()
    """Keys and values of the labels of its nodes."""
    tolerations: tuple[Toleration, ...] = ()


@dataclass(frozen=True, slots=True)
class WorkloadPods:
    """Equal pods of a workload that ask for devices, of one PodSet in one domain of a topology."""

    pod_set: str
    resource: str
    """The managed resource."""
    request: Request
    demands: Demands
    count: int
    flavors: tuple[str, ...] = ()
    """The names of the ResourceFlavors, whose demands are not in `demands`."""


@dataclass(frozen=True, slots=True)
class WorkloadRecord:
    """A workload that Kueue has not ended."""

    ref: PodRef
    version: str
    """The resourceVersion."""
    priority: int
    created: float
    """In seconds since the epoch."""
    is_reserved: bool
    """Whether the workload has quota, and is not being evicted."""
    waits: bool
    """Whether Kueue lets the workload wait for a while before the next try."""
    checks: tuple[Mapping[str, Any], ...]
    """All admission checks, as in the status."""
    conditions: tuple[Mapping[str, Any], ...]
    """As in the status."""
    pods: tuple[WorkloadPods, ...] = ()
    """The pods that ask for managed resources; of a workload without quota, ()."""
    mistake: str = ""
    """Why the pods cannot be read, or are too many, or ""."""
    on_hosts: bool = False
    """Whether Kueue has chosen nodes by name: the lowest level of the Topology is the host name."""

    @property
    def key(self) -> str:
        """Namespace and name."""
        return f"{self.ref.namespace}/{self.ref.name}"

    def check(self, names: Collection[str]) -> Mapping[str, Any] | None:
        """Return the first of the checks with these names; None without one."""
        return next((check for check in self.checks if check.get("name") in names), None)


@dataclass(frozen=True, slots=True)
class CheckRecord:
    """An AdmissionCheck of ours. version: the resourceVersion."""

    name: str
    version: str
    conditions: tuple[Mapping[str, Any], ...]
    has_parameters: bool


@dataclass(frozen=True, slots=True)
class AdmittedPod:
    """A pod of an admitted workload that schedulers may bind, or have bound."""

    workload: str
    """Namespace and name."""
    pod_set: str
    node_selector: frozenset[tuple[str, str]]


def read_flavor(item: ResourceFlavor) -> Flavor:
    """Return the demands of a ResourceFlavor."""
    spec = item.spec or ResourceFlavorSpec()
    labels = tuple(sorted((spec.node_labels or {}).items()))
    return Flavor(labels, tuple(map(read_toleration, spec.tolerations or ())))


def read_check(item: AdmissionCheck) -> CheckRecord | None:
    """Return an AdmissionCheck of ours; None for one of another controller."""
    metadata, spec = item.metadata or Metadata(), item.spec or AdmissionCheckSpec()
    if spec.controller_name != CONTROLLER:
        return None
    conditions = (item.status and item.status.conditions) or ()
    version = metadata.resource_version or ""
    return CheckRecord(metadata.name or "", version, tuple(conditions), bool(spec.parameters))


def admitted_pod(pod: Pod) -> AdmittedPod | None:
    """Return the pod as one of an admitted workload; None for any other pod, and for one that is
    being deleted: another one comes in its place.
    """
    metadata, spec = pod.metadata or Metadata(), pod.spec or objects.PodSpec()
    name = (metadata.annotations or {}).get(_WORKLOAD)
    is_going = has_ended(pod) or metadata.deletion_timestamp
    if not name or spec.scheduling_gates or is_going:
        return None
    pod_set = (metadata.labels or {}).get(_POD_SET, "")
    selector = frozenset((spec.node_selector or {}).items())
    return AdmittedPod(f"{metadata.namespace}/{name}", pod_set, selector)


def read_workload(item: QueuedWorkload, managed_names: Sequence[Names]) -> WorkloadRecord | None:
    """Return a workload; None for an ended one, and for one without admission checks.

    Raises MessageError for a workload without a name.
    """
    metadata, spec = item.metadata or Metadata(), item.spec or WorkloadSpec()
    status = item.status or WorkloadStatus()
    if not (metadata.namespace and metadata.name and metadata.uid):
        raise MessageError("Workload.metadata: name, namespace or uid is missing")
    true = [one.get("type") for one in status.conditions or () if one.get("status") == "True"]
    if not status.admission_checks or "Finished" in true:
        return None
    record = WorkloadRecord(
        ref=PodRef(metadata.namespace, metadata.name, metadata.uid),
        version=metadata.resource_version or "",
        priority=spec.priority or 0,
        created=seconds_of(metadata.creation_timestamp),
        is_reserved="QuotaReserved" in true and "Evicted" not in true,
        waits=bool(status.requeue_state and status.requeue_state.requeue_at),
        checks=tuple(status.admission_checks),
        conditions=tuple(status.conditions or ()),
    )
    if not record.is_reserved:
        return record
    assignments = (status.admission and status.admission.pod_set_assignments) or ()
    on_hosts = any(HOSTNAME in _levels(assignment) for assignment in assignments)
    try:
        pods = tuple(_pods(metadata, spec, status, managed_names))
    except WireError as error:
        return replace(record, mistake=str(error))
    if (count := sum(part.count for part in pods)) > MAX_MEMBERS:
        return replace(record, mistake=f"{count} pods ask for devices: at most {MAX_MEMBERS} may")
    return replace(record, pods=pods, on_hosts=on_hosts)


def _pods(
    metadata: Metadata, spec: WorkloadSpec, status: WorkloadStatus, managed_names: Sequence[Names]
) -> Iterator[WorkloadPods]:
    """Yield the pods that ask for managed resources. Raises WireError."""
    owner = Owner(kind="Workload", name=metadata.name, uid=metadata.uid, controller=True)
    assignments = (status.admission and status.admission.pod_set_assignments) or ()
    by_name = {assignment.name: assignment for assignment in assignments}
    reclaimable = {pods.name: pods.count or 0 for pods in status.reclaimable_pods or ()}
    for pod_set in spec.pod_sets or ():
        template = pod_set.template or Pod()
        own(template, owner)
        match = request_among(template, managed_names)
        if match is None:
            continue
        names, request = managed_names[match[0]], match[1]
        assignment = by_name.get(pod_set.name) or PodSetAssignment()
        demands = replace(demands_of(template), gated=False)
        count = pod_set.count if assignment.count is None else assignment.count
        ended = reclaimable.get(pod_set.name, 0)
        for labels, in_domain in _domains(assignment) or [((), count or 0)]:
            part = max(in_domain - ended, 0)
            ended = max(ended - in_domain, 0)
            if part:
                yield WorkloadPods(
                    pod_set=pod_set.name or "",
                    resource=names.resource,
                    request=request,
                    demands=_selecting(demands, labels),
                    count=part,
                    flavors=tuple(sorted({*(assignment.flavors or {}).values()})),
                )


def _levels(assignment: PodSetAssignment) -> Sequence[str]:
    topology = assignment.topology_assignment
    return (topology and topology.levels) or ()


def _domains(assignment: PodSetAssignment) -> list[tuple[tuple[tuple[str, str], ...], int]]:
    """Return (labels of the nodes, pods) of each domain of the topology; [] without one.

    Raises MessageError.
    """
    topology, levels = assignment.topology_assignment, _levels(assignment)
    domains = []
    for part in (topology and topology.slices) or ():
        counts = part.pod_counts or PodCounts()
        try:
            for domain in range(part.domain_count or 0):
                values = [_value(level, domain) for level in part.values_per_level or ()]
                count = counts.universal
                number = (counts.individual or ())[domain] if count is None else count
                domains.append((tuple(zip(levels, values, strict=True)), number))
        except (IndexError, ValueError) as error:
            raise MessageError(f"topologyAssignment: its lists do not match: {error}") from error
    return domains


def _value(level: LevelValues, domain: int) -> str:
    if level.universal is not None:
        return level.universal
    values = level.individual or IndividualValues()
    return f"{values.prefix or ''}{(values.roots or ())[domain]}{values.suffix or ''}"


def _selecting(
    demands: Demands,
    labels: Iterable[tuple[str, str]],
    tolerations: Iterable[Toleration] = (),
) -> Demands:
    """Return the demands with these labels of nodes and tolerations besides."""
    selector = tuple(sorted({*demands.node_selector, *labels}))
    return replace(
        demands, node_selector=selector, tolerations=(*demands.tolerations, *tolerations)
    )


def with_flavors(pods: WorkloadPods, flavors: Mapping[str, Flavor]) -> WorkloadPods:
    """Return the pods with the demands of their flavors.

    Raises KeyError for an unknown flavor.
    """
    demands = pods.demands
    for name in pods.flavors:
        demands = _selecting(demands, flavors[name].labels, flavors[name].tolerations)
    return replace(pods, demands=demands, flavors=())


def verdict_patch(
    workload: WorkloadRecord,
    names: Collection[str],
    verdict: Mapping[str, Any],
    now: str,
) -> bytes:
    """Return the merge patch that gives the pending checks with these names this verdict.

    verdict: fields of an AdmissionCheckState. now: the time as text. The API server refuses the
    patch if the workload has changed since.
    """
    checks = [
        {**check, **verdict, "lastTransitionTime": now} if is_pending(check, names) else check
        for check in workload.checks
    ]
    return _patch(workload.version, {"admissionChecks": checks})


def is_pending(check: Mapping[str, Any], names: Collection[str]) -> bool:
    """Return whether a check has one of these names and no verdict."""
    return check.get("name") in names and check.get("state") == PENDING


def retries(check: Mapping[str, Any]) -> int:
    """Return how often the check has led to a new try."""
    count = check.get("retryCount")
    return max(count, 0) if isinstance(count, int) else 0


def release_patch(workload: WorkloadRecord, now: str) -> bytes:
    """Return the merge patch after which Kueue gives the quota back: what its own eviction writes.

    Kueue 0.17.0 evicts a workload with a check in the state Retry only after requeueAfterSeconds.
    """
    checks = [
        {
            **check,
            "state": PENDING,
            "lastTransitionTime": now,
            "retryCount": retries(check) + (check.get("state") == RETRY),
        }
        for check in workload.checks
    ]
    evicted = {
        "type": "Evicted",
        "status": "True",
        "reason": "AdmissionCheck",
        "message": "At least one admission check is false",
        "lastTransitionTime": now,
    }
    others = [condition for condition in workload.conditions if condition.get("type") != "Evicted"]
    return _patch(workload.version, {"admissionChecks": checks, "conditions": [*others, evicted]})


def requeue_patch(workload: WorkloadRecord) -> bytes:
    """Return the merge patch after which Kueue tries the workload again at once."""
    return _patch(workload.version, {"requeueState": {"requeueAt": None}})


def active_patch(check: CheckRecord, now: str) -> bytes | None:
    """Return the merge patch of the condition Active; None if the condition is right already."""
    active = {
        "type": "Active",
        "status": "False" if check.has_parameters else "True",
        "reason": "NoParameters" if check.has_parameters else "Active",
        "message": "gpushare takes no parameters: remove spec.parameters"
        if check.has_parameters
        else "gpushare answers this check",
    }
    others = [condition for condition in check.conditions if condition.get("type") != "Active"]
    if any(active.items() <= condition.items() for condition in check.conditions):
        return None
    return _patch(check.version, {"conditions": [*others, active | {"lastTransitionTime": now}]})


def _patch(version: str, status: Mapping[str, Any]) -> bytes:
    return json.dumps({"metadata": {"resourceVersion": version}, "status": status}).encode()
