"""JobSets, groups of Jobs created at once, and LeaderWorkerSets, groups of a leader and workers.

Facts: sigs.k8s.io/jobset pkg/controllers, sigs.k8s.io/lws pkg/controllers and pkg/webhooks (names,
labels and annotations). Restarts, success policies, roll-outs and dependencies between Jobs are
left out. Workers are created as soon as the leader exists, as by startupPolicy LeaderCreated. The
real controller creates StatefulSets; here the LeaderWorkerSet owns the pods itself.
"""

from gpushare_localcluster.client import Json
from gpushare_localcluster.controllers.cluster import (
    RETRY,
    Cluster,
    active,
    condition,
    hashed,
    name,
    ready,
)
from gpushare_localcluster.controllers.jobs import finished

_JOB_SET = "jobset.sigs.k8s.io"

_LEADER_WORKER_SET = "leaderworkerset.sigs.k8s.io"


def reconcile_job_set(cluster: Cluster, owner: Json) -> float | None:
    """Create the missing Jobs of a JobSet, and count the ended ones."""
    jobs = {name(job): job for job in cluster.owned(owner, "Job")}
    statuses = []
    for replicated in owner["spec"]["replicatedJobs"]:
        group_jobs = []
        for index in range(replicated.get("replicas", 1)):
            title = f"{name(owner)}-{replicated['name']}-{index}"
            group_jobs.append(
                jobs.get(title) or _create_job(cluster, owner, replicated, title, index)
            )
        succeeded = sum(condition(job, "Complete").get("status") == "True" for job in group_jobs)
        failed = sum(map(finished, group_jobs)) - succeeded
        counts = {
            "active": len(group_jobs) - succeeded - failed,
            "succeeded": succeeded,
            "failed": failed,
        }
        statuses.append({"name": replicated["name"], **counts})
    cluster.set_status(owner, {"restarts": 0, "replicatedJobsStatus": statuses})
    return None


def _create_job(cluster: Cluster, owner: Json, replicated: Json, title: str, index: int) -> Json:
    labels = {
        f"{_JOB_SET}/jobset-name": name(owner),
        f"{_JOB_SET}/replicatedjob-name": replicated["name"],
        f"{_JOB_SET}/replicatedjob-replicas": str(replicated.get("replicas", 1)),
        f"{_JOB_SET}/job-index": str(index),
        f"{_JOB_SET}/restart-attempt": "0",
    }
    spec = replicated["template"]["spec"]
    pods = spec["template"]
    template_meta = pods.get("metadata") or {}
    metadata = {
        "labels": {**(template_meta.get("labels") or {}), **labels},
        "annotations": {**(template_meta.get("annotations") or {}), **labels},
    }
    indexed = {"completionMode": "Indexed", "completions": spec.get("parallelism", 1)}
    body = {
        "metadata": {"name": title, "labels": labels},
        "spec": {**indexed, **spec, "template": {**pods, "metadata": metadata}},
    }
    return cluster.create("Job", owner, body)


def reconcile_leader_worker_set(cluster: Cluster, owner: Json) -> float | None:
    """Create the missing leaders and workers, and delete surplus pods."""
    template = owner["spec"]["leaderWorkerTemplate"]
    replicas, size = owner["spec"].get("replicas", 1), template.get("size", 1)
    pods = {name(pod): pod for pod in cluster.owned(owner, "Pod")}
    is_refused = False
    for group in range(replicas):
        for worker in range(size):
            if _title(owner, group, worker) not in pods:
                is_refused |= not _create_member(cluster, owner, group, worker)
    for title in pods.keys() - {_title(owner, g, w) for g in range(replicas) for w in range(size)}:
        cluster.delete_pod(owner, pods[title])
    leaders = [pods.get(_title(owner, group, 0)) for group in range(replicas)]
    alive = [leader for leader in leaders if leader is not None and active(leader)]
    cluster.set_status(owner, {"replicas": len(alive), "readyReplicas": sum(map(ready, alive))})
    return RETRY if is_refused else None


def _title(owner: Json, group: int, worker: int) -> str:
    return f"{name(owner)}-{group}" + (f"-{worker}" if worker else "")


def _create_member(cluster: Cluster, owner: Json, group: int, worker: int) -> bool:
    template = owner["spec"]["leaderWorkerTemplate"]
    leader = _title(owner, group, 0)
    labels = {
        f"{_LEADER_WORKER_SET}/name": name(owner),
        f"{_LEADER_WORKER_SET}/group-index": str(group),
        f"{_LEADER_WORKER_SET}/group-key": hashed([owner["metadata"]["namespace"], leader]),
        f"{_LEADER_WORKER_SET}/worker-index": str(worker),
    }
    annotations = {f"{_LEADER_WORKER_SET}/size": str(template.get("size", 1))}
    if worker:
        annotations[f"{_LEADER_WORKER_SET}/leader-name"] = leader
    worker_template = template["workerTemplate"]
    pod_template = worker_template if worker else template.get("leaderTemplate") or worker_template
    title = _title(owner, group, worker)
    return cluster.create_pod(
        owner, pod_template, name=title, labels=labels, annotations=annotations
    )
