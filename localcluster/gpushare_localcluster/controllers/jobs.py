"""Jobs: pods that run to completion.

Facts: k8s.io/kubernetes pkg/controller/job. Ended pods are counted while they exist; the real
controller also counts deleted pods.
"""

from gpushare_localcluster.api.objects import timestamp
from gpushare_localcluster.client import Json
from gpushare_localcluster.controllers.cluster import (
    RETRY,
    Cluster,
    active,
    condition,
    phase,
    ready,
    seconds_since,
    with_condition,
)

_INDEX = "batch.kubernetes.io/job-completion-index"


def reconcile(cluster: Cluster, owner: Json) -> float | None:
    """Bring a Job one step further; return the seconds until the next step."""
    spec, status = owner["spec"], owner.get("status") or {}
    if finished(owner):
        return _expire(cluster, owner)
    pods = cluster.claimed(owner, "Pod")
    is_indexed = spec["completionMode"] == "Indexed"
    succeeded = [pod for pod in pods if phase(pod) == "Succeeded"]
    if is_indexed:  # of several pods with one index, only one counts
        succeeded = list({_index(pod): pod for pod in succeeded}.values())
    failed = sum(phase(pod) == "Failed" for pod in pods)
    running = [pod for pod in pods if active(pod)]
    started = None if spec["suspend"] else status.get("startTime") or timestamp()
    limit = spec.get("activeDeadlineSeconds")
    time_left = None if limit is None or started is None else limit - seconds_since(started)
    reason = message = ""
    if failed > spec["backoffLimit"]:
        reason, message = "BackoffLimitExceeded", "Job has reached the specified backoff limit"
    elif time_left is not None and time_left <= 0:
        reason, message = "DeadlineExceeded", "Job was active longer than specified deadline"
    is_refused = is_complete = False
    conditions = _suspended(owner, status.get("conditions") or [])
    if reason or spec["suspend"]:
        for pod in running:
            cluster.delete_pod(owner, pod)
    elif _complete(spec, succeeded, running):
        is_complete = True
        conditions = _ended(conditions, "SuccessCriteriaMet", "Complete", "CompletionsReached", "")
        cluster.tell(owner, "Completed", "Job completed")
    else:
        is_refused = not _start(cluster, owner, succeeded, running)
    if reason:
        conditions = _ended(conditions, "FailureTarget", "Failed", reason, message)
        cluster.tell(owner, reason, message, kind="Warning")
    stops = bool(reason or spec["suspend"])
    indexes = ",".join(map(str, sorted(map(_index, succeeded))))
    fields: Json = {
        "active": 0 if stops else len(running),
        "succeeded": len(succeeded),
        "failed": failed + (len(running) if reason else 0),
        "ready": sum(map(ready, running)),
        "startTime": started,
        "completionTime": timestamp() if is_complete else None,
        "completedIndexes": indexes if is_indexed else None,
        "conditions": conditions or None,
        "uncountedTerminatedPods": {},
        "terminating": 0,
    }
    cluster.set_status(owner, fields)
    return RETRY if is_refused else time_left


def finished(job: Json) -> bool:
    """Return whether a Job has completed or failed."""
    return any(condition(job, kind).get("status") == "True" for kind in ("Complete", "Failed"))


def _expire(cluster: Cluster, job: Json) -> float | None:
    lifetime = job["spec"].get("ttlSecondsAfterFinished")
    if lifetime is None:
        return None
    ended = condition(job, "Complete") or condition(job, "Failed")
    seconds = lifetime - seconds_since(ended["lastTransitionTime"])
    if seconds > 0:
        return float(seconds)
    cluster.delete(job)
    return None


def _complete(spec: Json, succeeded: list[Json], running: list[Json]) -> bool:
    completions = spec.get("completions")
    return (
        len(succeeded) >= completions
        if completions is not None
        else bool(succeeded) and not running
    )


def _start(cluster: Cluster, owner: Json, succeeded: list[Json], running: list[Json]) -> bool:
    """Create or delete pods until the parallelism is met; return whether no pod was refused."""
    spec = owner["spec"]
    completions = spec.get("completions")
    limit = (
        min(spec["parallelism"], completions - len(succeeded))
        if completions is not None
        else spec["parallelism"]
    )
    if completions is None and succeeded:
        limit = len(running)  # A pod has succeeded: no new pods.
    for pod in running[limit:]:
        cluster.delete_pod(owner, pod)
    count = max(0, limit - len(running))
    if spec["completionMode"] != "Indexed":
        return all(cluster.create_pod(owner, spec["template"]) for _ in range(count))
    used_indexes = {_index(pod) for pod in (*succeeded, *running)}
    free_indexes = [number for number in range(completions or 0) if number not in used_indexes][
        :count
    ]
    return all(_start_index(cluster, owner, number) for number in free_indexes)


def _start_index(cluster: Cluster, owner: Json, number: int) -> bool:
    note, title = {_INDEX: str(number)}, owner["metadata"]["name"]
    template, prefix = owner["spec"]["template"], f"{title}-{number}-"
    env = {"name": "JOB_COMPLETION_INDEX", "value": str(number)}
    containers = [
        {**container, "env": [*(container.get("env") or ()), env]}
        for container in template["spec"]["containers"]
    ]
    indexed = {**template, "spec": {**template["spec"], "containers": containers}}
    return cluster.create_pod(owner, indexed, generateName=prefix, annotations=note, labels=note)


def _index(pod: Json) -> int:
    return int((pod["metadata"].get("annotations") or {}).get(_INDEX, "0"))


def _suspended(job: Json, conditions: list[Json]) -> list[Json]:
    """Return the conditions with Suspended, if the job is or was suspended."""
    old_status = condition(job, "Suspended").get("status")
    if job["spec"]["suspend"]:
        return with_condition(conditions, "Suspended", "True", "JobSuspended", "Job suspended")
    if old_status == "True":
        return with_condition(conditions, "Suspended", "False", "JobResumed", "Job resumed")
    return conditions


def _ended(conditions: list[Json], first: str, last: str, reason: str, message: str) -> list[Json]:
    conditions = with_condition(conditions, first, "True", reason, message)
    return with_condition(conditions, last, "True", reason, message)
