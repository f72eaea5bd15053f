"""The real `gpushare serve` on a real API server, restartable on the same ports and files.

Knows the command line and the two listeners; tests/integration/verbs.py has the requests.
"""

import contextlib
import http.client
import json
import signal
import ssl
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from gpushare_localcluster.client import HttpClient
from tests.e2e.processes import PATIENCE, Process
from tests.integration.process import free_port
from tests.integration.verbs import Reply, Verbs

GPUSHARE = (sys.executable, "-P", "-m", "gpushare.cli.main")
_PREFIX = "/gpushare-scheduler"
_TIMEOUT = 15.0


def doctor_findings(kubeconfig: Path, *flags: str) -> dict[str, dict[str, str]]:
    """Return the findings of `gpushare doctor`, by check."""
    finished = subprocess.run(
        [*GPUSHARE, "doctor", "--kubeconfig", kubeconfig, "-o", "json", *flags],
        capture_output=True,
        text=True,
        check=False,
    )
    return {finding["check"]: finding for finding in json.loads(finished.stdout)["findings"]}


class RealExtender(Verbs):
    """An extender process; `url` is for kube-scheduler.

    Pairing is off unless the flags turn it on, since no kubelet runs the pods for which equal pods
    would wait. prefix: of the command. program: the command before `serve`. tls: client
    certificates of callers here.
    """

    def __init__(
        self,
        folder: Path,
        port: int,
        kubeconfig: Path,
        *flags: str,
        prefix: tuple[str, ...] = (),
        program: Sequence[str] = GPUSHARE,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._folder = folder
        health = free_port()
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{port}{_PREFIX}"
        self._http = HttpClient(self.url, tls=tls)
        self.health_url = f"http://127.0.0.1:{health}"
        self._health = HttpClient(self.health_url)
        self._command = [
            *(*prefix, *program, "serve", "--kubeconfig", str(kubeconfig)),
            *("--pairing", "off", *flags),
            *("--health-listen", f"127.0.0.1:{health}"),
        ]
        self.process: Process | None = None

    def start(self) -> None:
        """Wait until the extender leads with full books."""
        self.launch()
        self.wait_ready()

    def launch(self) -> None:
        """Start the process, which may be a follower."""
        self.process = Process("extender", self._command, self._folder)

    def wait_ready(self, seconds: float = PATIENCE) -> None:
        """Wait until the extender leads with full books; fail with the last log lines."""
        assert self.process, "launched"
        self.process.wait(self.ready, "is not ready", seconds)

    def wait_answering(self) -> None:
        """Return once it takes calls, leading or not."""
        assert self.process, "launched"
        self.process.wait(self._answers, "does not answer")

    def _answers(self) -> bool:
        with contextlib.suppress(OSError, http.client.HTTPException):
            return self.inspect_reply().status in {200, 503}
        return False

    def kill(self) -> None:
        """SIGKILL master and worker."""
        if self.process:
            self.process.kill()

    def pause(self) -> None:
        """Stop the processes by SIGSTOP: sockets stay open without answers."""
        if self.process:
            self.process.signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Continue the processes."""
        if self.process:
            self.process.signal(signal.SIGCONT)

    def stop(self) -> None:
        self.kill()
        self._http.close()
        self._health.close()

    @property
    def log(self) -> str:
        return self.process.log if self.process else ""

    def ready(self) -> bool:
        with contextlib.suppress(OSError, http.client.HTTPException):
            return self._health.call("GET", "/readyz", timeout=5.0).status == 200
        return False

    def metrics(self) -> str:
        return self._health.call("GET", "/metrics", timeout=_TIMEOUT).body.decode()

    def post(self, verb: str, body: bytes) -> Reply:
        return self._call("POST", f"/{verb}", body)

    def inspect_reply(self, node: str = "", resource: str = "") -> Reply:
        query = f"?resource={resource}" if resource else ""
        return self._call("GET", f"/inspect{f'/{node}' if node else ''}{query}")

    def _call(self, method: str, path: str, body: bytes | None = None) -> Reply:
        headers = {"Content-Type": "application/json"} if body is not None else {}
        answer = self._http.call(method, path, body, timeout=_TIMEOUT, headers=headers)
        return Reply(answer.status, answer.body)
