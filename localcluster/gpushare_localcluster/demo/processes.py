"""The processes of the demo: the real `gpushare serve`, and device plug-ins.

Knows command lines and the readiness probe. Each process has its own session, so that Ctrl-C
reaches only the demo, which then ends all parts in order. Tested in
`tests/integration/test_demo.py`, which runs the demo, and in
`localcluster/tests/test_demo_processes.py`.
"""

import atexit
import contextlib
import ctypes
import http.client
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from gpushare.errors import GpuShareError
from gpushare_localcluster.client import HttpClient

if TYPE_CHECKING:
    from gpushare_localcluster.devices.nodes import NodeDevices

_START_TIMEOUT = 60.0
_STOP_TIMEOUT = 10.0
_POLL = 0.05
_LOG_LINES = 15
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)
_DEVICE_PLUGINS = "gpushare_localcluster.devices.plugins"
_LONGEST_FOLDER = 70
"""Upper bound on the length of the folder's path; a socket path has at most 107 characters, and the
names in the folder add up to 37.
"""
_MOST_NODES = 200
"""Upper bound on nodes with a device plug-in: each has 17 threads."""
_FILES_OF_A_NODE = 8
_OTHER_FILES = 400


class ProcessFailed(GpuShareError):
    """A process did not start or died; the text ends with the last log lines."""


class DemoProcess:
    """A module that runs as a process; the log goes to `log`."""

    def __init__(self, name: str, log: Path, module: str, *words: str) -> None:
        self._name = name
        self._log = log
        self._module = module
        self._words = words
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *more: str, module: str = "") -> None:
        """Start the process, with `more` arguments, or with another module."""
        # -P: a folder `gpushare` in the current directory must not shadow the package.
        command = [sys.executable, "-P", "-m", module or self._module, *self._words, *more]
        # Settings in the shell of an operator are not for the demo's extender.
        environment = {k: v for k, v in os.environ.items() if not k.startswith("GPUSHARE_")}
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(  # noqa: S603 -- the command is our own
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
                preexec_fn=partial(_end_with_parent, os.getpid()),  # noqa: PLW1509 -- system calls
            )

    def stop(self) -> None:
        """End the process: SIGTERM first, so that it can finish its work."""
        process = self._process
        if process is None:
            return
        _signal(process, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_TIMEOUT)
        # The group outlives its leader when a worker hangs.
        _signal(process, signal.SIGKILL)
        process.wait()
        self._process = None

    def check(self) -> None:
        """Raise ProcessFailed for a dead process."""
        if self._process is not None and self._process.poll() is not None:
            raise self.failed(f"{self._name} ended with status {self._process.returncode}")

    def failed(self, message: str) -> ProcessFailed:
        """Return the error with this message and the last log lines."""
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        log_tail = "\n".join(f"    {line}" for line in lines[-_LOG_LINES:])
        return ProcessFailed(f"{message}; its last log lines:\n{log_tail or '    (none)'}")


class ExtenderProcess(DemoProcess):
    """One `gpushare serve`; the log is a file in `folder`.

    ui: with the page /ui. driver: the DRA driver of the cards to rank, "" for no claims.
    """

    def __init__(
        self,
        folder: Path,
        kubeconfig: Path,
        scheduler_config: Path,
        port: int,
        *,
        ui: bool = False,
        driver: str = "",
    ) -> None:
        ui_port = free_port() if ui else 0
        self.ui_url = f"http://127.0.0.1:{ui_port}/ui" if ui else ""
        """The URL of the page, "" for none."""
        health_port = free_port()
        self.health_url = f"http://127.0.0.1:{health_port}"
        """The URL of probes and metrics."""
        super().__init__(
            *("the extender", folder / "extender.log", "gpushare.cli.main", "serve"),
            *("--listen", f"127.0.0.1:{port}"),
            *("--health-listen", f"127.0.0.1:{health_port}"),
            *("--kubeconfig", str(kubeconfig)),
            *("--scheduler-config", str(scheduler_config)),
            # The scheduler then scores several nodes, and a trace shows the scores.
            *("--filter-answer", "all"),
            # As in a real cluster, so that a user can read the Lease.
            *("--leadership", "lease"),
            # No pod can be mistaken for another here: the device plug-ins know the pods, and
            # without plug-ins containers are no processes.
            *("--pairing", "off"),
            # A scenario has workloads of Kueue, and one asks for the GPU-seconds of each.
            *("--kueue", "--metrics-detail", "pods"),
            *(("--ui-listen", f"127.0.0.1:{ui_port}") if ui else ()),
            *(("--claims", driver) if driver else ()),
        )

    def start(self, *more: str, module: str = "") -> None:
        """Start the process, and return when the extender is ready. Raises ProcessFailed."""
        super().start(*more, module=module)
        deadline = time.monotonic() + _START_TIMEOUT
        health = HttpClient(self.health_url)
        try:
            while not _is_ready(health):
                self.check()
                if time.monotonic() > deadline:
                    raise self.failed(f"the extender is not ready after {_START_TIMEOUT:g} s")
                time.sleep(_POLL)
        finally:
            health.close()


def start_device_plugins(
    folder: Path, kubeconfig: Path, ends: contextlib.ExitStack
) -> tuple["NodeDevices", DemoProcess]:
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
    process = DemoProcess("the device plug-ins' process", log, _DEVICE_PLUGINS, *words)
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


def free_port() -> int:
    """Return a free TCP port of loopback, for a process that listens on this number.

    On Linux the port stays reserved while this process lives: for port 0 the kernel never picks the
    port of a bound socket, and with SO_REUSEADDR another socket may listen on it while the bound
    one does not (gunicorn and http.server set the option).
    """
    probe = socket.socket()
    with contextlib.ExitStack() as ends:
        if sys.platform == "linux":
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            atexit.register(probe.close)
        else:
            ends.enter_context(probe)
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _is_ready(health: HttpClient) -> bool:
    try:
        return health.call("GET", "/readyz", timeout=1.0).status == 200
    except (OSError, http.client.HTTPException):
        return False


def _end_with_parent(parent: int) -> None:
    """Make Linux end this process at the end of its parent."""
    if sys.platform == "linux":
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGTERM)


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Signal the process group of the process."""
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        return
