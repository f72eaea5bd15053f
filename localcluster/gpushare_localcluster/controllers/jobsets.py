"""JobSets: groups of Jobs, all created at once.

Facts: sigs.k8s.io/jobset pkg/controllers (names and labels of Jobs and pods). Restarts, success
policies and dependencies between Jobs are left out.
"""

from gpushare_localcluster.client import Json
from gpushare_localcluster.controllers.cluster import Cluster, name
from gpushare_localcluster.controllers.jobs import finished
from gpushare_localcluster.controllers.pods import condition

_PREFIX = "jobset.sigs.k8s.io"


def reconcile(cluster: Cluster, owner: Json) -> float | None:
    """Create the missing Jobs of a JobSet, and count the ended ones."""
    jobs = {name(job): job for job in cluster.owned(owner, "Job")}
    statuses = []
    for replicated in owner["spec"]["replicatedJobs"]:
        group_jobs = []
        for index in range(replicated.get("replicas", 1)):
            title = f"{name(owner)}-{replicated['name']}-{index}"
            group_jobs.append(jobs.get(title) or _create(cluster, owner, replicated, title, index))
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


def _create(cluster: Cluster, owner: Json, replicated: Json, title: str, index: int) -> Json:
    labels = {
        f"{_PREFIX}/jobset-name": name(owner),
        f"{_PREFIX}/replicatedjob-name": replicated["name"],
        f"{_PREFIX}/replicatedjob-replicas": str(replicated.get("replicas", 1)),
        f"{_PREFIX}/job-index": str(index),
        f"{_PREFIX}/restart-attempt": "0",
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
