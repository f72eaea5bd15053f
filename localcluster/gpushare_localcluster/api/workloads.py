"""What an API server does to Deployments and the like on their way in: defaults, checks.

Pure: a body in, a body out. Facts: k8s.io/kubernetes pkg/apis/apps/v1/defaults.go,
pkg/apis/batch/v1/defaults.go and the packages `validation` beside them.
"""

import re

from gpushare.wire.budgets import selects
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
"""Labels of a Job's pods: the first is what its selector asks for."""

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
    "ReplicationController": {"replicas": 1},
    "StatefulSet": {
        "replicas": 1,
        "revisionHistoryLimit": 10,
        "podManagementPolicy": "OrderedReady",
        "persistentVolumeClaimRetentionPolicy": _KEPT,
    },
}
"""Kinds whose pods a controller makes, with the plain defaults of their specs."""

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
    """Return whether a controller makes pods of such objects."""
    return resource.kind in _SPECS


def with_defaults(resource: Resource, body: Object) -> Object:
    """Return the object with its defaults and those of its pod template.

    Raises StatusError: 400 for values of the wrong type, 422 for an object against the rules.
    """
    kind, given = resource.kind, with_fields(section(body, "spec"))
    for field in ("selector", "template", "strategy", "updateStrategy"):
        if not isinstance(given.get(field, {}), dict):
            raise bad_request(f"spec.{field} must be an object")
    spec = {**_SPECS[kind], **given, "template": _template(resource, body, given)}
    if kind == "Job":
        if "completions" not in given and "parallelism" not in given:
            spec["completions"] = 1
    elif kind == "ReplicationController":
        spec.setdefault("selector", metadata(spec["template"]).get("labels"))
    if kind in _ROLLING:
        field, limits = _ROLLING[kind]
        spec[field] = _strategy(section(given, field), limits)
    done = {**body, "spec": spec}
    _check(resource, done)
    return done


def with_identity(job: Object, uid: str) -> Object:
    """Return a new Job that selects its pods by its uid, unless it says itself how."""
    spec = section(job, "spec")
    if spec.get("manualSelector"):
        return job
    own = {UID_LABEL: uid, NAME_LABEL: name_of(job)}
    old = {"controller-uid": uid, "job-name": name_of(job)}
    template: Object = spec["template"]
    labels = {**(metadata(template).get("labels") or {}), **own, **old}
    made = {
        "selector": {"matchLabels": {UID_LABEL: uid}},
        "template": with_metadata(template, labels=labels),
    }
    return {**job, "spec": {**spec, **made}}


def check_update(resource: Resource, old: Object, new: Object) -> None:
    """Refuse to change what says which pods are an object's own. Raises StatusError: 422."""
    if resource.kind == "ReplicationController":
        return
    fixed = ("selector", "template", "completions") if resource.kind == "Job" else ("selector",)
    if resource.kind == "StatefulSet":
        fixed = (*fixed, "serviceName", "podManagementPolicy", "volumeClaimTemplates")
    before, after = section(old, "spec"), section(new, "spec")
    for field in fixed:
        if before.get(field) != after.get(field):
            why = "Invalid value: field is immutable"
            raise invalid(_called(resource), name_of(old), f"spec.{field}", why)


def _template(resource: Resource, body: Object, spec: Object) -> Object:
    template = section(spec, "template")
    check_shape(template)
    try:
        filled = with_template_defaults(name_of(body), section(template, "spec"))
    except StatusError as error:
        if error.code != 422:
            raise
        causes = (error.details or {}).get("causes") or [{"field": "spec", "message": str(error)}]
        where = f"spec.template.{causes[0]['field']}"
        raise invalid(_called(resource), name_of(body), where, causes[0]["message"]) from error
    return {**template, "metadata": with_fields(metadata(template)), "spec": filled}


def _strategy(given: Object, limits: Object) -> Object:
    kind = given.get("type") or "RollingUpdate"
    if kind != "RollingUpdate":
        return {**given, "type": kind}
    rolling = {**limits, **with_fields(section(given, "rollingUpdate"))}
    for field, limit in rolling.items():
        if not _LIMIT.fullmatch(str(limit)):
            raise bad_request(f"{field} must be a number or a percentage, not {limit!r}")
    return {"type": kind, "rollingUpdate": rolling}


def _check(resource: Resource, body: Object) -> None:
    _check_counts(resource, body)
    if resource.kind == "Job":
        _check_job(resource, body)
        return
    spec: Object = body["spec"]
    policy = spec["template"]["spec"].get("restartPolicy")
    if policy != "Always":
        told = f'Unsupported value: "{policy}": supported values: "Always"'
        raise _wrong(resource, body, "template.spec.restartPolicy", told)
    _check_selector(resource, body)
    if resource.kind == "Deployment" and not _moves(section(spec, "strategy")):
        told = "Invalid value: 0: may not be 0 when `maxSurge` is 0"
        raise _wrong(resource, body, "strategy.rollingUpdate.maxUnavailable", told)


def _check_counts(resource: Resource, body: Object) -> None:
    for field in _COUNTS:
        count = body["spec"].get(field, 0)
        if isinstance(count, bool) or not isinstance(count, int):
            raise bad_request(f"spec.{field} must be an integer, not {count!r}")
        if count < 0:
            told = f"Invalid value: {count}: must be greater than or equal to 0"
            raise _wrong(resource, body, field, told)


def _check_job(resource: Resource, body: Object) -> None:
    template: Object = body["spec"]["template"]
    if template["spec"].get("restartPolicy") not in ("OnFailure", "Never"):
        told = 'Required value: valid values: "OnFailure", "Never"'
        raise _wrong(resource, body, "template.spec.restartPolicy", told)


def _check_selector(resource: Resource, body: Object) -> None:
    spec: Object = body["spec"]
    selector, labels = spec.get("selector"), metadata(spec["template"]).get("labels") or {}
    if not selector:
        raise _wrong(resource, body, "selector", "Required value")
    is_map = resource.kind == "ReplicationController"
    if not selects({"matchLabels": selector} if is_map else selector, labels):
        told = f"Invalid value: {labels}: `selector` does not match template `labels`"
        raise _wrong(resource, body, "template.metadata.labels", told)


def _wrong(resource: Resource, body: Object, field: str, why: str) -> StatusError:
    return invalid(_called(resource), name_of(body), f"spec.{field}", why)


def _moves(strategy: Object) -> bool:
    rolling = section(strategy, "rollingUpdate")
    limits = [str(rolling.get(field)) for field in ("maxUnavailable", "maxSurge")]
    return not rolling or any(limit not in ("0", "0%") for limit in limits)


def _called(resource: Resource) -> str:
    """Return the kind as messages of a real server name it: `Deployment.apps`."""
    return f"{resource.kind}.{resource.group}" if resource.group else resource.kind
