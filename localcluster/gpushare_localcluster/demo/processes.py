"""The processes of the demo, started, watched and ended: the real `gpushare serve`, and plug-ins.

Knows command lines and the readiness probe; nothing of what they do. Each process gets a session of
its own, so that Ctrl-C reaches the demo alone, which then ends everything in order.
Tested in `tests/integration/test_demo.py`, which runs it as the demo does, and in
`localcluster/tests/test_demo_processes.py`.
"""

import atexit
import contextlib
import ctypes
import http.client
import os
import signal
import socket
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

from gpushare.errors import GpuShareError
from gpushare_localcluster.http_client import HttpClient

_START_TIMEOUT = 60.0
_STOP_TIMEOUT = 10.0
_POLL = 0.05
_LOG_LINES = 15
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)


class ProcessFailed(GpuShareError):
    """A process did not start or died; the text ends with its last log lines."""


class DemoProcess:
    """A module of ours that runs as a process; its log goes to `log`."""

    def __init__(self, name: str, log: Path, module: str, *words: str) -> None:
        self._name = name
        self._log = log
        self._module = module
        self._words = words
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *more: str, module: str = "") -> None:
        """Start it; more: further words; module: another one that takes the same words."""
        # -P: a folder `gpushare` where the demo was called is not our package.
        command = [sys.executable, "-P", "-m", module or self._module, *self._words, *more]
        # Settings of an operator's own shell are not meant for the demo's extender.
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
        """End it: politely first, so that what is under way is finished."""
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
        """Raise ProcessFailed if it has died."""
        if self._process is not None and self._process.poll() is not None:
            raise self.failed(f"{self._name} ended with status {self._process.returncode}")

    def failed(self, message: str) -> ProcessFailed:
        """Return the error that says so, with the last lines of its log."""
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        log_tail = "\n".join(f"    {line}" for line in lines[-_LOG_LINES:])
        return ProcessFailed(f"{message}; its last log lines:\n{log_tail or '    (none)'}")


class ExtenderProcess(DemoProcess):
    """One `gpushare serve`; its log goes to a file in `folder`.

    ui: with the page /ui. driver: the DRA driver whose cards it ranks, "" for no claims.
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
        """Where the page is, or "" where there is none."""
        health_port = free_port()
        self.health_url = f"http://127.0.0.1:{health_port}"
        """Where probes and metrics are answered."""
        super().__init__(
            *("the extender", folder / "extender.log", "gpushare.cli.main", "serve"),
            *("--listen", f"127.0.0.1:{port}"),
            *("--health-listen", f"127.0.0.1:{health_port}"),
            *("--kubeconfig", str(kubeconfig)),
            *("--scheduler-config", str(scheduler_config)),
            # So that its scheduler has something to score, and a trace shows it.
            *("--filter-answer", "all"),
            # As in a real cluster, so that the Lease can be looked at.
            *("--leadership", "lease"),
            # Nobody here takes one pod for another: the device plug-ins know them, and where there
            # are none, containers are no processes.
            *("--pairing", "off"),
            *(("--ui-listen", f"127.0.0.1:{ui_port}") if ui else ()),
            *(("--claims", driver) if driver else ()),
        )

    def start(self, *more: str, module: str = "") -> None:
        """Start it as any process, and return when it is ready. Raises ProcessFailed."""
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


def free_port() -> int:
    """Return a TCP port of loopback that is free for who listens on it by its number.

    On Linux it stays so as long as this process lives: the kernel gives the port of a socket that
    is bound, with SO_REUSEADDR, to nobody who asks for any port, and lets others with SO_REUSEADDR
    listen on it while that socket does not (gunicorn's and http.server's have it).
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
    """Have Linux end this process when the one that starts it is gone, however that ended."""
    if sys.platform == "linux":
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGTERM)


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Signal the process and its children; they share a group that bears its number."""
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        return
