"""The rules for Deployments and other workloads: defaults, checks.

Pure: a body in, a body out. Facts: k8s.io/kubernetes pkg/apis/apps/v1/defaults.go,
pkg/apis/batch/v1/defaults.go and the packages `validation` beside them.
"""

import re

from gpushare.wire.label_selectors import selects
from gpushare_localcluster.api.objects import (
    Object,
    metadata,
    name_of,
    section,
    with_fields,
    with_metadata,
)
from gpushare_localcluster.api.pods import with_template_defaults
from gpushare_localcluster.api.resources import Resource
from gpushare_localcluster.api.status import StatusError, bad_request, invalid
from gpushare_localcluster.api.validation import check_shape

UID_LABEL, NAME_LABEL = "batch.kubernetes.io/controller-uid", "batch.kubernetes.io/job-name"
"""Labels of a Job's pods; the selector of the Job is the first one."""

_KEPT: Object = {"whenDeleted": "Retain", "whenScaled": "Retain"}
_SPECS: dict[str, Object] = {
    "DaemonSet": {"revisionHistoryLimit": 10},
    "Deployment": {"replicas": 1, "revisionHistoryLimit": 10, "progressDeadlineSeconds": 600},
    "Job": {
        "parallelism": 1,
        "backoffLimit": 6,
        "completionMode": "NonIndexed",
        "suspend": False,
        "podReplacementPolicy": "TerminatingOrFailed",
        "manualSelector": False,
    },
    "ReplicaSet": {"replicas": 1},
    "StatefulSet": {
        "replicas": 1,
        "revisionHistoryLimit": 10,
        "podManagementPolicy": "OrderedReady",
        "persistentVolumeClaimRetentionPolicy": _KEPT,
    },
}
"""Kinds with pod templates, with the plain defaults of their specs."""

_ROLLING: dict[str, tuple[str, Object]] = {
    "DaemonSet": ("updateStrategy", {"maxUnavailable": 1, "maxSurge": 0}),
    "Deployment": ("strategy", {"maxUnavailable": "25%", "maxSurge": "25%"}),
    "StatefulSet": ("updateStrategy", {"partition": 0}),
}
_LIMIT = re.compile(r"[0-9]{1,9}%?")
_COUNTS = (
    "replicas",
    "minReadySeconds",
    "revisionHistoryLimit",
    "progressDeadlineSeconds",
    "parallelism",
    "completions",
    "backoffLimit",
    "activeDeadlineSeconds",
    "ttlSecondsAfterFinished",
)


def is_workload(resource: Resource) -> bool:
    """Return whether objects of the resource have a pod template."""
    return resource.kind in _SPECS


def with_defaults(resource: Resource, body: Object) -> Object:
    """Return the object with defaults, also in the pod template. Raises StatusError: 400, 422."""
    kind, client_spec = resource.kind, with_fields(section(body, "spec"))
    for field in ("selector", "template", "strategy", "updateStrategy"):
        if not isinstance(client_spec.get(field, {}), dict):
            raise bad_request(f"spec.{field} must be an object")
    spec = {**_SPECS[kind], **client_spec, "template": _template(resource, body, client_spec)}
    if kind == "Job" and "completions" not in client_spec and "parallelism" not in client_spec:
        spec["completions"] = 1
    if kind in _ROLLING:
        field, limits = _ROLLING[kind]
        spec[field] = _strategy(section(client_spec, field), limits)
    complete = {**body, "spec": spec}
    _check(resource, complete)
    return complete


def with_identity(job: Object, uid: str) -> Object:
    """Return a new Job that selects pods by its uid, unless it has a manual selector."""
    spec = section(job, "spec")
    if spec.get("manualSelector"):
        return job
    labels_by_uid = {UID_LABEL: uid, NAME_LABEL: name_of(job)}
    old = {"controller-uid": uid, "job-name": name_of(job)}
    template: Object = spec["template"]
    labels = {**(metadata(template).get("labels") or {}), **labels_by_uid, **old}
    fields = {
        "selector": {"matchLabels": {UID_LABEL: uid}},
        "template": with_metadata(template, labels=labels),
    }
    return {**job, "spec": {**spec, **fields}}


