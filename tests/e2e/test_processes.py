"""A control plane that does not start reports its last lines; no process outlives the test."""

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.binaries import needed
from tests.e2e.plane import Plane
from tests.e2e.processes import until


def failing(folder: Path, name: str) -> Path:
    """A program that says why, and ends."""
    program = folder / name
    program.write_text(f"#!/bin/sh\necho {name} lacks a flag\nexit 3\n")
    program.chmod(0o755)
    return program


def test_an_api_server_that_ends_is_named_with_its_last_lines(tmp_path: Path) -> None:
    plane = Plane(tmp_path, needed("etcd"), failing(tmp_path, "broken-apiserver"))
    try:
        with pytest.raises(
            AssertionError, match=r"kube-apiserver has ended \(3\):\n.*lacks a flag"
        ):
            plane.start()
    finally:
        plane.stop()


def test_an_etcd_that_ends_is_named_though_it_is_the_api_server_that_waits(tmp_path: Path) -> None:
    plane = Plane(tmp_path, failing(tmp_path, "broken-etcd"), needed("kube-apiserver"))
    try:
        with pytest.raises(AssertionError, match=r"etcd has ended \(3\):\n.*lacks a flag"):
            plane.start()
    finally:
        plane.stop()


_KILLED = """\
import os, signal, sys
from pathlib import Path
from tests.e2e.processes import Process
Process("sleeper", ["sh", "-c", "echo $$; exec sleep 600"], Path(sys.argv[1]))
while not (Path(sys.argv[1]) / "sleeper.log").read_text():
    pass
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="no setpriv")
def test_nothing_is_left_running_when_the_tests_are_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _KILLED, str(tmp_path)]
    finished = subprocess.run(command, cwd=Path(__file__).parents[2], check=False)
    assert finished.returncode == -signal.SIGKILL
    process = Path("/proc") / (tmp_path / "sleeper.log").read_text().strip()
    until(lambda: not (process / "exe").exists(), "it has ended")
