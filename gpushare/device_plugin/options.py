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

    def add(flag: str, default: str, text: str, **settings: object) -> None:
        default_text = f" (default: {default})" if default else ""
        metavar = None if "choices" in settings else settings.pop("metavar", "TEXT")
        settings |= {"default": default, "metavar": metavar, "help": text + default_text}
        parser.add_argument(flag, **settings)  # type: ignore[arg-type]  # argparse's own arguments

    kubelet = "/var/lib/kubelet"
    add("--node-name", environ.get("NODE_NAME", ""), "this node (NODE_NAME)", metavar="NAME")
    add("--resource", "aliyun.com/gpu-mem", "the extended resource to serve", metavar="NAME")
    add(
        "--memory-unit",
        "GiB",
        "one unit of memory, the same in the whole cluster: GiB, MiB, or a"
        " number of MiB such as 256MiB",
        metavar="UNIT",
    )
    add(
        "--reserve-mib",
        "auto",
        "MiB of each GPU that are not given out; auto: what NVML says that driver and firmware"
        " keep; 0: none, as the original counts",
        metavar="N",
    )
    parser.add_argument(
        "--memory-mib",
        action="append",
        default=[],
        metavar="MODEL=MIB",
        help="MiB of each GPU of a model whose memory NVML does not tell, as of GB10 and Thor;"
        " MODEL as NVML names it; may be given several times",
    )
    parser.add_argument(
        "--needs-fabric",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="count a GPU as unhealthy while its NVLink fabric is not up (default: on)",
    )
    add(
        "--devices-file",
        "",
        "take the GPUs from this JSON file and not from NVML; it is read again"
        f" every few seconds, and holds {FILE_FORMAT}",
        metavar="FILE",
    )
    parser.add_argument(
        "--device-plugin-dir",
        type=Path,
        default=Path(f"{kubelet}/device-plugins"),
        metavar="DIR",
        help="the kubelet's folder of device plug-ins (default: %(default)s)",
    )
    parser.add_argument(
        "--pod-resources-socket",
        type=Path,
        metavar="PATH",
        default=Path(f"{kubelet}/pod-resources/kubelet.sock"),
        help="socket of the kubelet's pod-resources API (default: %(default)s)",
    )
    add(
        "--pods-api-socket",
        f"{kubelet}/pods-api/pods-api.sock",
        "socket of the kubelet's Pods API, used where it is there (Kubernetes 1.37)",
        metavar="PATH",
    )
    add(
        "--kubeconfig",
        environ.get("KUBECONFIG", ""),
        "kubeconfig of the API server (in a pod: the service account)",
        metavar="FILE",
    )
    add("--context", "", "context of the kubeconfig", metavar="NAME")
    parser.add_argument(
        "--health-port",
        type=int,
        default=32765,
        metavar="N",
        help="port of probes and metrics; 0 takes a free one (default: %(default)s)",
    )
    add(
        "--isolation",
        "auto",
        "what keeps a container to the memory that it asked for; auto: driver"
        " where the node's driver can, else none",
        choices=ISOLATIONS,
    )
    parser.add_argument(
        "--driver-guarantee",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="with --isolation driver, have the driver keep a container's memory for it, so that"
        " MPS ends no client that uses no more (default: off)",
    )
    add(
        "--device-list-strategy",
        "auto",
        "how the container runtime is told of the devices; auto: CDI where the node has it,"
        " else the variable NVIDIA_VISIBLE_DEVICES and mounts, as NVIDIA's toolkit accepts",
        choices=LIST_STRATEGIES,
    )
    parser.add_argument(
        "--pass-device-specs",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="have the kubelet pass the device nodes, too, unless CDI does: containers keep their"
        " GPUs then when systemd is reloaded (default: on)",
    )
    add(
        "--device-id-strategy", "uuid", "how devices are named to containers", choices=ID_STRATEGIES
    )
    add(
        "--unit-ids",
        "auto",
        "ids of units to the kubelet: UUID::N (nvidia), by which dcgm-exporter finds the pods of a"
        " shared GPU, or UUID-_-N (original); auto: nvidia unless a pod here has others",
        choices=("auto", "nvidia", "original"),
    )
    add("--cdi-kind", "nvidia.com/gpu", "kind of the CDI devices", metavar="KIND")
    add(
        "--hami-core-dir",
        "/usr/local/vgpu",
        "folder on the node with libvgpu.so, for --isolation hami-core",
        metavar="DIR",
    )
    add(
        "--mps-pipe-dir",
        "",
        "folder of your MPS daemon's pipes, for --isolation mps",
        metavar="DIR",
    )
    add("--mps-shm-dir", "/dev/shm", "folder that it shares as /dev/shm", metavar="DIR")  # noqa: S108 -- a path on the node
    parser.add_argument(
        "--host-root",
        type=Path,
        default=Path("/"),
        metavar="DIR",
        help="where the node's /proc, /sys, /etc and /var/run are (default: %(default)s)",
    )
    parser.add_argument(
        "--numa",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="tell the kubelet the NUMA node of each GPU (default: off); with a topology manager"
        " policy it then takes units by NUMA node and not as the pod was bound",
    )
    parser.add_argument(
        "--recover-seconds",
        type=float,
        default=300.0,
        metavar="SECONDS",
        help="time without a further Xid error after which a GPU is well again, if the error is of"
        " a kind that passes by itself (default: 300)",
    )
    parser.add_argument(
        "--delete-unexpected-admission-errors",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="delete pods of controllers that the kubelet has failed because no device plug-in was"
        " there, as after a reboot; needs the right to delete pods (default: off)",
    )
    parser.add_argument(
        "--advertise-cores",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="write 100 percent of compute for each GPU into the node's status (default: on); off"
        " where kube-scheduler's file has ignoredByScheduler true for it",
    )
    parser.add_argument(
        "--events",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="write events about pods (default: on)",
    )
    add("--log-level", "info", "what is logged", choices=("debug", "info", "warning", "error"))
    add("--log-format", "text", "how it is logged", choices=("text", "json"))
    return parser
