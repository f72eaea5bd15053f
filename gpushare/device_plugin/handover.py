"""The strategy with which this node hands devices to containers, and the reason.

Knows the configuration and the CDI files of NVIDIA's container toolkit, and the releases of
container runtimes and kubelets that take CDI devices. Reads files of the node; a file that is
missing or cannot be read counts as unknown. The answers to the kubelet are in container.py.

Tested in `tests/unit/device_plugin/test_handover.py`, and against NVIDIA's own runtime in
`tests/e2e/test_nvidia_runtime.py`.
"""

import logging
import re
import tomllib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path

from gpushare.errors import SettingsError
from gpushare.logline import Line
from gpushare.wire.device_list import DeviceList
from gpushare.yamlfile import parse_yaml, read_text

log = logging.getLogger("gpushare.handover")

TOOLKIT_FILES = (
    "etc/nvidia-container-runtime/config.toml",
    "usr/local/nvidia/toolkit/.config/nvidia-container-runtime/config.toml",
)
"""Where the toolkit's configuration is: of a package, and of NVIDIA's GPU operator."""

CDI_FOLDERS = ("etc/cdi", "var/run/cdi")

CONTROL_NODES = (
    *("dev/nvidiactl", "dev/nvidia-uvm", "dev/nvidia-uvm-tools", "dev/nvidia-modeset"),
)
"""The device nodes that a program needs besides the node of the GPU."""

_LARGEST_FILE = 1 << 20
"""Bytes of a file that is read; YAML of this size takes seconds and tens of MiB."""
_LIMITS_HOOK = "apply-cuda-memory-limits"
"""The toolkit's hook that has the driver limit the memory of a container; from 1.20.1 on."""

_CDI_KUBELET = (1, 29)
"""The first kubelet that passes CDI devices on by default (DevicePluginCDIDevices)."""
_CDI_RUNTIMES = {"containerd": (2, 0), "cri-o": (1, 27)}
"""The first releases that take CDI devices of the kubelet without a setting."""
_VERSION = re.compile(r"(\d+)\.(\d+)")


@dataclass(frozen=True, slots=True)
class Toolkit:
    """The configuration of NVIDIA's container toolkit: the accepted requests for devices."""

    path: str
    accepts_variable: bool = True
    """Of an unprivileged container."""
    accepts_mounts: bool = False


@dataclass(frozen=True, slots=True)
class CdiDevices:
    """The devices of a kind that CDI files name."""

    names: frozenset[str] = frozenset()
    path: str = ""
    """One of the files."""
    has_limits: bool = False
    """Whether the files let the driver limit memory."""


@dataclass(frozen=True, slots=True)
class Setup:
    """The settings, and the facts of a node, that decide the strategy."""

    setting: str
    """A strategy, or auto."""
    kind: str = "nvidia.com/gpu"
    """Of the CDI devices."""
    by_nvml: bool = True
    """Whether the devices are NVIDIA's, and not those of a file."""
    needs_limits: bool = False
    """Whether the driver is to limit the memory of containers."""
    toolkit: Toolkit | None = None
    cdi: CdiDevices = CdiDevices()
    runtime: str = ""
    """As in the Node's status, such as containerd://2.1.4; "" before the Node has been read."""
    kubelet: str = ""
    """Such as v1.34.1."""


def choose(setup: Setup, devices: Collection[str]) -> DeviceList:
    """Return the strategy to use for devices of these names."""
    if not setup.by_nvml and setup.setting == "auto":
        return DeviceList("envvar", "devices of a file have no driver")
    if setup.setting != "auto":
        reason = "--device-list-strategy says so"
        return DeviceList(setup.setting, reason, _problem(setup.setting, setup, devices))
    cdi_problem = "" if setup.runtime else "the container runtime is not known yet"
    cdi_problem = cdi_problem or _runtime_problem(setup.runtime) or _cdi_problem(setup, devices)
    if not cdi_problem and setup.needs_limits and not setup.cdi.has_limits:
        cdi_problem = f"{setup.cdi.path} has no hook {_LIMITS_HOOK}"
    if not cdi_problem:
        strategy = "cdi-annotations" if _kubelet_problem(setup.kubelet) else "cdi-cri"
        reason = f"{setup.cdi.path} names all GPUs, and {setup.runtime} takes CDI devices"
        return DeviceList(strategy, reason)
    toolkit = setup.toolkit
    if toolkit is None:
        reason = f"no CDI: {cdi_problem}; the toolkit's configuration is not seen, so both"
        return DeviceList("volume-mounts", f"{reason} variable and volume mounts are given")
    strategy = "volume-mounts" if toolkit.accepts_mounts else "envvar"
    request_kind = "volume mounts" if toolkit.accepts_mounts else "the variable"
    problem = _problem(strategy, setup, devices)
    if problem and not _cdi_problem(setup, devices):
        # CDI may still work, by a setting of the container runtime that is not visible here.
        return DeviceList("cdi-cri", problem, cdi_problem)
    reason = f"no CDI: {cdi_problem}; {toolkit.path} " + ("refuses" if problem else "accepts")
    return DeviceList(strategy, f"{reason} {request_kind}", problem)


def _problem(strategy: str, setup: Setup, devices: Collection[str]) -> str:
    """Return why containers get no device by this strategy, or ""."""
    toolkit = setup.toolkit
    if strategy in ("cdi-cri", "cdi-annotations"):
        old = _kubelet_problem(setup.kubelet) if strategy == "cdi-cri" else ""
        return old or _cdi_problem(setup, devices)
    if toolkit is None or (strategy == "volume-mounts" and toolkit.accepts_mounts):
        return ""
    if toolkit.accepts_variable:  # with volume mounts the variable is set, too
        return ""
    if strategy == "envvar":
        return f"{toolkit.path} refuses the variable NVIDIA_VISIBLE_DEVICES of unprivileged pods"
    return f"{toolkit.path} refuses the variable and volume mounts of unprivileged pods"


