"""Device plug-ins as processes on a node: each can be killed and started again.

Knows the command lines; test_device_plugin.py has the checks.
"""

import functools
import json
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.e2e.extender import GPUSHARE
from tests.e2e.node import Node
from tests.e2e.objects import MEM
from tests.e2e.plane import ADMIN, Plane
from tests.e2e.processes import Process
from tests.e2e.world import account_token, apply
from tests.integration.process import free_port

DEVICES, UNITS = 4, 16
"""The devices of a node: a number of devices with a number of GiB each."""


class Plugin:
    """A device plug-in that serves DEVICES of UNITS on the node; `name` is its name in tables."""

    name: str

    def __init__(self, plane: Plane, node: Node, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self._plane, self._node, self._folder = plane, node, folder
        self.process: Process | None = None

    def start(self) -> None:
        """Wait until the node advertises its resources."""
        self.launch()
        self._node.advertises(MEM, DEVICES * UNITS)

    def launch(self) -> None:
        self.process = Process("device-plugin", self.command(), self._folder)

    def kill(self) -> None:
        if self.process:
            self.process.kill()

    @property
    def log(self) -> str:
        return self.process.log if self.process else ""

    def told(self) -> str:
        """The state for the message of a failed wait."""
        return self.process.last_lines() if self.process else "no device plug-in"

    def command(self) -> list[str | Path]:
        raise NotImplementedError


class BySize(Plugin):
    """The tests' own, which does as the original does."""

    name = "one that goes by size, as the original does"

    def command(self) -> list[str | Path]:
        tests = ("env", f"PYTHONPATH={Path(__file__).parents[2]}", sys.executable, "-m")
        program = "tests.e2e.plugin_by_size"
        access = (self._plane.url, self._plane.ca, self._plane.token(ADMIN))
        path = (self._node.name, self._node.device_plugins)
        return [*tests, program, *path, *access, str(DEVICES), str(UNITS)]


class Ours(Plugin):
    """`gpushare device-plugin`, told its devices by a file."""

    name = "`gpushare device-plugin`"
    pods_api = True
    isolation = "auto"
    strategy = "auto"

    def __init__(self, plane: Plane, node: Node, folder: Path) -> None:
        super().__init__(plane, node, folder)
        _needs_the_command()
        self._devices = folder / "devices.json"
        devices = [
            {"uuid": f"GPU-{index:08x}", "index": index, "memoryMiB": UNITS * 1024, "model": "T4"}
            for index in range(DEVICES)
        ]
        self._devices.write_text(json.dumps({"devices": devices}))
        self._health = free_port()
        self._kubeconfig = Path()

    def start(self) -> None:
        """Return when the node advertises it; it has the rights that our manifests give."""
        if not self._kubeconfig.name:
            apply(self._plane, "device-plugin")
            token = account_token(self._plane.api(), "gpushare-device-plugin", self._node.name)
            self._kubeconfig = self._plane.kubeconfig("device-plugin", token)
        super().start()

    def replace(self) -> None:
        """As a DaemonSet with maxSurge does: end the old one when the new one is ready."""
        old, self._health = self.process, free_port()
        self.launch()
        assert self.process
        assert old
        self.process.wait(self._ready, "is not ready")
        old.kill()

    def _ready(self) -> bool:
        try:
            url = f"http://127.0.0.1:{self._health}/readyz"
            with urllib.request.urlopen(url, timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def command(self) -> list[str | Path]:
        node = self._node
        return [
            *(*GPUSHARE, "device-plugin", "--node-name", node.name),
            *("--devices-file", self._devices, "--memory-unit", "GiB"),
            *("--device-plugin-dir", node.device_plugins),
            *("--pod-resources-socket", node.pod_resources, "--pods-api-socket"),
            node.pods_api if self.pods_api else self._folder / "none.sock",
            *("--kubeconfig", self._kubeconfig, "--health-port", str(self._health)),
            *("--device-list-strategy", self.strategy),
            *("--isolation", self.isolation, "--mps-pipe-dir", self._folder / "mps"),
            *("--hami-core-dir", self._folder / "hami-core"),
        ]


class OursByHamiCore(Ours):
    """The same where HAMi-core's library is on the node; nothing runs that would load it."""

    isolation = "hami-core"

    def __init__(self, plane: Plane, node: Node, folder: Path) -> None:
        super().__init__(plane, node, folder)
        library = folder / "hami-core" / "libvgpu.so"
        library.parent.mkdir()
        library.touch()


class OursByMps(Ours):
    """The same where containers are to be clients of an MPS daemon."""

    isolation = "mps"


class OursByDriver(Ours):
    """The same where the driver limits memory."""

    isolation = "driver"


class OursByMounts(Ours):
    """The same where devices are handed over by mounts."""

    strategy = "volume-mounts"


class OursByCdi(Ours):
    """The same where they are handed over by CDI."""

    strategy = "cdi-cri"


class OursByAnnotations(Ours):
    """The same by CDI, for kubelets before 1.29."""

    strategy = "cdi-annotations"


class OursByWatch(Ours):
    """The same on a kubelet without a Pods API."""

    name = "`gpushare device-plugin` without the kubelet's Pods API"
    pods_api = False


@functools.cache
def _needs_the_command() -> None:
    """Skip the test where this gpushare has no device plug-in."""
    command = [*GPUSHARE, "device-plugin", "--help"]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("this gpushare has no device-plugin command")
