"""A real Kueue on a plane: its definitions, webhooks and process, and queues and jobs for it.

Knows Kueue's configuration and objects. Kueue reads a certificate for its metrics at a fixed path
below /etc, so it runs with an /etc of its own.
"""

import json
import os
import shutil
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpushare.wire.kueue import API, CONTROLLER
from tests.contract.apiserver.client import MERGE, Api, Json
from tests.e2e.binaries import tool
from tests.e2e.objects import MEM, Objects, fresh
from tests.e2e.plane import ADMIN, Plane
from tests.e2e.processes import Process, until
from tests.integration.certificates import authority, certificate
from tests.integration.process import free_port

_DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_WEBHOOKS = "/apis/admissionregistration.k8s.io/v1"
_CALLED_FOR = {"", "batch", "kueue.x-k8s.io"}
"""The API groups whose webhooks are registered: others are of frameworks that do not run here."""
_NAMESPACE = "kueue-system"
JOBS = "/apis/batch/v1/namespaces/default/jobs"
CHECK = "gpu-devices"
CHECKED = {"admissionChecksStrategy": {"admissionChecks": [{"name": CHECK}]}}
"""The part of a ClusterQueue's spec that has the extender asked."""
POOL = "tests/pool"
"""The label of the nodes of a flavor."""
RACK = "tests/rack"


class Kueue:
    """A running Kueue; `start` also defines its objects."""

    def __init__(self, plane: Plane, folder: Path) -> None:
        self._plane, self._folder = plane, folder
        self._program = tool("kueue")
        self._port, self._health_port = free_port(), free_port()
        self.process: Process | None = None

    def start(self) -> None:
        """Wait until Kueue is ready."""
        api = self._plane.api()
        self._folder.mkdir(exist_ok=True)
        _define(api, self._program.parent / "crd")
        api.create("/api/v1/namespaces", {"metadata": {"name": _NAMESPACE}})
        certificates = self._certificates()
        self._launch(certificates)
        self._register(api, (certificates / "ca.crt").read_bytes())

    def stop(self) -> None:
        if self.process:
            self.process.kill()

    def told(self) -> str:
        return self.process.last_lines() if self.process else ""

    def _certificates(self) -> Path:
        """Return the folder of a new certificate, where Kueue expects one for its metrics."""
        folder = self._folder / "etc" / "kueue" / "metrics" / "certs"
        folder.mkdir(parents=True)
        authority(folder, "ca")
        extensions = "subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth"
        certificate(folder, "tls", "kueue", "ca", extensions)
        return folder

    def _launch(self, certificates: Path) -> None:
        configuration = {
            "apiVersion": "config.kueue.x-k8s.io/v1beta2",
            "kind": "Configuration",
            "health": {"healthProbeBindAddress": f"127.0.0.1:{self._health_port}"},
            "metrics": {"bindAddress": "127.0.0.1:0"},
            "webhook": {"host": "127.0.0.1", "port": self._port, "certDir": str(certificates)},
            "leaderElection": {"leaderElect": False},
            "internalCertManagement": {"enable": False},
            "integrations": {"frameworks": ["batch/job", "pod"]},
            "featureGates": {"VisibilityOnDemand": False},
        }
        file = self._folder / "kueue.yaml"
        file.write_text(yaml.safe_dump(configuration))
        own_etc = f'mount --bind {self._folder / "etc"} /etc && exec "$@"'
        unshare = shutil.which("unshare")
        if unshare is None:
            pytest.skip("no unshare to give Kueue an /etc of its own with")
        as_root = () if os.geteuid() == 0 else ("--map-root-user",)
        kubeconfig = self._plane.kubeconfig(ADMIN)
        command: list[str | Path] = [
            *(unshare, "--mount", *as_root, "sh", "-c", own_etc, "sh"),
            *("env", f"KUEUE_NAMESPACE={_NAMESPACE}"),
            *(self._program, "--config", file, "--kubeconfig", kubeconfig),
        ]
        self.process = Process("kueue", command, self._folder)

    def _register(self, api: Api, authority_text: bytes) -> None:
        """Register the webhooks, and wait until they answer."""
        for document in yaml.safe_load_all((self._program.parent / "webhooks.yaml").read_text()):
            webhooks = []
            for webhook in document["webhooks"]:
                groups = {group for rule in webhook["rules"] for group in rule["apiGroups"]}
                if not groups <= _CALLED_FOR:
                    continue
                path = webhook["clientConfig"]["service"]["path"]
                bundle = b64encode(authority_text).decode()
                url = f"https://127.0.0.1:{self._port}{path}"
                webhooks.append(webhook | {"clientConfig": {"url": url, "caBundle": bundle}})
            plural = f"{document['kind'].lower()}s"
            api.create(f"{_WEBHOOKS}/{plural}", document | {"webhooks": webhooks})
        assert self.process
        body = _body("ResourceFlavor", "tried", {})
        self.process.wait(
            lambda: api.call("POST", f"{API}/resourceflavors", body).status == 201,
            "its webhooks do not answer",
        )
        create(api, "AdmissionCheck", CHECK, {"controllerName": CONTROLLER})


def create(api: Api, kind: str, name: str, spec: Json, namespace: str = "") -> None:
    """Create an object of Kueue."""
    place = f"{API}/namespaces/{namespace}" if namespace else API
    plural = "topologies" if kind == "Topology" else f"{kind.lower()}s"
    api.create(f"{place}/{plural}", _body(kind, name, spec))


