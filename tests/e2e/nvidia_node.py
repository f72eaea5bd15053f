"""A node with NVIDIA's container toolkit and no GPU: a stand-in of NVML is the driver.

The toolkit's own programs write the CDI file and change the OCI specification; CDI devices are
added by the library of containerd and CRI-O. The input for runc is read.
"""

import json
import os
import shutil
import stat
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gpushare.device_plugin import kubelet_pb2 as pb
from tests.e2e.binaries import tool

Json = dict[str, Any]

STAND_IN = Path(__file__).parents[1] / "unit" / "device_plugin" / "stand_in_nvml.c"
DRIVER = "615.10.01"
LIBRARIES = "usr/lib/x86_64-linux-gnu"
NODES = {"nvidiactl": 255, "nvidia-modeset": 254}
UVM = {"nvidia-uvm": 0, "nvidia-uvm-tools": 1}
MAJOR, _UVM_MAJOR = 195, 510
_SPEC: Json = {
    "ociVersion": "1.1.0",
    "process": {"args": ["sleep"], "cwd": "/", "env": ["PATH=/bin"], "user": {"uid": 0, "gid": 0}},
    "root": {"path": "rootfs"},
    "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}],
    "linux": {"namespaces": [{"type": "pid"}, {"type": "mount"}]},
}
_PRIVILEGED = {
    kind: ["CAP_SYS_ADMIN"] for kind in ("bounding", "effective", "permitted", "inheritable")
}


@dataclass(frozen=True)
class Started:
    """The GPUs in the input for runc."""

    nodes: frozenset[str]
    """The paths of device nodes of NVIDIA's driver."""
    libraries: frozenset[str]
    """The names of libraries of the driver that are mounted."""
    hooks: tuple[str, ...]
    """The command of each hook."""
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def gpus(self) -> frozenset[str]:
        """The numbers of the GPUs with device nodes."""
        numbers = {node.removeprefix("/dev/nvidia") for node in self.nodes}
        return frozenset(number for number in numbers if number.isdigit())


