"""The device plug-ins of the demo's nodes, if their packages are installed.

The packages are an extra: `pip install 'gpushare[device-plugin]'`; `make demo` installs it. Tested
in `tests/integration/test_demo_devices.py`.
"""

import contextlib
import importlib.util
import os
import resource
import tempfile
from pathlib import Path

from gpushare_localcluster.demo.processes import DemoProcess
from gpushare_localcluster.devices.admission import Devices

_NEEDED = ("grpc", "google.protobuf", "pynvml")
_MODULE = "gpushare_localcluster.devices.plugins"
_LONGEST_FOLDER = 70
"""Upper bound on the length of the folder's path; a socket path has at most 107 characters, and the
names in the folder add up to 37.
"""
_MOST_NODES = 200
"""Upper bound on nodes with a device plug-in: each has 17 threads."""
_FILES_OF_A_NODE = 8
_OTHER_FILES = 400


def missing() -> str:
    """Return the first missing package of device plug-ins, or ""."""
    for name in _NEEDED:
        try:
            spec = importlib.util.find_spec(name)
        except ModuleNotFoundError:
            spec = None
        if spec is None:
            return name
    return ""


def start(
    folder: Path, kubeconfig: Path, ends: contextlib.ExitStack
) -> tuple[Devices, DemoProcess]:
    """Return the device managers of nodes, and the process of the device plug-ins.

    folder: of the demo. ends: gets callbacks that end both.
    """
    # Otherwise gRPC prints a line when this process starts another one.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
    from gpushare_localcluster.devices.nodes import NodeDevices  # noqa: PLC0415 -- it needs gRPC

    sockets = folder
    if len(str(folder)) > _LONGEST_FOLDER:
        short = tempfile.TemporaryDirectory(prefix="gpushare-demo-", dir="/tmp")
        sockets = Path(ends.enter_context(short))
    log = folder / "device-plugins.log"
    node_limit = most_nodes()
    words = (str(kubeconfig), str(sockets), str(os.getpid()))
    process = DemoProcess("the device plug-ins' process", log, _MODULE, *words)
    ends.callback(process.stop)
    process.start()
    devices = NodeDevices(sockets, node_limit)
    ends.callback(devices.stop)
    return devices, process


def most_nodes() -> int:
    """Return on how many nodes device plug-ins may run, by the limit of open files.

    The limit is raised as far as possible; later child processes inherit it.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard == resource.RLIM_INFINITY:
        return _MOST_NODES
    return max(0, min(_MOST_NODES, (hard - _OTHER_FILES) // _FILES_OF_A_NODE))