def _body(kind: str, name: str, spec: Json) -> Json:
    version = API.removeprefix("/apis/")
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": spec}


def _define(api: Api, folder: Path) -> None:
    """Define the custom resources, and return when they are served."""
    paths = []
    for file in sorted(folder.iterdir()):
        document = yaml.safe_load(file.read_text())
        api.create(_DEFINITIONS, document)
        spec = document["spec"]
        served = [version["name"] for version in spec["versions"] if version["served"]]
        paths += [f"/apis/{spec['group']}/{name}/{spec['names']['plural']}" for name in served]
    until(
        lambda: all(api.get(path).status == 200 for path in paths),
        "Kueue's resources are not served",
    )


class Queue:
    """A LocalQueue of namespace default with a ClusterQueue, and a flavor with nodes of its own."""

    def __init__(
        self,
        objects: Objects,
        quota: int,
        *,
        flavor: str = "",
        topology: str = "",
        checked: bool = True,
        **spec: Any,
    ) -> None:
        """flavor: of another queue, "" for a new one. checked: by the extender. spec: more of the
        ClusterQueue.
        """
        self.objects, self.api, self.name = objects, objects.api, fresh("queue")
        self.flavor = flavor or self.name
        if not flavor:
            more = {"topologyName": topology} if topology else {}
            labels = {"nodeLabels": {POOL: self.flavor}}
            create(self.api, "ResourceFlavor", self.flavor, labels | more)
        resources = [{"name": MEM, "nominalQuota": str(quota)}]
        group = {
            "coveredResources": [MEM],
            "flavors": [{"name": self.flavor, "resources": resources}],
        }
        body = {
            "namespaceSelector": {},
            "resourceGroups": [group],
            **(CHECKED if checked else {}),
            **spec,
        }
        create(self.api, "ClusterQueue", self.name, body)
        create(self.api, "LocalQueue", self.name, {"clusterQueue": self.name}, "default")

    def node(self, *, devices: int = 1, rack: str = "") -> str:
        """A new node of the flavor."""
        name = self.objects.node(devices=devices)
        own = {POOL: self.flavor, "kubernetes.io/hostname": name} | ({RACK: rack} if rack else {})
        self.objects.patch(f"/api/v1/nodes/{name}", {"metadata": {"labels": own}})
        return name

    def job(
        self, units: int, count: int = 1, *, least: int = 0, annotations: Json | None = None
    ) -> str:
        """The name of a new suspended job of so many pods, or of `least` if that is not 0.

        annotations: of the pods.
        """
        name = fresh("job")
        container = {"name": "main", "image": "x", "resources": {"limits": {MEM: str(units)}}}
        pod = {
            "containers": [container],
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
        }
        template = {"metadata": {"annotations": annotations or {}}, "spec": pod}
        spec = {"parallelism": count, "completions": count, "suspend": True, "template": template}
        labels = {"kueue.x-k8s.io/queue-name": self.name}
        partial = {"kueue.x-k8s.io/job-min-parallelism": str(least)} if least else {}
        metadata = {"name": name, "labels": labels, "annotations": partial}
        self.api.create(JOBS, {"metadata": metadata, "spec": spec})
        return name

    def workload(self, job: str) -> Json | None:
        """The workload of the job, once Kueue has made it."""
        for item in self.api.get(f"{API}/namespaces/default/workloads").body["items"]:
            owners = item["metadata"].get("ownerReferences") or ()
            if any(owner["name"] == job for owner in owners):
                found: Json = item
                return found
        return None

    def condition(self, job: str, kind: str) -> bool:
        """Whether this condition of the workload is true."""
        status = (self.workload(job) or {}).get("status", {})
        conditions = status.get("conditions") or ()
        return any((one["type"], one["status"]) == (kind, "True") for one in conditions)

    def check(self, job: str) -> Json:
        """The state of the check of the job's workload; {} before there is one."""
        checks = (self.workload(job) or {}).get("status", {}).get("admissionChecks") or [{}]
        check: Json = checks[0]
        return check

    def was_refused(self, job: str) -> bool:
        """Whether the check has been Retry."""
        check = self.check(job)
        return check.get("state") == "Retry" or bool(check.get("retryCount"))

    def pods(self, job: str) -> list[Json]:
        """The pods of the job."""
        path = f"/api/v1/namespaces/default/pods?labelSelector=job-name%3D{job}"
        return list(self.api.get(path).body["items"])

    def is_bound(self, job: str, count: int = 1) -> bool:
        """Whether so many pods of the job are bound."""
        return sum(bool(pod["spec"].get("nodeName")) for pod in self.pods(job)) == count

    def delete(self, job: str) -> None:
        """Delete the job, its workload and its pods."""
        self.api.delete(f"{JOBS}/{job}", {"propagationPolicy": "Background"})
        workload = self.workload(job)
        if workload is not None:
            name = workload["metadata"]["name"]
            self.api.delete(f"{API}/namespaces/default/workloads/{name}")
        until(lambda: self._has_no_pods(job), f"pods of {job} remain")

    def _has_no_pods(self, job: str) -> bool:
        """Take the finalizers off the pods, as the Job controller may not be there, and look."""
        pods = self.pods(job)
        for pod in pods:
            body = json.dumps({"metadata": {"finalizers": None}})
            self.api.patch(self.objects.path(pod), json.loads(body), MERGE)
        self.objects.delete(*pods)
        return not pods
