"""The name of the workload of a pod, by the names and labels that Kubernetes' controllers write.

Tested in `tests/unit/core/test_workload_names.py`.
"""

import re
from collections.abc import Mapping

_JOB_LABELS = ("batch.kubernetes.io/job-name", "job-name")
_STATEFUL_SET_LABEL = "statefulset.kubernetes.io/pod-name"
_DAEMON_SET_LABEL = "controller-revision-hash"
_OF_CRON_JOB = re.compile(r"(.+)-(?:2[6-9]|[3-9]\d)\d{6}")
"""A CronJob calls a Job NAME-MINUTES, with the minutes since the epoch. Dates have 8 digits, too,
and begin with 20."""


def deployment_of(pod: str, labels: Mapping[str, str]) -> tuple[str, str]:
    """Return (Deployment, template hash) of a pod; empty texts for a pod of no Deployment.

    The Deployment controller calls a ReplicaSet DEPLOYMENT-HASH and labels pods with the hash; a
    pod is called REPLICASET-xxxxx.
    """
    revision = labels.get("pod-template-hash", "")
    replica_set = pod.rpartition("-")[0]
    if not revision or not replica_set.endswith(f"-{revision}"):
        return "", ""
    return replica_set.removesuffix(f"-{revision}"), revision


def workload_name(pod: str, labels: Mapping[str, str]) -> str:
    """Return KIND/NAME of the workload of a pod; Pod/NAME for a pod of no known controller."""
    deployment, _ = deployment_of(pod, labels)
    if deployment:
        return f"Deployment/{deployment}"
    for label in _JOB_LABELS:
        if job := labels.get(label):
            match = _OF_CRON_JOB.fullmatch(job)
            return f"CronJob/{match[1]}" if match else f"Job/{job}"
    before = pod.rpartition("-")[0]
    if before and labels.get(_STATEFUL_SET_LABEL) == pod:
        return f"StatefulSet/{before}"
    if before and _DAEMON_SET_LABEL in labels:
        return f"DaemonSet/{before}"
    return f"Pod/{pod}"
