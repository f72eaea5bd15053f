"""`gpushare simulate` as a process: interrupted it leaves what is finished, and no process."""

import fcntl
import json
import os
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest


def trace(folder: Path) -> list[str]:
    """The flags of a small cluster and its pods."""
    nodes, pods = folder / "nodes.csv", folder / "pods.csv"
    lines = [f"n{index},32000,131072,4,16" for index in range(20)]
    nodes.write_text("\n".join(["name,cpu_milli,memory_mib,gpu,units", *lines]))
    lines = [f"p{index},2000,4096,1,{1 + index % 16}" for index in range(200)]
    pods.write_text("\n".join(["name,cpu_milli,memory_mib,gpu,units", *lines]))
    return ["--nodes", str(nodes), "--pods", str(pods), "--policy", "device-bestfit"]


def read_until(terminal: int, pattern: str) -> str:
    """What the process wrote to its terminal until it matches."""
    said = ""
    deadline = time.monotonic() + 90
    while not re.search(pattern, said) and time.monotonic() < deadline:
        ready, _, _ = select.select([terminal], [], [], deadline - time.monotonic())
        assert ready, said
        said += os.read(terminal, 65536).decode()
    return said


def processes_of(group: int) -> list[str]:
    """What runs in a process group; who has ended and waits to be collected does not."""
    listed = subprocess.run(
        ["ps", "-e", "-o", "pgid=,stat=,args="], capture_output=True, text=True, check=True
    )
    lines = [line.split(None, 2) for line in listed.stdout.splitlines()]
    return [cmd for of, state, cmd in lines if int(of) == group and not state.startswith("Z")]


def test_what_is_compiled_need_not_be_kept() -> None:
    nowhere = {"HOME": "/dev/null", "XDG_CACHE_HOME": "/dev/null"}
    # As in a container whose file system can only be read.
    environ = {**os.environ, **nowhere, "NUMBA_CACHE_LOCATOR_CLASSES": "UserWideCacheLocator"}
    environ.pop("NUMBA_DISABLE_JIT", None)
    program = "from gpushare.sim.kernel import _seen; import numpy; print(_seen(numpy.ones(2), 1))"
    ended = subprocess.run(
        [sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "True\n", "")


def test_a_reader_who_leaves_ends_it_in_silence_and_files_are_written(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    words = ["simulate", "inflation", *trace(tmp_path), "--seeds", "1-20", "--jobs", "1"]
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "gpushare.cli.main", *words, "-o", "json", "--json", str(out)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout
        process.stdout.close()
        assert process.stderr
        said = process.stderr.read()
    assert (process.returncode, said) == (141, "")
    assert json.loads(out.read_text())["complete"]


@pytest.mark.parametrize("jobs", ["1", "2"])
@pytest.mark.parametrize("ended_by", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_command_leaves_what_is_finished(
    tmp_path: Path, jobs: str, ended_by: signal.Signals
) -> None:
    out = tmp_path / "out.json"
    words = ["simulate", "inflation", *trace(tmp_path), "--seeds", "1-1000", "--jobs", jobs]
    terminal, theirs = os.openpty()
    # On a terminal without width nothing is drawn.
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 24, 80, 0, 0))
    try:
        with subprocess.Popen(
            [sys.executable, "-P", "-m", "gpushare.cli.main", *words, "--json", str(out)],
            stdout=subprocess.PIPE,
            stderr=theirs,
            text=True,
            process_group=0,
        ) as process:
            os.close(theirs)
            # The bar: so many runs of all are done.
            read_until(terminal, r" [1-9][0-9]*/1000 ")
            os.kill(process.pid, ended_by)
            told = read_until(terminal, r"interrupted: (\d+) of 1000 runs are finished")
            table, _ = process.communicate(timeout=60)
    finally:
        os.close(terminal)
    assert process.returncode == 130
    finished = re.search(r"interrupted: (\d+) of", told)
    assert finished
    document = json.loads(out.read_text())
    assert document["complete"] is False
    assert len(document["records"]) == int(finished[1]) > 0
    assert f"device-bestfit {finished[1]:>6}" in table
    deadline = time.monotonic() + 60
    while processes_of(process.pid):
        assert time.monotonic() < deadline
        time.sleep(0.02)
