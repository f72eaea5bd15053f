"""A real kubelet on a real API server, over a container runtime that records its calls.

Knows the command lines and the runtime's record; nothing of device plug-ins. The kubelet runs in
its own mount namespace, where the fixed folder for device plug-ins belongs to this node alone and
the kernel's settings are read-only, and in a user namespace, so it needs no root. The mounts end
with the kubelet.
"""

import functools
import json
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from tests.contract.apiserver.client import Json
from tests.e2e.binaries import needed
from tests.e2e.objects import NODES
from tests.e2e.plane import KUBELET, NODE, Plane
from tests.e2e.processes import Process, until
from tests.integration.process import free_port

_LONGEST_SOCKET = 107
_FIXED = "/var/lib/kubelet/device-plugins"
_RACE = "invalid cross-device link"
_STARTS = 3
_IN_NAMESPACE = f"""\
mount --bind /proc/sys /proc/sys
mount -o remount,bind,ro /proc/sys
mount -t tmpfs none /var/log
mount -t tmpfs none /var/lib
mkdir -p {_FIXED}
mount --bind "$0" {_FIXED}
exec "$@"
"""


@dataclass(frozen=True)
class Created:
    """A container as the kubelet had the runtime create it. attempt: 0, 1, ... of restarts."""

    pod: str
    uid: str
    container: str
    attempt: int
    env: Mapping[str, str]
    annotations: Mapping[str, str]
    cdi_devices: Sequence[str]
    mounts: Mapping[str, str]
    """The path on the node by that in the container."""


