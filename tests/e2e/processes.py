"""Processes of a test: started with a log of their own, watched, ended for sure.

Knows processes, their logs and waiting; nothing of Kubernetes.
"""

import contextlib
import functools
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

PATIENCE = 60.0
"""Upper bound on the seconds of any wait, also on a busy machine."""
_SHOWN = 30


class Process:
    """A program that runs until it is killed, with all that it has started."""

    def __init__(self, name: str, command: Sequence[str | Path], folder: Path) -> None:
        self.name = name
        self.log_file = folder / f"{name}.log"
        environment = {k: v for k, v in os.environ.items() if not k.startswith("GPUSHARE_")}
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                [*_ends_with_us(), *(str(part) for part in command)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env=environment,
                start_new_session=True,  # so that a signal reaches its children too
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def log(self) -> str:
        return self.log_file.read_text(errors="replace")

    def running(self) -> None:
        """Return if it runs; else fail with its last lines."""
        code = self._process.poll()
        assert code is None, f"{self.name} has ended ({code}):\n{self.last_lines()}"

    def ended_with(self, text: str) -> bool:
        """Return whether it has ended with this text among its last lines; fail if it has ended
        without.
        """
        if self._process.poll() is not None and text in self.last_lines():
            return True
        self.running()
        return False

    def last_lines(self) -> str:
        return "\n".join(self.log.splitlines()[-_SHOWN:])

    def wait(
        self, condition: Callable[[], bool], description: str, seconds: float = PATIENCE
    ) -> None:
        """Return once the condition holds; fail with the last lines if it ends or is late."""

        def checked() -> bool:
            self.running()
            return condition()

        until(
            checked,
            lambda: f"{self.name}: {description}; its last lines:\n{self.last_lines()}",
            seconds,
        )

    def ask_to_end(self) -> None:
        """Send SIGTERM to it alone, as a kubelet does to the first process of a container."""
        self._process.send_signal(signal.SIGTERM)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to it and to all that it has started."""
        os.killpg(self._process.pid, number)

    def wait_ended(self, seconds: float = PATIENCE) -> None:
        """Return once it has ended by itself."""
        self._process.wait(seconds)

    def kill(self) -> None:
        """Kill the process and its children at once. Does nothing where it has ended."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(PATIENCE)


@functools.cache
def _ends_with_us() -> tuple[str, ...]:
    """The prefix of a command that the system ends with this process."""
    program = shutil.which("setpriv")
    return (program, "--pdeathsig", "KILL", "--") if program else ()


def until(
    condition: Callable[[], bool], description: str | Callable[[], str], seconds: float = PATIENCE
) -> None:
    """Return once the condition holds; fail when it does not in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            text = description if isinstance(description, str) else description()
            raise AssertionError(f"not in {seconds} s: {text}")
        time.sleep(0.05)


def is_listening(port: int) -> bool:
    """Return whether a process listens on the port of 127.0.0.1."""
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0
