"""Kueue admits a job once all its pods have devices. Kueue itself is not here: the class
`StandInForKueue` makes its moves, and the extender answers as it answers Kueue.
"""

from typing import Any

from kubernetes import client as k8s

from gpushare_localcluster.demo.programs import container, expect, node, pod, say, wait_for

GROUP, VERSION = "kueue.x-k8s.io", "v1beta2"
CHECK = "gpu-devices"
WORKLOADS = (GROUP, VERSION, "default", "workloads")
CHECKS = (GROUP, VERSION, "admissionchecks")
Object = dict[str, Any]


def scenario(client: k8s.ApiClient) -> None:
    """A stand-in for Kueue admits by quota, and the extender by devices."""
    core, kueue = k8s.CoreV1Api(client), StandInForKueue(client)
    core.create_node(node("gpu-a", cards=2))
    for name in ("ten-1", "ten-2"):
        core.create_namespaced_pod("default", pod(name, 10))
        wait_for(lambda name=name: core.read_namespaced_pod(name, "default").spec.node_name)
    kueue.start()
    say("6 + 6 GiB are left, and a job of 8 comes. The quota has room, and no device has:")
    kueue.submit("large", 8)
    wait_for(lambda: kueue.check("large")["state"] == "Retry", "the check of large says Retry")
    check = kueue.check("large")
    say(f"after {check['requeueAfterSeconds']} s again: {check['message']}")
    kueue.give_back("large")
    say("its quota goes back to the queue, and a job of 6 behind it is admitted:")
    kueue.submit("small", 6)
    wait_for(lambda: kueue.check("small")["state"] == "Ready", "the check of small says Ready")
    kueue.admit("small")
    wait_for(lambda: kueue.homes("small") == ["gpu-a"], "its pod runs on gpu-a")
    expect(kueue.homes("large") == [], "no pod of large exists")
    say("a pod of 10 ends. The extender has large tried again before the time is over:")
    core.delete_namespaced_pod("ten-2", "default")
    wait_for(lambda: not kueue.waits("large"), "large is tried again")
    kueue.reserve("large")
    wait_for(lambda: kueue.check("large")["state"] == "Ready", "the check of large says Ready")
    kueue.admit("large")
    wait_for(lambda: kueue.homes("large") == ["gpu-a"], "its pod runs on gpu-a")
    kueue.stop()


class StandInForKueue:
    """Kueue's moves for jobs of one pod in a queue with quota: Workloads and their statuses."""

    def __init__(self, client: k8s.ApiClient) -> None:
        self._custom = k8s.CustomObjectsApi(client)
        self._batch = k8s.BatchV1Api(client)
        self._core = k8s.CoreV1Api(client)

    def start(self) -> None:
        """An administrator creates the AdmissionCheck, and the extender takes it."""
        spec = {"controllerName": "gpushare.io/devices"}
        body = object_of("AdmissionCheck", CHECK, spec)
        self._custom.create_cluster_custom_object(*CHECKS, body)

        def is_active() -> bool:
            status = self._custom.get_cluster_custom_object(*CHECKS, CHECK).get("status") or {}
            return any(one["type"] == "Active" for one in status.get("conditions") or ())

        wait_for(is_active, "the extender answers the AdmissionCheck gpu-devices")

    def stop(self) -> None:
        """Delete the objects of Kueue."""
        for name in ("large", "small"):
            self._custom.delete_namespaced_custom_object(*WORKLOADS, name)
        self._custom.delete_cluster_custom_object(*CHECKS, CHECK)

    def submit(self, name: str, units: int) -> None:
        """A user creates a suspended Job; Kueue makes a Workload of it, and reserves quota."""
        # Containers are no processes here: by default the pods of a Job end after 5 s.
        notes = {"localcluster.gpushare.io/run-seconds": "never", f"{GROUP}/workload": name}
        template = {
            "metadata": {"annotations": notes, "labels": {f"{GROUP}/podset": "main"}},
            "spec": {"restartPolicy": "Never", "containers": [container(units)]},
        }
        job = {"metadata": {"name": name}, "spec": {"suspend": True, "template": template}}
        self._batch.create_namespaced_job("default", job)
        pod_sets = [{"name": "main", "count": 1, "template": template}]
        body = object_of("Workload", name, {"podSets": pod_sets})
        self._custom.create_namespaced_custom_object(*WORKLOADS, body)
        self.reserve(name)

    def reserve(self, name: str) -> None:
        """Reserve quota: the check is pending."""
        assignment = {"name": "main", "count": 1, "resourceUsage": {}}
        self._patch(
            name,
            admission={"clusterQueue": "gpus", "podSetAssignments": [assignment]},
            conditions=[condition("QuotaReserved", "True")],
            requeueState=None,
        )

    def give_back(self, name: str) -> None:
        """Take the quota of a refused workload, and let it wait."""
        self._patch(
            name,
            admission=None,
            conditions=[condition("QuotaReserved", "False"), condition("Evicted", "True")],
            requeueState={"count": 1, "requeueAt": "2100-01-01T00:00:00Z"},
        )

    def admit(self, name: str) -> None:
        """Start the job of a workload whose check is Ready."""
        self._batch.patch_namespaced_job(name, "default", {"spec": {"suspend": False}})

    def check(self, name: str) -> Object:
        """Return the state of the check of a workload."""
        (check,) = self._status(name)["admissionChecks"]
        state: Object = check
        return state

    def waits(self, name: str) -> bool:
        """Return whether the workload waits for its next try."""
        return bool((self._status(name).get("requeueState") or {}).get("requeueAt"))

    def homes(self, name: str) -> list[str]:
        """Return the nodes of the job's pods."""
        pods = self._core.list_namespaced_pod("default", label_selector=f"job-name={name}").items
        return [item.spec.node_name for item in pods]

    def _status(self, name: str) -> Object:
        workload: Object = self._custom.get_namespaced_custom_object(*WORKLOADS, name)
        status: Object = workload["status"]
        return status

    def _patch(self, name: str, **status: object) -> None:
        """Change the status; the check begins anew."""
        status["admissionChecks"] = [{"name": CHECK, "state": "Pending", "message": ""}]
        body = {"status": status}
        self._custom.patch_namespaced_custom_object_status(*WORKLOADS, name, body)


def object_of(kind: str, name: str, spec: Object) -> Object:
    """Return an object of Kueue."""
    version = f"{GROUP}/{VERSION}"
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": spec}


def condition(kind: str, status: str) -> Object:
    """Return a condition of a workload."""
    return {"type": kind, "status": status, "reason": "StandIn", "message": ""}