class Node:
    """A node that runs pods; the kubelet can be killed and started again, its containers run on.

    folder: short, as socket paths have at most 107 characters; a new one for each node.
    """

    def __init__(self, plane: Plane, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.name = NODE
        self.kubeconfig = plane.kubeconfig(KUBELET)
        self.root = folder / "root"
        self.device_plugins = folder / "device-plugins"
        self.device_plugins.mkdir()
        self.pod_resources = self.root / "pod-resources" / "kubelet.sock"
        self.pods_api = self.root / "pods-api" / "pods-api.sock"
        self._folder = folder
        self._record = folder / "containers.jsonl"
        self._socket = folder / "runtime.sock"
        assert len(str(self.pod_resources)) <= _LONGEST_SOCKET, f"{folder} is too long"
        self._api = plane.api()
        config = folder / "kubelet.yaml"
        config.write_text(yaml.safe_dump(self._configuration()))
        self._command: list[str | Path] = [
            *_namespaces(),
            *("sh", "-ec", _IN_NAMESPACE, self.device_plugins, needed("kubelet")),
            *("--config", config, "--kubeconfig", self.kubeconfig),
            *("--hostname-override", NODE, "--root-dir", self.root),
            *("--cert-dir", folder / "certs", "-v", "2"),
        ]
        self.runtime: Process | None = None
        self.kubelet: Process | None = None

    def start(self) -> None:
        """Return when the node is ready for pods."""
        self._socket.unlink(missing_ok=True)
        self.runtime = self._start_runtime()
        self.start_kubelet()

    def _start_runtime(self) -> Process:
        """Return the container runtime once it listens."""
        program = needed("fake-runtime")
        runtime = Process("fake-runtime", [program, self._socket, self._record], self._folder)
        runtime.wait(self._socket.exists, "does not listen")
        return runtime

    def start_kubelet(self) -> None:
        """Start the kubelet, and wait until it is ready; a killed one continues with its files.

        The kubelet may end by a race of its own between a mount and a new socket in the folder; it
        is then started again, as systemd does on a node.
        """
        before = self._heartbeat()

        def ready_or_raced() -> bool:
            return self._heartbeat() not in {"", before} or kubelet.ended_with(_RACE)

        for _ in range(_STARTS):
            kubelet = self.kubelet = Process("kubelet", self._command, self._folder)
            until(ready_or_raced, lambda: f"the kubelet is not ready:\n{self.told()}")
            if not kubelet.ended_with(_RACE):
                break
        kubelet.running()

    def kill_kubelet(self) -> None:
        if self.kubelet:
            self.kubelet.kill()

    def stop(self) -> None:
        self.kill_kubelet()
        if self.runtime:
            self.runtime.kill()

    def advertises(self, resource: str, amount: int) -> None:
        """Return once the node has so many units of the resource to give."""
        assert self.kubelet, "started"

        def seen() -> bool:
            result = self._api.get(f"{NODES}/{self.name}").body["status"]["allocatable"]
            return str(result.get(resource, "")) == str(amount)

        self.kubelet.wait(seen, f"does not advertise {amount} of {resource}")

    def created(self) -> list[Created]:
        """All containers so far, in order of creation."""
        if not self._record.exists():
            return []
        lines = self._record.read_text().splitlines()
        return [_created(json.loads(line)) for line in lines]

    def held(self) -> list[tuple[str, str, list[str]]]:
        """Pod's uid, container and ids of devices, as the kubelet's own books (a file) say."""
        books = json.loads((self.device_plugins / "kubelet_internal_checkpoint").read_text())
        return [
            (
                item["PodUID"],
                item["ContainerName"],
                [device for ids in item["DeviceIDs"].values() for device in ids],
            )
            for item in books["Data"]["PodDeviceEntries"]
        ]

    def told(self) -> str:
        """The state of the kubelet for the message of a failed wait."""
        return self.kubelet.last_lines() if self.kubelet else "no kubelet"

    def _heartbeat(self) -> str:
        """When a kubelet last said that the node is ready; "" where none has."""
        reply = self._api.get(f"{NODES}/{self.name}")
        status = reply.body["status"] if reply.status == 200 else {}
        result: Json = next(
            (item for item in status.get("conditions", ()) if item["type"] == "Ready"), {}
        )
        return str(result["lastHeartbeatTime"]) if result.get("status") == "True" else ""

    def _configuration(self) -> Json:
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "containerRuntimeEndpoint": f"unix://{self._socket}",
            "featureGates": {"KubeletInUserNamespace": True},
            "address": "127.0.0.1",
            "port": free_port(),
            "healthzPort": free_port(),
            "volumePluginDir": str(self._folder / "volume-plugins"),
            "podLogsDir": str(self._folder / "logs"),
            "maxPods": 250,
            "kubeAPIQPS": 500,
            "kubeAPIBurst": 500,
            "registryPullQPS": 0,
            "nodeStatusUpdateFrequency": "1s",
            # There is no systemd, and no cgroup is ours to manage.
            "cgroupDriver": "cgroupfs",
            "cgroupsPerQOS": False,
            "enforceNodeAllocatable": [],
            "failCgroupV1": False,
            "failSwapOn": False,
            "localStorageCapacityIsolation": False,
            "makeIPTablesUtilChains": False,
            "evictionHard": {"memory.available": "1Mi", "nodefs.available": "1Mi"},
            "imageGCHighThresholdPercent": 100,
            "resolvConf": "",
        }


def _created(line: Json) -> Created:
    """Raises AssertionError where a variable is there twice: which one counts is the runtime's."""
    env = dict(line["env"] or ())
    assert len(env) == len(line["env"] or ()), line
    return Created(
        pod=line["pod"],
        uid=line["uid"],
        container=line["container"],
        attempt=line["attempt"],
        env=env,
        annotations=line["annotations"] or {},
        cdi_devices=line["cdiDevices"] or (),
        mounts={item["container_path"]: item["host_path"] for item in line["mounts"] or ()},
    )


@functools.cache
def _namespaces() -> tuple[str, ...]:
    """The prefix of a command with its own mounts; skips the test if the system forbids that."""
    command = (shutil.which("unshare") or "unshare", "--user", "--map-root-user", "--mount")
    try:
        finished = subprocess.run(
            [*command, "mount", "-t", "tmpfs", "none", "/var/lib"], capture_output=True, check=False
        )
    except OSError as error:
        pytest.skip(f"no kubelet: {error}")
    if finished.returncode:
        pytest.skip(f"no kubelet without namespaces: {finished.stderr.decode().strip()}")
    return command
