"""A kube-scheduler and an extender on one host, with one file, over loopback.

Knows the command lines and differences between releases; nothing of rights or of objects in the
cluster.
"""

import functools
import os
import re
import shutil
import ssl
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from tests.e2e import versions
from tests.e2e.binaries import RELEASE, needed
from tests.e2e.extender import GPUSHARE, RealExtender
from tests.e2e.processes import Process
from tests.integration.process import free_port

HOME = "/etc/kubernetes/scheduler.conf"
"""The kubeconfig in printed files, the only value that an operator has to check."""
_URL = re.compile(r"https?://127\.0\.0\.1:(\d+)/gpushare-scheduler")
_FIRST_WITHOUT_POLICY = 23


@dataclass(frozen=True)
class Access:
    """Kubeconfigs: kube-scheduler's, and the extender's. server: the API server's version."""

    server: str
    scheduler: Path
    extender: Path


class Pair:
    """The two processes; each can be killed and started again.

    program: a kube-scheduler of that version; None: the standard one. host: the host name for both,
    if not this machine's. tls: of callers here, for an extender with TLS. extender_prefix: of the
    extender's command.
    """

    def __init__(
        self,
        folder: Path,
        text: str,
        access: Access,
        *,
        version: str = RELEASE,
        program: Path | None = None,
        scheduler_flags: Sequence[str] = ("--leader-elect=false",),
        flags: Sequence[str] = (),
        host: str = "",
        tls: ssl.SSLContext | None = None,
        extender_prefix: Sequence[str] = (),
    ) -> None:
        folder.mkdir(exist_ok=True)
        self.version = version
        self.form = form_of(text)
        self._folder = folder
        self._program = program or needed("kube-scheduler", version)
        self._scheduler_flags = (*scheduler_flags, "--secure-port", "0", "-v", "2")
        self._kubeconfig = access.scheduler
        self._server = access.server
        self._prefix: tuple[str, ...] = on_host(host) if host else ()
        self.file = folder / "scheduler-file"
        self.file.write_text(text.replace(HOME, str(access.scheduler)))
        self.extender = RealExtender(
            folder,
            port_of(text),
            access.extender,
            *("--scheduler-config", str(self.file), *flags),
            prefix=(*extender_prefix, *self._prefix),
            tls=tls,
        )
        self.scheduler: Process | None = None

    def start(self) -> None:
        """Return when both run, and the extender is ready."""
        self.extender.start()
        self.start_scheduler()

    def start_scheduler(self) -> None:
        command: list[str | Path] = [*self._prefix, *self._command()]
        self.scheduler = Process("kube-scheduler", command, self._folder)
        versions.record(self._server, scheduler=self._program, file=self.form)

    def kill_scheduler(self) -> None:
        if self.scheduler:
            self.scheduler.kill()

    def kill(self) -> None:
        """End both processes, which can be started again."""
        self.kill_scheduler()
        self.extender.kill()

    def end(self) -> None:
        """End both by SIGTERM, as a kubelet ends a pod, and wait."""
        both = [item for item in (self.scheduler, self.extender.process) if item]
        for item in both:
            item.ask_to_end()
        for item in both:
            item.wait_ended()

    def stop(self) -> None:
        self.kill()
        self.extender.stop()

    def told(self) -> str:
        """The state of the processes for the message of a failed wait."""
        processes = [item for item in (self.extender.process, self.scheduler) if item]
        return "\n".join(f"{item.name}:\n{item.last_lines()}" for item in processes)

    def _command(self) -> list[str | Path]:
        if not self.form.startswith("Policy"):
            return [self._program, "--config", self.file, *self._scheduler_flags, *self._old()]
        policy = ("--policy-config-file", self.file, "--kubeconfig", self._kubeconfig)
        return [self._program, *policy, *self._scheduler_flags, *self._old()]

    def _old(self) -> tuple[str | Path, ...]:
        """Flags that the last release with Policy files needs, whatever file it reads."""
        if int(self.version.split(".")[1]) >= _FIRST_WITHOUT_POLICY:
            return ()
        return (
            *("--port", "0", "--authentication-kubeconfig", self._kubeconfig),
            *("--authorization-kubeconfig", self._kubeconfig),
            # It would wait for a version of this API that newer API servers no longer serve.
            "--feature-gates=CSIStorageCapacity=false",
        )


def printed(version: str, *options: str, change: Mapping[str, str] | None = None) -> str:
    """The file that `gpushare scheduler-config` prints for a release, on a port that is free.

    change: texts in it that an operator has put others in the place of; all must be there.
    """
    release = ".".join(version.split(".")[:2])
    url = f"http://127.0.0.1:{free_port()}/gpushare-scheduler"
    command = [*GPUSHARE, "scheduler-config", "--kubernetes", release, "--url", url, *options]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    for old, new in (change or {}).items():
        assert old in text, old
        text = text.replace(old, new)
    return text


def port_of(text: str) -> int:
    """Where the file has kube-scheduler call."""
    return int(_URL.findall(text)[0])


def moved(text: str) -> str:
    """The file with another port for the extender, one that is free."""
    return _URL.sub(f"http://127.0.0.1:{free_port()}/gpushare-scheduler", text)


def form_of(text: str) -> str:
    """Kind and version of a file for kube-scheduler: `KubeSchedulerConfiguration v1`."""
    document = yaml.safe_load(text)
    return f"{document['kind']} {document['apiVersion'].rpartition('/')[2]}"


def on_host(name: str) -> tuple[str, ...]:
    """The prefix of a command that runs it under that host name."""
    return (*_unshare(), "sh", "-c", 'hostname "$0" && exec "$@"', name)


@functools.cache
def _unshare() -> tuple[str, ...]:
    """Skips the test where the system lets nobody have a host name of his own."""
    root = ("--map-root-user",) if os.geteuid() else ()
    command = (shutil.which("unshare") or "unshare", *root, "--uts")
    try:
        finished = subprocess.run([*command, "hostname", "other"], capture_output=True, check=False)
    except OSError as error:
        pytest.skip(f"no host names of our own: {error}")
    if finished.returncode:
        pytest.skip(f"no host names of our own: {finished.stderr.decode().strip()}")
    return command
