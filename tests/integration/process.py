"""The real `gpushare serve` as a process of the test: started, asked, ended for sure.

Knows the command line, the probes and the signals; the calls of verbs are in verbs.py.
"""

import contextlib
import http.client
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path

from gpushare_localcluster.client import HttpClient
from tests.integration.cluster import Json
from tests.integration.verbs import Reply, Verbs
from tests.support.waiting import PATIENCE, poll

_PREFIX = "/gpushare-scheduler"
_ASK_TIMEOUT = PATIENCE
_START_TIMEOUT = 100.0


class Extender(Verbs):
    """One extender process; its log is `log`, or goes to the descriptor `log_to`.

    The cluster has no kubelet that would run the pod for which equal pods wait, so pairing is off
    unless the flags say otherwise. program: the module to run, and its arguments. environment:
    more variables. cwd: the working directory of the process.
    """

    def __init__(
        self,
        folder: Path,
        kubeconfig: str,
        *flags: str,
        program: Sequence[str] = ("gpushare.cli.main",),
        log_to: int | None = None,
        environment: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> None:
        self.log_file = folder / f"extender-{free_port()}.log"
        port, health_port = free_port(), free_port()
        self.port, self.health_port = port, health_port
        self._http = HttpClient(f"http://127.0.0.1:{port}")
        self._health = HttpClient(f"http://127.0.0.1:{health_port}")
        # A program of the tests is found by the working directory; `gpushare` is installed.
        apart = ("-P",) if program[0].startswith("gpushare.") else ()
        command = [
            *(sys.executable, *apart, "-m", *program, "serve"),
            *("--listen", f"127.0.0.1:{port}", "--health-listen", f"127.0.0.1:{health_port}"),
            *("--kubeconfig", kubeconfig, "--pairing", "off", *flags),
        ]
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("GPUSHARE_")}
        with self.log_file.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log if log_to is None else log_to,
                stderr=subprocess.STDOUT,
                env=inherited | dict(environment or {}),
                cwd=cwd,
                start_new_session=True,  # so that a signal reaches master and worker
            )

    @property
    def log(self) -> str:
        return self.log_file.read_text(errors="replace")

    @property
    def pid(self) -> int:
        """The pid of the master process, which is the id of its process group too."""
        return self._process.pid

    def probe(self, path: str) -> Reply:
        """The answer of the health listener; status 0 where there is none."""
        try:
            answer = self._health.call("GET", path, timeout=20.0)
        except (OSError, http.client.HTTPException):
            return Reply(0, b"")
        return Reply(answer.status, answer.body)

    def ready(self) -> bool:
        return self.probe("/readyz").status == 200

    def figure(self, name: str) -> float:
        """A figure of the metrics that has no labels; -1 where there is none of that name."""
        text = self.probe("/metrics").body.decode()
        match = re.search(rf"^gpushare_{name} (\S+)$", text, re.MULTILINE)
        return float(match.group(1)) if match else -1.0

    def wait_ready(self) -> None:
        poll(self._comes_up, lambda: f"the extender is not ready:\n{self.log}", _START_TIMEOUT)

    def wait_answering(self) -> None:
        """Return once the process answers probes, ready or not."""
        poll(lambda: self.probe("/readyz").status > 0, lambda: self.log, _START_TIMEOUT)

    def _comes_up(self) -> bool:
        assert not self.ended(), f"the extender ended:\n{self.log}"
        return self.ready()

    def post(self, verb: str, body: bytes) -> Reply:
        return self.call("POST", f"{_PREFIX}/{verb}", body, {"Content-Type": "application/json"})

    def inspect_reply(self, node: str = "", resource: str = "") -> Reply:
        path = f"{_PREFIX}/inspect{f'/{node}' if node else ''}"
        return self.call("GET", path + (f"?resource={resource}" if resource else ""))

    def call(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
        timeout: float = _ASK_TIMEOUT,
    ) -> Reply:
        """Any call, over a kept-alive connection."""
        answer = self._http.call(method, path, body, timeout=timeout, headers=headers)
        return Reply(answer.status, answer.body)

    def bind_later(self, pod: Json, node: str) -> "Future[str]":
        """The error of a bind that is under way."""
        answer: Future[str] = Future()

        def ask() -> None:
            try:
                answer.set_result(self.bind(pod, node))
            except Exception as error:
                answer.set_exception(error)

        threading.Thread(target=ask, daemon=True).start()
        return answer

    def ended(self) -> bool:
        """Whether the process has ended by itself."""
        return self._process.poll() is not None

    def children(self) -> list[str]:
        """The pids of the workers."""
        path = Path(f"/proc/{self.pid}/task/{self.pid}/children")
        return path.read_text(encoding="ascii").split()

    def signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM, and do not wait."""
        self.signal(signal.SIGTERM)

    def kill(self) -> None:
        """End the process at once, master and worker."""
        self.signal(signal.SIGKILL)
        self._process.wait(PATIENCE)
        self._http.close()
        self._health.close()

    def stop(self) -> None:
        """End the process politely, and surely."""
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(10.0)
        self.kill()


def free_port() -> int:
    """Return a port that nothing listens on, and that no other test of this machine is given.

    The port lies below those that the kernel gives to outgoing connections: such a connection could
    take the port before we listen there. Tests run side by side, so a name for the port
    is kept as long as this process lives, in the namespace of abstract sockets, where one process
    can have it (unix(7)).
    """
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        port = random.randint(15000, 32000)
        reserved = socket.socket(socket.AF_UNIX)
        try:
            reserved.bind(f"\0gpushare-test-port-{port}")
            with socket.socket() as attempt:
                attempt.bind(("127.0.0.1", port))
        except OSError:
            reserved.close()
            continue
        reserved.detach()
        return port
    raise AssertionError("no free port")
