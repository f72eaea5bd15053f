"""Jobs: pods that run to completion.

Facts: k8s.io/kubernetes pkg/controller/job. What has ended is counted by the pods that are there:
the real controller keeps count of pods that were deleted meanwhile, too.
"""

from gpushare_localcluster.api.records import timestamp
from gpushare_localcluster.client import Json
from gpushare_localcluster.controllers.cluster import (
    RETRY,
    Cluster,
    seconds_since,
    with_condition,
)
from gpushare_localcluster.controllers.pods import active, condition, phase, ready

_INDEX = "batch.kubernetes.io/job-completion-index"


def reconcile(cluster: Cluster, owner: Json) -> float | None:
    """Bring a Job one step further; return when to look again (seconds)."""
    spec, status = owner["spec"], owner.get("status") or {}
    if finished(owner):
        return _expire(cluster, owner)
    pods = cluster.claimed(owner, "Pod")
    done = _successes(spec, pods)
    failed = [pod for pod in pods if phase(pod) == "Failed"]
    running = [pod for pod in pods if active(pod)]
    started = None if spec["suspend"] else status.get("startTime") or timestamp()
    left = _time_left(spec, started)
    reason, why = _failure(spec, failed, left)
    refused = False
    conditions = _suspended(owner, status.get("conditions") or [])
    if reason or spec["suspend"]:
        for pod in running:
            cluster.delete_pod(owner, pod)
    elif _complete(spec, done, running):
        conditions = _ended(conditions, "SuccessCriteriaMet", "Complete", "CompletionsReached", "")
        cluster.tell(owner, "Completed", "Job completed")
    else:
        refused = not _start(cluster, owner, done, running)
    if reason:
        conditions = _ended(conditions, "FailureTarget", "Failed", reason, why)
        cluster.tell(owner, reason, why, kind="Warning")
    counts = {"active": len(running), "succeeded": len(done), "failed": len(failed)}
    if reason or spec["suspend"]:
        counts = {**counts, "active": 0, "failed": len(failed) + len(running if reason else ())}
    fresh = {**counts, **_told(spec, done, conditions), "startTime": started}
    cluster.set_status(owner, {**fresh, "ready": sum(map(ready, running))})
    return RETRY if refused else left


def _told(spec: Json, done: list[Json], conditions: list[Json]) -> Json:
    """Return the parts of the status that are no numbers; None for those that are absent."""
    complete = any(each["type"] == "Complete" for each in conditions)
    indexes = ",".join(map(str, sorted(map(_index, done))))
    return {
        "completionTime": timestamp() if complete else None,
        "completedIndexes": indexes if spec["completionMode"] == "Indexed" else None,
        "conditions": conditions or None,
        "uncountedTerminatedPods": {},
        "terminating": 0,
    }


def _successes(spec: Json, pods: list[Json]) -> list[Json]:
    """Return the pods that have ended well; a second one of an index counts for nothing."""
    done = [pod for pod in pods if phase(pod) == "Succeeded"]
    is_indexed = spec["completionMode"] == "Indexed"
    return list({_index(pod): pod for pod in done}.values()) if is_indexed else done


def finished(job: Json) -> bool:
    """Return whether a Job has ended, well or not."""
    return any(condition(job, kind).get("status") == "True" for kind in ("Complete", "Failed"))


def _expire(cluster: Cluster, job: Json) -> float | None:
    lifetime = job["spec"].get("ttlSecondsAfterFinished")
    if lifetime is None:
        return None
    ended = condition(job, "Complete") or condition(job, "Failed")
    left = lifetime - seconds_since(ended["lastTransitionTime"])
    if left > 0:
        return float(left)
    cluster.delete(job)
    return None


def _time_left(spec: Json, started: str | None) -> float | None:
    limit = spec.get("activeDeadlineSeconds")
    return None if limit is None or started is None else limit - seconds_since(started)


def _failure(spec: Json, failed: list[Json], left: float | None) -> tuple[str, str]:
    if len(failed) > spec["backoffLimit"]:
        return "BackoffLimitExceeded", "Job has reached the specified backoff limit"
    if left is not None and left <= 0:
        return "DeadlineExceeded", "Job was active longer than specified deadline"
    return "", ""


def _complete(spec: Json, done: list[Json], running: list[Json]) -> bool:
    wanted = spec.get("completions")
    return len(done) >= wanted if wanted is not None else bool(done) and not running


def _start(cluster: Cluster, owner: Json, done: list[Json], running: list[Json]) -> bool:
    """Make or delete pods until as many run as should; whether none was refused."""
    spec = owner["spec"]
    wanted = spec.get("completions")
    most = (
        min(spec["parallelism"], wanted - len(done)) if wanted is not None else spec["parallelism"]
    )
    if wanted is None and done:
        most = len(running)  # One has ended well: no more begin.
    for pod in running[most:]:
        cluster.delete_pod(owner, pod)
    count = max(0, most - len(running))
    if spec["completionMode"] != "Indexed":
        return all(cluster.create_pod(owner, spec["template"]) for _ in range(count))
    taken = {_index(pod) for pod in (*done, *running)}
    free = [number for number in range(wanted or 0) if number not in taken][:count]
    return all(_start_index(cluster, owner, number) for number in free)


def _start_index(cluster: Cluster, owner: Json, number: int) -> bool:
    note, title = {_INDEX: str(number)}, owner["metadata"]["name"]
    template, made = owner["spec"]["template"], f"{title}-{number}-"
    env = {"name": "JOB_COMPLETION_INDEX", "value": str(number)}
    containers = [
        {**each, "env": [*(each.get("env") or ()), env]} for each in template["spec"]["containers"]
    ]
    indexed = {**template, "spec": {**template["spec"], "containers": containers}}
    return cluster.create_pod(owner, indexed, generateName=made, annotations=note, labels=note)


def _index(pod: Json) -> int:
    return int((pod["metadata"].get("annotations") or {}).get(_INDEX, "0"))


def _suspended(job: Json, conditions: list[Json]) -> list[Json]:
    """Return the conditions with the one that says whether the job is suspended, once it was."""
    held = condition(job, "Suspended").get("status")
    if job["spec"]["suspend"]:
        return with_condition(conditions, "Suspended", "True", "JobSuspended", "Job suspended")
    if held == "True":
        return with_condition(conditions, "Suspended", "False", "JobResumed", "Job resumed")
    return conditions


def _ended(conditions: list[Json], first: str, last: str, reason: str, why: str) -> list[Json]:
    conditions = with_condition(conditions, first, "True", reason, why)
    return with_condition(conditions, last, "True", reason, why)
