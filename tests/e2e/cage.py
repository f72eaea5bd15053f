"""A control group with the memory limit of a manifest, for one process and its children.

Knows both versions of Linux's control groups. Without the right to make a group nothing is limited,
and peak memory is read from the processes.
"""

import contextlib
import os
from pathlib import Path

from tests.e2e.processes import until

_ROOT = Path("/sys/fs/cgroup")


class Cage:
    """The group. limit: bytes of memory."""

    def __init__(self, name: str, limit: int) -> None:
        self.limit = limit
        self._folder: Path | None = None
        unified = (_ROOT / "cgroup.controllers").exists()
        folder = (_ROOT if unified else _ROOT / "memory") / f"{name}-{os.getpid()}"
        self._peak = folder / ("memory.peak" if unified else "memory.max_usage_in_bytes")
        with contextlib.suppress(OSError):
            folder.mkdir()
            maximum = "memory.max" if unified else "memory.limit_in_bytes"
            (folder / maximum).write_text(str(limit))
            (folder / "cgroup.procs").read_text()
            self._folder = folder

    @property
    def holds(self) -> bool:
        """Whether the group could be made."""
        return self._folder is not None

    @property
    def prefix(self) -> tuple[str, ...]:
        """The prefix of a command in the group: a shell that joins the group and executes the
        command.
        """
        if self._folder is None:
            return ()
        return ("sh", "-c", f'echo $$ > {self._folder}/cgroup.procs && exec "$@"', "sh")

    def peak(self) -> int:
        """Peak bytes of all processes in the group."""
        assert self._folder is not None, "made"
        return int(self._peak.read_text())

    def close(self) -> None:
        """Remove the group after the end of the last process."""
        if self._folder is not None:
            folder = self._folder
            until(lambda: not (folder / "cgroup.procs").read_text(), lambda: f"{folder} is empty")
            folder.rmdir()


def highest(command: str) -> int:
    """Peak resident bytes, summed over processes with this text in the command line."""
    result = 0
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if command in (folder / "cmdline").read_text(encoding="utf-8", errors="replace"):
                lines = (folder / "status").read_text(encoding="ascii").splitlines()
                used = dict(line.split(":", 1) for line in lines)
                result += int(used["VmHWM"].split()[0]) * 1024
    return result
