"""What the kubectl tests have in hand: a real kubectl, and a server to play the other parts on.

Knows the command line and the API's JSON; which API server it is does not matter here.
"""

import json
import os
import subprocess
from pathlib import Path

import yaml

from gpushare_localcluster.api.apiserver import ApiServer
from tests.contract.apiserver.client import MERGE, Api, Json


class Server:
    """An API server as administrator and kubelet see it, and a namespace that is the test's own."""

    def __init__(self, api: Api, kubeconfig: str, namespace: str, local: ApiServer | None) -> None:
        self.api = api
        self.kubeconfig = kubeconfig
        self.namespace = namespace
        self.local = local
        self._pods = f"/api/v1/namespaces/{namespace}/pods"

    def run_pod(self, name: str = "trainer", node: str = "gpu-1") -> str:
        """Bind a pod and report it running, as scheduler and kubelet do; gives its uid."""
        target = {"kind": "Node", "name": node}
        binding = {"metadata": {"name": name}, "target": target}
        self.api.create(f"{self._pods}/{name}/binding", binding)
        started = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
        ran = {"name": "main", "ready": True, "restartCount": 0, "image": "x", "imageID": ""}
        status = {
            "phase": "Running",
            "podIP": "10.0.0.7",
            "podIPs": [{"ip": "10.0.0.7"}],
            "containerStatuses": [{**ran, "state": started}],
            "conditions": [{"type": "Ready", "status": "True"}],
        }
        reply = self.api.patch(f"{self._pods}/{name}/status", {"status": status}, MERGE)
        assert reply.status == 200, reply.body
        return str(reply.meta["uid"])

    def pod(self, name: str = "trainer") -> Json:
        """The pod's metadata."""
        return self.api.get(f"{self._pods}/{name}").meta

    def end_pod(self, name: str = "trainer") -> None:
        """Confirm that it is gone, as its kubelet does."""
        reply = self.api.delete(f"{self._pods}/{name}", {"gracePeriodSeconds": 0})
        assert reply.status == 200, reply.body


class Kubectl:
    """Runs kubectl with a home of its own, so that no discovery cache leaks in or out."""

    def __init__(self, server: Server, home: Path) -> None:
        config = yaml.safe_load(server.kubeconfig)
        for each in config["contexts"]:
            each["context"]["namespace"] = server.namespace
        file = home / "config"
        file.write_text(json.dumps(config))
        self.env = {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "KUBECONFIG": str(file),
            "KUBECACHEDIR": str(home / "cache"),
            "GOGC": "off",  # it ends before its garbage is worth a look: a fifth of its CPU
        }

    def __call__(self, *args: str, stdin: str | None = None, code: int = 0) -> str:
        done = subprocess.run(
            ["kubectl", *args],
            env=self.env,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def start(self, *args: str) -> subprocess.Popen[str]:
        return subprocess.Popen(["kubectl", *args], env=self.env, stdout=subprocess.PIPE, text=True)
