"""The command line of `gpushare device-plugin`: words to checked options.

Tested in `tests/integration/test_device_plugin.py` and
`tests/contract/test_device_plugin_manifests.py`.
"""

import argparse
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpushare.commandline import Parser
from gpushare.device_plugin.cards import unit_mib
from gpushare.errors import SettingsError
from gpushare.wire.annotations import Names
from gpushare.wire.fields import NAME

ISOLATIONS = ("none", "driver", "hami-core", "mps", "auto")
LIST_STRATEGIES = ("auto", "envvar", "volume-mounts", "cdi-cri", "cdi-annotations")
ID_STRATEGIES = ("uuid", "index")
FILE_FORMAT = (
    '{"devices": [{"uuid": "GPU-...", "index": 0, "memoryMiB": 16384, "model": "...",'
    ' "healthy": true}]}'
)
"""The form of a devices file; `model` and `healthy` may be left out."""

_HELP = {
    "--node-name": "this node (NODE_NAME)",
    "--resource": "the extended resource to serve",
    "--memory-unit": "one unit of memory, the same in the whole cluster: GiB, MiB, or a number of"
    " MiB such as 256MiB",
    "--reserve-mib": "MiB of each GPU that are not given out; auto: what NVML says that driver and"
    " firmware keep; 0: none, as the original counts",
    "--memory-mib": "MiB of each GPU of a model whose memory NVML does not tell, as of GB10 and"
    " Thor; MODEL as NVML names it; may be given several times",
    "--needs-fabric": "count a GPU as unhealthy while its NVLink fabric is not up ({})",
    "--devices-file": "take the GPUs from this JSON file and not from NVML; it is read again every"
    f" few seconds, and holds {FILE_FORMAT}",
    "--device-plugin-dir": "the kubelet's folder of device plug-ins",
    "--pod-resources-socket": "socket of the kubelet's pod-resources API",
    "--pods-api-socket": "socket of the kubelet's Pods API, used where it is there (Kubernetes"
    " 1.37)",
    "--kubeconfig": "kubeconfig of the API server (in a pod: the service account)",
    "--context": "context of the kubeconfig",
    "--health-port": "port of probes and metrics; 0 takes a free one",
    "--isolation": "what keeps a container to the memory that it asked for; auto: driver where the"
    " node's driver can, else none",
    "--driver-guarantee": "with --isolation driver, have the driver keep a container's memory for"
    " it, so that MPS ends no client that uses no more ({})",
    "--device-list-strategy": "how the container runtime is told of the devices; auto: CDI where"
    " the node has it, else the variable NVIDIA_VISIBLE_DEVICES and mounts, as NVIDIA's toolkit"
    " accepts",
    "--pass-device-specs": "have the kubelet pass the device nodes, too, unless CDI does:"
    " containers keep their GPUs then when systemd is reloaded ({})",
    "--device-id-strategy": "how devices are named to containers",
    "--unit-ids": "ids of units to the kubelet: UUID::N (nvidia), by which dcgm-exporter finds the"
    " pods of a shared GPU, or UUID-_-N (original); auto: nvidia unless a pod here has others",
    "--cdi-kind": "kind of the CDI devices",
    "--hami-core-dir": "folder on the node with libvgpu.so, for --isolation hami-core",
    "--mps-pipe-dir": "folder of your MPS daemon's pipes, for --isolation mps",
    "--mps-shm-dir": "folder that it shares as /dev/shm",
    "--host-root": "where the node's /proc, /sys, /etc and /var/run are",
    "--numa": "tell the kubelet the NUMA node of each GPU ({}); with a topology manager policy it"
    " then takes units by NUMA node and not as the pod was bound",
    "--recover-seconds": "time without a further Xid error after which a GPU is well again, if the"
    " error is of a kind that passes by itself",
    "--delete-unexpected-admission-errors": "delete pods of controllers that the kubelet has"
    " failed because no device plug-in was there, as after a reboot; needs the right to delete"
    " pods ({})",
    "--advertise-cores": "write 100 percent of compute for each GPU into the node's status ({});"
    " off where kube-scheduler's file has ignoredByScheduler true for it",
    "--events": "write events about pods ({})",
    "--log-level": "what is logged",
    "--log-format": "how it is logged",
}

_LONGEST_SOCKET = 107
_EPILOG = """\
exit codes: 0 ended by a signal, 2 an option or the node's GPUs make no sense (one line on stderr).
docs/device-plugin.md tells how it works, and what each failure looks like.
"""


@dataclass(frozen=True)
class PluginOptions:
    """The options of the command line, by name of the flag."""

    node_name: str
    names: Names
    memory_unit: str
    reserve_mib: int | None
    """None: the MiB that driver and firmware keep, as NVML tells."""
    memory_mib: Mapping[str, int]
    """MiB by model, for cards without an answer of NVML."""
    needs_fabric: bool
    devices_file: str
    device_plugin_dir: Path
    pod_resources_socket: Path
    pods_api_socket: Path | None
    kubeconfig: str
    context: str
    health_port: int
    isolation: str
    driver_guarantee: bool
    device_list_strategy: str
    pass_device_specs: bool
    device_id_strategy: str
    unit_ids: str
    cdi_kind: str
    hami_core_dir: str
    mps_pipe_dir: str
    mps_shm_dir: str
    host_root: Path
    numa: bool
    recover_seconds: float
    delete_unexpected_admission_errors: bool
    advertise_cores: bool
    events: bool
    log_level: str
    log_format: str