def _cdi_problem(setup: Setup, devices: Collection[str]) -> str:
    if not setup.cdi.names:
        return f"no CDI file names devices of {setup.kind}"
    unlisted_devices = sorted(set(devices) - setup.cdi.names)
    return f"no CDI file names {setup.kind}={unlisted_devices[0]}" if unlisted_devices else ""


def _runtime_problem(runtime: str) -> str:
    name, _, version = runtime.partition("://")
    first = _CDI_RUNTIMES.get(name)
    if first and _numbers(version) >= first:
        return ""
    return f"{runtime} takes no CDI devices unless it is set up to"


def _kubelet_problem(kubelet: str) -> str:
    numbers = _numbers(kubelet)
    is_old = numbers and numbers < _CDI_KUBELET
    return f"kubelet {kubelet} passes no CDI devices on by default" if is_old else ""


def _numbers(version: str) -> tuple[int, ...]:
    """Return (major, minor), () if the version is unknown."""
    match = _VERSION.search(version)
    return tuple(map(int, match.groups())) if match else ()


@dataclass(eq=False)
class Handover:
    """The chosen strategy. root: folder of the node's files. passes_nodes: whether containers get
    device nodes as well.
    """

    setup: Setup
    root: Path
    _: KW_ONLY
    passes_nodes: bool

    def __post_init__(self) -> None:
        self._cdi_cache: dict[Path, tuple[tuple[int, int], CdiDevices]] = {}
        self.choice = DeviceList("envvar", "nothing has been looked at yet")
        self.control_nodes: tuple[str, ...] | None = None
        """Device nodes that containers get besides the node of the GPU; None: no device node at
        all.
        """

    def look(self, devices: Collection[str], runtime: str = "", kubelet: str = "") -> DeviceList:
        """Read the node's files again, and return the strategy for devices of these names. runtime,
        kubelet: as in the Node's status; "" leaves the last value.
        """
        self.setup = setup = replace(
            self.setup,
            toolkit=read_toolkit(self.root),
            cdi=self._cdi_devices(),
            runtime=runtime or self.setup.runtime,
            kubelet=kubelet or self.setup.kubelet,
        )
        last_choice, self.choice = self.choice, choose(setup, devices)
        strategy, why, problem = self.choice.strategy, self.choice.reason, self.choice.problem
        # A CDI file has the device nodes, and devices of a file have none.
        has_no_nodes = strategy.startswith("cdi-") or not setup.by_nvml
        self.control_nodes = None if has_no_nodes or not self.passes_nodes else self._present()
        if self.choice != last_choice:
            line = Line("devices are handed over", by=strategy, why=why, problem=problem or "none")
            log.log(logging.WARNING if problem else logging.INFO, line)
        return self.choice

    def _present(self) -> tuple[str, ...]:
        """Return the existing control nodes: a container with a missing one does not start."""
        return tuple(f"/{node}" for node in CONTROL_NODES if Path("/", node).exists())

    def _cdi_devices(self) -> CdiDevices:
        """Return the devices that the CDI files name; only changed files are read again."""
        entries: dict[Path, tuple[tuple[int, int], CdiDevices]] = {}
        for path, stamp in _cdi_files(self.root):
            entry = self._cdi_cache.get(path)
            is_same = entry is not None and entry[0] == stamp
            entries[path] = entry if entry and is_same else (stamp, self._devices_in(path))
        self._cdi_cache = entries
        files = [devices for _, devices in entries.values() if devices.names]
        return CdiDevices(
            names=frozenset().union(*(devices.names for devices in files)),
            path=files[0].path if files else "",
            has_limits=all(devices.has_limits for devices in files),
        )

    def _devices_in(self, path: Path) -> CdiDevices:
        try:
            return read_cdi(path, self.setup.kind)
        except SettingsError as error:
            log.warning(Line("CDI file not read", error=error))
            return CdiDevices()


def read_toolkit(root: Path) -> Toolkit | None:
    """Return the toolkit's configuration; None without a readable one."""
    for name in TOOLKIT_FILES:
        path = root / name
        try:
            document = tomllib.loads(read_text(str(path), _LARGEST_FILE))
        except (SettingsError, tomllib.TOMLDecodeError, RecursionError):
            continue
        return Toolkit(
            str(path),
            document.get("accept-nvidia-visible-devices-envvar-when-unprivileged", True) is True,
            document.get("accept-nvidia-visible-devices-as-volume-mounts", False) is True,
        )
    return None


def read_cdi(path: Path, kind: str) -> CdiDevices:
    """Return the devices of this kind that a CDI file names. Raises SettingsError."""
    text = read_text(str(path), _LARGEST_FILE)
    if kind not in text:
        return CdiDevices()
    names = set()
    document = parse_yaml(text, str(path))  # JSON is YAML as well
    if isinstance(document, Mapping) and document.get("kind") == kind:
        devices = document.get("devices")
        for device in devices if isinstance(devices, list) else ():
            if isinstance(device, Mapping):
                names.add(str(device.get("name", "")))
    return CdiDevices(frozenset(names), str(path), _LIMITS_HOOK in text)


def _cdi_files(root: Path) -> Iterator[tuple[Path, tuple[int, int]]]:
    """Yield each CDI file of the node with (modification time, size)."""
    for folder in CDI_FOLDERS:
        for path in sorted((root / folder).glob("*")):
            if path.suffix not in (".yaml", ".json"):
                continue
            try:
                status = path.stat()
            except OSError:
                continue
            yield path, (status.st_mtime_ns, status.st_size)