def check_update(resource: Resource, old: Object, new: Object) -> None:
    """Refuse a change of an immutable field, such as the selector. Raises StatusError: 422."""
    fixed = ("selector", "template", "completions") if resource.kind == "Job" else ("selector",)
    if resource.kind == "StatefulSet":
        fixed = (*fixed, "serviceName", "podManagementPolicy", "volumeClaimTemplates")
    before, after = section(old, "spec"), section(new, "spec")
    for field in fixed:
        if before.get(field) != after.get(field):
            reason = "Invalid value: field is immutable"
            raise invalid(_called(resource), name_of(old), f"spec.{field}", reason)


def _template(resource: Resource, body: Object, spec: Object) -> Object:
    template = section(spec, "template")
    check_shape(template)
    try:
        filled = with_template_defaults(name_of(body), section(template, "spec"))
    except StatusError as error:
        if error.code != 422:
            raise
        causes = (error.details or {}).get("causes") or [{"field": "spec", "message": str(error)}]
        field_path = f"spec.template.{causes[0]['field']}"
        raise invalid(_called(resource), name_of(body), field_path, causes[0]["message"]) from error
    return {**template, "metadata": with_fields(metadata(template)), "spec": filled}


def _strategy(strategy: Object, limits: Object) -> Object:
    kind = strategy.get("type") or "RollingUpdate"
    if kind != "RollingUpdate":
        return {**strategy, "type": kind}
    rolling = {**limits, **with_fields(section(strategy, "rollingUpdate"))}
    for field, limit in rolling.items():
        if not _LIMIT.fullmatch(str(limit)):
            raise bad_request(f"{field} must be a number or a percentage, not {limit!r}")
    return {"type": kind, "rollingUpdate": rolling}


def _check(resource: Resource, body: Object) -> None:
    spec: Object = body["spec"]
    for field in _COUNTS:
        count = spec.get(field, 0)
        if isinstance(count, bool) or not isinstance(count, int):
            raise bad_request(f"spec.{field} must be an integer, not {count!r}")
        if count < 0:
            reason = f"Invalid value: {count}: must be greater than or equal to 0"
            raise _wrong(resource, body, field, reason)
    supported = ("OnFailure", "Never") if resource.kind == "Job" else ("Always",)
    policy = spec["template"]["spec"].get("restartPolicy")
    if policy not in supported:
        values = ", ".join(f'"{value}"' for value in supported)
        reason = f'Unsupported value: "{policy}": supported values: {values}'
        raise _wrong(resource, body, "template.spec.restartPolicy", reason)
    if resource.kind == "Job":
        return
    selector, labels = spec.get("selector"), metadata(spec["template"]).get("labels") or {}
    if not selector:
        raise _wrong(resource, body, "selector", "Required value")
    if not selects(selector, labels):
        reason = f"Invalid value: {labels}: `selector` does not match template `labels`"
        raise _wrong(resource, body, "template.metadata.labels", reason)
    rolling = section(section(spec, "strategy"), "rollingUpdate")
    limits = {str(rolling.get(field)) for field in ("maxUnavailable", "maxSurge")}
    if resource.kind == "Deployment" and rolling and limits <= {"0", "0%"}:
        reason = "Invalid value: 0: may not be 0 when `maxSurge` is 0"
        raise _wrong(resource, body, "strategy.rollingUpdate.maxUnavailable", reason)


def _wrong(resource: Resource, body: Object, field: str, reason: str) -> StatusError:
    return invalid(_called(resource), name_of(body), f"spec.{field}", reason)


def _called(resource: Resource) -> str:
    """Return the kind as in messages of a real server: `Deployment.apps`."""
    return f"{resource.kind}.{resource.group}" if resource.group else resource.kind