class NvidiaNode:
    """The node. gpus: lines of the stand-in."""

    def __init__(self, folder: Path, gpus: Sequence[str]) -> None:
        self.folder = folder
        self.root = folder / "driver"
        self.cdi = folder / "cdi"
        self.runtime = tool("nvidia-container-runtime")
        self._ctk, self._inject = (
            self.runtime.parent / name for name in ("nvidia-ctk", "cdi-inject")
        )
        compiler = shutil.which("cc")
        if compiler is None or not self._inject.exists():
            pytest.skip("no C compiler, or no cdi-inject beside nvidia-container-runtime")
        nvml = folder / "nvml"
        nvml.write_text("".join(f"{line}\n" for line in gpus))
        self.variables = {
            "STAND_IN_NVML": str(nvml),
            "STAND_IN_DRIVER": DRIVER,
            "XDG_CONFIG_HOME": str(folder / "config"),
        }
        """What the stand-in and the toolkit read of the environment."""
        self._make_driver(compiler, len(gpus))
        self._make_low_level_runtime()

    def _make_driver(self, compiler: str, gpus: int) -> None:
        libraries = self.root / LIBRARIES
        libraries.mkdir(parents=True)
        for name in ("libnvidia-ml.so", "libcuda.so"):
            target = libraries / f"{name}.{DRIVER}"
            command = [compiler, "-shared", "-fPIC", f"-Wl,-soname,{name}.1", "-o", str(target)]
            subprocess.run([*command, str(STAND_IN)], check=True, timeout=60)
            (libraries / f"{name}.1").symlink_to(target.name)
        devices = self.root / "dev"
        devices.mkdir()
        numbers = {f"nvidia{number}": number for number in range(gpus)} | NODES
        try:
            for major, nodes in ((MAJOR, numbers), (_UVM_MAJOR, UVM)):
                for name, minor in nodes.items():
                    mode = 0o666 | stat.S_IFCHR
                    os.mknod(devices / name, mode, os.makedev(major, minor))
        except PermissionError:
            pytest.skip("device nodes cannot be made here: it takes root")

    def _make_low_level_runtime(self) -> None:
        """Write the program in place of runc, which stores the specification."""
        script = self.folder / "keep-config"
        bundle, survivors = self.folder / "bundle", self.folder / "kept.json"
        script.write_text(f"#!/bin/sh\ncp {bundle}/config.json {survivors}\n")
        script.chmod(0o755)

    def write_cdi(self) -> None:
        """Make the toolkit write its CDI file, as its service does at boot."""
        self.cdi.mkdir(exist_ok=True)
        self._run(
            *(self._ctk, "cdi", "generate", f"--output={self.cdi}/nvidia.yaml"),
            *(f"--driver-root={self.root}", f"--dev-root={self.root}"),
            *("--device-name-strategy=index", "--device-name-strategy=uuid"),
            f"--nvidia-cdi-hook-path={self._ctk}",
        )

    def configure(self, toolkit: Mapping[str, bool], runtime: Path, *, mode: str = "auto") -> None:
        """Write the toolkit's configuration. runtime: the program that NVIDIA's runtime calls."""
        file = self.folder / "config/nvidia-container-runtime/config.toml"
        file.parent.mkdir(parents=True, exist_ok=True)
        settings = "".join(f"{name} = {str(on).lower()}\n" for name, on in toolkit.items())
        file.write_text(
            f"{settings}"
            f'[nvidia-container-cli]\nroot = "{self.root}"\n'
            f'[nvidia-ctk]\npath = "{self._ctk}"\n'
            f'[nvidia-container-runtime]\nmode = "{mode}"\nlog-level = "info"\n'
            f'debug = "/dev/null"\nruntimes = ["{runtime}"]\n'
            f'[nvidia-container-runtime.modes.cdi]\nspec-dirs = ["{self.cdi}"]\n'
        )

    def start(
        self,
        values: pb.ContainerAllocateResponse,
        toolkit: Mapping[str, bool],
        *,
        mode: str = "auto",
        privileged: bool = False,
    ) -> Started:
        """Start a container with this answer of the plug-in; toolkit: settings of the toolkit."""
        bundle = self.folder / "bundle"
        bundle.mkdir(exist_ok=True)
        config = bundle / "config.json"
        config.write_text(json.dumps(self._specification(values, privileged=privileged)))
        if values.cdi_devices or values.annotations:
            self._run(
                self._inject, self.cdi, config, *(device.name for device in values.cdi_devices)
            )
        self.configure(toolkit, self.folder / "keep-config", mode=mode)
        (self.folder / "kept.json").unlink(missing_ok=True)
        self._run(self.runtime, "create", "--bundle", bundle, "a-container")
        return self._read(json.loads((self.folder / "kept.json").read_text()))

    def _specification(self, values: pb.ContainerAllocateResponse, *, privileged: bool) -> Json:
        """Return the OCI specification before any runtime has changed it."""
        spec: Json = json.loads(json.dumps(_SPEC))
        spec["process"]["env"] += [f"{name}={value}" for name, value in values.envs.items()]
        if privileged:
            spec["process"]["capabilities"] = _PRIVILEGED
        spec["mounts"] += [
            {
                "destination": mount.container_path,
                "source": mount.host_path,
                "type": "bind",
                "options": ["rbind", "ro"],
            }
            for mount in values.mounts
        ]
        devices = []
        for path in (device.host_path for device in values.devices):
            number = (self.root / path.removeprefix("/")).stat().st_rdev
            major, minor = os.major(number), os.minor(number)
            devices.append({"path": path, "type": "c", "major": major, "minor": minor})
        spec["linux"]["devices"] = devices
        spec["annotations"] = dict(values.annotations)
        return spec

    def _read(self, spec: Json) -> Started:
        devices = spec["linux"].get("devices") or ()
        mounts = {Path(mount["destination"]).name for mount in spec["mounts"]}
        hooks = [hook for kind in (spec.get("hooks") or {}).values() for hook in kind]
        pairs = [text.partition("=") for text in spec["process"]["env"]]
        return Started(
            frozenset(item["path"] for item in devices if "/nvidia" in item["path"]),
            frozenset(name.partition(".so")[0] for name in mounts if ".so" in name),
            tuple(" ".join(hook.get("args", (hook["path"],))) for hook in hooks),
            {name: value for name, _, value in pairs},
        )

    def _run(self, *words: str | Path) -> None:
        finished = subprocess.run(
            words,
            env=os.environ | self.variables,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert finished.returncode == 0, finished.stderr[-2000:]