def read_options(words: Sequence[str], environ: Mapping[str, str]) -> PluginOptions:
    """Return the options of a command line.

    Raises SettingsError for a value that makes no sense; a wrong flag ends the process with 2.
    """
    parser = device_plugin_parser("gpushare device-plugin", environ)
    values = vars(parser.parse_args(words))
    resource = values.pop("resource")
    pods_api = values.pop("pods_api_socket")
    reserve = values.pop("reserve_mib")
    sizes = values.pop("memory_mib")
    options = PluginOptions(
        names=Names.for_resource(resource),
        pods_api_socket=Path(pods_api) if pods_api else None,
        reserve_mib=None if reserve == "auto" else _mib(reserve),
        memory_mib=dict(map(_model_memory, sizes)),
        **values,
    )
    _check(options)
    return options


def _mib(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,7}", text) or int(text) > 1 << 20:
        raise SettingsError(f"reserve-mib: {text[:20]} is not from 0 to {1 << 20}, and not auto")
    return int(text)


def _model_memory(text: str) -> tuple[str, int]:
    """Return (model, MiB) of MODEL=MIB. Raises SettingsError."""
    model, _, size = text.rpartition("=")
    if not model or not re.fullmatch(r"[1-9][0-9]{0,7}", size):
        raise SettingsError(
            f"memory-mib: {text[:80]!r} is not of the form MODEL=MIB, as 'NVIDIA GB10=114688'"
        )
    return model, int(size)


def _check(options: PluginOptions) -> None:
    if NAME.fullmatch(options.node_name) is None:
        raise SettingsError(
            f"node-name: {options.node_name[:80]!r} is no name of a node; in a pod, have NODE_NAME"
            " set from spec.nodeName"
        )
    unit_mib(options.memory_unit)
    if not 0 <= options.health_port <= 65535:
        raise SettingsError(f"health-port: {options.health_port} is not from 0 to 65535")
    if options.recover_seconds < 0:
        raise SettingsError("recover-seconds: must not be negative")
    if len(str(options.device_plugin_dir / "gpushare-01234567.sock")) > _LONGEST_SOCKET:
        raise SettingsError(
            f"device-plugin-dir: a socket's path has {_LONGEST_SOCKET} characters at most"
        )
    if options.isolation == "mps" and not options.mps_pipe_dir:
        raise SettingsError(
            "mps-pipe-dir: is needed with --isolation mps: your MPS daemon's folder"
        )


def device_plugin_parser(prog: str, environ: Mapping[str, str] = os.environ) -> Parser:
    """Return the parser of the command line. environ: has defaults."""
    parser = Parser(
        prog=prog,
        description="Serve a node's GPU memory to its kubelet, each container on the device that"
        " its pod was bound to.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )

    def add(flag: str, metavar: str, default: str, **settings: object) -> None:
        text = _HELP[flag] + (f" (default: {default})" if default else "")
        settings |= {"metavar": metavar or None, "default": default, "help": text}
        parser.add_argument(flag, **settings)  # type: ignore[arg-type]  # argparse's own arguments

    def switch(flag: str, *, default: bool) -> None:
        text = _HELP[flag].format("default: on" if default else "default: off")
        action = argparse.BooleanOptionalAction
        parser.add_argument(flag, action=action, default=default, help=text)

    kubelet = "/var/lib/kubelet"
    pod_resources = f"{kubelet}/pod-resources/kubelet.sock"
    add("--node-name", "NAME", environ.get("NODE_NAME", ""))
    add("--resource", "NAME", "aliyun.com/gpu-mem")
    add("--memory-unit", "UNIT", "GiB")
    add("--reserve-mib", "N", "auto")
    sizes = _HELP["--memory-mib"]
    parser.add_argument(
        "--memory-mib", action="append", default=[], metavar="MODEL=MIB", help=sizes
    )
    switch("--needs-fabric", default=True)
    add("--devices-file", "FILE", "")
    add("--device-plugin-dir", "DIR", f"{kubelet}/device-plugins", type=Path)
    add("--pod-resources-socket", "PATH", pod_resources, type=Path)
    add("--pods-api-socket", "PATH", f"{kubelet}/pods-api/pods-api.sock")
    add("--kubeconfig", "FILE", environ.get("KUBECONFIG", ""))
    add("--context", "NAME", "")
    add("--health-port", "N", "32765", type=int)
    add("--isolation", "", "auto", choices=ISOLATIONS)
    switch("--driver-guarantee", default=False)
    add("--device-list-strategy", "", "auto", choices=LIST_STRATEGIES)
    switch("--pass-device-specs", default=True)
    add("--device-id-strategy", "", "uuid", choices=ID_STRATEGIES)
    add("--unit-ids", "", "auto", choices=("auto", "nvidia", "original"))
    add("--cdi-kind", "KIND", "nvidia.com/gpu")
    add("--hami-core-dir", "DIR", "/usr/local/vgpu")
    add("--mps-pipe-dir", "DIR", "")
    add("--mps-shm-dir", "DIR", "/dev/shm")  # noqa: S108 -- a path on the node
    add("--host-root", "DIR", "/", type=Path)
    switch("--numa", default=False)
    add("--recover-seconds", "SECONDS", "300", type=float)
    switch("--delete-unexpected-admission-errors", default=False)
    switch("--advertise-cores", default=True)
    switch("--events", default=True)
    add("--log-level", "", "info", choices=("debug", "info", "warning", "error"))
    add("--log-format", "", "text", choices=("text", "json"))
    return parser
