"""The device plug-ins of the demo's nodes, where what they need is installed.

They are an extra: `pip install 'gpushare[device-plugin]'`; `make demo` installs it. Tested in
`tests/integration/test_demo_devices.py`.
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
"""A socket's path has 107 characters at most, and those in the folder are up to 37 longer."""
_MOST_NODES = 200
"""With a device plug-in each: they have 17 threads a node, which all take turns."""
_FILES_OF_A_NODE = 8
_OTHER_FILES = 400


def missing() -> str:
    """Return the first package that device plug-ins lack, or ""."""
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
    """Return the nodes' device managers, and the process of their device plug-ins.

    folder: the demo's own. ends: what ends them.
    """
    # What starts another process later is told so by gRPC else, in a line of its own.
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
    """Return on how many nodes device plug-ins may run, as far as open files go.

    The limit is raised as far as the system lets us; processes that start later have it from us.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard == resource.RLIM_INFINITY:
        return _MOST_NODES
    return max(0, min(_MOST_NODES, (hard - _OTHER_FILES) // _FILES_OF_A_NODE))
