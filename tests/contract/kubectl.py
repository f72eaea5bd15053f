"""A real kubectl for tests, and a server with the roles of scheduler and kubelet.

Knows the command line and the API's JSON; any API server will do.
"""

import json
import os
import subprocess
from pathlib import Path

import yaml

from gpushare_localcluster.api.apiserver import ApiServer
from tests.contract.apiserver.client import MERGE, Api, Json


class Server:
    """An API server for administrator and kubelet, with a namespace for the test."""

    def __init__(self, api: Api, kubeconfig: str, namespace: str, local: ApiServer | None) -> None:
        self.api = api
        self.kubeconfig = kubeconfig
        self.namespace = namespace
        self.local = local
        self._pods = f"/api/v1/namespaces/{namespace}/pods"

    def run_pod(self, name: str = "trainer", node: str = "gpu-1") -> str:
        """Bind a pod and report it running, as scheduler and kubelet do; return the uid."""
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
        """Confirm the deletion, as a kubelet does."""
        reply = self.api.delete(f"{self._pods}/{name}", {"gracePeriodSeconds": 0})
        assert reply.status == 200, reply.body


class Kubectl:
    """Runs kubectl with its own home, so that no discovery cache leaks in or out."""

    def __init__(self, server: Server, home: Path) -> None:
        config = yaml.safe_load(server.kubeconfig)
        for item in config["contexts"]:
            item["context"]["namespace"] = server.namespace
        file = home / "config"
        file.write_text(json.dumps(config))
        self.env = {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "KUBECONFIG": str(file),
            "KUBECACHEDIR": str(home / "cache"),
            "GOGC": "off",  # collections would take a fifth of the CPU of a short run
        }

    def __call__(self, *args: str, stdin: str | None = None, code: int = 0) -> str:
        finished = subprocess.run(
            ["kubectl", *args],
            env=self.env,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert finished.returncode == code, finished.stdout + finished.stderr
        return finished.stdout + finished.stderr

    def start(self, *args: str) -> subprocess.Popen[str]:
        return subprocess.Popen(["kubectl", *args], env=self.env, stdout=subprocess.PIPE, text=True)
