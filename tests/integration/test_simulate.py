"""`gpushare simulate` as a process: an interrupt leaves finished runs, and no process."""

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

from tests.support.waiting import poll


def trace(folder: Path) -> list[str]:
    """The flags of a small cluster and its pods."""
    nodes, pods = folder / "nodes.csv", folder / "pods.csv"
    lines = [f"n{index},32000,131072,4,16" for index in range(20)]
    nodes.write_text("\n".join(["name,cpu_milli,memory_mib,gpu,units", *lines]))
    lines = [f"p{index},2000,4096,1,{1 + index % 16}" for index in range(200)]
    pods.write_text("\n".join(["name,cpu_milli,memory_mib,gpu,units", *lines]))
    return ["--nodes", str(nodes), "--pods", str(pods), "--policy", "device-bestfit"]


def read_until(terminal: int, pattern: str) -> str:
    """The process's output on its terminal until the text matches."""
    text = ""
    deadline = time.monotonic() + 200
    while not re.search(pattern, text) and time.monotonic() < deadline:
        ready, _, _ = select.select([terminal], [], [], deadline - time.monotonic())
        assert ready, text
        text += os.read(terminal, 65536).decode()
    return text


def processes_of(group: int) -> list[str]:
    """The running processes of a process group, without ended ones that wait to be collected."""
    completed = subprocess.run(
        ["ps", "-e", "-o", "pgid=,stat=,args="], capture_output=True, text=True, check=True
    )
    lines = [line.split(None, 2) for line in completed.stdout.splitlines()]
    return [cmd for of, state, cmd in lines if int(of) == group and not state.startswith("Z")]


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
        message = process.stderr.read()
    assert (process.returncode, message) == (141, "")
    assert json.loads(out.read_text())["complete"]


@pytest.mark.parametrize("jobs", ["1", "2"])
@pytest.mark.parametrize("ended_by", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_command_leaves_what_is_finished(
    tmp_path: Path, jobs: str, ended_by: signal.Signals
) -> None:
    out = tmp_path / "out.json"
    words = ["inflation", *trace(tmp_path), "--seeds", "1-1000", "--jobs", jobs]
    code, table, output = interrupted([*words, "--json", str(out)], r" [1-9][0-9]*/1000 ", ended_by)
    assert code == 130
    finished = re.search(r"interrupted: (\d+) of 1000 runs are finished", output)
    assert finished
    document = json.loads(out.read_text())
    assert document["complete"] is False
    assert len(document["records"]) == int(finished[1]) > 0
    assert f"device-bestfit {finished[1]:>6}" in table


def interrupted(words: list[str], when: str, by: signal.Signals) -> tuple[int, str, str]:
    """The exit code, stdout and stderr of the command, which ends when its terminal shows the text.

    No process of the command is left.
    """
    terminal, theirs = os.openpty()
    # On a terminal without width nothing is drawn.
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 24, 80, 0, 0))
    try:
        with subprocess.Popen(
            [sys.executable, "-P", "-m", "gpushare.cli.main", "simulate", *words],
            stdout=subprocess.PIPE,
            stderr=theirs,
            text=True,
            process_group=0,
        ) as process:
            os.close(theirs)
            read_until(terminal, when)
            os.kill(process.pid, by)
            until = read_until(terminal, r"interrupted: \d+ of \d+ runs are finished")
            table, _ = process.communicate(timeout=200)
    finally:
        os.close(terminal)
    poll(lambda: not processes_of(process.pid), "all of its processes have ended")
    return process.returncode, table, until
